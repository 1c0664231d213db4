//! Output folders of results, and files that they must not replace or mix with.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::programs::{self, copy, program};
use serde_json::Value;
use switchyard::schema::{FILES, described};
use switchyard::store::read_flat;
use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::render::{default_page, report};

/// A working folder with a copy of the committed checkpoints in the default place.
struct Workplace(tempfile::TempDir);

impl Workplace {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().expect("a folder"));
        copy(Path::new("fixtures/micro"), &home.path("fixtures/micro"));
        home
    }

    fn path(&self, inner: &str) -> PathBuf {
        self.0.path().join(inner)
    }

    fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = program(name);
        command.args(args).current_dir(self.0.path());
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        self.command(program, args).output().expect("it runs")
    }

    #[track_caller]
    fn done(&self, program: &str, args: &[&str]) -> String {
        programs::done(&mut self.command(program, args)).0
    }

    #[track_caller]
    fn refused(&self, program: &str, args: &[&str], parts: &[&str]) {
        programs::refused(&mut self.command(program, args), parts);
    }

    fn manifest(&self, folder: &str) -> Value {
        let text = std::fs::read_to_string(self.path(folder).join("manifest.json")).expect("a manifest");
        serde_json::from_str(&text).expect("JSON")
    }
}

/// Another model of the same shape: its last weight differs.
fn other_weights(checkpoint: &Path) {
    let file = checkpoint.join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("weights");
    let end = bytes.len();
    bytes[end - 2] ^= 0x10;
    std::fs::write(&file, bytes).expect("weights");
}

const SMALL: [&str; 6] = ["--phase", "sft", "--problems", "30", "--only", "accuracy"];

#[test]
fn default_output_is_in_an_ignored_folder() {
    let home = Workplace::new();
    home.done("probe", &SMALL);
    home.done("intervene", &["--phase", "sft", "--problems", "30", "--only", "switch_benefit"]);
    let said = home.done("report", &[]);
    assert!(said.contains("runs/reports"), "{said}");
    assert!(home.path("runs/reports/micro/switch_benefit-sft.parquet").is_file());
    assert!(home.path("runs/reports/index.html").is_file() && !home.path("reports").exists());
    let ignored = std::fs::read_to_string(".gitignore").expect("the file");
    assert!(ignored.lines().any(|line| line == "/runs"));
    let entry = &home.manifest("runs/reports/micro")["accuracy-sft"];
    let setup = &entry["setup"];
    for part in ["weights", "data"] {
        assert_eq!(setup[part].as_str().map(str::len), Some(64), "{part}: {setup}");
    }
    assert!(setup["adapter"].is_null() && setup["decode"]["k_cap"].is_u64(), "{setup}");
    assert_eq!(entry["columns"]["accuracy"]["unit"], "share", "{entry}");
    assert!(entry["commit"].as_str().is_some_and(|commit| !commit.is_empty()), "{entry}");
    // Without rows the error names the command that makes them.
    let empty = Workplace(tempfile::tempdir().expect("a folder"));
    empty.refused("report", &[], &["runs/reports", "run `probe` first", "reports/micro"]);
}

/// Findings come first: a sentence with number, interval and n, from this command's rows only.
#[test]
fn a_first_run_ends_with_its_findings() {
    let home = Workplace::new();
    let small = ["--phase", "sft", "--problems", "60"];
    let files = |home: &Workplace| {
        let folder = std::fs::read_dir(home.path("runs/reports/micro")).expect("rows").flatten();
        let names = folder.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut rows: Vec<String> = names.filter(|name| name.ends_with(".parquet")).collect();
        rows.sort();
        rows
    };
    let first = home.done("probe", &small);
    assert_eq!(files(&home), ["accuracy-sft.parquet", "teacher_forced-sft.parquet", "traces-sft.parquet"]);
    let findings = |said: &str| -> Vec<String> {
        let (_, last) = said.split_once("sft: ").expect("findings");
        let lines = format!("sft: {last}");
        lines.lines().take_while(|line| line.starts_with("sft: ")).map(str::to_owned).collect()
    };
    let lines = findings(&first);
    assert!(lines.len() >= 3, "{first}");
    for (line, of) in lines.iter().zip(["probability of <swi>", "of the responses", "answered right"]) {
        assert!(line.starts_with("sft: ") && line.contains(of) && line.contains("] n="), "{line}");
        assert!(line.ends_with('.') && !line.contains(".."), "{line}");
    }
    assert!(first.contains("--all runs every experiment"), "{first}");
    let causal = home.done("intervene", &[&small[..], &["--only", "switch_benefit"]].concat());
    let found = findings(&causal);
    assert!(found.len() == 1 && found[0].contains("one"), "{causal}");
    home.refused("probe", &["--all", "--only", "accuracy"], &["--all", "--only"]);
    home.refused("intervene", &["--all", "--hook", "blocks.1.attn.hook_z"], &["--hook", "--all"]);
}

