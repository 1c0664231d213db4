//! The reward of a rollout, term by term (the paper's appendix, "Reward components"), and group-relative advantages.

use serde::Serialize;

use crate::latent::Trace;
use crate::latent::trace::PositionRole;
use crate::recipe::{Reward, UseReward};

/// What the reward looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub correct: bool,
    pub well_formed: bool,
    pub used: bool,
    pub visible_tokens: usize,
}

impl Facts {
    pub fn of(trace: &Trace, correct: bool) -> Self {
        Self {
            correct,
            well_formed: well_formed(trace),
            used: trace.switched(),
            visible_tokens: trace.visible_tokens(),
        }
    }
}

/// Every `<swi>` is closed by a `</swi>` before the next. No tags at all is well formed.
pub(crate) fn well_formed(trace: &Trace) -> bool {
    let mut open = false;
    for position in &trace.positions {
        match position.kind {
            PositionRole::Swi if open => return false,
            PositionRole::Swi => open = true,
            PositionRole::SwiEndSampled | PositionRole::SwiEndForced if !open => return false,
            PositionRole::SwiEndSampled | PositionRole::SwiEndForced => open = false,
            PositionRole::Text | PositionRole::Latent => {}
        }
    }
    !open
}

/// The unweighted terms and their weighted sum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Terms {
    pub correct: f64,
    pub format: f64,
    pub usage: f64,
    pub brevity: f64,
    pub total: f64,
}

/// `w_c r_corr + w_f r_fmt + w_u r_use + w_b r_brev`.
pub fn reward(facts: Facts, weights: &Reward) -> Terms {
    let sign = |yes: bool| if yes { 1.0 } else { -1.0 };
    let one = |yes: bool| if yes { 1.0 } else { 0.0 };
    let Facts { correct, well_formed, used, visible_tokens } = facts;
    let r_corr = sign(correct);
    let r_fmt = sign(well_formed);
    let r_use = match weights.use_form {
        UseReward::Signed => r_corr * one(well_formed) * one(used),
        UseReward::Gated => one(correct) * one(well_formed) * one(used),
    };
    let (lo, hi) = (weights.t_lo as f64, weights.t_hi as f64);
    let short = ((hi - visible_tokens as f64) / (hi - lo).max(1.0)).clamp(0.0, 1.0);
    let r_brev = short * one(correct) * one(used);
    let total = weights.correct * r_corr + weights.format * r_fmt + weights.usage * r_use + weights.brevity * r_brev;
    Terms { correct: r_corr, format: r_fmt, usage: r_use, brevity: r_brev, total }
}

/// `(R − mean) / (max(std, floor) + 1e-8)` with the unbiased std (the paper's Eq. for `A`, where the floor is 0).
/// `None` where the group has fewer than two members or no variance: it teaches nothing.
pub fn advantages(rewards: &[f64], std_floor: f64) -> Option<Vec<f64>> {
    let n = rewards.len() as f64;
    if rewards.len() < 2 {
        return None;
    }
    let mean = rewards.iter().sum::<f64>() / n;
    let variance = rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0);
    if variance <= 1e-18 {
        return None;
    }
    let scale = variance.sqrt().max(std_floor) + 1e-8;
    Some(rewards.iter().map(|r| (r - mean) / scale).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_eight_combinations_by_hand() {
        let weights = Reward { brevity: 0.1, t_lo: 10, t_hi: 20, ..Reward::default() };
        let gated = Reward { use_form: UseReward::Gated, ..weights.clone() };
        // correct, well formed, used → signed total, gated total; 15 visible tokens: brevity ½ where it pays.
        let table = [
            (true, true, true, 1.0 + 0.1 + 0.1 + 0.05, 1.0 + 0.1 + 0.1 + 0.05),
            (true, true, false, 1.0 + 0.1, 1.0 + 0.1),
            (true, false, true, 1.0 - 0.1 + 0.05, 1.0 - 0.1 + 0.05),
            (true, false, false, 1.0 - 0.1, 1.0 - 0.1),
            (false, true, true, -1.0 + 0.1 - 0.1, -1.0 + 0.1),
            (false, true, false, -1.0 + 0.1, -1.0 + 0.1),
            (false, false, true, -1.0 - 0.1, -1.0 - 0.1),
            (false, false, false, -1.0 - 0.1, -1.0 - 0.1),
        ];
        for (correct, well_formed, used, signed, by_gate) in table {
            let facts = Facts { correct, well_formed, used, visible_tokens: 15 };
            assert!((reward(facts, &weights).total - signed).abs() < 1e-12, "{facts:?}");
            assert!((reward(facts, &gated).total - by_gate).abs() < 1e-12, "{facts:?} gated");
        }
    }

    #[test]
    fn advantages_sum_to_zero_and_empty_groups_are_skipped() {
        let a = advantages(&[1.1, -0.9, 1.2, 1.2, -1.1], 0.0).expect("variance");
        assert!(a.iter().sum::<f64>().abs() < 1e-9);
        let std = (a.iter().map(|x| x * x).sum::<f64>() / 4.0).sqrt();
        assert!((std - 1.0).abs() < 1e-6);
        assert!(advantages(&[1.0; 5], 0.0).is_none());
        assert!(advantages(&[1.0], 0.0).is_none());
        let floored = advantages(&[1.0, 1.1], 0.5).expect("variance");
        assert!((floored[1] - 0.1).abs() < 1e-6);
    }
}
