//! Group-relative advantages of rewards, and which rollouts of a group are learnt from.

use crate::latent::Trace;
use crate::recipe::{Grpo, Invalid, LossForm};

/// `(R − mean) / (max(std, floor) + 1e-8)` with the unbiased std (the paper's Eq. for `A`, where the floor is 0).
/// `None` if the group has fewer than two members or no variance: it gives no gradient.
pub fn advantages(rewards: &[f64], std_floor: f64) -> Option<Vec<f64>> {
    scaled(rewards, &|std| std.max(std_floor) + 1e-8)
}

fn scaled(rewards: &[f64], scale: &dyn Fn(f64) -> f64) -> Option<Vec<f64>> {
    let n = rewards.len() as f64;
    if rewards.len() < 2 {
        return None;
    }
    let mean = rewards.iter().sum::<f64>() / n;
    let variance = rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0);
    if variance <= 1e-18 {
        return None;
    }
    let scale = scale(variance.sqrt());
    Some(rewards.iter().map(|r| (r - mean) / scale).collect())
}

/// Advantages of a group's rollouts, and whether the first decision of each is learnt. `None` as in [`advantages`].
pub fn rollout_advantages(rewards: &[f64], traces: &[&Trace], grpo: &Grpo) -> Option<Vec<(f64, bool)>> {
    if grpo.loss == LossForm::Authors {
        // A group without variance has no advantages, but its responses enter the KL term.
        let all = scaled(rewards, &|std| std + 1e-4).unwrap_or_else(|| vec![0.0; rewards.len()]);
        return Some(all.into_iter().map(|advantage| (advantage, true)).collect());
    }
    let valid: Vec<bool> = traces.iter().map(|trace| trace.ends_by_itself()).collect();
    let all = masked(rewards, &valid, grpo.invalid, grpo.std_floor)?;
    let means: Vec<f64> = traces.iter().map(|trace| trace.mean_logprob()).collect();
    let leader = if grpo.first { leader(&all, &means) } else { None };
    Some(all.into_iter().enumerate().map(|(i, advantage)| (advantage, leader.is_none_or(|l| l == i))).collect())
}

/// [`advantages`] of a group with some invalid rollouts (Latent-GRPO's masking of invalid samples).
fn masked(rewards: &[f64], valid: &[bool], invalid: Invalid, std_floor: f64) -> Option<Vec<f64>> {
    let counts = |i: usize| valid[i] || invalid != Invalid::Exclude;
    let counted: Vec<f64> = (0..rewards.len()).filter(|&i| counts(i)).map(|i| rewards[i]).collect();
    let mut learnt = advantages(&counted, std_floor)?.into_iter();
    let advantage = |i: usize| {
        let advantage = if counts(i) { learnt.next().unwrap_or_default() } else { 0.0 };
        if valid[i] || invalid == Invalid::Learn { advantage } else { 0.0 }
    };
    Some((0..rewards.len()).map(advantage).collect())
}

/// The rollout whose first decision alone is learnt: the first with the highest mean log-probability among those with a positive
/// advantage (Latent-GRPO's selection of a first token). `None` if no advantage is positive.
fn leader(advantages: &[f64], mean_logprobs: &[f64]) -> Option<usize> {
    let positive = (0..advantages.len()).rev().filter(|&i| advantages[i] > 0.0);
    positive.max_by(|&a, &b| mean_logprobs[a].total_cmp(&mean_logprobs[b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rollout that ran into a limit is not learnt; its reward counts in the group's mean or not.
    #[test]
    fn invalid_rollouts_are_masked_or_left_out() {
        let (rewards, valid) = ([1.0, -1.0, -1.0, 1.0], [true, true, false, false]);
        let of = |invalid| masked(&rewards, &valid, invalid, 0.0).expect("variance");
        let plain = advantages(&rewards, 0.0).expect("variance");
        assert_eq!(of(Invalid::Learn), plain);
        assert_eq!(of(Invalid::Mask), [plain[0], plain[1], 0.0, 0.0]);
        let pair = advantages(&rewards[..2], 0.0).expect("variance");
        assert_eq!(of(Invalid::Exclude), [pair[0], pair[1], 0.0, 0.0]);
        assert_ne!(pair[0], plain[0], "without the third, the deviation differs");
        assert!(masked(&rewards, &[false, true, false, false], Invalid::Exclude, 0.0).is_none());
    }

    #[test]
    fn the_most_probable_of_the_better_ones_leads() {
        let logprobs = [-1.0, -0.5, -0.1, -0.5];
        assert_eq!(leader(&[0.5, 0.5, -1.5, 0.5], &logprobs), Some(1), "the first of equals; the third is not better");
        assert_eq!(leader(&[1.5, -0.5, -0.5, -0.5], &logprobs), Some(0));
        assert_eq!(leader(&[0.0, 0.0, -1.0, 0.0], &logprobs), None);
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
