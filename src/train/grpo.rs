//! Phase 3: Switch-GRPO (the paper's Eqs. for `A`, `ρ` and `L_3`; method §5).
//!
//! 1. [`rollouts`](super::rollouts) samples a group per question and computes advantages.
//! 2. Each inner epoch replays the rollouts with gradient, in waves.
//! 3. The loss is the clipped surrogate − β·KL per sampled position, divided by `N_tok` before each backward. With several questions
//!    per step, `grpo.loss_mean` sets whether `N_tok` counts the positions of one question (the paper) or of all.
//! 4. An optimiser step follows each inner epoch.

use anyhow::{Context, Result, ensure};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use serde::Serialize;

use super::dropout::Masks;
use super::rollouts::{Behaviour, Rollout, RolloutBatch, catch_panic, is_out_of_memory};
use super::shards;
use super::trainer::Trainer;
use crate::latent::replay::{self, Replay, RolloutInputs};
use crate::latent::segments::{Segment, Segments};
use crate::latent::{DecodeSettings, Gradient, HiddenState, Trace};
use crate::model::{Decoder, Hooks, gradients};
use crate::parallel;
use crate::progress::say;
use crate::recipe::{Grpo, KlAnchor, LossForm};
use crate::world::World;

/// Results of one inner epoch.
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

/// Gradients of the Switch-GRPO loss. In `segmented` mode each wave is back-propagated and freed before the next.
///
/// A rollout whose replay runs out of memory is dropped, and the others are divided by their own `N_tok`.
///
/// # Errors
/// No rollouts, no survivor, failures of the replay.
pub fn gradients(
    model: &Decoder,
    behaviour: Behaviour,
    rollouts: &[Rollout],
    grpo: &Grpo,
    threads: usize,
) -> Result<(GradientsParams, LossParts)> {
    gradients_among(World::ALONE, model, behaviour, rollouts, (grpo, threads), None)
}

/// Gradients summed over all processes, each computing its own rollouts. With `token_rows` only these tokens' rows of embedding table and
/// head are exchanged.
pub fn gradients_among(
    world: World,
    model: &Decoder,
    behaviour: Behaviour,
    own: &[Rollout],
    (grpo, threads): (&Grpo, usize),
    token_rows: Option<&[u32]>,
) -> Result<(GradientsParams, LossParts)> {
    let settings = loss_settings(behaviour, grpo);
    let behaviour = Behaviour { settings: &settings, ..behaviour };
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
        // A GPU reports an out-of-memory backward at the next synchronisation.
        model.device().sync().context("waiting for the gradients")?;
        Ok((grads, total))
    };
    let counted = |rollouts: &[Rollout]| match grpo.loss {
        LossForm::Tokens => sampled_tokens(rollouts),
        LossForm::Authors => rollouts.len(),
    };
    let (grads, parts) = over_survivors(world, own, counted, pass)?;
    let LossParts { loss, surrogate, kl, ratio, clip_share, max_drift, tokens } = parts;
    let [loss, surrogate, kl, ratio, clip_share] = world.sums([loss, surrogate, kl, ratio, clip_share]);
    let parts = LossParts { loss, surrogate, kl, ratio, clip_share, max_drift: world.max(max_drift), tokens };
    Ok((shards::sum_over(world, model, grads, token_rows)?, parts))
}

/// Settings of the rollouts, at the temperature at which the loss computes log-probabilities.
pub(crate) fn loss_settings(behaviour: Behaviour, grpo: &Grpo) -> DecodeSettings {
    let mut settings = behaviour.settings.clone();
    if grpo.loss == LossForm::Authors {
        settings.sampling.temperature = 1.0;
    }
    settings
}