/// A run of another method has other phases: by default, its own are examined.
#[test]
fn existing_phases_are_examined() {
    let home = Workplace::new();
    copy(&home.path("fixtures/micro/sft"), &home.path("run/coconut"));
    copy(&home.path("fixtures/micro/sft"), &home.path("run/base"));
    std::fs::copy(home.path("fixtures/micro/recipe.toml"), home.path("run/recipe.toml")).expect("a recipe");
    home.done("probe", &["run", "--problems", "30", "--only", "accuracy", "--out", "rows"]);
    assert!(home.path("rows/accuracy-coconut.parquet").is_file() && !home.path("rows/accuracy-base.parquet").exists());
    let prompt = ["generate", "run", "--prompt", "<bos> a = 5 ; ? a :", "--max-new-tokens", "2"];
    assert_eq!(home.done("probe", &prompt), home.done("probe", &[&prompt[..], &["--phase", "coconut"]].concat()));
}

/// Runs with fewer problems, other weights or another dtype have separate folders; the same command always uses the same one.
#[test]
fn rows_of_other_settings_have_another_folder() {
    let home = Workplace::new();
    home.done("probe", &SMALL);
    let file = home.path("runs/reports/micro/accuracy-sft.parquet");
    let held = std::fs::read(&file).expect("rows");
    let fewer = ["--phase", "sft", "--problems", "20", "--only", "accuracy"];
    for _ in 0..2 {
        let output = home.run("probe", &fewer);
        let said = programs::text_of(&output);
        assert!(output.status.success(), "{said}");
        // The last line names the folder after `report`, by itself or as `cargo run --bin report --`.
        for part in
            ["accuracy-sft", "problems 30 there, 20 here", "go to runs/reports/micro.2", " runs/reports/micro.2\n"]
        {
            assert!(said.contains(part), "{said} lacks {part}");
        }
    }
    assert!(home.path("runs/reports/micro.2/accuracy-sft.parquet").is_file());
    assert!(!home.path("runs/reports/micro.3").exists());
    let named = [&fewer[..], &["--out", "runs/reports/micro"]].concat();
    home.refused("probe", &named, &["accuracy-sft", "problems 30 there, 20 here", "--replace", "--out"]);
    assert_eq!(std::fs::read(&file).expect("rows"), held);
    home.done("probe", &[&fewer[..], &["--replace"]].concat());
    assert_ne!(std::fs::read(&file).expect("rows"), held);

    let modes = ["--phase", "sft", "--problems", "30", "--only", "latent_intervention", "--out", "modes", "--modes"];
    home.done("intervene", &[&modes[..], &["normal,zero,skip"]].concat());
    home.refused("intervene", &[&modes[..], &["normal,skip"]].concat(), &["modes: without zero"]);
    home.done("intervene", &[&modes[..], &["normal,zero,skip,mean"]].concat());
}

