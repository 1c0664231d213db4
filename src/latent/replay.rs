//! Recomputes a trace's log-probabilities from its known ids, for the ratio of GRPO.

use anyhow::{Context, Result, ensure};
use burn::tensor::Tensor;

use super::SwitchIds;
use super::decode::{Decode, Switching};
use super::drawn::{self, DrawnInput, StoredInputs};
use super::hybrid::StoredStates;
use super::row::text_masked;
use super::sequence::Sequence;
use super::source::LatentSource;
use super::stream::{Gradient, Wave};
use super::trace::{PositionRole, Trace};
use super::unroll::Waves;
use crate::model::Hooks;
use crate::model::hooks::rows_of;
use crate::ops::Targets;

/// A sampled position that a wave decides: `(trace, response position)`.
pub type Decision = (usize, usize);

/// Log-probabilities of one wave's decisions.
pub(crate) struct ReplayedWave {
    pub decisions: Vec<Decision>,
    /// `[n]`, in the order of `decisions`, in the model's graph.
    pub logprobs: Tensor<1>,
    /// Full-softmax log-probabilities of `</swi>` at the latents where the row could have ended the block but did not: `[m]`.
    pub stayed: Option<Tensor<1>>,
    /// The latents of `stayed`.
    pub stays: Vec<Decision>,
}

/// Replays traces wave by wave, so that each wave can be back-propagated and dropped before the next.
pub(crate) struct Replay<'m> {
    waves: Waves<'m>,
    decoding: Decode<'m>,
    switch: SwitchIds,
    traces: &'m [Trace],
}

/// Inputs of rollouts other than tokens, if any: constants of the replay.
pub(crate) struct RolloutInputs<'t>(Option<Box<dyn LatentSource + 't>>);

impl<'t> RolloutInputs<'t> {
    /// The inputs stored in traces that this source drew.
    pub fn from_traces(source: &dyn LatentSource, traces: &'t [Trace]) -> Self {
        fn boxed<'a>(stored: impl LatentSource + 'a) -> Box<dyn LatentSource + 'a> {
            Box::new(stored)
        }
        Self(match source.mixing() {
            Some(mixing) => StoredStates::from_traces(mixing.end(), traces).map(boxed),
            None => StoredInputs::from_traces(traces).map(boxed),
        })
    }

    /// The same decoder with the stored inputs, if any. Rows are then named by their index.
    pub fn fed<'m>(&'m self, decoding: Decode<'m>) -> Decode<'m> {
        match &self.0 {
            Some(stored) => Decode { source: &**stored, ..decoding },
            None => decoding,
        }
    }
}

/// The traces as known sequences.
///
/// # Errors
/// A trace with an empty prompt.
pub fn sequences(traces: &[Trace], switch: &SwitchIds) -> Result<Vec<Sequence>> {
    traces.iter().map(|trace| trace.sequence(switch)).collect()
}

impl<'m> Replay<'m> {
    /// `sequences` are those of the traces ([`sequences`]); `decoding` is the rollout's, its model the current one.
    ///
    /// # Errors
    /// No traces, a rollout without switch tokens.
    pub fn new(
        decoding: Decode<'m>,
        traces: &'m [Trace],
        sequences: &'m [Sequence],
        gradient: Gradient,
    ) -> Result<Self> {
        ensure!(traces.len() == sequences.len(), "{} traces, {} sequences", traces.len(), sequences.len());
        Self::over(decoding, traces, Waves::new(decoding.model, sequences, decoding.source, gradient)?)
    }

    /// A replay over some waves of these traces.
    pub(crate) fn over(decoding: Decode<'m>, traces: &'m [Trace], waves: Waves<'m>) -> Result<Self> {
        let switch = decoding.switch.context("a replay needs the ids of the switch tokens")?;
        Ok(Self { waves, decoding, switch, traces })
    }

