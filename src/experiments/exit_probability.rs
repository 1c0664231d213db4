//! When is the model ready to leave a latent block (tab:exit)?
//!
//! p(`</swi>`) after each latent step of the greedy traces, over all blocks, and by whether the answer is correct. It is recorded at every
//! step, also below `K_min` and at `K_cap`, where the decoder does not use it. A replay of the traces (same sequences, same distribution)
//! determines whether `</swi>` is the most probable token.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

pub use super::NoSettings as Config;
use super::markdown::table_of;
use super::{About, Journal};
use crate::latent::{Sequence, sampling};
use crate::nth::Nth;
use crate::schema::{ExitGroup, ExitRow, RowFile};
use crate::stats::by_problem::{mean, share};
use crate::study::Study;
use crate::study::staging::logits::logits_at;

pub const ABOUT: About =
    About::asking("when the model is ready to leave a block (tab:exit)").of_grpo_start().of_responses().of_switching();

/// Maximum difference between the replay's p(`</swi>`) and the decoder's: batches of other shapes round differently.
const DRIFT: f64 = 1e-3;

struct ExitSample {
    problem: usize,
    step: Nth,
    correct: bool,
    p_exit: f64,
    first: bool,
}

pub fn run(study: &Study, _config: &Config, journal: &mut Journal) -> Result<String> {
    let rows = rows(study)?;
    journal.save(ExitRow::NAME, &rows)?;
    let evaluation = &study.recipe.evaluation;
    let mut note = table(&rows);
    if evaluation.k_min >= evaluation.k_cap {
        note += &format!(
            "\nEvery block has {} steps (k_min = k_cap): the decoder never uses p(</swi>).\n",
            evaluation.k_cap
        );
    }
    Ok(note)
}

/// Rows of all groups, without steps that fewer than two problems of a group reach.
pub fn rows(study: &Study) -> Result<Vec<ExitRow>> {
    let (n, seen) = observe(study)?;
    let steps: BTreeSet<Nth> = seen.iter().map(|s| s.step).collect();
    let mut rows = vec![];
    for group in [ExitGroup::All, ExitGroup::Correct, ExitGroup::Wrong] {
        for &step in &steps {
            let of = |s: &&ExitSample| {
                s.step == step && (group == ExitGroup::All || s.correct == (group == ExitGroup::Correct))
            };
            let of: Vec<&ExitSample> = seen.iter().filter(of).collect();
            let p_exit = mean(study.seed, of.iter().map(|s| (s.problem, s.p_exit)))?;
            let firsts: Vec<(usize, bool)> = of.iter().map(|s| (s.problem, s.first)).collect();
            let (Some(p_exit), Some(exits)) = (p_exit, share(study.seed, &firsts)?) else { continue };
            rows.push(ExitRow { identity: study.identity(n), group, step, blocks: of.len(), p_exit, exits });
        }
    }
    Ok(rows)
}

/// The number of problems, and every latent step of every trace.
fn observe(study: &Study) -> Result<(usize, Vec<ExitSample>)> {
    study.chooses_blocks()?;
    let (scores, traces) = study.decoded()?;
    let exit = study.corpus.switch.swi_end;
    let switched: Vec<usize> = (0..traces.len()).filter(|&i| traces[i].switched()).collect();
    let none = || format!("no latent step in this data: the model never switched in {} problems", traces.len());
    study.require(!switched.is_empty(), none)?;
    let ids = &study.corpus.switch;
    let sequences: Vec<Sequence> = switched.iter().map(|&i| traces[i].sequence(ids)).collect::<Result<_>>()?;
    let latent = |s: &Sequence| s.latent_steps().map(|(position, ..)| position).collect();
    let read = |s: &Sequence, position: usize, logits: &[f32]| {
        let lp = sampling::log_softmax(logits, 1.0, &[]);
        (position, s.steps[position].nth(), lp[exit as usize].exp(), sampling::argmax(&lp) == exit)
    };
    let replayed = logits_at(study, &sequences, latent, read)?;
    let mut seen = vec![];
    for (&i, steps) in switched.iter().zip(replayed) {
        let (trace, outcome) = (&traces[i], &scores.outcomes[i]);
        for (position, step, p_replayed, first) in steps {
            // At the last latent of a truncated response the exit was not evaluated.
            let Some(p_exit) = trace.positions[position - trace.prompt.len()].p_exit else { continue };
            let problem = trace.problem;
            ensure!(
                (p_exit - p_replayed).abs() < DRIFT,
                "problem {problem}: p(</swi>) at position {position} is {p_exit} decoded and {p_replayed} replayed"
            );
            let step = step.context("a position that is not a latent step")?;
            seen.push(ExitSample { problem, step, correct: outcome.correct, p_exit, first });
        }
    }
    Ok((traces.len(), seen))
}

pub fn table(rows: &[ExitRow]) -> String {
    table_of("group | step | blocks | p(</swi>) | `</swi>` first | most may end", rows, |r| {
        let (ExitRow { group, step, blocks, p_exit, exits, .. }, ends) = (r, if r.ends() { "yes" } else { "—" });
        format!("{group:?} | {step} | {blocks} | {p_exit:.4} | {exits:.3} | {ends}")
    })
}
