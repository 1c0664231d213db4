//! The rows of `experiments/rl-fate.toml`: `cargo run --example rl_fate -- runs/rl-fate OUT` reads the runs of the primary block and
//! writes a row a checkpoint to OUT. `report` draws tables, tests and figure where they stand in a folder of rows.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use switchyard::schema::{AccuracyRow, FateRow, Named, PhaseRow, SwitchBenefitRow};
use switchyard::store::{RowWriter, read, read_flat};

const SEEDS: [u64; 5] = [2, 3, 4, 5, 6];
/// Steps at which weights are kept.
const KEPT: [usize; 4] = [40, 80, 120, FateRow::STEPS];

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
        ensure!(
            kl.len() == FateRow::STEPS,
            "{}: {} steps, {} were planned",
            folder.display(),
            kl.len(),
            FateRow::STEPS
        );
        Ok(Self { folder, replay, budget, seed, kl })
    }

    /// Mean of the five steps before `step`.
    fn kl(&self, step: usize) -> f64 {
        self.kl[step.saturating_sub(5)..step].iter().sum::<f64>() / 5.0
    }

    /// The kept step that is as far from the start as `distance`, as nearly as there is one.
    fn at(&self, distance: f64) -> usize {
        let off = |step: usize| (self.kl(step) - distance).abs();
        KEPT.into_iter().min_by(|a, b| off(*a).total_cmp(&off(*b))).unwrap_or(FateRow::STEPS)
    }

    fn row(&self, step: usize, equal: bool) -> Result<FateRow> {
        let phase = match step {
            0 => "grpo_start".to_owned(),
            step if step == FateRow::STEPS => "grpo".to_owned(),
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
    for (budget, seed) in FateRow::BUDGETS.into_iter().flat_map(|budget| SEEDS.map(|seed| (budget, seed))) {
        let [frozen, full] = FateRow::MODES;
        let runs = [Run::open(root, frozen, budget, seed)?, Run::open(root, full, budget, seed)?];
        let last = runs.each_ref().map(|run| run.kl(FateRow::STEPS));
        for (run, other) in runs.iter().zip([1, 0]) {
            rows.push(run.row(0, false)?);
            let equal = if run.kl(FateRow::STEPS) > last[other] { run.at(last[other]) } else { FateRow::STEPS };
            let tested = budget == FateRow::BUDGETS[0];
            if tested && equal != FateRow::STEPS {
                rows.push(run.row(equal, true)?);
            }
            rows.push(run.row(FateRow::STEPS, tested && equal == FateRow::STEPS)?);
        }
    }
    Ok(rows)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [runs, out] = arguments.as_slice() else { bail!("name the folder of the runs, and one for the rows") };
    let mut rows = RowWriter::create(Path::new(out), FateRow::NAME)?;
    for row in collect(Path::new(runs))? {
        rows.push(&row)?;
    }
    rows.finish()?;
    Ok(())
}
