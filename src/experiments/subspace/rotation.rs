//! Orthonormal columns: random, or learnt from pairs so that exchanging the component in their span gives the predicted answers. Knows
//! pairs, their predictions and which states have equal values; not the values.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use anyhow::{Context, Result, anyhow, ensure};
use burn::tensor::{Tensor, TensorData};
use linfa_linalg::eigh::{EigSort, Eigh};
use linfa_linalg::qr::QR;
use ndarray::{Array1, Array2, ArrayView1, Axis, concatenate, s};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::Config;
use crate::model::{Decoder, HookPoint};
use crate::ops::{Targets, loss_of_logits};
use crate::progress;
use crate::random::normal;
use crate::study::circuits::interchange::{GivenState, Interchange};

/// Training exchanges, one entry each.
#[derive(Clone, Copy)]
pub struct Lessons<'p> {
    pub given: &'p [GivenState<'p>],
    /// The token that must come.
    pub says: &'p [u32],
    /// Value of the given state.
    pub holds: &'p [i64],
}

/// Place of the exchange, and the tokens that no answer begins with.
#[derive(Clone, Copy)]
pub struct At<'a> {
    pub model: &'a Decoder,
    pub interchange: &'a Interchange<'a>,
    pub point: HookPoint,
    pub masked: &'a [u32],
}

/// Updates between two validations.
const LOOK: usize = 10;
/// One in this many sequences is used for validation.
const ASIDE: usize = 4;
/// Weight of the variation within a value relative to that between values.
const WITHIN: f64 = 1e-3;

impl At<'_> {
    /// Mean loss of some exchanges.
    fn loss(self, columns: Tensor<2>, lessons: Lessons, which: &[usize]) -> Result<Tensor<1>> {
        let given: Vec<GivenState> = which.iter().map(|&i| lessons.given[i]).collect();
        let ids = which.iter().map(|&i| lessons.says[i]).collect();
        let targets = Targets { ids, banned: self.masked.to_vec(), unrestricted: vec![] };
        let finals = self.interchange.finals(self.point, &given, &Some(columns))?;
        let logits = self.model.unembed(finals.unsqueeze_dim(0)).squeeze_dim::<2>(0);
        Ok(loss_of_logits(logits, targets).0.mean())
    }

    fn measured(self, columns: &Columns, lessons: Lessons, which: &[usize]) -> Result<f64> {
        Ok(self.loss(columns.tensor(self.model), lessons, which)?.into_scalar::<f32>().into())
    }
}

/// Orthonormal columns, `[D, r]`.
#[derive(Clone, Debug)]
pub struct Columns(Array2<f64>);

impl Columns {
    /// Uniform over all subspaces of this rank.
    pub fn random(width: usize, rank: usize, rng: &mut ChaCha8Rng) -> Result<Self> {
        ensure!((1..=width).contains(&rank), "subspace.ranks: a state of width {width} has no subspace of rank {rank}");
        Self::orthonormal(Array2::from_shape_simple_fn((width, rank), || normal(rng)))
    }

    /// The directions in which states of different values differ most, then those in which any states differ, then random ones.
    fn of_means(lessons: Lessons, rank: usize, rng: &mut ChaCha8Rng) -> Result<Self> {
        let width = lessons.given.first().map_or(0, |(_, state)| state.len());
        let wide = |state: &[f32]| state.iter().map(|&x| f64::from(x)).collect::<Array1<f64>>();
        let mut groups: BTreeMap<i64, Vec<Array1<f64>>> = BTreeMap::new();
        for ((_, state), holds) in lessons.given.iter().zip(lessons.holds) {
            groups.entry(*holds).or_default().push(wide(state));
        }
        let mean = |states: &[Array1<f64>]| {
            states.iter().fold(Array1::zeros(width), |sum, x| sum + x) / states.len().max(1) as f64
        };
        let all = mean(&groups.values().flatten().cloned().collect::<Vec<_>>());
        let mut rows: Vec<Array1<f64>> = vec![];
        for states in groups.values() {
            let own = mean(states);
            rows.push((&own - &all) * (states.len() as f64).sqrt());
            rows.extend(states.iter().map(|state| (state - &own) * WITHIN.sqrt()));
        }
        let rows = ndarray::stack(Axis(0), &rows.iter().map(Array1::view).collect::<Vec<ArrayView1<f64>>>())?;
        let (sizes, turns) =
            rows.dot(&rows.t()).eigh().map_err(|e| anyhow!("leading directions: {e}"))?.sort_eig_desc();
        let most = sizes.first().copied().unwrap_or(0.0);
        let found = sizes.iter().take(rank).take_while(|size| **size > 1e-9 * most).count();
        let mut leading = rows.t().dot(&turns.slice(s![.., ..found]));
        leading.columns_mut().into_iter().zip(&sizes).for_each(|(mut column, size)| column /= size.sqrt());
        let drawn = Array2::from_shape_simple_fn((width, rank - found), || normal(rng));
        Self::orthonormal(concatenate(Axis(1), &[leading.view(), drawn.view()])?)
    }

