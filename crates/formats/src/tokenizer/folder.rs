//! The text side of a folder, from any of its file formats.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;
use tokenizers::processors::template::TemplateProcessing;

use super::classes::{TokenizerClass, is_byte_level, unread};
use super::{Templates, TextSide, added, parse, pieces, sentencepiece};
use crate::config::keys::Keys;
use crate::guard::{MOST_TEXT, read_bytes, read_text};

const FILE: &str = "tokenizer.json";
const PIECES: &str = "tokenizer.model";
const SLOW: [&str; 2] = ["vocab.json", "merges.txt"];

/// Files next to tokenizer.json and tokenizer_config.json that stay valid when tokens are added.
pub const KEPT: [&str; 3] = ["special_tokens_map.json", "chat_template.json", PIECES];

/// Tokenizers of other programs and other forms.
const OTHERS: [&str; 7] =
    ["tekken.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tiktoken.model", "vocab.txt", "vocab.bpe"];

/// Flags of tokenizer_config.json that change the tokens of a text.
const FLAGS: [&str; 5] = ["add_bos_token", "add_eos_token", "add_prefix_space", "legacy", "split_special_tokens"];

/// Whether a folder has a tokenizer in a supported format.
pub fn has_tokenizer(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).is_file();
    has(FILE) || has(PIECES) || SLOW.iter().all(|name| has(name))
}

/// A JSON object; `None` if the file does not exist.
pub fn read_object(file: &Path) -> Result<Option<Map<String, Value>>> {
    let text = match read_text(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("{}: cannot read", file.display())),
    };
    let value = serde_json::from_str(&text).with_context(|| format!("{}: not valid JSON", file.display()))?;
    match value {
        Value::Object(object) => Ok(Some(object)),
        other => bail!("{}: expected a JSON object, found {}", file.display(), added::kind(&other)),
    }
}

/// The chat templates of a folder.
pub fn templates_in(folder: &Path) -> Result<Option<Templates>> {
    let config = read_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    Templates::from_folder(folder, &config)
}

/// Reads a folder like `AutoTokenizer`. `rows`: rows of the embedding; named tokens beyond them are dropped. `None` without a
/// tokenizer.
///
/// # Errors
/// A malformed file; files that do not define how text is split.
pub fn read(folder: &Path, rows: Option<usize>) -> Result<Option<TextSide>> {
    if !has_tokenizer(folder) {
        let other = OTHERS.into_iter().map(|name| folder.join(name)).find(|file| file.is_file());
        let advice = "this tokenizer format is not supported: open the model with transformers and save its tokenizer.json next to it";
        return other.or_else(|| tiktoken_in(folder)).map_or(Ok(None), |file| bail!("{}: {advice}", file.display()));
    }
    let config = read_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    for (key, found) in config.iter().filter(|(key, _)| FLAGS.contains(&key.as_str())) {
        let place = folder.join("tokenizer_config.json");
        ensure!(
            found.is_null() || found.is_boolean(),
            "{}: `{key}` must be true or false, found {found}",
            place.display()
        );
    }
    let model = read_object(&folder.join("config.json"))?.unwrap_or_default();
    for (file, map, key) in [
        ("tokenizer_config.json", &config, "tokenizer_class"),
        ("config.json", &model, "tokenizer_class"),
        ("config.json", &model, "model_type"),
    ] {
        let origin = folder.join(file).display().to_string();
        Keys { origin: &origin, path: "", map }.string(key)?;
    }
    let TokenizerFiles { file, source, class, named, pieces } = TokenizerFiles::find(folder, &config, &model)?;
    let has_file = source.ends_with(FILE);
    let own = file["added_tokens"].as_array().cloned().unwrap_or_default();
    let mut remade = if has_file { class.remade(file, &config) } else { file };
    let mut notes = cautions(&remade, class, &config, &source);
    // Dropout is a training setting: it would split the same text differently each time.
    if let Some(dropout) = remade.get_mut("model").and_then(|model| model.get_mut("dropout")) {
        *dropout = Value::Null;
    }
    let mut tokenizer = parse(&serde_json::to_vec(&remade)?, &source)?;
    // Files saved by a training script may carry these; they would cut or fill every text silently.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| anyhow!("{}: {error}", source.display()))?;
    let mut roles = added::folder_roles(folder, &config, class)?;
    for (role, token) in named {
        if let Some(token) = token.filter(|_| !config.contains_key(role)) {
            roles.entry(role).or_insert(Value::from(token));
        }
    }
    notes.extend(added::add(&mut tokenizer, (folder, &config, &own), (&roles, class, pieces), rows)?);
    if let Some(named) = unread(&config, &model) {
        notes.push(format!(
            "warning: {}: `tokenizer_class` is {named:?}, a class with its own rules in transformers: here tokenizer.json is read \
            unchanged",
            folder.join("tokenizer_config.json").display()
        ));
    }
    if !has_file || class == TokenizerClass::CodeLlama {
        add_around(&mut tokenizer, (&config, class), &roles, &source)?;
    }
    if config.get("split_special_tokens").and_then(Value::as_bool) == Some(true) {
        // Special tokens in a text are text.
        tokenizer.set_encode_special_tokens(true);
    }
    let templates = Templates::from_folder(folder, &config)?;
    Ok(Some(TextSide { tokenizer, config, roles, templates, source, notes }))
}

