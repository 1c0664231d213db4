//! tab:main: accuracy and length of every method on the data of the rows: the columns for MATH-500 and GSM8K get the same number, which is
//! shown once. If a folder has rows of both (`probe --beside`), each column gets its own.

use super::sft_vs_rl::{SOURCES, has_start};
use super::{Exhibit, Layout};
use crate::report::cells::{Cells, group_column, intervention_row, phase_column};
use crate::report::folder::Folder;
use crate::report::paper::Unit;
use switchyard::method::{Phase, TableRow, declared};
use switchyard::schema::{AccuracyRow, PhaseRow, RowFile};
use switchyard::stats::Estimate;

pub(super) const EXHIBITS: &[Exhibit] = &[Exhibit {
    cell,
    beside: Layout {
        shows: |folder, column| match named_sets(folder).as_slice() {
            [] => !column.starts_with("math500"),
            sets => sets.iter().any(|set| column.starts_with(set)),
        },
        renames: |folder, row| {
            let base = folder.phases().iter().find(|phase| phase.phase == "base")?;
            (row == "text_cot" && base.train_steps == Some(0)).then(|| "base, untrained".to_owned())
        },
        heading: |folder, name| {
            let one = || format!("{} (ours, {})", name.trim_start_matches("GSM8K "), folder.dataset());
            named_sets(folder).is_empty().then(one)
        },
        // Further costs of an answer, next to its visible tokens.
        beyond: &[
            ("latent_calls", "Latent steps", Unit::Steps),
            ("passes", "Forward passes", Unit::Steps),
            ("resample", "Change of acc. with latents of other problems", Unit::Percent),
        ],
        words: &[("Acc. over seeds", over_seeds)],
        stands: |folder| folder.beside_paper() || rivals(folder) > 1,
        extra,
        ..Layout::PLAIN
    },
    ..Exhibit::new("tab:main", SOURCES)
}];

/// Number of methods in a folder besides text and SWITCH.
fn rivals(folder: &Folder) -> usize {
    let rival = |phase: &&Phase| matches!(phase.row, TableRow::Ours(_)) || phase.row == TableRow::Paper(phase.name);
    let there = |phase: &&Phase| folder.phases().iter().any(|row| row.phase == phase.name);
    declared().into_iter().filter(rival).filter(there).count()
}

/// Lowest and highest accuracy, in percent, of runs that differ only in their seed.
fn over_seeds(cells: &Cells<'_>, row: &str) -> Option<String> {
    let checkpoint = checkpoint(cells, row);
    let runs = cells.folder.runs();
    let of = runs.iter().filter_map(|run| run.iter().find(|row| row.phase == checkpoint));
    let accuracies: Vec<f64> = of.map(|row| 100.0 * row.accuracy.value).collect();
    let [least, most] = [f64::min, f64::max].map(|pick| accuracies.iter().copied().reduce(pick));
    Some(format!("{:.1} to {:.1} ({} runs)", least?, most?, accuracies.len())).filter(|_| accuracies.len() > 1)
}

/// The method whose number a row shows.
fn checkpoint<'c>(cells: &'c Cells<'_>, row: &'c str) -> &'c str {
    match row {
        "text_cot" => "base",
        "switch_sft" => cells.sft,
        "switch_grpo" => &cells.folder.grpo,
        other => other, // a method's own checkpoint: no_cot, coconut, fixed_embedding, …
    }
}

fn extra(folder: &Folder) -> Vec<(String, String)> {
    let own = |key: &str, name: &str| (key.to_owned(), name.to_owned());
    let there = |phase: &str| folder.phases().iter().any(|row| row.phase == phase);
    let ours = |phase: &&Phase| match phase.row {
        TableRow::Ours(caption) if there(phase.name) => Some(own(phase.name, caption)),
        _ => None,
    };
    let mut rows: Vec<_> = declared().iter().filter_map(ours).collect();
    rows.extend(has_start(folder, SOURCES).then(|| own(&folder.start, "where Switch-GRPO started")));
    for (phase, name) in [(&folder.sft, "Switch-SFT"), (&folder.grpo, "Switch-GRPO")] {
        let masked = || own(&format!("{phase}+text_only"), &format!("after {name}, <swi> masked"));
        rows.extend((there(phase) || folder.has(AccuracyRow::NAME, phase)).then(masked));
    }
    rows
}

