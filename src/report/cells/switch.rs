//! Cells about the switching decision: tab:tf, tab:swi-window, tab:probe. Knows the rows of `teacher_forced`,
//! `switch_window` and `layer_probe`.

use super::Cells;
use crate::report::folder::Folder;
use crate::schema::{Event, Features, ProbeRow, Protocol, TeacherForcedRow, WindowRow};
use crate::stats::Estimate;

/// Layers of the paper's model; its offsets are scaled by ours / theirs.
pub const PAPER_LAYERS: f64 = 36.0;

impl Cells<'_> {
    /// Extra rows are `<checkpoint>:<event>`.
    pub(super) fn teacher_forced(&self, row: &str, column: &str) -> Option<Estimate> {
        let (checkpoint, event) = match row.split_once(':') {
            Some((checkpoint, event)) => (checkpoint, Event::ALL.into_iter().find(|e| e.name() == event)?),
            None => {
                let checkpoint = self.phase(row)?;
                let start = row.ends_with("start");
                (checkpoint, if start { Event::SwiStart } else { random_event(self.folder, checkpoint) })
            }
        };
        let row = self.folder.rows::<TeacherForcedRow>(checkpoint).iter().find(|r| r.event == event)?;
        match column {
            "entropy" => Some(row.entropy),
            "p_swi" => Some(row.p_swi),
            "rank" => Some(row.rank),
            "margin" => Some(row.margin),
            _ => None,
        }
    }

    pub(super) fn window(&self, row: &str, column: &str) -> Option<Estimate> {
        let offset = match column {
            "before" => -1,
            "at" => 0,
            _ => 1,
        };
        self.folder.rows::<WindowRow>(self.phase(row)?).iter().find(|r| r.offset == offset).map(|r| r.p_swi)
    }

    /// The paper's protocol at the offset scaled to our depth.
    pub(super) fn probe(&self, row: &str, column: &str) -> Option<Estimate> {
        let rows = self.folder.rows::<ProbeRow>(self.phase(column)?);
        let offset: f64 = row.trim_start_matches('-').parse().ok()?;
        let from_last = scaled_offset(offset, depth(rows))?;
        let ours = |r: &&ProbeRow| {
            r.is_switch()
                && r.protocol == Protocol::Paper
                && r.features == Features::ResidPost
                && r.from_last == from_last
        };
        rows.iter().find(ours).map(|r| r.accuracy.unwrap_or(r.balanced_accuracy))
    }
}

/// What the paper calls random positions: the random sample, or all others in rows that have none.
pub fn random_event(folder: &Folder, checkpoint: &str) -> Event {
    let sampled = folder.rows::<TeacherForcedRow>(checkpoint).iter().any(|r| r.event == Event::Random);
    if sampled { Event::Random } else { Event::Other }
}

/// Layers of the model that rows of `layer_probe` are of; 0 without rows.
pub fn depth(rows: &[ProbeRow]) -> usize {
    rows.iter().filter(|r| r.features == Features::ResidPost).map(|r| r.layer).max().unwrap_or(0)
}

/// Where the paper's offset from the last of 36 layers lies in a model of `layers`; at least the last one.
pub fn scaled_offset(offset: f64, layers: usize) -> Option<usize> {
    (layers > 0).then(|| ((offset * layers as f64 / PAPER_LAYERS).round() as usize).clamp(1, layers))
}

#[cfg(test)]
mod tests {
    use super::scaled_offset;

    #[test]
    fn offsets_scale_with_depth() {
        let at = |layers: usize| [24.0, 12.0, 1.0].map(|o| scaled_offset(o, layers).unwrap());
        assert_eq!((at(36), at(4)), ([24, 12, 1], [3, 1, 1]));
        assert_eq!(scaled_offset(1.0, 0), None);
    }
}
