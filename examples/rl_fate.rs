//! The tests of `experiments/rl-fate.toml`, H1 to H4, as they were written before the runs: does reinforcement learning keep the
//! latents, and does a gradient through the recurrence decide it? `cargo run --example rl_fate -- runs/rl-fate OUT` reads the
//! runs of the primary block and writes a row a checkpoint to OUT; `-- OUT` alone reads these rows.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use switchyard::schema::{AccuracyRow, PhaseRow, SwitchBenefitRow};
use switchyard::stats::special::t_cdf;
use switchyard::stats::{holm, mean_of_runs, sign_flip};
use switchyard::store::{RowWriter, read, read_flat};

/// Replay modes of the primary block: the paper's, and the gradient that its abstract has.
const MODES: [&str; 2] = ["segmented", "full_bptt"];
const BUDGETS: [usize; 2] = [30, 80];
const SEEDS: [u64; 5] = [2, 3, 4, 5, 6];
/// Steps at which weights are kept.
const KEPT: [usize; 4] = [40, 80, 120, 160];

/// A checkpoint of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FateRow {
    pub replay: String,
    /// Of visible tokens, in rollouts and in evaluation.
    pub budget: usize,
    pub seed: u64,
    /// Steps of reinforcement learning.
    pub step: usize,
    /// Whether the two modes are compared here at equal distance from their start.
    pub equal: bool,
    /// Held-out problems.
    pub n: usize,
    pub accuracy: f64,
    pub switch_rate: f64,
    /// Right with a forced block, and with none (`switch_benefit`, all problems).
    pub with_block: f64,
    pub without_block: f64,
    /// Mean over the last five steps, in nats a token against the start; 0 there.
    pub kl: f64,
}

/// A run of the primary block.
struct Run {
    folder: PathBuf,
    replay: &'static str,
    budget: usize,
    seed: u64,
    /// By step.
    kl: Vec<f64>,
}

impl Run {
    fn open(root: &Path, replay: &'static str, budget: usize, seed: u64) -> Result<Self> {
        let name = format!("evaluation.max_new_tokens={budget}+seed={seed}");
        let folder = root.join(format!("primary-{replay}")).join(name);
        let steps = read_flat(&folder.join("grpo/metrics.parquet"))?;
        let kl: Option<Vec<f64>> = steps.iter().map(|row| row.get("kl")?.as_f64()).collect();
        let kl = kl.with_context(|| format!("{}: a step without kl", folder.display()))?;
        ensure!(kl.len() == KEPT[3], "{}: {} steps, {} were planned", folder.display(), kl.len(), KEPT[3]);
        Ok(Self { folder, replay, budget, seed, kl })
    }

    /// Mean of the five steps before `step`.
    fn kl(&self, step: usize) -> f64 {
        self.kl[step.saturating_sub(5)..step].iter().sum::<f64>() / 5.0
    }

    /// The kept step that is as far from the start as `distance`, as nearly as there is one.
    fn at(&self, distance: f64) -> usize {
        let off = |step: usize| (self.kl(step) - distance).abs();
        KEPT.into_iter().min_by(|a, b| off(*a).total_cmp(&off(*b))).unwrap_or(KEPT[3])
    }

    fn row(&self, step: usize, equal: bool) -> Result<FateRow> {
        let phase = match step {
            0 => "grpo_start".to_owned(),
            step if step == KEPT[3] => "grpo".to_owned(),
            step => format!("grpo_step{step}"),
        };
        let reports = self.folder.join("reports");
        let worth: Vec<SwitchBenefitRow> = read(&reports.join(format!("switch_benefit-{phase}.parquet")))?;
        let all = worth.iter().find(|row| row.group == "all").context("no group of all problems")?;
        let (accuracy, switch_rate) = if phase.starts_with("grpo_step") {
            let rows: Vec<AccuracyRow> = read(&reports.join(format!("accuracy-{phase}.parquet")))?;
            let free = rows.iter().find(|row| row.group == "all").context("no group of all problems")?;
            (free.accuracy, free.switch_rate)
        } else {
            let rows: Vec<PhaseRow> = read(&self.folder.join("summary.parquet"))?;
            let free = rows.iter().find(|row| row.phase == phase).with_context(|| format!("no phase {phase}"))?;
            (free.accuracy, free.switch_rate)
        };
        Ok(FateRow {
            replay: self.replay.to_owned(),
            budget: self.budget,
            seed: self.seed,
            step,
            equal,
            n: all.identity.n,
            accuracy: accuracy.value,
            switch_rate: switch_rate.value,
            with_block: all.with_block.value,
            without_block: all.without_block.value,
            kl: if step == 0 { 0.0 } else { self.kl(step) },
        })
    }
}

/// The rows of the runs below `root`. Of the two modes the one that went farther is also read where it was as far as the other.
fn collect(root: &Path) -> Result<Vec<FateRow>> {
    let mut rows = vec![];
    for (budget, seed) in BUDGETS.into_iter().flat_map(|budget| SEEDS.map(|seed| (budget, seed))) {
        let runs = [Run::open(root, MODES[0], budget, seed)?, Run::open(root, MODES[1], budget, seed)?];
        let last = runs.each_ref().map(|run| run.kl(KEPT[3]));
        for (run, other) in runs.iter().zip([1, 0]) {
            rows.push(run.row(0, false)?);
            let equal = if run.kl(KEPT[3]) > last[other] { run.at(last[other]) } else { KEPT[3] };
            let tested = budget == BUDGETS[0];
            if tested && equal != KEPT[3] {
                rows.push(run.row(equal, true)?);
            }
            rows.push(run.row(KEPT[3], tested && equal == KEPT[3])?);
        }
    }
    Ok(rows)
}

