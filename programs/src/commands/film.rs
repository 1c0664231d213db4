//! `probe film`: the experiment `film` on every kept checkpoint of a run, one after another, then its report.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;

use super::card::print_report;
use super::committed::fixture_path;
use super::device::MachineArgs;
use super::is_dry;
use super::runner::Runner;
use super::selection::{OutArgs, Selection};
use super::targets::{FIXTURE, Targets, examined, is_run};
use switchyard::experiments::Settings;
use switchyard::machine::Machine;
use switchyard::schema::{BlockOrigin, FilmRow, RowFile};
use switchyard::study::kept_checkpoints;

/// Film a training run: what each latent step does at every kept checkpoint, and where that changes.
///
/// Checkpoints of one phase, in the order of training: ends of stages and latent.keep_steps of a supervised phase; of grpo its start and
/// those of grpo.keep_every. Writes rows, tab:film (a change-point test for each step), fig:film and a page.
#[derive(Args, Clone, Debug)]
pub(super) struct Film {
    /// A run folder of `train`; by default fixtures/micro
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// The phase; by default the last one that is examined by `probe`
    #[arg(long)]
    phase: Option<String>,
    /// Number of held-out problems; by default that of the run's evaluation
    #[arg(long, value_name = "N")]
    problems: Option<usize>,
    /// Latent steps that are replaced one at a time, from the first, at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    steps: u16,
    #[command(flatten)]
    rows: OutArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

impl Film {
    pub fn run(&self) -> Result<()> {
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let run = fixture_path(self.run.as_deref().unwrap_or(FIXTURE));
        ensure!(is_run(&run), "{}: not a run folder of `train`: a film needs its checkpoints", run.display());
        let Some(phase) = self.phase.clone().or_else(|| examined(&run).pop()) else {
            bail!("{}: no phase has a checkpoint yet", run.display())
        };
        let frames = kept_checkpoints(&run, &phase)?;
        ensure!(
            frames.len() > 1,
            "{}: one checkpoint of phase {phase}, a film needs two: train with stages, latent.keep_steps or grpo.keep_every, or name another \
             phase with --phase",
            run.display()
        );
        let mut settings = Settings::default();
        (settings.film.steps, settings.film.frames) = (usize::from(self.steps), frames.clone());
        let mut rows = self.rows.clone();
        // One after another: the checkpoints of a run need not fit into memory together.
        for frame in frames {
            let folder = self.frame(&run, frame, &settings, &rows, machine)?;
            rows.out = folder.or(rows.out);
        }
        if is_dry() { Ok(()) } else { print_report(&rows.out) }
    }

    /// Measures one checkpoint; returns the folder of its rows.
    fn frame(
        &self,
        run: &Path,
        frame: String,
        settings: &Settings,
        rows: &OutArgs,
        machine: &Machine,
    ) -> Result<Option<PathBuf>> {
        let targets = &Targets {
            targets: vec![run.display().to_string()],
            phase: vec![frame],
            problems: self.problems,
            ..Targets::default()
        };
        let chosen = &Selection::one(FilmRow::NAME, rows);
        let runner = Runner { program: "probe", targets, chosen, settings, blocks: BlockOrigin::Own, less: false };
        Ok(runner.run(machine)?.pop_first())
    }
}
