//! What happens when nothing is done: other batches, other seeds; and the sampled rollouts that `sibling` patches with.

use std::cell::RefCell;

use anyhow::Result;

use super::Study;
use super::answers::{gold_tokens, outcome};
use super::sweep::{Outcome, Sweep, not_stopped};
use crate::interventions::{Bank, latents};
use crate::latent::{Branch, DecodeSettings, FinishedRow, Fork, Prefix, Request, Sampling, Start, Switching};
use crate::model::Hooks;

/// Rows of a batch of the null run, unless that is the size of the normal one.
const OTHER: usize = 64;

/// A sampled rollout of every problem that this process forks, with its states.
struct SampledRollouts {
    decoded: Vec<FinishedRow>,
    bank: Bank,
}

fn sample(
    study: &Study,
    sweep: &Sweep,
    settings: &DecodeSettings,
    rollout: usize,
    batch: usize,
) -> Result<SampledRollouts> {
    let gold = gold_tokens(&study.corpus)?;
    let decoding = study.decoding(settings);
    let bank = RefCell::new(Bank::default());
    let mut decoded = vec![];
    // Whole batches, so that every shard rounds as one process does.
    for chunk in sweep.requests.chunks(batch).filter(|chunk| chunk.iter().any(|r| study.owns(r.problem))) {
        let watch: Vec<Option<u32>> = chunk.iter().map(|r| gold[r.problem]).collect();
        let prefix = Prefix::prompts(decoding, chunk, &watch)?;
        let fork = |(request, r): (usize, &Request)| Fork {
            request,
            id: r.problem,
            rollout: r.rollout + rollout,
            switching: Switching::Free,
            force_at: sweep.force_at[r.problem],
        };
        let forks: Vec<Fork> = chunk.iter().enumerate().map(fork).collect();
        let mut hooks = Hooks::none();
        hooks.observe(&latents(), study.model.layers.len(), |site, value| {
            bank.borrow_mut().record(site, value, |id| id)
        })?;
        decoded.extend(prefix.fork(decoding, Start::Prompt, &forks, &mut Branch::whole(&mut hooks))?);
    }
    not_stopped()?;
    Ok(SampledRollouts { decoded, bank: bank.into_inner() })
}

fn sampling(study: &Study) -> DecodeSettings {
    let temperature = study.recipe.grpo.temperature;
    DecodeSettings { sampling: Sampling { temperature, seed: study.seed, ..Sampling::default() }, ..study.settings() }
}

/// The states of sampled rollouts (at the temperature of the recipe's rollouts), one bank a draw.
pub fn siblings(study: &Study, sweep: &Sweep, draws: usize) -> Result<Vec<Bank>> {
    let settings = sampling(study);
    let batch = study.recipe.evaluation.batch;
    (0..draws).map(|draw| Ok(sample(study, sweep, &settings, draw, batch)?.bank)).collect()
}

/// Problems and what became of them.
pub(crate) type Outcomes = Vec<(usize, Outcome)>;

/// Two sampled runs of every problem.
pub(crate) fn two_seeds(study: &Study, sweep: &Sweep) -> Result<[Outcomes; 2]> {
    let settings = sampling(study);
    let batch = study.recipe.evaluation.batch;
    let run = |rollout| outcomes(study, &sample(study, sweep, &settings, rollout, batch)?.decoded, sweep);
    Ok([run(0)?, run(1)?])
}

/// The normal run again, from its prompts, in batches of another size.
pub(crate) fn other_batch(study: &Study, sweep: &Sweep) -> Result<Outcomes> {
    let batch = if study.recipe.evaluation.batch == OTHER { OTHER / 2 } else { OTHER };
    outcomes(study, &sample(study, sweep, &study.settings(), 0, batch)?.decoded, sweep)
}

fn outcomes(study: &Study, decoded: &[FinishedRow], sweep: &Sweep) -> Result<Outcomes> {
    let own = decoded.iter().filter(|d| study.owns(d.trace.problem));
    own.map(|d| Ok((d.trace.problem, outcome(&study.corpus, d, sweep.traces.get(d.trace.problem))?))).collect()
}