/// Runs `pass` on the rollouts with the number of `tokens` of all processes. If a device of any process runs out of memory, each
/// process runs it on those of its rollouts that fit in memory one by one.
fn over_survivors<R: Clone, T>(
    world: World,
    rollouts: &[R],
    tokens: impl Fn(&[R]) -> usize,
    pass: impl Fn(&[R], usize) -> Result<T>,
) -> Result<T> {
    let guarded = |rollouts: &[R], n_tok: usize| catch_panic(|| pass(rollouts, n_tok));
    let of_all = |rollouts: &[R]| {
        let [n_tok, n] = world.sums([tokens(rollouts) as f64, rollouts.len() as f64]);
        ensure!(n_tok > 0.0, "no sampled position to learn from in {n} rollouts");
        Ok(n_tok as usize)
    };
    let first = guarded(rollouts, of_all(rollouts)?);
    let failed = first.as_ref().is_err_and(is_out_of_memory);
    // All processes decide together, or the others would wait for this one.
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
    ensure!(left > 0.0, "none of {} rollouts can be replayed in this memory", rollouts.len());
    guarded(&survivors, of_all(&survivors)?)
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
    let decoding = behaviour.decode(model);
    let stored = RolloutInputs::from_traces(decoding.source, &traces);
    let decoding = stored.fed(decoding);
    let (mut sums, mut grads) = (LossParts::default(), GradientsParams::default());
    // Summed immediately: one set per wave or segment would make memory grow with their number.
    let mut add = |gradients| shards::add_gradients(model, &mut grads, GradientsParams::from_grads(gradients, model));
    if gradient == Gradient::Through && grpo.checkpoint_every > 0 {
        let mut segments = Segments::new(model, &rows, decoding.source, grpo.checkpoint_every, &mut hooks)?;
        while let Some(Segment { waves, leaves }) = segments.last() {
            let mut replay = Replay::over(decoding, &traces, waves)?;
            let loss = whole_loss(&mut replay, &mut hooks, (rollouts, grpo, n_tok), &mut sums)?;
            let segment = Segment { waves: replay.into_waves(), leaves };
            segments.backward(segment, loss).into_iter().for_each(&mut add);
        }
        return Ok((grads, sums));
    }
    let mut replay = Replay::new(decoding, &traces, &rows, gradient)?;
    let mut backward = |loss: Tensor<1>| {
        if loss.is_tracked() {
            add(loss.backward());
        }
    };
    if segmented {
        while let Some(loss) = next_loss(&mut replay, &mut hooks, (rollouts, grpo, n_tok), &mut sums)? {
            backward(loss);
        }
    } else {
        whole_loss(&mut replay, &mut hooks, (rollouts, grpo, n_tok), &mut sums)?.into_iter().for_each(backward);
    }
    Ok((grads, sums))
}

/// The loss of a replay's remaining waves; `None` without one.
fn whole_loss(
    replay: &mut Replay,
    hooks: &mut Hooks,
    of: (&[Rollout], &Grpo, usize),
    sums: &mut LossParts,
) -> Result<Option<Tensor<1>>> {
    let mut whole = None;
    while let Some(loss) = next_loss(replay, hooks, of, sums)? {
        whole = Some(match whole {
            Some(sum) => sum + loss,
            None => loss,
        });
    }
    Ok(whole)
}

/// The loss of the next wave that has one.
fn next_loss(
    replay: &mut Replay,
    hooks: &mut Hooks,
    (rollouts, grpo, n_tok): (&[Rollout], &Grpo, usize),
    sums: &mut LossParts,
) -> Result<Option<Tensor<1>>> {
    while let Some(wave) = replay.next_wave(hooks)? {
        let mut loss = wave_loss(&wave, rollouts, grpo, n_tok, sums)?;
        if grpo.continue_term
            && let Some(stayed) = wave.stayed
        {
            loss = stay_loss(loss, stayed, &wave.stays, rollouts, n_tok);
        }
        if loss.is_some() {
            return Ok(loss);
        }
    }
    Ok(None)
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
    let authors = grpo.loss == LossForm::Authors;
    let host = |x: Tensor<1>| x.without_autodiff().try_into_vec_as::<f32>().context("reading the GRPO loss");
    let old_values = match grpo.loss {
        LossForm::Tokens => of(&|r, p| r.trace.positions[p].logprob.unwrap_or(0.0)),
        LossForm::Authors => host(wave.logprobs.clone())?,
    };
    // With a mean per response, its length.
    let weights =
        of(&|r, _| r.weight * if authors { 1.0 / sampled_tokens(std::slice::from_ref(r)) as f64 } else { 1.0 });
    let advantage_values = of(&Rollout::advantage_at);
    let old = constant(old_values.clone());
    let advantage = constant(advantage_values.clone());
    let ratio = (wave.logprobs.clone() - old.clone()).exp();
    let clipped = ratio.clone().clamp(1.0 - grpo.clip, 1.0 + grpo.clip);
    let weight = constant(weights.clone());
    let surrogate = (ratio * advantage.clone()).min_pair(clipped * advantage) * weight.clone();
    let anchor = constant(of(&|r, p| r.anchor[p].unwrap_or(0.0)));
    // For a policy that is its own old policy the weight of the KL term is 1, without gradient.
    let kl = match grpo.loss {
        LossForm::Tokens => kl_terms(grpo.anchor, wave.logprobs.clone(), old, anchor),
        LossForm::Authors => k3(anchor - wave.logprobs.clone()),
    } * weight;
    let loss = (surrogate.clone() - kl.clone().mul_scalar(grpo.beta)).sum().neg().div_scalar(n_tok as f64);

    let share = |values: &[f32]| values.iter().map(|&x| f64::from(x)).sum::<f64>() / n_tok as f64;
    sums.loss += share(&host(loss.clone())?) * n_tok as f64;
    sums.surrogate += share(&host(surrogate)?);
    sums.kl += share(&host(kl)?);
    let all = host(wave.logprobs.clone())?.into_iter().zip(old_values).zip(advantage_values).zip(weights);
    for (((new, old), advantage), weight) in all {
        let share = f64::from(weight) / n_tok as f64;
        let drift = f64::from(new - old);
        let ratio = drift.exp();
        let outside = (advantage > 0.0 && ratio > 1.0 + grpo.clip) || (advantage < 0.0 && ratio < 1.0 - grpo.clip);
        sums.ratio += ratio * share;
        sums.clip_share += f64::from(u8::from(outside)) * share;
        sums.max_drift = sums.max_drift.max(drift.abs());
    }
    Ok(Some(loss))
}

