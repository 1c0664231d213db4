//! Which class `AutoTokenizer` of `transformers` 5.24 chooses for a folder, and how that class reads `tokenizer.json`: some use only
//! vocabulary, merges and post-processor of the file and define the rest themselves.

use serde_json::{Map, Value, json};

use super::pieces::{bpe_model, decoders, replace};
use super::split::{QWEN2, QWEN35};

/// A class with its own rules, or the generic one, which reads the file unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenizerClass {
    Generic,
    Llama,
    CodeLlama,
    Gpt2,
    Qwen2,
    Qwen35,
    GptNeoX,
    Gemma,
}

const NAMES: [(&str, TokenizerClass); 7] = [
    ("LlamaTokenizer", TokenizerClass::Llama),
    ("CodeLlamaTokenizer", TokenizerClass::CodeLlama),
    ("GPT2Tokenizer", TokenizerClass::Gpt2),
    ("Qwen2Tokenizer", TokenizerClass::Qwen2),
    ("Qwen3_5Tokenizer", TokenizerClass::Qwen35),
    ("GPTNeoXTokenizer", TokenizerClass::GptNeoX),
    ("GemmaTokenizer", TokenizerClass::Gemma),
];

/// The class that `transformers` assigns to a model type if the folder names none. Types that it always reads generically have the
/// generic class.
fn registered(model_type: &str) -> Option<TokenizerClass> {
    Some(match model_type {
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" | "qwen3_next" => TokenizerClass::Qwen2,
        "gpt2" | "gpt_neo" | "gptj" | "codegen" | "phi" | "opt" | "starcoder2" => TokenizerClass::Gpt2,
        "gpt_neox" | "olmo" | "olmoe" | "mamba" | "mpt" => TokenizerClass::GptNeoX,
        "code_llama" => TokenizerClass::CodeLlama,
        "qwen3_5" | "qwen3_5_moe" | "qwen3_5_text" | "qwen3_5_moe_text" => TokenizerClass::Qwen35,
        "gemma" | "gemma2" | "gemma3" | "gemma3_text" => TokenizerClass::Gemma,
        "mistral" | "mixtral" | "ministral" | "olmo2" | "olmo3" | "phi3" | "granite" | "stablelm" | "glm" | "glm4" => {
            TokenizerClass::Generic
        }
        _ => return None,
    })
}

/// Types whose folders name a wrong class so often that the registered one is used.
const MISNAMED: [&str; 3] = ["qwen2", "phi3", "internlm2"];

/// Further classes with their own rules, which are not implemented.
const UNREAD: [&str; 15] = [
    "Bart",
    "Bert",
    "Camembert",
    "CodeGen",
    "Cohere",
    "Deberta",
    "LED",
    "Mvp",
    "Nllb",
    "Roberta",
    "SeamlessM4T",
    "T5",
    "Whisper",
    "XLMRoberta",
    "XLNet",
];

/// The class that a folder names, if its rules are not implemented: its tokenizer.json is then read unchanged.
pub(super) fn unread<'c>(config: &'c Map<String, Value>, model: &Map<String, Value>) -> Option<&'c str> {
    let named = config.get("tokenizer_class")?.as_str()?;
    let own = named.trim_end_matches("Fast").strip_suffix("Tokenizer")?;
    let generic = model.get("model_type").and_then(Value::as_str).and_then(registered) == Some(TokenizerClass::Generic);
    (UNREAD.contains(&own) && !generic).then_some(named)
}

impl TokenizerClass {
    /// Chooses by `tokenizer_config.json`, `config.json`, and whether the tokenizer.json is byte-level.
    pub fn detect(config: &Map<String, Value>, model: &Map<String, Value>, byte_level: bool) -> Self {
        let text = |object: &Map<String, Value>, key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
        let named = text(config, "tokenizer_class").or_else(|| text(model, "tokenizer_class"));
        let named = named.map(|name| name.trim_end_matches("Fast").to_owned());
        let class =
            |name: &str| NAMES.iter().find(|(known, _)| *known == name).map_or(TokenizerClass::Generic, |(_, c)| *c);
        let model_type = text(model, "model_type").unwrap_or_default();
        let misnamed = MISNAMED.contains(&model_type.as_str());
        match (registered(&model_type), named) {
            // Llama 3 and similar models name Llama 2's class.
            (_, Some(name)) if name == "LlamaTokenizer" && byte_level && !misnamed => TokenizerClass::Generic,
            (Some(TokenizerClass::Generic), _) => TokenizerClass::Generic,
            (Some(own), Some(_)) if misnamed => own,
            (_, Some(name)) => class(&name),
            (Some(own), None) => own,
            (None, None) => TokenizerClass::Generic,
        }
    }

