//! `r_brev`: for a right answer after a switch, the margin of its visible tokens below `t_hi`.

use super::{Facts, Reward, RewardTerm, one};

pub(super) const TERM: RewardTerm = RewardTerm { weight: 0.0, value };

fn value(facts: Facts, reward: &Reward) -> f64 {
    let (lo, hi) = (reward.t_lo as f64, reward.t_hi as f64);
    let short = ((hi - facts.trace.visible_tokens() as f64) / (hi - lo).max(1.0)).clamp(0.0, 1.0);
    short * one(facts.correct) * one(facts.used)
}
