//! Tables, figures and pages, from rows alone. Knows nothing of tensors.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`rows`] | typed rows to Parquet and CSV and back |
//! | [`paper`] | what the paper reports, and its claims as comparisons |

mod atomic;
mod claims;
pub mod figures;
mod flat;
mod frame;
pub mod paper;
pub mod rows;

pub use atomic::write_atomic;
