//! Interchange interventions (Geiger et al. 2024, distributed alignment search): replaces the state at one latent by that of another
//! sequence, as a whole or within a subspace. Knows sequences and states, not their meaning.
//!
//! The prefix before the latent is computed once, outside autodiff. A subspace that requires a gradient gets it through the rest of
//! the sequence, later latents included.

use std::cell::Cell;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Tensor, TensorData};

use super::patch::next_piece;
use crate::latent::{Gradient, Piece, Sequence, Stream};
use crate::model::hooks::Site;
use crate::model::{Activation, HookPoint, HookSpec, Hooks};
use crate::ops::matmul;
use crate::study::Study;
use crate::study::readout::{logits, most_probable};

/// Batch size without gradients.
const ROWS: usize = 128;

/// The exchanged subspace: orthonormal columns R, `[D, r]` in the model's float type: `h + R Rᵀ (h′ − h)`. `None`: the whole state.
pub(crate) type Within = Option<Tensor<2>>;

/// Sequences that end at the position that decides the answer. The prefix before one latent of each is computed.
pub(crate) struct Interchange<'a> {
    study: &'a Study,
    sequences: Vec<&'a Sequence>,
    /// The position of each sequence's exchanged state.
    positions: Vec<usize>,
    prefix: Stream<'a>,
}

/// A sequence's index and the state `[D]` that it receives.
pub(crate) type GivenState<'s> = (usize, &'s [f32]);

impl<'a> Interchange<'a> {
    pub fn new(study: &'a Study, places: &[(&'a Sequence, usize)]) -> Result<Self> {
        ensure!(!places.is_empty(), "no sequences to exchange states in");
        let (sequences, positions): (Vec<&Sequence>, Vec<usize>) = places.iter().copied().unzip();
        for (sequence, at) in places {
            ensure!(sequence.is_latent(*at), "problem {}: position {at} is not a latent step", sequence.row);
        }
        let names = sequences.iter().map(|sequence| sequence.row).collect();
        let mut prefix = Stream::new(&study.model, &study.reasoning.source, Gradient::Through, names);
        let mut cursors = vec![0; sequences.len()];
        while cursors != positions {
            let next = |((sequence, cursor), at): ((&&Sequence, &mut usize), &usize)| next_piece(sequence, cursor, *at);
            let pieces: Vec<Piece> = sequences.iter().zip(&mut cursors).zip(&positions).map(next).collect();
            prefix.advance(&pieces, &mut Hooks::none())?;
        }
        Ok(Self { study, sequences, positions, prefix })
    }

    /// Final states `[n, D]` (after the final norm) of these sequences, with states exchanged at a point of the residual stream.
    pub fn finals(&self, point: HookPoint, given: &[GivenState], within: &Within) -> Result<Tensor<2>> {
        let which: Vec<usize> = given.iter().map(|(sequence, _)| *sequence).collect();
        let sequences: Vec<&Sequence> = which.iter().map(|&i| self.sequences[i]).collect();
        let mut cursors: Vec<usize> = which.iter().map(|&i| self.positions[i]).collect();
        let reached = Cell::new(false);
        let mut hooks = Hooks::none();
        hooks.replace(&HookSpec::all(point), self.study.model.layers.len(), |site, value| {
            // The first forward begins at the exchanged latent of every sequence.
            if reached.replace(true) { Ok(value) } else { exchange_states(site, value, given, within) }
        })?;
        let mut stream = self.prefix.keep(&which);
        let mut running: Vec<usize> = (0..sequences.len()).collect();
        let mut finals: Vec<Option<Tensor<2>>> = vec![None; sequences.len()];
        while !running.is_empty() {
            let next = |&i: &usize| next_piece(sequences[i], &mut cursors[i], sequences[i].ids.len());
            stream.advance(&running.iter().map(next).collect::<Vec<_>>(), &mut hooks)?;
            // Finished sequences leave the batch: they would be computed as padding.
            let (going, ended): (Vec<usize>, Vec<usize>) =
                (0..running.len()).partition(|&at| cursors[running[at]] < sequences[running[at]].ids.len());
            for &at in &ended {
                finals[running[at]] = stream.last().map(|last| last.clone().narrow(0, at, 1));
            }
            if !ended.is_empty() && !going.is_empty() {
                stream = stream.keep(&going);
            }
            running = going.into_iter().map(|at| running[at]).collect();
        }
        drop(hooks);
        ensure!(reached.get(), "hook point `{point}` was never reached");
        let finals: Option<Vec<Tensor<2>>> = finals.into_iter().collect();
        Ok(Tensor::cat(finals.context("a sequence has no final state")?, 0))
    }

    /// The most probable token at the end of each sequence, without `masked`.
    pub fn predict(&self, point: HookPoint, given: &[GivenState], within: &Within, masked: &[u32]) -> Result<Vec<u32>> {
        let mut out = vec![];
        for given in given.chunks(ROWS) {
            crate::progress::go_on()?;
            let logits = logits(&self.study.model, self.finals(point, given, within)?)?;
            out.extend(logits.iter().map(|logits| most_probable(logits, masked)));
        }
        Ok(out)
    }
}

