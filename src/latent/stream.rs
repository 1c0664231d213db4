//! The only place where a hidden state becomes an input.
//!
//! A [`Stream`] holds a batch of rows in progress: their cache, their last hidden state, their next position.
//! [`Stream::advance`] feeds each row a piece (at most one latent position, first, then text) in one call of the model;
//! who chooses the pieces (known rows, a sampler, an experiment) is the caller's business.

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::tensor::{Bool, Int, Tensor, TensorData};

use super::source::LatentSource;
use crate::model::{Decoder, HookPoint, Hooks, KvCache, PointKind, Span, Step};

/// What happens to the gradient at latent positions and between waves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gradient {
    /// Back-propagation through time: latents are ordinary nodes of the graph.
    #[default]
    Through,
    /// Latent positions run without gradient; text attends to their keys and values as constants, and to other text
    /// with gradient (replay mode `text_graph`).
    Frozen,
    /// As `Frozen`, and each wave sees everything before it as constants (replay mode `segmented`, the paper's).
    Segmented,
}

/// What one row is fed: token ids and their steps. Only the first may be latent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub ids: Vec<u32>,
    pub steps: Vec<Step>,
}

impl Piece {
    pub fn one(id: u32, step: Step) -> Self {
        Self { ids: vec![id], steps: vec![step] }
    }

    fn starts_latent(&self) -> bool {
        matches!(self.steps.first(), Some(Step::Latent { .. }))
    }
}

/// Hidden states of one advance.
#[derive(Clone, Debug)]
pub(crate) struct Wave {
    /// After the final norm, `[B, w, D]`; padding holds garbage.
    pub hidden: Tensor<3>,
    /// Per row: the position in the row of each column, `None` at padding.
    pub columns: Vec<Vec<Option<usize>>>,
}

/// A batch of rows in progress.
#[derive(Clone)]
pub(crate) struct Stream<'m> {
    model: &'m Decoder,
    /// The same weights outside autodiff, for latents without gradient.
    frozen: Option<Decoder>,
    source: &'m dyn LatentSource,
    gradient: Gradient,
    cache: KvCache,
    /// Problem or sample of each row.
    rows: Vec<usize>,
    next: Vec<usize>,
    /// Hidden state at each row's last position, `[B, D]`.
    last: Option<Tensor<2>>,
}

/// A stream of [`Gradient::Through`] that is kept without its model.
pub(super) struct ParkedStream {
    cache: KvCache,
    rows: Vec<usize>,
    next: Vec<usize>,
    last: Option<Tensor<2>>,
}

impl ParkedStream {
    /// These rows, to be fed by the model that fed them before.
    pub fn go_on<'m>(&self, model: &'m Decoder, source: &'m dyn LatentSource) -> Stream<'m> {
        let Self { cache, rows, next, last } = self;
        let (rows, next) = (rows.clone(), next.clone());
        Stream::begun(model, source, (rows, next), (cache.clone(), last.clone()))
    }
}

impl<'m> Stream<'m> {
    /// Positions that each row has been fed.
    pub(super) fn fed(&self) -> &[usize] {
        &self.next
    }

    /// A stream of [`Gradient::Through`] whose rows have been fed so many positions, with what it would hold then.
    pub(crate) fn begun(
        model: &'m Decoder,
        source: &'m dyn LatentSource,
        (rows, next): (Vec<usize>, Vec<usize>),
        (cache, last): (KvCache, Option<Tensor<2>>),
    ) -> Self {
        Self { model, frozen: None, source, gradient: Gradient::Through, cache, rows, next, last }
    }

    pub(super) fn parked(self) -> ParkedStream {
        let Self { cache, rows, next, last, .. } = self;
        ParkedStream { cache, rows, next, last }
    }

    pub fn new(model: &'m Decoder, source: &'m dyn LatentSource, gradient: Gradient, rows: Vec<usize>) -> Self {
        let frozen = (gradient != Gradient::Through).then(|| model.valid());
        let cache = model.cache(rows.len());
        Self { model, frozen, source, gradient, cache, next: vec![0; rows.len()], rows, last: None }
    }

    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Hidden state at each row's last position, `[B, D]`; `None` before the first advance.
    pub fn last(&self) -> Option<&Tensor<2>> {
        self.last.as_ref()
    }

