//! The tests of `experiments/rl-fate.toml`, H1 to H4, as they were written before the runs: does reinforcement learning keep the
//! latents, and does a gradient through the recurrence decide it? `cargo run --example rl_fate -- runs/rl-fate OUT` reads the
//! runs of the primary block and writes a row a checkpoint to OUT; `-- OUT` alone reads these rows.

use std::path::Path;

use anyhow::{Context, Error, Result, ensure};
use serde::{Deserialize, Serialize};

use switchyard::schema::{SweepRow, SwitchBenefitRow};
use switchyard::stats::special::t_cdf;
use switchyard::stats::{holm, mean_of_runs, sign_flip};
use switchyard::store::{RowWriter, read, read_flat};

/// Replay modes of the primary block: the paper's, and the gradient that its abstract has.
const MODES: [&str; 2] = ["segmented", "full_bptt"];
const BUDGETS: [usize; 2] = [30, 80];

/// A checkpoint of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FateRow {
    pub replay: String,
    /// Of visible tokens, in rollouts and in evaluation.
    pub budget: usize,
    pub seed: u64,
    /// Steps of reinforcement learning.
    pub step: usize,
    /// Held-out problems.
    pub n: usize,
    pub accuracy: f64,
    pub switch_rate: f64,
    /// Right with a forced block, and with none (`switch_benefit`, all problems).
    pub with_block: f64,
    pub without_block: f64,
    /// Mean over the last five steps, in nats a token against the start; 0 there.
    pub kl: f64,
    pub grad_norm: f64,
}

/// The rows of the runs below `root`.
fn collect(root: &Path) -> Result<Vec<FateRow>> {
    let mut rows = vec![];
    for mode in MODES {
        let folder = root.join(format!("primary-{mode}"));
        let sweep: Vec<SweepRow> = read(&folder.join("sweep.parquet"))?;
        for row in sweep.iter().filter(|row| matches!(row.result.phase.as_str(), "grpo" | "grpo_start")) {
            let budget = row.point.rsplit('=').next().and_then(|b| b.parse().ok()).context("a budget")?;
            let (seed, phase) = (row.result.identity.seed, row.result.phase.as_str());
            let run = folder.join(format!("evaluation.max_new_tokens={budget}+seed={seed}"));
            let worth: Vec<SwitchBenefitRow> =
                read(&run.join("reports").join(format!("switch_benefit-{phase}.parquet")))?;
            let all = worth.iter().find(|row| row.group == "all").context("no group of all problems")?;
            let steps = read_flat(&run.join("grpo/metrics.parquet"))?;
            let last = |column: &str| {
                let values: Vec<f64> = steps.iter().rev().take(5).filter_map(|row| row.get(column)?.as_f64()).collect();
                values.iter().sum::<f64>() / values.len().max(1) as f64
            };
            let begun = phase == "grpo_start";
            rows.push(FateRow {
                replay: mode.to_owned(),
                budget,
                seed,
                step: if begun { 0 } else { steps.len() },
                n: row.result.identity.n,
                accuracy: row.result.accuracy.value,
                switch_rate: row.result.switch_rate.value,
                with_block: all.with_block.value,
                without_block: all.without_block.value,
                kl: if begun { 0.0 } else { last("kl") },
                grad_norm: if begun { 0.0 } else { last("grad_norm") },
            });
        }
    }
    Ok(rows)
}

/// What one seed has at a budget: the row after `step` steps under a mode less the row at the start.
fn change(rows: &[FateRow], (mode, budget, seed): (&str, usize, u64), value: fn(&FateRow) -> f64) -> Result<f64> {
    let of = |begun: bool| {
        let mut all = rows.iter().filter(|r| r.replay == mode && r.budget == budget && r.seed == seed);
        all.find(|r| (r.step == 0) == begun).with_context(|| format!("{mode}, budget {budget}, seed {seed}: no row"))
    };
    Ok(value(of(false)?) - value(of(true)?))
}

/// A hypothesis: a value a seed, its mean with an interval, and two p-values.
struct Test {
    name: &'static str,
    values: Vec<f64>,
}

impl Test {
    /// Two-sided p of Student's t over the seeds.
    fn p(&self) -> Result<f64> {
        let of = mean_of_runs(&self.values)?;
        let n = self.values.len() as f64;
        let variance = self.values.iter().map(|x| (x - of.value).powi(2)).sum::<f64>() / (n - 1.0);
        Ok(2.0 * t_cdf(-of.value.abs() / (variance / n).sqrt(), n - 1.0))
    }