/// Which rows after the start are compared.
#[derive(Clone, Copy, PartialEq)]
enum Compared {
    AtTheEnd,
    AtEqualDistance,
}

/// What reinforcement learning changed for one seed at a budget under a mode.
fn change(
    rows: &[FateRow],
    compared: Compared,
    (mode, budget, seed): (&str, usize, u64),
    value: fn(&FateRow) -> f64,
) -> Result<f64> {
    let of = |begun: bool| {
        let mut all = rows.iter().filter(|r| r.replay == mode && r.budget == budget && r.seed == seed);
        let after = |r: &FateRow| if compared == Compared::AtTheEnd { r.step == KEPT[3] } else { r.equal };
        all.find(|r| if begun { r.step == 0 } else { after(r) })
            .with_context(|| format!("{mode}, budget {budget}, seed {seed}: no row"))
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

fn tests(rows: &[FateRow], compared: Compared) -> Result<Vec<Test>> {
    let more = |name, value: fn(&FateRow) -> f64| -> Result<Test> {
        let of = |mode: usize, seed: u64| change(rows, compared, (MODES[mode], 30, seed), value);
        let values: Result<Vec<f64>> = SEEDS.iter().map(|&seed| Ok(of(1, seed)? - of(0, seed)?)).collect();
        Ok(Test { name, values: values? })
    };
    let mut tests = vec![
        more("H1: accuracy with a forced block, budget 30, full_bptt less segmented", |row| row.with_block)?,
        more("H2: switch rate, budget 30, full_bptt less segmented", |row| row.switch_rate)?,
        more("H3: accuracy, budget 30, full_bptt less segmented", |row| row.accuracy)?,
    ];
    if compared == Compared::AtTheEnd {
        let of = |&seed: &u64| change(rows, compared, (MODES[0], 80, seed), |row| row.switch_rate);
        let values: Result<Vec<f64>> = SEEDS.iter().map(of).collect();
        tests.push(Test { name: "H4: switch rate, budget 80, segmented", values: values? });
    }
    Ok(tests)
}

/// The tests as a table, Holm over all of it.
fn table(tests: &[Test], problems: usize) -> Result<String> {
    let mut out = "| hypothesis | mean over seeds [95 %] | by seed | p (t) | Holm | p (sign flips) |\n".to_owned();
    out += "| --- | --- | --- | --- | --- | --- |\n";
    let p: Vec<f64> = tests.iter().map(Test::p).collect::<Result<_>>()?;
    for ((test, p), held) in tests.iter().zip(&p).zip(holm(&p)?) {
        let of = mean_of_runs(&test.values)?;
        let each: Vec<String> = test.values.iter().map(|x| format!("{x:+.3}")).collect();
        let interval = format!("{:+.3} [{:+.3}, {:+.3}]", of.value, of.low, of.high);
        let (name, each, exact) = (test.name, each.join(", "), test.sign_flip_p(problems));
        out += &format!("| {name} | {interval} | {each} | {p:.2e} | {held:.2e} | {exact:.4} |\n");
    }
    Ok(out)
}

/// Means over seeds of each cell at the start and at the end, then the tests.
fn told(rows: &[FateRow]) -> Result<String> {
    let mut out =
        "| budget | replay | step | accuracy | switch rate | right with a block | right without | kl |\n".to_owned();
    out += "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    let cells = BUDGETS.iter().flat_map(|b| MODES.iter().flat_map(move |m| [(*b, *m, 0), (*b, *m, KEPT[3])]));
    for (budget, mode, step) in cells {
        let here = |r: &&FateRow| (r.budget, r.replay.as_str(), r.step) == (budget, mode, step);
        let cell: Vec<&FateRow> = rows.iter().filter(here).collect();
        let mean = |value: fn(&FateRow) -> f64| -> Result<String> {
            let of = mean_of_runs(&cell.iter().map(|row| value(row)).collect::<Vec<_>>())?.share();
            Ok(format!("{:.3} [{:.3}, {:.3}]", of.value, of.low, of.high))
        };
        let kl = cell.iter().map(|row| row.kl).sum::<f64>() / cell.len() as f64;
        let [accuracy, switch, with] = [mean(|r| r.accuracy)?, mean(|r| r.switch_rate)?, mean(|r| r.with_block)?];
        let without = mean(|r| r.without_block)?;
        out += &format!("| {budget} | {mode} | {step} | {accuracy} | {switch} | {with} | {without} | {kl:.3} |\n");
    }
    let problems = rows.first().context("no rows")?.n;
    out += &format!("\n{}", table(&tests(rows, Compared::AtTheEnd)?, problems)?);
    out += "\nThe same at equal distance (kl) from the start:\n\n";
    out += &table(&tests(rows, Compared::AtEqualDistance)?, problems)?;
    let steps: Vec<String> =
        rows.iter().filter(|r| r.equal).map(|r| format!("{} {}: {}", r.replay, r.seed, r.step)).collect();
    Ok(out + &format!("\nSteps by mode and seed: {}.\n", steps.join(", ")))
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
