//! Rows of answers that are drawn several times.

use serde::{Deserialize, Serialize};

use super::Identity;
use crate::stats::Estimate;

/// All problems, k of the samples of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub k: usize,
    /// Drawn of each problem.
    pub samples: usize,
    pub temperature: f64,
    /// One of k is right: the unbiased estimate of each problem, bootstrap over problems.
    pub pass_at_k: Estimate,
    /// The most frequent answer of the first k is right (Wilson).
    pub majority: Estimate,
    /// Distinct answers among the first k.
    pub distinct: Estimate,
    /// Samples with at least one block, bootstrap over problems.
    pub switch_rate: Estimate,
}
