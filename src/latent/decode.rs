//! The one decoder: evaluation, rollouts and every experiment run through it (method §2).
//!
//! Each row is in its own mode (text, inside a block, finished) and draws with its own key, so results do
//! not depend on batch order or size. Prompts are prefilled once and forked to their rollouts.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};

use super::SwitchIds;
use super::ahead::Ahead;
use super::controller::Controller;
use super::fork::Branch;
use super::reading::PositionView;
use super::reasoning::MOST_LATENTS;
use super::row::{DecodingRow, FinishedRow};
use super::sampling::Sampling;
use super::source::LatentSource;
use super::stream::{Gradient, Piece, Stream};
use super::trace::{End, Trace};
use crate::model::{Decoder, Hooks, Step};
use crate::parallel;

/// Block length that any model may have: toy models have few positions, and rotary embeddings extrapolate.
const SMALL_BLOCK: usize = 256;

names! {
    /// An experiment's override of the checkpoint's own [`Controller`].
    #[derive(Default)]
    pub enum Switching {
        /// Nothing.
        #[default]
        Free = "free",
        /// `<swi>` is masked: the next best token is used instead (the paper's *skip*).
        Suppressed = "suppressed",
        /// `<swi>` is emitted at the first response position; then the controller decides.
        Forced = "forced",
        /// Every block is closed at once: `<swi></swi>`, no latent step.
        Empty = "empty",
    }
}

settings! {
    /// Settings of a decode.
    pub struct DecodeSettings {
        pub sampling: Sampling = Sampling::default(),
        /// Latent steps before an exit may be drawn. 0 still runs one.
        pub k_min: usize = 4,
        /// Latent steps after which `</swi>` is forced.
        pub k_cap: usize = 16,
        /// Visible tokens of a response, boundary tokens included; a request may have fewer.
        pub max_new_tokens: usize = 256,
        /// Tokens that end a row.
        pub stop: Vec<u32> = vec![],
        /// Text mode never draws `</swi>`: no response is ill-formed. Otherwise it may, as the paper samples; `<latent>` is never drawn.
        pub mask_tags: bool = true,
        /// Tokens that are never drawn in text mode.
        pub masked: Vec<u32> = vec![],
        pub switching: Switching = Switching::Free,
    }
}

impl DecodeSettings {
    /// # Errors
    /// A value out of range, by name.
    pub fn check(&self) -> Result<()> {
        self.sampling.check()?;
        let k_cap = self.k_cap;
        ensure!((1..=MOST_LATENTS).contains(&k_cap), "k_cap must be from 1 to {MOST_LATENTS}, found {k_cap}");
        ensure!(self.k_min <= self.k_cap, "k_min ({}) must not exceed k_cap ({})", self.k_min, self.k_cap);
        ensure!(self.max_new_tokens >= 1, "max_new_tokens must be at least 1, found 0");
        Ok(())
    }
}

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub problem: usize,
    pub prompt: Vec<u32>,
    /// Number of its first rollout: part of the random key.
    pub rollout: usize,
    /// Maximum visible tokens of this response, up to the settings' limit; `None`: that limit.
    pub limit: Option<usize>,
}

impl Request {
    /// One request per prompt, numbered from 0.
    pub fn all(prompts: impl IntoIterator<Item = Vec<u32>>) -> Vec<Self> {
        let one = |(problem, prompt)| Self { problem, prompt, rollout: 0, limit: None };
        prompts.into_iter().enumerate().map(one).collect()
    }
}

/// Shared inputs of all rows of a decode.
#[derive(Clone, Copy)]
pub struct Decode<'a> {
    pub model: &'a Decoder,
    pub source: &'a dyn LatentSource,
    pub controller: &'a dyn Controller,
    /// `None`: a model without switch tokens, decoded as plain text.
    pub switch: Option<SwitchIds>,
    pub settings: &'a DecodeSettings,
    /// Set by the user's Ctrl-C: rows end as cancelled.
    pub cancel: Option<&'a AtomicBool>,
    /// Number of steps that the device decides between two reads, if it can; 0: the host decides every step. `None`: 0 on the CPU, several
    /// on a GPU. Results are equal up to rounding: the device computes log-probabilities in f32, the host in f64.
    pub ahead: Option<usize>,
}

