//! Attention patterns of every head from every position of the first problems with the model's responses, for the prompt explorer.
//!
//! One record per head and position, with the weights of the keys. No averages, no intervals: `attention_to_latents` has those, over all
//! problems.
//!
//! Misleads: attention is not use, and three problems are examples; `head_patching` shows which heads act.

use anyhow::Result;

use super::{About, Journal, check_of};
use crate::schema::{PatternRow, RowFile};
use crate::study::Study;
use crate::study::shown::{ShownProblem, first_responses};

pub const ABOUT: About =
    About::asking("attention patterns of the first responses, head by head (the prompt explorer's rows)")
        .on_request()
        .of_responses();

settings! {
    pub struct Config {
        /// Number of problems, from the first.
        pub problems: usize = 3,
    }
}

/// Weights are rounded to multiples of 1 / PARTS.
const PARTS: f64 = 1e6;

pub fn run(study: &Study, config: &Config, journal: &mut Journal) -> Result<String> {
    let rows = rows(study, config)?;
    journal.write(PatternRow::NAME, &rows, false)?;
    Ok(format!("{} patterns of {} problems\n", rows.len(), config.problems.min(study.corpus.test.len())))
}

/// The rows: problem by problem, head by head, position by position.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<PatternRow>> {
    check_of("patterns", config, &[])?;
    let of_problem = first_responses(study, config.problems)?.into_iter().map(|shown| of_problem(study, &shown));
    Ok(of_problem.collect::<Result<Vec<_>>>()?.concat())
}

fn of_problem(study: &Study, shown: &ShownProblem) -> Result<Vec<PatternRow>> {
    let heads = study.model.config().num_attention_heads;
    let recorded = shown.record(study, &["blocks.*.attn.hook_pattern".parse()?])?;
    let identity = study.identity(study.decoded()?.1.len());
    let mut rows = vec![];
    let length = shown.positions.len();
    for (layer, pattern) in recorded.iter().enumerate() {
        for head in 0..heads {
            for (position, (kind, token)) in shown.positions.iter().enumerate() {
                // `[1, H, positions, keys]`.
                let from = (head * length + position) * length;
                let weights = &pattern.data[from..=from + position];
                rows.push(PatternRow {
                    identity: identity.clone(),
                    problem: shown.problem,
                    layer,
                    head,
                    position,
                    kind: *kind,
                    token: token.clone(),
                    weights: weights.iter().map(|w| (f64::from(*w) * PARTS).round() / PARTS).collect(),
                });
            }
        }
    }
    Ok(rows)
}
