//! One decode, many continuations: prompts and the text before the first block are computed once and forked.
//!
//! A [`Prefix`] stores rows at two points: after their prompts, and before the decision that would open their first block.
//! [`Prefix::fork`] continues from either, each fork with its own switching rule and its own number, which hooks see as the row. Does not
//! know the purpose of forks.

use anyhow::{Context, Result, ensure};

use super::decode::{Decode, Request, Switching, continue_rows, drive, prefill};
use super::row::{DecodingRow, FinishedRow};
use super::stream::{ParkedStream, Piece, Stream};
use crate::model::{Hooks, Step};
use crate::schema::At;

/// The hooks of a decode and how far their replacements at latent positions reach.
pub(crate) struct Branch<'b, 'h> {
    pub hooks: &'b mut Hooks<'h>,
    /// For [`At::Embedding`] and [`At::Kv`]: the hooks of the half with the original input.
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

    /// `other`: the hooks of the half without replacements.
    pub(crate) fn reaching(channel: At, hooks: &'b mut Hooks<'h>, other: &'b mut Hooks<'h>) -> Self {
        Self { hooks, twin: (channel != At::Both).then_some((channel, other)) }
    }

    pub(super) fn advance(&mut self, stream: &mut Stream, pieces: &[Piece]) -> Result<()> {
        let latent = pieces.iter().any(|p| matches!(p.steps.first(), Some(Step::Latent { .. })));
        match &mut self.twin {
            Some((channel, other)) if latent => {
                // Two calls over the same cache; output from one, keys and values from the other.
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

/// Point at which a fork leaves the shared prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After the prompt.
    Prompt,
    /// Before the first `<swi>`, for rows that would emit one.
    Switch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fork {
    /// Index of the prefix's request.
    pub request: usize,
    /// The row for hooks.
    pub id: usize,
    /// Part of the random key, as [`Request::rollout`].
    pub rollout: usize,
    pub switching: Switching,
    /// `<swi>` is emitted at this visible response position, regardless of the model; `None`: as in the prefix.
    pub force_at: Option<usize>,
}

/// Rows decoded up to the point that all continuations share. It borrows no model: each call must pass the same one.
pub(crate) struct Prefix {
    prompts: ParkedStream,
    starts: Vec<DecodingRow>,
    /// Rows held before their first block, as one batch.
    held: Option<ParkedStream>,
    rows: Vec<(DecodingRow, Option<usize>)>,
}

impl Prefix {
    /// Feeds the prompts and decodes every row up to its first `<swi>` (not emitted) or its end. Per request, `watch` is a token whose margin
    /// over the others is recorded ([`FinishedRow::margins`]), `force_at` the visible position at which a block is forced open.
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

    /// The row's whole decode, if it opens no block.
    pub fn ended(&self, request: usize) -> Option<FinishedRow> {
        let (row, at) = self.rows.get(request)?;
        at.is_none().then(|| row.clone().decoded())
    }

    /// Continues every fork in one batch, in their order.
    ///
    /// # Errors
    /// No fork; a fork from a block that its row does not open; as [`super::decode()`].
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
