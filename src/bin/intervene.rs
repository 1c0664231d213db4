//! `intervene`: does the latent step do work? Decodes with the latent inputs replaced.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use burn::tensor::Device;
use clap::Parser;
use switchyard::experiments::latent_intervention::{self, Config, MODES};
use switchyard::experiments::subject::Subject;
use switchyard::report::rows::RowWriter;

/// Replace what enters the latent positions of a run's checkpoint and compare with normal decoding.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:\n  intervene runs/micro\n  intervene runs/micro --modes zero,resample --steps 0,1,2,3,4 --problems 200"
)]
struct Args {
    /// A run folder of `train`.
    run: PathBuf,
    /// Which phase's checkpoint.
    #[arg(long, default_value = "latent")]
    phase: String,
    #[arg(long, value_delimiter = ',', default_values_t = MODES.map(String::from))]
    modes: Vec<String>,
    /// Latent steps to act on, from 0, one row each; all together by default.
    #[arg(long, value_delimiter = ',')]
    steps: Vec<usize>,
    /// Held-out problems; by default those of the run's evaluation.
    #[arg(long)]
    problems: Option<usize>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where the rows go; by default the run's folder `reports`.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    match go(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn go(args: Args) -> Result<()> {
    let subject = Subject::open(&args.run, &args.phase, args.problems, &Device::flex())?;
    let config = Config { modes: args.modes, steps: args.steps, seed: args.seed };
    let rows = latent_intervention::run(&subject, &config, |mode| eprintln!("intervene: {mode}"))?;
    let out = args.out.unwrap_or_else(|| args.run.join("reports"));
    let mut writer = RowWriter::create(&out, &format!("latent_intervention-{}", args.phase))?;
    for row in &rows {
        writer.push(row)?;
    }
    let files = writer.finish()?;
    println!("{}\n{}", latent_intervention::table(&rows), files.parquet.display());
    Ok(())
}
