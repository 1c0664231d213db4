//! A program writes only inside its output folder and removes only its own files: links out of the folder are errors for every file
//! and folder of every program, and a user's files stay.
#![cfg(unix)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::common::programs::{copy, program, text, text_of};

/// Files or folders below a folder, as relative paths.
fn below(folder: &Path, folders: bool) -> Vec<PathBuf> {
    let mut out = vec![];
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path.clone());
            }
            if path.is_dir() == folders {
                out.push(path.strip_prefix(folder).expect("below").to_path_buf());
            }
        }
    }
    out.sort();
    out
}

/// State of a file or folder that a write would change: bytes, inodes and times.
fn state(path: &Path) -> Vec<(PathBuf, u64, i64, Vec<u8>)> {
    let one = |path: PathBuf| {
        let metadata = fs::metadata(&path).expect("exists");
        let bytes = fs::read(&path).expect("read");
        (path, metadata.ino(), metadata.mtime_nsec(), bytes)
    };
    if path.is_dir() {
        below(path, false).into_iter().map(|file| one(path.join(file))).collect()
    } else {
        vec![one(path.into())]
    }
}

/// A program that makes an output folder, and the arguments to write there again. `OUT` is the folder.
struct Case {
    program: &'static str,
    first: Vec<String>,
    again: Vec<String>,
    /// Lock files.
    locks: &'static [&'static str],
}

fn run(program_name: &str, args: &[String], out: &Path, home: &Path) -> std::process::Output {
    let args = args.iter().map(|arg| arg.replace("OUT", text(out)));
    program(program_name).current_dir(home).args(args).stdin(Stdio::null()).output().expect("it runs")
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn cases(home: &Path) -> Vec<Case> {
    let checkout = Path::new(switchyard::store::CHECKOUT);
    let micro = checkout.join("fixtures/micro").display().to_string();
    let rows = checkout.join("reports/micro").display().to_string();
    fs::create_dir(home.join("rows")).expect("made");
    for name in ["accuracy-sft.parquet", "manifest.json"] {
        fs::copy(Path::new(&rows).join(name), home.join("rows").join(name)).expect("copied");
    }
    fs::write(home.join("pairs.jsonl"), "{\"gold\": \"3\", \"pred\": \"3\"}\n").expect("written");
    let same =
        |program: &'static str, line: String| Case { program, first: words(&line), again: words(&line), locks: &[] };
    let train = "--preset smoke --threads 1 --set base.steps=2 --only base --out OUT";
    let probe = format!("{micro} --phase sft --problems 4 --only accuracy --threads 1 --out OUT");
    let prompt = format!("{micro} --phase sft --threads 1 --max-new-tokens 2 --ids 1,5,6");
    vec![
        Case { program: "train", first: words(train), again: words(&format!("{train} --resume")), locks: &[".lock"] },
        Case { program: "probe", first: words(&probe), again: words(&format!("{probe} --replace")), locks: &[".lock"] },
        same("report", "OUT --page OUT/page.html --csv --tex --png".into()),
        same("report", "grade --pairs pairs.jsonl --out OUT/graded.jsonl".into()),
        same("probe", format!("generate {prompt} --record blocks.0.hook_resid_post --out OUT/r.safetensors")),
        same("report", format!("compare {rows} --out OUT/compared")),
    ]
}

#[test]
fn no_output_follows_a_link_out_of_its_folder() {
    let home = tempfile::tempdir().expect("a folder");
    let home = home.path();
    let mut tried = 0;
    for (number, case) in cases(home).iter().enumerate() {
        let made = home.join(format!("made-{number}"));
        if case.program == "report" && case.first[0] == "OUT" {
            copy(&home.join("rows"), &made);
        } else if case.program != "train" {
            fs::create_dir(&made).expect("made");
        }
        let output = run(case.program, &case.first, &made, home);
        assert!(output.status.success(), "{} {:?}: {}", case.program, case.first, text_of(&output));
        let inputs = ["accuracy-sft.parquet", "manifest.json"];
        let is_input = |path: &PathBuf| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (case.first[0] == "OUT" && inputs.contains(&name.as_str())) || case.locks.contains(&name.as_str())
        };
        // Each folder, and one file per ending in it: one call writes all names of an ending.
        let mut seen = BTreeSet::new();
        let mut all = below(&made, false);
        all.retain(|path| {
            !is_input(path)
                && seen.insert((path.parent().map(Path::to_path_buf), path.extension().map(ToOwned::to_owned)))
        });
        all.extend(below(&made, true));
        for path in all {
            let (out, outside) = (home.join("out"), home.join("outside"));
            copy(&made, &out);
            fs::rename(out.join(&path), &outside).expect("moved");
            symlink(&outside, out.join(&path)).expect("linked");
            let before = state(&outside);
            let output = run(case.program, &case.again, &out, home);
            let what = format!("{} {:?}, {}: {}", case.program, case.again, path.display(), text_of(&output));
            assert_eq!(state(&outside), before, "written through a link: {what}");
            // Rewritten files give an error by name; files of a finished phase are read through the link.
            assert!(output.status.success() || text_of(&output).contains("out of its folder"), "{what}");
            tried += 1;
            fs::remove_dir_all(&out).expect("removed");
            let _ = fs::remove_file(&outside);
            let _ = fs::remove_dir_all(&outside);
        }
    }
    assert!(tried > 25, "only {tried} outputs");
}

