//! Tokens that are matched whole, added to a tokenizer as in `transformers`: those of its own file, of `added_tokens_decoder` in
//! tokenizer_config.json (or the older `added_tokens.json`), and those that have a role.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Model, Tokenizer};

use super::classes::TokenizerClass;
use super::folder::read_object;

/// Parts of a named token, in the order of `transformers`.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A token as files write it: its text, or an object with its content.
fn content(file: &str, key: &str, value: &Value) -> Result<Option<String>> {
    Ok(Some(match value {
        Value::Null => return Ok(None),
        Value::String(token) => token.clone(),
        Value::Object(token) => match token.get("content") {
            Some(Value::String(content)) => content.clone(),
            _ => bail!("{file}: {key}: expected a string under \"content\""),
        },
        other => bail!("{file}: {key}: expected a token, found {}", kind(other)),
    }))
}

/// The tokens with a role in a `tokenizer_config.json`.
///
/// # Errors
/// A value that is not a token, by file and key.
pub fn roles(file: &str, object: &Map<String, Value>) -> Result<Map<String, Value>> {
    let mut roles = Map::new();
    for key in ROLES {
        if let Some(value) = object.get(key) {
            roles.insert(key.to_owned(), content(file, key, value)?.map_or(Value::Null, Value::String));
        }
    }
    Ok(roles)
}

/// The tokens with a role in a folder: the class's defaults, overridden by tokenizer_config.json and, if that lists no added tokens, by
/// special_tokens_map.json.
pub(super) fn folder_roles(
    folder: &Path,
    config: &Map<String, Value>,
    class: TokenizerClass,
) -> Result<Map<String, Value>> {
    let mut all: Map<String, Value> =
        class.defaults().iter().map(|(key, token)| ((*key).to_owned(), Value::from(*token))).collect();
    all.extend(roles(&folder.join("tokenizer_config.json").display().to_string(), config)?);
    let older = older(folder, config)?;
    all.extend(roles(&folder.join(OLDER).display().to_string(), &older)?);
    for (key, value) in other_roles(config).chain(other_roles(&older)) {
        match parse_token(value) {
            Some(token) => all.insert(key.clone(), Value::String(token.content)),
            None if value.is_null() => all.shift_remove(key),
            None => None,
        };
    }
    all.retain(|_, token| !token.is_null());
    Ok(all)
}

const OLDER: &str = "special_tokens_map.json";

/// The older file, read if tokenizer_config.json lists no added tokens.
fn older(folder: &Path, config: &Map<String, Value>) -> Result<Map<String, Value>> {
    let found = if decoder(config).is_none() { read_object(&folder.join(OLDER))? } else { None };
    Ok(found.unwrap_or_default())
}

/// `null` counts as missing.
fn decoder(config: &Map<String, Value>) -> Option<&Value> {
    config.get("added_tokens_decoder").filter(|listed| !listed.is_null())
}

/// Parses a token: its text (a special token), or an object with matching rules.
fn parse_token(value: &Value) -> Option<AddedToken> {
    let flag = |key: &str| value[key].as_bool().unwrap_or(false);
    let text = value.as_str().or_else(|| value["content"].as_str())?;
    let token = AddedToken::from(text.to_owned(), true);
    Some(
        token
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .normalized(flag("normalized")),
    )
}

const EXTRA: &str = "extra_special_tokens";
const ADDITIONAL: &str = "additional_special_tokens";

/// Tokens with another role (`image_token`): first objects, then texts, then those of an object of further tokens.
fn other_roles(object: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let own = |(key, _): &(&String, &Value)| key.ends_with("_token") && !ROLES.contains(&key.as_str());
    let (objects, others): (Vec<_>, Vec<_>) = object.iter().filter(own).partition(|(_, value)| value.is_object());
    let further = object.get(EXTRA).and_then(Value::as_object).into_iter().flatten();
    objects.into_iter().chain(others).chain(further)
}

/// Tokens without a role. A list in tokenizer_config.json has precedence over special_tokens_map.json.
fn extra(config: &Map<String, Value>, older: &Map<String, Value>) -> Vec<AddedToken> {
    let list = |object: &Map<String, Value>, key: &str| match object.get(key) {
        Some(Value::Array(list)) => list.iter().filter_map(parse_token).collect(),
        _ => vec![],
    };
    let mut tokens: Vec<AddedToken> = list(config, EXTRA);
    if tokens.is_empty() {
        tokens = list(config, ADDITIONAL);
    }
    match older.get(EXTRA) {
        // It replaces the list.
        Some(Value::Object(_)) => tokens.clear(),
        _ => tokens.extend(list(older, EXTRA)),
    }
    let listed = config.get(EXTRA).is_some_and(Value::is_array) || config.contains_key(ADDITIONAL);
    if !listed && tokens.is_empty() {
        tokens = list(older, ADDITIONAL);
    }
    tokens
}

