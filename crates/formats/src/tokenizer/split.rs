//! How byte-level tokenizers split a text before merging, by GGUF's names of the rules (`tokenizer.ggml.pre`). The expressions are those
//! of the models' `tokenizer.json`.

use anyhow::{Result, anyhow};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as Cut, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

pub const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
const DEEPSEEK_CODER: [&str; 5] = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"];
/// llama.cpp's rule for files that name none: no model was trained with it.
const UNNAMED: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

/// A rule and its flags.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Applied in order. Empty: GPT-2's expression, which the byte-level step includes.
    cuts: &'static [&'static str],
    /// Each digit by itself before GPT-2's expression.
    digits: bool,
    /// Text is composed (NFC) first.
    pub nfc: bool,
    /// A word that is a token is not merged.
    pub ignore_merges: bool,
    /// Whether BOS is added before every text by default.
    pub begins: bool,
}

impl Split {
    /// The rule for files that name none.
    pub const UNNAMED: Split = Split::by(&UNNAMED);

    const fn by(cuts: &'static [&'static str]) -> Self {
        Split { cuts, digits: false, nfc: false, ignore_merges: false, begins: false }
    }

    /// By llama.cpp's name; `None` if unknown.
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de" | "gigachat" | "a.x-4.0"
            | "mellum" | "modern-bert" | "exaone4" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" => {
                Split::by(&[])
            }
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
                Split { digits: true, ..Split::by(&[]) }
            }
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
                Split { ignore_merges: true, begins: true, ..Split::by(&[LLAMA3]) }
            }
            "smaug-bpe" | "dbrx" | "glm4" | "chatglm-bpe" => Split::by(&[LLAMA3]),
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" => Split { nfc: true, ..Split::by(&[QWEN2]) },
            "stablelm2" | "hunyuan" | "solar-open" | "grok-2" => Split::by(&[QWEN2]),
            "qwen35" => Split { nfc: true, ..Split::by(&[QWEN35]) },
            "tekken" => Split { ignore_merges: true, begins: true, ..Split::by(&[TEKKEN]) },
            "gpt-4o" | "llama4" | "kanana2" | "talkie" => Split::by(&[GPT4O]),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => Split::by(&DEEPSEEK3),
            "deepseek-coder" => Split::by(&DEEPSEEK_CODER),
            "seed-coder" => Split::by(&[SEED]),
            _ => return None,
        })
    }

    /// The byte-level step: it cuts by GPT-2's expression unless the rule has cut already.
    pub fn byte_level(self) -> ByteLevel {
        let own = self.cuts.is_empty();
        ByteLevel::new(false, own, own)
    }

    pub fn pre_tokenizer(self) -> Result<PreTokenizerWrapper> {
        let cut = |regex: &&str| {
            Cut::new(SplitPattern::Regex((*regex).to_owned()), SplitDelimiterBehavior::Isolated, false)
                .map(PreTokenizerWrapper::from)
                .map_err(|e| anyhow!("cannot compile the splitting rule: {e}"))
        };
        let mut steps = self.cuts.iter().map(cut).collect::<Result<Vec<_>>>()?;
        steps.extend(self.digits.then(|| Digits::new(true).into()));
        if steps.is_empty() {
            return Ok(self.byte_level().into());
        }
        steps.push(self.byte_level().into());
        Ok(Sequence::new(steps).into())
    }
}
