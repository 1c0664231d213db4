//! The programs: check arguments, call the library, print results. One file per program and per subcommand.

pub mod activations;
pub mod adapter;
pub mod bench;
pub mod calibrate;
mod card;
pub mod check;
mod committed;
pub mod completions;
pub mod device;
pub mod door;
pub mod experiments;
pub mod explore;
mod film;
pub mod generate;
pub mod grade;
mod hooks;
mod http;
pub mod import;
mod info;
pub mod intervene;
pub mod lens;
pub mod merge;
mod pairs;
pub mod probe;
pub mod random_weights;
mod reach;
mod render;
pub mod report;
mod request;
mod runner;
pub mod selection;
pub mod session;
pub mod shard;
mod table;
pub mod targets;
mod tensors;
pub mod train;
mod unknown_words;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::de::DeserializeOwned;

use committed::fixture_path;
use switchyard::loading::Checkpoint;
use switchyard::model::checkpoint::peft::Apply;
use switchyard::progress::{Interruption, STOPPED, plain, say};
use switchyard::study::checkpoint;
use targets::{FIXTURE, examined, is_run};

/// Which model.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// A run folder of `train`, a Hugging Face folder, a .gguf file, or a hub id (org/name, org/name@revision,
    /// org/name/file.gguf); by default fixtures/micro
    #[arg(value_name = "RUN|MODEL")]
    target: Option<String>,
    /// The model, if it is not the first argument
    #[arg(long, value_name = "RUN|MODEL", conflicts_with = "target")]
    model: Option<String>,
    /// Phase of a run whose checkpoint is used; by default the last existing one of sft, grpo_start and grpo, or of another method
    #[arg(long)]
    phase: Option<String>,
    /// A PEFT LoRA folder over the model (not a run)
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
}

impl ModelArgs {
    /// Opens the model, an adapter merged into it.
    pub fn open(&self) -> Result<Checkpoint> {
        let over = self.adapter.as_ref().filter(|_| self.is_named()).map(fixture_path);
        Checkpoint::open(&self.named()?, over.as_deref(), Apply::Merged)
    }

    /// Whether the user named a model: an adapter alone names its own base.
    fn is_named(&self) -> bool {
        self.target.is_some() || self.model.is_some()
    }

    /// The model for [`Checkpoint::open`]: for a run, the folder of the checkpoint.
    pub fn named(&self) -> Result<String> {
        if let (Some(adapter), false) = (&self.adapter, self.is_named()) {
            return Ok(fixture_path(adapter).display().to_string());
        }
        let target = self.target.as_deref().or(self.model.as_deref()).unwrap_or(FIXTURE);
        let run = fixture_path(target);
        if !is_run(&run) {
            ensure!(
                self.phase.is_none(),
                "{target}: --phase names a checkpoint of a run, and this is not a run folder"
            );
            return Ok(run.display().to_string());
        }
        ensure!(self.adapter.is_none(), "{target}: --adapter goes over a model, this is a run folder");
        let phase = self.phase.clone().or_else(|| examined(&run).pop()).unwrap_or_else(|| "sft".to_owned());
        Ok(checkpoint(&run, &phase)?.display().to_string())
    }
}

/// Whether the environment requests checks only, without any work.
pub(crate) fn is_dry() -> bool {
    std::env::var_os("SWITCHYARD_DRY_RUN").is_some_and(|value| value == "1")
}

/// A setting by the name that it has in recipes.
pub(crate) fn setting<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    serde_json::from_value(name.into()).map_err(|error| error.to_string())
}

/// Replaces `set` by `named`, if anything is named.
pub(crate) fn put<T>(set: &mut Vec<T>, named: Vec<T>) {
    if !named.is_empty() {
        *set = named;
    }
}

/// Writes a result to standard output. A closed pipe (`| head`) is not an error.
pub fn print(text: &str) -> Result<()> {
    print_styled(&plain(text))
}

/// As [`print`], for a text with our own escape sequences.
pub(crate) fn print_styled(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// Parses a seed; columns of records are signed.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    let seed: u64 = text.parse().map_err(|error| format!("{error}"))?;
    if seed > i64::MAX as u64 {
        Err(format!("a seed is at most {}, the largest that files of rows can store", i64::MAX))
    } else {
        Ok(seed)
    }
}

/// Copies of pipes, which are removed at the end of the program.
static SPOOLED: Mutex<Vec<tempfile::TempDir>> = Mutex::new(vec![]);

/// Bytes of a pipe at most.
const MOST_SPOOLED: u64 = 1 << 30;

/// A path that can be read more than once: a pipe (`<(…)`, `-`) is copied to a temporary file. Everything else stays as it is.
pub(crate) fn spooled(file: &Path) -> Result<PathBuf> {
    let file = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
    if !is_pipe(file) {
        return Ok(file.to_path_buf());
    }
    let place = || format!("{}: cannot read", file.display());
    let folder = tempfile::tempdir().with_context(place)?;
    let mut named = tempfile::Builder::new();
    let mut copy = named.prefix("pipe").suffix(".jsonl").rand_bytes(0).tempfile_in(&folder).with_context(place)?;
    let mut pipe = std::fs::File::open(file).with_context(place)?.take(MOST_SPOOLED + 1);
    let bytes = std::io::copy(&mut pipe, &mut copy).with_context(place)?;
    ensure!(bytes <= MOST_SPOOLED, "{}: more than {MOST_SPOOLED} bytes: write them to a file", file.display());
    SPOOLED.lock().unwrap_or_else(PoisonError::into_inner).push(folder);
    copy.into_temp_path().keep().with_context(place)
}

#[cfg(unix)]
fn is_pipe(file: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(file).is_ok_and(|there| there.file_type().is_fifo() || there.file_type().is_socket())
}

#[cfg(not(unix))]
fn is_pipe(_: &Path) -> bool {
    false
}

/// An error with its causes in one line.
fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Exit of a program: an error is one line on standard error and exit code 2; a stop by the user is not an error and has code 130.
pub fn exit(result: Result<()>) -> ExitCode {
    SPOOLED.lock().unwrap_or_else(PoisonError::into_inner).clear();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let line = one_line(&error);
            if error.is::<Interruption>() {
                say(&line);
                return ExitCode::from(STOPPED);
            }
            say(&format!("error: {line}"));
            ExitCode::from(2)
        }
    }
}
