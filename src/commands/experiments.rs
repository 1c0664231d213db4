//! `probe [RUN|MODEL]...`: runs the experiments, one file of rows each.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::print;
use super::results::{Manifest, command, folder, setup};
use super::targets::Targets;
use crate::experiments::{ALL, Experiment, Settings};
use crate::progress::{Progress, stop_flag};
use crate::report::rows::RowWriter;

/// Run the paper's observational experiments on checkpoints.
#[derive(Args, Clone, Debug)]
pub struct Experiments {
    #[command(flatten)]
    targets: Targets,
    /// Run these only (`--list` names them)
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// A recipe of experiments/: its [settings] are used
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    /// Where rows and manifest go; by default reports/<recipe>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Skip what the manifest says was already made with the same weights, problems, settings and seed
    #[arg(long)]
    resume: bool,
    /// List the experiments and what each asks
    #[arg(long)]
    list: bool,
}

impl Experiments {
    /// # Errors
    /// An unknown experiment or a target that cannot be opened, before any work. An experiment that cannot be run on
    /// this data is reported when the others are done.
    pub fn run(&self) -> Result<()> {
        if self.list {
            return print(&ALL.iter().map(|e| format!("{:<18} {}\n", e.name, e.about)).collect::<String>());
        }
        let chosen = self.chosen()?;
        let settings = self.settings()?;
        let labs = self.targets.open()?;
        let (mut failed, mut made) = (vec![], vec![]);
        let mut progress = Progress::new("probe", chosen.len() * labs.len(), 0);
        for (i, lab) in labs.iter().enumerate() {
            let out = folder(self.out.as_deref(), lab);
            let mut manifest = Manifest::open(&out)?;
            let weights = lab.subject.fingerprint()?;
            for (j, experiment) in chosen.iter().enumerate() {
                if stop_flag().load(Ordering::Relaxed) {
                    bail!("stopped; the same command with --resume goes on");
                }
                let name = format!("{}-{}", experiment.name, lab.subject.short_name());
                progress.update(i * chosen.len() + j, &name);
                let setup = setup(lab, &weights, experiment.settings(&settings));
                let parquet = out.join(format!("{name}.parquet"));
                if self.resume && manifest.has(&name, &setup) && parquet.is_file() {
                    print(&format!("{name}: done before ({})\n", parquet.display()))?;
                    continue;
                }
                let started = Instant::now();
                let mut rows = RowWriter::create(&out, &name)?.requiring(&crate::report::rows::IDENTITY);
                match experiment.run(lab, &settings, &mut rows) {
                    Ok(summary) => {
                        let files = rows.finish()?;
                        manifest.add(&name, setup, &command("probe"), started.elapsed().as_secs_f64())?;
                        print(&format!("\n## {name}\n\n{summary}\n{}\n", files.parquet.display()))?;
                        made.push(name);
                    }
                    Err(error) => {
                        rows.discard()?;
                        eprintln!("{name}: not run: {error:#}");
                        failed.push(format!("{name} ({error:#})"));
                    }
                }
            }
            progress.update((i + 1) * chosen.len(), "");
        }
        progress.finish();
        ensure!(failed.is_empty(), "{} of the experiments could not be run: {}", failed.len(), failed.join("; "));
        if let (false, Some(lab)) = (made.is_empty(), labs.first()) {
            let out = folder(self.out.as_deref(), lab);
            print(&format!(
                "\nTables, figures and a page beside the paper's:  cargo run --release --bin report -- {}\n",
                out.display()
            ))?;
        }
        Ok(())
    }

    fn chosen(&self) -> Result<Vec<&'static Experiment>> {
        for name in &self.only {
            if !ALL.iter().any(|e| e.name == name) {
                let known: Vec<_> = ALL.iter().map(|e| e.name).collect();
                bail!("--only: no experiment `{name}`; there are {}", known.join(", "));
            }
        }
        Ok(ALL.iter().filter(|e| self.only.is_empty() || self.only.iter().any(|n| n == e.name)).collect())
    }

    fn settings(&self) -> Result<Settings> {
        let Some(file) = &self.recipe else { return Ok(Settings::default()) };
        let text = std::fs::read_to_string(file).with_context(|| format!("{}: cannot read", file.display()))?;
        let mut table: toml::Table = text.parse().with_context(|| format!("{}: not TOML", file.display()))?;
        let Some(settings) = table.remove("settings") else { return Ok(Settings::default()) };
        settings.try_into().with_context(|| format!("{}: [settings]", file.display()))
    }
}
