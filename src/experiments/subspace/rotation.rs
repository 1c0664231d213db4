//! Orthonormal columns: drawn, or learnt from pairs so that exchanging what lies in their span gives the predicted answers.
//! Knows pairs and their predictions, not what they mean.

use anyhow::{Context, Result, anyhow, ensure};
use burn::tensor::{Tensor, TensorData};
use linfa_linalg::qr::QR;
use ndarray::{Array2, Zip};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::model::{Decoder, HookPoint};
use crate::ops::{Targets, loss_of_logits};
use crate::progress;
use crate::random::normal;
use crate::study::circuits::interchange::{Given, Interchange, Within};

/// How a rotation is learnt: Adam (Kingma and Ba 2015) on the columns, made orthonormal again after each update.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    pub updates: usize,
    /// Pairs of one update.
    pub batch: usize,
    /// At the first update; it falls to nothing in a straight line.
    pub learning_rate: f64,
}

/// Orthonormal columns, `[D, r]`.
#[derive(Clone, Debug)]
pub struct Columns(Array2<f64>);

impl Columns {
    /// Evenly distributed over all subspaces of this rank.
    ///
    /// # Errors
    /// A rank that the width does not hold.
    pub fn random(width: usize, rank: usize, rng: &mut ChaCha8Rng) -> Result<Self> {
        ensure!((1..=width).contains(&rank), "subspace.ranks: a state of width {width} has no subspace of rank {rank}");
        Self::orthonormal(Array2::from_shape_simple_fn((width, rank), || normal(rng)))
    }

    fn orthonormal(columns: Array2<f64>) -> Result<Self> {
        let (mut q, r) = columns.qr().map_err(|e| anyhow!("orthonormal columns: {e}"))?.into_decomp();
        // The nearest direction of each column, not its opposite: what Adam remembers of it stays true.
        for (mut column, scale) in q.columns_mut().into_iter().zip(r.diag()) {
            column *= scale.signum();
        }
        let finite = q.iter().all(|x| x.is_finite());
        ensure!(finite, "a learnt rotation is not finite: try a smaller subspace.learning_rate");
        Ok(Self(q))
    }

    /// In the model's float type and on its device.
    fn tensor(&self, model: &Decoder) -> Tensor<2> {
        let like = model.norm.weight.val();
        let values: Vec<f32> = self.0.iter().map(|&x| x as f32).collect();
        Tensor::from_data(TensorData::new(values, [self.0.nrows(), self.0.ncols()]), (&like.device(), like.dtype()))
    }

    /// What is exchanged by it.
    pub fn within(&self, model: &Decoder) -> Within {
        Within::Span(Box::new(self.tensor(model)))
    }

    /// Learns from exchanges at a point and the tokens that they must give; those of an update are drawn.
    ///
    /// # Errors
    /// A rotation that is no longer finite, and as the model's.
    pub fn train(
        self,
        model: &Decoder,
        (interchange, point): (&Interchange, HookPoint),
        (pairs, says): (&[Given], &[u32]),
        (how, masked): (Training, &[u32]),
        rng: &mut ChaCha8Rng,
    ) -> Result<Self> {
        let dim = self.0.dim();
        let mut columns = self;
        let [mut mean, mut square] = [Array2::<f64>::zeros(dim), Array2::<f64>::zeros(dim)];
        for update in 0..how.updates {
            progress::go_on()?;
            let drawn: Vec<usize> = (0..how.batch).map(|_| rng.random_range(0..pairs.len())).collect();
            let given: Vec<Given> = drawn.iter().map(|&i| pairs[i]).collect();
            let ids = drawn.iter().map(|&i| says[i]).collect();
            let targets = Targets { ids, banned: masked.to_vec(), unrestricted: vec![] };
            let leaf = columns.tensor(model).autodiff().require_grad();
            let finals = interchange.finals(point, &given, &Within::Span(Box::new(leaf.clone())))?;
            let logits = model.unembed(finals.unsqueeze_dim(0)).squeeze_dim::<2>(0);
            let gradients = loss_of_logits(logits, targets).0.mean().backward();
            let slope = leaf.grad(&gradients).context("a rotation that no answer depends on")?;
            let slope = slope.try_into_vec_as::<f32>().map_err(|e| anyhow!("reading a gradient: {e:?}"))?;
            let slope = Array2::from_shape_vec(dim, slope.into_iter().map(f64::from).collect())?;
            // What turns the columns inside their span changes nothing.
            let slope = &slope - &columns.0.dot(&columns.0.t().dot(&slope));
            mean = &mean * 0.9 + &slope * 0.1;
            square = &square * 0.999 + &slope * &slope * 0.001;
            let t = update as i32 + 1;
            let rate = how.learning_rate * (1.0 - update as f64 / how.updates as f64);
            let (first, second) = (1.0 - 0.9_f64.powi(t), 1.0 - 0.999_f64.powi(t));
            Zip::from(&mut columns.0).and(&mean).and(&square).for_each(|x, m, s| {
                *x -= rate * (m / first) / ((s / second).sqrt() + 1e-8);
            });
            columns = Self::orthonormal(columns.0)?;
        }
        Ok(columns)
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
