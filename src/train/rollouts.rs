//! Rollouts of GRPO: samples responses with the one decoder, computes rewards and the advantages of each group.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow, bail, ensure};
use burn::tensor::{ExecutionError, TensorReadError};
use serde::{Deserialize, Serialize};

use super::advantages::rollout_advantages;
use super::dropout::Masks;
use super::grpo::sampled_tokens;
use crate::corpus::Corpus;
use crate::latent::gumbel::{Density, GumbelMixture, Noise};
use crate::latent::hybrid::MixMemory;
use crate::latent::noisy_state::StateNoise;
use crate::latent::trace::Position;
use crate::latent::{
    Decode, DecodeSettings, End, Reasoning, Request, Sampling, Source, SwitchIds, Switching, Trace, decode,
    decode_named,
};
use crate::model::{Decoder, Hooks};
use crate::ops::TooLarge;
use crate::parallel::{self, Panic};
use crate::recipe::{Compute, Evaluation, Facts, Grpo, LossMean, Terms};
use crate::world::World;

/// A rollout with the inputs of the loss.
#[derive(Clone, Debug)]
pub struct Rollout {
    pub trace: Trace,
    pub terms: Terms,
    pub correct: bool,
    pub advantage: f64,
    /// Weight of its positions in the loss relative to other questions' ([`LossMean`]); 1 on average over positions.
    pub weight: f64,
    /// Whether its first decision is learnt; the others always are.
    pub first: bool,
    /// Log-probabilities under the KL anchor, per response position; the rollout's own if the anchor is old.
    pub anchor: Vec<Option<f64>>,
}

impl Rollout {
    /// A rollout without reward, to measure a step.
    pub fn new(trace: Trace, advantage: f64) -> Self {
        let anchor = trace.positions.iter().map(|p| p.logprob).collect();
        let terms = Terms { total: advantage, ..Terms::default() };
        Self { trace, terms, correct: false, advantage, weight: 1.0, first: true, anchor }
    }

    /// The advantage of the decision at a response position.
    pub(crate) fn advantage_at(&self, position: usize) -> f64 {
        let is_first = || !self.trace.positions[..position].iter().any(Position::is_sampled);
        if self.first || !is_first() { self.advantage } else { 0.0 }
    }
}

/// The behaviour policy without its weights: how rollouts are sampled and how their log-probabilities are recomputed.
#[derive(Clone, Copy)]
pub struct Behaviour<'a> {
    pub reasoning: &'a Reasoning,
    pub switch: SwitchIds,
    pub settings: &'a DecodeSettings,
    /// Float type of the rollouts' weights, so that the ratio compares equal types.
    pub compute: Compute,
}

impl<'a> Behaviour<'a> {
    pub fn decode(self, model: &'a Decoder) -> Decode<'a> {
        let Self { reasoning, switch, settings, .. } = self;
        Decode {
            model,
            source: &reasoning.source,
            controller: &reasoning.blocks,
            switch: Some(switch),
            settings,
            cancel: None,
            ahead: None,
        }
    }
}

/// All samples of one step.
#[derive(Clone, Debug, Default)]
pub struct RolloutBatch {
    /// Rollouts of groups with variance, which are learnt from.
    pub rollouts: Vec<Rollout>,
    pub all: Vec<(Trace, Terms, bool)>,
    pub groups: usize,
    pub skipped_groups: usize,
    /// Rollouts lost to memory, to `max_positions` or to non-finite logits.
    pub dropped: DropCounts,
}

impl RolloutBatch {
    /// Sum of the advantages of rollouts with a block, divided by all rollouts; `None` without any.
    pub fn switch_advantage(&self) -> Option<f64> {
        let switched = self.rollouts.iter().filter(|r| r.trace.switched());
        let sum: f64 = switched.map(|r| r.advantage * r.weight).sum();
        (!self.all.is_empty()).then(|| sum / self.all.len() as f64)
    }
}

/// Number of lost rollouts by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropCounts {
    pub memory: usize,
    /// Longer than `max_positions`.
    pub too_long: usize,
    pub not_finite: usize,
}

impl DropCounts {
    pub fn total(self) -> usize {
        self.memory + self.too_long + self.not_finite
    }
}

/// Decoder settings of the rollouts.
pub fn rollout_settings(grpo: &Grpo, evaluation: &Evaluation, stops: &[u32], seed: u64) -> DecodeSettings {
    DecodeSettings {
        sampling: Sampling { temperature: grpo.temperature, seed, ..Sampling::default() },
        k_min: grpo.k_min,
        k_cap: evaluation.k_cap,
        max_new_tokens: evaluation.max_new_tokens,
        stop: stops.to_vec(),
        mask_tags: grpo.mask_tags,
        masked: vec![],
        switching: if grpo.text_rollouts { Switching::Suppressed } else { Switching::Free },
    }
}

/// Problem number, prompt tokens and gold answer.
pub type RolloutQuestion<'q> = (usize, &'q [u32], &'q str);