    /// The named rows, in that order; a row may be named more than once (a fork).
    #[must_use]
    pub fn keep(&self, rows: &[usize]) -> Self {
        let pick = |from: &[usize]| rows.iter().map(|&r| from[r]).collect();
        let last = self.last.as_ref().map(|last| last.clone().select(0, indices(rows, &last.device())));
        Self { cache: self.cache.keep(rows), rows: pick(&self.rows), next: pick(&self.next), last, ..self.clone() }
    }

    /// These rows under other names: what hooks see.
    #[must_use]
    pub(super) fn renamed(self, rows: Vec<usize>) -> Self {
        Self { rows, ..self }
    }

    /// The rows of several streams over one model as one batch, in their order.
    ///
    /// # Errors
    /// No streams, or one that was never fed.
    pub(super) fn join(parts: &[Self]) -> Result<Self> {
        let Some(first) = parts.first() else { anyhow::bail!("no streams to join") };
        let mut last = vec![];
        for part in parts {
            let Some(state) = part.last.clone() else { anyhow::bail!("a stream that was never fed cannot be joined") };
            last.push(state);
        }
        let cache = KvCache::join(&parts.iter().map(|part| &part.cache).collect::<Vec<_>>());
        let rows = parts.iter().flat_map(|part| part.rows.clone()).collect();
        let next = parts.iter().flat_map(|part| part.next.clone()).collect();
        Ok(Self { cache, rows, next, last: Some(Tensor::cat(last, 0)), ..first.clone() })
    }

    /// The last hidden states of a stream that was fed the same pieces.
    pub(super) fn take_last(&mut self, other: &Self) {
        self.last.clone_from(&other.last);
    }

    /// The keys and values of a stream that was fed the same pieces.
    pub(super) fn take_cache(&mut self, other: Self) {
        self.cache = other.cache;
    }

    /// Logits at each row's last position, `[B, V]`, with `boundary.hook_logits`. `steps` says what those positions are.
    ///
    /// # Errors
    /// Before the first advance, and whatever a hook returns.
    pub fn logits(&self, steps: &[Option<Step>], hooks: &mut Hooks) -> Result<Tensor<2>> {
        let logits: Tensor<3> = self.plain_logits()?.unsqueeze_dim(1);
        let span = Span {
            rows: self.rows.clone(),
            positions: self.next.iter().map(|&n| vec![n.saturating_sub(1)]).collect(),
            steps: steps.iter().map(|&s| vec![s]).collect(),
        };
        Ok(hooks.apply(HookPoint::new(PointKind::BoundaryLogits), &span, logits)?.squeeze_dim(1))
    }

    /// Next-token logits without hooks, for a caller that does not know what the positions are.
    ///
    /// # Errors
    /// Before the first advance.
    pub(super) fn plain_logits(&self) -> Result<Tensor<2>> {
        let Some(last) = self.last.clone() else {
            anyhow::bail!("logits before the first advance: feed the prompt first");
        };
        Ok(self.model.unembed(last.unsqueeze_dim(1)).squeeze_dim(1))
    }

    /// Feeds every row one position without hooks: the embedding `[B, D]`, or the recurrence's input where `latent` `[B, 1]`.
    ///
    /// # Errors
    /// Before the first advance, and whatever the source or the model returns.
    pub(super) fn feed(&mut self, text: Tensor<2>, latent: Tensor<2, Bool>) -> Result<()> {
        let Some(last) = self.last.take() else {
            anyhow::bail!("a position before any text: feed the prompt first");
        };
        // Which of the two a row is fed only the device knows: to hooks, of which there are none, and to the cache it is the same.
        let span = Span {
            rows: self.rows.clone(),
            positions: self.next.iter().map(|&n| vec![n]).collect(),
            steps: vec![vec![Some(Step::Latent { block: 0, step: 0 })]; self.rows.len()],
        };
        let input = self.source.inject(last.unsqueeze_dim(1), &span, self.model)?.squeeze_dim::<2>(1);
        let dims = text.dims();
        let x = text.mask_where(latent.expand(dims), input).unsqueeze_dim(1);
        let hidden = self.model.hidden(x, &span, &mut self.cache, &mut Hooks::none())?;
        self.last = Some(hidden.squeeze_dim(1));
        self.next.iter_mut().for_each(|next| *next += 1);
        Ok(())
    }

