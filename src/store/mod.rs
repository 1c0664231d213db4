//! Results on disk: typed rows as Parquet and CSV, files that appear whole or not at all, and what a folder of them was made
//! with. Plain Rust: knows serde values and paths, not what a row means.

mod atomic;
pub mod digits;
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
pub mod parquet;
mod partial;
mod rows;

pub use atomic::{write_atomic, written};
pub use flat::FlatRow;
pub use flat::flatten;
pub use folder::copy_folder;
pub use hash::{hex, sha256};
pub use head::{CHECKOUT, commit};
pub use inside::Inside;
pub use lock::Lock;
pub use manifest::command;
pub use manifest::{Entry, Manifest, program, quoted, writable};
pub use measurements::Measurements;
pub use origin::{ORIGIN, checkpoint, difference, differs};
pub use rows::{IDENTITY, RowFiles, RowWriter, read, read_flat, typed};
pub use rows::{no_formula, read_carried};
