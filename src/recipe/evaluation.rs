//! Held-out evaluation, and how often state is saved.

use serde::{Deserialize, Serialize};

/// Held-out evaluation after each phase: greedy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluation {
    pub problems: usize,
    pub k_min: usize,
    pub k_cap: usize,
    pub max_new_tokens: usize,
    pub batch: usize,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self { problems: 500, k_min: 4, k_cap: 16, max_new_tokens: 256, batch: 100 }
    }
}

/// How often a run can be resumed from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointEvery {
    /// Optimiser steps.
    pub every: usize,
}

impl Default for CheckpointEvery {
    fn default() -> Self {
        Self { every: 100 }
    }
}
