//! The text side of a GGUF (`tokenizer.ggml.*`): byte-level BPE, with complete merges and tokens but only the name of the splitting
//! rule (`tokenizer.ggml.pre`), or SentencePiece's pieces with scores. Bytes that a vocabulary lacks (SmolLM2's lacks \x04) are
//! dropped from the text, as in Hugging Face.

use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::processors::sequence::Sequence as PostSequence;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

use super::settings::{ENDS, Keys};
use crate::tokenizer::pieces::{self, Piece};
use crate::tokenizer::{Split, Templates, TextSide, roles};

/// Token types of the file. Merges produce normal tokens; the others are matched whole.
const NORMAL: f64 = 1.0;
const UNKNOWN: f64 = 2.0;
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;
const UNUSED: f64 = 5.0;

/// The text-side metadata.
struct TextMetadata<'a> {
    kind: VocabularyKind,
    tokens: &'a [String],
    types: Vec<f64>,
    /// Notes for the user.
    notes: Vec<String>,
}

enum VocabularyKind {
    Bytes(Split),
    Pieces,
}

impl<'a> TextMetadata<'a> {
    fn read(keys: &Keys<'a>) -> Result<Option<Self>> {
        let origin = keys.origin;
        // llama.cpp's names for a file without a tokenizer.
        let none = ["no_vocab", "none"];
        let Some(model) = keys.text("tokenizer.ggml.model")?.filter(|model| !none.contains(model)) else {
            return Ok(None);
        };
        let tokens = "tokenizer.ggml.tokens";
        let tokens = keys.texts(tokens)?.ok_or_else(|| keys.missing(tokens))?;
        let mut notes = vec![];
        let kind = match model {
            "gpt2" => VocabularyKind::Bytes(split(keys, tokens, &mut notes)?),
            "llama" => VocabularyKind::Pieces,
            other => bail!(
                "{origin}: metadata `tokenizer.ggml.model` is not supported: expected \"gpt2\" (byte-level BPE) or \"llama\" \
                 (SentencePiece), found {other:?}; put the model's tokenizer.json next to the file"
            ),
        };
        let types = keys.numbers("tokenizer.ggml.token_type")?.unwrap_or(&[]);
        ensure!(
            types.is_empty() || types.len() == tokens.len(),
            "{origin}: metadata `tokenizer.ggml.token_type` must have one entry per token, expected {}, found {}",
            tokens.len(),
            types.len()
        );
        let kind_of = |(id, token): (usize, &String)| match ENDS.contains(&token.as_str()) {
            true => CONTROL,
            false => types.get(id).copied().unwrap_or(NORMAL),
        };
        Ok(Some(Self { kind, tokens, types: tokens.iter().enumerate().map(kind_of).collect(), notes }))
    }

    fn kind(&self, id: usize) -> f64 {
        self.types.get(id).copied().unwrap_or(NORMAL)
    }

    /// Whether the token is matched whole, before the text is split.
    fn is_added(&self, id: usize) -> bool {
        [UNKNOWN, CONTROL, USER_DEFINED].contains(&self.kind(id))
    }

    fn added(&self) -> impl Iterator<Item = usize> {
        (0..self.tokens.len()).filter(|id| self.is_added(*id))
    }

    /// Number of tokens of the BPE vocabulary: those before the last run of added tokens, as in a `tokenizer.json`. Unused fillers
    /// (`[PAD151669]`) are left out. Added tokens get consecutive ids: if a filler lies between them, all up to the last one belong to the
    /// vocabulary.
    fn model_len(&self) -> usize {
        let is_word = |id: usize| !self.is_added(id) && self.kind(id) != UNUSED;
        let words = (0..self.tokens.len()).rev().find(|id| is_word(*id)).map_or(0, |id| id + 1);
        let last = self.added().last().unwrap_or(0);
        if (words..last).all(|id| self.is_added(id)) { words } else { last + 1 }
    }

    fn build_bpe(&self, keys: &Keys, split: Split) -> Result<Tokenizer> {
        let origin = keys.origin;
        let listed = "tokenizer.ggml.merges";
        let listed = keys.texts(listed)?.ok_or_else(|| keys.missing(listed))?;
        let mut vocab = Vocab::default();
        for (id, token) in self.tokens.iter().take(self.model_len()).enumerate() {
            ensure!(
                vocab.insert(token.clone(), id as u32).is_none(),
                "{origin}: `tokenizer.ggml.tokens` has {token:?} twice"
            );
        }
        let mut merges = Vec::with_capacity(listed.len());
        for (i, merge) in listed.iter().enumerate() {
            let pair = merge.split_once(' ');
            // The builder indexes by the longest token: it must not see a merge whose result is not a token.
            let known = pair.filter(|(a, b)| {
                vocab.contains_key(*a) && vocab.contains_key(*b) && vocab.contains_key(&format!("{a}{b}"))
            });
            let (a, b) = known.ok_or_else(|| {
                anyhow!(
                    "{origin}: `tokenizer.ggml.merges[{i}]` must be two tokens that join to a third, found {merge:?}"
                )
            })?;
            merges.push((a.to_string(), b.to_string()));
        }
        let model = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(split.ignore_merges).build();
        let model = model.map_err(|e| anyhow!("{origin}: the BPE vocabulary is not consistent: {e}"))?;
        let mut tokenizer = Tokenizer::new(model);
        if split.nfc {
            tokenizer.with_normalizer(Some(NFC)).map_err(|e| anyhow!("{origin}: {e}"))?;
        }
        tokenizer.with_pre_tokenizer(Some(split.pre_tokenizer()?));
        tokenizer.with_decoder(Some(split.byte_level()));
        Ok(tokenizer)
    }

