//! Sign-flip test: is a mean paired difference 0? For differences with more values than −1, 0 and 1. Knows whole numbers only.

/// Exact two-sided p-value that paired differences are as likely to be positive as negative: their sum against the sums
/// under all 2ⁿ choices of signs (Fisher 1935, §21). Differences of ±1 and 0 give McNemar's exact test.
///
/// With several draws a problem, pass the sum of its draws' differences: problems are exchanged, not draws.
pub fn sign_flip(differences: &[i64]) -> f64 {
    let sizes: Vec<usize> = differences.iter().map(|d| usize::try_from(d.unsigned_abs()).unwrap_or(0)).collect();
    let total: usize = sizes.iter().sum();
    // Probability of each sum of sizes with a positive sign; the sum of differences is twice that minus the total.
    let mut chance = vec![0.0; total + 1];
    chance[0] = 1.0;
    let mut reached = 0;
    for size in sizes.into_iter().filter(|size| *size > 0) {
        reached += size;
        for sum in (0..=reached).rev() {
            let with = if sum >= size { chance[sum - size] } else { 0.0 };
            chance[sum] = 0.5 * (chance[sum] + with);
        }
    }
    let positive: i64 = differences.iter().filter(|d| **d > 0).sum();
    let seen = usize::try_from(positive).unwrap_or(0);
    let up: f64 = chance[seen..].iter().sum();
    let down: f64 = chance[..=seen].iter().sum();
    (2.0 * up.min(down)).min(1.0)
}
