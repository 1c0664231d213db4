//! What the binaries do: arguments checked, calls made, results printed. One file per subcommand.

pub mod activations;
mod capture;
mod chosen;
pub mod completions;
pub mod device;
pub mod experiments;
pub mod generate;
pub mod intervene;
mod render;
pub mod results;
pub mod targets;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::loading::Opened;
use crate::model::checkpoint::peft::Apply;
use crate::progress::{plain, say};

/// Which model.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// A Hugging Face folder, a .gguf file, or a hub id (org/name, org/name@revision, org/name/file.gguf)
    #[arg(long)]
    pub model: String,
    /// A PEFT LoRA folder over the model
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
}

impl ModelArgs {
    /// Opens the model, an adapter merged into it.
    ///
    /// # Errors
    /// As [`Opened::open`].
    pub fn open(&self) -> Result<Opened> {
        Opened::open(&self.model, self.adapter.as_deref(), Apply::Merged)
    }
}

/// `1,2,3` as ids.
///
/// # Errors
/// What is not a number, by itself.
pub(crate) fn parse_ids(text: &str) -> Result<Vec<u32>> {
    if text.trim().is_empty() {
        bail!("--ids is empty: write token ids, for example --ids 1,2,3");
    }
    let one = |part: &str| part.trim().parse().with_context(|| format!("--ids: `{part}` is not a token id"));
    text.split(',').map(one).collect()
}

/// Writes a result to standard output. A reader that has gone away (`| head`) is no error.
///
/// # Errors
/// Any other trouble with standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(plain(text).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// The end of a binary: an error is one line on standard error and exit code 2.
pub fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let line = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
            say(&format!("error: {line}"));
            ExitCode::from(2)
        }
    }
}
