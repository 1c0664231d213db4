//! Results on disk: typed rows as Parquet and CSV, files that appear whole or not at all, and what a folder of them was made
//! with. Plain Rust: knows serde values and paths, not what a row means.

mod atomic;
pub(crate) mod digits;
mod flat;
mod folder;
mod frame;
mod hash;
mod head;
mod inside;
pub(crate) mod json;
mod lock;
mod manifest;
mod measurements;
mod origin;
mod pages;
pub(crate) mod parquet;
mod partial;
mod rows;

pub(crate) use atomic::{write_atomic, written};
pub(crate) use flat::FlatRow;
pub use flat::flatten;
pub(crate) use folder::copy_folder;
pub(crate) use hash::{hex, sha256};
pub use head::commit;
pub(crate) use inside::Inside;
pub(crate) use lock::Lock;
pub use manifest::command;
pub(crate) use manifest::{Entry, Manifest, program, writable};
pub use measurements::Measurements;
pub(crate) use origin::{ORIGIN, checkpoint, difference, differs};
pub use rows::{IDENTITY, RowFiles, RowWriter, read, read_flat, typed};
pub(crate) use rows::{no_formula, read_carried};