    /// Feeds every row its piece (possibly empty) in one call; returns the hidden states.
    ///
    /// # Errors
    /// Nothing to feed, a latent position that is not the first of its piece, a latent before any text, and whatever
    /// the model or a hook returns.
    pub(crate) fn advance(&mut self, pieces: &[Piece], hooks: &mut Hooks) -> Result<Wave> {
        ensure!(pieces.len() == self.rows.len(), "{} pieces for {} rows", pieces.len(), self.rows.len());
        for (row, piece) in pieces.iter().enumerate() {
            ensure!(
                piece.ids.len() == piece.steps.len(),
                "row {row}: {} ids, {} steps",
                piece.ids.len(),
                piece.steps.len()
            );
            let inner = piece.steps.iter().skip(1).any(|s| matches!(s, Step::Latent { .. }));
            ensure!(!inner, "row {row}: a latent position must be the first of its piece");
        }
        let width = pieces.iter().map(|p| p.ids.len()).max().unwrap_or(0);
        ensure!(width > 0, "nothing to feed: every piece is empty");

        let any_latent = pieces.iter().any(Piece::starts_latent);
        if self.gradient == Gradient::Segmented {
            self.cache = self.cache.detach();
        }
        if any_latent && self.gradient != Gradient::Through {
            return self.advance_frozen(pieces, hooks);
        }
        let wave = self.run(pieces, hooks)?;
        self.remember(&wave, pieces);
        Ok(wave)
    }

    /// Latents first, without gradient; then the text of all rows, with gradient.
    fn advance_frozen(&mut self, pieces: &[Piece], hooks: &mut Hooks) -> Result<Wave> {
        let head = |p: &Piece| if p.starts_latent() { Piece::one(p.ids[0], p.steps[0]) } else { Piece::default() };
        let tail = |p: &Piece| {
            let from = usize::from(p.starts_latent());
            Piece { ids: p.ids[from..].to_vec(), steps: p.steps[from..].to_vec() }
        };
        let (heads, tails): (Vec<_>, Vec<_>) = pieces.iter().map(|p| (head(p), tail(p))).unzip();

        let mut plain = self.plain();
        let latent = plain.run(&heads, hooks)?;
        plain.remember(&latent, &heads);
        let (constants, last, next) = (plain.cache, plain.last, plain.next);
        self.cache.extend_from(&constants, 1);
        self.last = last;
        self.next = next;
        if tails.iter().all(|p| p.ids.is_empty()) {
            return Ok(latent);
        }
        let text = self.run(&tails, hooks)?;
        self.remember(&text, &tails);
        let columns = latent.columns.iter().zip(&text.columns).map(|(a, b)| [a.clone(), b.clone()].concat());
        Ok(Wave { columns: columns.collect(), hidden: Tensor::cat(vec![latent.hidden, text.hidden], 1) })
    }

