//! Phase 3: Switch-GRPO (the paper's Eqs. for `A`, `ρ` and `L_3`; method §5).
//!
//! rollouts by the one decoder → rewards → group advantages → replay with gradient → clipped surrogate − β·KL, per
//! sampled position, divided by `N_tok` before each backward.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::optim::GradientsParams;
use burn::tensor::{ExecutionError, Tensor, TensorData, TensorReadError};
use serde::Serialize;

use super::dropout::Masks;
use super::reward::{Facts, Terms, advantages, reward};
use super::shards;
use super::trainer::Trainer;
use crate::corpus::Corpus;
use crate::latent::gumbel::{GumbelMixture, StoredMixtures};
use crate::latent::replay::{self, Replay};
use crate::latent::{
    Decode, DecodeSettings, End, Gradient, LatentSource, Reasoning, Request, Sampling, Source, SwitchIds, Switching,
    Trace, decode, decode_named,
};
use crate::model::{Decoder, Hooks, gradients};
use crate::parallel;
use crate::progress::say;
use crate::recipe::{Anchor, Compute, Evaluation, Grpo};
use crate::world::World;

/// A rollout with what the loss needs of it.
#[derive(Clone, Debug)]
pub struct Rollout {
    pub trace: Trace,
    pub terms: Terms,
    pub correct: bool,
    pub advantage: f64,
    /// Log-probabilities under the KL anchor, per response position; the rollout's own where the anchor is old.
    pub anchor: Vec<Option<f64>>,
}

/// The behaviour policy but for its weights: how rollouts are drawn, and so how their log-probabilities are read again.
#[derive(Clone, Copy)]
pub struct Behaviour<'a> {
    pub reasoning: &'a Reasoning,
    pub switch: SwitchIds,
    pub settings: &'a DecodeSettings,
    /// The type of the rollouts' weights: the ratio compares like with like.
    pub compute: Compute,
}

impl<'a> Behaviour<'a> {
    fn of(self, model: &'a Decoder) -> Decode<'a> {
        let Self { reasoning, switch, settings, .. } = self;
        Decode {
            model,
            source: &reasoning.source,
            controller: &reasoning.blocks,
            switch: Some(switch),
            settings,
            cancel: None,
        }
    }
}

/// Everything sampled for one step.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// Rollouts of groups with variance: what is learnt from.
    pub rollouts: Vec<Rollout>,
    pub all: Vec<(Trace, Terms, bool)>,
    pub groups: usize,
    pub skipped_groups: usize,
    /// Rollouts lost to memory or to non-finite logits.
    pub dropped: usize,
}

/// Decoder settings of the rollouts.
pub fn rollout_settings(grpo: &Grpo, evaluation: &Evaluation, stop: u32, seed: u64) -> DecodeSettings {
    DecodeSettings {
        sampling: Sampling { temperature: grpo.temperature, seed, ..Sampling::default() },
        k_min: grpo.k_min,
        k_cap: evaluation.k_cap,
        max_new_tokens: evaluation.max_new_tokens,
        stop: vec![stop],
        masked: vec![],
        switching: Switching::Free,
    }
}

/// A problem's number, its prompt and the right answer.
pub type Question<'q> = (usize, &'q [u32], &'q str);

/// Rolls out `grpo.group` responses to each question and turns rewards into advantages.
///
/// A rollout that runs out of memory, exceeds `max_positions` or meets non-finite logits is dropped from its group;
/// the others' advantages are computed without it.
///
/// # Errors
/// Settings out of range.
pub fn sample(
    model: &Decoder,
    corpus: &Corpus,
    questions: &[Question],
    grpo: &Grpo,
    behaviour: Behaviour,
    threads: usize,
) -> Result<Sampled> {
    sample_among(World::ALONE, model, corpus, (questions, grpo), behaviour, threads)
}

