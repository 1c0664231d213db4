//! A third-party reward term: a cost per latent step.

use super::RewardTerm;

pub(super) const TERM: RewardTerm = RewardTerm { weight: 0.0, value: |facts, _| -(facts.trace.latent_calls() as f64) };
