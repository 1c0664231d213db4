//! Runs every command that README, docs/, `--help` and the recipes of `experiments/` show, in a folder that is not the repository's,
//! with small files in place of a user's: first unchanged as a dry run (without `--device cuda`), then in full with fewer problems and
//! steps. The commands of a page run in order in one folder; those of `--help` and recipes each in a separate folder. A new command
//! needs no change here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use crate::common::programs::{PROGRAMS, copy};
use crate::common::tiny_config;
use burn::tensor::Device;
use switchyard::model::Decoder;
use switchyard::model::checkpoint::{ModelFiles, SaveOptions, save_hf_folder};
use switchyard::model::config::{Family, ModelConfig};
use switchyard_programs::report::recipes::all;
use tempfile::TempDir;

/// Every phase of every preset in a few steps.
const SHORT: &str = "data.rows=48 base.steps=2 annotate.batch_tokens=256 boundary.steps=2 \
    latent.stages=[{k=1,steps=1},{k=2,steps=1}] grpo.from_step=0 grpo.steps=1 grpo.keep_every=0 grpo.questions=2 grpo.group=2 \
    no_cot.steps=2 icot.steps=2 icot.epochs=0 coconut.max_stage=1 coconut.stages=[{k=1,steps=2}] codi.steps=2 codi.epochs=0 \
    colar.steps=2 colar.epochs=0 latent_sft.chain_steps=1 latent_sft.steps=1 boundary.epochs=0 evaluation.problems=4 \
    evaluation.max_new_tokens=16 data.max_tokens=512";

/// Experiments that a small random model cannot run, and their messages.
const UNFIT: [(&str, &str); 8] = [
    ("intervene runs/own", "no problem switched"),
    ("probe runs/own", "layer_probe"),
    ("--adapter fixtures/smollm2-chains", "found [3, 576]"),
    ("--from fixtures/smollm2-chains", "found [3, 576]"),
    ("--set adapter=fixtures/smollm2-chains", "found [3, 576]"),
    ("math500.jsonl --only layer_probe", "layer_probe"),
    ("math500.jsonl --only exit_probability", "never switched"),
    ("math500.jsonl --only latent_intervention --out runs/reports/switch-released", "no problem switched"),
];

/// Our programs. The pages also show `cargo test`, `pip` and `curl`.
fn is_ours(line: &str) -> bool {
    PROGRAMS.iter().any(|(name, _)| line.split_whitespace().next() == Some(name))
}

/// A command without `cargo run` and without its comment.
fn typed(line: &str) -> String {
    let line = line.trim();
    let line = line.strip_prefix("cargo run --bin ").unwrap_or(line).replacen(" -- ", " ", 1);
    let cut = [line.find("  "), line.find(" # ")].into_iter().flatten().min();
    line[..cut.unwrap_or(line.len())].trim().to_owned()
}

/// The adapter of the paper's authors; here `fixtures/released`.
const RELEASED: &str = "LARK-Lab/SWITCH-Phase3-GRPO-LoRA-Qwen3-8B";

/// The command for a computer without a GPU.
fn on_cpu(line: &str) -> String {
    line.replace(" --device cuda", "")
}

