//! The programs `train`, `probe`, `intervene` and `report`, on the library `switchyard`.
//!
//! `commands` checks arguments, calls the library and prints; `report` makes tables, figures and pages from rows, without a model.
//! Public for the tests; not a stable interface.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod commands;
#[doc(hidden)]
pub mod report;
