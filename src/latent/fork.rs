//! One decode, many continuations: prompts and the text before the first block are computed once and forked.
//!
//! A [`Prefix`] holds rows at two points: after their prompts, and before the decision that would open their first
//! block. [`Prefix::fork`] continues from either, each fork with its own switching rule and its own number, which is what
//! hooks see as the row. Knows nothing of what the forks are for.

use anyhow::{Context, Result, ensure};

use super::decode::{Decode, Request, Switching, continue_rows, drive, prefill};
use super::row::{DecodingRow, FinishedRow};
use super::stream::{ParkedStream, Piece, Stream};
use crate::model::{Hooks, Step};
use crate::schema::At;

/// The hooks of a decode and how far their replacements at latent positions reach.
pub(crate) struct Branch<'b, 'h> {
    pub hooks: &'b mut Hooks<'h>,
    /// For [`At::Embedding`] and [`At::Kv`]: the hooks of the half that sees the input as it was.
    twin: Option<(At, &'b mut Hooks<'h>)>,
}

impl<'b, 'h> Branch<'b, 'h> {
    pub fn whole(hooks: &'b mut Hooks<'h>) -> Self {
        Self { hooks, twin: None }
    }

    /// Whether no hook sees or changes anything.
    pub(super) fn is_plain(&self) -> bool {
        self.twin.is_none() && self.hooks.is_empty()
    }

    /// `other` are the hooks of the half where nothing is replaced.
    pub(crate) fn reaching(channel: At, hooks: &'b mut Hooks<'h>, other: &'b mut Hooks<'h>) -> Self {
        Self { hooks, twin: (channel != At::Both).then_some((channel, other)) }
    }

    pub(super) fn advance(&mut self, stream: &mut Stream, pieces: &[Piece]) -> Result<()> {
        let latent = pieces.iter().any(|p| matches!(p.steps.first(), Some(Step::Latent { .. })));
        match &mut self.twin {
            Some((channel, other)) if latent => {
                // The same call twice over the same cache, then one half of each.
                let mut normal = stream.clone();
                normal.advance(pieces, other)?;
                stream.advance(pieces, self.hooks)?;
                match channel {
                    At::Kv => stream.take_last(&normal),
                    _ => stream.take_cache(normal),
                }
            }
            _ => {
                stream.advance(pieces, self.hooks)?;
            }
        }
        Ok(())
    }
}

/// Where a fork leaves the shared prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After the prompt.
    Prompt,
    /// Before the first `<swi>`; only rows that would emit one are there.
    Switch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fork {
    /// Which request of the prefix.
    pub request: usize,
    /// What hooks see as the row.
    pub id: usize,
    /// Names the randomness, as [`Request::rollout`].
    pub rollout: usize,
    pub switching: Switching,
    /// `<swi>` is emitted at this visible response position, regardless of the model; `None`: as in the prefix.
    pub force_at: Option<usize>,
}

/// Rows decoded as far as every continuation shares them. It borrows no model: each call names the one that it was made with.
pub(crate) struct Prefix {
    prompts: ParkedStream,
    starts: Vec<DecodingRow>,
    /// Rows held before their first block, as one batch.
    held: Option<ParkedStream>,
    rows: Vec<(DecodingRow, Option<usize>)>,
}

