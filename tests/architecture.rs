//! Who may import whom (the module map of src/lib.rs), read off the `use crate::` lines.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms that a room may import. What is not listed may import nothing of the crate.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("ops", vec![]),
        ("model", vec!["ops"]),
        ("latent", vec!["model", "ops", "parallel"]),
        ("tasks", vec![]),
        ("text", vec!["tasks"]),
        ("grade", vec![]),
        ("stats", vec![]),
        ("report", vec!["stats"]),
        ("interventions", vec!["latent", "model"]),
        ("recipe", vec!["latent", "model", "tasks", "text"]),
        ("loading", vec!["latent", "model", "text"]),
        ("corpus", vec!["grade", "latent", "recipe", "tasks", "text"]),
        ("progress", vec![]),
        ("parallel", vec![]),
        ("curriculum", vec!["latent", "recipe"]),
        ("evaluation", vec!["ops", "text", "corpus", "latent", "model", "parallel", "progress", "recipe", "stats"]),
        (
            "train",
            vec![
                "curriculum",
                "corpus",
                "evaluation",
                "parallel",
                "progress",
                "latent",
                "model",
                "ops",
                "text",
                "tasks",
                "grade",
                "stats",
                "report",
                "recipe",
                "loading",
            ],
        ),
        (
            "experiments",
            vec![
                "curriculum",
                "corpus",
                "evaluation",
                "parallel",
                "progress",
                "recipe",
                "latent",
                "model",
                "ops",
                "text",
                "tasks",
                "grade",
                "stats",
                "report",
                "interventions",
                "loading",
            ],
        ),
        (
            "commands",
            vec![
                "latent",
                "model",
                "ops",
                "text",
                "loading",
                "report",
                "experiments",
                "interventions",
                "recipe",
                "progress",
            ],
        ),
    ])
}

/// Rooms that hold no tensors.
const PLAIN: [&str; 5] = ["text", "tasks", "grade", "stats", "report"];

fn sources(path: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(path).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn rooms_import_only_what_the_map_allows() {
    let src = Path::new(".").join("src");
    let mut files = vec![];
    sources(&src, &mut files);
    let (allowed, mut seen, mut wrong) = (allowed(), 0, vec![]);
    for file in files {
        let relative = file.strip_prefix(&src).expect("below src");
        let first = relative.iter().next().and_then(|s| s.to_str()).unwrap_or_default();
        let room = first.trim_end_matches(".rs");
        if room == "lib" || room == "bin" {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a source file");
        let may = allowed.get(room).unwrap_or_else(|| panic!("{room} is a new room: add it to the map"));
        for (number, line) in text.lines().enumerate() {
            // Comments name rooms freely, tests may reach further.
            if line.trim_start().starts_with("//") {
                continue;
            }
            if line.contains("mod tests") {
                break;
            }
            let place = format!("{}:{}", relative.display(), number + 1);
            for part in line.split("crate::").skip(1) {
                let target: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                seen += 1;
                if target != room && !may.contains(&target.as_str()) {
                    wrong.push(format!("{place}: {room} → {target}"));
                }
            }
            if PLAIN.contains(&room) && line.contains("burn::") {
                wrong.push(format!("{place}: {room} holds no Burn type"));
            }
        }
    }
    assert!(seen > 100, "only {seen} imports found: the test reads the wrong folder");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
