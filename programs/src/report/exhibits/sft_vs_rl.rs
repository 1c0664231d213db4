//! tab:sft-vs-rl: what RL changed. "After SFT" is the checkpoint that GRPO started from.

use super::{Exhibit, Layout};
use crate::report::folder::Folder;
use switchyard::schema::{AccuracyRow, PhaseRow, RowFile};

/// Records of groups, and of a run's phases.
pub(super) const SOURCES: &[&str] = &[AccuracyRow::NAME, PhaseRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[Exhibit {
    cell: |cells, row, column| cells.phase_quality(cells.phase(row)?, column),
    beside: Layout {
        rl: true,
        extra: |folder| {
            let finished = (format!("at:{}", folder.sft), "finished Switch-SFT".to_owned());
            has_start(folder, SOURCES).then_some(finished).into_iter().collect()
        },
        note,
        ..Layout::PLAIN
    },
    ..Exhibit::new("tab:sft-vs-rl", SOURCES)
}];

/// Whether GRPO started from an intermediate checkpoint of phase 2, which then has its own row.
pub(super) fn has_start(folder: &Folder, sources: &[&str]) -> bool {
    folder.sft != folder.start && folder.before_grpo(sources) == folder.start
}

/// Key and name of that row.
pub(super) fn start_row(folder: &Folder, sources: &[&str]) -> Option<(String, String)> {
    has_start(folder, sources).then(|| (format!("at:{}", folder.start), "where Switch-GRPO started".to_owned()))
}

fn note(folder: &Folder, found: usize) -> String {
    match found {
        _ if has_start(folder, SOURCES) => format!(
            "\"After SFT\" is ours at `{}`, the checkpoint that Switch-GRPO started from; the finished one is below.",
            folder.start
        ),
        0 => String::new(),
        _ => format!("{}.", folder.no_start()),
    }
}
