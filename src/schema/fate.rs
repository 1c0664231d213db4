//! Effect of reinforcement learning on latents, with and without a gradient through them: the runs of `experiments/rl-fate.toml`, and
//! its preregistered tests H1 to H6. The unit of every test is a seed.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::stats::special::t_cdf;
use crate::stats::{Bootstrap, Estimate, mean_of_runs, spearman};

rows! {
    /// One checkpoint of a run.
    pub struct FateRow {
        pub replay: String => "name": "how Switch-GRPO replays its rollouts: segmented, text_graph or full_bptt",
        pub budget: usize => AdaptiveRow,
        pub from_step: usize => "steps": "of the last stage of phase 2, after which reinforcement learning began",
        pub seed: u64 => Identity,
        /// [`Self::STEPS`] in the primary block, [`Self::GRID_STEPS`] in the grid.
        pub of: usize => "steps": "of reinforcement learning that the run has",
        pub step: usize => "steps": "of reinforcement learning that are done; 0 is the start",
        pub equal: bool => "true or false": "the two replay modes of a seed are compared here at equal distance from their start",
        pub n: usize => Identity,
        pub accuracy: f64 => AccuracyRow,
        pub switch_rate: f64 => AccuracyRow,
        /// Accuracy with a forced block (`switch_benefit`, all problems), and with `<swi>` forbidden; absent at the end of a grid run.
        pub with_block: Option<f64> => SwitchBenefitRow,
        pub without_block: Option<f64> => SwitchBenefitRow,
        pub kl: f64 => "nats a token": "from the start, mean over the last five steps",
    }
}

/// Which checkpoint of a run is compared with its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonPoint {
    AtTheEnd,
    /// The stored step at which the two modes of a seed have the same distance from their start (`kl`).
    AtEqualDistance,
}

impl FateRow {
    /// The paper's replay, with frozen latents; and the gradient that its abstract describes.
    pub const MODES: [&'static str; 2] = ["segmented", "full_bptt"];
    /// Budgets of the primary block; four and five steps as text do not fit the first.
    pub const BUDGETS: [usize; 2] = [30, 80];
    /// Steps of a run of the primary block, which starts from step 50.
    pub const STEPS: usize = 160;
    pub const FROM_STEP: usize = 50;
    /// Seeds of the plan.
    pub const SEEDS: usize = 5;
    /// Steps of a run of the grid.
    pub const GRID_STEPS: usize = 80;

    /// Accuracy with a block minus without.
    pub fn benefit(&self) -> Option<f64> {
        Some(self.with_block? - self.without_block?)
    }
}

/// Test of a hypothesis: one value per seed.
#[derive(Clone, Debug)]
pub struct FateTest {
    /// The tested column.
    pub of: &'static str,
    pub name: &'static str,
    pub values: Vec<f64>,
}

impl FateTest {
    /// Mean over seeds with Student's 95 % interval; `n` counts seeds.
    ///
    /// # Errors
    /// Fewer than two seeds; seeds with equal values.
    pub fn estimate(&self) -> Result<Estimate> {
        mean_of_runs(&self.values)
    }

    /// Two-sided p-value of Student's t-test against 0.
    pub fn p(&self) -> Result<f64> {
        let n = self.values.len() as f64;
        let mean = self.estimate()?.value;
        let variance = self.values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Ok(2.0 * t_cdf(-mean.abs() / (variance / n).sqrt(), n - 1.0))
    }
}

/// Start and end of each run of the primary block under a mode and a budget, in order of seeds.
pub fn runs<'a>(
    rows: &'a [FateRow],
    compared: ComparisonPoint,
    (mode, budget): (&str, usize),
) -> Result<Vec<[&'a FateRow; 2]>> {
    let in_primary = |row: &&FateRow| row.of == FateRow::STEPS && row.replay == mode && row.budget == budget;
    let mut starts: Vec<&FateRow> = rows.iter().filter(in_primary).filter(|row| row.step == 0).collect();
    starts.sort_by_key(|row| row.seed);
    ensure!(!starts.is_empty(), "{mode}, budget {budget}: no runs");
    let ends = |row: &&FateRow| match compared {
        ComparisonPoint::AtTheEnd => row.step == row.of,
        ComparisonPoint::AtEqualDistance => row.equal,
    };
    let run = |start: &'a FateRow| {
        let end = rows.iter().filter(in_primary).filter(ends).find(|row| row.seed == start.seed);
        Ok([start, end.with_context(|| format!("{mode}, budget {budget}, seed {}: no end", start.seed))?])
    };
    starts.into_iter().map(run).collect()
}

