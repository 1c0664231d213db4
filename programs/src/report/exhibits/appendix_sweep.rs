//! tab:appendix-sweep: stages of phase 2, intermediate checkpoints, and K_min. The paper's two SFT rows differ in K_min; ours are the
//! same checkpoint with these values.

use super::sft_vs_rl::{SOURCES, start_row};
use super::{Exhibit, Layout};
use crate::report::cells::{Cells, step_of};
use crate::report::folder::Folder;
use switchyard::schema::AccuracyRow;
use switchyard::stats::Estimate;

pub(super) const EXHIBITS: &[Exhibit] = &[Exhibit {
    cell,
    beside: Layout {
        shows: |_, column| column != "k_min",
        extra,
        note: |_, _| "Ours at \"stage 8\" is the same checkpoint as at \"stage 6\", decoded with K_min = 0.".into(),
        ..Layout::PLAIN
    },
    ..Exhibit::new("tab:appendix-sweep", SOURCES)
}];

/// Extra rows are `at:<checkpoint>` and `<checkpoint>:k_min:<k>`.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let k_min = |checkpoint: &str, group: &str| cells.quality(checkpoint, group, column);
    match row {
        "stage8" => k_min(cells.sft, "k_min:0"),
        "stage6" => cells.phase_quality(cells.sft, column),
        "step800" => cells.phase_quality(&cells.folder.grpo, column),
        "step1000" => cells.phase_quality("brevity", column),
        other => match other.split_once(':') {
            Some(("at", checkpoint)) => cells.phase_quality(checkpoint, column),
            Some((checkpoint, group)) => k_min(checkpoint, group),
            None => cells.phase_quality(&format!("grpo_{other}"), column),
        },
    }
}

fn extra(folder: &Folder) -> Vec<(String, String)> {
    let stages = folder.phases().iter().filter(|row| row.phase.starts_with(&format!("{}, stage ", folder.sft)));
    let stages = stages.map(|row| (format!("at:{}", row.phase), row.phase.replacen(&folder.sft, "Switch-SFT", 1)));
    let mut rows: Vec<(String, String)> = stages.chain(start_row(folder, SOURCES)).collect();
    let steps = folder.checkpoints_with::<AccuracyRow>().into_iter().filter_map(|c| Some((step_of(c)?, c)));
    let mut steps: Vec<(usize, &str)> = steps.collect();
    steps.sort_unstable();
    rows.extend(steps.iter().map(|(step, c)| (format!("at:{c}"), format!("Switch-GRPO, step {step}"))));
    for (checkpoint, row) in folder.all::<AccuracyRow>().filter(|(c, _)| step_of(c).is_none()) {
        if let Some(k) = row.group.strip_prefix("k_min:") {
            rows.push((format!("{checkpoint}:{}", row.group), format!("{checkpoint}, K_min = {k}")));
        }
    }
    rows
}
