//! `r_switched`: 1 if the response has a block, whatever its answer. Only for tests of the early stop: a policy with this reward alone hacks
//! it (`grpo.early_stop_window`).

use super::{RewardTerm, one};

pub(super) const TERM: RewardTerm = RewardTerm { weight: 0.0, value: |facts, _| one(facts.used) };
