//! `r_fmt`: 1 if the response is well formed, else −1.

use super::{RewardTerm, sign};

pub(super) const TERM: RewardTerm = RewardTerm { weight: 0.1, value: |facts, _| sign(facts.well_formed) };
