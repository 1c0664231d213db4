//! Rollouts of GRPO: responses drawn by the one decoder, their rewards, and the advantages of their groups.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow, bail};
use burn::tensor::{ExecutionError, TensorReadError};
use serde::{Deserialize, Serialize};

use super::advantages::of_rollouts;
use super::dropout::Masks;
use super::grpo::sampled_tokens;
use crate::corpus::Corpus;
use crate::latent::gumbel::{Density, GumbelMixture, Noise};
use crate::latent::hybrid::MixMemory;
use crate::latent::trace::Position;
use crate::latent::{
    Decode, DecodeSettings, End, Reasoning, Request, Sampling, Source, SwitchIds, Switching, Trace, decode,
    decode_named,
};
use crate::model::{Decoder, Hooks};
use crate::ops::TooLarge;
use crate::parallel;
use crate::recipe::{Compute, Evaluation, Facts, Grpo, LossMean, Terms};
use crate::world::World;

/// A rollout with what the loss needs of it.
#[derive(Clone, Debug)]
pub struct Rollout {
    pub trace: Trace,
    pub terms: Terms,
    pub correct: bool,
    pub advantage: f64,
    /// Weight of its positions in the loss beside those of other questions ([`LossMean`]); 1 on average over positions.
    pub weight: f64,
    /// Whether its first decision is learnt; the others are in any case.
    pub first: bool,
    /// Log-probabilities under the KL anchor, per response position; the rollout's own where the anchor is old.
    pub anchor: Vec<Option<f64>>,
}

impl Rollout {
    /// One whose reward is nobody's business: to measure a step with.
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
    pub fn of(self, model: &'a Decoder) -> Decode<'a> {
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

/// Everything sampled for one step.
#[derive(Clone, Debug, Default)]
pub struct RolloutBatch {
    /// Rollouts of groups with variance: what is learnt from.
    pub rollouts: Vec<Rollout>,
    pub all: Vec<(Trace, Terms, bool)>,
    pub groups: usize,
    pub skipped_groups: usize,
    /// Rollouts lost to memory, to `max_positions` or to non-finite logits.
    pub dropped: DropCounts,
}

/// Why rollouts were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropCounts {
    pub memory: usize,
    /// Longer than `max_positions`.
    pub too_long: usize,
    pub not_finite: usize,
}

impl DropCounts {
    pub fn all(self) -> usize {
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
) -> Result<RolloutBatch> {
    sample_among(World::ALONE, model, corpus, (questions, grpo), behaviour, threads)
}

/// Rolls out by all processes, each with its own of the questions, so that a group is of one process; every process gets all
/// rollouts, in the order of the questions.
pub(crate) fn sample_among(
    world: World,
    model: &Decoder,
    corpus: &Corpus,
    (questions, grpo): (&[Question], &Grpo),
    behaviour: Behaviour,
    threads: usize,
) -> Result<RolloutBatch> {
    let own = world.own(questions);
    let groups = parallel::run(&parallel::cut(&own, threads), |part| {
        part.iter().map(|question| rollouts_of(model, corpus, *question, grpo, behaviour)).collect::<Result<Vec<_>>>()
    })?;
    let groups: Vec<(Vec<Trace>, DropCounts)> = world.all(groups.into_iter().flatten().collect())?;
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
        match of_rollouts(&totals, &traces, grpo) {
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

/// Weighs rollouts so that the mean over all sampled positions is the mean over questions of each question's own mean.
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

/// The survivors of one question's rollouts, and what became of the others.
fn rollouts_of(
    model: &Decoder,
    corpus: &Corpus,
    (problem, prompt, _): Question,
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
fn roll_out(model: &Decoder, rollouts: &[Request], grpo: &Grpo, behaviour: Behaviour) -> Result<Vec<Trace>> {
    let decoding = behaviour.of(model);
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
        source.remember_in(&mut traces);
        return Ok(traces);
    }
    if let Source::Hybrid(hybrid) = behaviour.reasoning.source {
        let source = MixMemory::new(hybrid);
        let mut traces = roll_out_named(Decode { source: &source, ..decoding }, rollouts, grpo)?;
        source.remember_in(&mut traces);
        return Ok(traces);
    }
    if grpo.dropout_rollouts == 0.0 {
        // Their prompt is the same and is read once.
        return decode(decoding, &rollouts[..1], rollouts.len(), &mut Hooks::none());
    }
    roll_out_named(decoding, rollouts, grpo)
}

/// Rolls out with a name for each rollout, so that masks and mixtures can tell them apart.
fn roll_out_named(decoding: Decode, rollouts: &[Request], grpo: &Grpo) -> Result<Vec<Trace>> {
    let masks = Masks {
        share: grpo.dropout_rollouts,
        seed: decoding.settings.sampling.seed,
        rollouts: rollouts.iter().map(|r| (r.problem, r.rollout)).collect(),
    };
    decode_named(decoding, rollouts, (0..rollouts.len()).collect(), &mut masks.hooks(decoding.model)?)
}

/// A computation that panicked.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a computation panicked: most likely the device is out of memory")]
struct OutOfMemory;

/// A panic as an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(anyhow!(OutOfMemory)))
}

/// The CPU panics for want of memory; a GPU goes on, and what it could not compute cannot be read. Scores are refused before.
pub(super) fn is_out_of_memory(error: &anyhow::Error) -> bool {
    error.is::<OutOfMemory>()
        || error.is::<TooLarge>()
        || error.is::<parallel::PanicResult>()
        || error.is::<TensorReadError>()
        || error.is::<ExecutionError>()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What a read gives on a GPU that had no memory for the values.
    pub fn unread() -> anyhow::Error {
        let lost = ExecutionError::WithContext { reason: "a buffer of 256 MiB, the device has no such".into() };
        anyhow!(TensorReadError::from(lost)).context("reading logits")
    }

    /// Two questions, one with long answers: each has half of the loss, whatever the number of its positions.
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
        assert!(refused.is_err_and(|e| e.to_string() == "a bad token"), "an error is no lack of memory");
    }
}
