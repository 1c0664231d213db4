//! The one decoder: evaluation, rollouts and every experiment run through it (method §2).
//!
//! Each row is in a mode of its own (text, inside a block, finished) and draws with a key of its own, so results do
//! not depend on batch order or size. Prompts are prefilled once and forked to their rollouts.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::sampling::{self, Key, Sampling};
use super::sequence::SwitchIds;
use super::source::LatentSource;
use super::stream::{Gradient, Piece, Stream};
use super::trace::{End, Kind, Position, Trace};
use crate::model::{Decoder, Hooks, Step};

/// Whether the model may switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switching {
    /// It decides.
    #[default]
    Free,
    /// `<swi>` is masked: the next best token is taken (the paper's *skip*).
    Suppressed,
    /// `<swi>` is emitted at the first response position, then it decides.
    Forced,
}

/// Settings of a decode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecodeSettings {
    pub sampling: Sampling,
    /// Latent steps before an exit may be drawn. 0 still runs one.
    pub k_min: usize,
    /// Latent steps after which `</swi>` is forced.
    pub k_cap: usize,
    /// Visible tokens of a response, boundary tokens included.
    pub max_new_tokens: usize,
    /// Tokens that end a row.
    pub stop: Vec<u32>,
    /// Tokens that are never drawn in text mode.
    pub masked: Vec<u32>,
    pub switching: Switching,
}

impl Default for DecodeSettings {
    fn default() -> Self {
        Self {
            sampling: Sampling::default(),
            k_min: 4,
            k_cap: 16,
            max_new_tokens: 256,
            stop: vec![],
            masked: vec![],
            switching: Switching::Free,
        }
    }
}

impl DecodeSettings {
    /// # Errors
    /// A value out of range, by name.
    pub fn check(&self) -> Result<()> {
        self.sampling.check()?;
        ensure!(self.k_cap >= 1, "k_cap must be at least 1, found 0");
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
    /// Number of its first rollout: names the randomness.
    pub rollout: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Text,
    /// Inside block `block`; `step` latents have been fed.
    Block {
        block: usize,
        step: usize,
    },
}

/// One row in progress.
struct Row {
    trace: Trace,
    mode: Mode,
    /// Response positions so far that are not latent.
    visible: usize,
    blocks: usize,
    /// What the last fed position was.
    at: Step,
    end: Option<End>,
}

/// What every row of a decode shares.
#[derive(Clone, Copy)]
pub struct Decode<'a> {
    pub model: &'a Decoder,
    pub source: &'a dyn LatentSource,
    /// `None`: a model without switch tokens, decoded as plain text.
    pub switch: Option<SwitchIds>,
    pub settings: &'a DecodeSettings,
    /// Raised by the user's Ctrl-C: rows end as cancelled.
    pub cancel: Option<&'a AtomicBool>,
}

/// Continues every prompt `rollouts` times; traces in the order of the requests, rollouts of one together.
///
/// # Errors
/// Settings out of range, an empty prompt, and whatever a hook returns. Trouble in one row (budget, non-finite
/// logits) ends that row with its reason and nothing else.
pub fn decode(how: Decode, requests: &[Request], rollouts: usize, hooks: &mut Hooks) -> Result<Vec<Trace>> {
    how.settings.check()?;
    ensure!(!requests.is_empty() && rollouts > 0, "nothing to decode: {} prompts, {rollouts} rollouts", requests.len());
    for request in requests {
        ensure!(!request.prompt.is_empty(), "problem {}: the prompt is empty", request.problem);
    }
    let mut stream =
        Stream::new(how.model, how.source, Gradient::Through, requests.iter().map(|r| r.problem).collect());
    let prompts: Vec<Piece> =
        requests.iter().map(|r| Piece { ids: r.prompt.clone(), steps: vec![Step::Prompt; r.prompt.len()] }).collect();
    stream.advance(&prompts, hooks).context("prefilling the prompts")?;
    let forks: Vec<usize> = (0..requests.len()).flat_map(|r| std::iter::repeat_n(r, rollouts)).collect();
    if rollouts > 1 {
        stream = stream.keep(&forks);
    }
    let rows = forks.iter().enumerate().map(|(i, &r)| Row::new(&requests[r], requests[r].rollout + i % rollouts));
    continue_rows(how, stream, rows.collect(), hooks)
}

/// Decodes on from a stream whose rows have been fed up to the traces given (a fork of an earlier decode).
///
/// # Errors
/// As [`decode`].
fn continue_rows(how: Decode, mut stream: Stream, rows: Vec<Row>, hooks: &mut Hooks) -> Result<Vec<Trace>> {
    let mut done: Vec<Option<Trace>> = rows.iter().map(|_| None).collect();
    let mut active: Vec<(usize, Row)> = rows.into_iter().enumerate().collect();
    while !active.is_empty() {
        let steps: Vec<Option<Step>> = active.iter().map(|(_, row)| row.end.is_none().then_some(row.at)).collect();
        let logits = stream.logits(&steps, hooks)?;
        let vocab = logits.dims()[1];
        let logits = logits.try_into_vec_as::<f32>().map_err(|e| anyhow::anyhow!("reading logits: {e:?}"))?;
        let cancelled = how.cancel.is_some_and(|c| c.load(Ordering::Relaxed));
        let mut pieces = vec![];
        for (i, (_, row)) in active.iter_mut().enumerate() {
            let piece = if row.end.is_some() {
                Piece::default()
            } else if cancelled {
                row.end = Some(End::Cancelled);
                Piece::default()
            } else {
                row.choose(&logits[i * vocab..(i + 1) * vocab], &how)
            };
            pieces.push(piece);
        }
        // Finished rows leave once they are a quarter of the batch: a copy of the cache is not free.
        let live: Vec<usize> = (0..active.len()).filter(|&i| active[i].1.end.is_none()).collect();
        let leave = live.len() < active.len() && (live.is_empty() || (active.len() - live.len()) * 4 >= active.len());
        if leave {
            if !live.is_empty() {
                stream = stream.keep(&live);
            }
            let mut kept = vec![];
            for (i, (slot, mut row)) in active.into_iter().enumerate() {
                match row.end.take() {
                    Some(end) => done[slot] = Some(Trace { end, ..row.trace }),
                    None => kept.push((slot, row, std::mem::take(&mut pieces[i]))),
                }
            }
            pieces = kept.iter_mut().map(|(_, _, piece)| std::mem::take(piece)).collect();
            active = kept.into_iter().map(|(slot, row, _)| (slot, row)).collect();
        }
        if pieces.iter().any(|p| !p.ids.is_empty()) {
            stream.advance(&pieces, hooks)?;
        }
    }
    done.into_iter().map(|trace| trace.context("a row was lost")).collect()
}

