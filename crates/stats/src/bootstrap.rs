//! Bootstrap intervals, resampling rows or whole problems. Knows values and group ids, not what they measure.
//!
//! Draw `i` uses ChaCha stream `i` of the seed, so results depend on the seed alone, never on the number of threads.

use anyhow::{Result, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::special::{normal_cdf, t_quantile};
use super::{Estimate, Groups, LEVEL};

/// Settings of the bootstrap. Intervals are percentile intervals of the resampled statistic. If all values agree the interval
/// has no width at any n: for a share of independent rows use [`wilson`](super::wilson).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bootstrap {
    /// Number of resamples. Of five units or fewer all resamples are enumerated instead.
    pub draws: usize,
    pub level: f64,
    /// Seed of all draws.
    pub seed: u64,
    /// Widen the percentiles for few units (Hesterberg 2015, §4.2): α/2 becomes Φ(−√(n/(n−1)) · t_{1−α/2, n−1}). The plain
    /// percentile interval (`false`, what SciPy's `percentile` gives) is too narrow below some 30 units.
    pub expand: bool,
}

/// Units up to which every resample is taken once (5⁵ = 3125) and none is drawn: the interval is then exact.
const ENUMERATED: usize = 5;

impl Default for Bootstrap {
    fn default() -> Self {
        Self { draws: 2000, level: LEVEL, seed: 0, expand: true }
    }
}

impl Bootstrap {
    /// The default settings with another seed.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The base of all others: `statistic` receives how often each of `n` units was drawn (all ones for the estimate
    /// itself) and returns NaN where it is undefined, e.g. no positive among the drawn rows.
    ///
    /// Undefined draws are left out; more than one in twenty is an error, for the interval would describe the lucky draws.
    pub fn units(&self, n: usize, statistic: impl Fn(&[u32]) -> f64 + Sync) -> Result<Estimate> {
        ensure!(n > 1, "a bootstrap needs at least two independent units, got {n}");
        self.check()?;
        let value = statistic(&vec![1; n]);
        ensure!(value.is_finite(), "the statistic is {value} on the data themselves (n = {n} units)");
        let resamples = self.resamples(n);
        let drawn: Vec<f64> = (0..resamples)
            .into_par_iter()
            .map_init(
                || vec![0u32; n],
                |counts, draw| {
                    counts.fill(0);
                    self.draw(draw, n, |unit| counts[unit] += 1);
                    statistic(counts)
                },
            )
            .filter(|v| v.is_finite())
            .collect();
        let undefined = resamples - drawn.len();
        ensure!(
            undefined * 20 <= resamples,
            "the statistic was undefined in {undefined} of {resamples} bootstrap draws of {n} units; too few units carry what it needs"
        );
        Ok(self.percentiles(value, drawn, n))
    }

    /// The estimate of a statistic of `n` units from its values in the resamples, of which there is at least one.
    pub(super) fn percentiles(&self, value: f64, mut drawn: Vec<f64>, n: usize) -> Estimate {
        drawn.sort_by(f64::total_cmp);
        let tail = self.tail(n);
        let (low, high) = (quantile(&drawn, tail), quantile(&drawn, 1.0 - tail));
        // A skewed statistic can be outside its own percentiles; the interval is then extended to it.
        Estimate { value, low: low.min(value), high: high.max(value), n }
    }

