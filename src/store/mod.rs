//! Results on disk: typed records as Parquet and CSV, atomic writes, and manifests of inputs and settings. Plain Rust: knows serde values
//! and paths, not the meaning of a record.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub mod digits;
mod flat;
mod frame;
mod hash;
mod head;
pub(crate) mod json;
mod manifest;
mod measurements;
mod model_card;
mod origin;
mod pages;
pub mod parquet;
mod partial;
mod rows;

pub use flat::{FlatRow, flatten};
pub use hash::{hex, sha256};
pub use head::{CHECKOUT, commit};
pub use manifest::{Entry, Manifest, command, program, quoted, writable};
pub use measurements::Measurements;
pub use model_card::MODEL_CARD;
pub(crate) use model_card::{Placement, certificate, put_certificate};
pub use origin::{ORIGIN, checkpoint, difference, differs};
pub use rows::{IDENTITY, RowFiles, RowWriter, no_formula, read, read_carried, read_flat, typed};
pub use switchyard_formats::output::{
    Inside, Lock, copy_folder, ensure_inside, output_path, remove_leftovers, remove_listed, replace_folder, subfolder,
    write_atomic, write_with,
};
pub(crate) use switchyard_formats::output::{open_to_append, scratch_prefix, try_hold};

/// Paths of a folder's entries, by name.
pub(crate) fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("{}: cannot list", folder.display());
    let entries = std::fs::read_dir(folder).with_context(failed)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<std::io::Result<Vec<_>>>().with_context(failed)?;
    paths.sort();
    Ok(paths)
}

/// The name of a path's last part.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
