//! Rows of different origin under one name: found before they are read, so that no table mixes them. Knows manifests.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::store::{checkpoint, difference};

/// Files that must not stand beside the others of their checkpoint, each with the reason. Those of the origin that most files
/// have stay; of two origins with as many files each, the one that the manifest names first.
pub(super) fn strangers(manifest: &Value) -> BTreeMap<String, String> {
    let mut of: BTreeMap<&str, Vec<(&String, &Value)>> = BTreeMap::new();
    for (name, entry) in manifest.as_object().into_iter().flatten() {
        if let Some(checkpoint) = checkpoint(&entry["setup"]) {
            of.entry(checkpoint).or_default().push((name, &entry["setup"]));
        }
    }
    let mut out = BTreeMap::new();
    for files in of.values() {
        let like = |setup: &Value| files.iter().filter(|(_, other)| difference(setup, other).is_none()).count();
        // The last of those with the most is the first in the manifest's order.
        let Some((held, setup)) = files.iter().rev().max_by_key(|(_, setup)| like(setup)) else { continue };
        for (name, other) in files {
            if let Some(difference) = difference(setup, other) {
                out.insert((*name).clone(), format!("{name} is of another origin than {held} ({difference})"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_fewer_are_left_out() {
        let entry = |checkpoint: &str, weights: &str| json!({"setup": {"checkpoint": checkpoint, "weights": weights}});
        let mut manifest = json!({
            "accuracy-sft": entry("micro/sft", "b"),
            "traces-sft": entry("micro/sft", "a"),
            "entropy-sft": entry("micro/sft", "a"),
            "accuracy-grpo": entry("micro/grpo", "c"),
            "command": "train",
        });
        let found = strangers(&manifest);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["accuracy-sft"]);
        let why = &found["accuracy-sft"];
        assert_eq!(why, "accuracy-sft is of another origin than traces-sft (weights a there, b here)");
        manifest["accuracy-sft"]["setup"]["weights"] = "a".into();
        assert!(strangers(&manifest).is_empty());
    }
}
