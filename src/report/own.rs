//! Tables of ours that the paper lacks. Knows which rows and columns each shows; an experiment without an entry here is shown
//! with all its columns.

use anyhow::Result;

use super::cells::is_plain;
use super::folder::{Folder, is, shown};
use super::generic::{Of, table};
use super::tables::Table;
use crate::store::Row;

/// Which rows of an experiment a table shows.
struct Shown {
    label: &'static str,
    title: &'static str,
    experiments: &'static [&'static str],
    keep: fn(&Row) -> bool,
    columns: &'static [&'static str],
}

const LADDER: &[&str] = &[
    "mode",
    "dose",
    "steps",
    "later",
    "at",
    "draws",
    "accuracy",
    "accuracy_change",
    "answer_changed",
    "diagnostic_accuracy",
    "wrong_to_right",
    "logit_diff_change",
    "lost",
    "gained",
    "p_holm",
    "firings",
    "mean_change",
];

const TABLES: &[Shown] = &[
    Shown {
        label: "tab:intervention-ladder",
        title: "Ladder of interventions on the latent inputs, all steps",
        experiments: &["latent_intervention"],
        keep: is_plain,
        columns: LADDER,
    },
    Shown {
        label: "tab:intervention-steps",
        title: "Interventions at one latent step at a time (steps from 0)",
        experiments: &["latent_intervention", "latent_intervention_steps"],
        keep: |row| {
            let control = ["normal", "self_patch"].contains(&shown(row, "mode").as_str());
            !control && !["", "all"].contains(&shown(row, "steps").as_str())
        },
        columns: LADDER,
    },
    Shown {
        label: "tab:intervention-dose",
        title: "Dose and response: how far, in norm or angle, the latent input is moved",
        experiments: &["latent_intervention"],
        keep: |row| !is_plain(row) && !shown(row, "dose").is_empty(),
        columns: LADDER,
    },
    Shown {
        label: "tab:intervention-where",
        title: "Interventions by where they act: embedding or cache, later latents frozen or recomputed",
        experiments: &["latent_intervention"],
        keep: |row| {
            !is_plain(row) && ["", "all"].contains(&shown(row, "steps").as_str()) && shown(row, "dose").is_empty()
        },
        columns: LADDER,
    },
    Shown {
        label: "tab:known-value",
        title: "Known-value patching: does the answer follow the arithmetic?",
        experiments: &["latent_intervention"],
        keep: |row| row.get("hit_rate.value").is_some_and(|v| v.is_number()),
        columns: &[
            "mode",
            "steps",
            "later",
            "at",
            "hit_rate",
            "chance",
            "above_chance",
            "kept",
            "accuracy",
            "diagnostic_accuracy",
            "firings",
        ],
    },
    Shown {
        label: "tab:switch-benefit",
        title: "Every problem with a block and without: what switching is worth, free of the model's own choice",
        experiments: &["switch_benefit"],
        keep: |_| true,
        columns: &["group", "with_block", "without_block", "benefit", "better", "worse", "p_value"],
    },
    Shown {
        label: "tab:probe-grouped",
        title: "Probes for the next <swi>, split by problem, with controls (balanced accuracy; last layer = 1)",
        experiments: &["layer_probe"],
        keep: |row| is(row, "target", "switch") && is(row, "protocol", "grouped"),
        columns: &["features", "layer", "from_last", "balanced_accuracy", "auroc", "selectivity", "chance"],
    },
    Shown {
        label: "tab:probe-values",
        title: "Probes for the task's intermediate values at each latent step",
        experiments: &["layer_probe"],
        keep: |row| shown(row, "target").starts_with("value"),
        columns: &[
            "target",
            "protocol",
            "features",
            "layer",
            "from_last",
            "balanced_accuracy",
            "selectivity",
            "chance",
        ],
    },
    Shown {
        label: "tab:phases",
        title: "What Switch-GRPO changes at the same positions (paired, second minus first)",
        experiments: &["phases"],
        keep: |_| true,
        columns: &["event", "positions", "d_p_swi", "d_entropy", "d_margin", "d_rank"],
    },
    Shown {
        label: "tab:switching",
        title: "Accuracy by group, under forced and suppressed switching, and by K_min",
        experiments: &["accuracy"],
        keep: |_| true,
        columns: &[
            "group",
            "accuracy",
            "latent_accuracy",
            "switch_rate",
            "blocks",
            "latent_calls",
            "visible_tokens",
            "truncated",
            "difference",
            "p_holm",
        ],
    },
    Shown {
        label: "tab:training",
        title: "Held-out accuracy after each phase of training",
        experiments: &["summary"],
        keep: |_| true,
        columns: &[
            "phase",
            "accuracy",
            "latent_accuracy",
            "text_only_accuracy",
            "switch_rate",
            "visible_tokens",
            "latent_calls",
            "truncated",
        ],
    },
];

/// Experiments that are drawn, or shown token by token, and have too many rows for a table.
const NO_TABLE: &[&str] = &["metrics", "positions", "outcomes", "switch_problems", "logit_lens", "activation_patching"];

/// Experiments whose rows stand in the tables beside the paper's and need no second one.
const BESIDE: &[&str] = &["teacher_forced"];

/// Every table of ours that the folder has rows for.
///
/// # Errors
/// None that rows can cause.
pub fn tables(folder: &Folder) -> Result<Vec<Table>> {
    let mut out = vec![];
    let mut done: Vec<&str> = [NO_TABLE, BESIDE].concat();
    for shown in TABLES {
        done.extend(shown.experiments);
        // The later experiments of a list are older names: they count for checkpoints that the first has nothing of.
        let mut rows: Vec<Of<'_>> = vec![];
        for (checkpoint, found) in shown.experiments.iter().flat_map(|e| of(folder, e, shown.keep)) {
            if !rows.iter().any(|(c, _)| *c == checkpoint) {
                rows.push((checkpoint, found));
            }
        }
        out.extend(table(shown.label, shown.title, &rows, shown.columns)?);
    }
    let mut others: Vec<&str> = folder.files().map(|(experiment, _, _)| experiment).collect();
    others.dedup();
    for experiment in others.into_iter().filter(|e| !done.contains(e)) {
        let title = experiment.replace('_', " ");
        let of = of(folder, experiment, |_| true);
        out.extend(table(&format!("tab:{}", experiment.replace('_', "-")), &title, &of, &[])?);
    }
    Ok(out)
}

fn of<'a>(folder: &'a Folder, experiment: &str, keep: fn(&Row) -> bool) -> Vec<Of<'a>> {
    let checkpoints = folder.checkpoints(experiment).into_iter();
    checkpoints
        .map(|c| (c.to_owned(), folder.rows(experiment, c).iter().filter(|r| keep(r)).collect::<Vec<_>>()))
        .filter(|(_, rows)| !rows.is_empty())
        .collect()
}
