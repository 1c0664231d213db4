//! The rows of `experiments/rl-fate.toml`: `cargo run --example rl_fate -- runs/rl-fate OUT` reads the runs of the primary block and of
//! the grid, and writes one row per checkpoint to OUT; rows of blocks or seeds without runs are kept. `report` draws tables, tests and
//! figure from a folder with these rows.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use switchyard::schema::{AccuracyRow, FateRow, PhaseRow, RowFile, SwitchBenefitRow};
use switchyard::store::{RowWriter, read, read_flat};

const SEEDS: [u64; FateRow::SEEDS] = [2, 3, 4, 5, 6];
/// Steps of the primary block at which weights are saved.
const KEPT: [usize; 4] = [40, 80, 120, FateRow::STEPS];
/// Start steps of the grid.
const STARTS: [usize; 4] = [25, 50, 100, 300];
const BUDGETS: [usize; 3] = [80, 30, 24];

/// Training settings of a run.
#[derive(Clone, Copy)]
struct Cell {
    replay: &'static str,
    budget: usize,
    from_step: usize,
    seed: u64,
}

impl Cell {
    fn primary(replay: &'static str, budget: usize, seed: u64) -> Self {
        Self { replay, budget, from_step: FateRow::FROM_STEP, seed }
    }
}

struct Run {
    of: Cell,
    folder: PathBuf,
    /// KL per step.
    kl: Vec<f64>,
}

impl Run {
    fn primary(root: &Path, of: Cell) -> Result<Self> {
        let name = format!("evaluation.max_new_tokens={}+seed={}", of.budget, of.seed);
        Self::open(root.join(format!("primary-{}", of.replay)).join(name), of, FateRow::STEPS)
    }

    fn of_grid(root: &Path, of: Cell) -> Result<Self> {
        let name = format!("grpo.from_step={}+evaluation.max_new_tokens={}", of.from_step, of.budget);
        let seed = root.join(format!("grid-{}", of.replay)).join(format!("seed={}", of.seed));
        Self::open(seed.join(name), of, FateRow::GRID_STEPS)
    }

    fn open(folder: PathBuf, of: Cell, planned: usize) -> Result<Self> {
        let steps = read_flat(&folder.join("grpo/metrics.parquet"))?;
        let kl: Option<Vec<f64>> = steps.iter().map(|row| row.get("kl")?.as_f64()).collect();
        let kl = kl.with_context(|| format!("{}: a step without kl", folder.display()))?;
        ensure!(kl.len() == planned, "{}: {} steps, {planned} were planned", folder.display(), kl.len());
        Ok(Self { of, folder, kl })
    }

    fn last(&self) -> usize {
        self.kl.len()
    }

    /// Mean of the five steps before `step`.
    fn kl(&self, step: usize) -> f64 {
        self.kl[step.saturating_sub(5)..step].iter().sum::<f64>() / 5.0
    }

    /// The saved step whose KL from the start is nearest to `distance`.
    fn at(&self, distance: f64) -> usize {
        let off = |step: usize| (self.kl(step) - distance).abs();
        KEPT.into_iter().min_by(|a, b| off(*a).total_cmp(&off(*b))).unwrap_or(FateRow::STEPS)
    }

    fn row(&self, step: usize, equal: bool) -> Result<FateRow> {
        let phase = match step {
            0 => "grpo_start".to_owned(),
            step if step == self.last() => "grpo".to_owned(),
            step => format!("grpo_step{step}"),
        };
        // The start of a cell of the grid is the same under both modes and was measured once.
        let measured = match (step, self.last()) {
            (0, FateRow::GRID_STEPS) => Self::of_grid_folder(&self.folder, self.of.replay),
            _ => self.folder.clone(),
        };
        let reports = measured.join("reports");
        let all = match (step, self.last()) {
            (FateRow::GRID_STEPS, FateRow::GRID_STEPS) => None,
            _ => {
                let worth: Vec<SwitchBenefitRow> = read(&reports.join(format!("switch_benefit-{phase}.parquet")))?;
                Some(worth.into_iter().find(|row| row.group == "all").context("no group of all problems")?)
            }
        };
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
            replay: self.of.replay.to_owned(),
            budget: self.of.budget,
            from_step: self.of.from_step,
            seed: self.of.seed,
            of: self.last(),
            step,
            equal,
            n: accuracy.n,
            accuracy: accuracy.value,
            switch_rate: switch_rate.value,
            with_block: all.as_ref().map(|row| row.with_block.value),
            without_block: all.as_ref().map(|row| row.without_block.value),
            kl: if step == 0 { 0.0 } else { self.kl(step) },
        })
    }

    /// The folder of the same cell under the paper's replay.
    fn of_grid_folder(folder: &Path, replay: &str) -> PathBuf {
        let text = folder.to_string_lossy().replace(&format!("grid-{replay}"), &format!("grid-{}", FateRow::MODES[0]));
        PathBuf::from(text)
    }
}

/// The rows of the primary block. The mode that moved farther also has a row at the step where it was as far as the other.
fn primary(root: &Path) -> Result<Vec<FateRow>> {
    let mut rows = vec![];
    for (budget, seed) in FateRow::BUDGETS.into_iter().flat_map(|budget| SEEDS.map(|seed| (budget, seed))) {
        let [frozen, full] = FateRow::MODES.map(|mode| Run::primary(root, Cell::primary(mode, budget, seed)));
        let runs = [frozen?, full?];
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

/// The rows of the grid for seeds that have all cells under both modes; for others the rows of `before`.
fn grid(root: &Path, before: &[FateRow]) -> Result<Vec<FateRow>> {
    let mut rows = vec![];
    for seed in SEEDS {
        let cells = FateRow::MODES.into_iter().flat_map(|replay| {
            BUDGETS.into_iter().flat_map(move |budget| STARTS.map(|from_step| Cell { replay, budget, from_step, seed }))
        });
        let runs: Result<Vec<Run>> = cells.map(|cell| Run::of_grid(root, cell)).collect();
        match runs {
            Ok(runs) => {
                for run in runs {
                    rows.extend([run.row(0, false)?, run.row(FateRow::GRID_STEPS, false)?]);
                }
            }
            Err(why) => {
                eprintln!("seed {seed} is left as it was: {why:#}");
                rows.extend(before.iter().filter(|row| row.of == FateRow::GRID_STEPS && row.seed == seed).cloned());
            }
        }
    }
    Ok(rows)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [runs, out] = arguments.as_slice() else { bail!("name the folder of the runs, and one for the rows") };
    let (runs, out) = (Path::new(runs), Path::new(out));
    let file = out.join(format!("{}.parquet", FateRow::NAME));
    let before: Vec<FateRow> = if file.is_file() { read(&file)? } else { vec![] };
    let block = |name: &str, of: usize, collect: &dyn Fn() -> Result<Vec<FateRow>>| {
        let there = FateRow::MODES.iter().all(|mode| runs.join(format!("{name}-{mode}")).is_dir());
        if there { collect() } else { Ok(before.iter().filter(|row| row.of == of).cloned().collect()) }
    };
    let mut all = block("primary", FateRow::STEPS, &|| primary(runs))?;
    all.extend(block("grid", FateRow::GRID_STEPS, &|| grid(runs, &before))?);
    let mut rows = RowWriter::create(out, FateRow::NAME)?;
    all.iter().try_for_each(|row| rows.push(row))?;
    rows.finish()?;
    Ok(())
}