/// Estimates the KL term at each position that the policy `old` sampled, from log-probabilities. The mean of the estimates over such
/// samples is the divergence, and the gradient of the mean is the divergence's gradient.
///
/// Against the sampling policy ([`KlAnchor::Old`]): `r − 1 − log r` with r = π/old (Schulman's k3), which estimates KL(old ‖ π).
/// Against another one: KL(π ‖ ref) by k3 with r = ref/π, weighted with π/old. In the first inner epoch the weight is 1, but its
/// gradient is not 0: without it the gradient would be that of KL(ref ‖ π).
fn kl_terms(which: KlAnchor, logprobs: Tensor<1>, old: Tensor<1>, anchor: Tensor<1>) -> Tensor<1> {
    match which {
        KlAnchor::Old => k3(logprobs - anchor),
        KlAnchor::Reference => k3(anchor - logprobs.clone()) * (logprobs - old).exp(),
    }
}

fn k3(log_r: Tensor<1>) -> Tensor<1> {
    log_r.clone().exp() - 1.0 - log_r
}

/// Adds `−A · log(1 − p_exit)` for each choice to stay in a block.
fn stay_loss(
    loss: Option<Tensor<1>>,
    log_exit: Tensor<1>,
    stays: &[replay::Decision],
    rollouts: &[Rollout],
    n_tok: usize,
) -> Option<Tensor<1>> {
    let advantage: Vec<f32> = stays.iter().map(|&(r, _)| (rollouts[r].advantage * rollouts[r].weight) as f32).collect();
    let advantage = Tensor::<1>::from_data(TensorData::new(advantage, [stays.len()]), &log_exit.device());
    let log_stay = (log_exit.exp().neg() + 1.0).clamp_min(1e-6).log();
    let term = (log_stay * advantage).sum().neg().div_scalar(n_tok as f64);
    Some(match loss {
        Some(loss) => loss + term,
        None => term,
    })
}

/// Fills the KL anchor of every rollout from a reference model, without dropout and without states mixed into text.
pub(crate) fn fill_anchor(reference: &Decoder, behaviour: Behaviour, rollouts: &mut [Rollout]) -> Result<()> {
    let traces: Vec<Trace> = rollouts.iter().map(|r| r.trace.clone()).collect();
    let mut decoding = behaviour.decode(reference);
    if decoding.source.mixing().is_some() {
        decoding.source = &HiddenState;
    }
    let logprobs = replay::logprobs(decoding, &traces)?;
    for (rollout, anchor) in rollouts.iter_mut().zip(logprobs) {
        rollout.anchor = anchor;
    }
    Ok(())
}