    /// This stream outside autodiff.
    fn plain(&self) -> Stream<'_> {
        Stream {
            model: self.frozen.as_ref().unwrap_or(self.model),
            frozen: None,
            source: self.source,
            gradient: Gradient::Through,
            cache: self.cache.without_autodiff(),
            rows: self.rows.clone(),
            next: self.next.clone(),
            last: self.last.clone().map(Tensor::without_autodiff),
        }
    }

    fn run(&mut self, pieces: &[Piece], hooks: &mut Hooks) -> Result<Wave> {
        let width = pieces.iter().map(|p| p.ids.len()).max().unwrap_or(0);
        let span = self.span(pieces, width);
        let ids: Vec<Vec<u32>> =
            pieces.iter().map(|p| p.ids.iter().copied().chain(std::iter::repeat(0)).take(width).collect()).collect();
        let latent: Vec<bool> = pieces.iter().map(Piece::starts_latent).collect();
        // A latent's token is a placeholder that may lie outside the table: it is never looked up.
        let lookup: Vec<Vec<u32>> = ids
            .iter()
            .zip(&latent)
            .map(|(row, &is)| row.iter().enumerate().map(|(i, &id)| if is && i == 0 { 0 } else { id }).collect())
            .collect();
        let mut x = self.model.embed(&lookup)?;
        if latent.contains(&true) {
            let first = self.inject(&span, &latent, x.clone().narrow(1, 0, 1), hooks)?;
            x = if width == 1 { first } else { Tensor::cat(vec![first, x.narrow(1, 1, width - 1)], 1) };
        }
        let hidden = self.model.hidden(x, &span, &mut self.cache, hooks)?;
        let columns = span.steps.iter().zip(&span.positions);
        let columns = columns.map(|(steps, at)| steps.iter().zip(at).map(|(s, &p)| s.map(|_| p)).collect()).collect();
        Ok(Wave { hidden, columns })
    }

    /// First column `[B, 1, D]`, with the recurrence's input in the rows that begin with a latent.
    fn inject(&self, span: &Span, latent: &[bool], text: Tensor<3>, hooks: &mut Hooks) -> Result<Tensor<3>> {
        let Some(last) = self.last.clone() else {
            anyhow::bail!("a latent position before any text: there is no hidden state to read");
        };
        let steps = span.steps.iter().zip(latent).map(|(s, &is)| vec![if is { s[0] } else { None }]);
        let site = Span {
            rows: span.rows.clone(),
            positions: span.positions.iter().map(|p| vec![p[0]]).collect(),
            steps: steps.collect(),
        };
        let h = hooks.apply(HookPoint::new(PointKind::LatentSource), &site, last.unsqueeze_dim(1))?;
        let input = self.source.inject(h, &site, self.model)?;
        let input = hooks.apply(HookPoint::new(PointKind::LatentInjected), &site, input)?;
        if latent.iter().all(|&is| is) {
            return Ok(input);
        }
        let dims = text.dims();
        let mask = Tensor::<1, Bool>::from_data(TensorData::new(latent.to_vec(), [dims[0]]), &text.device());
        Ok(text.mask_where(mask.reshape([dims[0], 1, 1]).expand(dims), input))
    }

    fn span(&self, pieces: &[Piece], width: usize) -> Span {
        Span {
            rows: self.rows.clone(),
            positions: self.next.iter().map(|&n| (n..n + width).collect()).collect(),
            steps: pieces
                .iter()
                .map(|p| p.steps.iter().copied().map(Some).chain(std::iter::repeat(None)).take(width).collect())
                .collect(),
        }
    }

    fn remember(&mut self, wave: &Wave, pieces: &[Piece]) {
        let [b, w, d] = wave.hidden.dims();
        let flat = wave.hidden.clone().reshape([b * w, d]);
        let mut from: Vec<usize> = vec![];
        for (row, piece) in pieces.iter().enumerate() {
            // An empty piece keeps the row's old state, found behind the new ones.
            from.push(if piece.ids.is_empty() { b * w + row } else { row * w + piece.ids.len() - 1 });
            self.next[row] += piece.ids.len();
        }
        let index = indices(&from, &flat.device());
        self.last = Some(match self.last.take() {
            Some(old) => Tensor::cat(vec![flat, old], 0).select(0, index),
            None => {
                let empty = Tensor::zeros([b, d], (&flat.device(), flat.dtype()));
                Tensor::cat(vec![flat, empty], 0).select(0, index)
            }
        });
    }
}

fn indices(rows: &[usize], device: &burn::tensor::Device) -> Tensor<1, Int> {
    let data: Vec<i64> = rows.iter().map(|&r| r as i64).collect();
    Tensor::from_data(TensorData::new(data, [rows.len()]), device)
}
