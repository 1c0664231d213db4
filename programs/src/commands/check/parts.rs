//! The parts of a check. Each runs identically on the CPU and on the device, in this process, so that a GPU's kernels are compiled once.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use burn::tensor::Device;
use clap::{Args, Parser};

use super::{halves, kernels, memory, products, rows, stored};
use crate::commands::experiments::Experiments;
use crate::commands::intervene::Intervene;
use crate::report::folder::Folder;
use crate::report::paper::Paper;
use crate::report::verdicts;
use switchyard::machine::{self, Machine};
use switchyard::method;
use switchyard::method::Recipe;
use switchyard::parity::reference::Deviation;
use switchyard::parity::{Fixtures, ParityComparison};
use switchyard::progress::{Interruption, say, stop_asked};
use switchyard::schema::METRICS;
use switchyard::store::{copy_folder, read_flat};
use switchyard::train::pipeline::{Options, RunEnd, run};
use switchyard::train::sft::sum;
use switchyard::world::World;

/// Of rows: numbers of an f32 computation, a few steps deep.
const BOUND: f64 = 1e-5;

/// A part by its name on the command line.
pub(super) struct Part {
    pub name: &'static str,
    pub run: fn(&Setting) -> Result<Vec<ParityComparison>>,
}

pub(super) const PARTS: [Part; 11] = [
    Part { name: "reference", run: |setting| setting.fixtures.all(print_comparison) },
    Part { name: "kernels", run: |setting| kernels::against_the_cpu_and_the_composition(&setting.fixtures.device) },
    Part { name: "products", run: |setting| products::against_the_cpu(&setting.fixtures.device) },
    Part { name: "halves", run: |setting| halves::against_f32(&setting.fixtures) },
    Part { name: "stored", run: stored::on_the_device },
    Part { name: "training", run: training },
    Part { name: "grpo", run: grpo },
    Part { name: "intervene", run: intervene },
    Part { name: "probe", run: probe },
    Part { name: "verdicts", run: same_verdicts },
    Part { name: "memory", run: |setting| memory::a_rollout_that_does_not_fit(&setting.fixtures) },
];

/// Prints a comparison as it is made, so that an interrupted check leaves these lines.
fn print_comparison(one: &ParityComparison) {
    say(&format!("check: {}: off by {:.1e}", one.what, one.found.off));
}

/// Shared state of the parts.
pub(super) struct Setting {
    /// Reference values, and the device.
    pub fixtures: Fixtures,
    /// Held-out problems of experiments.
    pub problems: usize,
    /// For runs and rows; thrown away.
    pub folder: PathBuf,
}

impl Setting {
    /// The two machines by the names of their folders: the device's first.
    fn devices(&self) -> [(&'static str, Device); 2] {
        [("device", self.fixtures.device.clone()), ("cpu", Machine::default().device)]
    }

    fn at(&self, who: &str, what: &str) -> PathBuf {
        self.folder.join(who).join(what)
    }
}

/// Every phase of SWITCH in a few steps. All rows of a phase have equal lengths, because software drivers compile each shape. With AdamW's
/// usual ε its first steps are as long for a gradient that is zero up to rounding as for a large one, and rounding decides their direction:
/// two workers of the CPU then differ by 5e-6 after three of them, the device by 2e-5. The part `kernels` uses the usual ε.
const SHORT: [&str; 21] = [
    "optimizer.epsilon=1e-4",
    "methods=[\"switch\"]",
    "task.levels.max=1",
    "data.rows=64",
    "base.steps=6",
    "base.batch=8",
    "base.warmup=1",
    "base.annotator_accuracy=0.0",
    "boundary.steps=6",
    "boundary.batch=8",
    "boundary.warmup=1",
    "boundary.untagged=0.0",
    "latent.batch=8",
    "latent.stages=[{k=1,steps=2},{k=5,steps=4}]",
    "latent.keep_text=0.0",
    "latent.untagged=0.0",
    "grpo.steps=1",
    "grpo.questions=2",
    "grpo.group=2",
    "evaluation.problems=4",
    "evaluation.max_new_tokens=12",
];

fn train(set: &[&str], device: &Device, threads: usize, out: &Path, only: &[&str]) -> Result<()> {
    let recipe = Recipe::resolve("smoke", &set.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())?;
    let options = Options {
        dry: false,
        out: out.to_owned(),
        resume: out.join("recipe.toml").is_file(),
        only: only.iter().map(|s| (*s).to_owned()).collect(),
        threads,
        from: vec![],
        world: World::ALONE,
        command: "probe check --part training,grpo".to_owned(),
        device: device.clone(),
        stop: stop_asked,
    };
    match run(recipe, options)? {
        RunEnd::Finished(_) => Ok(()),
        RunEnd::Stopped => Err(Interruption.into()),
    }
}

/// Every phase from the CPU's checkpoint of the previous phase, with one and two workers, which share the weights on the device. Over several
/// phases two correct programs diverge: AdamW's first steps are as long for a gradient near zero as for a large one, in a direction that
/// rounding decides.
fn training(setting: &Setting) -> Result<Vec<ParityComparison>> {
    let recipe = Recipe::resolve("smoke", &SHORT.map(str::to_owned))?;
    let phases: Vec<&str> = method::phases(&recipe)?.iter().map(|phase| phase.name).collect();
    let mut out = vec![];
    for workers in [1, 2] {
        let cpu = setting.at("cpu", &format!("{workers}-worker"));
        for &phase in &phases {
            let device = setting.at("device", &format!("{workers}-worker-{phase}"));
            if cpu.is_dir() {
                copy_folder(&cpu, &device)?;
            }
            train(&SHORT, &setting.fixtures.device, workers, &device, &[phase])?;
            train(&SHORT, &Machine::default().device, workers, &cpu, &[phase])?;
            let compared = rows::compare(&device.join(phase), &cpu.join(phase), BOUND)?;
            out.extend(named(&format!("{phase}, {workers} worker(s)"), compared));
        }
    }
    Ok(out)
}

fn named(prefix: &str, all: Vec<ParityComparison>) -> impl Iterator<Item = ParityComparison> {
    all.into_iter().map(move |compared| ParityComparison { what: format!("{prefix}: {}", compared.what), ..compared })
}

/// A model that answers some questions: without, no group of rollouts has anything to learn from.
const TRAINED: [&str; 6] = [
    "methods=[\"switch\"]",
    "task.levels.max=1",
    "grpo.steps=3",
    "grpo.questions=4",
    "evaluation.problems=8",
    "evaluation.max_new_tokens=24",
];

/// Switch-GRPO from one checkpoint that the CPU trained.
fn grpo(setting: &Setting) -> Result<Vec<ParityComparison>> {
    let phase = "grpo";
    let start = setting.folder.join("start");
    let recipe = Recipe::resolve("smoke", &TRAINED.map(str::to_owned))?;
    let before: Vec<&str> = method::phases(&recipe)?.iter().map(|p| p.name).filter(|name| *name != phase).collect();
    train(&TRAINED, &Machine::default().device, 1, &start, &before)?;
    for (who, device) in setting.devices() {
        let run = setting.at(who, phase);
        copy_folder(&start, &run)?;
        train(&TRAINED, &device, 1, &run, &[phase])?;
    }
    let [ours, theirs] = ["device", "cpu"].map(|who| setting.at(who, phase).join(phase));
    let updates = sum(&read_flat(&ours.join(format!("{METRICS}.parquet")))?, "updates");
    ensure!(updates >= 6, "only {updates} optimiser steps: too few rollouts differ in their reward");
    rows::compare(&ours, &theirs, BOUND)
}

/// A program's arguments, as a user types them.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct CommandLine<A: Args> {
    #[command(flatten)]
    args: A,
}