impl Prefix {
    /// Feeds the prompts and decodes every row up to its first `<swi>` (not emitted) or its end. `watch` names a token for
    /// each request whose lead over the others is recorded ([`FinishedRow::margins`]); `force_at` the visible position where it
    /// opens a block regardless of the model.
    ///
    /// # Errors
    /// As [`super::decode()`].
    pub fn new(
        decoding: Decode,
        requests: &[Request],
        watch: &[Option<u32>],
        force_at: &[Option<usize>],
    ) -> Result<Self> {
        ensure!(force_at.len() == requests.len(), "{} places for {} requests", force_at.len(), requests.len());
        let (prompts, mut starts) = Self::begun(decoding, requests, watch)?;
        starts.iter_mut().zip(force_at).filter(|(_, at)| at.is_some()).for_each(|(row, &at)| row.force_at = at);
        let mut holding = starts.clone();
        holding.iter_mut().for_each(|row| row.hold = true);
        let driven = drive(decoding, prompts.clone(), holding, &mut Branch::whole(&mut Hooks::none()))?;
        let mut parts = vec![];
        let mut rows = vec![];
        for (mut row, at) in driven {
            let at = at.map(|(stream, index)| {
                parts.push(stream.keep(&[index]));
                parts.len() - 1
            });
            (row.hold, row.held) = (false, false);
            rows.push((row, at));
        }
        let held = if parts.is_empty() { None } else { Some(Stream::join(&parts)?.parked()) };
        Ok(Self { prompts: prompts.parked(), starts, held, rows })
    }

    /// Feeds the prompts only: forks start there.
    ///
    /// # Errors
    /// As [`super::decode()`].
    pub fn prompts(decoding: Decode, requests: &[Request], watch: &[Option<u32>]) -> Result<Self> {
        let (prompts, starts) = Self::begun(decoding, requests, watch)?;
        Ok(Self { prompts: prompts.parked(), starts, held: None, rows: vec![] })
    }

    fn begun<'m>(
        decoding: Decode<'m>,
        requests: &[Request],
        watch: &[Option<u32>],
    ) -> Result<(Stream<'m>, Vec<DecodingRow>)> {
        ensure!(watch.len() == requests.len(), "{} watched tokens for {} requests", watch.len(), requests.len());
        let problems = requests.iter().map(|r| r.problem).collect();
        let prompts = prefill(decoding, requests, problems, &mut Hooks::none())?;
        let start = |(request, &watch): (&Request, &Option<u32>)| {
            let mut row = DecodingRow::new(request, request.rollout, decoding.settings.switching);
            row.watch = watch;
            row
        };
        Ok((prompts, requests.iter().zip(watch).map(start).collect()))
    }

    /// The row's whole decode, where it opens no block.
    pub fn ended(&self, request: usize) -> Option<FinishedRow> {
        let (row, at) = self.rows.get(request)?;
        at.is_none().then(|| row.clone().decoded())
    }

    /// Continues every fork in one batch, in their order.
    ///
    /// # Errors
    /// No fork, a fork from a block that its row does not open, and as [`super::decode()`].
    pub fn fork(
        &self,
        decoding: Decode,
        start: Start,
        forks: &[Fork],
        branch: &mut Branch,
    ) -> Result<Vec<FinishedRow>> {
        ensure!(!forks.is_empty(), "nothing to decode: no forks");
        let (mut from, mut rows) = (vec![], vec![]);
        for fork in forks {
            let row = match start {
                Start::Prompt => {
                    from.push(fork.request);
                    self.starts.get(fork.request)
                }
                Start::Switch => {
                    let (row, at) = self.rows.get(fork.request).context("a fork of no request")?;
                    from.push((*at).with_context(|| format!("request {} opens no block to fork from", fork.request))?);
                    Some(row)
                }
            };
            let mut row = row.context("a fork of no request")?.clone();
            row.trace.rollout = fork.rollout;
            row.switching = fork.switching;
            // A masked token cannot be forced.
            row.force_at = fork.force_at.or(row.force_at).filter(|_| fork.switching != Switching::Suppressed);
            rows.push(row);
        }
        let stream = match start {
            Start::Prompt => Some(&self.prompts),
            Start::Switch => self.held.as_ref(),
        };
        let stream = stream.context("no row opens a block")?.go_on(decoding.model, decoding.source).keep(&from);
        let stream = stream.renamed(forks.iter().map(|f| f.id).collect());
        Ok(continue_rows(decoding, stream, rows, branch)?.into_iter().map(DecodingRow::decoded).collect())
    }
}
