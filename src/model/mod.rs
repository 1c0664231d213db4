//! The instrumented decoder. Knows nothing of text or training.

pub mod checkpoint;
pub mod config;