/// The same with less work.
fn shorter(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (program, second) = (words[0], words.get(1).copied().unwrap_or_default());
    let mut line = on_cpu(line).replace(" --draws 20", "");
    match (program, second) {
        (
            "probe" | "intervene",
            "generate" | "activations" | "import" | "info" | "film" | "lens" | "patterns" | "pairs",
        )
        | ("report", _) => {}
        ("probe", "calibrate") => line += " --draws 1 --only inert,latent_intervention --n 20",
        // The bare command runs every experiment, on few pairs; other lines show options of one experiment.
        ("intervene", "") => line += " --problems 24 --phase sft --pairs 5",
        ("intervene", _) if !["--only", "--hook", RELEASED].iter().any(|word| words.contains(word)) => {
            return shorter(&(line + " --only latent_intervention"));
        }
        ("probe" | "intervene", _) if line.contains(" --batch 10 ") => {}
        ("probe" | "intervene", _) => {
            if let Some((before, after)) = line.clone().split_once(" --problems ") {
                let after = after.split_once(' ').map_or("", |(_, after)| after);
                line = format!("{before} {after}");
            }
            // Probes by problem need both kinds of outcome; each answer of the large model's stand-in is 4,096 tokens long.
            let probes = program == "probe" && (!words.contains(&"--only") || line.contains("layer_probe"));
            let n = if line.contains("Qwen") {
                2
            } else if probes {
                60
            } else {
                24
            };
            line += &format!(" --problems {n}");
            if line.contains(RELEASED) {
                line += " --like short.toml";
            }
            // One of micro's three checkpoints, unless the line names one.
            if !["--phase", "Qwen", "SmolLM2", "phases"].iter().any(|word| line.contains(word)) {
                line += " --phase sft";
            }
        }
        ("train", _) => {
            line = first_points(&line);
            let named = |setting: &&str| line.contains(setting.split_once('=').expect("a setting").0);
            let settings = SHORT.split_whitespace().filter(|setting| !named(setting));
            line = settings.fold(line.clone(), |line, setting| format!("{line} --set '{setting}'"));
        }
        (other, _) => panic!("no program {other}: {line}"),
    }
    line
}

/// A sweep's first point, with starts and steps of the short curriculum.
fn first_points(line: &str) -> String {
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    for at in 1..words.len() {
        let Some((key, values)) = words[at].split_once('=') else { continue };
        words[at] = match (words[at - 1].as_str(), key) {
            (_, "latent.keep_steps") => format!("{key}=[1]"),
            (_, "grpo.from_step") => format!("{key}=1"),
            (_, "grpo.steps") if values != "0" => format!("{key}=1"),
            ("--sweep", _) => format!("{key}={}", values.split(',').next().unwrap_or_default()),
            _ => continue,
        };
    }
    words.join(" ")
}

/// Runs a line in a shell, with the programs installed and outside the repository.
fn run(line: &str, folder: &Path) -> Output {
    run_as(line, folder, "0")
}

/// The same; `dry` is 1 for a dry run.
fn run_as(line: &str, folder: &Path, dry: &str) -> Output {
    let programs = Path::new(PROGRAMS[0].1).parent().expect("a folder");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(folder).env("PATH", path);
    shell.env("SWITCHYARD_DRY_RUN", dry);
    shell.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent").output().expect("a shell")
}

#[track_caller]
fn done(line: &str, folder: &Path) {
    let output = run(line, folder);
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Copies to `folder` the output of a line's short form in an empty folder with the user's files. Each line runs once.
fn copy_made(line: &str, folder: &Path) {
    static MADE: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if !made.contains_key(line) {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("commands");
        if made.is_empty() {
            // Left by an earlier run of the tests.
            let _ = std::fs::remove_dir_all(&root);
        }
        let new = root.join(made.len().to_string());
        std::fs::create_dir_all(&new).expect("a folder");
        make_files(line, &new);
        done(&shorter(line), &new);
        made.insert(line.to_owned(), new);
    }
    copy(&made[line], folder);
}

fn repository(path: &str) -> PathBuf {
    Path::new(switchyard::store::CHECKOUT).join(path)
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, text).expect("written");
}

