//! `r_corr`: 1 for the right answer, −1 for another.

use super::{RewardTerm, sign};

pub(super) const TERM: RewardTerm = RewardTerm { weight: 1.0, value: |facts, _| sign(facts.correct) };
