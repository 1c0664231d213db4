//! Null runs: the outcomes without any change, in another batch size or with another seed; and the rollouts that `sibling` patches
//! with.

use std::cell::RefCell;

use anyhow::Result;

use super::Study;
use super::answers::{gold_tokens, outcome};
use super::sweep::{Sweep, SweepOutcome, fork};
use crate::interventions::{Bank, ChangeLog, latents};
use crate::latent::{Branch, DecodeSettings, FinishedRow, Fork, Prefix, Request, Sampling, Start, Switching};
use crate::model::{Hooks, Select};
use crate::progress::go_on;

/// Batch size of the null run, unless the normal run has the same.
const OTHER: usize = 64;

/// A rollout of every problem that this process forks, with its latents. `Some(draw)`: sampled; `None`: greedy, in another batch size.
fn sample(study: &Study, sweep: &Sweep, draw: Option<usize>) -> Result<(Vec<FinishedRow>, Bank)> {
    let (own, temperature) = (study.recipe.evaluation.batch, study.recipe.grpo.temperature);
    let sampling = Sampling { temperature, seed: study.seed, ..Sampling::default() };
    let (settings, batch) = match draw {
        Some(_) => (DecodeSettings { sampling, ..study.settings() }, own),
        None => (study.settings(), if own == OTHER { OTHER / 2 } else { OTHER }),
    };
    let gold = gold_tokens(&study.corpus)?;
    let decoding = study.decoding(&settings);
    // Forks are numbered by their problems.
    let (bank, log) = (RefCell::new(Bank::default()), ChangeLog::from_requests(&sweep.requests));
    let mut decoded = vec![];
    // Whole batches, so that every shard rounds like a single process.
    for chunk in sweep.requests.chunks(batch).filter(|chunk| chunk.iter().any(|r| study.computes_problem(r.problem))) {
        let watch: Vec<Option<u32>> = chunk.iter().map(|r| gold[r.problem]).collect();
        let prefix = Prefix::prompts(decoding, chunk, &watch)?;
        let of = |(request, r): (usize, &Request)| Fork {
            rollout: r.rollout + draw.unwrap_or(0),
            ..fork(request, r.problem, r, Switching::Free, sweep.force_at[r.problem])
        };
        let forks: Vec<Fork> = chunk.iter().enumerate().map(of).collect();
        let mut hooks = Hooks::none();
        hooks.observe(&latents(), study.model.layers.len(), |site, value| {
            bank.borrow_mut().record(Select::LATENTS, site, value, &log)
        })?;
        decoded.extend(prefix.fork(decoding, Start::Prompt, &forks, &mut Branch::whole(&mut hooks))?);
    }
    go_on()?;
    Ok((decoded, bank.into_inner()))
}

/// Latent states of sampled rollouts, one bank per draw.
pub fn siblings(study: &Study, sweep: &Sweep, draws: usize) -> Result<Vec<Bank>> {
    (0..draws).map(|draw| Ok(sample(study, sweep, Some(draw))?.1)).collect()
}

/// Problem and outcome.
pub(crate) type Outcomes = Vec<(usize, SweepOutcome)>;

/// Outcomes of this process's problems without any change: a rollout of [`sample`] for each draw.
pub(crate) fn run_nulls(study: &Study, sweep: &Sweep, draws: &[Option<usize>]) -> Result<Vec<Outcomes>> {
    let of = |row: &FinishedRow| {
        let problem = row.trace.problem;
        Ok((problem, outcome(&study.corpus, row, sweep.traces.get(problem))?))
    };
    let run = |&draw: &Option<usize>| {
        let (decoded, _) = sample(study, sweep, draw)?;
        decoded.iter().filter(|row| study.computes_problem(row.trace.problem)).map(of).collect()
    };
    draws.iter().map(run).collect()
}
