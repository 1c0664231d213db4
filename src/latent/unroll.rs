//! Known sequences → hidden states and logits of every position, wave by wave.
//!
//! Each row has a cursor. A wave runs every row from its cursor up to its own next latent position, so that a batch
//! costs `1 + max latents` calls, for any mix of text and latents and however many blocks a row has.

use anyhow::{Context, Result, ensure};
use burn::tensor::Tensor;

use super::sequence::Sequence;
use super::source::LatentSource;
use super::stream::{Gradient, Piece, Stream, Wave};
use crate::model::hooks::rows_of;
use crate::model::{Decoder, Hooks, KvCache};

/// A pass over known sequences, wave by wave. Each [`Waves::next_wave`] is one call of the model (two if latents run without gradient).
pub(crate) struct Waves<'m> {
    stream: Stream<'m>,
    sequences: &'m [Sequence],
    cursors: Vec<usize>,
    /// Number of remaining waves.
    left: usize,
}

/// State of a pass between two waves.
pub(super) struct Bound {
    /// Positions that each row has been fed.
    fed: Vec<usize>,
    /// Number of cache slots.
    pub width: usize,
    /// Hidden state at each row's last position, `[B, D]`; `None` at the beginning.
    pub last: Option<Tensor<2>>,
}

impl<'m> Waves<'m> {
    /// # Errors
    /// No sequences; one that is longer than the model's context.
    pub fn new(
        model: &'m Decoder,
        sequences: &'m [Sequence],
        source: &'m dyn LatentSource,
        gradient: Gradient,
    ) -> Result<Self> {
        ensure!(!sequences.is_empty(), "nothing to unroll: no sequences");
        for sequence in sequences {
            model.config().ensure_context(sequence.ids.len(), || format!("row {}", sequence.row))?;
        }
        let rows = sequences.iter().map(|s| s.row).collect();
        let stream = Stream::new(model, source, gradient, rows);
        Ok(Self { stream, sequences, cursors: vec![0; sequences.len()], left: usize::MAX })
    }

    pub(super) fn bound(&self) -> Bound {
        let (fed, last) = (self.stream.fed().to_vec(), self.stream.last().cloned());
        Bound { fed, width: self.stream.cache().width(), last }
    }

    /// A pass over some waves from a bound on, with the keys, values and last states there.
    pub(super) fn from(
        model: &'m Decoder,
        sequences: &'m [Sequence],
        source: &'m dyn LatentSource,
        Bound { fed, .. }: Bound,
        states: (KvCache, Option<Tensor<2>>),
        left: usize,
    ) -> Self {
        let rows = sequences.iter().map(|s| s.row).collect();
        let (cache, last) = states;
        let cache = if cache.width() == 0 { model.cache(sequences.len()) } else { cache };
        let before = |(s, &n): (&Sequence, &usize)| Piece { ids: s.ids[..n].to_vec(), steps: s.steps[..n].to_vec() };
        let pieces: Vec<Piece> = sequences.iter().zip(&fed).map(before).collect();
        let stream = Stream::begun(model, source, (rows, fed.clone()), (cache, last)).remembering(&pieces);
        Self { stream, sequences, cursors: fed, left }
    }

    /// Total number of waves.
    pub(super) fn count(&self) -> usize {
        let latents = |s: &Sequence| (1..s.ids.len()).filter(|&p| s.is_latent(p)).count();
        self.sequences.iter().map(|s| 1 + latents(s)).max().unwrap_or(0)
    }

    /// The next wave; `None` at the end of all rows.
    pub(crate) fn next_wave(&mut self, hooks: &mut Hooks) -> Result<Option<Wave>> {
        let pieces: Vec<Piece> =
            self.sequences.iter().zip(&self.cursors).map(|(s, &from)| piece_from(s, from)).collect();
        if self.left == 0 || pieces.iter().all(|p| p.ids.is_empty()) {
            return Ok(None);
        }
        self.left -= 1;
        for (cursor, piece) in self.cursors.iter_mut().zip(&pieces) {
            *cursor += piece.ids.len();
        }
        self.stream.advance(&pieces, hooks).map(Some)
    }

    pub(crate) fn into_stream(self) -> Stream<'m> {
        self.stream
    }
}

/// The piece from `from` up to the next latent position.
fn piece_from(sequence: &Sequence, from: usize) -> Piece {
    let len = sequence.ids.len();
    let until = (from + 1..len).find(|&p| sequence.is_latent(p)).unwrap_or(len).max(from);
    Piece { ids: sequence.ids[from..until].to_vec(), steps: sequence.steps[from..until].to_vec() }
}

/// All hidden states of an unrolled batch.
#[derive(Clone, Debug)]
pub struct UnrolledStates {
    /// After the final norm: `[N, D]`, in the order of the waves.
    flat: Tensor<2>,
    /// `[B][position]` → row of `flat`.
    index: Vec<Vec<usize>>,
}

impl UnrolledStates {
    /// Hidden states at `(row of the batch, position)`, `[n, D]`.
    ///
    /// # Errors
    /// A position outside the batch.
    pub fn hidden_at(&self, places: &[(usize, usize)]) -> Result<Tensor<2>> {
        let row = |&(b, position): &(usize, usize)| {
            let row = self.index.get(b).and_then(|row| row.get(position)).copied();
            row.with_context(|| format!("no hidden state at row {b}, position {position}"))
        };
        let rows = places.iter().map(row).collect::<Result<Vec<_>>>()?;
        Ok(rows_of(&self.flat, &rows))
    }

    /// Hidden states of every position, `[B, L, D]`, rows shorter than `L` padded on the right with their last state.
    pub fn hidden(&self) -> Result<Tensor<3>> {
        let width = self.index.iter().map(Vec::len).max().unwrap_or(0);
        let places: Vec<(usize, usize)> = self
            .index
            .iter()
            .enumerate()
            .flat_map(|(b, row)| (0..width).map(move |p| (b, p.min(row.len() - 1))))
            .collect();
        let d = self.flat.dims()[1];
        Ok(self.hidden_at(&places)?.reshape([self.index.len(), width, d]))
    }
}

/// Runs known sequences to the end: hidden states at every position of every row.
pub fn unroll(
    model: &Decoder,
    sequences: &[Sequence],
    source: &dyn LatentSource,
    gradient: Gradient,
    hooks: &mut Hooks,
) -> Result<UnrolledStates> {
    let mut waves = Waves::new(model, sequences, source, gradient)?;
    let mut index: Vec<Vec<usize>> = sequences.iter().map(|s| vec![0; s.ids.len()]).collect();
    let mut parts = vec![];
    let mut offset = 0;
    while let Some(wave) = waves.next_wave(hooks)? {
        let [b, w, d] = wave.hidden.dims();
        for (row, columns) in wave.columns.iter().enumerate() {
            for (column, position) in columns.iter().enumerate() {
                if let Some(position) = position {
                    index[row][*position] = offset + row * w + column;
                }
            }
        }
        offset += b * w;
        parts.push(wave.hidden.reshape([b * w, d]));
    }
    Ok(UnrolledStates { flat: Tensor::cat(parts, 0), index })
}
