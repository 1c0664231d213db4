//! Vocabulary, prompt templates, problems and span annotation. Plain Rust: knows nothing of tensors.
//!
//! problem → prompt text (`templates`) → ids (`vocabulary`); base-model entropies → spans → tagged solutions (`annotate`).

pub mod annotate;
pub mod clauses;
pub mod entropies;
mod fits;
pub mod formats;
pub mod problems;
mod record;
pub mod samples;
mod save;
pub mod sources;
pub mod spans;
pub mod special;
pub mod tagging;
pub mod templates;
pub mod vocabulary;
pub mod words;

pub use problems::Problem;
pub use samples::Sample;
pub use sources::{Fields, Source, read_problems};
pub use templates::Template;
pub use vocabulary::{SwitchTokens, Vocabulary};
