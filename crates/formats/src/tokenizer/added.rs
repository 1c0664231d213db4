//! Added tokens, which are matched whole, in the order in which `transformers` adds them:
//!
//! 1. those of `added_tokens_decoder` in tokenizer_config.json, else of added_tokens.json and tokenizer.json, by id;
//! 2. those with a role (`eos_token`), then those with another role (`image_token`);
//! 3. those without a role (`extra_special_tokens`, `additional_special_tokens`).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Model, Tokenizer};

use super::classes::TokenizerClass;
use super::folder::read_object;
use crate::config::keys::brief;

/// Keys of tokens with a role, in the order of `transformers`.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The text of a token: a string, or the `content` of an object.
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
    let older = older(folder, config)?;
    for (name, object) in [("tokenizer_config.json", config), (OLDER, &older)] {
        let file = folder.join(name).display().to_string();
        check_lists(&file, object)?;
        all.extend(roles(&file, object)?);
    }
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
    let text = value.as_str().or_else(|| value["content"].as_str())?;
    Some(with_rules(text, true, value))
}

/// A token with the matching rules of an object; a missing rule is off, except that a token that is not special is normalised.
fn with_rules(text: &str, special: bool, rules: &Value) -> AddedToken {
    let flag = |key: &str, default: bool| rules[key].as_bool().unwrap_or(default);
    AddedToken::from(text, special)
        .single_word(flag("single_word", false))
        .lstrip(flag("lstrip", false))
        .rstrip(flag("rstrip", false))
        .normalized(flag("normalized", !special))
}

const EXTRA: &str = "extra_special_tokens";
const ADDITIONAL: &str = "additional_special_tokens";

/// Matching rules of a token, and whether it is special.
const RULES: [&str; 5] = ["single_word", "lstrip", "rstrip", "normalized", "special"];

/// Checks the keys that list tokens without a role.
fn check_lists(file: &str, object: &Map<String, Value>) -> Result<()> {
    let is_flag = |value: &Value| value.is_null() || value.is_boolean();
    let is_token = |value: &Value| parse_token(value).is_some() && RULES.iter().all(|rule| is_flag(&value[*rule]));
    for key in [EXTRA, ADDITIONAL] {
        let found = object.get(key).unwrap_or(&Value::Null);
        let fits = match found {
            Value::Null => true,
            Value::Array(list) => list.iter().all(is_token),
            Value::Object(named) => key == EXTRA && named.values().all(|value| value.is_null() || is_token(value)),
            _ => false,
        };
        ensure!(fits, "{file}: `{key}` must be a list of tokens, found {}", brief(found));
    }
    Ok(())
}

/// Tokens with another role (`image_token`): first objects, then strings, then the entries of an `extra_special_tokens` object.
fn other_roles(object: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let is_other = |(key, _): &(&String, &Value)| key.ends_with("_token") && !ROLES.contains(&key.as_str());
    let (objects, others): (Vec<_>, Vec<_>) = object.iter().filter(is_other).partition(|(_, value)| value.is_object());
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
        return decoder.iter().map(|(key, token)| Ok((id(key)?, parse_listed(token, &place)?))).collect();
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
        tokens.insert(id, parse_listed(token, &folder.join("tokenizer.json"))?);
    }
    Ok(tokens)
}

fn parse_listed(value: &Value, file: &Path) -> Result<AddedToken> {
    let token = value["content"].as_str();
    let token = token.with_context(|| format!("{}: an added token without \"content\"", file.display()))?;
    for key in RULES {
        let found = &value[key];
        ensure!(
            found.is_null() || found.is_boolean(),
            "{}: {token:?}: `{key}` must be true or false, found {found}",
            file.display()
        );
    }
    Ok(with_rules(token, value["special"].as_bool().unwrap_or(false), value))
}

/// The id that the tokenizers crate assigns to the next token outside the model's vocabulary.
fn next_id(tokenizer: &Tokenizer) -> u32 {
    let words = tokenizer.get_model().get_vocab_size() as u32;
    let added = tokenizer.get_added_tokens_decoder().into_keys().max();
    added.filter(|top| *top >= words || words == 0).map_or(words, |top| top + 1)
}

/// Adds all tokens, except new ones whose id is beyond the model's `rows` embeddings. Returns notes for the user.
pub(super) fn add(
    tokenizer: &mut Tokenizer,
    (folder, config, own): (&Path, &Map<String, Value>, &[Value]),
    (roles, class, pieces): (&Map<String, Value>, TokenizerClass, Option<bool>),
    rows: Option<usize>,
) -> Result<Vec<String>> {
    let present = tokenizer.get_added_tokens_decoder();
    let mut tokens: Vec<(Option<u32>, AddedToken, String)> = vec![];
    for (id, token) in listed(folder, config, own, roles)? {
        let token = if pieces == Some(true) { token.normalized(false) } else { token };
        if !present.values().any(|known| *known == token) {
            tokens.push((Some(id), token, "added_tokens_decoder".to_owned()));
        }
    }
    let known = |tokens: &[(Option<u32>, AddedToken, String)], content: &str| {
        present.values().any(|token| token.content == content) || tokens.iter().any(|(_, t, _)| t.content == content)
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
    let (mut notes, mut dropped) = (vec![], vec![]);
    for (listed, token, from) in tokens {
        let content = token.content.clone();
        let id = tokenizer.token_to_id(&content);
        let next = id.unwrap_or_else(|| next_id(tokenizer));
        if id.is_none() && listed.is_none() && rows.is_some_and(|rows| next as usize >= rows) {
            // Tokens that only the class adds are not an error of the folder.
            if !class.defaults().contains(&(from.as_str(), content.as_str())) {
                dropped.push(format!("{from} {content:?}"));
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
        // This class adds its special tokens a second time, by their text alone.
        let named = roles.values().filter_map(Value::as_str).chain(further.iter().map(|token| token.content.as_str()));
        let there: Vec<_> = named.filter(|text| tokenizer.token_to_id(text).is_some()).collect();
        let plain = there.into_iter().map(|text| AddedToken::from(text, true));
        tokenizer.add_tokens(plain).map_err(|error| anyhow!("{}: {error}", folder.display()))?;
    }
    if !dropped.is_empty() {
        let tokens = dropped.join(", ");
        notes.push(format!("{tokens}: neither in the tokenizer nor in the model's embedding table: left out"));
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
