//! A `tokenizers` tokenizer from `tokenizer.ggml.*`: byte-level BPE, whose merges and tokens the file has in full and
//! whose splitting rule it has only by name (`tokenizer.ggml.pre`). The rules are those of the models' `tokenizer.json`.
//! Bytes that a vocabulary lacks (SmolLM2's has no \x04, for one) are dropped from the text, as Hugging Face drops them.

use anyhow::{Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::processors::sequence::Sequence as PostSequence;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use super::settings::Keys;

/// Token types of the file. Normal ones are made by merges; the others are matched whole.
const UNKNOWN: f64 = 2.0;
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;
const UNUSED: f64 = 5.0;

const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is split before merging.
#[derive(Clone, Copy, PartialEq)]
enum Pre {
    Gpt2,
    Smollm,
    Qwen2,
    Llama3,
}

impl Pre {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "default" | "gpt-2" => Pre::Gpt2,
            "smollm" => Pre::Smollm,
            "qwen2" | "deepseek-r1-qwen" => Pre::Qwen2,
            "llama-bpe" | "llama3" | "llama-v3" => Pre::Llama3,
            _ => return None,
        })
    }

    /// The byte-level step: GPT-2's own expression splits words unless a `Split` before it already did.
    fn byte_level(self) -> ByteLevel {
        let own_regex = matches!(self, Pre::Gpt2 | Pre::Smollm);
        ByteLevel::new(false, own_regex, own_regex)
    }

    fn pre_tokenizer(self) -> Result<PreTokenizerWrapper> {
        let split = |regex: &str| {
            Split::new(SplitPattern::Regex(regex.to_string()), SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| anyhow!("cannot compile the splitting rule: {e}"))
        };
        let first: PreTokenizerWrapper = match self {
            Pre::Gpt2 => return Ok(self.byte_level().into()),
            Pre::Smollm => Digits::new(true).into(),
            Pre::Qwen2 => split(QWEN2)?.into(),
            Pre::Llama3 => split(LLAMA3)?.into(),
        };
        Ok(Sequence::new(vec![first, self.byte_level().into()]).into())
    }
}

/// What the metadata say about the text side.
struct Parts<'a> {
    pre: Pre,
    tokens: &'a [String],
    types: &'a [f64],
    merges: &'a [String],
}

impl<'a> Parts<'a> {
    fn read(keys: &Keys<'a>) -> Result<Option<Self>> {
        let origin = keys.origin;
        // llama.cpp's name for a file that has none.
        let Some(model) = keys.text("tokenizer.ggml.model")?.filter(|model| *model != "no_vocab") else {
            return Ok(None);
        };
        ensure!(
            model == "gpt2",
            "{origin}: metadata `tokenizer.ggml.model` is not supported: expected \"gpt2\" (byte-level BPE), found {model:?}"
        );
        let name = keys.text("tokenizer.ggml.pre")?.unwrap_or("default");
        let pre = Pre::from_name(name).ok_or_else(|| {
            anyhow!(
                "{origin}: metadata `tokenizer.ggml.pre` is not supported: expected smollm, qwen2, llama-bpe, gpt-2 or default, found {name:?}"
            )
        })?;
        let need = |key: &str| keys.missing(key);
        let tokens = keys.texts("tokenizer.ggml.tokens")?.ok_or_else(|| need("tokenizer.ggml.tokens"))?;
        let merges = keys.texts("tokenizer.ggml.merges")?.ok_or_else(|| need("tokenizer.ggml.merges"))?;
        let types = keys.numbers("tokenizer.ggml.token_type")?.unwrap_or(&[]);
        ensure!(
            types.is_empty() || types.len() == tokens.len(),
            "{origin}: metadata `tokenizer.ggml.token_type` must have one entry per token, expected {}, found {}",
            tokens.len(),
            types.len()
        );
        Ok(Some(Self { pre, tokens, types, merges }))
    }

    fn kind(&self, id: usize) -> f64 {
        self.types.get(id).copied().unwrap_or(1.0)
    }

    /// Matched whole in the text, before any splitting.
    fn is_added(&self, id: usize) -> bool {
        [UNKNOWN, CONTROL, USER_DEFINED].contains(&self.kind(id))
    }

    /// Tokens of the BPE vocabulary are those before the last run of added ones, as in a `tokenizer.json`: the run
    /// itself lives in the list of added tokens alone, and filler rows (`[PAD151669]`, unused) nowhere.
    fn model_len(&self) -> usize {
        (0..self.tokens.len()).rev().find(|id| !self.is_added(*id) && self.kind(*id) != UNUSED).map_or(0, |id| id + 1)
    }

