//! A trained model as an adapter over its base. Merged LoRA phases differ from the base by matrices of low rank, whatever program
//! trained them.
//!
//! 1. Parameters that are equal in both are skipped.
//! 2. Of a tied embedding table with few changed rows, only these rows are stored.
//! 3. A changed bias is an error. Other tables and the norms are stored whole.
//! 4. The difference Δ of a matrix becomes factors: B·A ≈ Δ of rank r.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, ensure};
use linfa_linalg::qr::QR;
use linfa_linalg::svd::SVD;
use ndarray::{Array2, ArrayView2, Axis, s};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::super::params::{EMBED, HEAD, POSITIONS};
use super::super::{HostTensor, ModelFiles, expected_parameters};
use super::{AdapterWeights, Factors};
use crate::random::normal;

/// A table with at most this many changed rows stores single rows, otherwise it is stored whole.
const MOST_TOKEN_ROWS: usize = 64;

/// Subspace iterations. Each widens the gap between retained and dropped singular values.
const ITERATIONS: usize = 4;

/// A trained model as an adapter over its base.
pub struct Difference {
    pub adapter: AdapterWeights,
    /// ‖rest‖² / ‖difference‖² over all matrices (Frobenius); `rest` is the error of the low-rank approximation.
    pub lost: f64,
}

/// `trained` minus `base`, with matrices in their best approximation of rank `r` (Eckart and Young 1936).
///
/// # Errors
/// Models of different shapes, weights that cannot be read, trained biases, equal matrices.
pub fn difference(base: &ModelFiles, trained: &ModelFiles, r: usize) -> Result<Difference> {
    let [from, to] = [&base.config, &trained.config];
    let inner_shapes = |weights: &ModelFiles| {
        let shapes = expected_parameters(&weights.config).into_iter();
        shapes.filter(|(name, _)| name != EMBED && name != HEAD).collect::<Vec<_>>()
    };
    ensure!(
        inner_shapes(base) == inner_shapes(trained)
            && from.hidden_size == to.hidden_size
            && from.tie_word_embeddings == to.tie_word_embeddings,
        "{} is not a trained form of {}: their shapes differ",
        trained.path.display(),
        base.path.display()
    );
    let (mut factors, mut replaced, mut token_rows, mut tokens) = (BTreeMap::new(), BTreeMap::new(), None, vec![]);
    let (mut lost, mut total) = (0.0, 0.0);
    for (name, shape) in expected_parameters(to) {
        let (old, new) = (base.tensor(&name)?, trained.tensor(&name)?);
        if old == new {
            continue;
        }
        // Removed rows, such as padding, cannot be expressed: such a table is written whole.
        if name == EMBED && to.tie_word_embeddings && from.vocab_size <= to.vocab_size {
            let changed = changed_rows(&old, &new);
            if changed.len() <= MOST_TOKEN_ROWS {
                let width = new.width();
                let rows = changed.iter().flat_map(|row| &new.data[row * width..][..width]).copied().collect();
                token_rows = Some(HostTensor::new(vec![changed.len(), width], rows)?);
                tokens = changed;
                continue;
            }
        }
        ensure!(!name.ends_with(".bias"), "`{name}` was trained, but an adapter cannot store biases");
        if shape.len() != 2 || [EMBED, HEAD, POSITIONS].contains(&name.as_str()) {
            replaced.insert(name, new);
            continue;
        }
        let change = Array2::from_shape_fn((shape[0], shape[1]), |(o, i)| {
            f64::from(new.data[o * shape[1] + i]) - f64::from(old.data[o * shape[1] + i])
        });
        let best = best_factors(change.view(), r).map_err(|e| anyhow!("`{name}`: {e}"))?;
        let approximation = matrix(&best.b).dot(&matrix(&best.a));
        lost += (&change - &approximation).mapv(|x| x * x).sum();
        total += change.mapv(|x| x * x).sum();
        factors.insert(name, best);
    }
    ensure!(
        !factors.is_empty(),
        "{} and {} have the same matrices: there is nothing to make an adapter of",
        trained.path.display(),
        base.path.display()
    );
    let mut adapter = AdapterWeights { replaced, token_rows, ..AdapterWeights::new(factors, to)? };
    adapter.config.token_rows = tokens;
    Ok(Difference { adapter, lost: lost / total })
}

/// Rows that differ, and rows that only the new table has.
fn changed_rows(old: &HostTensor, new: &HostTensor) -> Vec<usize> {
    let width = new.width();
    let row = |table: &HostTensor, row: usize| table.data.get(row * width..(row + 1) * width).map(<[f32]>::to_vec);
    (0..new.rows()).filter(|&i| row(old, i) != row(new, i)).collect()
}

fn matrix(tensor: &HostTensor) -> Array2<f64> {
    Array2::from_shape_fn((tensor.rows(), tensor.width()), |(i, j)| f64::from(tensor.data[i * tensor.width() + j]))
}

/// B·A of rank `r` nearest to the matrix, by a randomised range finder with subspace iteration (Halko et al. 2011,
/// arXiv:0909.4061, algorithms 4.4 and 5.1). Each singular value is split evenly between the two. Above the rank
/// of the matrix they are zero.
fn best_factors(change: ArrayView2<f64>, r: usize) -> Result<Factors> {
    let (rows, width) = change.dim();
    let wide = (2 * r + 8).min(rows).min(width);
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut range = change.dot(&Array2::from_shape_fn((width, wide), |_| normal(&mut rng)));
    for _ in 0..ITERATIONS {
        let back = change.t().dot(&orthonormal(range)?);
        range = change.dot(&orthonormal(back)?);
    }
    let basis = orthonormal(range)?;
    // Transposed, because `svd` needs a tall matrix: Δᵀ Q = V S Uᵀ.
    let small = change.t().dot(&basis);
    let (v, sigma, ut) = small.svd(true, true).map_err(|e| anyhow!("singular values: {e}"))?;
    let (Some(v), Some(ut)) = (v, ut) else { return Err(anyhow!("singular vectors are missing")) };
    let mut order: Vec<usize> = (0..sigma.len()).collect();
    order.sort_by(|&i, &j| sigma[j].total_cmp(&sigma[i]));
    order.truncate(r);
    let root = |k: usize| sigma[k].max(0.0).sqrt();
    let left = basis.dot(&ut.t());
    let mut a = Array2::<f64>::zeros((r, width));
    let mut b = Array2::<f64>::zeros((rows, r));
    for (slot, &k) in order.iter().enumerate() {
        a.slice_mut(s![slot, ..]).assign(&(&v.index_axis(Axis(1), k) * root(k)));
        b.slice_mut(s![.., slot]).assign(&(&left.index_axis(Axis(1), k) * root(k)));
    }
    let host = |m: Array2<f64>| HostTensor::new(vec![m.nrows(), m.ncols()], m.iter().map(|x| *x as f32).collect());
    Ok(Factors { a: host(a)?, b: host(b)? })
}

fn orthonormal(columns: Array2<f64>) -> Result<Array2<f64>> {
    let (q, _) = columns.qr().map_err(|e| anyhow!("orthonormal basis: {e}"))?.into_decomp();
    Ok(q)
}