/// `[B, L, D]` with the first position's states exchanged.
fn exchange_states(site: &Site, value: Activation, given: &[GivenState], within: &Within) -> Result<Activation> {
    let value = value.three()?;
    let [b, l, d] = value.dims();
    let firsts = site.places.iter().filter(|place| place.index == 0).count();
    ensure!(firsts == b && b == given.len(), "{firsts} of {} sequences are at the exchanged latent", given.len());
    ensure!(given.iter().all(|(_, state)| state.len() == d), "an exchanged state does not have the stream's width {d}");
    let states: Vec<f32> = given.iter().flat_map(|(_, state)| state.iter().copied()).collect();
    let other = Tensor::<2>::from_data(TensorData::new(states, [b, d]), (&value.device(), value.dtype()));
    let own = value.clone().narrow(1, 0, 1).squeeze_dim::<2>(1);
    let new = match within {
        None => other,
        Some(columns) => own.clone() + matmul(matmul(other - own, columns.clone()), columns.clone().transpose()),
    };
    let new = new.unsqueeze_dim::<3>(1);
    Ok(Activation::Rank3(if l == 1 { new } else { Tensor::cat(vec![new, value.narrow(1, 1, l - 1)], 1) }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::machine::Machine;
    use crate::study::ProblemChoice;

    /// Sequences leave a batch at their ends, some with more remaining latents than others.
    #[test]
    fn a_batch_of_sequences_ends_as_each_does_alone() {
        let asked = ProblemChoice { problems: Some(24), ..ProblemChoice::default() };
        let study = Study::open_run(Path::new("fixtures/micro"), "sft", &asked, &Machine::default()).expect("micro");
        let sweep = study.sweep().expect("traces");
        let rows = sweep.traces.iter().map(|trace| trace.sequence(&study.corpus.switch).expect("a row"));
        let rows: Vec<Sequence> = rows.filter(|row| (0..row.ids.len()).any(|at| row.is_latent(at))).collect();
        let latents = |row: &Sequence| (0..row.ids.len()).filter(|&at| row.is_latent(at)).collect::<Vec<_>>();
        assert!(rows.iter().map(|row| latents(row).len()).collect::<BTreeSet<_>>().len() > 1, "rows of one shape");
        let places: Vec<(&Sequence, usize)> = rows.iter().map(|row| (row, latents(row)[0])).collect();
        let interchange = Interchange::new(&study, &places).expect("rows");
        let states: Vec<Vec<f32>> = (0..rows.len()).map(|i| vec![0.1 * i as f32; 64]).collect();
        let given: Vec<GivenState> = states.iter().enumerate().map(|(i, state)| (i, &state[..])).collect();
        let finals = |given: &[GivenState]| {
            let point = crate::study::circuits::patch::Node::Resid(1).point();
            let states = interchange.finals(point, given, &None).expect("states");
            states.try_into_vec_as::<f32>().expect("floats")
        };
        let (together, alone) = (finals(&given), given.iter().flat_map(|one| finals(&[*one])).collect::<Vec<_>>());
        assert_eq!(together.len(), alone.len());
        let apart = together.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-4, "{apart}");
    }
}
