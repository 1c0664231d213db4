//! Allowed imports between modules (the module map of src/lib.rs), checked on the `use` lines of the library and `programs`.

use std::fs;
use std::path::{Path, PathBuf};

/// Modules that a module may import. A module that is not listed may import none. `grade`, `ops` and `stats` are packages in `crates/`,
/// which cannot import the library.
const ALLOWED: [(&str, &str); 29] = [
    ("random", ""),
    ("names", ""),
    ("nth", ""),
    ("guard", ""),
    ("store", "guard"),
    ("schema", "nth stats store"),
    ("tasks", "random"),
    ("progress", ""),
    ("parallel", ""),
    ("world", "store"),
    ("tokenizer", "guard"),
    ("text", "guard store tasks tokenizer"),
    ("model", "guard names nth ops progress random schema tokenizer"),
    ("latent", "guard model ops parallel random schema tokenizer"),
    ("machine", "model ops world"),
    ("interventions", "guard latent model names nth random schema"),
    ("recipe", "grade guard latent machine model names tasks text"),
    ("loading", "interventions latent machine model ops progress text"),
    ("corpus", "grade latent recipe tasks text"),
    ("method", "corpus latent model ops random recipe tasks text"),
    ("evaluation", "corpus latent model ops parallel progress recipe stats text"),
    (
        "train",
        "corpus evaluation guard latent loading machine method model ops parallel progress random recipe schema stats store tasks text world",
    ),
    (
        "study",
        "corpus evaluation grade guard interventions latent loading machine method model names nth ops parallel progress recipe schema stats store tasks text",
    ),
    (
        "experiments",
        "corpus evaluation interventions latent machine model nth ops parallel progress random recipe schema stats store study tasks text",
    ),
    (
        "calibration",
        "corpus experiments grade interventions latent method model parallel progress random recipe schema stats store study tasks text",
    ),
    ("parity", "corpus guard latent machine method model ops recipe train"),
    ("report", "guard method nth schema stats store tasks text"),
    (
        "commands",
        "calibration corpus experiments grade guard interventions latent loading machine method model names ops parallel parity progress recipe report schema stats store study tasks text train world",
    ),
    ("bin", "commands"),
];

/// Modules without tensors.
const PLAIN: [&str; 10] =
    ["random", "names", "nth", "guard", "tokenizer", "text", "tasks", "store", "schema", "report"];

/// The library, and the programs that use it.
const ROOTS: [&str; 2] = ["src", "programs/src"];

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

/// Names after `crate::`, `switchyard::` or `switchyard_programs::` on a line, including those in braces.
fn imported(line: &str) -> Vec<&str> {
    fn name(text: &str) -> &str {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        // A macro is not a module, nor is a trait of the crate's root.
        let is_item = text[end..].starts_with('!') || text.starts_with(char::is_uppercase);
        if is_item { "" } else { &text[..end] }
    }
    let after = ["crate::", "switchyard::", "switchyard_programs::"].map(|krate| line.split(krate).skip(1));
    after
        .into_iter()
        .flatten()
        .flat_map(|rest| match rest.strip_prefix('{') {
            Some(list) => list.split(", ").map(name).collect(),
            None => vec![name(rest)],
        })
        .filter(|found| !found.is_empty())
        .collect()
}