/// Continues every prompt `rollouts` times; traces in the order of the requests, rollouts of one together.
///
/// # Errors
/// Settings out of range, an empty prompt, errors of hooks. An exhausted budget or non-finite logits end only their own row, with the
/// reason in its trace.
pub fn decode(decoding: Decode, requests: &[Request], rollouts: usize, hooks: &mut Hooks) -> Result<Vec<Trace>> {
    ensure!(rollouts > 0, "nothing to decode: {rollouts} rollouts");
    let problems = requests.iter().map(|r| r.problem).collect();
    let mut stream = prefill(decoding, requests, problems, hooks)?;
    let forks: Vec<usize> = (0..requests.len()).flat_map(|r| std::iter::repeat_n(r, rollouts)).collect();
    if rollouts > 1 {
        stream = stream.keep(&forks);
    }
    let rows = forks
        .iter()
        .enumerate()
        .map(|(i, &r)| DecodingRow::new(&requests[r], requests[r].rollout + i % rollouts, decoding.settings.switching));
    let done = continue_rows(decoding, stream, rows.collect(), &mut Branch::whole(hooks))?;
    Ok(done.into_iter().map(|row| row.decoded().trace).collect())
}

/// Continues every prompt once. Hooks see `names[i]` as the row, instead of the problem as in [`decode`], so that they can distinguish
/// rollouts of one problem.
pub(crate) fn decode_named(
    decoding: Decode,
    requests: &[Request],
    names: Vec<usize>,
    hooks: &mut Hooks,
) -> Result<Vec<Trace>> {
    let none = vec![RowWatch::default(); requests.len()];
    let done = decode_watched(decoding, requests, names, &none, hooks)?;
    Ok(done.into_iter().map(|decoded| decoded.trace).collect())
}

/// Per-row options of a decode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowWatch {
    /// A token whose margin over the others is recorded ([`FinishedRow::margins`]).
    pub token: Option<u32>,
    /// `<swi>` is emitted at this visible response position, regardless of the model.
    pub force_at: Option<usize>,
}

/// Decodes with options per row.
pub(crate) fn decode_watched(
    decoding: Decode,
    requests: &[Request],
    names: Vec<usize>,
    watched: &[RowWatch],
    hooks: &mut Hooks,
) -> Result<Vec<FinishedRow>> {
    ensure!(names.len() == requests.len(), "{} names for {} requests", names.len(), requests.len());
    ensure!(watched.len() == requests.len(), "{} rows to watch for {} requests", watched.len(), requests.len());
    let stream = prefill(decoding, requests, names, hooks)?;
    let start = |(request, watched): (&Request, &RowWatch)| {
        let mut row = DecodingRow::new(request, request.rollout, decoding.settings.switching);
        row.watch = watched.token;
        row.force_at = watched.force_at.or(row.force_at);
        row
    };
    let rows = requests.iter().zip(watched).map(start).collect();
    Ok(continue_rows(decoding, stream, rows, &mut Branch::whole(hooks))?
        .into_iter()
        .map(DecodingRow::decoded)
        .collect())
}

/// Checks that the longest possible response, with one block, fits a model's table of learned positions.
///
/// # Errors
/// The first prompt whose response may exceed the table.
pub(crate) fn ensure_positions(model: &Decoder, settings: &DecodeSettings, requests: &[Request]) -> Result<()> {
    let there = model.config().max_position_embeddings;
    if !model.config().family.learned_positions {
        return Ok(());
    }
    let DecodeSettings { max_new_tokens, k_cap, .. } = settings;
    for Request { problem, prompt, .. } in requests {
        ensure!(
            prompt.len() + max_new_tokens + k_cap <= there,
            "problem {problem}: its prompt of {} tokens, max_new_tokens {max_new_tokens} and a block of k_cap {k_cap} latents reach beyond \
             the {there} positions that the model has rows for: take fewer, or shorter prompts",
            prompt.len()
        );
    }
    Ok(())
}

/// Feeds the prompts.
pub(super) fn prefill<'m>(
    decoding: Decode<'m>,
    requests: &[Request],
    names: Vec<usize>,
    hooks: &mut Hooks,
) -> Result<Stream<'m>> {
    decoding.settings.check()?;
    ensure!(!requests.is_empty(), "nothing to decode: no prompts");
    let (k_cap, positions) = (decoding.settings.k_cap, decoding.model.config().max_position_embeddings);
    ensure!(
        k_cap <= positions.max(SMALL_BLOCK),
        "k_cap is {k_cap}, the model has {positions} positions (max_position_embeddings): a block would outgrow it"
    );
    for request in requests {
        ensure!(!request.prompt.is_empty(), "problem {}: the prompt is empty", request.problem);
        let most = request.prompt.len() + 1;
        decoding
            .model
            .config()
            .ensure_context(most, || format!("problem {}: its prompt with a response", request.problem))?;
    }
    ensure_positions(decoding.model, decoding.settings, requests)?;
    let mut stream = Stream::new(decoding.model, decoding.source, Gradient::Through, names);
    let prompts: Vec<Piece> =
        requests.iter().map(|r| Piece { ids: r.prompt.clone(), steps: vec![Step::Prompt; r.prompt.len()] }).collect();
    stream.advance(&prompts, hooks).context("prefilling the prompts")?;
    Ok(stream)
}

