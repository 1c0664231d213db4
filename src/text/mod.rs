//! Vocabulary, prompt templates, problems and span annotation. Plain Rust: knows nothing of tensors.
//!
//! problem → prompt text (`templates`) → ids (`vocabulary`); base-model entropies → spans → tagged solutions (`annotate`).

pub mod annotate;
pub mod entropies;
pub mod formats;
pub mod problems;
mod record;
pub mod samples;
mod save;
pub mod sources;
pub mod spans;
pub mod special;
pub mod tagging;
pub mod templates;
pub mod vocabulary;
pub mod words;

pub use problems::Problem;
pub use samples::Sample;
pub use sources::{Source, read_problems};
pub use templates::Template;
pub use vocabulary::{SwitchTokens, Vocabulary};

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

/// Writes a file so that a reader, or a run after a crash, sees the old contents or the new and never a part.
pub fn write_atomic(file: &Path, bytes: &[u8]) -> Result<()> {
    let name = file.file_name().with_context(|| format!("{}: not a file name", file.display()))?;
    let part = file.with_file_name(format!(".{}.{}.tmp", name.display(), std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut open = std::fs::File::create(&part)?;
        open.write_all(bytes)?;
        open.sync_all()?;
        std::fs::rename(&part, file)
    };
    write().with_context(|| format!("{}: cannot write", file.display()))
}
