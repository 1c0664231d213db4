//! Checks of a `tokenizer.json` that the tokenizers crate does not make: templates that name tokens without ids, and normalisers whose
//! output grows with every step. Knows the file's keys; encodes nothing.

use anyhow::{Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

/// The checked parts; the large vocabulary is skipped.
#[derive(Deserialize)]
pub(super) struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
}

/// Maximum growth factor of a text. Usual ones are below a hundred.
const MOST_GROWTH: usize = 4096;

impl Parts {
    /// # Errors
    /// The part that does not fit, by its key.
    pub fn check(&self) -> Result<()> {
        template(&self.post_processor)?;
        for (key, part) in [("normalizer", &self.normalizer), ("decoder", &self.decoder)] {
            let growth = growth(part);
            ensure!(
                growth <= MOST_GROWTH,
                "{key}: its steps may make a text {growth} times as long, at most {MOST_GROWTH} is read"
            );
        }
        Ok(())
    }
}

/// A template must define ids for the tokens that it puts before and after a text.
fn template(part: &Value) -> Result<()> {
    let parts = part["processors"].as_array();
    parts.into_iter().flatten().try_for_each(template)?;
    if part["type"] != "TemplateProcessing" {
        return Ok(());
    }
    for (key, ids) in [("single", &["A"][..]), ("pair", &["A", "B"][..])] {
        for piece in part[key].as_array().into_iter().flatten() {
            let token = piece["SpecialToken"]["id"].as_str();
            if let Some(token) = token.filter(|token| part["special_tokens"].get(token).is_none()) {
                bail!("post_processor: `{key}` names the token {token:?}, which its `special_tokens` do not have");
            }
            let text = piece["Sequence"]["id"].as_str();
            if let Some(text) = text.filter(|text| !ids.contains(text)) {
                bail!("post_processor: `{key}` names the text {text:?}, which it does not get");
            }
        }
    }
    Ok(())
}

/// Maximum growth factor of a normaliser or decoder, for a text of one character.
fn growth(part: &Value) -> usize {
    let steps = ["normalizers", "decoders"].iter().find_map(|key| part[key].as_array());
    if let Some(steps) = steps {
        return steps.iter().fold(1, |all: usize, step| all.saturating_mul(growth(step)));
    }
    let length = |key: &str| part[key].as_str().map_or(0, str::len);
    match part["type"].as_str() {
        Some("Replace") => match part["pattern"]["String"].as_str() {
            Some(pattern) if !pattern.is_empty() => length("content").div_ceil(pattern.len()).max(1),
            _ => length("content").saturating_add(1),
        },
        Some("Prepend") => length("prepend").saturating_add(1),
        // A built-in table: the longest entry of those in use.
        Some("Precompiled") => 8,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(value: Value) -> Result<()> {
        serde_json::from_value::<Parts>(value).expect("parts").check()
    }

    #[test]
    fn what_people_use_passes() {
        let llama = json!({ "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ] });
        let decoder = json!({ "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" }, { "type": "Fuse" },
        ] });
        let template = json!({ "type": "TemplateProcessing", "special_tokens": { "<s>": { "id": "<s>", "ids": [1] } },
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }] });
        check(json!({ "normalizer": llama, "decoder": decoder, "post_processor": template })).expect("as Llama has it");
        check(json!({ "normalizer": null })).expect("as many have it");
    }

    #[test]
    fn steps_that_double_and_templates_without_their_tokens_are_named() {
        let double = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" });
        let many = vec![double; 40];
        let error = check(json!({ "normalizer": { "type": "Sequence", "normalizers": many } })).expect_err("2^40");
        assert!(error.to_string().contains("normalizer: its steps may make a text 1099511627776 times"), "{error}");
        let nested = json!({ "type": "Sequence", "decoders": [{ "type": "Sequence", "decoders": many }] });
        assert!(check(json!({ "decoder": nested })).is_err());
        let single = json!([{ "SpecialToken": { "id": "<s>", "type_id": 0 } }]);
        let template = json!({ "type": "TemplateProcessing", "special_tokens": {}, "single": single });
        let inside = json!({ "type": "Sequence", "processors": [{ "type": "ByteLevel" }, template] });
        for part in [template, inside] {
            let error = check(json!({ "post_processor": part })).expect_err("no such token").to_string();
            assert!(error.contains("`single` names the token \"<s>\""), "{error}");
        }
        let second = json!({ "type": "TemplateProcessing", "single": [{ "Sequence": { "id": "B", "type_id": 0 } }] });
        assert!(check(json!({ "post_processor": second })).is_err());
    }
}
