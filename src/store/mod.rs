//! Results on disk: typed records as Parquet and CSV, atomic writes, and manifests of inputs and settings. Plain Rust: knows serde values
//! and paths, not the meaning of a record.

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

pub use flat::FlatRow;
pub use flat::flatten;
pub use hash::{hex, sha256};
pub use head::{CHECKOUT, commit};
pub use manifest::command;
pub use manifest::{Entry, Manifest, program, quoted, writable};
pub use measurements::Measurements;
pub use model_card::MODEL_CARD;
pub(crate) use model_card::{Placement, certificate, put_certificate};
pub use origin::{ORIGIN, checkpoint, difference, differs};
pub use rows::{IDENTITY, RowFiles, RowWriter, read, read_flat, typed};
pub use rows::{no_formula, read_carried};
pub use switchyard_formats::output::{
    Inside, Lock, copy_folder, ensure_inside, output_path, remove_leftovers, remove_listed, replace_folder, subfolder,
    write_atomic, write_with,
};
pub(crate) use switchyard_formats::output::{open_to_append, scratch_prefix, try_hold};