/// The same by all processes, each with its own of the questions, so that a group is of one process; every process gets all
/// rollouts, in the order of the questions.
///
/// # Errors
/// As [`sample`].
pub(crate) fn sample_among(
    world: World,
    model: &Decoder,
    corpus: &Corpus,
    (questions, grpo): (&[Question], &Grpo),
    behaviour: Behaviour,
    threads: usize,
) -> Result<Sampled> {
    let own = world.own(questions);
    let groups = parallel::run(&parallel::cut(&own, threads), |part| {
        part.iter()
            .map(|question| rollouts_of(behaviour.of(model), *question, grpo, behaviour.reasoning.source))
            .collect::<Result<Vec<_>>>()
    })?;
    let groups: Vec<Vec<Trace>> = world.all(groups.into_iter().flatten().collect())?;
    let mut sampled = Sampled::default();
    for ((_, _, gold), traces) in questions.iter().zip(groups) {
        sampled.groups += 1;
        sampled.dropped += grpo.group - traces.len();
        let mut graded = vec![];
        for trace in traces {
            let text = corpus.vocabulary.decode_visible(&trace.text())?;
            let correct = corpus.is_correct(gold, &text);
            let terms = reward(Facts::of(&trace, correct), &grpo.reward);
            graded.push((trace, terms, correct));
        }
        let totals: Vec<f64> = graded.iter().map(|(_, terms, _)| terms.total).collect();
        match advantages(&totals, grpo.std_floor) {
            Some(group) => {
                for ((trace, terms, correct), advantage) in graded.iter().cloned().zip(group) {
                    let anchor = trace.positions.iter().map(|p| p.logprob).collect();
                    sampled.rollouts.push(Rollout { trace, terms, correct, advantage, anchor });
                }
            }
            None => sampled.skipped_groups += 1,
        }
        sampled.all.extend(graded);
    }
    Ok(sampled)
}

/// The survivors of one question's rollouts.
fn rollouts_of(how: Decode, (problem, prompt, _): Question, grpo: &Grpo, source: Source) -> Result<Vec<Trace>> {
    let group: Vec<Request> =
        (0..grpo.group).map(|rollout| Request { problem, prompt: prompt.to_vec(), rollout }).collect();
    let traces = together_or_alone(&group, |requests| roll_out(how, requests, grpo, source))?;
    let fits = |t: &Trace| t.length() <= grpo.max_positions && t.end != End::NonFinite;
    Ok(traces.into_iter().filter(fits).collect())
}

/// Decodes all at once; where the device runs out of memory on them, one by one, so that only the long ones are lost.
fn together_or_alone(group: &[Request], decode: impl Fn(&[Request]) -> Result<Vec<Trace>>) -> Result<Vec<Trace>> {
    match guarded(|| decode(group)) {
        Err(error) if is_out_of_memory(&error) => {}
        done => return done,
    }
    let mut survivors = vec![];
    for request in group {
        match guarded(|| decode(std::slice::from_ref(request))) {
            Err(error) if is_out_of_memory(&error) => {}
            done => survivors.extend(done?),
        }
    }
    Ok(survivors)
}

/// Rollouts of one question, in one batch.
fn roll_out(how: Decode, rollouts: &[Request], grpo: &Grpo, source: Source) -> Result<Vec<Trace>> {
    if grpo.gumbel > 0.0 {
        let Source::VocabularyMixture { top_k, .. } = source else {
            bail!(
                "grpo.gumbel is noise on mixtures of the vocabulary; the latents of this checkpoint are {}",
                source.name()
            )
        };
        let Sampling { temperature, seed, .. } = how.settings.sampling;
        let rows = rollouts.iter().map(|r| (r.problem, r.rollout)).collect();
        let source = GumbelMixture::new(top_k, [temperature, grpo.gumbel], seed, rows)?;
        let mut traces = roll_out_named(Decode { source: &source, ..how }, rollouts, grpo)?;
        source.remember_in(&mut traces);
        return Ok(traces);
    }
    if grpo.dropout_rollouts == 0.0 {
        // Their prompt is the same and is read once.
        return decode(how, &rollouts[..1], rollouts.len(), &mut Hooks::none());
    }
    roll_out_named(how, rollouts, grpo)
}