    fn build_pieces(&self, keys: &Keys) -> Result<Tokenizer> {
        let origin = keys.origin;
        let scores = "tokenizer.ggml.scores";
        let scores = keys.numbers(scores)?.ok_or_else(|| keys.missing(scores))?;
        ensure!(
            scores.len() == self.tokens.len(),
            "{origin}: metadata `tokenizer.ggml.scores` must have one entry per token, expected {}, found {}",
            self.tokens.len(),
            scores.len()
        );
        let piece = |(id, token): (usize, &String)| Piece {
            token: token.clone(),
            score: scores[id],
            kind: self.kind(id) as u64,
        };
        let pieces: Vec<Piece> = self.tokens.iter().enumerate().map(piece).collect();
        pieces::check(&pieces, origin)?;
        let unk = pieces.iter().find(|piece| piece.kind == pieces::UNKNOWN).map(|piece| piece.token.as_str());
        let prefix = keys.number("tokenizer.ggml.add_space_prefix")?.is_none_or(|flag| flag != 0.0);
        pieces::from_gguf(&pieces, unk, prefix, Path::new(origin))
    }

    /// BOS and EOS around every text: as the file declares, else as llama.cpp does.
    fn post_processor(&self, keys: &Keys) -> Result<Option<PostProcessorWrapper>> {
        let origin = keys.origin;
        let (bytes, begins) = match self.kind {
            VocabularyKind::Bytes(split) => (Some(split.byte_level()), split.begins),
            VocabularyKind::Pieces => (None, true),
        };
        let bytes = bytes.map(|bytes| PostProcessorWrapper::from(bytes.trim_offsets(false)));
        let mut around = [None, None];
        for (part, (role, default)) in around.iter_mut().zip([("bos", begins), ("eos", false)]) {
            let wanted = keys.number(&format!("tokenizer.ggml.add_{role}_token"))?.map_or(default, |flag| flag != 0.0);
            let Some(id) = keys.token_id(role)?.filter(|_| wanted) else { continue };
            *part = self.tokens.get(id as usize).map(|token| (token, id));
            if let Some((token, _)) = part.filter(|(token, _)| token.contains([' ', ':', '$'])) {
                bail!("{origin}: {token:?} cannot be added around every text: it contains a space, `:` or `$`");
            }
        }
        let [before, after] = around;
        if before.is_none() && after.is_none() {
            return Ok(bytes);
        }
        let text = |sequence: &str, n: usize| {
            let [first, last] = [before, after].map(|part| part.map(|(token, _)| format!("{token}:{n}")));
            [first, Some(format!("{sequence}:{n}")), last].into_iter().flatten().collect::<Vec<_>>().join(" ")
        };
        let special: Vec<(String, u32)> =
            [before, after].into_iter().flatten().map(|(t, id)| (t.clone(), id)).collect();
        let template = TemplateProcessing::builder()
            .try_single(text("$A", 0))
            .and_then(|b| b.try_pair(format!("{} {}", text("$A", 0), text("$B", 1))))
            .map(|b| b.special_tokens(special).build());
        let template = template.map_err(|e| anyhow!("{origin}: {e}"))?.map_err(|e| anyhow!("{origin}: {e}"))?;
        let steps = bytes.into_iter().chain([template.into()]).collect();
        Ok(Some(PostSequence::new(steps).into()))
    }
}