/// H1 to H3: change under `full_bptt` minus under `segmented`, small budget. H4: change of the switch rate, `segmented`, large budget.
pub fn fate_tests(rows: &[FateRow], compared: ComparisonPoint) -> Result<Vec<FateTest>> {
    let [frozen, full] = FateRow::MODES;
    let [small, large] = FateRow::BUDGETS;
    let change = |[start, end]: &[&FateRow; 2], value: fn(&FateRow) -> f64| value(end) - value(start);
    let (without, with) = (runs(rows, compared, (frozen, small))?, runs(rows, compared, (full, small))?);
    let seeds = |runs: &[[&FateRow; 2]]| runs.iter().map(|[start, _]| start.seed).collect::<Vec<_>>();
    ensure!(seeds(&without) == seeds(&with), "budget {small}: the two modes have different seeds");
    let more = |of, name, value: fn(&FateRow) -> f64| {
        let values = with.iter().zip(&without).map(|(with, without)| change(with, value) - change(without, value));
        FateTest { of, name, values: values.collect() }
    };
    let mut tests = vec![
        more("with_block", "H1: accuracy with a forced block, budget 30, full_bptt less segmented", |row| {
            row.with_block.unwrap_or(f64::NAN)
        }),
        more("switch_rate", "H2: switch rate, budget 30, full_bptt less segmented", |row| row.switch_rate),
        more("accuracy", "H3: accuracy, budget 30, full_bptt less segmented", |row| row.accuracy),
    ];
    if compared == ComparisonPoint::AtTheEnd {
        let large_budget = runs(rows, compared, (frozen, large))?;
        let values = large_budget.iter().map(|run| change(run, |row| row.switch_rate)).collect();
        tests.push(FateTest { of: "switch_rate", name: "H4: switch rate, budget 80, segmented", values });
    }
    Ok(tests)
}

/// A cell of the grid: the runs of one start and one budget under a mode.
#[derive(Clone, Debug)]
pub struct FateCell {
    pub budget: usize,
    /// By seed: the benefit of a block at the start, and the change of the switch rate.
    pub runs: BTreeMap<u64, (f64, f64)>,
}

/// Relation of benefit and change of the switch rate under a mode, over the seeds with all cells.
#[derive(Clone, Debug)]
pub struct Law {
    pub cells: Vec<FateCell>,
    pub seeds: Vec<u64>,
    /// H5: Spearman's correlation of benefit and change over the cells' means, bootstrap over seeds.
    pub correlation: Estimate,
    /// H6: for each seed the change at a benefit of 0, by a least-squares line over its cells.
    pub intercepts: Vec<f64>,
}

/// Start and end of a run, if recorded.
type FateEnds<'a> = [Option<&'a FateRow>; 2];

/// Fits the grid under a mode; `None` if fewer than two seeds have all cells.
pub fn law(rows: &[FateRow], mode: &str) -> Result<Option<Law>> {
    let mut cells: BTreeMap<(usize, usize), BTreeMap<u64, FateEnds<'_>>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.of == FateRow::GRID_STEPS && row.replay == mode) {
        let run = cells.entry((row.from_step, row.budget)).or_default().entry(row.seed).or_default();
        run[usize::from(row.step > 0)] = Some(row);
    }
    let cells: Vec<FateCell> = cells
        .into_iter()
        .map(|((_, budget), runs)| {
            let whole = |(seed, [start, end]): (u64, FateEnds<'_>)| {
                Some((seed, (start?.benefit()?, end?.switch_rate - start?.switch_rate)))
            };
            FateCell { budget, runs: runs.into_iter().filter_map(whole).collect() }
        })
        .collect();
    let Some(first) = cells.first() else { return Ok(None) };
    let seeds: Vec<u64> =
        first.runs.keys().copied().filter(|seed| cells.iter().all(|cell| cell.runs.contains_key(seed))).collect();
    if seeds.len() < 2 {
        return Ok(None);
    }
    let weighted = |weights: &[u32]| {
        let total = f64::from(weights.iter().sum::<u32>());
        let mean = |value: fn((f64, f64)) -> f64| -> Vec<f64> {
            let of = |cell: &FateCell| {
                let sum: f64 = seeds.iter().zip(weights).map(|(seed, w)| f64::from(*w) * value(cell.runs[seed])).sum();
                sum / total
            };
            cells.iter().map(of).collect()
        };
        spearman(&mean(|run| run.0), &mean(|run| run.1))
    };
    let correlation = Bootstrap::default().units(seeds.len(), weighted)?;
    let intercept = |seed: &u64| at_zero(&cells.iter().map(|cell| cell.runs[seed]).collect::<Vec<_>>());
    let intercepts = seeds.iter().map(intercept).collect();
    Ok(Some(Law { cells, seeds, correlation, intercepts }))
}

