//! `Vocabulary`: a `tokenizers::Tokenizer` together with the ids the decoder must know by name.
//!
//! Knows the files `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and `generation_config.json`.
//! They are written back by `save`. Knows nothing of embeddings beyond their number of rows ([`Vocabulary::check_fits`]).

use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, ensure};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use super::fits::Parts;
use super::special::{self, SpecialIds};
use crate::guard::guarded;

pub(crate) const SWI: &str = "<swi>";
pub(crate) const SWI_END: &str = "</swi>";
pub const LATENT: &str = "<latent>";

/// Ids of the three tokens that the method adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchTokens {
    pub swi: u32,
    pub swi_end: u32,
    pub latent: u32,
}

/// Ids of a text, and the bytes of the text that each id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub ids: Vec<u32>,
    pub offsets: Vec<(usize, usize)>,
}

/// A tokenizer and its special ids.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    pub(super) tokenizer: Tokenizer,
    special: SpecialIds,
    /// `tokenizer_config.json` as it was read; written back with the added tokens put in.
    pub(super) config: Map<String, Value>,
    switch: Option<SwitchTokens>,
    source: PathBuf,
}

impl Vocabulary {
    /// Reads a model folder, or a `tokenizer.json` with its neighbours.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_path_buf() };
        let bytes = std::fs::read(&file)
            .with_context(|| format!("{}: cannot read; a model folder needs tokenizer.json", file.display()))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        let config = special::read_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let tokenizer = parse(&bytes, &file)?;
        let special = SpecialIds::read(&tokenizer, &config, folder)?;
        Self::new(tokenizer, special, config, file)
    }

    /// A tokenizer that exists in memory only (of a GGUF file, say) and its `tokenizer_config.json` object. `source` names
    /// them in errors.
    pub(crate) fn from_tokenizer(
        tokenizer: Tokenizer,
        config: Map<String, Value>,
        source: impl Into<PathBuf>,
    ) -> Result<Self> {
        let source = source.into();
        let special = SpecialIds::of(&tokenizer, &[(&source, &config)])?;
        Self::new(tokenizer, special, config, source)
    }

    fn new(mut tokenizer: Tokenizer, special: SpecialIds, config: Map<String, Value>, source: PathBuf) -> Result<Self> {
        // Files saved by a training script may carry these; they would cut or fill every text silently.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| anyhow!("{}: {error}", source.display()))?;
        let mut vocabulary = Vocabulary { tokenizer, special, config, switch: None, source };
        vocabulary.switch = vocabulary.find_switch()?;
        Ok(vocabulary)
    }

    fn find_switch(&self) -> Result<Option<SwitchTokens>> {
        let found = [SWI, SWI_END, LATENT].map(|token| self.tokenizer.token_to_id(token));
        match found {
            [Some(swi), Some(swi_end), Some(latent)] => Ok(Some(SwitchTokens { swi, swi_end, latent })),
            [None, None, None] => Ok(None),
            _ => Err(anyhow!(
                "{}: expected all of {SWI}, {SWI_END}, {LATENT} or none, found ids {found:?}",
                self.source.display()
            )),
        }
    }

    /// The switch tokens: those of the file, or three new ones with ids `size() + {0, 1, 2}`.
    pub fn add_switch_tokens(&mut self) -> Result<SwitchTokens> {
        if let Some(switch) = self.switch {
            return Ok(switch);
        }
        let first = self.size() as u32;
        let added = [SWI, SWI_END, LATENT].map(|token| AddedToken::from(token, true).normalized(false));
        self.tokenizer
            .add_special_tokens(added)
            .map_err(|error| anyhow!("{}: cannot add {SWI}: {error}", self.source.display()))?;
        let expected = SwitchTokens { swi: first, swi_end: first + 1, latent: first + 2 };
        let found = self.find_switch()?;
        ensure!(
            found == Some(expected),
            "{}: ids have holes: expected the added tokens at {expected:?}, found {found:?}",
            self.source.display()
        );
        self.switch = found;
        Ok(expected)
    }

    /// The switch tokens of a vocabulary that must have them.
    pub fn switch(&self) -> Result<SwitchTokens> {
        self.switch.with_context(|| {
            format!("{}: has no {SWI}, {SWI_END}, {LATENT}; train phase 1 first, or add them", self.source.display())
        })
    }

    /// Ids in use, added tokens included: the rows an embedding needs.
    pub fn size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Refuses an embedding matrix with fewer rows than there are ids. More rows are common (padding).
    pub fn check_fits(&self, rows: usize) -> Result<()> {
        let needed = self.tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        ensure!(
            needed <= rows,
            "{}: the highest id needs {needed} embedding rows, the model has {rows}; \
             this tokenizer belongs to another model, or its embedding was not resized",
            self.source.display()
        );
        Ok(())
    }

    /// Ids of a text. Special tokens written in the text are recognised; none are added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encode_with_offsets(text)?.ids)
    }

    /// Ids of a text that a row begins with: [`Self::leading_bos`] and the text's own.
    pub fn encode_row(&self, text: &str) -> Result<Vec<u32>> {
        Ok([self.leading_bos(), self.encode(text)?].concat())
    }

    /// Ids of a text and the byte range of each.
    pub(crate) fn encode_with_offsets(&self, text: &str) -> Result<Encoded> {
        // The crate panics at some parts that do not fit each other.
        let encoding = guarded(|| self.tokenizer.encode(text, false).map_err(Error::from_boxed))
            .and_then(|encoding| encoding)
            .map_err(|error| anyhow!("{}: cannot encode {text:?}: {error}", self.source.display()))?;
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }

    /// Words of a text that the vocabulary lacks, each once: encoding makes the unknown token of them.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub(crate) fn unknown(&self, text: &str) -> Result<Vec<String>> {
        let Some(unk) = self.unk() else { return Ok(vec![]) };
        let written = self.token(unk);
        let Encoded { ids, offsets } = self.encode_with_offsets(text)?;
        let mut words: Vec<String> = vec![];
        for (_, (from, until)) in ids.iter().zip(offsets).filter(|(id, _)| **id == unk) {
            let word = text.get(from..until).unwrap_or_default().trim().to_owned();
            if Some(&word) != written.as_ref() && !words.contains(&word) {
                words.push(word);
            }
        }
        Ok(words)
    }

    /// Text of ids, special tokens shown.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, false)
    }

    /// Text of ids without special tokens: what the grader reads.
    pub fn decode_visible(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, true)
    }

    fn decoded(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        guarded(|| self.tokenizer.decode(ids, skip_special).map_err(Error::from_boxed))
            .and_then(|text| text)
            .map_err(|error| anyhow!("{}: cannot decode {} ids: {error}", self.source.display(), ids.len()))
    }

    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The id of a token that must be there.
    pub(crate) fn required_id(&self, token: &str) -> Result<u32> {
        self.id(token).with_context(|| format!("{}: has no token {token:?}", self.source.display()))
    }

    /// The token as the vocabulary spells it (byte-level alphabets included).
    pub fn token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// What stands before every text in models that were trained so: `bos`, where `add_bos_token` says true or, where it
    /// says nothing, where the tokenizer's own post-processor puts it.
    pub fn leading_bos(&self) -> Vec<u32> {
        let processed = || match guarded(|| self.tokenizer.encode("", true)) {
            Ok(Ok(encoding)) => encoding.get_ids().first().copied() == self.bos(),
            _ => false,
        };
        let wanted = self.config.get("add_bos_token").and_then(Value::as_bool).unwrap_or_else(processed);
        self.bos().filter(|_| wanted).into_iter().collect()
    }

    pub fn pad(&self) -> Option<u32> {
        self.special.pad
    }

    pub fn unk(&self) -> Option<u32> {
        self.special.unk
    }

    /// The end-of-text token that training appends.
    pub fn eos(&self) -> Option<u32> {
        self.special.eos.first().copied()
    }

    /// Every id that ends a generation: `generation_config.json` may name several.
    pub fn stops(&self) -> &[u32] {
        &self.special.eos
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What the tokenizer came from, for messages.
    pub fn source(&self) -> &Path {
        &self.source
    }
}

/// A tokenizer from the bytes of a `tokenizer.json`.
pub(super) fn parse(bytes: &[u8], source: &Path) -> Result<Tokenizer> {
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: not a tokenizer.json: {error}", source.display());
    let parts: Parts = serde_json::from_slice(bytes).map_err(|error| failed(&error))?;
    parts.check().map_err(|error| failed(&error))?;
    // The crate panics at some files that are JSON, but no tokenizer.
    let read =
        guarded(|| Tokenizer::from_bytes(bytes)).map_err(|panic| failed(&format!("its parts do not fit: {panic}")))?;
    read.map_err(|error| failed(&error))
}