/// The splitting rule: the named one, else the one that the vocabulary implies, else llama.cpp's default.
fn split(keys: &Keys, tokens: &[String], notes: &mut Vec<String>) -> Result<Split> {
    let origin = keys.origin;
    let key = "tokenizer.ggml.pre";
    let name = keys.text(key)?.filter(|name| *name != "default");
    if let Some(name) = name {
        return Split::by_name(name).ok_or_else(|| {
            anyhow!(
                "{origin}: metadata `{key}` is {name:?}, an unknown pre-tokenizer: put the model's tokenizer.json \
                 next to the file, or give token ids with --ids"
            )
        });
    }
    let has = |token: &str| tokens.iter().rev().take(4096).any(|known| known == token);
    let arch = keys.text("general.architecture")?.unwrap_or_default();
    let implied = if has("<|begin_of_text|>") && has("<|end_of_text|>") {
        Some("llama-bpe")
    } else if arch.starts_with("qwen2") || arch.starts_with("qwen3") {
        Some("qwen2")
    } else {
        None
    };
    let found = match keys.text(key)? {
        Some(_) => format!("metadata `{key}` is \"default\""),
        None => format!("metadata `{key}` is missing"),
    };
    let (rule, what) = match implied.and_then(|name| Some((Split::by_name(name)?, name))) {
        Some((rule, name)) => (rule, format!("the vocabulary is cut as {name}'s")),
        None => (Split::UNNAMED, "text is cut by llama.cpp's default, which no model was trained with".to_owned()),
    };
    notes.push(format!(
        "warning: {found}: {what}. If that is wrong, so are all tokens of text: convert the file again, or put the model's \
         tokenizer.json next to it"
    ));
    Ok(rule)
}

/// Builds the text side, with notes on guesses.
pub(super) fn build(keys: &Keys) -> Result<Option<TextSide>> {
    let origin = keys.origin;
    let Some(mut parts) = TextMetadata::read(keys)? else {
        return Ok(None);
    };
    let mut tokenizer = match parts.kind {
        VocabularyKind::Bytes(split) => parts.build_bpe(keys, split)?,
        VocabularyKind::Pieces => parts.build_pieces(keys)?,
    };
    tokenizer.with_post_processor(parts.post_processor(keys)?);
    let tokens = parts
        .added()
        .map(|id| AddedToken::from(parts.tokens[id].clone(), parts.kind(id) != USER_DEFINED).normalized(false));
    tokenizer.add_tokens(tokens).map_err(|e| anyhow!("{origin}: cannot add the special tokens: {e}"))?;
    for id in parts.added() {
        let found = tokenizer.token_to_id(&parts.tokens[id]);
        ensure!(
            found == Some(id as u32),
            "{origin}: special token {:?} must have id {id}, found {found:?}",
            parts.tokens[id]
        );
    }
    let config = config_of(keys, &parts)?;
    let config = config.as_object().cloned().unwrap_or_default();
    let mut notes = std::mem::take(&mut parts.notes);
    notes.extend(ids_outside_vocabulary(keys, parts.tokens.len())?);
    let (roles, templates) = (roles(origin, &config)?, Templates::from_object(&config, "tokenizer.chat_template")?);
    Ok(Some(TextSide { tokenizer, config, roles, templates, source: origin.into(), notes }))
}

/// Special tokens whose ids are outside the vocabulary.
fn ids_outside_vocabulary(keys: &Keys, tokens: usize) -> Result<Vec<String>> {
    let mut notes = vec![];
    for role in ["bos", "eos", "eot", "eom", "unknown", "padding"] {
        if let Some(id) = keys.token_id(role)?.filter(|id| *id as usize >= tokens) {
            notes.push(format!("metadata `tokenizer.ggml.{role}_token_id` is {id}, of {tokens} tokens: left out"));
        }
    }
    Ok(notes)
}

/// Whether the tokenizer is complete: byte-level, with a named splitting rule.
pub(super) fn is_exact(keys: &Keys) -> bool {
    let pre = keys.text("tokenizer.ggml.pre").ok().flatten().unwrap_or("default");
    keys.text("tokenizer.ggml.model").ok().flatten() == Some("gpt2") && Split::by_name(pre).is_some()
}

/// `tokenizer_config.json` for `transformers`: the generic fast class, the named special tokens, the chat templates.
pub fn config_json(keys: &Keys) -> Result<Value> {
    match TextMetadata::read(keys)? {
        Some(parts) => config_of(keys, &parts),
        None => Ok(generic()),
    }
}

fn generic() -> Value {
    json!({ "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false })
}

fn config_of(keys: &Keys, parts: &TextMetadata) -> Result<Value> {
    let mut out = generic();
    for (field, role) in
        [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        if let Some(token) = keys.token_id(role)?.and_then(|id| parts.tokens.get(id as usize)) {
            out[field] = json!(token);
        }
    }
    let arch = keys.text("general.architecture")?.unwrap_or_default();
    if let Some(length) = keys.usize(&format!("{arch}.context_length"))? {
        out["model_max_length"] = json!(length);
    }
    let default = keys.text("tokenizer.chat_template")?;
    let mut named = vec![];
    for name in keys.texts("tokenizer.chat_templates")?.unwrap_or(&[]) {
        if let Some(template) = keys.text(&format!("tokenizer.chat_template.{name}"))? {
            named.push(json!({ "name": name, "template": template }));
        }
    }
    match (default, named.is_empty()) {
        (Some(default), true) => out["chat_template"] = json!(default),
        (None, true) => {}
        (default, false) => {
            let first = default.map(|template| json!({ "name": "default", "template": template }));
            out["chat_template"] = first.into_iter().chain(named).collect();
        }
    }
    Ok(out)
}
