//! `Vocabulary`: a `tokenizers::Tokenizer` with the ids that the decoder must know by name.
//!
//! `crate::tokenizer` reads it from files, `save` writes it. Of embeddings it knows the number of rows only
//! ([`Vocabulary::check_fits`]).

use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, ensure};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use super::Chat;
use super::special::SpecialIds;
use crate::guard::guarded;
use crate::tokenizer::{SwitchIds, Templates, TextSide, read, roles};

pub const SWI: &str = "<swi>";
pub const SWI_END: &str = "</swi>";
pub const LATENT: &str = "<latent>";

/// Ids of a text, and the bytes of each id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncodedText {
    pub ids: Vec<u32>,
    pub offsets: Vec<(usize, usize)>,
}

/// A tokenizer and its special ids.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    pub(super) tokenizer: Tokenizer,
    special: SpecialIds,
    /// Tokens before and after every text.
    around: [Vec<u32>; 2],
    pub(super) roles: Map<String, Value>,
    pub(super) templates: Option<Templates>,
    /// `tokenizer_config.json` as read; written back with the added tokens.
    pub(super) config: Map<String, Value>,
    switch: Option<SwitchIds>,
    source: PathBuf,
}

impl Vocabulary {
    /// Reads a model folder, or a `tokenizer.json` with its neighbours.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let side = read(folder, None)?;
        let side = side.with_context(|| {
            format!("{}: cannot read; a model folder needs tokenizer.json", folder.join("tokenizer.json").display())
        })?;
        Self::new(side)
    }

    /// The vocabulary of a model's text side.
    ///
    /// # Errors
    /// Neighbouring files without ids; some of the switch tokens without the others.
    pub fn new(side: TextSide) -> Result<Self> {
        let TextSide { mut tokenizer, config, roles, templates, source, .. } = side;
        // Tokenizers saved by training scripts may have these; they would truncate or pad every text.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| anyhow!("{}: {error}", source.display()))?;
        let folder = source.parent().filter(|_| source.extension().is_some_and(|e| !e.eq_ignore_ascii_case("gguf")));
        let special = SpecialIds::new(&tokenizer, &roles, folder)?;
        let around = around(&tokenizer);
        let mut vocabulary = Vocabulary { tokenizer, special, around, roles, templates, config, switch: None, source };
        vocabulary.switch = vocabulary.find_switch()?;
        Ok(vocabulary)
    }

    /// A tokenizer that exists in memory only and its `tokenizer_config.json` object. `source` names them in errors.
    pub(crate) fn from_tokenizer(
        tokenizer: Tokenizer,
        config: Map<String, Value>,
        source: impl Into<PathBuf>,
    ) -> Result<Self> {
        let source = source.into();
        let roles = roles(&source.display().to_string(), &config)?;
        let templates = Templates::from_object(&config, &source.display().to_string())?;
        Self::new(TextSide { tokenizer, config, roles, templates, source, notes: vec![] })
    }

    fn find_switch(&self) -> Result<Option<SwitchIds>> {
        let found = [SWI, SWI_END, LATENT].map(|token| self.tokenizer.token_to_id(token));
        match found {
            [Some(swi), Some(swi_end), Some(latent)] => Ok(Some(SwitchIds { swi, swi_end, latent })),
            [None, None, None] => Ok(None),
            _ => Err(anyhow!(
                "{}: expected all of {SWI}, {SWI_END}, {LATENT} or none, found ids {found:?}",
                self.source.display()
            )),
        }
    }

    /// The switch tokens: those of the file, or three new ones with ids `size() + {0, 1, 2}`.
    pub fn add_switch_tokens(&mut self) -> Result<SwitchIds> {
        if let Some(switch) = self.switch {
            return Ok(switch);
        }
        let first = self.size() as u32;
        let added = [SWI, SWI_END, LATENT].map(|token| AddedToken::from(token, true).normalized(false));
        self.tokenizer
            .add_special_tokens(added)
            .map_err(|error| anyhow!("{}: cannot add {SWI}: {error}", self.source.display()))?;
        let expected = SwitchIds { swi: first, swi_end: first + 1, latent: first + 2 };
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
    pub fn switch(&self) -> Result<SwitchIds> {
        self.switch.with_context(|| {
            format!("{}: has no {SWI}, {SWI_END}, {LATENT}; train phase 1 first, or add them", self.source.display())
        })
    }

    /// Ids in use, added tokens included: the rows an embedding needs.
    pub fn size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Requires embedding rows for all words and the switch tokens. More rows are common (padding); other added tokens may lack a row, as they
    /// occur only in texts that contain them.
    pub fn check_fits(&self, rows: usize) -> Result<()> {
        let words = self.tokenizer.get_vocab(false).into_values();
        let switch = self.switch.into_iter().flat_map(|ids| [ids.swi, ids.swi_end, ids.latent]);
        let needed = words.chain(switch).max().map_or(0, |id| id as usize + 1);
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

    /// Ids of a whole sequence like `tokenizer(text)` of `transformers`: including the tokens around every text, but without a second beginning
    /// if the text has one.
    pub fn encode_row(&self, text: &str) -> Result<Vec<u32>> {
        let [before, behind] = &self.around;
        let ids = self.encode(text)?;
        let begun = ids.starts_with(before);
        let before = before.iter().filter(|_| !begun);
        Ok(before.chain(&ids).chain(behind).copied().collect())
    }

    /// The model's chat template of this name, or its default one; `None` if it has none.
    pub fn chat(&self, name: Option<&str>) -> Result<Option<Chat>> {
        self.templates.as_ref().map(|templates| Chat::new(templates, name, &self.roles)).transpose()
    }

    /// Whether the model's files have a chat template.
    pub(crate) fn has_chat(&self) -> bool {
        self.templates.is_some()
    }

    /// Uses these chat templates if it has none.
    #[must_use]
    pub(crate) fn or_templates(mut self, templates: Option<Templates>) -> Self {
        self.templates = self.templates.or(templates);
        self
    }

    /// This vocabulary, with a generation ending at these ids too.
    #[must_use]
    pub(crate) fn stopping_at(mut self, ids: &[u32]) -> Self {
        for id in ids {
            if !self.special.eos.contains(id) {
                self.special.eos.push(*id);
            }
        }
        self
    }

    /// Whether a token is a special token.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.tokenizer.get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    /// Ids of a text and the byte range of each.
    pub(crate) fn encode_with_offsets(&self, text: &str) -> Result<EncodedText> {
        // The crate panics on some inconsistent tokenizers.
        let encoding = guarded(|| self.tokenizer.encode(text, false).map_err(Error::from_boxed))
            .and_then(|encoding| encoding)
            .map_err(|error| anyhow!("{}: cannot encode {text:?}: {error}", self.source.display()))?;
        Ok(EncodedText { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }

    /// The single tokens for this word: at the start, and after a space. One if both are equal.
    pub(crate) fn word_tokens(&self, word: &str) -> Result<Vec<u32>> {
        let mut tokens = vec![];
        for text in [word.to_owned(), format!(" {word}")] {
            if let [token] = self.encode(&text)?[..] {
                tokens.push(token);
            }
        }
        tokens.dedup();
        Ok(tokens)
    }

    /// Distinct words of a text that encoding maps to the unknown token.
    pub fn unknown(&self, text: &str) -> Result<Vec<String>> {
        let Some(unk) = self.unk() else { return Ok(vec![]) };
        let written = self.token(unk);
        let EncodedText { ids, offsets } = self.encode_with_offsets(text)?;
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

    /// Text of ids without special tokens: the grader's input.
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

    /// The id of a required token.
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

    /// BOS before every text, for models that were trained with it.
    pub fn leading_bos(&self) -> Vec<u32> {
        self.around[0].clone()
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

    /// Origin of the tokenizer, for messages.
    pub fn source(&self) -> &Path {
        &self.source
    }
}

/// Tokens that the post-processor adds before and after a text.
fn around(tokenizer: &Tokenizer) -> [Vec<u32>; 2] {
    let Ok(Ok(encoding)) = guarded(|| tokenizer.encode("a", true)) else { return [vec![], vec![]] };
    let (ids, mask) = (encoding.get_ids(), encoding.get_special_tokens_mask());
    let first = mask.iter().position(|special| *special == 0).unwrap_or(ids.len());
    let last = mask.iter().rposition(|special| *special == 0).map_or(ids.len(), |last| last + 1);
    [ids[..first].to_vec(), ids[last..].to_vec()]
}
