//! `report`: from files to verdicts and figures; needs no model.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use switchyard::grade::pairs;
use switchyard::report::curves;

/// Grade answers and render what runs wrote.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:\n  report grade --pairs pairs.jsonl --out graded.jsonl\n  report curves runs/micro"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Grade pairs (JSON lines with "gold" and "pred"); adds "verdict" and "rule" to each.
    Grade {
        /// The pairs to read, one JSON object a line.
        #[arg(long)]
        pairs: PathBuf,
        /// Where to write the graded pairs; replaced only once it is complete.
        #[arg(long)]
        out: PathBuf,
    },
    /// Draw a run's training curves from its rows, into its folder `figures`.
    Curves {
        /// A run folder of `train`.
        run: PathBuf,
    },
}

fn main() -> ExitCode {
    match go(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn go(command: Command) -> Result<()> {
    match command {
        Command::Grade { pairs, out } => {
            let s = pairs::grade_file(&pairs, &out)?;
            println!("{} pairs, {} equal → {}", s.pairs, s.equal, out.display());
            if s.labelled > 0 {
                println!("agrees with \"expected\" in {} of {}", s.agree, s.labelled);
            }
        }
        Command::Curves { run } => {
            for figure in curves::draw(&run)? {
                println!("{}\n{}", figure.svg.display(), figure.png.display());
            }
        }
    }
    Ok(())
}