/// The paper's data set of this name, as its columns begin.
fn set_of(dataset: &str) -> Option<&'static str> {
    let plain: String = dataset.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    SETS.into_iter().find(|set| plain.contains(set))
}

const SETS: [&str; 2] = ["math500", "gsm8k"];

/// The paper's data sets with rows in the folder.
fn named_sets(folder: &Folder) -> Vec<&'static str> {
    let phases = folder.all::<PhaseRow>().map(|(_, row)| &row.identity.dataset);
    let groups = folder.all::<AccuracyRow>().map(|(_, row)| &row.identity.dataset);
    let there: Vec<&str> = phases.chain(groups).filter_map(|dataset| set_of(dataset)).collect();
    SETS.into_iter().filter(|set| there.contains(set)).collect()
}

/// Whether a cell belongs to one of the paper's data sets without rows in the folder, while the other has rows.
pub(in crate::report) fn of_other_set(folder: &Folder, cell: &str) -> bool {
    let sets = named_sets(folder);
    let asked = cell.rsplit('/').next().and_then(|column| SETS.into_iter().find(|set| column.starts_with(set)));
    !sets.is_empty() && asked.is_some_and(|set| !sets.contains(&set))
}

/// Whether rows of this data set answer a column of the paper's main table.
pub(in crate::report) fn answers(folder: &Folder, dataset: &str, column: &str) -> bool {
    let asked = SETS.into_iter().find(|set| column.starts_with(set));
    named_sets(folder).is_empty() || asked.is_none() || set_of(dataset) == asked
}

/// Separates a checkpoint's name from the problems of `probe --beside` in a file name.
const ON: &str = "-on-";

/// A quality of a group of problems of one of the paper's data sets: from rows of the checkpoint, else from a run's own `summary`.
fn on_set(folder: &Folder, checkpoint: &str, group: &str, set: &str, quality: &str) -> Option<Estimate> {
    let of = |dataset: &str| set_of(dataset) == Some(set);
    let own = |name: &&str| name.strip_prefix(checkpoint).is_some_and(|rest| rest.is_empty() || rest.starts_with(ON));
    let mut rows = folder
        .checkpoints_with::<AccuracyRow>()
        .into_iter()
        .filter(own)
        .flat_map(|name| folder.rows::<AccuracyRow>(name));
    let found = rows.find(|row| row.group == group && of(&row.identity.dataset));
    let phase = || folder.all::<PhaseRow>().find(|(_, row)| row.phase == checkpoint && of(&row.identity.dataset));
    found.and_then(|row| group_column(row, quality)).or_else(|| match group {
        "text_only" => phase()?.1.text_only_accuracy,
        _ => phase_column(phase()?.1, quality),
    })
}

fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let masked = row.strip_suffix("+text_only").filter(|_| column.ends_with("acc"));
    let (checkpoint, group) = masked.map_or((checkpoint(cells, row), "all"), |checkpoint| (checkpoint, "text_only"));
    let quality = column.rsplit('_').next()?;
    if let Some(set) = SETS.into_iter().find(|set| column.starts_with(set)) {
        return match named_sets(cells.folder).is_empty() {
            true => cells.quality(checkpoint, group, quality),
            false => on_set(cells.folder, checkpoint, group, set, quality),
        };
    }
    match column {
        "latent_calls" => cells.quality(checkpoint, "all", column),
        "resample" => intervention_row(cells.folder, checkpoint, "resample").map(|row| row.accuracy_change),
        "passes" => cells.folder.phases().iter().find(|row| row.phase == checkpoint)?.forward_passes,
        _ => None,
    }
}