/// Makes the user's files that a line names, and the folders of a checkout.
fn make_files(line: &str, folder: &Path) {
    let at = |path: &str| folder.join(path);
    let gguf = repository("fixtures/gguf/tiny-f32.gguf");
    if line.contains("SmolLM2.gguf") {
        std::fs::copy(&gguf, at("SmolLM2.gguf")).expect("copied");
    }
    if line.starts_with("train") && line.contains("fixtures/smollm2-chains") {
        copy(&repository("fixtures/smollm2-chains"), &at("fixtures/smollm2-chains"));
    }
    if line.contains("Qwen/Qwen3-8B") && line.contains(RELEASED) {
        copy(&repository("fixtures/released/base"), &at("Qwen/Qwen3-8B"));
        copy(&repository("fixtures/released/adapter"), &at(RELEASED));
        write(&at("short.toml"), "extends = \"switch-released\"\n[evaluation]\nmax_new_tokens = 8\n");
    } else if line.contains("Qwen/Qwen3-8B") && !at("Qwen/Qwen3-8B").exists() {
        stranger(&gguf, &at("Qwen/Qwen3-8B"));
    }
    if line.contains("openr1-math") {
        let record = |n: usize| {
            let traces = [format!("So {n}."), format!("<think>\n{n} again\n</think>\n\nSo $\\boxed{{{n}}}$.")];
            serde_json::json!({
                "problem": format!("Which number is {n}?"), "solution": "It is.", "answer": n.to_string(), "uuid": n.to_string(),
                "generations": traces, "correctness_math_verify": [false, true],
            })
        };
        let lines: String = (0..48).map(|n| format!("{}\n", record(n))).collect();
        write(&at("openr1-math/data/train-00000-of-00001.jsonl"), &lines);
    }
    if line.contains("switch-math") {
        let record = |n: usize| {
            let solution = format!("We see <swi>that it is</swi> {n}, so $\\boxed{{{n}}}$.");
            serde_json::json!({ "problem": format!("Which number is {n}?"), "solution": solution, "answer": n.to_string() })
        };
        write(&at("switch-math/sft/train.jsonl"), &(0..48).map(|n| format!("{}\n", record(n))).collect::<String>());
        std::fs::create_dir_all(at("switch-math/grpo")).expect("a folder");
        std::fs::copy(repository("fixtures/problems/verl.parquet"), at("switch-math/grpo/train.parquet"))
            .expect("a copy");
    }
    if line.starts_with("probe import") && line.contains("checkpoint_33") {
        std::fs::copy(repository("fixtures/reasoners/coconut/checkpoint_3"), at("checkpoint_33")).expect("copied");
    }
    if line.starts_with("probe import") && line.contains("latent-sft/") {
        copy(&repository("fixtures/released/base"), &at("latent-sft/checkpoint-377/hf"));
    }
    for (name, of) in [("CODI-gpt2", "codi-gpt2"), ("openai-community/gpt2", "gpt2")] {
        if line.starts_with("probe import") && line.contains(name) {
            copy(&repository("fixtures/reasoners").join(of), &at(name));
        }
    }
    for (name, of) in [
        ("gsm8k/test.jsonl", "gsm8k"),
        ("gsm8k/train.jsonl", "gsm8k"),
        ("own.jsonl", "gsm8k"),
        ("math500.jsonl", "math"),
        ("train.jsonl", "math"),
    ] {
        // The presets of Qwen3-8B hold MATH-500 out.
        let held_out = name == "math500.jsonl"
            && ["qwen3-8b", "switch-released"].iter().any(|preset| line.contains(&format!("--preset {preset} ")));
        if line.contains(name) || held_out {
            let problems =
                std::fs::read_to_string(repository(&format!("fixtures/problems/{of}.jsonl"))).expect("problems");
            // Repeated questions count once.
            let numbered = |n: usize| {
                let asked = problems.replace("fixture/", &format!("{n}/"));
                ["question", "problem"]
                    .iter()
                    .fold(asked, |all, key| all.replace(&format!("{{\"{key}\": \""), &format!("{{\"{key}\": \"({n}) ")))
            };
            write(&at(name), &(0..16).map(numbered).collect::<String>());
        }
    }
    if line.contains("pairs.jsonl") {
        let graded = r#"{"gold": "3", "pred": "3.0"}"#.to_owned();
        write(&at("pairs.jsonl"), &if line.starts_with("report") { graded } else { pairs() });
    }
    for folder in line.split_whitespace().filter(|word| word.starts_with("reports/") && line.starts_with("report")) {
        copy(&repository(folder), &at(folder));
    }
    if line.contains("experiments/") {
        copy(&repository("experiments"), &at("experiments"));
    }
}

/// A run of a reinforcement learning study; a committed run takes its place.
fn is_run_of_study(word: &str) -> bool {
    word.starts_with("runs/rl-fate/primary") || (word.starts_with("runs/rl-fate-smollm2/") && word.contains("/seed="))
}