/// Writes a file and its parent folders.
fn put(path: &Path, what: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    fs::write(path, what).expect("written");
}

/// A user's files next to a run, and files of a killed run.
#[test]
fn resume_removes_only_the_runs_files() {
    let home = tempfile::tempdir().expect("a folder");
    let run = home.path().join("run");
    let train = |more: &[&str]| {
        let args = "--preset smoke --threads 1 --set base.steps=2 --only base --out".split(' ');
        program("train").args(args).arg(&run).args(more).output().expect("it runs")
    };
    let done = |output: std::process::Output| assert!(output.status.success(), "{}", text_of(&output));
    done(train(&[]));
    let outside = home.path().join("outside");
    let mine = "notes/state-of-the-art/list.txt notes/draft.tmp notes/state.json state-diagrams/a.svg base/state-0000001/model.bpk \
        base/state-0000001.bak/model.bpk base/my.tmp base/.mine.partial-1/a base/checkpoint-notes/state-0000002/model.bpk \
        recipe.toml.tmp";
    let theirs = "state-0000001/model.bpk a.tmp .x.switchyard.tmp";
    mine.split(' ').for_each(|name| put(&run.join(name), "mine"));
    theirs.split(' ').for_each(|name| put(&outside.join(name), "theirs"));
    symlink(&outside, run.join("link")).expect("linked");
    symlink(&outside, run.join("grpo")).expect("linked");
    // Left by a kill between writing a state's folder and naming it in state.json.
    put(&run.join("base/state-0000007/model.bpk"), "ours");
    put(&run.join("base/state-0000007/note.txt"), "mine");
    put(&run.join("base/.states.json"), "[\"state-0000007\", \"state-0000008\", \"state-0000009\"]");
    // Left by a kill while Burn wrote.
    put(&run.join("base/state-0000009/optimizer.bpk.412-7.tmp"), "half");
    symlink(&outside, run.join("base/state-0000008")).expect("linked");
    put(&run.join("base/.result.json.switchyard.tmp"), "half");
    put(&run.join(".summary.md.switchyard.tmp"), "half");
    let refused = text_of(&train(&["--resume"]));
    assert!(refused.contains("grpo") && refused.contains("out of its folder"), "{refused}");
    fs::remove_file(run.join("grpo")).expect("removed");
    done(train(&["--resume"]));
    let unchanged = |path: PathBuf, said: &str| {
        assert_eq!(fs::read_to_string(&path).unwrap_or_default(), said, "{}", path.display());
    };
    mine.split(' ').for_each(|name| unchanged(run.join(name), "mine"));
    theirs.split(' ').for_each(|name| unchanged(outside.join(name), "theirs"));
    assert!(!run.join("base/state-0000007/model.bpk").exists(), "a state that the run left");
    assert!(!run.join("base/state-0000009").exists(), "a state that Burn was writing");
    assert_eq!(fs::read_to_string(run.join("base/state-0000007/note.txt")).expect("a user's own"), "mine");
    for name in ["base/.states.json", "base/.result.json.switchyard.tmp", ".summary.md.switchyard.tmp"] {
        assert!(!run.join(name).exists(), "{name} is left");
    }
}

#[test]
fn a_report_removes_only_files_of_reports() {
    let home = tempfile::tempdir().expect("a folder");
    let home = home.path();
    drop(cases(home));
    let rows = home.join("rows");
    let report = |more: &[&str]| {
        let output = program("report").current_dir(home).arg("rows").args(more).output().expect("it runs");
        assert!(output.status.success(), "{}", text_of(&output));
    };
    report(&["--csv"]);
    let written = below(&rows.join("tables"), false);
    assert!(written.iter().any(|path| path.extension().is_some_and(|ending| ending == "csv")), "{written:?}");
    let mine = ["figures/fig-1.png", "figures/fig-training.svg.md", "tables/tab-mine.md", "tables/claims-of-mine.csv"];
    mine.iter().for_each(|name| put(&rows.join(name), "mine"));
    report(&[]);
    for name in mine {
        assert_eq!(fs::read_to_string(rows.join(name)).unwrap_or_default(), "mine", "{name}");
    }
    let mut left = below(&rows.join("tables"), false).into_iter().map(|path| path.display().to_string());
    assert!(!left.any(|name| name.starts_with("tab-") && name.ends_with(".csv")));
    assert!(!rows.join("tables/.manifest.lock").exists(), "a lock is left");
    // A list with files elsewhere removes nothing.
    let kept = home.join("kept.md");
    fs::write(&kept, "kept").expect("written");
    for name in ["../../kept.md", text(&kept)] {
        fs::write(rows.join(".report.json"), serde_json::json!({ "tables": [name] }).to_string()).expect("written");
        let output = program("report").current_dir(home).arg("rows").output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{}", text_of(&output));
        assert_eq!(fs::read_to_string(&kept).expect("read"), "kept");
    }
}
