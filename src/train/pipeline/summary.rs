//! What a run says at its end: the table of phases, with intervals, and what to type next.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::Run;
use crate::evaluation::Scores;
use crate::text::write_atomic;

/// The held-out result of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    pub phase: String,
    /// What entered at latent positions.
    pub source: String,
    pub scores: Scores,
    /// The same checkpoint with `<swi>` masked.
    pub text_only: Option<Scores>,
    pub notes: Vec<String>,
    /// Phase 2's checkpoints at the end of each stage before the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
}

/// A stage of the curriculum, decoded as the finished model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    pub k: usize,
    pub scores: Scores,
}

/// Markdown, one row a phase.
pub fn table(results: &[PhaseResult]) -> String {
    let mut out = String::from(
        "| phase | accuracy [95 %] | latent accuracy [95 %] | switch rate | text only | visible tokens | latent calls | truncated |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for r in results {
        for stage in &r.stages {
            out += &line(&format!("{}, stage {}", r.phase, stage.k), &stage.scores, None);
        }
        out += &line(&r.phase, &r.scores, r.text_only.as_ref());
    }
    out
}

fn line(name: &str, scores: &Scores, text_only: Option<&Scores>) -> String {
    let latent = scores.latent_accuracy.map_or_else(|| "—".into(), |e| format!("{e:.3}"));
    let text = text_only.map_or_else(|| "—".into(), |s| format!("{:.3}", s.accuracy));
    format!(
        "| {name} | {:.3} | {latent} | {:.3} | {text} | {:.1} | {:.1} | {} |\n",
        scores.accuracy, scores.switch_rate, scores.visible_tokens, scores.latent_calls, scores.truncated
    )
}

/// Writes `summary.md` and `summary.json`, prints the table and the next commands.
pub(super) fn write(run: &Run, results: &[PhaseResult]) -> Result<()> {
    let text = table(results);
    let notes: String = results.iter().flat_map(|r| &r.notes).map(|n| format!("- {n}\n")).collect();
    let file = format!(
        "# {}\n\n`{}`\n\nGreedy decoding, seed {}.\n\n{text}\n{notes}",
        run.recipe.name, run.options.command, run.recipe.seed
    );
    write_atomic(&run.root.join("summary.md"), file.as_bytes())?;
    write_atomic(&run.root.join("summary.json"), &serde_json::to_vec_pretty(results)?)?;
    println!("{text}\n{notes}");
    let last = results.iter().rev().find(|r| r.phase == "grpo" || r.phase == "latent");
    if let Some(last) = last {
        let (root, folder) = (run.root.display(), run.root.join(&last.phase).join("checkpoint"));
        println!(
            "Next:\n  cargo run --release --bin probe -- {root}\n  cargo run --release --bin intervene -- {root}\n  \
             cargo run --release --bin probe -- generate --model {} --prompt '…'",
            folder.display()
        );
    }
    Ok(())
}
