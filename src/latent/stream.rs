//! The only place where a hidden state becomes an input.
//!
//! A [`Stream`] is a batch of sequences in progress: their cache, their last hidden state, their next position.
//! [`Stream::advance`] feeds each row a piece (at most one latent position, first, then text) in one call of the model or, if computed
//! states are mixed into text, one call per such token. The caller chooses the pieces (known sequences, a sampler, an experiment).

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::{Bool, Tensor, TensorData};

use super::hybrid::Mixing;
use super::source::LatentSource;
use crate::model::hooks::rows_of;
use crate::model::{Decoder, HookPoint, Hooks, KvCache, PointKind, Span, Step, heads};

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

/// Input of one row: token ids and their steps. Only the first may be latent.
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
    /// After the final norm, `[B, w, D]`; undefined at padding.
    pub hidden: Tensor<3>,
    /// Per row: the position of each column in the row, `None` at padding.
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
    /// Whether each row still thinks: only then are states mixed into its text.
    thinking: Vec<bool>,
    /// Hidden state at each row's last position, `[B, D]`.
    last: Option<Tensor<2>>,
}

/// A stream of [`Gradient::Through`] that is stored without its model.
pub(super) struct ParkedStream {
    cache: KvCache,
    rows: Vec<usize>,
    next: Vec<usize>,
    thinking: Vec<bool>,
    last: Option<Tensor<2>>,
}

impl ParkedStream {
    /// Resumes the rows; `model` must be the one that fed them before.
    pub fn go_on<'m>(&self, model: &'m Decoder, source: &'m dyn LatentSource) -> Stream<'m> {
        let Self { cache, rows, next, thinking, last } = self;
        let begun = Stream::begun(model, source, (rows.clone(), next.clone()), (cache.clone(), last.clone()));
        Stream { thinking: thinking.clone(), ..begun }
    }
}

impl<'m> Stream<'m> {
    /// Positions that each row has been fed.
    pub(super) fn fed(&self) -> &[usize] {
        &self.next
    }

    /// A stream of [`Gradient::Through`] at these positions, with cache and states. If states are mixed into text, [`Self::remembering`] sets
    /// which rows still think.
    pub(crate) fn begun(
        model: &'m Decoder,
        source: &'m dyn LatentSource,
        (rows, next): (Vec<usize>, Vec<usize>),
        (cache, last): (KvCache, Option<Tensor<2>>),
    ) -> Self {
        let thinking = vec![true; rows.len()];
        Self { model, frozen: None, source, gradient: Gradient::Through, cache, rows, next, thinking, last }
    }

    /// Restores which rows still think after these pieces, one per row.
    pub(super) fn remembering(mut self, fed: &[Piece]) -> Self {
        self.update_thinking(fed);
        self
    }

    pub(super) fn parked(self) -> ParkedStream {
        let Self { cache, rows, next, thinking, last, .. } = self;
        ParkedStream { cache, rows, next, thinking, last }
    }