/// The same with a name for each rollout, so that masks and mixtures can tell them apart.
fn roll_out_named(how: Decode, rollouts: &[Request], grpo: &Grpo) -> Result<Vec<Trace>> {
    let masks = Masks {
        share: grpo.dropout_rollouts,
        seed: how.settings.sampling.seed,
        rollouts: rollouts.iter().map(|r| (r.problem, r.rollout)).collect(),
    };
    decode_named(how, rollouts, (0..rollouts.len()).collect(), &mut masks.hooks(how.model)?)
}

/// What one inner epoch computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LossParts {
    pub loss: f64,
    pub surrogate: f64,
    pub kl: f64,
    pub ratio: f64,
    pub clip_share: f64,
    /// max |log-prob − rollout's log-prob|: 0 up to rounding in the first inner epoch.
    pub max_drift: f64,
    pub tokens: usize,
}

/// `N_tok`: sampled positions of all rollouts.
pub(crate) fn sampled_tokens(rollouts: &[Rollout]) -> usize {
    rollouts.iter().flat_map(|r| &r.trace.positions).filter(|p| p.is_sampled()).count()
}

/// Gradients of the Switch-GRPO loss. In `segmented` each wave is back-propagated and dropped before the next.
///
/// A rollout whose replay runs out of memory is left out, and the others are divided by their own `N_tok`.
///
/// # Errors
/// No rollouts, none that survives, and whatever the replay returns.
pub fn gradients(
    model: &Decoder,
    behaviour: Behaviour,
    rollouts: &[Rollout],
    grpo: &Grpo,
    threads: usize,
) -> Result<(GradientsParams, LossParts)> {
    gradients_among(World::ALONE, model, behaviour, rollouts, (grpo, threads))
}

/// The same by all processes, each with its own of the rollouts: their sum is on every process.
///
/// # Errors
/// As [`gradients`].
pub fn gradients_among(
    world: World,
    model: &Decoder,
    behaviour: Behaviour,
    own: &[Rollout],
    (grpo, threads): (&Grpo, usize),
) -> Result<(GradientsParams, LossParts)> {
    let pass = |rollouts: &[Rollout], n_tok: usize| -> Result<(GradientsParams, LossParts)> {
        let parts = parallel::cut(rollouts, threads);
        let done = parallel::run(&parts, |part| shard_gradients(model, behaviour, part, grpo, n_tok))?;
        let mut total = LossParts { tokens: n_tok, ..LossParts::default() };
        let mut all = vec![];
        for (grads, part) in done {
            total.loss += part.loss;
            total.surrogate += part.surrogate;
            total.kl += part.kl;
            total.ratio += part.ratio;
            total.clip_share += part.clip_share;
            total.max_drift = total.max_drift.max(part.max_drift);
            all.push(grads);
        }
        let grads = shards::sum_gradients(model, all);
        // A GPU says at the next wait that the backward had no memory.
        model.device().sync().context("waiting for the gradients")?;
        Ok((grads, total))
    };
    let (grads, parts) = of_survivors(world, own, sampled_tokens, pass)?;
    let LossParts { loss, surrogate, kl, ratio, clip_share, max_drift, tokens } = parts;
    let [loss, surrogate, kl, ratio, clip_share] = world.sums([loss, surrogate, kl, ratio, clip_share]);
    let parts = LossParts { loss, surrogate, kl, ratio, clip_share, max_drift: world.max(max_drift), tokens };
    Ok((shards::sum_over(world, model, grads)?, parts))
}

