//! Group-relative advantages of rewards.

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