/// Warnings about a tokenizer.json that transformers 5 reads differently.
fn cautions(file: &Value, class: TokenizerClass, config: &Map<String, Value>, source: &Path) -> Vec<String> {
    let (source, model) = (source.display(), &file["model"]);
    let mut notes = vec![];
    if let Some(dropout) = model["dropout"].as_f64().filter(|dropout| *dropout != 0.0) {
        notes.push(format!(
            "warning: {source}: `model.dropout` is {dropout} and is not applied: it would cut each text at random, as transformers does"
        ));
    }
    if let Some(kind) = model["type"].as_str().filter(|kind| *kind != "BPE" && class != TokenizerClass::Generic) {
        let named = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or("the model's own");
        notes.push(format!(
            "warning: {source}: its {kind} vocabulary splits the text here. For `tokenizer_class` {named:?} transformers 5 converts it to merges \
            (BPE), which give other tokens. With \"PreTrainedTokenizerFast\" there both agree"
        ));
    }
    notes
}

/// The tokenizer.json of a folder, or one made from its older files.
struct TokenizerFiles {
    file: Value,
    source: PathBuf,
    class: TokenizerClass,
    /// Special tokens that the file defines.
    named: Vec<(&'static str, Option<String>)>,
    /// For a tokenizer.model alone: whether added tokens are matched before normalisation.
    pieces: Option<bool>,
}

impl TokenizerFiles {
    fn find(folder: &Path, config: &Map<String, Value>, model: &Map<String, Value>) -> Result<Self> {
        let source = folder.join(FILE);
        if source.is_file() {
            let text = read_text(&source).with_context(|| format!("{}: cannot read", source.display()))?;
            let file: Value = serde_json::from_str(&text)
                .map_err(|error| anyhow!("{}: not a tokenizer.json: {error}", source.display()))?;
            let class = TokenizerClass::detect(config, model, is_byte_level(&file));
            return Ok(Self { file, source, class, named: vec![], pieces: None });
        }
        let class = TokenizerClass::detect(config, model, false);
        if SLOW.iter().all(|name| folder.join(name).is_file()) {
            let file = from_vocab_and_merges(folder, class, config)?;
            return Ok(Self { file, source: folder.join(SLOW[0]), class, named: vec![], pieces: None });
        }
        let source = folder.join(PIECES);
        let bytes = read_bytes(&source, MOST_TEXT).with_context(|| format!("{}: cannot read", source.display()))?;
        ensure!(
            !is_tiktoken(&bytes),
            "{}: a tiktoken vocabulary, not SentencePiece's: use the model's tokenizer.json",
            source.display()
        );
        let read = sentencepiece::read(&bytes).with_context(|| source.display().to_string())?;
        pieces::check(&read.pieces, &source.display().to_string())?;
        let unk = read.unk.and_then(|id| read.pieces.get(id as usize)).map(|piece| piece.token.clone());
        let file = pieces::from_model(&read, class, config);
        let named = vec![("bos_token", read.bos), ("eos_token", read.eos), ("unk_token", unk)];
        let pieces = Some(class == TokenizerClass::Generic && read.dummy_prefix);
        Ok(Self { file, source, class, named, pieces })
    }
}

/// A tiktoken file, whatever its name.
fn tiktoken_in(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    files.filter(|file| file.extension().is_some_and(|ending| ending == "tiktoken")).min()
}

/// A base64 token and its rank a line.
fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    !line.is_empty() && line.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/= ".contains(byte))
}

