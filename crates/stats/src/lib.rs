//! Intervals, paired tests, bootstrap and the protocol of probes. Plain Rust.
//!
//! Knows numbers, labels and the problem each row came from; knows nothing of models, text or files.
//! Every estimate is an [`Estimate`]: a value with its interval and the number of independent units,
//! so that no caller can print a number without them. Everything random takes a seed and gives the same answer on
//! any number of threads.
//!
//! | question | here |
//! | --- | --- |
//! | how sure is this accuracy? | [`wilson`], [`accuracy`] |
//! | do two modes differ on the same problems? | [`Flips`] (exact McNemar, score interval), [`sign_flip`] |
//! | are two modes the same within a margin? | [`Flips::p_equivalent`], [`Estimate::p_equivalent`] |
//! | how much does a mean differ on the same problems? | [`Bootstrap::paired`] |
//! | the same, several positions per problem | [`Bootstrap::clustered_mean`], [`Bootstrap::clustered_rows`] |
//! | many ratios over the same problems | [`Bootstrap::columns`] |
//! | what would another seed give? | [`mean_of_runs`] |
//! | many tests at once | [`holm`] |
//! | can a probe read it? | [`probe`] |
//!
//! Checked against SciPy, scikit-learn and statsmodels: `fixtures/stats/make.py` makes the values, `tests/stats.rs` compares them.

#![deny(unsafe_code)]

mod bootstrap;
pub mod by_problem;
mod classify;
mod columns;
mod estimate;
mod groups;
mod holm;
mod lbfgs;
mod logistic;
mod mcnemar;
mod mean_vector;
mod paired_share;
pub mod probe;
mod ranks;
mod scale;
mod sign_flip;
mod softmax;
pub mod special;
mod split;
mod student;
mod wilson;

pub use bootstrap::Bootstrap;
pub use classify::{Rates, auroc, balanced_accuracy};
pub use estimate::{Estimate, unsigned_zero};
pub(crate) use groups::{Groups, distinct};
pub use holm::holm;
pub use logistic::Logistic;
pub use mcnemar::Flips;
pub use mean_vector::MeanVector;
pub use ranks::spearman;
pub use scale::Standardiser;
pub use sign_flip::sign_flip;
pub use softmax::Softmax;
pub use split::{Split, grouped_holdout, grouped_kfold, holdout};
pub use student::{APART, lie_apart, mean_of_runs};
pub use wilson::{accuracy, wilson};

/// The level of every interval unless a caller differs.
pub const LEVEL: f64 = 0.95;

/// The fewest independent units (problems) for a verdict. With fewer, intervals cover less than they promise: the
/// "95 %" bootstrap of a mean covers 50, 72, 87 % of normal data at n = 2, 3, 4, and 46, 68, 81 % of exponential data; at
/// n = 20 it is 94 and 92 % (printed by `cargo test --test suite coverage:: -- --nocapture`).
pub const FEWEST: usize = 20;
