//! Vocabulary, prompt templates, problems and span annotation. Plain Rust: knows nothing of tensors.
//!
//! problem → prompt text (`templates`, `chat`) → ids (`vocabulary`); base-model entropies → spans → tagged solutions (`annotate`).

pub mod annotate;
mod budget;
mod chat;
pub mod clauses;
mod csv;
mod dates;
pub mod entropies;
mod files;
pub mod formats;
mod jinja;
mod jinja_methods;
mod jinja_source;
mod jinja_values;
mod options;
pub mod problems;
mod record;
pub mod samples;
mod save;
pub mod sources;
pub mod spans;
pub mod special;
mod steps;
mod tables;
pub mod tagging;
pub mod templates;
pub mod vocabulary;
pub mod words;

pub use budget::said_budget;
pub use chat::Chat;
pub use dates::now;
pub(crate) use files::{Part, data_files, has_part, is_there};
pub use problems::Problem;
pub use samples::Sample;
pub use sources::{Fields, Source, read_problems};
pub use sources::{cut, lines};
pub use templates::{Prompts, Template};
pub use vocabulary::Vocabulary;
pub use words::BOS;