/// `pass` over the rollouts and the number of `tokens` of all processes; where a device of one of them runs out of
/// memory, each passes over those of its own that get through it alone.
fn of_survivors<R: Clone, T>(
    world: World,
    rollouts: &[R],
    tokens: impl Fn(&[R]) -> usize,
    pass: impl Fn(&[R], usize) -> Result<T>,
) -> Result<T> {
    let guarded = |rollouts: &[R], n_tok: usize| guarded(|| pass(rollouts, n_tok));
    let of_all = |rollouts: &[R]| {
        let [n_tok, n] = world.sums([tokens(rollouts) as f64, rollouts.len() as f64]);
        ensure!(n_tok > 0.0, "no sampled position to learn from in {n} rollouts");
        Ok(n_tok as usize)
    };
    let first = guarded(rollouts, of_all(rollouts)?);
    let failed = first.as_ref().is_err_and(is_out_of_memory);
    // Of all processes, or the others would wait for this one.
    if !world.any(failed) {
        return first;
    }
    let mut survivors = vec![];
    for rollout in rollouts {
        let alone = std::slice::from_ref(rollout);
        match guarded(alone, tokens(alone).max(1)) {
            Ok(_) => survivors.push(rollout.clone()),
            Err(error) if is_out_of_memory(&error) => {}
            Err(error) => return Err(error),
        }
    }
    say(&format!("grpo: {} of {} rollouts were too long to replay", rollouts.len() - survivors.len(), rollouts.len()));
    let [left] = world.sums([survivors.len() as f64]);
    ensure!(left > 0.0, "not one of {} rollouts can be replayed in this memory", rollouts.len());
    guarded(&survivors, of_all(&survivors)?)
}

/// A computation that panicked.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a computation panicked: most likely the device is out of memory")]
struct OutOfMemory;

/// A panic as an error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(anyhow!(OutOfMemory)))
}

/// The CPU panics for want of memory; a GPU goes on, and what it could not compute cannot be read.
fn is_out_of_memory(error: &anyhow::Error) -> bool {
    error.is::<OutOfMemory>()
        || error.is::<parallel::Panicked>()
        || error.is::<TensorReadError>()
        || error.is::<ExecutionError>()
}

fn shard_gradients(
    model: &Decoder,
    behaviour: Behaviour,
    rollouts: &[Rollout],
    grpo: &Grpo,
    n_tok: usize,
) -> Result<(GradientsParams, LossParts)> {
    let model = &shards::own_leaves(model, behaviour.compute);
    let gradient = grpo.replay.gradient();
    let segmented = gradient == Gradient::Segmented;
    let traces: Vec<Trace> = rollouts.iter().map(|r| r.trace.clone()).collect();
    let mut rows = replay::sequences(&traces, &behaviour.switch)?;
    rows.iter_mut().enumerate().for_each(|(name, row)| row.row = name);
    let masks = Masks {
        share: grpo.dropout_rollouts,
        seed: behaviour.settings.sampling.seed,
        rollouts: traces.iter().map(|t| (t.problem, t.rollout)).collect(),
    };
    let mut hooks = masks.hooks(model)?;
    let stored = StoredMixtures::of(&traces);
    let how = replay::with_mixtures(behaviour.of(model), stored.as_ref());
    let mut replay = Replay::new(how, &traces, &rows, gradient)?;
    let (mut sums, mut graph, mut grads) = (LossParts::default(), None::<Tensor<1>>, GradientsParams::default());
    while let Some(wave) = replay.next_wave(&mut hooks)? {
        let mut loss = wave_loss(&wave, rollouts, grpo, n_tok, &mut sums)?;
        if grpo.continue_term
            && let Some(stayed) = wave.stayed
        {
            loss = stay_loss(loss, stayed, &wave.stays, rollouts, n_tok);
        }
        let Some(loss) = loss else { continue };
        if segmented {
            if loss.is_tracked() {
                // Summed as they come: keeping one set a wave would make memory grow with the waves.
                shards::add_gradients(model, &mut grads, GradientsParams::from_grads(loss.backward(), model));
            }
        } else {
            graph = Some(match graph {
                Some(sum) => sum + loss,
                None => loss,
            });
        }
    }
    if let Some(loss) = graph
        && loss.is_tracked()
    {
        shards::add_gradients(model, &mut grads, GradientsParams::from_grads(loss.backward(), model));
    }
    Ok((grads, sums))
}