/// One GRPO step: `inner_epochs` optimiser steps on one batch of rollouts. Returns each epoch's loss parts and gradient norm.
pub fn step(
    trainer: &mut Trainer,
    behaviour: Behaviour,
    sampled: &RolloutBatch,
    reference: Option<&Decoder>,
    grpo: &Grpo,
    threads: usize,
) -> Result<Vec<(LossParts, f64)>> {
    if sampled.rollouts.is_empty() {
        return Ok(vec![]);
    }
    let world = trainer.world;
    let mut own = world.own(&sampled.rollouts);
    if grpo.anchor == KlAnchor::Reference
        && let Some(reference) = reference
        && !own.is_empty()
    {
        let settings = loss_settings(behaviour, grpo);
        fill_anchor(reference, Behaviour { settings: &settings, ..behaviour }, &mut own)?;
    }
    let mut epochs = vec![];
    for _ in 0..grpo.inner_epochs {
        let token_rows = trainer.token_rows.as_deref();
        let (grads, parts) = gradients_among(world, &trainer.model, behaviour, &own, (grpo, threads), token_rows)?;
        let norm = trainer.apply(grads, parts.loss, grpo.learning_rate)?;
        epochs.push((parts, norm));
    }
    Ok(epochs)
}

/// Cosine between the gradients of two replay modes on the same rollouts.
pub fn cosine(model: &Decoder, behaviour: Behaviour, rollouts: &[Rollout], [a, b]: [&Grpo; 2]) -> Result<f64> {
    let flat = |grpo: &Grpo| -> Result<Vec<f32>> {
        let (grads, _) = gradients(model, behaviour, rollouts, grpo, 1)?;
        Ok(gradients::gradients_by_name(model, &grads)?.into_iter().flat_map(|(_, t)| t.data).collect())
    };
    let (a, b) = (flat(a)?, flat(b)?);
    ensure!(
        a.len() == b.len(),
        "the two modes have gradients for different parameters: {} and {} values",
        a.len(),
        b.len()
    );
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    Ok(dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt().max(1e-30))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latent::LatentSource;
    use crate::latent::gumbel::{self, Density, GumbelMixture, Mixture, Noise, densities};
    use crate::latent::noisy_state::{self, NoisyState, StateNoise};
    use crate::latent::sampling::Key;
    use crate::model::checkpoint::ModelFiles;
    use burn::tensor::{DType, FloatDType};

    #[test]
    fn a_rollout_that_cannot_be_replayed_is_left_out_of_the_gradient() {
        let pass = |lengths: &[usize], n_tok: usize| {
            assert!(lengths.iter().all(|&n| n < 100), "out of memory, on purpose");
            Ok((lengths.to_vec(), n_tok))
        };
        let tokens = |lengths: &[usize]| lengths.iter().sum();
        let of = |lengths: &[usize]| over_survivors(World::ALONE, lengths, tokens, pass);
        assert_eq!(of(&[3, 400, 5]).expect("two survive"), (vec![3, 5], 8), "N_tok is the survivors'");
        assert_eq!(of(&[3, 5]).expect("both"), (vec![3, 5], 8));
        assert!(of(&[300, 400]).is_err_and(|e| e.to_string().contains("none of 2")));
        let bad = |_: &[usize], _: usize| -> Result<()> { anyhow::bail!("a bad token") };
        let wrong = |_: &[usize], _: usize| -> Result<()> { panic!("dtype mismatch, on purpose") };
        let refused = over_survivors(World::ALONE, &[3, 5], <[usize]>::len, wrong);
        assert!(refused.is_err_and(|e| e.to_string().contains("dtype mismatch")), "other panics are errors");
        let refused = over_survivors(World::ALONE, &[3, 5], <[usize]>::len, bad);
        assert!(
            refused.is_err_and(|e| e.to_string() == "a bad token"),
            "other errors are not treated as out of memory"
        );
    }

    /// With a vocabulary of three, every draw can be enumerated: the mean of the estimates is the divergence, and its gradient in the
    /// logits is the divergence's, also where the policy has moved away from the sampling one.
    #[test]
    fn the_kl_terms_are_unbiased_and_so_is_their_gradient() {
        let softmax = |logits: [f64; 3]| {
            let sum: f64 = logits.iter().map(|x| x.exp()).sum();
            logits.map(|x| x.exp() / sum)
        };
        let kl = |p: [f64; 3], q: [f64; 3]| p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
        let reference = softmax([-2.0, 0.3, 2.5]);
        let here = [1.5, -0.5, 0.2];
        for moved in [[0.0; 3], [0.4, -0.3, 0.1]] {
            let old = softmax(std::array::from_fn(|i| here[i] - moved[i]));
            for (which, anchor) in [(KlAnchor::Old, old), (KlAnchor::Reference, reference)] {
                let divergence = |logits: [f64; 3]| match which {
                    KlAnchor::Old => kl(old, softmax(logits)),
                    KlAnchor::Reference => kl(softmax(logits), reference),
                };
                let device = crate::machine::Machine::default().device.autodiff();
                let tensor = |values: [f64; 3]| Tensor::<1>::from_floats(values.map(|x| x as f32), &device);
                let logits = tensor(here).require_grad();
                let logprobs = logits.clone() - logits.clone().exp().sum().log();
                let terms = kl_terms(which, logprobs, tensor(old).log(), tensor(anchor).log());
                let mean = (terms * tensor(old)).sum();
                let value = f64::from(mean.clone().without_autodiff().into_scalar::<f32>());
                assert!(
                    (value - divergence(here)).abs() < 1e-5,
                    "{which:?} {moved:?}: {value}, is {}",
                    divergence(here)
                );
                let grads = mean.backward();
                let ours = logits.grad(&grads).expect("a gradient").try_into_vec_as::<f32>().expect("values");
                for (i, ours) in ours.into_iter().enumerate() {
                    let at = |h: f64| divergence(std::array::from_fn(|j| here[j] + if i == j { h } else { 0.0 }));
                    let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                    assert!((f64::from(ours) - slope).abs() < 1e-4, "{which:?} {moved:?} {i}: {ours}, is {slope}");
                }
            }
        }
    }

    /// A rollout's stored density equals that of its replay, for mixtures of different sizes; beyond the clamp there is no gradient.
    #[test]
    fn a_replayed_density_is_the_one_that_was_drawn() {
        let device = crate::machine::Machine::default().device.autodiff();
        let logits = [0.6_f32, 0.3, 0.08, 0.02].map(f32::ln);
        for density in [Density::Mean, Density::Sum, Density::OneSided] {
            let drawn: Vec<(Mixture, f64)> = (0..40)
                .map(|i| {
                    let top_p = if i % 2 == 0 { 1.0 } else { 0.7 };
                    let noise = Noise { top_k: 3, top_p, temperature: 1.0, gumbel: 0.5, density, end: None };
                    noise.draw(&logits, 5, Key { problem: i, rollout: 0, position: 9 })
                })
                .collect();
            let mixtures: Vec<&Mixture> = drawn.iter().map(|(drawn, _)| drawn).collect();
            let row = Tensor::<1>::from_floats(logits.as_slice(), &device).unsqueeze_dim::<2>(0);
            let again = densities(row.clone().repeat_dim(0, mixtures.len()), &mixtures).expect("densities");
            let values = again.without_autodiff().try_into_vec_as::<f32>().expect("values");
            for (value, (_, drawn)) in values.iter().zip(&drawn) {
                assert!((f64::from(*value) - drawn).abs() < 1e-4, "{density:?}: {value}, drawn with {drawn}");
            }
            // Far away, the noise that explains the mixture is beyond the clamp.
            let far = Mixture { perturbed: vec![9.0; 3], tokens: vec![0, 1, 2], weights: vec![], density };
            let policy = row.require_grad();
            let grads = densities(policy.clone(), &[&far]).expect("a density").backward();
            let grad = policy.grad(&grads).expect("a gradient").abs().sum().into_scalar::<f32>();
            assert_eq!(grad > 0.0, density != Density::Mean, "{density:?}: {grad}");
        }
    }

    #[test]
    fn densities_of_a_model_in_bf16_are_f32() {
        let files = ModelFiles::open_folder("fixtures/tiny/qwen3_tied").expect("the model");
        let model = Decoder::load(&files, &crate::machine::Machine::default().device)
            .expect("its weights")
            .cast(FloatDType::BF16);
        let hidden = Tensor::<2>::ones([1, model.config().hidden_size], &model.device()).cast(FloatDType::BF16);
        for density in [Density::Mean, Density::Sum, Density::OneSided] {
            let key = Key { problem: 0, rollout: 0, position: 9 };
            let (drawn, _) = Noise { top_k: 3, top_p: 1.0, temperature: 1.0, gumbel: 0.5, density, end: None }.draw(
                &[0.5, 0.0, -0.5, 1.0],
                5,
                key,
            );
            let again = gumbel::log_densities(&model, hidden.clone(), 1.0, &[&drawn]).expect("a density");
            assert_eq!(again.dtype(), DType::F32, "{density:?}");
            assert!(again.into_scalar::<f32>().is_finite());
        }
    }

    /// The stored density is that of the replay under the same policy, its gradient is `(x − h) / s²`, and draws have the deviation.
    #[test]
    fn a_drawn_state_has_the_density_of_its_noise() {
        let device = crate::machine::Machine::default().device.autodiff();
        let (noise, d) = (StateNoise::new(0.25, 7, vec![]), 64);
        let h: Vec<f32> = (0..d).map(|i| (i as f32 * 0.7).sin()).collect();
        let rms = (h.iter().map(|x| x * x).sum::<f32>() / d as f32).sqrt();
        let mut squares = 0.0;
        for position in 0..40 {
            let mut state = h.clone();
            let (density, deviation) = noise.draw(&mut state, Key { problem: 1, rollout: 2, position });
            assert!((deviation - 0.25 * rms).abs() < 1e-6);
            let policy = Tensor::<2>::from_data(TensorData::new(h.clone(), [1, d]), &device).require_grad();
            let drawn = NoisyState { state, deviation };
            let again = noisy_state::log_densities(policy.clone(), &[&drawn]);
            let value = f64::from(again.clone().without_autodiff().into_scalar::<f32>());
            assert!((value - density).abs() < 1e-3, "{value}, drawn with {density}");
            let slopes = policy.grad(&again.backward()).expect("a gradient").try_into_vec_as::<f32>().expect("values");
            for ((slope, x), h) in slopes.iter().zip(&drawn.state).zip(&h) {
                let expected = (x - h) / deviation.powi(2);
                assert!((slope - expected).abs() < 1e-3 * (1.0 + expected.abs()), "{slope}, is {expected}");
            }
            assert_eq!(noisy_state::log_densities(policy.cast(FloatDType::BF16), &[&drawn]).dtype(), DType::F32);
            squares -= 2.0 * density;
        }
        // χ² with 40 · 64 degrees of freedom: 2560 ± 4 · √5120.
        assert!((squares - 2560.0).abs() < 290.0, "{squares}");
    }

    /// One-sided noise never lowers a token of a mixture below its probability, so that each gets pushed up; two-sided noise pushes some
    /// down. Membership of the mixture is sampled too, and noise does not overrule the token that ends thinking.
    #[test]
    fn one_sided_noise_only_raises() {
        let probabilities = [0.4, 0.3, 0.2, 0.1];
        let logits = probabilities.map(|p: f64| p.ln() as f32);
        let noise = |density, end| Noise { top_k: 2, top_p: 1.0, temperature: 1.0, gumbel: 1.0, density, end };
        let device = crate::machine::Machine::default().device.autodiff();
        let key = |position| Key { problem: 2, rollout: 0, position };
        let (mut lowered, mut rare) = ([0, 0], 0);
        for position in 0..300 {
            for (i, density) in [Density::OneSided, Density::Sum].into_iter().enumerate() {
                let (drawn, density) = noise(density, None).draw(&logits, 3, key(position));
                let row = Tensor::<1>::from_floats(logits.as_slice(), &device).require_grad();
                let again = densities(row.clone().unsqueeze_dim(0), &[&drawn]).expect("a density");
                let value = f64::from(again.clone().without_autodiff().into_scalar::<f32>());
                assert!((value - density).abs() < 1e-4, "{value}, drawn with {density}");
                let slopes = row.grad(&again.backward()).expect("a gradient").try_into_vec_as::<f32>().expect("values");
                lowered[i] += slopes.iter().filter(|slope| **slope < -1e-6).count();
                let above = |(&token, g): (&u32, &f32)| f64::from(*g) - probabilities[token as usize].ln();
                let z: Vec<f64> = drawn.tokens.iter().zip(&drawn.perturbed).map(above).collect();
                assert!(i == 1 || z.iter().all(|z| (-1e-5..4.5001).contains(z)), "{z:?}");
                rare += usize::from(i == 0 && drawn.tokens.contains(&3));
            }
        }
        assert!(lowered[0] == 0 && lowered[1] > 100, "tokens pushed down: {lowered:?}");
        assert!((30..150).contains(&rare), "the least probable of four is in {rare} of 300 mixtures of two");
        let ends = |end| GumbelMixture::new(noise(Density::OneSided, end), 3, vec![]).expect("a source");
        let tops = |end| (0..300).filter(|&at| ends(end).top(&logits, key(at)) == Some(0)).count();
        assert!(tops(None) < 250 && tops(Some(0)) == 300 && tops(Some(1)) == tops(None));
    }
}
