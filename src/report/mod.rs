//! Tables, figures and pages, from rows alone. Knows nothing of tensors.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`rows`] | typed rows to Parquet and CSV and back |
//! | [`paper`] | what the paper reports, and its claims as comparisons |
//! | [`tables`] | tables whose numbers keep interval and n, as Markdown, CSV and LaTeX |
//! | [`figures`] | charts as SVG and PNG |

mod atomic;
mod claims;
pub mod curves;
pub mod figures;
mod flat;
mod frame;
pub mod paper;
mod render_table;
pub mod rows;
pub mod tables;

pub use atomic::write_atomic;