/// The tokenizer.json of `vocab.json` and `merges.txt`, for a class that defines how text is split.
fn from_vocab_and_merges(folder: &Path, class: TokenizerClass, config: &Map<String, Value>) -> Result<Value> {
    let [vocab, merges] = SLOW.map(|name| folder.join(name));
    ensure!(
        !matches!(class, TokenizerClass::Generic | TokenizerClass::Llama | TokenizerClass::CodeLlama),
        "{}: has vocab.json and merges.txt but no tokenizer.json, and its tokenizer_class does not define how text is split: open it \
        in transformers once and save its tokenizer, which writes tokenizer.json",
        folder.display()
    );
    let words = read_object(&vocab)?.unwrap_or_default();
    let text = read_text(&merges).with_context(|| format!("{}: cannot read", merges.display()))?;
    let lines = text.lines().filter(|line| !line.starts_with("#version") && !line.trim().is_empty());
    let pair = |line: &str| {
        let pair = line.trim_end().split_once(' ');
        pair.map(|(a, b)| json!([a, b])).with_context(|| format!("{}: {line:?} is not a pair", merges.display()))
    };
    let merges = lines.map(pair).collect::<Result<Vec<_>>>()?;
    let bare = json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "BPE", "vocab": words, "merges": merges } });
    Ok(class.remade(bare, config))
}

/// The tokens around every text of a tokenizer without a tokenizer.json: those that the flags request. CodeLlama's class always adds a
/// beginning.
fn add_around(
    tokenizer: &mut Tokenizer,
    (config, class): (&Map<String, Value>, TokenizerClass),
    roles: &Map<String, Value>,
    source: &Path,
) -> Result<()> {
    let asked = |flag: &str, role: &str| {
        let token = roles.get(role).and_then(Value::as_str);
        let asked = match class {
            TokenizerClass::CodeLlama => role == "bos_token",
            _ => config.get(flag).and_then(Value::as_bool) == Some(true),
        };
        token.filter(|_| asked).map(str::to_owned)
    };
    let (before, behind) = (asked("add_bos_token", "bos_token"), asked("add_eos_token", "eos_token"));
    let around = |text: &str| [before.clone(), Some(text.to_owned()), behind.clone()].into_iter().flatten().collect();
    let single: Vec<String> = around("$A");
    let mut special = vec![];
    for token in single.iter().filter(|token| *token != "$A") {
        let id = tokenizer.token_to_id(token);
        let id =
            id.with_context(|| format!("{}: {token:?} must surround every text but is not a token", source.display()))?;
        special.push((token.clone(), id));
    }
    let template = TemplateProcessing::builder()
        .try_single(single)
        .map_err(|error| anyhow!("{}: {error}", source.display()))?
        .special_tokens(special)
        .build()
        .map_err(|error| anyhow!("{}: {error}", source.display()))?;
    tokenizer.with_post_processor(Some(template));
    Ok(())
}