#[test]
fn modules_import_only_what_the_map_allows() {
    let mut files = vec![];
    ROOTS.iter().for_each(|root| sources(Path::new(root), &mut files));
    let (mut seen, mut wrong) = (0, vec![]);
    for file in files {
        let below = |root: &&str| file.strip_prefix(root).ok();
        let relative = ROOTS.iter().find_map(below).expect("below a root");
        let first = relative.iter().next().and_then(|s| s.to_str()).unwrap_or_default();
        let room = first.trim_end_matches(".rs");
        if room == "lib" {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a source file");
        let may = ALLOWED.iter().find(|(name, _)| *name == room);
        let (_, may) = may.unwrap_or_else(|| panic!("{room} is a new room: add it to the map"));
        for (number, line) in text.lines().enumerate() {
            // Comments may name any module.
            if line.trim_start().starts_with("//") {
                continue;
            }
            let place = format!("{}:{}", relative.display(), number + 1);
            for target in imported(line) {
                seen += 1;
                if target != room && !may.split(' ').any(|m| m == target) {
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

#[test]
fn one_file_names_devices() {
    let mut files = vec![];
    ROOTS.iter().for_each(|root| sources(Path::new(root), &mut files));
    let names = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("a source file");
        ["flex", "cuda", "default"].iter().any(|name| text.contains(&format!("Device::{name}(")))
    };
    let found: Vec<_> = files.iter().filter(|file| names(file)).collect();
    assert_eq!(found, [Path::new("src/machine.rs")], "other files get the device as a parameter");
}

/// On GPUs with TF32, Burn's matmul rounds f32 to TF32; `ops::matmul` does not. Only the device check calls Burn's.
#[test]
fn matrix_products_use_ops() {
    let mut files = vec![];
    ["src", "programs/src", "crates/ops/src"].iter().for_each(|folder| sources(Path::new(folder), &mut files));
    let may = [
        "crates/ops/src/product.rs",
        "crates/ops/src/cube/matmul.rs",
        "crates/ops/src/fused/flex.rs",
        "programs/src/commands/check",
    ];
    assert!(may.iter().all(|path| Path::new(path).exists()));
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        for product in [".matmul(", "float_matmul("] {
            let own = may.iter().any(|path| file.starts_with(path));
            assert!(own || !text.contains(product), "{} has {product}: use ops::matmul", file.display());
        }
    }
}

#[test]
fn no_two_modules_import_each_other() {
    let may = |room: &str| ALLOWED.iter().find(|(name, _)| *name == room).map_or("", |(_, may)| may);
    fn reaches<'m>(may: &dyn Fn(&str) -> &'m str, from: &str, to: &str) -> bool {
        may(from).split(' ').filter(|next| !next.is_empty()).any(|next| next == to || reaches(may, next, to))
    }
    for (room, _) in ALLOWED {
        assert!(!reaches(&may, room, room), "{room} imports itself through other rooms");
    }
}

/// Files are written and removed only in these folders.
#[test]
fn one_module_writes_and_removes_files() {
    let calls = "fs::write( File::create( OpenOptions fs::rename( fs::copy( hard_link( remove_file( remove_dir symlink( NamedTempFile";
    // The hub cache needs its own links and partial downloads.
    let may = ["src/store/", "crates/formats/src/output/", "crates/formats/src/checkpoint/hub/"];
    let mut files = vec![];
    ROOTS.iter().chain(&["crates/formats/src"]).for_each(|root| sources(Path::new(root), &mut files));
    let mut wrong = vec![];
    for file in files.iter().filter(|file| !may.iter().any(|may| file.starts_with(may))) {
        let text = fs::read_to_string(file).expect("a source file");
        // Unit tests may write files.
        let tests =
            ["#[cfg(test)]\nmod ", "#[cfg(all(test", "#[test]"].iter().filter_map(|begin| text.find(begin)).min();
        let code = &text[..tests.unwrap_or(text.len())];
        let found = calls.split(' ').filter(|call| code.contains(call));
        wrong.extend(found.map(|call| format!("{}: {call}", file.display())));
    }
    assert!(wrong.is_empty(), "write with `store`: {wrong:?}");
}

/// Without `--locked`, a build may use other versions than those tested.
#[test]
fn every_build_of_a_script_is_locked() {
    const BUILDS: [&str; 7] = ["build", "test", "clippy", "check", "run", "bench", "install"];
    let folders = [".ci", ".github/workflows", "reports/gpu"].map(|folder| fs::read_dir(folder).expect("a folder"));
    let scripts = folders.into_iter().flatten().flatten().map(|entry| entry.path());
    let mut builds = 0;
    for script in scripts.filter(|path| path.is_file() && path.extension().is_none_or(|e| e == "sh" || e == "yml")) {
        let text = fs::read_to_string(&script).expect("a script").replace("\\\n", " ");
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#') && !line.contains("echo")) {
            let words: Vec<&str> = line.split(|c: char| c.is_whitespace() || "\"()".contains(c)).collect();
            let starts = |word: &&str| ["cargo", "maturin", "build="].iter().any(|tool| word.ends_with(tool));
            let Some(tool) = words.iter().position(starts) else { continue };
            // `cargo fuzz` has no such option: `.ci/fuzz`, which CI does not run, starts from a copy of the lock file.
            let other = ["deny", "fuzz"].iter().any(|tool| words.contains(tool));
            if words[tool + 1..].iter().any(|word| BUILDS.contains(word)) && !other {
                builds += 1;
                assert!(line.contains("--locked"), "{}: {line}", script.display());
            }
        }
    }
    assert!(builds > 15, "only {builds} builds");
}