    /// Exact, by flips of signs: never below 2 / 2ⁿ.
    fn sign_flip_p(&self, problems: usize) -> f64 {
        let counts: Vec<i64> = self.values.iter().map(|x| (x * problems as f64).round() as i64).collect();
        sign_flip(&counts)
    }
}

fn tests(rows: &[FateRow]) -> Result<Vec<Test>> {
    let mut seeds: Vec<u64> = rows.iter().map(|row| row.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let more = |name, value: fn(&FateRow) -> f64| -> Result<Test> {
        let of = |&seed: &u64| {
            Ok::<f64, Error>(change(rows, (MODES[1], 30, seed), value)? - change(rows, (MODES[0], 30, seed), value)?)
        };
        Ok(Test { name, values: seeds.iter().map(of).collect::<Result<_>>()? })
    };
    let lowers = seeds.iter().map(|&seed| change(rows, (MODES[0], 80, seed), |row| row.switch_rate));
    Ok(vec![
        more("H1: accuracy with a forced block, budget 30, full_bptt less segmented", |row| row.with_block)?,
        more("H2: switch rate, budget 30, full_bptt less segmented", |row| row.switch_rate)?,
        more("H3: accuracy, budget 30, full_bptt less segmented", |row| row.accuracy)?,
        Test { name: "H4: switch rate, budget 80, segmented", values: lowers.collect::<Result<_>>()? },
    ])
}

/// Means over seeds of each cell at the start and at the end, then the four tests.
fn told(rows: &[FateRow]) -> Result<String> {
    let mut out = "| budget | replay | step | accuracy | switch rate | with a block | without | kl |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n".to_owned();
    let last = rows.iter().map(|row| row.step).max().unwrap_or_default();
    for (budget, mode, step) in
        BUDGETS.iter().flat_map(|b| MODES.iter().flat_map(move |m| [(*b, *m, 0), (*b, *m, last)]))
    {
        let cell: Vec<&FateRow> =
            rows.iter().filter(|r| (r.budget, r.replay.as_str(), r.step) == (budget, mode, step)).collect();
        let mean = |value: fn(&FateRow) -> f64| -> Result<String> {
            let of = mean_of_runs(&cell.iter().map(|row| value(row)).collect::<Vec<_>>())?.share();
            Ok(format!("{:.3} [{:.3}, {:.3}]", of.value, of.low, of.high))
        };
        let kl = cell.iter().map(|row| row.kl).sum::<f64>() / cell.len() as f64;
        let values =
            [mean(|r| r.accuracy)?, mean(|r| r.switch_rate)?, mean(|r| r.with_block)?, mean(|r| r.without_block)?];
        out += &format!("| {budget} | {mode} | {step} | {} | {kl:.4} |\n", values.join(" | "));
    }
    let (tests, problems) = (tests(rows)?, rows.first().context("no rows")?.n);
    let p: Vec<f64> = tests.iter().map(Test::p).collect::<Result<_>>()?;
    out += "\n| hypothesis | mean over seeds [95 %] | by seed | p (t) | Holm | p (sign flips) |\n| --- | --- | --- | --- | --- | --- |\n";
    for ((test, p), held) in tests.iter().zip(&p).zip(holm(&p)?) {
        let of = mean_of_runs(&test.values)?;
        let each: Vec<String> = test.values.iter().map(|x| format!("{x:+.3}")).collect();
        let (name, exact) = (test.name, test.sign_flip_p(problems));
        out += &format!(
            "| {name} | {:+.3} [{:+.3}, {:+.3}] | {} | {p:.2e} | {held:.2e} | {exact:.4} |\n",
            of.value,
            of.low,
            of.high,
            each.join(", ")
        );
    }
    Ok(out)
}

/// The tables of a folder of rows.
pub fn found(folder: &Path) -> Result<String> {
    told(&read(&folder.join("rl_fate.parquet"))?)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    ensure!(matches!(arguments.len(), 1 | 2), "name a folder of rows, or the folder of the runs and one for the rows");
    let out = Path::new(&arguments[arguments.len() - 1]);
    if let [runs, _] = arguments.as_slice() {
        let mut rows = RowWriter::create(out, "rl_fate")?;
        for row in collect(Path::new(runs))? {
            rows.push(&row)?;
        }
        rows.finish()?;
    }
    print!("{}", found(out)?);
    Ok(())
}