#[test]
fn rows_of_other_weights_or_dtype_do_not_mix() {
    let home = Workplace::new();
    let out = ["--out", "rows"];
    home.done("probe", &[&SMALL[..], &out].concat());
    let traces = ["--phase", "sft", "--problems", "30", "--only", "traces", "--out", "rows"];
    home.refused("probe", &[&traces[..], &["--dtype", "bf16"]].concat(), &["dtype f32 there, bf16 here"]);
    other_weights(&home.path("fixtures/micro/sft/checkpoint"));
    home.refused("probe", &traces, &["accuracy-sft", "of another origin", "weights ", "--replace"]);
    let modes = ["--phase", "sft", "--problems", "30", "--only", "switch_benefit", "--out", "rows"];
    home.refused("intervene", &modes, &["of another origin"]);
    assert!(!home.path("rows/traces-sft.parquet").exists());
    // --replace removes rows that must not be mixed with the new ones.
    home.done("probe", &[&traces[..], &["--replace"]].concat());
    assert!(!home.path("rows/accuracy-sft.parquet").exists());
    let manifest = home.manifest("rows");
    assert_eq!(manifest.as_object().expect("entries").keys().collect::<Vec<_>>(), ["traces-sft"]);
}

#[test]
fn models_of_the_same_name_have_separate_folders() {
    let home = Workplace::new();
    for run in ["a", "b"] {
        copy(&home.path("fixtures/micro/sft/checkpoint"), &home.path(run).join("checkpoint"));
    }
    other_weights(&home.path("b/checkpoint"));
    let asked = ["--like", "micro", "--problems", "30", "--only", "accuracy"];
    home.done("probe", &[&["a/checkpoint", "b/checkpoint"][..], &asked].concat());
    for name in ["a-checkpoint", "b-checkpoint"] {
        assert!(home.path(&format!("runs/reports/{name}/accuracy-{name}.parquet")).is_file(), "{name}");
    }
    // Two runs in one folder would write the same files.
    copy(&home.path("fixtures/micro"), &home.path("other/micro"));
    let both = ["fixtures/micro", "other/micro", "--out", "both"];
    home.refused("probe", &[&both[..], &SMALL].concat(), &["accuracy-sft would be written twice"]);
    assert!(!home.path("both").exists());
}

#[test]
fn a_read_only_folder_is_an_error_before_any_work() {
    let home = Workplace::new();
    std::fs::write(home.path("file"), "mine").expect("a file");
    for program in ["probe", "intervene"] {
        let output = home.run(program, &["--phase", "sft", "--problems", "30", "--out", "file/x"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("file/x") && said.lines().count() == 1, "{program} worked first: {said}");
    }
}

/// A folder with few committed rows, for fast rendering.
fn some_rows(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    for name in ["accuracy-sft.parquet", "switch_window-sft.parquet", "exit_probability-sft.parquet", "manifest.json"] {
        std::fs::copy(Path::new("reports/micro").join(name), folder.join(name)).expect("a committed file");
    }
}

#[test]
fn a_foreign_page_is_not_overwritten() {
    let temp = tempfile::tempdir().expect("a folder");
    let (rows, page) = (temp.path().join("rows"), temp.path().join("index.html"));
    some_rows(&rows);
    std::fs::write(&page, "<html>my own home page</html>").expect("a page");
    let folder = || [Folder::open(&rows).expect("rows")];
    let refused = format!("{:#}", report(&folder(), &page).err().expect("refused"));
    assert!(refused.contains("index.html") && refused.contains("--page"), "{refused}");
    assert_eq!(std::fs::read_to_string(&page).expect("a page"), "<html>my own home page</html>");
    assert!(!rows.join("tables").exists(), "it found out after the work");
    // It overwrites its own page.
    std::fs::remove_file(&page).expect("removed");
    report(&folder(), &page).expect("a page");
    report(&folder(), &page).expect("the same again");
}

#[test]
fn a_page_of_other_folders_is_not_overwritten() {
    let temp = tempfile::tempdir().expect("a folder");
    let [first, second] = ["first", "second"].map(|name| temp.path().join(name));
    some_rows(&first);
    some_rows(&second);
    let open = |path: &Path| Folder::open(path).expect("rows");
    let page = temp.path().join("index.html");
    report(&[open(&first)], &page).expect("a page");
    let before = std::fs::read(&page).expect("a page");
    let refused = format!("{:#}", report(&[open(&second)], &page).err().expect("refused"));
    assert!(refused.contains("is the page of") && refused.contains("first") && refused.contains("--page"), "{refused}");
    assert_eq!(std::fs::read(&page).expect("a page"), before);
    assert!(!second.join("tables").exists(), "it found out after the work");
    // By default it does not overwrite; a page of more folders replaces one of fewer.
    assert_eq!(default_page(&[open(&second)]), second.join("index.html"));
    assert_eq!(default_page(&[open(&first)]), page);
    report(&[open(&second), open(&first)], &page).expect("a page of both");
    report(&[open(&first)], &page).err().expect("one of both would be lost");
}

#[test]
fn tables_and_figures_without_rows_are_removed_and_other_files_stay() {
    let temp = tempfile::tempdir().expect("a folder");
    let (rows, page) = (temp.path().join("rows"), temp.path().join("index.html"));
    some_rows(&rows);
    report(&[Folder::open(&rows).expect("rows")], &page).expect("a page");
    let [figure, table] = ["figures/fig-exit.svg", "tables/tab-exit-probability.md"].map(|name| rows.join(name));
    assert!(figure.is_file() && table.is_file());
    std::fs::write(rows.join("figures/mine.svg"), "mine").expect("a file");
    std::fs::remove_file(rows.join("exit_probability-sft.parquet")).expect("removed");
    report(&[Folder::open(&rows).expect("rows")], &page).expect("a page");
    assert!(!figure.exists() && !table.exists(), "stale");
    assert!(rows.join("figures/mine.svg").is_file() && rows.join("figures/fig-swi-window.svg").is_file());
}

#[test]
fn mixed_rows_are_omitted_under_a_red_bar() {
    let temp = tempfile::tempdir().expect("a folder");
    let (rows, page) = (temp.path().join("rows"), temp.path().join("index.html"));
    some_rows(&rows);
    let file = rows.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&file).expect("a manifest")).expect("JSON");
    manifest["accuracy-sft"]["setup"]["weights"] = "f".repeat(64).into();
    std::fs::write(&file, manifest.to_string()).expect("a manifest");
    let folder = Folder::open(&rows).expect("rows");
    assert_eq!(folder.mixed.len(), 1, "{:?}", folder.mixed);
    assert!(folder.files().all(|(experiment, _, _)| experiment != "accuracy"));
    let done = report(&[folder], &page).expect("a page");
    assert!(done.summary.contains("MIXED") && done.summary.contains("accuracy-sft"), "{}", done.summary);
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("class=\"mixed\" role=\"alert\"") && html.contains("ffffffff here"), "no bar");
    let committed = Folder::open(Path::new("reports/micro")).expect("rows");
    assert!(committed.mixed.is_empty(), "{:?}", committed.mixed);
}