fn wave_loss(
    wave: &replay::ReplayedWave,
    rollouts: &[Rollout],
    grpo: &Grpo,
    n_tok: usize,
    sums: &mut LossParts,
) -> Result<Option<Tensor<1>>> {
    let n = wave.decisions.len();
    if n == 0 {
        return Ok(None);
    }
    let device = wave.logprobs.device();
    let constant = |values: Vec<f32>| Tensor::<1>::from_data(TensorData::new(values, [n]), &device);
    let of = |f: &dyn Fn(&Rollout, usize) -> f64| -> Vec<f32> {
        wave.decisions.iter().map(|&(r, p)| f(&rollouts[r], p) as f32).collect()
    };
    let old_values = of(&|r, p| r.trace.positions[p].logprob.unwrap_or(0.0));
    let advantage_values = of(&|r, _| r.advantage);
    let old = constant(old_values.clone());
    let advantage = constant(advantage_values.clone());
    let ratio = (wave.logprobs.clone() - old).exp();
    let clipped = ratio.clone().clamp(1.0 - grpo.clip, 1.0 + grpo.clip);
    let surrogate = (ratio * advantage.clone()).min_pair(clipped * advantage);
    // KL-hat = r − 1 − log r (Schulman), r against the anchor.
    let log_r = wave.logprobs.clone() - constant(of(&|r, p| r.anchor[p].unwrap_or(0.0)));
    let kl = log_r.clone().exp() - 1.0 - log_r;
    let loss = (surrogate.clone() - kl.clone().mul_scalar(grpo.beta)).sum().neg().div_scalar(n_tok as f64);

    let host = |x: Tensor<1>| x.without_autodiff().try_into_vec_as::<f32>().context("reading the GRPO loss");
    let share = |values: &[f32]| values.iter().map(|&x| f64::from(x)).sum::<f64>() / n_tok as f64;
    sums.loss += share(&host(loss.clone())?) * n_tok as f64;
    sums.surrogate += share(&host(surrogate)?);
    sums.kl += share(&host(kl)?);
    for ((new, old), advantage) in host(wave.logprobs.clone())?.iter().zip(old_values).zip(advantage_values) {
        let drift = f64::from(new - old);
        let ratio = drift.exp();
        let outside = (advantage > 0.0 && ratio > 1.0 + grpo.clip) || (advantage < 0.0 && ratio < 1.0 - grpo.clip);
        sums.ratio += ratio / n_tok as f64;
        sums.clip_share += f64::from(u8::from(outside)) / n_tok as f64;
        sums.max_drift = sums.max_drift.max(drift.abs());
    }
    Ok(Some(loss))
}

/// Adds `−A · log(1 − p_exit)` for each choice to stay in a block.
fn stay_loss(
    loss: Option<Tensor<1>>,
    log_exit: Tensor<1>,
    stays: &[replay::Decision],
    rollouts: &[Rollout],
    n_tok: usize,
) -> Option<Tensor<1>> {
    let advantage: Vec<f32> = stays.iter().map(|&(r, _)| rollouts[r].advantage as f32).collect();
    let advantage = Tensor::<1>::from_data(TensorData::new(advantage, [stays.len()]), &log_exit.device());
    let log_stay = (log_exit.exp().neg() + 1.0).clamp_min(1e-6).log();
    let term = (log_stay * advantage).sum().neg().div_scalar(n_tok as f64);
    Some(match loss {
        Some(loss) => loss + term,
        None => term,
    })
}

/// Fills the KL anchor of every rollout from a reference model, which has no dropout.
///
/// # Errors
/// As the replay.
pub(crate) fn anchor_to(reference: &Decoder, behaviour: Behaviour, rollouts: &mut [Rollout]) -> Result<()> {
    let traces: Vec<Trace> = rollouts.iter().map(|r| r.trace.clone()).collect();
    let logprobs = replay::logprobs(behaviour.of(reference), &traces)?;
    for (rollout, anchor) in rollouts.iter_mut().zip(logprobs) {
        rollout.anchor = anchor;
    }
    Ok(())
}

