//! Results on disk: typed rows as Parquet and CSV, files that appear whole or not at all. Plain Rust: knows serde values and
//! paths, not what a row means.

mod atomic;
mod flat;
mod frame;
mod rows;

pub use atomic::write_atomic;
pub use flat::{Row, flatten, nest};
pub use frame::{from_frame, to_frame};
pub use rows::{IDENTITY, RowFiles, RowWriter, read, read_flat};