/// The least-squares line through the points, at x = 0.
fn at_zero(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let covariance: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let variance: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    y - x * covariance / variance
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(replay: &str, budget: usize, seed: u64, step: usize, with_block: f64) -> FateRow {
        FateRow {
            replay: replay.to_owned(),
            budget,
            from_step: FateRow::FROM_STEP,
            seed,
            of: FateRow::STEPS,
            step,
            equal: step == FateRow::STEPS,
            n: 500,
            accuracy: with_block,
            switch_rate: with_block,
            with_block: Some(with_block),
            without_block: Some(0.5),
            kl: 0.0,
        }
    }

    #[test]
    fn the_tests_are_scipys_over_seeds() {
        let mut rows = vec![];
        for (seed, gain) in [(4, 0.3), (2, 0.1), (3, 0.2)] {
            for (mode, gain) in [("segmented", 0.05), ("full_bptt", gain)] {
                for budget in FateRow::BUDGETS {
                    rows.extend([row(mode, budget, seed, 0, 0.4), row(mode, budget, seed, FateRow::STEPS, 0.4 + gain)]);
                }
            }
        }
        let tests = fate_tests(&rows, ComparisonPoint::AtTheEnd).expect("all runs");
        // scipy.stats.ttest_1samp([.05, .15, .25], 0): t = 2.598, p = .12169.
        let (h1, p) = (tests[0].estimate().expect("seeds"), tests[0].p().expect("seeds"));
        assert!((h1.value - 0.15).abs() < 1e-12 && h1.n == 3, "{h1:?}");
        assert!((p - 0.121_69).abs() < 1e-5, "{p}");
        assert!(
            tests[0].values.iter().zip([0.05, 0.15, 0.25]).all(|(a, b)| (a - b).abs() < 1e-12),
            "in order of seeds"
        );
        assert_eq!(tests.len(), 4);
        rows.retain(|row| row.seed != 3 || row.replay == "segmented");
        assert!(fate_tests(&rows, ComparisonPoint::AtTheEnd).is_err(), "a seed that one mode lacks");
        rows.retain(|row| row.step == 0);
        assert!(fate_tests(&rows, ComparisonPoint::AtTheEnd).is_err(), "runs without an end");
    }

    #[test]
    fn the_law_is_a_correlation_over_cells_and_a_line_a_seed() {
        let mut rows = vec![];
        for (cell, benefit) in [-0.2, -0.1, 0.1, 0.3].into_iter().enumerate() {
            for seed in [2, 3, 4] {
                let start = FateRow { without_block: Some(0.4 - benefit), ..row("segmented", 30, seed, 0, 0.4) };
                let start = FateRow { from_step: 25 * (cell + 1), of: FateRow::GRID_STEPS, ..start };
                // change = 0.05 seed + 0.5 benefit
                let switch_rate = 0.4 + 0.05 * seed as f64 + 0.5 * benefit;
                rows.push(FateRow { step: FateRow::GRID_STEPS, switch_rate, ..start.clone() });
                rows.push(start);
            }
        }
        let of = law(&rows, "segmented").expect("a law").expect("seeds");
        assert_eq!((of.correlation.value, of.correlation.n, of.cells.len()), (1.0, 3, 4));
        let wanted = of.seeds.iter().map(|seed| 0.05 * *seed as f64);
        assert!(of.intercepts.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9), "{of:?}");
        assert!(law(&rows, "full_bptt").expect("nothing").is_none());
        rows.retain(|row| row.seed == 2 || row.from_step == 25);
        assert!(law(&rows, "segmented").expect("one seed").is_none());
    }
}
