//! Cells about the switching decision: tab:tf, tab:swi-window, tab:probe. Knows the rows of `teacher_forced`,
//! `switch_window` and `layer_probe`.

use super::Cells;
use crate::report::folder::Folder;
use crate::schema::{Event, Features, ProbeRow, Protocol, TeacherForcedRow, WindowRow};
use crate::stats::Estimate;
use crate::stats::probe::{paper_layer, paper_layers};

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

    /// The paper's protocol at the layer after which as large a share of layers is passed.
    pub(super) fn probe(&self, row: &str, column: &str) -> Option<Estimate> {
        let rows = self.folder.rows::<ProbeRow>(self.phase(column)?);
        let layer = paper_layer(row.trim_start_matches('-').parse().ok()?, depth(rows)?);
        let ours = |r: &&ProbeRow| {
            r.is_switch() && r.protocol == Protocol::Paper && r.features == Features::ResidPost && r.layer == layer
        };
        rows.iter().find(ours).map(|r| r.accuracy.unwrap_or(r.balanced_accuracy))
    }
}

/// What the paper calls random positions: the random sample, or all others in rows that have none.
pub(crate) fn random_event(folder: &Folder, checkpoint: &str) -> Event {
    let sampled = folder.rows::<TeacherForcedRow>(checkpoint).iter().any(|r| r.event == Event::Random);
    if sampled { Event::Random } else { Event::Other }
}

/// Layers of the model that rows of `layer_probe` are of.
pub fn depth(rows: &[ProbeRow]) -> Option<usize> {
    rows.first().and_then(|r| (r.layer + r.from_last).checked_sub(1)).filter(|&layers| layers > 0)
}

/// Whether another row of tab:probe already shows the layer of ours that a row's offset falls on.
pub(crate) fn repeats_a_layer(row: &str, depth: usize) -> bool {
    let stands = paper_layers(depth);
    row.trim_start_matches('-').parse().is_ok_and(|offset: usize| stands.iter().all(|&(o, _)| o != offset))
}
