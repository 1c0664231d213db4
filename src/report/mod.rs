//! Tables, figures and pages, from rows alone. Knows nothing of tensors.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`rows`] | typed rows to Parquet and CSV and back |

mod atomic;
mod flat;
mod frame;
pub mod rows;

pub use atomic::write_atomic;