#[test]
fn every_column_of_the_committed_rows_has_a_unit_and_a_description() {
    let mut seen = 0;
    for file in std::fs::read_dir("reports/micro").expect("the committed rows").flatten().map(|entry| entry.path()) {
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let rows = stem.split('-').next().unwrap_or_default();
        // Training logs have their own column names; raw rows are not committed, so local ones are skipped.
        let raw = ["observations", "patched_", "attributed_", "edge_pairs", "steering_trials"]
            .iter()
            .any(|name| rows.starts_with(name));
        if file.extension().is_none_or(|e| e != "parquet") || rows == "metrics" || raw {
            continue;
        }
        let first = read_flat(&file).expect("rows").swap_remove(0);
        let (_, columns) = FILES.iter().find(|(names, _)| names.contains(&rows)).expect(rows);
        let described = described(columns, first.keys());
        for column in first.keys() {
            let ends = [".value", ".low", ".high", ".n"];
            let name = ends.iter().find_map(|end| column.strip_suffix(end)).unwrap_or(column);
            let both = ["unit", "about"].map(|key| described[name][key].as_str().is_some_and(|text| !text.is_empty()));
            assert_eq!(both, [true, true], "{}: {column}", file.display());
            seen += 1;
        }
    }
    assert!(seen > 300, "{seen} columns");
}

#[test]
fn a_folder_without_model_or_rows_is_named() {
    let home = Workplace::new();
    std::fs::create_dir(home.path("empty")).expect("a folder");
    std::fs::write(home.path("file"), "text").expect("a file");
    home.refused("probe", &["empty"], &["empty: an empty folder"]);
    home.refused("probe", &[&SMALL[..], &["--out", "file"]].concat(), &["file: a file", "--out"]);
}
