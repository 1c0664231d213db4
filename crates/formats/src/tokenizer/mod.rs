//! A model's tokenizer and chat templates from its files, as `transformers` 5.24 and llama.cpp read them. Knows folders and GGUF's word
//! lists, no weights.
//!
//! A folder has `tokenizer.json`, or files of older programs: `vocab.json` with `merges.txt`, or SentencePiece's `tokenizer.model`.
//! Guesses and omissions are listed in [`TextSide::notes`].

mod added;
mod classes;
mod fits;
mod folder;
pub mod pieces;
mod sentencepiece;
pub mod split;
mod templates;

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use crate::guard::guarded;

pub use added::{kind, roles};
pub use folder::{KEPT, has_tokenizer, read, read_object, templates_in};
pub use split::Split;
pub use templates::Templates;

/// Ids of the three tokens that the method adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SwitchIds {
    /// `<swi>`
    pub swi: u32,
    /// `</swi>`
    pub swi_end: u32,
    /// `<latent>`
    pub latent: u32,
}

/// The text side of a model.
#[derive(Clone, Debug)]
pub struct TextSide {
    pub tokenizer: Tokenizer,
    /// `tokenizer_config.json`, unchanged.
    pub config: Map<String, Value>,
    /// Tokens by their part: `bos_token`, `eos_token`, …
    pub roles: Map<String, Value>,
    pub templates: Option<Templates>,
    /// The file that the tokenizer comes from, for messages.
    pub source: PathBuf,
    /// Guesses and omissions.
    pub notes: Vec<String>,
}

/// A tokenizer from the text of a `tokenizer.json`.
pub fn parse(json: &[u8], source: &std::path::Path) -> Result<Tokenizer> {
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: not a tokenizer.json: {error}", source.display());
    let parts: fits::Parts = serde_json::from_slice(json).map_err(|error| failed(&error))?;
    parts.check().map_err(|error| failed(&error))?;
    // The crate panics at some files that are JSON, but no tokenizer.
    let read =
        guarded(|| Tokenizer::from_bytes(json)).map_err(|panic| failed(&format!("its parts do not fit: {panic}")))?;
    read.map_err(|error| failed(&error))
}
