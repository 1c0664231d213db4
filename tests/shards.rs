//! Sweeps by several processes: for any number of processes and kills, the merged files equal those of one process byte for byte;
//! missing, duplicate, unfinished or foreign shards are errors by name.

use crate::common::programs::{copy, done, refused};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PROBE: &str = env!("CARGO_BIN_EXE_probe");
const INTERVENE: &str = env!("CARGO_BIN_EXE_intervene");
const REPORT: &str = env!("CARGO_BIN_EXE_report");

/// A folder for a sweep and its shards.
struct ShardRun {
    home: tempfile::TempDir,
    program: &'static str,
    arguments: &'static str,
}

/// Six batches of eight problems.
const INTERVENTIONS: &str = "fixtures/micro --phase sft --problems 48 --batch 8 --draws 2 --threads 1 --modes \
    zero,random_norm,mean,gaussian,resample,sibling,known_value,self_patch,skip,null_batch,null_seed";
const PROBES: &str = "fixtures/micro --phase sft --problems 48 --batch 8";

impl ShardRun {
    fn new(program: &'static str, arguments: &'static str) -> Self {
        Self { home: tempfile::tempdir().expect("a folder"), program, arguments }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, out: &str, more: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.args(self.arguments.split(' ')).args(more).arg("--out").arg(self.at(out));
        command.env_remove("SLURM_ARRAY_TASK_ID").env_remove("JOB_COMPLETION_INDEX");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    #[track_caller]
    fn done(&self, out: &str, more: &[&str]) -> String {
        done(&mut self.command(out, more)).0
    }

    /// Every shard of `of`.
    fn shards(&self, out: &str, of: usize, more: &[&str]) -> Vec<PathBuf> {
        let one = |number: usize| {
            self.done(out, &[&["--shard", &format!("{number}/{of}")], more].concat());
            self.at(out).join(format!("shard-{number}-of-{of}"))
        };
        (1..=of).map(one).collect()
    }

    /// Settings for which head patching takes seconds.
    fn recipe(&self) -> String {
        let path = self.at("recipe.toml");
        let text = "[settings.head_patching]\nforms = [\"latents\"]\nmodes = [\"denoise\", \"mean\"]\nblocks = 1\n";
        fs::write(&path, text).expect("written");
        path.display().to_string()
    }

    fn merge(&self, folders: &[PathBuf], out: &str) -> Command {
        let mut command = Command::new(REPORT);
        command.arg("merge").args(folders).arg("--out").arg(self.at(out));
        command
    }
}

/// Rows as Parquet and CSV, by name.
fn rows(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    let mut files: Vec<PathBuf> =
        files.filter(|f| f.extension().is_some_and(|ending| ending == "parquet" || ending == "csv")).collect();
    files.sort();
    let named =
        |f: &PathBuf| (f.file_name().expect("a name").to_string_lossy().into_owned(), fs::read(f).expect("rows"));
    files.iter().map(named).collect()
}

#[track_caller]
fn same(whole: &Path, merged: &Path, needed: &str) {
    let (whole, merged) = (rows(whole), rows(merged));
    let names = |rows: &[(String, Vec<u8>)]| rows.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let without: Vec<_> = merged.iter().filter(|(name, _)| whole.iter().any(|(other, _)| name == other)).collect();
    assert_eq!(names(&whole), without.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    for ((name, a), (_, b)) in whole.iter().zip(without) {
        assert!(a == b, "{name} differs");
    }
    let names = names(&whole);
    for name in needed.split(' ').map(|name| format!("{name}-sft.parquet")) {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

/// Output of `report`: tables with verdicts, and figures.
fn tables(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    done(Command::new(REPORT).arg(folder).arg("--page").arg(folder.join("page.html")));
    let mut files = vec![];
    let mut left = vec![folder.to_path_buf()];
    while let Some(next) = left.pop() {
        for path in fs::read_dir(next).expect("a folder").map(|f| f.expect("a file").path()) {
            if path.is_dir() && !path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("shard-")) {
                left.push(path);
            } else if path.extension().is_some_and(|e| e == "md" || e == "tex" || e == "svg") {
                files.push((path.strip_prefix(folder).expect("inside").into(), fs::read(&path).expect("text")));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn sharded_interventions_equal_those_of_one_process() {
    let sweep = ShardRun::new(INTERVENE, INTERVENTIONS);
    // Tables contain the folder's name: the last part of its path.
    let recipe = sweep.recipe();
    let recipe: &[&str] = &["--recipe", &recipe, "--pairs", "5"];
    sweep.done("whole/rows", recipe);
    let shards = sweep.shards("merged/rows", 3, recipe);
    // In another order.
    done(&mut sweep.merge(&[2, 0, 1].map(|i: usize| shards[i].clone()), "merged/rows"));
    let needed = "observations latent_intervention known_value switch_benefit activation_patching head_patching";
    same(&sweep.at("whole/rows"), &sweep.at("merged/rows"), needed);
    let (whole, merged) = (tables(&sweep.at("whole/rows")), tables(&sweep.at("merged/rows")));
    assert!(!whole.is_empty() && whole == merged, "tables differ");
    // A shard is not overwritten.
    refused(&mut sweep.merge(&shards, "merged/rows/shard-2-of-3"), &["is one of the shards"]);
    // One process finds no work left.
    let again = sweep.done("merged/rows", &[recipe, &["--resume"]].concat());
    assert_eq!(again.matches("done before").count(), 4, "{again}");

    // Two rounds: normal runs of each shard's problems, then interventions with the normal runs of all.
    let first = sweep.shards("normal", 3, &["--only", "normal_run"]);
    done(&mut sweep.merge(&first, "normal"));
    let decoded = sweep.at("normal").display().to_string();
    let only = ["--only", "latent_intervention,switch_benefit"];
    sweep.done("one", &only);
    let second = sweep.shards("rounds", 6, &[&only[..], &["--decoded", &decoded]].concat());
    done(&mut sweep.merge(&second, "rounds"));
    same(&sweep.at("one"), &sweep.at("rounds"), "observations latent_intervention switch_benefit");
    refused(&mut sweep.command("x", &["--decoded", &decoded]), &["--decoded is for shards"]);
    for (flags, why) in [("--shard 1/2 --seed 3", "setup.seed 0 there, 3 here"), ("--shard 1/2 --force", "blocks")] {
        let flags: Vec<&str> = flags.split(' ').collect();
        refused(&mut sweep.command("x", &[&["--decoded", &decoded], &flags[..]].concat()), &[why]);
    }
}

/// Experiments on request: attribution, circuits, steering, a hook, and a user's pairs.
#[test]
fn experiments_on_request_can_be_sharded() {
    let sweep = ShardRun::new(INTERVENE, "fixtures/micro --phase sft --problems 40 --batch 8");
    let recipe = sweep.at("recipe.toml");
    let few = "forms = [\"latents\"]\ncandidates = 40\npairs = 6\nblocks = 1\nsteps = 2\n";
    let text = format!(
        "[settings.attribution_patching]\n{few}sample = 20\n[settings.edge_attribution]\n{few}random = 2\nremoved = 3\n\
         others = 10\n[settings.steering]\ndoses = [1.0]\nlayers = [1, 3]\nproblems = 12\nleast = 1\n"
    );
    fs::write(&recipe, text).expect("written");
    let recipe = recipe.display().to_string();
    let measured = ["--recipe", &recipe, "--only", "attribution_patching,edge_attribution,steering"];
    let hooked =
        ["--hook", "blocks.2.attn.hook_z", "--heads", "0", "--draws", "1", "--modes", "zero,resample,self_patch"];
    for (name, arguments, files) in [
        ("measured", &measured[..], "attribution_patching attributed_nodes circuits edge_pairs steering"),
        ("hooked", &hooked[..], "hook_intervention hook_observations"),
    ] {
        let (whole, merged) = (format!("{name}/whole"), format!("{name}/merged"));
        sweep.done(&whole, &[arguments, &["--threads", "2"]].concat());
        let shards = sweep.shards(&merged, 3, &[arguments, &["--threads", "1"]].concat());
        done(&mut sweep.merge(&shards, &merged));
        same(&sweep.at(&whole), &sweep.at(&merged), files);
    }
    // Five pairs for three shards.
    let file = sweep.at("own.jsonl");
    let line = |i: usize| {
        let (v, w) = (i + 1, (i + 3) % 7);
        format!(
            "{{\"clean\": \"<bos> a = {v} ; ? a : = #\", \"corrupt\": \"<bos> a = {w} ; ? a : = #\", \"answer\": \"{v}\", \"wrong\": \"{w}\"}}\n"
        )
    };
    fs::write(&file, (0..5).map(line).collect::<String>()).expect("written");
    let pairs = |out: &str, more: &[&str]| {
        let mut command = Command::new(INTERVENE);
        command.arg("pairs").arg(&file).args(["fixtures/micro", "--phase", "sft", "--components", "head,mlp"]);
        done(command.args(more).arg("--out").arg(sweep.at(out))).0
    };
    pairs("pairs/whole", &[]);
    let shards = [1, 2, 3].map(|number| {
        pairs("pairs/merged", &["--shard", &format!("{number}/3")]);
        sweep.at("pairs/merged").join(format!("shard-{number}-of-3"))
    });
    done(&mut sweep.merge(&shards, "pairs/merged"));
    same(&sweep.at("pairs/whole"), &sweep.at("pairs/merged"), "pair_patching patched_pairs");
}

#[test]
fn sharded_probes_equal_those_of_one_process() {
    let sweep = ShardRun::new(PROBE, PROBES);
    sweep.done("whole", &["--all", "--threads", "2"]);
    let shards = sweep.shards("decoded", 3, &["--threads", "1"]);
    done(&mut sweep.merge(&shards, "decoded"));
    let decoded = sweep.at("decoded").display().to_string();
    sweep.done("merged", &["--decoded", &decoded]);
    let needed = "accuracy outcomes traces entropy positions layer_probe";
    same(&sweep.at("whole"), &sweep.at("merged"), needed);
    refused(&mut sweep.command("x", &["--shard", "1/2", "--only", "layer_probe"]), &["layer_probe", "without --shard"]);
    let one = shards[0].display().to_string();
    refused(&mut sweep.command("x", &["--decoded", &one]), &["decodes-sft is from one shard"]);
    refused(&mut sweep.command("x", &["--decoded", &decoded, "--seed", "4"]), &["setup.seed 0 there, 4 here"]);
}

#[test]
fn incomplete_or_mixed_shards_are_errors_by_name() {
    let sweep = ShardRun::new(INTERVENE, "fixtures/micro --problems 30 --batch 10 --modes zero,skip");
    let only = ["--only", "latent_intervention"];
    let sft = [&only[..], &["--phase", "sft"]].concat();
    let shards = sweep.shards("a", 3, &sft);
    let of = |which: &[usize]| which.iter().map(|&i| shards[i].clone()).collect::<Vec<_>>();
    refused(&mut sweep.merge(&of(&[0, 2]), "m"), &["observations-sft: shard 2/3 is missing", "--shard 1/3"]);
    refused(&mut sweep.merge(&of(&[0, 1, 1, 2]), "m"), &["observations-sft: shard 2/3 occurs twice", "shard-2-of-3"]);
    assert!(!sweep.at("m").exists(), "no file is written before all checks");
    // Another number of shards, other settings, another phase's weights under the same name.
    let two = sweep.shards("b", 2, &sft);
    refused(&mut sweep.merge(&[of(&[0, 1]), vec![two[1].clone()]].concat(), "m"), &["shard 2/2", "not from one run"]);
    let other = sweep.shards("c", 3, &[&sft[..], &["--seed", "1"]].concat());
    refused(&mut sweep.merge(&[of(&[0, 1]), vec![other[2].clone()]].concat(), "m"), &["setup.seed 0 there, 1 here"]);
    let home = sweep.at("d/micro");
    for (from, to) in [("grpo", "sft"), ("base", "base"), ("annotate", "annotate")] {
        copy(&Path::new("fixtures/micro").join(from), &home.join(to));
    }
    fs::copy("fixtures/micro/recipe.toml", home.join("recipe.toml")).expect("a recipe");
    let mut mixed = Command::new(INTERVENE);
    mixed
        .arg(&home)
        .args(sweep.arguments.split(' ').skip(1))
        .args(&sft)
        .args(["--shard", "3/3", "--out"])
        .arg(sweep.at("d"));
    done(&mut mixed);
    let mixed = [of(&[0, 1]), vec![sweep.at("d").join("shard-3-of-3")]].concat();
    refused(&mut sweep.merge(&mixed, "m"), &["observations-sft", "not from one run: setup.weights"]);
    // Not a shard, or not finished.
    sweep.done("e", &sft);
    refused(&mut sweep.merge(&[sweep.at("e")], "m"), &["has the records of a single process, not of a shard"]);
    fs::write(shards[1].join("observations-sft.rows.tmp"), "{}").expect("written");
    refused(&mut sweep.merge(&of(&[0, 1, 2]), "m"), &["not finished", "--resume"]);
    fs::remove_file(shards[1].join("observations-sft.rows.tmp")).expect("removed");
    done(&mut sweep.merge(&of(&[0, 1, 2]), "m"));
    // Shards without work.
    let many = [&sft[..], &["--shard", "4/4"]].concat();
    refused(&mut sweep.command("f", &many), &["--shard 4/4", "30 problems", "allow 3 shards at most"]);
    for (shard, needle) in [("0/3", "no shard 0/3"), ("2", "i/n"), ("auto", "SLURM_ARRAY_TASK_ID")] {
        refused(&mut sweep.command("f", &[&sft[..], &["--shard", shard]].concat()), &[needle]);
    }
    assert!(!sweep.at("f").exists());
}

#[test]
fn a_killed_shard_resumes_and_the_merge_is_the_same() {
    let sweep = ShardRun::new(INTERVENE, INTERVENTIONS);
    let more = ["--only", "latent_intervention", "--steps", "all,1,2"];
    sweep.done("whole", &more);
    let first = sweep.done("merged", &[&more[..], &["--shard", "1/2"]].concat());
    assert!(first.contains("shard 1/2") && first.contains("report -- merge"), "{first}");
    let second = [&more[..], &["--shard", "2/2"]].concat();
    let journal = sweep.at("merged").join("shard-2-of-2/observations-sft.rows.tmp");
    let mut kills = 0;
    for size in [1, 100_000, 300_000] {
        let resume: &[&str] = if journal.exists() { &["--resume"] } else { &[] };
        let mut child = sweep.command("merged", &[&second[..], resume].concat()).spawn().expect("it runs");
        let written = || journal.metadata().map_or(0, |file| file.len());
        while written() < size && child.try_wait().expect("its state").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        kills += u32::from(child.try_wait().expect("its state").is_none());
        child.kill().expect("killed");
        child.wait().expect("its end");
    }
    assert!(kills >= 2, "only {kills} kills came before the end");
    let shards = [1, 2].map(|number| sweep.at("merged").join(format!("shard-{number}-of-2")));
    refused(&mut sweep.merge(&shards, "merged"), &["not finished"]);
    sweep.done("merged", &[&second[..], &["--resume"]].concat());
    done(&mut sweep.merge(&shards, "merged"));
    same(&sweep.at("whole"), &sweep.at("merged"), "observations latent_intervention");
}
