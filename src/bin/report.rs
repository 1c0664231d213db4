//! Reports: grade pairs of answers; tables and figures from rows.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use switchyard::grade::pairs;

#[derive(Parser)]
#[command(version, about = "Grades answers and renders what experiments wrote")]
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
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Grade { pairs, out } => {
            let s = pairs::grade_file(&pairs, &out)?;
            println!("{} pairs, {} equal → {}", s.pairs, s.equal, out.display());
            if s.labelled > 0 {
                println!("agrees with \"expected\" in {} of {}", s.agree, s.labelled);
            }
        }
    }
    Ok(())
}
