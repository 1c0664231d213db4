//! tab:main: accuracy and length of every method, on whatever data the rows are of: the columns for MATH-500 and GSM8K get the same
//! number, which is shown once.

use super::sft_vs_rl::{SOURCES, has_start};
use super::{Exhibit, Layout};
use crate::report::cells::{Cells, Quality};
use crate::report::folder::Folder;
use crate::stats::Estimate;

pub(super) const EXHIBITS: &[Exhibit] = &[Exhibit {
    cell,
    beside: Layout {
        shows: |column| !column.starts_with("math500"),
        heading: |folder, name| Some(format!("{} (ours, {})", name.trim_start_matches("GSM8K "), folder.dataset())),
        // What an answer costs, beside its visible tokens.
        beyond: &[("latent_calls", "Latent steps"), ("passes", "Forward passes")],
        extra,
        ..Layout::PLAIN
    },
    ..Exhibit::of("tab:main", SOURCES)
}];

/// Phases that the paper's main table lacks.
const BESIDE: [(&str, &str); 14] = [
    ("text_cot_grpo", "Text-CoT, then GRPO without latents (control)"),
    ("swireasoning", "SwiReasoning (training-free)"),
    ("soft_thinking", "Soft-Thinking (training-free)"),
    ("soft_grpo", "Soft-Thinking, then GRPO with Gumbel noise (SofT-GRPO)"),
    ("hrpo_start", "Text-CoT through a gate that is not trained yet"),
    ("hrpo", "Text-CoT through a gate between token and state, then GRPO (HRPO)"),
    ("latent_sft", "superpositions of the vocabulary (Latent-SFT)"),
    ("latent_grpo", "superpositions of the vocabulary, then GRPO with one-sided noise (Latent-GRPO)"),
    ("fixed_embedding", "fixed embedding at the latent steps (control)"),
    ("coconut_pause", "Coconut with one embedding at every latent (control)"),
    ("coconut_no_thought", "Coconut's curriculum without latents (control)"),
    ("coconut_no_curriculum", "Coconut's last stage alone (control)"),
    ("simcot", "Coconut whose latents an auxiliary decoder spells out (SIM-CoT)"),
    ("codi_fixed", "CODI with one embedding at every latent (control)"),
];

fn extra(folder: &Folder) -> Vec<(String, String)> {
    let own = |key: &str, name: &str| (key.to_owned(), name.to_owned());
    let there = |phase: &str| folder.phases().iter().any(|row| row.phase == phase);
    let mut rows: Vec<_> =
        BESIDE.iter().filter(|(phase, _)| there(phase)).map(|(phase, name)| own(phase, name)).collect();
    rows.extend(has_start(folder, SOURCES).then(|| own(&folder.start, "where Switch-GRPO started")));
    rows.push(own(&format!("{}+text_only", folder.sft), "after Switch-SFT, <swi> masked"));
    rows.push(own(&format!("{}+text_only", folder.grpo), "after Switch-GRPO, <swi> masked"));
    rows
}

fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let checkpoint = match row {
        "text_cot" => "base",
        "switch_sft" => cells.sft,
        "switch_grpo" => &cells.folder.grpo,
        other => other, // a method's own checkpoint: no_cot, coconut, fixed_embedding, …
    };
    if let Some(checkpoint) = row.strip_suffix("+text_only") {
        return column.ends_with("acc").then(|| cells.quality(checkpoint, "text_only", Quality::Accuracy))?;
    }
    match column {
        "latent_calls" => cells.quality(checkpoint, "all", Quality::LatentCalls),
        "passes" => cells.folder.phases().iter().find(|row| row.phase == checkpoint)?.forward_passes,
        column if column.ends_with("acc") => cells.quality(checkpoint, "all", Quality::Accuracy),
        _ => cells.quality(checkpoint, "all", Quality::VisibleTokens),
    }
}
