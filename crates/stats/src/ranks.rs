//! Rank correlation. Knows numbers only.

/// Spearman's ρ: the correlation of ranks, ties sharing theirs. NaN where one side does not vary, or lengths differ.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::NAN;
    }
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(&b).map(|(x, y)| f(x - mean, y - mean)).sum::<f64>();
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

/// Ranks from 0; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    while from < order.len() {
        let same = order[from..].iter().take_while(|&&i| values[i] == values[order[from]]).count().max(1);
        let rank = from as f64 + (same as f64 - 1.0) / 2.0;
        order[from..from + same].iter().for_each(|&i| ranks[i] = rank);
        from += same;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::spearman;

    /// `scipy.stats.spearmanr([1, 2, 2, 5, 7], [3, 1, 4, 4, 9])`.
    #[test]
    fn ties_share_their_ranks() {
        assert!(
            (spearman(&[1.0, 2.0, 2.0, 5.0, 7.0], &[3.0, 1.0, 4.0, 4.0, 9.0]) - 0.763_157_894_736_842).abs() < 1e-9
        );
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[5.0, 4.0, -1.0]), -1.0);
        assert!(spearman(&[1.0, 1.0], &[1.0, 2.0]).is_nan() && spearman(&[1.0], &[]).is_nan());
    }
}
