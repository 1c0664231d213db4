//! `probe teacher-forced`: the switch statistics of a run's checkpoint.

use std::path::PathBuf;

use anyhow::Result;
use burn::tensor::Device;
use clap::Args;

use crate::experiments::subject::{Subject, tag_held_out};
use crate::experiments::teacher_forced;
use crate::report::rows::RowWriter;

/// How sharply does a run's checkpoint place `<swi>`? (tab:tf)
#[derive(Args)]
pub struct TeacherForced {
    /// A run folder of `train`.
    run: PathBuf,
    /// Which phase's checkpoint.
    #[arg(long, default_value = "latent")]
    phase: String,
    /// Held-out problems; by default those of the run's evaluation.
    #[arg(long)]
    problems: Option<usize>,
    /// Of the bootstrap.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where the rows go; by default the run's folder `reports`.
    #[arg(long)]
    out: Option<PathBuf>,
}

impl TeacherForced {
    /// # Errors
    /// A folder that is not a run, data without a boundary, a disk that cannot be written.
    pub fn run(self) -> Result<()> {
        let device = Device::flex();
        let subject = Subject::open(&self.run, &self.phase, self.problems, &device)?;
        let tagged = tag_held_out(&self.run, &subject, &device)?;
        let rows = teacher_forced::run(&subject, &tagged, self.seed)?;
        let out = self.out.unwrap_or_else(|| self.run.join("reports"));
        let mut writer = RowWriter::create(&out, &format!("teacher_forced-{}", self.phase))?;
        for row in &rows {
            writer.push(row)?;
        }
        let files = writer.finish()?;
        println!("{}\n{}", teacher_forced::table(&rows), files.parquet.display());
        Ok(())
    }
}
