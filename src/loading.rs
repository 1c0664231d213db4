//! From what a user names (`--model`: folder, `.gguf` or hub id) to a decoder and its vocabulary.

use anyhow::{Context, Result};
use burn::tensor::Device;

use crate::model::checkpoint::rows::{RowInit, init_row, resize_rows};
use crate::model::{Decoder, checkpoint::Checkpoint};
use crate::text::Vocabulary;

/// How far new rows lie from their seed token's, relative to its root mean square.
const JITTER: f32 = 0.02;

/// The model's tokenizer, where it brings one.
///
/// # Errors
/// A model that cannot be found, a tokenizer that cannot be read or does not fit the embedding.
pub fn vocabulary(model: &str) -> Result<Option<Vocabulary>> {
    let checkpoint = Checkpoint::open(model)?;
    let folder = checkpoint.path.clone();
    if folder.is_dir() {
        if !folder.join("tokenizer.json").exists() {
            return Ok(None);
        }
        let vocabulary = Vocabulary::load(&folder)?;
        vocabulary.check_fits(checkpoint.config.vocab_size)?;
        return Ok(Some(vocabulary));
    }
    let Some(tokenizer) = checkpoint.tokenizer()? else { return Ok(None) };
    let files = checkpoint.text_files(Some(&tokenizer))?;
    let config = files.iter().find(|(name, _)| name == "tokenizer_config.json");
    let config = match config {
        Some((_, bytes)) => serde_json::from_slice(bytes).context("the tokenizer settings of the GGUF")?,
        None => serde_json::Map::new(),
    };
    let vocabulary = Vocabulary::from_tokenizer(tokenizer, config, folder)?;
    vocabulary.check_fits(checkpoint.config.vocab_size)?;
    Ok(Some(vocabulary))
}

/// The model's weights on a device.
///
/// # Errors
/// A model that cannot be found or read.
pub fn decoder(model: &str, device: &Device) -> Result<Decoder> {
    Decoder::load(&Checkpoint::open(model)?, device)
}

/// Gives the decoder exactly the vocabulary's rows; rows of the switch tokens start as a copy of a content-neutral
/// token's plus jitter (method §1), where the model does not have them yet.
///
/// # Errors
/// A table that cannot be resized.
pub fn with_switch_rows(model: Decoder, vocabulary: &Vocabulary, seed: u64) -> Result<Decoder> {
    let rows = vocabulary.size();
    let tokens = vocabulary.switch()?;
    // A line break, a space, or the first token: what carries the least content.
    let neutral = ["\n", "Ċ", " ", "Ġ", ".", ";"].iter().find_map(|t| vocabulary.id(t)).unwrap_or(0);
    let mut table_seed = seed;
    model.resize_tokens(rows, |table| {
        let mut table = table.clone();
        resize_rows(&mut table, rows)?;
        for token in [tokens.swi, tokens.swi_end, tokens.latent] {
            init_row(&mut table, token as usize, &RowInit::Tokens(vec![neutral]), JITTER, table_seed)?;
        }
        table_seed = table_seed.wrapping_add(1);
        Ok(table)
    })
}