/// Continues a decode from a stream whose rows have been fed up to the given traces (a fork of an earlier decode).
pub(super) fn continue_rows(
    decoding: Decode,
    stream: Stream,
    rows: Vec<DecodingRow>,
    branch: &mut Branch,
) -> Result<Vec<DecodingRow>> {
    let done = drive(decoding, stream, rows, branch)?;
    Ok(done.into_iter().map(|(row, _)| row).collect())
}

/// A row and, if it is held before its first block, the stream with its cache, and the index in it.
pub(super) type DrivenRow<'m> = (DecodingRow, Option<(Stream<'m>, usize)>);

/// Decodes until every row has ended or is held ([`DecodingRow::hold`]).
pub(super) fn drive<'m>(
    decoding: Decode<'m>,
    stream: Stream<'m>,
    rows: Vec<DecodingRow>,
    branch: &mut Branch,
) -> Result<Vec<DrivenRow<'m>>> {
    if decoding.model.layers.first().is_some_and(|block| block.mlp.is_shared(rows.len())) {
        return parallel::threads_awake(|| step_by_step(decoding, stream, rows, branch));
    }
    step_by_step(decoding, stream, rows, branch)
}

fn step_by_step<'m>(
    decoding: Decode<'m>,
    mut stream: Stream<'m>,
    rows: Vec<DecodingRow>,
    branch: &mut Branch,
) -> Result<Vec<DrivenRow<'m>>> {
    let mut done: Vec<Option<DrivenRow<'m>>> = rows.iter().map(|_| None).collect();
    let ahead = if branch.is_plain() { Ahead::new(decoding, &rows)? } else { None };
    let mut active: Vec<(usize, DecodingRow)> = rows.into_iter().enumerate().collect();
    while !active.is_empty() {
        let device = ahead.as_ref().filter(|ahead| ahead.takes(active.iter().map(|(_, row)| row)));
        let mut pieces = match device {
            Some(ahead) if !is_cancelled(&decoding) => {
                let mut rows: Vec<&mut DecodingRow> = active.iter_mut().map(|(_, row)| row).collect();
                ahead.run(&mut stream, &mut rows)?;
                vec![Piece::default(); active.len()]
            }
            _ => chosen_by_host(&decoding, &stream, &mut active, branch.hooks)?,
        };
        // Finished rows are removed once they are a quarter of the batch, because that copies the cache.
        let live: Vec<usize> = (0..active.len()).filter(|&i| active[i].1.is_live()).collect();
        let leave = live.len() < active.len() && (live.is_empty() || (active.len() - live.len()) * 4 >= active.len());
        if leave {
            let held: Vec<usize> = (0..active.len()).filter(|&i| active[i].1.held).collect();
            let apart = if held.is_empty() { None } else { Some(stream.keep(&held)) };
            if !live.is_empty() {
                stream = stream.keep(&live);
            }
            let mut kept = vec![];
            for (i, (slot, row)) in active.into_iter().enumerate() {
                if row.is_live() {
                    kept.push((slot, row, std::mem::take(&mut pieces[i])));
                } else {
                    let at = held.iter().position(|&h| h == i);
                    done[slot] = Some((row, apart.clone().zip(at)));
                }
            }
            pieces = kept.iter_mut().map(|(_, _, piece)| std::mem::take(piece)).collect();
            active = kept.into_iter().map(|(slot, row, _)| (slot, row)).collect();
        }
        if pieces.iter().any(|p| !p.ids.is_empty()) {
            branch.advance(&mut stream, &pieces)?;
        }
    }
    done.into_iter().map(|row| row.context("a response is missing")).collect()
}

fn is_cancelled(decoding: &Decode) -> bool {
    decoding.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
}

/// The next piece of each row, decided on the host.
fn chosen_by_host(
    decoding: &Decode,
    stream: &Stream,
    rows: &mut [(usize, DecodingRow)],
    hooks: &mut Hooks,
) -> Result<Vec<Piece>> {
    let steps: Vec<Option<Step>> = rows.iter().map(|(_, row)| row.is_live().then_some(row.at)).collect();
    let logits = stream.logits(&steps, hooks)?;
    let vocab = logits.dims()[1];
    let logits = logits.try_into_vec_as::<f32>().context("reading logits")?;
    let cancelled = is_cancelled(decoding);
    let mut pieces = vec![];
    for ((_, row), logits) in rows.iter_mut().zip(logits.chunks(vocab)) {
        let piece = if !row.is_live() {
            Piece::default()
        } else if cancelled {
            row.end = Some(End::Cancelled);
            Piece::default()
        } else {
            row.choose(&PositionView::Logits(logits), decoding)
        };
        pieces.push(piece);
    }
    Ok(pieces)
}