/// Rolls out `grpo.group` responses to each question and turns rewards into advantages.
///
/// A rollout that runs out of memory, exceeds `max_positions` or has non-finite logits is dropped from its group; the others'
/// advantages are computed without it.
///
/// # Errors
/// Settings out of range.
pub fn sample(
    model: &Decoder,
    corpus: &Corpus,
    questions: &[RolloutQuestion],
    grpo: &Grpo,
    behaviour: Behaviour,
    threads: usize,
) -> Result<RolloutBatch> {
    sample_among(World::ALONE, model, corpus, (questions, grpo), behaviour, threads)
}

/// Rolls out on all processes, each with its share of the questions, so that a group stays in one process. Every process gets all
/// rollouts, in the order of the questions.
pub(crate) fn sample_among(
    world: World,
    model: &Decoder,
    corpus: &Corpus,
    (questions, grpo): (&[RolloutQuestion], &Grpo),
    behaviour: Behaviour,
    threads: usize,
) -> Result<RolloutBatch> {
    let own = world.own(questions);
    let groups = parallel::each(&own, threads, |question| rollouts_of(model, corpus, *question, grpo, behaviour))?;
    let groups: Vec<(Vec<Trace>, DropCounts)> = world.all(groups)?;
    let mut sampled = RolloutBatch::default();
    for ((_, _, gold), (traces, dropped)) in questions.iter().zip(groups) {
        sampled.groups += 1;
        let DropCounts { memory, too_long, not_finite } = &mut sampled.dropped;
        *memory += dropped.memory;
        *too_long += dropped.too_long;
        *not_finite += dropped.not_finite;
        let mut graded = vec![];
        for trace in traces {
            let text = corpus.vocabulary.decode_visible(&trace.text())?;
            let correct = corpus.pays(gold, &text, grpo.reward.strict);
            let terms = grpo.reward.of(Facts::new(&trace, correct));
            graded.push((trace, terms, correct));
        }
        let totals: Vec<f64> = graded.iter().map(|(_, terms, _)| terms.total).collect();
        let traces: Vec<&Trace> = graded.iter().map(|(trace, ..)| trace).collect();
        match rollout_advantages(&totals, &traces, grpo) {
            Some(group) => {
                for ((trace, terms, correct), (advantage, first)) in graded.iter().cloned().zip(group) {
                    let anchor = trace.positions.iter().map(|p| p.logprob).collect();
                    let weight = 1.0;
                    sampled.rollouts.push(Rollout { trace, terms, correct, advantage, weight, first, anchor });
                }
            }
            None => sampled.skipped_groups += 1,
        }
        sampled.all.extend(graded);
    }
    if grpo.loss_mean == LossMean::Question {
        weigh_by_question(&mut sampled.rollouts);
    }
    Ok(sampled)
}

/// Weights rollouts so that the mean over all sampled positions equals the mean over questions of each question's mean.
fn weigh_by_question(rollouts: &mut [Rollout]) {
    let mut tokens: BTreeMap<usize, usize> = BTreeMap::new();
    for rollout in rollouts.iter() {
        *tokens.entry(rollout.trace.problem).or_default() += sampled_tokens(std::slice::from_ref(rollout));
    }
    let mean = tokens.values().sum::<usize>() as f64 / tokens.len().max(1) as f64;
    for rollout in rollouts {
        rollout.weight = mean / tokens[&rollout.trace.problem].max(1) as f64;
    }
}

/// The surviving rollouts of one question, and the number of lost ones.
fn rollouts_of(
    model: &Decoder,
    corpus: &Corpus,
    (problem, prompt, _): RolloutQuestion,
    grpo: &Grpo,
    behaviour: Behaviour,
) -> Result<(Vec<Trace>, DropCounts)> {
    let first = corpus.request(problem, prompt)?;
    let group: Vec<Request> = (0..grpo.group).map(|rollout| Request { rollout, ..first.clone() }).collect();
    let traces = together_or_alone(&group, |requests| roll_out(model, requests, grpo, behaviour))?;
    let mut dropped = DropCounts { memory: grpo.group - traces.len(), ..DropCounts::default() };
    let mut survivors = vec![];
    for trace in traces {
        match (trace.end == End::NonFinite, trace.length() <= grpo.max_positions) {
            (true, _) => dropped.not_finite += 1,
            (_, false) => dropped.too_long += 1,
            _ => survivors.push(trace),
        }
    }
    Ok((survivors, dropped))
}

/// Decodes all in one batch; if the device runs out of memory, one by one, so that only the long ones are lost.
fn together_or_alone(group: &[Request], decode: impl Fn(&[Request]) -> Result<Vec<Trace>>) -> Result<Vec<Trace>> {
    match catch_panic(|| decode(group)) {
        Err(error) if is_out_of_memory(&error) => {}
        done => return done,
    }
    let mut survivors = vec![];
    for request in group {
        match catch_panic(|| decode(std::slice::from_ref(request))) {
            Err(error) if is_out_of_memory(&error) => {}
            done => survivors.extend(done?),
        }
    }
    Ok(survivors)
}

