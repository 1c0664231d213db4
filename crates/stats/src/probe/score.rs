//! Result of our probe protocol. Knows no computation; every `n` counts problems.

use serde::{Deserialize, Serialize};

use super::super::Estimate;

/// The same protocol on labels permuted within each problem (after Hewitt & Liang 2019): what the probe can score from the
/// problem alone, or by memorising.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    pub balanced_accuracy: Estimate,
    /// Balanced accuracy minus the control's, resampled together.
    pub selectivity: Estimate,
    /// Share of rows whose label the permutation changed. At 0 every problem has one class and the control is empty.
    pub moved: f64,
}

/// The scores of one probe under [`GroupedProtocol`](super::GroupedProtocol).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupedScore {
    pub balanced_accuracy: Estimate,
    pub auroc: Estimate,
    /// Share of positives for which the next two are computed.
    pub prevalence: f64,
    pub accuracy_at_prevalence: Estimate,
    /// `None` if the probe calls (nearly) nothing positive.
    pub precision_at_prevalence: Option<Estimate>,
    pub control: Option<Control>,
    pub rows: usize,
    pub positives: usize,
    /// The C chosen in each split.
    pub c: Vec<f64>,
    /// Splits whose final fit met the solver's tolerance.
    pub converged: usize,
}