impl Row {
    fn new(request: &Request, rollout: usize) -> Self {
        let trace = Trace {
            problem: request.problem,
            rollout,
            prompt: request.prompt.clone(),
            positions: vec![],
            end: End::Budget,
        };
        Self { trace, mode: Mode::Text, visible: 0, blocks: 0, at: Step::Prompt, end: None }
    }

    fn key(&self) -> Key {
        Key {
            problem: self.trace.problem as u64,
            rollout: self.trace.rollout as u64,
            position: (self.trace.prompt.len() + self.trace.positions.len()) as u64,
        }
    }

    /// Decides what this row feeds next, from the logits at its last position. An empty piece means it has ended.
    fn choose(&mut self, logits: &[f32], how: &Decode) -> Piece {
        if logits.iter().any(|x| !x.is_finite()) {
            self.end = Some(End::NonFinite);
            return Piece::default();
        }
        match (self.mode, how.switch) {
            (Mode::Block { block, step }, Some(ids)) => self.in_block(logits, how, ids, block, step),
            _ => self.in_text(logits, how),
        }
    }

    fn in_text(&mut self, logits: &[f32], how: &Decode) -> Piece {
        let settings = how.settings;
        let mut masked = settings.masked.clone();
        masked.extend(how.switch.iter().flat_map(|ids| text_mask(ids, settings.switching)));
        let plain = sampling::log_softmax(logits, 1.0, &masked);
        let scaled;
        let at_temperature = if settings.sampling.scale() == 1.0 {
            &plain
        } else {
            scaled = sampling::log_softmax(logits, settings.sampling.scale(), &masked);
            &scaled
        };
        let force = settings.switching == Switching::Forced && self.visible == 0;
        let token = match how.switch {
            Some(ids) if force => ids.swi,
            _ => sampling::draw(at_temperature, &settings.sampling, self.key()),
        };
        let is_swi = how.switch.is_some_and(|ids| ids.swi == token);
        let position = Position {
            token,
            kind: if is_swi { Kind::Swi } else { Kind::Text },
            logprob: Some(at_temperature[token as usize]),
            entropy: Some(sampling::entropy(&plain)),
            p_swi: how.switch.map(|ids| plain[ids.swi as usize].exp()),
            p_exit: None,
        };
        if is_swi {
            self.mode = Mode::Block { block: self.blocks, step: 0 };
            self.blocks += 1;
        }
        self.push_visible(position, how)
    }

    fn in_block(&mut self, logits: &[f32], how: &Decode, ids: SwitchIds, block: usize, step: usize) -> Piece {
        let settings = how.settings;
        if step > 0 {
            let plain = sampling::log_softmax(logits, 1.0, &[]);
            if let Some(last) = self.trace.positions.last_mut() {
                last.p_exit = Some(plain[ids.swi_end as usize].exp());
                last.entropy = Some(sampling::entropy(&plain));
            }
            let at_temperature = sampling::log_softmax(logits, settings.sampling.scale(), &[]);
            let may_exit = step >= settings.k_min;
            let sampled = may_exit && sampling::draw(&at_temperature, &settings.sampling, self.key()) == ids.swi_end;
            if sampled || step >= settings.k_cap {
                self.mode = Mode::Text;
                let kind = if sampled { Kind::SwiEndSampled } else { Kind::SwiEndForced };
                let logprob = sampled.then(|| at_temperature[ids.swi_end as usize]);
                let exit = Position { token: ids.swi_end, kind, logprob, entropy: None, p_swi: None, p_exit: None };
                return self.push_visible(exit, how);
            }
        }
        let latent =
            Position { token: ids.latent, kind: Kind::Latent, logprob: None, entropy: None, p_swi: None, p_exit: None };
        self.trace.positions.push(latent);
        self.mode = Mode::Block { block, step: step + 1 };
        self.at = Step::Latent { block, step };
        Piece::one(ids.latent, self.at)
    }

    fn push_visible(&mut self, position: Position, how: &Decode) -> Piece {
        let token = position.token;
        self.trace.positions.push(position);
        self.at = Step::Text(self.visible);
        self.visible += 1;
        if how.settings.stop.contains(&token) {
            self.end = Some(End::Stop);
            return Piece::default();
        }
        if self.visible >= how.settings.max_new_tokens {
            self.end = Some(End::Budget);
            return Piece::default();
        }
        Piece::one(token, self.at)
    }
}

/// Tokens that text mode never draws.
pub fn text_mask(ids: &SwitchIds, switching: Switching) -> Vec<u32> {
    let mut masked = vec![ids.latent, ids.swi_end];
    if switching == Switching::Suppressed {
        masked.push(ids.swi);
    }
    masked
}