    fn model(&self, origin: &str) -> Result<BPE> {
        let mut vocab = Vocab::default();
        for (id, token) in self.tokens.iter().take(self.model_len()).enumerate() {
            ensure!(
                vocab.insert(token.clone(), id as u32).is_none(),
                "{origin}: `tokenizer.ggml.tokens` has {token:?} twice"
            );
        }
        let mut merges = Vec::with_capacity(self.merges.len());
        for (i, merge) in self.merges.iter().enumerate() {
            let pair = merge.split_once(' ');
            // The builder indexes by the longest token: a merge whose result is no token must not reach it.
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
        BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(self.pre == Pre::Llama3)
            .build()
            .map_err(|e| anyhow!("{origin}: the BPE vocabulary is not consistent: {e}"))
    }

    fn token(&self, origin: &str, what: &str, id: u32) -> Result<&'a str> {
        self.tokens.get(id as usize).map(String::as_str).ok_or_else(|| {
            anyhow!(
                "{origin}: metadata `tokenizer.ggml.{what}_token_id` must be below {}, found {id}",
                self.tokens.len()
            )
        })
    }
}

pub fn build(keys: &Keys) -> Result<Option<Tokenizer>> {
    let origin = keys.origin;
    let Some(parts) = Parts::read(keys)? else {
        return Ok(None);
    };
    let mut tokenizer = Tokenizer::new(parts.model(origin)?);
    if parts.pre == Pre::Qwen2 {
        tokenizer.with_normalizer(Some(NFC)).map_err(|e| anyhow!("{origin}: {e}"))?;
    }
    tokenizer.with_pre_tokenizer(Some(parts.pre.pre_tokenizer()?));
    tokenizer.with_decoder(Some(parts.pre.byte_level()));
    tokenizer.with_post_processor(Some(post_processor(keys, &parts)?));
    let added: Vec<usize> = (0..parts.tokens.len()).filter(|id| parts.is_added(*id)).collect();
    let tokens = added
        .iter()
        .map(|id| AddedToken::from(parts.tokens[*id].clone(), parts.kind(*id) != USER_DEFINED).normalized(false));
    tokenizer.add_tokens(tokens).map_err(|e| anyhow!("{origin}: cannot add the special tokens: {e}"))?;
    // Ids of added tokens are given by position; a file with holes between them cannot be expressed.
    for id in added {
        let found = tokenizer.token_to_id(&parts.tokens[id]);
        ensure!(
            found == Some(id as u32),
            "{origin}: special token {:?} must have id {id}, found {found:?}: added tokens with gaps between their ids are not supported",
            parts.tokens[id]
        );
    }
    Ok(Some(tokenizer))
}

fn post_processor(keys: &Keys, parts: &Parts) -> Result<PostProcessorWrapper> {
    let bytes: PostProcessorWrapper = parts.pre.byte_level().trim_offsets(false).into();
    // Llama 3 files written before the flag existed still begin every text with the BOS token.
    let default = if parts.pre == Pre::Llama3 { 1.0 } else { 0.0 };
    let add_bos = keys.number("tokenizer.ggml.add_bos_token")?.unwrap_or(default) != 0.0;
    let Some(id) = keys.token_id("bos")?.filter(|_| add_bos) else {
        return Ok(bytes);
    };
    let bos = parts.token(keys.origin, "bos", id)?;
    if bos.contains([' ', ':', '$']) {
        bail!(
            "{}: the BOS token {bos:?} cannot be put before every text: it contains a space, `:` or `$`",
            keys.origin
        );
    }
    let template = TemplateProcessing::builder()
        .try_single(format!("{bos}:0 $A:0"))
        .and_then(|b| b.try_pair(format!("{bos}:0 $A:0 {bos}:1 $B:1")))
        .map(|b| b.special_tokens(vec![(bos.to_string(), id)]).build());
    let template =
        template.map_err(|e| anyhow!("{}: {e}", keys.origin))?.map_err(|e| anyhow!("{}: {e}", keys.origin))?;
    Ok(PostSequence::new(vec![bytes, template.into()]).into())
}

/// `tokenizer_config.json` for `transformers`: the generic fast class, the named special tokens, the chat template.
pub(crate) fn config_json(keys: &Keys) -> Result<Value> {
    let mut out = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false });
    let Some(parts) = Parts::read(keys)? else {
        return Ok(out);
    };
    for (field, what) in
        [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        if let Some(id) = keys.token_id(what)? {
            out[field] = json!(parts.token(keys.origin, what, id)?);
        }
    }
    let arch = keys.text("general.architecture")?.unwrap_or_default();
    if let Some(length) = keys.usize(&format!("{arch}.context_length"))? {
        out["model_max_length"] = json!(length);
    }
    if let Some(template) = keys.text("tokenizer.chat_template")? {
        out["chat_template"] = json!(template);
    }
    Ok(out)
}