    fn orthonormal(columns: Array2<f64>) -> Result<Self> {
        let (mut q, r) = columns.qr().map_err(|e| anyhow!("orthonormal columns: {e}"))?.into_decomp();
        // The sign of each column is preserved, so that its momentum stays valid.
        for (mut column, scale) in q.columns_mut().into_iter().zip(r.diag()) {
            column *= scale.signum();
        }
        let finite = q.iter().all(|x| x.is_finite());
        ensure!(finite, "a learnt rotation is not finite: try a smaller subspace.learning_rate");
        Ok(Self(q))
    }

    /// Each column, `[D]`.
    pub fn each(&self) -> impl Iterator<Item = Vec<f64>> {
        self.0.columns().into_iter().map(|column| column.to_vec())
    }

    /// In the model's float type and on its device.
    pub fn tensor(&self, model: &Decoder) -> Tensor<2> {
        let like = model.norm.weight.val();
        let values: Vec<f32> = self.0.iter().map(|&x| x as f32).collect();
        Tensor::from_data(TensorData::new(values, [self.0.nrows(), self.0.ncols()]), (&like.device(), like.dtype()))
    }

    /// The part of a matrix that turns the span; the rest turns the columns inside it, without effect.
    fn outside(&self, matrix: &Array2<f64>) -> Array2<f64> {
        matrix - &self.0.dot(&self.0.t().dot(matrix))
    }

    /// Learns from exchanges and their predicted tokens. One sequence of [`ASIDE`] is used for validation: of two starts (the states' means,
    /// random) the one with the smaller validation loss is continued, and the columns with the smallest are returned.
    ///
    /// Descent over subspaces (the gradient's component outside the span, with momentum; Edelman, Arias and Smith 1998). Each update has the
    /// length of the learning rate, whatever the size of the gradient; the rate decays to zero by half a cosine. One scale for the whole
    /// matrix: per-entry scales as in Adam would depend on the basis of the stream.
    pub fn learnt(at: At, lessons: Lessons, rank: usize, how: &Config, rng: &mut ChaCha8Rng) -> Result<Self> {
        let width = at.model.config().hidden_size;
        let (aside, mut used): (Vec<usize>, Vec<usize>) =
            (0..lessons.given.len()).partition(|&i| lessons.given[i].0 % ASIDE == ASIDE - 1);
        let aside = if aside.is_empty() { used.clone() } else { aside };
        if used.is_empty() {
            used.clone_from(&aside);
        }
        let (mut columns, drawn) = (Self::of_means(lessons, rank, rng)?, Self::random(width, rank, rng)?);
        let (mut least, other) = (at.measured(&columns, lessons, &aside)?, at.measured(&drawn, lessons, &aside)?);
        if other < least {
            (columns, least) = (drawn, other);
        }
        let mut best = columns.clone();
        let (mut mean, mut square) = (Array2::<f64>::zeros(columns.0.dim()), 0.0);
        for update in 0..how.updates {
            progress::go_on()?;
            let which: Vec<usize> = (0..how.batch).map(|_| used[rng.random_range(0..used.len())]).collect();
            let leaf = columns.tensor(at.model).autodiff().require_grad();
            let gradients = at.loss(leaf.clone(), lessons, &which)?.backward();
            let slope = leaf.grad(&gradients).context("a rotation that no answer depends on")?;
            let slope = slope.try_into_vec_as::<f32>().map_err(|e| anyhow!("reading a gradient: {e:?}"))?;
            let slope = Array2::from_shape_vec(columns.0.dim(), slope.into_iter().map(f64::from).collect())?;
            let slope = columns.outside(&slope);
            mean = columns.outside(&mean) * 0.9 + &slope * 0.1;
            square = square * 0.99 + slope.mapv(|x| x * x).sum() * 0.01;
            let t = update as i32 + 1;
            let (first, second): (f64, f64) = (1.0 - 0.9_f64.powi(t), 1.0 - 0.99_f64.powi(t));
            if square > 0.0 {
                let rate = how.learning_rate * (1.0 + (PI * update as f64 / how.updates as f64).cos()) / 2.0;
                let length = rate * (rank as f64).sqrt() / (first * (square / second).sqrt());
                columns = Self::orthonormal(columns.0 - mean.clone() * length)?;
            }
            if (update + 1) % LOOK == 0 || update + 1 == how.updates {
                let loss = at.measured(&columns, lessons, &aside)?;
                if loss < least {
                    (best, least) = (columns.clone(), loss);
                }
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::keyed;

    #[test]
    fn drawn_columns_are_orthonormal() {
        let Columns(q) = Columns::random(16, 4, &mut keyed([1, 2, 3, 4])).expect("columns");
        for ((i, j), x) in q.t().dot(&q).indexed_iter() {
            assert!((x - f64::from(u8::from(i == j))).abs() < 1e-12, "[{i}, {j}]: {x}");
        }
        assert!(
            Columns::random(4, 5, &mut keyed([0; 4])).is_err() && Columns::random(4, 0, &mut keyed([0; 4])).is_err()
        );
    }
}