/// Rollouts of one question, in one batch.
fn roll_out(model: &Decoder, rollouts: &[Request], grpo: &Grpo, behaviour: Behaviour) -> Result<Vec<Trace>> {
    let decoding = behaviour.decode(model);
    if grpo.gumbel > 0.0 {
        let Source::VocabularyMixture { top_k, top_p, .. } = behaviour.reasoning.source else {
            let name = decoding.source.name();
            bail!("grpo.gumbel is noise on mixtures of the vocabulary; the latents of this checkpoint are {name}")
        };
        let Sampling { temperature, seed, .. } = decoding.settings.sampling;
        let rows = rollouts.iter().map(|r| (r.problem, r.rollout)).collect();
        let Grpo { gumbel, density, .. } = *grpo;
        let end = (density == Density::OneSided).then_some(behaviour.switch.swi_end);
        let noise = Noise { top_k, top_p: top_p.min(grpo.top_p), temperature, gumbel, density, end };
        let source = GumbelMixture::new(noise, seed, rows)?;
        let mut traces = roll_out_named(Decode { source: &source, ..decoding }, rollouts, grpo)?;
        source.log.remember_in(&mut traces);
        return Ok(traces);
    }
    if grpo.latent_noise > 0.0 {
        let name = decoding.source.name();
        ensure!(
            behaviour.reasoning.source == Source::HiddenState,
            "grpo.latent_noise is noise on hidden states; the latents of this checkpoint are {name}"
        );
        let rows = rollouts.iter().map(|r| (r.problem, r.rollout)).collect();
        let source = StateNoise::new(grpo.latent_noise, decoding.settings.sampling.seed, rows);
        let mut traces = roll_out_named(Decode { source: &source, ..decoding }, rollouts, grpo)?;
        source.log.remember_in(&mut traces);
        return Ok(traces);
    }
    if let Source::Hybrid(hybrid) = behaviour.reasoning.source {
        let source = MixMemory::new(hybrid);
        let mut traces = roll_out_named(Decode { source: &source, ..decoding }, rollouts, grpo)?;
        source.remember_in(&mut traces);
        return Ok(traces);
    }
    if grpo.dropout_rollouts == 0.0 {
        // The common prompt is prefilled once.
        return decode(decoding, &rollouts[..1], rollouts.len(), &mut Hooks::none());
    }
    roll_out_named(decoding, rollouts, grpo)
}

/// Rolls out with a name per rollout, which selects its mask and its mixtures.
fn roll_out_named(decoding: Decode, rollouts: &[Request], grpo: &Grpo) -> Result<Vec<Trace>> {
    let masks = Masks {
        share: grpo.dropout_rollouts,
        seed: decoding.settings.sampling.seed,
        rollouts: rollouts.iter().map(|r| (r.problem, r.rollout)).collect(),
    };
    decode_named(decoding, rollouts, (0..rollouts.len()).collect(), &mut masks.hooks(decoding.model)?)
}

/// Converts a panic into an error.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(anyhow!(Panic::new(panic.as_ref()))))
}

/// A CPU out of memory panics. A GPU continues, and reading the missing values fails. Such scores are refused before they are used.
pub(super) fn is_out_of_memory(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Panic>().is_some_and(Panic::is_out_of_memory)
        || error.is::<TooLarge>()
        || error.is::<TensorReadError>()
        || error.is::<ExecutionError>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of reading values for which a GPU had no memory.
    fn unread() -> anyhow::Error {
        let lost = ExecutionError::WithContext { reason: "a buffer of 256 MiB, the device has no such".into() };
        anyhow!(TensorReadError::from(lost)).context("reading logits")
    }

    /// Two questions, one with long answers: each has half of the loss, whatever its number of positions.
    #[test]
    fn questions_weigh_alike_however_long_their_answers_are() {
        let rollout = |problem: usize, tokens: usize| {
            let positions = (0..tokens).map(|_| Position::text(1, -0.5, 1.0)).collect();
            Rollout::new(Trace { problem, rollout: 0, prompt: vec![1], positions, end: End::Stop }, 1.0)
        };
        let mut rollouts = [rollout(0, 3), rollout(0, 1), rollout(7, 20)];
        weigh_by_question(&mut rollouts);
        let all = sampled_tokens(&rollouts) as f64;
        let share = |r: &Rollout| r.weight * sampled_tokens(std::slice::from_ref(r)) as f64 / all;
        let shares: Vec<f64> = rollouts.iter().map(share).collect();
        assert!((shares[0] - 0.375).abs() < 1e-12 && (shares[1] - 0.125).abs() < 1e-12, "{shares:?}");
        assert!((shares[2] - 0.5).abs() < 1e-12, "{shares:?}");
    }

    #[test]
    fn values_that_a_gpu_had_no_memory_for_cost_only_the_rollouts_that_are_too_long() {
        let group: Vec<Request> =
            [3, 400, 5].map(|n| Request { problem: 0, prompt: vec![1; n], rollout: n, limit: None }).to_vec();
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
        assert!(
            refused.is_err_and(|e| e.to_string() == "a bad token"),
            "other errors are not treated as out of memory"
        );
    }
}
