//! Results on disk: typed rows as Parquet and CSV, files that appear whole or not at all, and what a folder of them was made
//! with. Plain Rust: knows serde values and paths, not what a row means.

mod atomic;
mod flat;
mod frame;
mod journal;
mod manifest;
mod partial;
mod rows;

pub use atomic::write_atomic;
pub use flat::{FlatRow, flatten, nest};
pub use frame::{from_frame, to_frame};
pub use journal::Journal;
pub use manifest::{Manifest, command, commit, hex};
pub use rows::{IDENTITY, RowFiles, RowWriter, read, read_flat, typed};
