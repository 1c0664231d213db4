//! Vocabulary, prompt templates, problems and span annotation. Plain Rust: knows nothing of tensors.
//!
//! problem → prompt text (`templates`) → ids (`vocabulary`); base-model entropies → spans → tagged solutions (`annotate`).

pub mod annotate;
pub mod clauses;
pub mod entropies;
mod files;
mod fits;
pub mod formats;
pub mod problems;
mod record;
pub mod samples;
mod save;
pub mod sources;
pub mod spans;
pub mod special;
mod tables;
pub mod tagging;
pub mod templates;
pub mod vocabulary;
pub mod words;

pub(crate) use files::{Part, data_files, has_part};
pub use problems::Problem;
pub use samples::Sample;
pub use sources::{Fields, Source, read_problems};
pub(crate) use sources::{cut, lines};
pub use templates::Template;
pub use vocabulary::{SwitchTokens, Vocabulary};
