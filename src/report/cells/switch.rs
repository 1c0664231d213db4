//! Cells about the switching decision: tab:tf, tab:swi-window, tab:probe. Knows the rows of `teacher_forced`,
//! `switch_window` and `layer_probe`.

use super::Cells;
use crate::report::folder::{Folder, estimate, find, is, number};
use crate::stats::Estimate;
use crate::store::Row;

/// Layers of the paper's model; its offsets are scaled by ours / theirs.
pub const PAPER_LAYERS: f64 = 36.0;

impl Cells<'_> {
    /// Extra rows are `<checkpoint>:<event>`.
    pub(super) fn teacher_forced(&self, row: &str, column: &str) -> Option<Estimate> {
        let (checkpoint, event) = match row.split_once(':') {
            Some(own) => own,
            None => {
                let checkpoint = self.phase(row)?;
                (checkpoint, if row.ends_with("start") { "swi_start" } else { random_event(self.folder, checkpoint) })
            }
        };
        estimate(find(self.folder.rows("teacher_forced", checkpoint), &[("event", event)])?, column)
    }

    pub(super) fn window(&self, row: &str, column: &str) -> Option<Estimate> {
        let offset = match column {
            "before" => "-1",
            "at" => "0",
            _ => "1",
        };
        estimate(find(self.folder.rows("switch_window", self.phase(row)?), &[("offset", offset)])?, "p_swi")
    }

    /// The paper's protocol at the offset scaled to our depth.
    pub(super) fn probe(&self, row: &str, column: &str) -> Option<Estimate> {
        let rows = self.folder.rows("layer_probe", self.phase(column)?);
        let ours =
            |r: &&Row| is(r, "target", "switch") && is(r, "protocol", "paper") && is(r, "features", "resid_post");
        let layers = depth(rows);
        let offset: f64 = row.trim_start_matches('-').parse().ok()?;
        let from_last = scaled_offset(offset, layers)?;
        let row = rows.iter().filter(ours).find(|r| number(r, "from_last") == Some(from_last))?;
        estimate(row, "accuracy").or_else(|| estimate(row, "balanced_accuracy"))
    }
}

/// What the paper calls random positions: the random sample, or all others in rows that have none.
pub fn random_event(folder: &Folder, checkpoint: &str) -> &'static str {
    let sampled = find(folder.rows("teacher_forced", checkpoint), &[("event", "random")]).is_some();
    if sampled { "random" } else { "other" }
}

/// Layers of the model that rows of `layer_probe` are of; 0 without rows.
pub fn depth(rows: &[Row]) -> f64 {
    rows.iter().filter(|r| is(r, "features", "resid_post")).filter_map(|r| number(r, "layer")).fold(0.0, f64::max)
}

/// Where the paper's offset from the last of 36 layers lies in a model of `layers`; at least the last one.
pub fn scaled_offset(offset: f64, layers: f64) -> Option<f64> {
    (layers > 0.0).then(|| (offset * layers / PAPER_LAYERS).round().clamp(1.0, layers))
}

#[cfg(test)]
mod tests {
    use super::scaled_offset;

    #[test]
    fn offsets_scale_with_depth() {
        let at = |layers: f64| [24.0, 12.0, 1.0].map(|o| scaled_offset(o, layers).unwrap());
        assert_eq!((at(36.0), at(4.0)), ([24.0, 12.0, 1.0], [3.0, 1.0, 1.0]));
        assert_eq!(scaled_offset(1.0, 0.0), None);
    }
}