/// The listed tokens by id: from `added_tokens_decoder` if present, else from added_tokens.json and the tokenizer's own file.
fn listed(
    folder: &Path,
    config: &Map<String, Value>,
    own: &[Value],
    roles: &Map<String, Value>,
) -> Result<BTreeMap<u32, AddedToken>> {
    let place = folder.join("tokenizer_config.json");
    let id = |text: &str| {
        text.parse::<u32>().map_err(|_| anyhow!("{}: added_tokens_decoder: {text:?} is not an id", place.display()))
    };
    if let Some(decoder) = decoder(config) {
        let decoder = decoder.as_object();
        let decoder =
            decoder.with_context(|| format!("{}: added_tokens_decoder: expected an object", place.display()))?;
        return decoder.iter().map(|(key, token)| Ok((id(key)?, token_of(token, &place)?))).collect();
    }
    let mut tokens = BTreeMap::new();
    let file = folder.join("added_tokens.json");
    for (token, value) in read_object(&file)?.unwrap_or_default() {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.with_context(|| format!("{}: {token:?}: expected an id", file.display()))?;
        let special = roles.values().any(|role| *role == token);
        tokens.insert(id, AddedToken::from(token, special));
    }
    for token in own {
        let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok()).context("an added token without an id")?;
        tokens.insert(id, token_of(token, &folder.join("tokenizer.json"))?);
    }
    Ok(tokens)
}

fn token_of(value: &Value, file: &Path) -> Result<AddedToken> {
    let flag = |key: &str| value[key].as_bool();
    let token = value["content"].as_str();
    let token = token.with_context(|| format!("{}: an added token without \"content\"", file.display()))?;
    let special = flag("special").unwrap_or(false);
    Ok(AddedToken::from(token, special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!special)))
}

/// The id that the tokenizers crate assigns to the next token outside the model's vocabulary.
fn next_id(tokenizer: &Tokenizer) -> u32 {
    let words = tokenizer.get_model().get_vocab_size() as u32;
    let added = tokenizer.get_added_tokens_decoder().into_keys().max();
    added.filter(|top| *top >= words || words == 0).map_or(words, |top| top + 1)
}

/// Adds all tokens. A new one without a row among `rows` is dropped: the model cannot compute it. Returns notes for the user.
pub(super) fn add(
    tokenizer: &mut Tokenizer,
    (folder, config, own): (&Path, &Map<String, Value>, &[Value]),
    (roles, class, pieces): (&Map<String, Value>, TokenizerClass, Option<bool>),
    rows: Option<usize>,
) -> Result<Vec<String>> {
    let there = tokenizer.get_added_tokens_decoder();
    let mut tokens: Vec<(Option<u32>, AddedToken, String)> = vec![];
    for (id, token) in listed(folder, config, own, roles)? {
        let token = if pieces == Some(true) { token.normalized(false) } else { token };
        if !there.values().any(|known| *known == token) {
            tokens.push((Some(id), token, "added_tokens_decoder".to_owned()));
        }
    }
    let known = |tokens: &[(Option<u32>, AddedToken, String)], content: &str| {
        there.values().any(|token| token.content == content) || tokens.iter().any(|(_, t, _)| t.content == content)
    };
    let mut older = older(folder, config)?;
    if pieces.is_some() {
        // Replaced by SentencePiece's own control tokens.
        older.shift_remove(ADDITIONAL);
    }
    let further = extra(config, &older);
    // New ones get their ids in the order of the roles.
    let usual = ROLES.iter().copied().filter(|role| roles.contains_key(*role));
    for role in usual.chain(roles.keys().map(String::as_str).filter(|role| !ROLES.contains(role))) {
        let Some(text) = roles[role].as_str().filter(|text| !known(&tokens, text)) else { continue };
        let places = [&older, config]
            .into_iter()
            .flat_map(|object| [object.get(role), object.get(EXTRA).and_then(|e| e.get(role))]);
        let written = places.flatten().filter_map(parse_token).find(|token| token.content == text);
        tokens.push((None, written.unwrap_or_else(|| AddedToken::from(text, true)), role.to_owned()));
    }
    for token in &further {
        if !known(&tokens, &token.content) {
            tokens.push((None, token.clone(), EXTRA.to_owned()));
        }
    }
    let (mut notes, mut left) = (vec![], vec![]);
    for (listed, token, from) in tokens {
        let content = token.content.clone();
        let id = tokenizer.token_to_id(&content);
        let next = id.unwrap_or_else(|| next_id(tokenizer));
        if id.is_none() && listed.is_none() && rows.is_some_and(|rows| next as usize >= rows) {
            // Tokens that only the class adds are not an error of the folder.
            if !class.defaults().contains(&(from.as_str(), content.as_str())) {
                left.push(format!("{from} {content:?}"));
            }
            continue;
        }
        if let Some(listed) = listed.filter(|listed| *listed != next) {
            notes.push(format!(
                "added_tokens_decoder gives {content:?} id {listed}; it gets {next}, as in transformers"
            ));
        }
        tokenizer
            .add_tokens([token])
            .map_err(|error| anyhow!("{}: cannot add {content:?}: {error}", folder.display()))?;
    }
    if class == TokenizerClass::Qwen2 {
        // It adds its special tokens once more, by their text alone.
        let named = roles.values().filter_map(Value::as_str).chain(further.iter().map(|token| token.content.as_str()));
        let there: Vec<_> = named.filter(|text| tokenizer.token_to_id(text).is_some()).collect();
        let plain = there.into_iter().map(|text| AddedToken::from(text, true));
        tokenizer.add_tokens(plain).map_err(|error| anyhow!("{}: {error}", folder.display()))?;
    }
    if !left.is_empty() {
        let what = left.join(", ");
        notes.push(format!("{what}: not in the tokenizer, and the model has no row for it: left out"));
    }
    Ok(notes)
}

/// The JSON type of a value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
