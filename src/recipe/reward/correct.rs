//! `r_corr`: 1 if the answer is right, else −1.

use super::{RewardTerm, sign};

pub(super) const TERM: RewardTerm = RewardTerm { weight: 1.0, value: |facts, _| sign(facts.correct) };
