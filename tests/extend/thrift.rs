//! A stranger's reward term: latent steps cost.

use super::Term;

pub(super) const TERM: Term = Term { weight: 0.0, value: |facts, _| -(facts.trace.latent_calls() as f64) };