    pub(crate) fn into_waves(self) -> Waves<'m> {
        self.waves
    }

    /// The next wave that decides anything; `None` at the end.
    pub(crate) fn next_wave(&mut self, hooks: &mut Hooks) -> Result<Option<ReplayedWave>> {
        while let Some(wave) = self.waves.next_wave(hooks)? {
            let (decided, stays) = self.places(&wave);
            if decided.is_empty() && stays.is_empty() {
                continue;
            }
            let (latents, mut decided): (Vec<ReplayPlace>, Vec<ReplayPlace>) =
                decided.into_iter().partition(|place| self.drawn(place).is_some());
            let mut logprobs = self.logprobs(&wave, &decided)?;
            if !latents.is_empty() {
                logprobs = Tensor::cat(vec![logprobs, self.densities(&wave, &latents)?], 0);
                decided.extend(latents);
            }
            let stayed = if stays.is_empty() { None } else { Some(self.logprobs(&wave, &stays)?) };
            let named = |at: Vec<ReplayPlace>| at.into_iter().map(|p| (p.trace, p.response)).collect();
            return Ok(Some(ReplayedWave { decisions: named(decided), logprobs, stayed, stays: named(stays) }));
        }
        Ok(None)
    }

    fn places(&self, wave: &Wave) -> (Vec<ReplayPlace>, Vec<ReplayPlace>) {
        let width = wave.hidden.dims()[1];
        let (mut decided, mut stays) = (vec![], vec![]);
        for (row, columns) in wave.columns.iter().enumerate() {
            let trace = &self.traces[row];
            for (column, position) in columns.iter().enumerate() {
                // The state at position t decides position t + 1.
                let Some(response) = position.map(|p| p + 1).and_then(|p| p.checked_sub(trace.prompt.len())) else {
                    continue;
                };
                let Some(next) = trace.positions.get(response) else { continue };
                let in_block = response > 0 && trace.positions[response - 1].kind == PositionRole::Latent;
                let place = ReplayPlace {
                    trace: row,
                    response,
                    flat: row * width + column,
                    token: next.token,
                    // An exit is drawn from the full softmax; after a block without markers, the next token is drawn as text.
                    full_softmax: in_block && next.kind != PositionRole::Text,
                };
                if next.is_sampled() {
                    decided.push(place);
                } else if next.kind == PositionRole::Latent
                    && in_block
                    && self.step_of(row, response - 1) >= self.decoding.settings.k_min
                {
                    stays.push(ReplayPlace { token: self.switch.swi_end, ..place });
                }
            }
        }
        (decided, stays)
    }

    /// The input that was drawn at a place.
    fn drawn(&self, place: &ReplayPlace) -> Option<&'m DrawnInput> {
        self.traces[place.trace].positions[place.response].drawn.as_ref()
    }

    /// Log-densities of drawn inputs, `[n]`.
    fn densities(&self, wave: &Wave, places: &[ReplayPlace]) -> Result<Tensor<1>> {
        let inputs: Vec<&DrawnInput> = places.iter().filter_map(|place| self.drawn(place)).collect();
        let temperature = self.decoding.settings.sampling.scale();
        drawn::log_densities(self.decoding.model, self.states(wave, places), temperature, &inputs)
    }

    /// The states that decide at these places: `[n, D]`.
    fn states(&self, wave: &Wave, places: &[ReplayPlace]) -> Tensor<2> {
        let [b, w, d] = wave.hidden.dims();
        let rows: Vec<usize> = places.iter().map(|place| place.flat).collect();
        rows_of(&wave.hidden.clone().reshape([b * w, d]), &rows)
    }

    /// Number of latents of its block up to this latent position, inclusive.
    fn step_of(&self, trace: usize, response: usize) -> usize {
        let positions = &self.traces[trace].positions;
        (0..=response).rev().take_while(|&r| positions[r].kind == PositionRole::Latent).count()
    }

    fn logprobs(&self, wave: &Wave, places: &[ReplayPlace]) -> Result<Tensor<1>> {
        if places.is_empty() {
            return Ok(Tensor::zeros([0], &wave.hidden.device()));
        }
        let draws_swi =
            self.decoding.settings.switching != Switching::Suppressed && self.decoding.controller.model_opens();
        let mut banned = text_masked(&self.decoding, draws_swi);
        banned.retain(|&token| (token as usize) < self.decoding.model.config().vocab_size);
        let targets = Targets {
            ids: places.iter().map(|p| p.token).collect(),
            banned,
            unrestricted: places.iter().map(|p| p.full_softmax).collect(),
        };
        let temperature = self.decoding.settings.sampling.scale();
        Ok(self.decoding.model.token_losses_at(self.states(wave, places), targets, temperature)?.0.neg())
    }
}

#[derive(Clone, Copy)]
struct ReplayPlace {
    trace: usize,
    response: usize,
    /// Row of the wave's hidden states, flattened.
    flat: usize,
    token: u32,
    /// Inside a block the draw is from the full softmax; in text mode some tokens are masked.
    full_softmax: bool,
}

/// Replayed log-probabilities of every position, per trace (`None` if it was not sampled).
pub fn logprobs(decoding: Decode, traces: &[Trace]) -> Result<Vec<Vec<Option<f64>>>> {
    let switch = decoding.switch.context("a replay needs the ids of the switch tokens")?;
    let mut rows = sequences(traces, &switch)?;
    rows.iter_mut().enumerate().for_each(|(name, row)| row.row = name);
    let stored = RolloutInputs::from_traces(decoding.source, traces);
    let decoding = stored.fed(decoding);
    let mut replay = Replay::new(decoding, traces, &rows, Gradient::Through)?;
    let mut out: Vec<Vec<Option<f64>>> = traces.iter().map(|t| vec![None; t.positions.len()]).collect();
    while let Some(wave) = replay.next_wave(&mut Hooks::none())? {
        if wave.decisions.is_empty() {
            continue;
        }
        let values = wave.logprobs.try_into_vec_as::<f32>().context("reading log-probs")?;
        for ((trace, response), value) in wave.decisions.into_iter().zip(values) {
            out[trace][response] = Some(f64::from(value));
        }
    }
    Ok(out)
}