    /// Default special tokens.
    pub fn defaults(self) -> &'static [(&'static str, &'static str)] {
        const END: &str = "<|endoftext|>";
        match self {
            TokenizerClass::Generic => &[],
            TokenizerClass::Llama => &[("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")],
            TokenizerClass::CodeLlama => &[
                ("unk_token", "<unk>"),
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("prefix_token", "▁<PRE>"),
                ("middle_token", "▁<MID>"),
                ("suffix_token", "▁<SUF>"),
                ("eot_token", "▁<EOT>"),
                ("fill_token", "<FILL_ME>"),
            ],
            TokenizerClass::Gpt2 => &[("unk_token", END), ("bos_token", END), ("eos_token", END)],
            TokenizerClass::Qwen2 | TokenizerClass::Qwen35 => {
                &[("unk_token", END), ("eos_token", END), ("pad_token", END)]
            }
            TokenizerClass::GptNeoX => {
                &[("unk_token", END), ("bos_token", END), ("eos_token", END), ("pad_token", "<|padding|>")]
            }
            TokenizerClass::Gemma => &[
                ("unk_token", "<unk>"),
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
        }
    }

    /// Whether its vocabulary is SentencePiece's.
    pub fn is_sentencepiece(self) -> bool {
        matches!(self, TokenizerClass::Llama | TokenizerClass::CodeLlama | TokenizerClass::Gemma)
    }

    /// The tokenizer.json as the class reads it: vocabulary, merges and post-processor come from the file.
    pub fn remade(self, file: Value, config: &Map<String, Value>) -> Value {
        if file["model"]["type"] != "BPE" {
            return file;
        }
        let mut made = file;
        let prefixed = config.get("add_prefix_space").and_then(Value::as_bool);
        let bytes = |own: bool| {
            json!({ "type": "ByteLevel", "add_prefix_space": prefixed.unwrap_or(false), "trim_offsets": true,
                "use_regex": own })
        };
        let plain = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
        let sentencepiece = |prefix: bool| json!({ "type": "Sequence", "decoders": decoders(true, prefix) });
        let nfc = json!({ "type": "NFC" });
        let (normalizer, pre_tokenizer, decoder) = match self {
            TokenizerClass::Generic => return made,
            TokenizerClass::Gpt2 => (Value::Null, bytes(true), plain),
            TokenizerClass::GptNeoX => (nfc, bytes(true), plain),
            TokenizerClass::Qwen2 | TokenizerClass::Qwen35 => {
                let rule = if self == TokenizerClass::Qwen2 { QWEN2 } else { QWEN35 };
                let cut = json!({ "type": "Split", "pattern": { "Regex": rule }, "behavior": "Isolated",
                    "invert": false });
                (nfc, json!({ "type": "Sequence", "pretokenizers": [cut, bytes(false)] }), plain)
            }
            TokenizerClass::Gemma => {
                let cut = json!({ "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious",
                    "invert": false });
                (replace(&json!({ "String": " " }), "▁"), cut, sentencepiece(false))
            }
            TokenizerClass::Llama | TokenizerClass::CodeLlama => {
                let prefixed = prefixed.unwrap_or(true);
                let legacy =
                    self == TokenizerClass::Llama && config.get("legacy").and_then(Value::as_bool).unwrap_or(false);
                let scheme = match (prefixed, legacy) {
                    (false, _) => "never",
                    (true, true) => "always",
                    (true, false) => "first",
                };
                let spaces = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
                    "split": false });
                (Value::Null, spaces, sentencepiece(prefixed || self == TokenizerClass::CodeLlama))
            }
        };
        let words = self.is_sentencepiece();
        let unk = matches!(self, TokenizerClass::Gemma | TokenizerClass::CodeLlama).then_some("<unk>");
        let model = &mut made["model"];
        *model = bpe_model(model["vocab"].take(), model["merges"].take(), unk, [words; 2]);
        made["normalizer"] = normalizer;
        made["pre_tokenizer"] = pre_tokenizer;
        made["decoder"] = decoder;
        if self == TokenizerClass::GptNeoX {
            made["post_processor"] = Value::Null;
        }
        made["added_tokens"] = json!([]);
        made
    }
}

/// Whether a tokenizer.json is byte-level, from its pre-tokenizer or its decoder.
pub(super) fn is_byte_level(file: &Value) -> bool {
    fn holds(value: &Value) -> bool {
        match value {
            Value::Object(map) => map.get("type").is_some_and(|t| t == "ByteLevel") || map.values().any(holds),
            Value::Array(list) => list.iter().any(holds),
            _ => false,
        }
    }
    holds(&file["pre_tokenizer"]) || holds(&file["decoder"])
}
