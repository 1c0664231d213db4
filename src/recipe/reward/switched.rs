//! `r_switched`: 1 where the response has a block, whatever its answer. Nobody should want it: a policy that is paid for it alone is one
//! that must be stopped (`grpo.early_stop_window`).

use super::{RewardTerm, one};

pub(super) const TERM: RewardTerm = RewardTerm { weight: 0.0, value: |facts, _| one(facts.used) };
