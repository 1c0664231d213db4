//! Runs in which a state at one latent becomes that of another row, as a whole or within a subspace (interchange interventions;
//! Geiger et al. 2024, distributed alignment search). Knows rows and states, not what they hold.
//!
//! What stands before the place is computed once, outside autodiff; a subspace that takes a gradient gets it through the rest of the
//! row, later latents included.

use std::cell::Cell;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Tensor, TensorData};

use super::readout::logits;
use crate::latent::{Gradient, Piece, Sequence, Stream};
use crate::model::hooks::Site;
use crate::model::{Activation, HookPoint, HookSpec, Hooks};
use crate::ops::matmul;
use crate::study::Study;

/// Rows that run at once where no gradient is kept.
const ROWS: usize = 128;

/// What of a state is exchanged.
#[derive(Clone)]
pub(crate) enum Within {
    /// All of it.
    Whole,
    /// Its part in the span of these orthonormal columns, `[D, r]` in the model's float type: `h + R Rᵀ (h′ − h)`.
    Span(Box<Tensor<2>>),
}

/// Rows up to the position that decides their answer, ready to be continued from one latent of each.
pub(crate) struct Interchange<'a> {
    study: &'a Study,
    rows: Vec<&'a Sequence>,
    /// The position of each row's exchanged state.
    at: Vec<usize>,
    before: Stream<'a>,
}

/// The row, and the state `[D]` that it is given.
pub(crate) type GivenState<'s> = (usize, &'s [f32]);

impl<'a> Interchange<'a> {
    /// # Errors
    /// No rows, a place that is no latent of its row, and as the model's.
    pub fn new(study: &'a Study, places: &[(&'a Sequence, usize)]) -> Result<Self> {
        ensure!(!places.is_empty(), "no rows to exchange states of");
        let (rows, at): (Vec<&Sequence>, Vec<usize>) = places.iter().copied().unzip();
        for (row, at) in places {
            ensure!(row.is_latent(*at), "position {at} of row {} is no latent", row.row);
        }
        let names = rows.iter().map(|row| row.row).collect();
        let mut before = Stream::new(&study.model, &study.reasoning.source, Gradient::Through, names);
        feed(&mut before, &rows, &mut vec![0; rows.len()], |i| at[i], &mut Hooks::none())?;
        Ok(Self { study, rows, at, before })
    }

    /// Final states `[n, D]` (after the final norm) of these rows with states exchanged at a point of the residual stream.
    ///
    /// # Errors
    /// A state of another width, a place that was not reached, and as the model's.
    pub fn finals(&self, point: HookPoint, given: &[GivenState], within: &Within) -> Result<Tensor<2>> {
        let which: Vec<usize> = given.iter().map(|(row, _)| *row).collect();
        let rows: Vec<&Sequence> = which.iter().map(|&row| self.rows[row]).collect();
        let mut cursors: Vec<usize> = which.iter().map(|&row| self.at[row]).collect();
        let mut stream = self.before.keep(&which);
        let reached = Cell::new(false);
        let mut hooks = Hooks::none();
        hooks.replace(&HookSpec::all(point), self.study.model.layers.len(), |site, value| {
            // The first wave begins with the exchanged latent of every row.
            if reached.replace(true) { Ok(value) } else { exchanged(site, value, given, within) }
        })?;
        feed(&mut stream, &rows, &mut cursors, |i| rows[i].ids.len(), &mut hooks)?;
        drop(hooks);
        ensure!(reached.get(), "`{point}` was never reached");
        stream.last().cloned().context("rows without positions")
    }

    /// The most probable token at the end of each row, those that text does not draw left out.
    pub fn says(&self, point: HookPoint, given: &[GivenState], within: &Within, masked: &[u32]) -> Result<Vec<u32>> {
        let mut out = vec![];
        for given in given.chunks(ROWS) {
            crate::progress::go_on()?;
            for logits in logits(&self.study.model, self.finals(point, given, within)?)? {
                let drawable = (0u32..).zip(&logits).filter(|(token, _)| !masked.contains(token));
                out.push(drawable.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(token, _)| token));
            }
        }
        Ok(out)
    }
}

/// `[B, L, D]` with the first position's states exchanged.
fn exchanged(site: &Site, value: Activation, given: &[GivenState], within: &Within) -> Result<Activation> {
    let value = value.three()?;
    let [b, l, d] = value.dims();
    let firsts = site.places.iter().filter(|place| place.index == 0).count();
    ensure!(firsts == b && b == given.len(), "{firsts} of {} rows stand at the exchanged latent", given.len());
    ensure!(given.iter().all(|(_, state)| state.len() == d), "a state that is not {d} wide, as the stream is");
    let states: Vec<f32> = given.iter().flat_map(|(_, state)| state.iter().copied()).collect();
    let other = Tensor::<2>::from_data(TensorData::new(states, [b, d]), (&value.device(), value.dtype()));
    let own = value.clone().narrow(1, 0, 1).squeeze_dim::<2>(1);
    let new = match within {
        Within::Whole => other,
        Within::Span(columns) => {
            let along = matmul(other - own.clone(), (**columns).clone());
            own + matmul(along, (**columns).clone().transpose())
        }
    };
    let new = new.unsqueeze_dim::<3>(1);
    Ok(Activation::Rank3(if l == 1 { new } else { Tensor::cat(vec![new, value.narrow(1, 1, l - 1)], 1) }))
}

/// Feeds every row from its cursor to an end of its own, up to each latent in turn.
fn feed(
    stream: &mut Stream,
    rows: &[&Sequence],
    cursors: &mut [usize],
    end: impl Fn(usize) -> usize,
    hooks: &mut Hooks,
) -> Result<()> {
    loop {
        let mut pieces = vec![];
        for (i, (row, from)) in rows.iter().zip(cursors.iter_mut()).enumerate() {
            let until = (*from + 1..end(i)).find(|&p| row.is_latent(p)).unwrap_or(end(i)).max(*from);
            pieces.push(Piece { ids: row.ids[*from..until].to_vec(), steps: row.steps[*from..until].to_vec() });
            *from = until;
        }
        if pieces.iter().all(|piece| piece.ids.is_empty()) {
            return Ok(());
        }
        stream.advance(&pieces, hooks)?;
    }
}
