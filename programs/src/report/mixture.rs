//! Finds records that no table may mix with the others of a folder: those of another origin under the same checkpoint name, and those that
//! do not match the manifest.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use switchyard::store::{checkpoint, difference, sha256};

/// Files of a folder that must not be read, with reasons.
pub(super) fn find_excluded(folder: &Path, manifest: &Value) -> BTreeMap<String, String> {
    let mut out = other_origins(manifest);
    out.extend(unlisted(folder, manifest));
    for (name, entry) in manifest.as_object().into_iter().flatten() {
        // Older manifests have no hash.
        let Some(expected) = entry["sha256"].as_str() else { continue };
        let file = folder.join(format!("{name}.parquet"));
        if file.is_file() && sha256(&[&file]).is_ok_and(|found| found != expected) {
            let why = "do not have the sha256 in manifest.json: make them again with its command";
            out.insert(name.clone(), format!("the rows of {name} {why}"));
        }
    }
    out
}

/// Records that the manifest does not list, of an experiment that it lists for another checkpoint: a copied or renamed file would count as
/// a checkpoint that was never measured.
fn unlisted(folder: &Path, manifest: &Value) -> BTreeMap<String, String> {
    let listed: Vec<&String> = manifest.as_object().into_iter().flatten().map(|(name, _)| name).collect();
    let experiment = |name: &str| name.split_once('-').map(|(experiment, _)| experiment.to_owned());
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let rows = files.filter(|file| file.extension().is_some_and(|ending| ending == "parquet"));
    let stems = rows.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned()));
    let measured = |stem: &String| {
        experiment(stem).is_some_and(|of_file| listed.iter().any(|name| experiment(name).as_ref() == Some(&of_file)))
    };
    let others = stems.filter(|stem| !listed.contains(&stem) && measured(stem));
    let with_reason = |stem: String| {
        let why = format!("manifest.json does not list {stem}: the file was copied or renamed");
        (stem, why)
    };
    others.map(with_reason).collect()
}

/// Files whose origin differs from that of most files of their checkpoint; of equally frequent origins the first in the manifest counts.
fn other_origins(manifest: &Value) -> BTreeMap<String, String> {
    let mut by_checkpoint: BTreeMap<&str, Vec<(&String, &Value)>> = BTreeMap::new();
    for (name, entry) in manifest.as_object().into_iter().flatten() {
        if let Some(checkpoint) = checkpoint(&entry["setup"]) {
            by_checkpoint.entry(checkpoint).or_default().push((name, &entry["setup"]));
        }
    }
    let mut out = BTreeMap::new();
    for files in by_checkpoint.values() {
        let matching = |setup: &Value| files.iter().filter(|(_, other)| difference(setup, other).is_none()).count();
        // The last maximum in reverse order is the first in the manifest's order.
        let Some((reference, setup)) = files.iter().rev().max_by_key(|(_, setup)| matching(setup)) else { continue };
        for (name, other) in files {
            if let Some(difference) = difference(setup, other) {
                out.insert((*name).clone(), format!("{name} has another origin than {reference} ({difference})"));
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
    fn rows_of_another_hash_are_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("a-sft.parquet"), "rows").expect("written");
        let of = |hash: &str| {
            find_excluded(folder.path(), &json!({"a-sft": {"sha256": hash}, "b-sft": {"sha256": "x"}, "c": {}}))
        };
        let hash = sha256(&[folder.path().join("a-sft.parquet")]).expect("a hash");
        assert!(of(&hash).is_empty());
        assert!(of("0")["a-sft"].contains("the rows of a-sft do not have the sha256"), "{:?}", of("0"));
        std::fs::write(folder.path().join("a-grpo.parquet"), "rows").expect("written");
        std::fs::write(folder.path().join("d-grpo.parquet"), "rows").expect("written");
        assert_eq!(of(&hash).keys().collect::<Vec<_>>(), ["a-grpo"]);
    }

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
        let found = other_origins(&manifest);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["accuracy-sft"]);
        let why = &found["accuracy-sft"];
        assert_eq!(why, "accuracy-sft has another origin than traces-sft (weights a there, b here)");
        manifest["accuracy-sft"]["setup"]["weights"] = "a".into();
        assert!(other_origins(&manifest).is_empty());
    }
}
