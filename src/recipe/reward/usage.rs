//! `r_use`: rewards a switch in a well-formed response, by the formula of `use_form`.

use super::{Facts, Reward, RewardTerm, UseReward, one, sign};

pub(super) const TERM: RewardTerm = RewardTerm { weight: 0.1, value };

fn value(facts: Facts, reward: &Reward) -> f64 {
    let paid = match reward.use_form {
        UseReward::Signed => sign(facts.correct),
        UseReward::Gated => one(facts.correct),
    };
    paid * one(facts.well_formed) * one(facts.used)
}