    pub fn new(model: &'m Decoder, source: &'m dyn LatentSource, gradient: Gradient, rows: Vec<usize>) -> Self {
        let frozen = (gradient != Gradient::Through).then(|| model.valid());
        let cache = model.cache(rows.len());
        let (next, thinking) = (vec![0; rows.len()], vec![true; rows.len()]);
        Self { model, frozen, source, gradient, cache, rows, next, thinking, last: None }
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

    /// Selects rows by index, in that order; an index may repeat (a fork).
    #[must_use]
    pub fn keep(&self, rows: &[usize]) -> Self {
        let pick = |from: &[usize]| rows.iter().map(|&r| from[r]).collect();
        let last = self.last.as_ref().map(|last| rows_of(last, rows));
        let (cache, thinking) = (self.cache.keep(rows), rows.iter().map(|&r| self.thinking[r]).collect());
        Self { cache, rows: pick(&self.rows), next: pick(&self.next), thinking, last, ..self.clone() }
    }

    /// Renames the rows for hooks.
    #[must_use]
    pub(super) fn renamed(self, rows: Vec<usize>) -> Self {
        Self { rows, ..self }
    }

    /// The rows of several streams over one model as one batch, in their order.
    ///
    /// # Errors
    /// No streams, or one that was never fed.
    pub(super) fn join(parts: &[Self]) -> Result<Self> {
        let first = parts.first().context("no streams to join")?;
        let last = |part: &Self| part.last.clone().context("a stream that was never fed cannot be joined");
        let last = parts.iter().map(last).collect::<Result<Vec<_>>>()?;
        let cache = KvCache::join(&parts.iter().map(|part| &part.cache).collect::<Vec<_>>());
        let rows = parts.iter().flat_map(|part| part.rows.clone()).collect();
        let next = parts.iter().flat_map(|part| part.next.clone()).collect();
        let thinking = parts.iter().flat_map(|part| part.thinking.clone()).collect();
        Ok(Self { cache, rows, next, thinking, last: Some(Tensor::cat(last, 0)), ..first.clone() })
    }

    /// Takes the last hidden states of a stream that was fed the same pieces.
    pub(super) fn take_last(&mut self, other: &Self) {
        self.last.clone_from(&other.last);
    }

    /// Takes the keys and values of a stream that was fed the same pieces.
    pub(super) fn take_cache(&mut self, other: Self) {
        self.cache = other.cache;
    }

    /// Logits at each row's last position, `[B, V]`, with `boundary.hook_logits`. `steps`: the kinds of those positions.
    ///
    /// # Errors
    /// A call before the first advance; errors of hooks.
    pub fn logits(&self, steps: &[Option<Step>], hooks: &mut Hooks) -> Result<Tensor<2>> {
        let logits: Tensor<3> = self.plain_logits()?.unsqueeze_dim(1);
        let span = Span {
            rows: self.rows.clone(),
            positions: self.next.iter().map(|&n| vec![n.saturating_sub(1)]).collect(),
            steps: steps.iter().map(|&s| vec![s]).collect(),
        };
        Ok(hooks.apply(HookPoint::new(PointKind::BoundaryLogits), &span, logits)?.squeeze_dim(1))
    }

    /// Next-token logits without hooks, for a caller that does not know the kinds of the positions.
    ///
    /// # Errors
    /// A call before the first advance.
    pub(super) fn plain_logits(&self) -> Result<Tensor<2>> {
        let last = self.last.clone().context("logits before the first advance: feed the prompt first")?;
        Ok(self.model.unembed(last.unsqueeze_dim(1)).squeeze_dim(1))
    }

    /// Feeds every row one position without hooks: the embedding `[B, D]`, or the recurrence's input where `latent` `[B, 1]`.
    ///
    /// # Errors
    /// A call before the first advance; errors of the source or the model.
    pub(super) fn feed(&mut self, text: Tensor<2>, latent: Tensor<2, Bool>) -> Result<()> {
        let last = self.last.take().context("a position before any text: feed the prompt first")?;
        // Only the device knows which of the two a row is fed. There are no hooks, and the cache is the same.
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

    /// Feeds every row its piece (possibly empty); returns the hidden states.
    ///
    /// # Errors
    /// Nothing to feed; a latent position that is not the first of its piece; a latent before any text; errors of the model and of hooks.
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
        if let Some(mixing) = self.source.mixing().filter(|mixing| !mixing.is_known()) {
            return self.advance_mixed(pieces, mixing, hooks);
        }
        let wave = self.run(pieces, hooks)?;
        self.remember(&wave, pieces);
        Ok(wave)
    }

    /// Advances token by token where states are mixed in, because each state is computed at the previous token.
    fn advance_mixed(&mut self, pieces: &[Piece], mixing: &dyn Mixing, hooks: &mut Hooks) -> Result<Wave> {
        let mut cuts: Vec<Vec<usize>> = vec![];
        for mixed in self.mixed_positions(mixing, pieces, 0) {
            let inner = (1..mixed.len()).filter(|&at| mixed[at]);
            cuts.push([0].into_iter().chain(inner).chain([mixed.len()]).collect());
        }
        let calls = cuts.iter().map(|cuts| cuts.len() - 1).max().unwrap_or(0);
        let mut waves = vec![];
        for call in 0..calls {
            let part = |(piece, cuts): (&Piece, &Vec<usize>)| match cuts.get(call..call + 2) {
                Some(&[from, until]) => {
                    Piece { ids: piece.ids[from..until].to_vec(), steps: piece.steps[from..until].to_vec() }
                }
                _ => Piece::default(),
            };
            let parts: Vec<Piece> = pieces.iter().zip(&cuts).map(part).collect();
            let wave = self.run(&parts, hooks)?;
            self.remember(&wave, &parts);
            waves.push(wave);
        }
        let columns = |row: usize| waves.iter().flat_map(|wave| wave.columns[row].clone()).collect();
        let columns = (0..pieces.len()).map(columns).collect();
        Ok(Wave { columns, hidden: Tensor::cat(waves.into_iter().map(|wave| wave.hidden).collect(), 1) })
    }

    /// Positions where a state is mixed into the input, `[B][w]`; rows are at least `width` long.
    fn mixed_positions(&self, mixing: &dyn Mixing, pieces: &[Piece], width: usize) -> Vec<Vec<bool>> {
        let mark = |(piece, &thinking): (&Piece, &bool)| {
            let mut thinking = thinking;
            let mut mixed = |(&id, step): (&u32, &Step)| {
                let is_text = matches!(step, Step::Text(_));
                thinking &= !(is_text && id == mixing.end());
                thinking && is_text
            };
            let mut row: Vec<bool> = piece.ids.iter().zip(&piece.steps).map(&mut mixed).collect();
            row.resize(row.len().max(width), false);
            row
        };
        pieces.iter().zip(&self.thinking).map(mark).collect()
    }

    /// Embeddings `[B, w, D]` with states mixed in at the positions of `mixed`.
    fn mix(&self, mixing: &dyn Mixing, x: Tensor<3>, span: &Span, mixed: &[Vec<bool>]) -> Result<Tensor<3>> {
        let gate = self.model.heads.gate.as_ref();
        let gate = gate.with_context(|| format!("the source `hybrid` needs a gate that is not in {}", heads::FILE))?;
        let [b, w, d] = x.dims();
        let n = if mixing.is_known() { w } else { 1 };
        let site = Span {
            rows: span.rows.clone(),
            positions: span.positions.iter().map(|p| p[..n].to_vec()).collect(),
            steps: span.steps.iter().map(|s| s[..n].to_vec()).collect(),
        };
        let mixed: Vec<Vec<bool>> = mixed.iter().map(|row| row[..n].to_vec()).collect();
        let e = x.clone().narrow(1, 0, n);
        let last = self.last.clone().map(|last| last.unsqueeze_dim(1));
        let states = mixing.states(last, &site, &mixed, self.model)?.cast(e.dtype());
        let (input, a) = gate.forward(e.clone(), states.clone());
        mixing.saw(&states, &a, &site, &mixed)?;
        let mask = Tensor::<2, Bool>::from_data(TensorData::new(mixed.concat(), [b, n]), &e.device());
        let first = e.mask_where(mask.reshape([b, n, 1]).expand([b, n, d]), input);
        Ok(if n == w { first } else { Tensor::cat(vec![first, x.narrow(1, n, w - n)], 1) })
    }

    /// Updates which rows still think after these pieces.
    fn update_thinking(&mut self, pieces: &[Piece]) {
        let Some(mixing) = self.source.mixing() else { return };
        for (thinking, piece) in self.thinking.iter_mut().zip(pieces) {
            let ends = |(id, step): (&u32, &Step)| matches!(step, Step::Text(_)) && *id == mixing.end();
            *thinking &= !piece.ids.iter().zip(&piece.steps).any(ends);
        }
    }

    /// Latents first, without gradient; then the text of all rows, with gradient.
    fn advance_frozen(&mut self, pieces: &[Piece], hooks: &mut Hooks) -> Result<Wave> {
        let head = |p: &Piece| if p.starts_latent() { Piece::one(p.ids[0], p.steps[0]) } else { Piece::default() };
        let tail = |p: &Piece| {
            let from = usize::from(p.starts_latent());
            Piece { ids: p.ids[from..].to_vec(), steps: p.steps[from..].to_vec() }
        };
        let (heads, tails): (Vec<_>, Vec<_>) = pieces.iter().map(|p| (head(p), tail(p))).unzip();

        let mut plain = self.without_autodiff();
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
    fn without_autodiff(&self) -> Stream<'_> {
        Stream {
            model: self.frozen.as_ref().unwrap_or(self.model),
            frozen: None,
            source: self.source,
            gradient: Gradient::Through,
            cache: self.cache.without_autodiff(),
            rows: self.rows.clone(),
            next: self.next.clone(),
            thinking: self.thinking.clone(),
            last: self.last.clone().map(Tensor::without_autodiff),
        }
    }

    fn run(&mut self, pieces: &[Piece], hooks: &mut Hooks) -> Result<Wave> {
        let width = pieces.iter().map(|p| p.ids.len()).max().unwrap_or(0);
        let span = self.span(pieces, width);
        let latent: Vec<bool> = pieces.iter().map(Piece::starts_latent).collect();
        let mut ids: Vec<Vec<u32>> = pieces.iter().map(|p| p.ids.clone()).collect();
        for (row, &starts_latent) in ids.iter_mut().zip(&latent) {
            row.resize(width, 0);
            if starts_latent {
                // A placeholder that may lie outside the table.
                row[0] = 0;
            }
        }
        let mut x = self.model.embed(&ids)?;
        if let Some(mixing) = self.source.mixing() {
            let mixed = self.mixed_positions(mixing, pieces, width);
            if mixed.iter().flatten().any(|mixed| *mixed) {
                x = self.mix(mixing, x, &span, &mixed)?;
            }
        }
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
        let last = self.last.clone().context("a latent position before any text has no hidden state to read")?;
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
        self.update_thinking(pieces);
        let [b, w, d] = wave.hidden.dims();
        let flat = wave.hidden.clone().reshape([b * w, d]);
        let mut from: Vec<usize> = vec![];
        for (row, piece) in pieces.iter().enumerate() {
            // The old states, for rows with an empty piece, come after the new ones.
            from.push(if piece.ids.is_empty() { b * w + row } else { row * w + piece.ids.len() - 1 });
            self.next[row] += piece.ids.len();
        }
        let old = self.last.take().unwrap_or_else(|| Tensor::zeros([b, d], (&flat.device(), flat.dtype())));
        self.last = Some(rows_of(&Tensor::cat(vec![flat, old], 0), &from));
    }
}