/// One GRPO step: `inner_epochs` optimiser steps on one batch of rollouts. Returns each epoch's parts and norm.
///
/// # Errors
/// As [`gradients`] and [`Trainer::apply`].
pub fn step(
    trainer: &mut Trainer,
    behaviour: Behaviour,
    sampled: &Sampled,
    reference: Option<&Decoder>,
    grpo: &Grpo,
    threads: usize,
) -> Result<Vec<(LossParts, f64)>> {
    if sampled.rollouts.is_empty() {
        return Ok(vec![]);
    }
    let world = trainer.world;
    let mut own = world.own(&sampled.rollouts);
    if grpo.anchor == Anchor::Reference
        && let Some(reference) = reference
        && !own.is_empty()
    {
        anchor_to(reference, behaviour, &mut own)?;
    }
    let mut epochs = vec![];
    for _ in 0..grpo.inner_epochs {
        let (grads, parts) = gradients_among(world, &trainer.model, behaviour, &own, (grpo, threads))?;
        let norm = trainer.apply(grads, parts.loss, grpo.learning_rate)?;
        epochs.push((parts, norm));
    }
    Ok(epochs)
}

/// Cosine between the gradients of two replay modes on the same rollouts.
///
/// # Errors
/// As [`gradients`].
pub fn cosine(model: &Decoder, behaviour: Behaviour, rollouts: &[Rollout], [a, b]: [&Grpo; 2]) -> Result<f64> {
    let flat = |grpo: &Grpo| -> Result<Vec<f32>> {
        let (grads, _) = gradients(model, behaviour, rollouts, grpo, 1)?;
        Ok(gradients::gradients_by_name(model, &grads)?.into_iter().flat_map(|(_, t)| t.data).collect())
    };
    let (a, b) = (flat(a)?, flat(b)?);
    ensure!(a.len() == b.len(), "the two modes reach different parameters: {} and {} values", a.len(), b.len());
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    Ok(dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt().max(1e-30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_that_cannot_be_replayed_is_left_out_of_the_gradient() {
        let pass = |lengths: &[usize], _: usize| {
            assert!(lengths.iter().all(|&n| n < 100), "out of memory, on purpose");
            Ok(lengths.to_vec())
        };
        let of = |lengths: &[usize]| of_survivors(World::ALONE, lengths, <[usize]>::len, pass);
        assert_eq!(of(&[3, 400, 5]).expect("two survive"), [3, 5]);
        assert_eq!(of(&[3, 5]).expect("both"), [3, 5]);
        assert!(of(&[300, 400]).is_err_and(|e| e.to_string().contains("not one of 2")));
        let bad = |_: &[usize], _: usize| -> Result<()> { anyhow::bail!("a bad token") };
        let refused = of_survivors(World::ALONE, &[3, 5], <[usize]>::len, bad);
        assert!(refused.is_err_and(|e| e.to_string() == "a bad token"), "an error is no lack of memory");
    }

    /// What a read gives on a GPU that had no memory for the values.
    fn unread() -> anyhow::Error {
        let lost = ExecutionError::WithContext { reason: "a buffer of 256 MiB, the device has no such".into() };
        anyhow!(TensorReadError::from(lost)).context("reading logits")
    }

    #[test]
    fn values_that_a_gpu_had_no_memory_for_cost_only_the_rollouts_that_are_too_long() {
        let pass = |lengths: &[usize]| if lengths.contains(&400) { Err(unread()) } else { Ok(lengths.to_vec()) };
        let pass = |lengths: &[usize], _: usize| pass(lengths);
        assert_eq!(of_survivors(World::ALONE, &[3, 400, 5], <[usize]>::len, pass).expect("two survive"), [3, 5]);
        let group: Vec<Request> = [3, 400, 5].map(|n| Request { problem: 0, prompt: vec![1; n], rollout: n }).to_vec();
        let decode = |requests: &[Request]| {
            if requests.iter().any(|r| r.prompt.len() == 400) {
                return Err(unread());
            }
            let trace = |r: &Request| Trace {
                problem: 0,
                rollout: r.rollout,
                prompt: r.prompt.clone(),
                positions: vec![],
                end: End::Stop,
            };
            Ok(requests.iter().map(trace).collect())
        };
        let survivors = together_or_alone(&group, decode).expect("two survive");
        assert_eq!(survivors.iter().map(|t| t.rollout).collect::<Vec<_>>(), [3, 5]);
        let refused = together_or_alone(&group, |_| anyhow::bail!("a bad token"));
        assert!(refused.is_err_and(|e| e.to_string() == "a bad token"), "an error is no lack of memory");
    }
}