/// A folder for a line on its own: with its files and the output of the commands before it.
fn at_hand(line: &str) -> TempDir {
    let temp = tempfile::tempdir().expect("a folder");
    let at = |path: &str| temp.path().join(path);
    make_files(line, temp.path());
    if line.starts_with("intervene") && line.contains("--resume") {
        std::fs::create_dir_all(at("runs/reports/micro")).expect("a folder");
    }
    if line.starts_with("report") && !line.contains(" reports/") {
        let named = line.split_whitespace().filter(|word| word.starts_with("runs/reports/"));
        for folder in named.chain((line == "report").then_some("runs/reports/micro")) {
            copy(&repository("reports/micro-coconut-long"), &at(folder));
        }
    }
    if line.contains("shard-") {
        for k in 1..=4 {
            let shard = format!("probe --phase sft --only accuracy --problems 8 --batch 2 --shard {k}/4 --out runs/x");
            done(&shard, temp.path());
        }
    }
    let begun =
        line.starts_with("train") && (line.contains("--resume") || line.contains("--base") || line.contains("--from"));
    if line.contains("--from runs/rl-fate/trunks") {
        let settings = "--set grpo.steps=0 --set latent.keep_steps=[1] --sweep";
        let seed = line.split_once("seed=").and_then(|(_, seeds)| seeds.split([',', ' ']).next()).expect("seeds");
        let trunks = format!("{settings} seed={seed} --out runs/rl-fate/trunks");
        copy_made(&format!("train --preset micro --method switch --threads 1 {trunks}"), temp.path());
    } else if let Some(run) = line.split_whitespace().find(|word| is_run_of_study(word)) {
        copy(&repository("fixtures/micro"), &at(run));
    } else if begun {
        copy_made("train --only base --out runs/micro", temp.path());
    } else if line.contains(" runs/micro") && line.starts_with("report") {
        copy_made("train --preset micro --out runs/micro", temp.path());
    } else if line.contains(" runs/micro") {
        copy(&repository("fixtures/micro"), &at("runs/micro"));
        for kept in ["grpo_step20", "grpo_step40", "grpo_step60"].iter().filter(|kept| line.contains(**kept)) {
            copy(&repository("fixtures/micro/grpo"), &at("runs/micro").join(kept));
        }
    }
    if line.contains(" runs/own") && !line.starts_with("train") {
        let own = "train --preset smollm2-gsm8k --model SmolLM2.gguf --data own.jsonl --out runs/own";
        copy_made(own, temp.path());
    }
    temp
}

/// Pairs of prompts; each also with its answers exchanged, because a random model may prefer either.
fn pairs() -> String {
    let prompt = |n: u32| format!("<bos> a = {n} ; ? a : #");
    let line = |[clean, corrupt, answer, wrong]: [u32; 4]| {
        let (clean, corrupt, answer, wrong) = (prompt(clean), prompt(corrupt), answer.to_string(), wrong.to_string());
        serde_json::json!({ "clean": clean, "corrupt": corrupt, "answer": answer, "wrong": wrong }).to_string()
    };
    let both = |a: u32, b: u32| [[a, b, a, b], [a, b, b, a]].map(line).join("\n");
    [both(1, 2), both(3, 4), both(5, 6), both(2, 5)].join("\n")
}

/// A model of the family Qwen3 as a Hugging Face folder.
fn stranger(gguf: &Path, folder: &Path) {
    let opened = ModelFiles::open_gguf(gguf).expect("opens");
    let tokenizer = opened.tokenizer().expect("reads").expect("a tokenizer");
    let config = ModelConfig {
        vocab_size: tokenizer.get_vocab_size(true),
        eos_token_ids: vec![2],
        ..tiny_config(Family::Qwen3, true)
    };
    let model = Decoder::random(&config, 2, &Device::flex()).expect("a model");
    let weights = model.export().expect("weights").into_iter().map(Ok);
    save_hf_folder(folder, &config, weights, &SaveOptions::default()).expect("saves");
    tokenizer.save(folder.join("tokenizer.json"), false).expect("saves");
}

