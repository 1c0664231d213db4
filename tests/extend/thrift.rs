//! A stranger's reward term: latent steps cost.

use super::RewardTerm;

pub(super) const TERM: RewardTerm = RewardTerm { weight: 0.0, value: |facts, _| -(facts.trace.latent_calls() as f64) };