/// Runs a program on the committed checkpoints on both devices, and compares the rows.
fn on_both(
    setting: &Setting,
    name: &str,
    more: &[&str],
    run: impl Fn(Vec<String>) -> Result<()>,
) -> Result<Vec<ParityComparison>> {
    let (micro, problems) = (setting.fixtures.root.join("micro").display().to_string(), setting.problems.to_string());
    for (who, device) in setting.devices() {
        let (device, out) = (machine::name(&device), setting.at(who, name).display().to_string());
        let words = [micro.as_str(), "--problems", &problems, "--device", &device, "--dtype", "f32", "--threads", "1"];
        run([&words, more, &["--out", &out]].concat().into_iter().map(str::to_owned).collect())?;
    }
    rows::compare(&setting.at("device", name), &setting.at("cpu", name), BOUND)
}

/// The folder of rows of `intervene` and `probe`.
const ROWS: [&str; 2] = ["intervene", "probe"];

fn intervene(setting: &Setting) -> Result<Vec<ParityComparison>> {
    let more =
        ["--phase", "sft", "--only", "latent_intervention", "--modes", "normal,zero,skip,resample,mean,self_patch"];
    on_both(setting, ROWS[0], &more, |words| {
        Intervene::try_parse_from(std::iter::once("intervene".to_owned()).chain(words))?.run()
    })
}

fn probe(setting: &Setting) -> Result<Vec<ParityComparison>> {
    let run = |words| CommandLine::<Experiments>::try_parse_from(words)?.args.run();
    on_both(setting, ROWS[1], &["--phase", "sft,grpo"], run)
}

/// Verdicts on the paper's claims from the rows of `intervene` and `probe`.
fn same_verdicts(setting: &Setting) -> Result<Vec<ParityComparison>> {
    let paper = Paper::embedded()?;
    let mut out = vec![];
    for name in ROWS {
        let of = |who: &str| -> Result<Vec<String>> {
            let path = setting.at(who, name);
            ensure!(path.is_dir(), "no rows: this part comes after intervene and probe");
            let tested = verdicts::test(&paper, &Folder::open(&path)?, |_| None);
            Ok(tested.iter().map(|t| format!("{} on {}: {}", t.claim.id, t.on, t.verdict.words())).collect())
        };
        let (ours, theirs) = (of("device")?, of("cpu")?);
        let other = ours.iter().zip(&theirs).find(|(a, b)| a != b);
        let what = other.map_or_else(String::new, |(a, b)| format!(": {a}, on the CPU {b}"));
        let same = ours == theirs && !ours.is_empty();
        let found = Deviation { off: if same { 0.0 } else { f64::INFINITY }, values: ours.len(), at: String::new() };
        out.push(ParityComparison::new(format!("claims by the rows of {name}{what}"), 0.0, [found]));
    }
    Ok(out)
}