/// Runs a line as a dry run, then with less work to its end. Returns the problems found.
fn failure(line: &str, folder: &Path) -> Option<String> {
    let (short, begun) = (shorter(line), std::time::Instant::now());
    let (unchanged, unfit) = (on_cpu(line), UNFIT.iter().find(|(what, _)| line.contains(what)));
    // The existing run has fewer steps, so a line that reuses its phases runs only in its short form.
    let reuses = ["--base runs/", "--from runs/", "--out runs/micro --resume"].iter().any(|flag| line.contains(flag));
    if unchanged != short && !line.starts_with("report") && !reuses && unfit.is_none() {
        let output = run_as(&unchanged, folder, "1");
        if !output.status.success() {
            return Some(format!("{line}\n  unchanged\n  {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    let output = run(&short, folder);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{:6.1} s  {short}", begun.elapsed().as_secs_f64());
    let right = match unfit {
        Some((_, why)) => output.status.code() == Some(2) && said.contains(why),
        None => output.status.success(),
    };
    (!right).then(|| format!("{line}\n  as {short}\n  {said}"))
}

/// Runs each line in a separate folder; lists all failures.
fn run_all(lines: impl IntoIterator<Item = String>, at_least: usize) {
    let mut lines: Vec<String> = lines.into_iter().filter(|line| is_ours(line)).collect();
    lines.sort();
    lines.dedup();
    assert!(lines.len() >= at_least, "only {} commands found", lines.len());
    let failed: Vec<String> = lines.iter().filter_map(|line| failure(line, at_hand(line).path())).collect();
    assert!(failed.is_empty(), "{} commands failed:\n{}", failed.len(), failed.join("\n"));
}

/// Our commands in README and each page of docs/, in order.
fn of_pages() -> Vec<Vec<String>> {
    let mut pages = vec![repository("README.md")];
    for folder in ["docs/tutorial", "docs/how-to", "docs/explanation"] {
        let files = std::fs::read_dir(repository(folder)).expect("pages");
        pages.extend(files.map(|entry| entry.expect("an entry").path()));
    }
    let commands = |page: &PathBuf| {
        let text = std::fs::read_to_string(page).expect("a page");
        let blocks = text.split("```sh\n").skip(1).map(|block| block.split_once("```").expect("an end").0);
        blocks.flat_map(|block| block.lines().map(typed)).filter(|line| is_ours(line)).collect()
    };
    pages.iter().map(commands).collect()
}

fn of_help() -> Vec<String> {
    let pages = [&["probe"][..], &["intervene"], &["report"], &["train"], &["intervene", "pairs"]];
    let examples = |page: &[&str]| {
        let program = PROGRAMS.iter().find(|(name, _)| *name == page[0]).expect("a program").1;
        let output = Command::new(program).args(&page[1..]).arg("--help").output().expect("help");
        let help = String::from_utf8(output.stdout).expect("UTF-8");
        let (_, examples) = help.split_once("Examples:\n").expect("examples");
        examples.lines().map(typed).collect::<Vec<_>>()
    };
    pages.into_iter().flat_map(examples).collect()
}

/// From top to bottom, in one folder that contains only the reader's files.
#[test]
fn every_page_runs_from_top_to_bottom() {
    let pages = of_pages();
    assert!(pages.concat().len() >= 16, "only {} commands found", pages.concat().len());
    let mut failed = vec![];
    for lines in pages {
        let folder = tempfile::tempdir().expect("a folder");
        lines.iter().for_each(|line| make_files(line, folder.path()));
        failed.extend(lines.iter().filter_map(|line| failure(line, folder.path())));
    }
    assert!(failed.is_empty(), "{} commands failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn every_example_of_the_help_runs() {
    let pages = of_pages().concat();
    run_all(of_help().into_iter().filter(|line| !pages.contains(line)), 20);
}

#[test]
fn every_command_of_the_recipes_runs() {
    let others = [of_pages().concat(), of_help()].concat();
    let lines = all().expect("recipes").into_iter().flat_map(|(_, r)| [r.command, r.at_scale].concat());
    run_all(lines.map(|line| typed(&line)).filter(|line| !others.contains(line)), 30);
}