    /// Refuses settings that give no interval.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.draws >= 100, "{} bootstrap draws are too few for an interval; use 100 or more", self.draws);
        ensure!(self.level > 0.0 && self.level < 1.0, "confidence level must lie between 0 and 1, got {}", self.level);
        Ok(())
    }

    /// Number of resamples of `n` units: all of them, or `draws`.
    pub(super) fn resamples(&self, n: usize) -> usize {
        if n <= ENUMERATED { n.pow(n as u32) } else { self.draws }
    }

    /// Calls `hit` with each unit of a resample of `n` units with replacement: a random one or, of few units, number `draw` of all.
    pub(super) fn draw(&self, draw: usize, n: usize, mut hit: impl FnMut(usize)) {
        if n <= ENUMERATED {
            (0..n).for_each(|digit| hit(draw / n.pow(digit as u32) % n));
            return;
        }
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(draw as u64);
        (0..n).for_each(|_| hit(rng.random_range(0..n)));
    }

    /// The percentile of the lower end, for `n` units.
    fn tail(&self, n: usize) -> f64 {
        let half = 0.5 * (1.0 - self.level);
        if !self.expand {
            return half;
        }
        let n = n as f64;
        normal_cdf((n / (n - 1.0)).sqrt() * t_quantile(half, n - 1.0))
    }

    /// Mean of independent values.
    pub fn mean(&self, values: &[f64]) -> Result<Estimate> {
        self.mean_over(values, &Groups::new(&(0..values.len()).collect::<Vec<_>>())?)
    }

    /// Mean of `after − before` over the same problems, problems resampled as pairs. Not for shares: where no problem flips the
    /// interval has no width ([`Flips::change`](super::Flips::change) has one).
    pub fn paired(&self, before: &[f64], after: &[f64]) -> Result<Estimate> {
        self.mean(&differences(before, after)?)
    }

    /// Mean over rows that are correlated within a group: whole groups are resampled. `n` is the number of groups.
    pub fn clustered_mean(&self, values: &[f64], groups: &[usize]) -> Result<Estimate> {
        ensure!(values.len() == groups.len(), "{} values but {} group ids", values.len(), groups.len());
        self.mean_over(values, &Groups::new(groups)?)
    }

    /// Mean of `after − before` over rows, whole groups resampled.
    pub fn clustered_paired(&self, before: &[f64], after: &[f64], groups: &[usize]) -> Result<Estimate> {
        self.clustered_mean(&differences(before, after)?, groups)
    }

    /// Any statistic of rows, whole groups resampled: it receives row indices, repeated where their group was drawn twice.
    pub fn clustered_rows(&self, groups: &[usize], statistic: impl Fn(&[usize]) -> f64 + Sync) -> Result<Estimate> {
        let groups = Groups::new(groups)?;
        self.units(groups.len(), |counts| {
            let mut rows = Vec::with_capacity(groups.of_row.len());
            for (members, &times) in groups.members.iter().zip(counts) {
                (0..times).for_each(|_| rows.extend_from_slice(members));
            }
            statistic(&rows)
        })
    }

    fn mean_over(&self, values: &[f64], groups: &Groups) -> Result<Estimate> {
        if let Some((i, v)) = values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
            anyhow::bail!("value number {i} is {v}; a mean needs finite values");
        }
        // Per group only its sum and size matter, which makes a draw cost the number of groups, not of rows.
        let sums: Vec<f64> = groups.members.iter().map(|rows| rows.iter().map(|&r| values[r]).sum()).collect();
        let sizes: Vec<f64> = groups.members.iter().map(|rows| rows.len() as f64).collect();
        self.units(groups.len(), |counts| {
            let (mut sum, mut size) = (0.0, 0.0);
            for (g, &times) in counts.iter().enumerate() {
                sum += f64::from(times) * sums[g];
                size += f64::from(times) * sizes[g];
            }
            sum / size
        })
    }
}

fn differences(before: &[f64], after: &[f64]) -> Result<Vec<f64>> {
    ensure!(
        before.len() == after.len(),
        "paired values differ in length: {} before, {} after",
        before.len(),
        after.len()
    );
    Ok(before.iter().zip(after).map(|(b, a)| a - b).collect())
}

/// Linear interpolation between order statistics (numpy's default); `sorted` is not empty.
fn quantile(sorted: &[f64], p: f64) -> f64 {
    let at = p.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    sorted[below] + (at - below as f64) * (sorted[above] - sorted[below])
}
