//! Linear probes: can a label be read off hidden states? Knows features, labels and problems, and of layers only which ones
//! the paper probes.
//!
//! Two protocols, meant to be shown next to each other in a table:
//! - [`PaperProtocol`]: balanced rows, one 80:20 split by row, raw features, C = 1. As in the paper.
//! - [`GroupedProtocol`]: split by group, standardised on train, C chosen inside train, at least five splits, control
//!   labels, intervals that resample problems. For claims.
//!
//! [`ValueProtocol`] is the second for a label with several classes, e.g. the intermediate value of a latent step.
//!
//! The caller chooses negatives of the same token type as positives. Otherwise a probe reads the token's identity
//! and is near perfect at the embedding.

/// Declares a struct of settings that lists its fields with their descriptions.
macro_rules! protocol {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[doc = $doc:literal])+ pub $field:ident: $type:ty,)+ }) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl $name {
            /// Names of the settings and their descriptions.
            pub const SETTINGS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), concat!($($doc),+))),+];
        }
    };
}

mod grouped;
mod paper;
mod pooled;
mod score;
mod value;

use anyhow::{Context, Result, ensure};
use ndarray::{Array2, ArrayView2};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

pub use grouped::GroupedProtocol;
pub use paper::{PAPER_LAYERS, PaperProtocol, PaperScore, paper_layer, paper_layers};
pub use score::{Control, GroupedScore};
pub use value::{RowGroups, ValueProtocol, ValueScore};

use super::{Estimate, Groups, classify::both_classes};

/// Error: too few problems, or only one value: a probe by problem cannot be scored.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TooFew(pub String);

impl TooFew {
    /// Turns this error into `None`.
    pub fn none<T>(score: Result<T>) -> Result<Option<T>> {
        match score {
            Err(error) if error.is::<Self>() => Ok(None),
            score => score.map(Some),
        }
    }
}

/// Data of a probe: `features` [rows, D] in f32 or f64, the label and the problem of each row.
#[derive(Clone, Copy, Debug)]
pub struct ProbeData<'a, F> {
    features: ArrayView2<'a, F>,
    labels: &'a [bool],
    groups: &'a [usize],
}

impl<'a, F: Copy + Into<f64> + Sync> ProbeData<'a, F> {
    /// Checks shapes, that both classes occur, and that every feature is a finite number.
    pub fn new(features: ArrayView2<'a, F>, labels: &'a [bool], groups: &'a [usize]) -> Result<Self> {
        check(features, labels.len(), groups.len())?;
        both_classes(labels).context("probe labels")?;
        Ok(Self { features, labels, groups })
    }

    /// The chosen rows in f64.
    fn rows(&self, rows: &[usize]) -> Array2<f64> {
        rows_in_f64(self.features, rows)
    }
}

/// Adds to an interval the variance of training sets shared between `folds` (Nadeau & Bengio 2003, see `grouped`), within
/// `bottom` and 1.
fn widened(e: Estimate, folds: usize, bottom: f64) -> Estimate {
    let wide = unbounded(e, folds);
    Estimate { low: wide.low.max(bottom), high: wide.high.min(1.0), ..e }
}

/// Widens the interval of an unbounded value for the folds.
fn unbounded(e: Estimate, folds: usize) -> Estimate {
    let k = folds as f64;
    let factor = (1.0 + k / (k - 1.0)).sqrt();
    Estimate { low: e.value - factor * (e.value - e.low), high: e.value + factor * (e.high - e.value), ..e }
}

/// Checks that shapes agree and that every feature is finite.
fn check<F: Copy + Into<f64>>(features: ArrayView2<'_, F>, labels: usize, groups: usize) -> Result<()> {
    let rows = features.nrows();
    ensure!(rows > 0 && features.ncols() > 0, "probe features are empty ({rows} × {})", features.ncols());
    ensure!(labels == rows, "{rows} feature rows but {labels} labels");
    ensure!(groups == rows, "{rows} feature rows but {groups} group ids");
    for ((row, column), &value) in features.indexed_iter() {
        let value: f64 = value.into();
        ensure!(value.is_finite(), "probe feature at row {row}, column {column} is {value}");
    }
    Ok(())
}

/// Selects rows of the features.
fn rows_in_f64<F: Copy + Into<f64>>(features: ArrayView2<'_, F>, rows: &[usize]) -> Array2<f64> {
    Array2::from_shape_fn((rows.len(), features.ncols()), |(i, j)| features[[rows[i], j]].into())
}

/// Keeps all `rows` of the rarer class and as many of the other, drawn by `seed`; sorted.
fn balance(rows: &[usize], labels: &[bool], seed: u64) -> Vec<usize> {
    let (mut yes, mut no): (Vec<usize>, Vec<usize>) = rows.iter().copied().partition(|&r| labels[r]);
    let keep = yes.len().min(no.len());
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for class in [&mut yes, &mut no] {
        if class.len() > keep {
            class.shuffle(&mut rng);
            class.truncate(keep);
        }
    }
    yes.extend(no);
    yes.sort_unstable();
    yes
}

/// Labels shuffled among the rows of each group: preserves every problem's share of positives, not their positions.
fn permuted_within(labels: &[bool], groups: &Groups, seed: u64) -> Vec<bool> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xC0_117B01); // another stream than the splits'
    let mut permuted = labels.to_vec();
    for rows in &groups.members {
        let mut shuffled = pick(labels, rows);
        shuffled.shuffle(&mut rng);
        rows.iter().zip(shuffled).for_each(|(&row, label)| permuted[row] = label);
    }
    permuted
}

/// The values of the chosen rows.
fn pick<T: Copy>(values: &[T], rows: &[usize]) -> Vec<T> {
    rows.iter().map(|&r| values[r]).collect()
}
