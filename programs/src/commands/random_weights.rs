//! `probe random-weights`: a model of any shape without a download.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::print;
use switchyard::model::ModelConfig;
use switchyard::model::checkpoint::write_random;

/// Write a model of any shape with random weights, to measure a machine with: a folder in bf16, or a .gguf in Q8_0.
///
/// It has no tokenizer: run it on --ids, or put a tokenizer.json next to the weights.
#[derive(Args, Debug)]
pub struct RandomWeights {
    /// The config.json with the model's shape
    #[arg(value_name = "CONFIG.json")]
    config: PathBuf,
    /// A folder, or a file whose name ends in .gguf
    #[arg(long, value_name = "FOLDER|FILE.gguf")]
    out: PathBuf,
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl RandomWeights {
    pub fn run(&self) -> Result<()> {
        let config = ModelConfig::read(&self.config)?;
        write_random(&config, &self.out, self.seed)?;
        print(&format!("{}\n", self.out.display()))
    }
}
