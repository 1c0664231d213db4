//! The summary at the end of a run: the table of phases, with intervals, and the next commands.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{Run, taken};
use crate::evaluation::{Outcome, Scores};
use crate::method::{Phase, Recipe};
use crate::progress::show;
use crate::schema::{Identity, PhaseRow, RowFile};
use crate::stats::{Bootstrap, LEVEL, wilson};
use crate::store::{RowWriter, program, quoted, write_atomic};
use crate::train::state::TrainingHistory;

/// Prefix of a note that a phase has no valid result.
pub(in crate::train) const WARNING: &str = "warning";

/// The held-out result of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    pub phase: String,
    /// Latent source.
    pub source: String,
    pub trained: TrainingHistory,
    pub scores: Scores,
    /// The same checkpoint with `<swi>` masked.
    pub text_only: Option<Scores>,
    pub notes: Vec<String>,
    /// Checkpoints at the end of each stage of phase 2 but the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageResult>,
}

/// A stage of the curriculum, decoded like the finished model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageResult {
    pub k: usize,
    /// Latents per replaced token, if the stage sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub c: Option<f64>,
    pub trained: TrainingHistory,
    pub scores: Scores,
}

/// Markdown, one row a phase.
fn table(results: &[PhaseResult]) -> String {
    let mut out = String::from(
        "| phase | accuracy [95 %] | latent accuracy [95 %] | switch rate | text only | visible tokens | latent calls | \
         forward passes | truncated | \
         training steps | training positions |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for line in lines(results) {
        out += &line.markdown();
    }
    out
}

/// One line of the summary: a stage or a phase.
struct SummaryLine<'a> {
    name: String,
    source: &'a str,
    trained: TrainingHistory,
    scores: &'a Scores,
    text_only: Option<&'a Scores>,
}

fn lines(results: &[PhaseResult]) -> Vec<SummaryLine<'_>> {
    let mut all = vec![];
    for r in results {
        for stage in &r.stages {
            let c = stage.c.map_or_else(String::new, |c| format!(", c = {c}"));
            let name = format!("{}, stage {}{c}", r.phase, stage.k);
            let (trained, scores) = (stage.trained, &stage.scores);
            all.push(SummaryLine { name, source: &r.source, trained, scores, text_only: None });
        }
        let (name, text_only) = (r.phase.clone(), r.text_only.as_ref());
        all.push(SummaryLine { name, source: &r.source, trained: r.trained, scores: &r.scores, text_only });
    }
    all
}

impl SummaryLine<'_> {
    fn markdown(&self) -> String {
        let scores = self.scores;
        let latent = scores.latent_accuracy.map_or_else(|| "—".into(), |e| format!("{e:.3}"));
        let text = self.text_only.map_or_else(|| "—".into(), |s| format!("{:.3}", s.accuracy));
        format!(
            "| {} | {:.3} | {latent} | {:.3} | {text} | {:.1} | {:.1} | {:.1} | {} | {} | {} |\n",
            self.name,
            scores.accuracy,
            scores.switch_rate,
            scores.visible_tokens,
            scores.latent_calls,
            scores.visible_tokens + scores.latent_calls,
            scores.truncated,
            self.trained.steps,
            self.trained.positions
        )
    }
}

/// The results as records; means over problems have bootstrap intervals.
///
/// # Errors
/// A result without outcomes.
pub(in crate::train) fn rows(recipe: &Recipe, results: &[PhaseResult]) -> Result<Vec<PhaseRow>> {
    let (dataset, seed) = (recipe.dataset(), recipe.seed);
    let row = |line: SummaryLine| {
        let Scores { outcomes, accuracy, latent_accuracy, switch_rate, truncated, .. } = line.scores;
        let mean = |value: fn(&Outcome) -> usize| {
            let values: Vec<f64> = outcomes.iter().map(|o| value(o) as f64).collect();
            Bootstrap::seeded(seed).mean(&values).ok() // of a single problem there is no interval
        };
        Ok(PhaseRow {
            identity: Identity {
                checkpoint: format!("{}/{}", recipe.name, line.name),
                dataset: dataset.clone(),
                n: outcomes.len(),
                seed,
            },
            phase: line.name,
            source: line.source.to_owned(),
            accuracy: *accuracy,
            latent_accuracy: *latent_accuracy,
            text_only_accuracy: line.text_only.map(|s| s.accuracy),
            switch_rate: *switch_rate,
            visible_tokens: mean(|o| o.visible_tokens),
            latent_calls: mean(|o| o.latent_calls),
            forward_passes: mean(Outcome::forward_passes),
            truncated: wilson(*truncated, outcomes.len(), LEVEL)?,
            train_steps: Some(line.trained.steps),
            train_positions: Some(line.trained.positions),
        })
    };
    lines(results).into_iter().map(row).collect()
}

/// Writes `summary.md`, `summary.json` and the rows `summary.parquet`, prints the table and the next commands.
pub(super) fn write(run: &Run, phases: &[Phase], results: &[PhaseResult]) -> Result<()> {
    let text = table(results);
    let taken = taken::note(&run.root, phases)?;
    let notes = taken.iter().chain(results.iter().flat_map(|r| &r.notes));
    let notes: String = notes.map(|n| format!("- {n}\n")).collect();
    let file = format!(
        "# {}\n\n`{}`\n\nGreedy decoding, seed {}.\n\n{text}\n{notes}",
        run.recipe.name, run.options.command, run.recipe.seed
    );
    write_atomic(&run.root.join("summary.md"), file.as_bytes())?;
    write_atomic(&run.root.join("summary.json"), &serde_json::to_vec_pretty(results)?)?;
    let mut writer = RowWriter::create(&run.root, PhaseRow::NAME)?;
    for row in rows(&run.recipe, results)? {
        writer.push(&row)?;
    }
    writer.finish()?;
    show(&format!("{text}\n{notes}"));
    let last = results.iter().rev().find(|r| r.phase == "grpo" || r.phase == "sft");
    if let Some(last) = last {
        let probe = program("probe");
        let folder = run.root.join(&last.phase).join("checkpoint");
        let [root, folder] = [&run.root, &folder].map(|path| quoted(&path.display().to_string()));
        show(&format!(
            "Next:\n  {probe} {root}\n  {} {root}\n  {probe} generate --model {folder} --prompt '…'",
            program("intervene")
        ));
    }
    Ok(())
}
