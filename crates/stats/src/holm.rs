//! Holm's step-down correction for a family of tests (Holm 1979). Knows p-values only.

use anyhow::{Result, ensure};

/// Adjusted p-values in the order given: reject at level α where the adjusted value is <= α.
///
/// With p sorted upwards, `adj(i) = max_{j<=i} min(1, (m − j) p(j))`, j from 0; controls the family-wise error under any
/// dependence.
pub fn holm(p: &[f64]) -> Result<Vec<f64>> {
    if let Some((i, bad)) = p.iter().enumerate().find(|(_, p)| !(0.0..=1.0).contains(*p)) {
        anyhow::bail!("p-value number {i} is {bad}; it must be in [0, 1]");
    }
    ensure!(!p.is_empty(), "no p-values to correct");
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut running = 0.0_f64;
    for (rank, &i) in order.iter().enumerate() {
        running = running.max(((p.len() - rank) as f64 * p[i]).min(1.0));
        adjusted[i] = running;
    }
    Ok(adjusted)
}
