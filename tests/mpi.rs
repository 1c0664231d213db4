//! Training by several processes under `mpirun`: the same losses and gradients as one up to rounding, the same bits each time;
//! stopping or killing a process ends the run, which continues with --resume. A separate test, because it needs the feature `mpi`:
//! `cargo test --features mpi --test mpi`.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use common::programs::{done, text_of};
use common::run_files::assert_same;
use serde_json::{Map, Value};
use switchyard::corpus::Row;
use switchyard::latent::{Reasoning, SwitchIds};
use switchyard::model::Decoder;
use switchyard::model::checkpoint::ModelFiles;
use switchyard::model::gradients::{gradients_by_name, keep_token_rows};
use switchyard::parity::GrpoValues;
use switchyard::recipe::{Compute, Grpo, Optimizer, ReplayMode};
use switchyard::store::read_flat;
use switchyard::train::grpo::gradients_among;
use switchyard::train::rollouts::Behaviour;
use switchyard::train::sft;
use switchyard::train::trainer::Trainer;
use switchyard::world::{Launch, World};

thread_local! {
    /// Session folder of a test's launchers. Two Open MPI launchers that start at once in one folder may create the same session, and
    /// one fails.
    static SESSIONS: tempfile::TempDir = tempfile::tempdir().expect("a folder");
}

/// A program started `processes` times. Options for containers: root user, fewer cores than processes.
fn launch(processes: usize, program: &Path) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
    command.arg("-n").arg(processes.to_string()).arg(program).env("RAYON_NUM_THREADS", "1");
    SESSIONS.with(|folder| command.env("TMPDIR", folder.path()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Every phase of SWITCH on `smoke`, a few steps of each; two questions per GRPO step, one per process.
const SMALL: [&str; 9] = [
    "data.rows=60",
    "base.steps=20",
    "boundary.steps=4",
    "latent.stages=[{ k = 3, steps = 5 }]",
    "grpo.steps=6",
    "grpo.questions=2",
    "checkpoint.every=2",
    "evaluation.problems=6",
    "evaluation.batch=2",
];

fn train(processes: usize, out: &Path, more: &[&str]) -> Command {
    let mut command = launch(processes, Path::new(env!("CARGO_BIN_EXE_train")));
    command.args(["--preset", "smoke", "--method", "switch", "--threads", "1"]);
    command.args(SMALL.iter().flat_map(|setting| ["--set", setting])).args(more).arg("--out").arg(out);
    command
}

#[track_caller]
fn fails(output: &Output, needle: &str) {
    let said = text_of(output);
    assert!(!output.status.success() && said.contains(needle), "expected `{needle}`: {said}");
}

/// A run by two processes, made once for all tests, and its output.
fn by_two() -> (&'static Path, &'static str) {
    static RUN: OnceLock<(tempfile::TempDir, PathBuf, String)> = OnceLock::new();
    let (_, path, said) = RUN.get_or_init(|| {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("two");
        let (printed, said) = done(&mut train(2, &path, &[]));
        (home, path, said + &printed)
    });
    (path, said)
}

fn metrics(out: &Path, phase: &str) -> Vec<Map<String, Value>> {
    read_flat(&out.join(phase).join("metrics.parquet")).expect("metrics")
}

fn number(row: &Map<String, Value>, key: &str) -> f64 {
    row[key].as_f64().expect("a number")
}

#[test]
fn two_processes_train_like_one_and_reproducibly() {
    let home = tempfile::tempdir().expect("a folder");
    let at = |name: &str| home.path().join(name);
    let (two, said) = by_two();
    done(&mut train(1, &at("one"), &[]));
    assert!(said.contains("2 processes, on cpu, cpu"), "{said}");
    assert_eq!(said.matches("base: accuracy").count(), 1, "one process speaks: {said}");
    for phase in ["base", "boundary", "sft", "grpo"] {
        let (one, two) = (metrics(&at("one"), phase), metrics(two, phase));
        assert!(!one.is_empty() && one.len() == two.len());
        let mut worst = 0.0_f64;
        for (one, two) in one.iter().zip(&two) {
            for key in ["loss", "grad_norm"] {
                let (one, two) = (number(one, key), number(two, key));
                worst = worst.max((one - two).abs() / one.abs().max(1e-3));
            }
            assert_eq!(one["tokens"], two["tokens"]);
        }
        println!("{phase}: {} steps, largest relative difference {worst:.1e}", one.len());
        assert!(worst <= 1e-5, "{phase}: {worst}");
    }
    done(&mut train(2, &at("again"), &[]));
    assert_same(two, &at("again"), "the same run by two processes");
}

#[test]
fn a_process_may_have_no_gradient() {
    // One question per process. All rollouts of one have the same reward: both processes learn from the other's.
    let learnt = |skipped: f64| {
        let steps = metrics(by_two().0, "grpo");
        steps.iter().filter(|row| number(row, "skipped_groups") == skipped && number(row, "updates") > 0.0).count()
    };
    assert!(learnt(1.0) > 0 && learnt(0.0) > 0, "{} and {} steps", learnt(1.0), learnt(0.0));
    // More processes than rows of a batch, questions, or batches to evaluate.
    let home = tempfile::tempdir().expect("a folder");
    let few = ["base.batch=2", "boundary.batch=2", "latent.batch=2", "evaluation.problems=2"];
    let few: Vec<&str> = few.iter().flat_map(|setting| ["--set", setting]).collect();
    done(&mut train(3, home.path(), &few));
}

/// Waits until a phase has a saved state.
fn saved(phase: &Path, child: &mut Child) {
    let (state, begun) = (phase.join("state.json"), Instant::now());
    while !state.exists() && begun.elapsed() < Duration::from_secs(120) {
        assert!(child.try_wait().expect("its state").is_none(), "it ended before it was killed");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(state.exists(), "no state was saved");
}

/// Sends a signal to the last process that a launcher started, once a phase has a saved state.
fn hit(mut launcher: Child, phase: &Path, signal: &str) -> Output {
    saved(phase, &mut launcher);
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", launcher.id())).expect("Linux");
    let last = children.split_whitespace().last().expect("a process");
    assert!(Command::new("kill").args([signal, last]).status().expect("kill").success());
    launcher.wait_with_output().expect("its end")
}

#[test]
fn a_stopped_or_killed_process_ends_the_run_and_it_resumes() {
    let home = tempfile::tempdir().expect("a folder");
    let out = home.path().join("broken");
    let begin = |more: &[&str]| train(2, &out, more).spawn().expect("it starts");
    // One process gets the signal: all stop after the same step.
    fails(&hit(begin(&[]), &out.join("base"), "-TERM"), "stopped; continue with the same command and --resume");
    fails(&hit(begin(&["--resume"]), &out.join("grpo"), "-KILL"), "signal 9");
    // Another number of processes rounds differently.
    let other = train(1, &out, &["--resume"]).output().expect("it starts");
    fails(&other, "processes was 2, now 1");
    done(&mut train(2, &out, &["--resume"]));
    assert_same(by_two().0, &out, "one of two processes was stopped, and one killed");
}

#[test]
fn an_error_of_one_process_ends_all_of_them() {
    let again = train(2, by_two().0, &[]).output().expect("it starts");
    fails(&again, "has a run already");
}

const IDS: SwitchIds = SwitchIds { swi: 93, swi_end: 94, latent: 95 };

/// Losses, and gradients by name, of a supervised batch and of rollouts, both with latents (fixtures/make_steps.py).
fn losses_and_gradients(world: World) -> BTreeMap<String, Vec<f32>> {
    let fixtures = Path::new("fixtures");
    let checkpoint = ModelFiles::open_folder(fixtures.join("tiny/qwen3_tied")).expect("the tiny model");
    let model = Decoder::load(&checkpoint, &Device::flex().autodiff()).expect("its weights");
    let mut all = BTreeMap::new();
    let mut put = |case: &str, loss: f64, grads| {
        all.insert(format!("{case} loss"), vec![loss as f32]);
        let named = gradients_by_name(&model, &grads).expect("gradients");
        all.extend(named.into_iter().map(|(name, grad)| (format!("{case} {name}"), grad.data)));
    };
    let trainer = Trainer::new(model.clone(), &Optimizer::default()).among(world);
    let sft = common::one_step(IDS.latent, 1);
    let rows = std::fs::read_to_string(fixtures.join("latent/rows.json")).expect("rows");
    let rows: Value = serde_json::from_str(&rows).expect("rows");
    let row = |row: &Value| Row {
        ids: serde_json::from_value(row["ids"].clone()).expect("ids"),
        prompt: row["prompt"].as_u64().expect("a length") as usize,
        teacher: None,
        noise: None,
        slots: vec![],
    };
    let rows: Vec<Row> = rows["b"].as_array().expect("rows").iter().map(row).collect();
    assert!(rows.len() > 1 && rows.iter().filter(|row| row.ids.contains(&IDS.latent)).count() > 1);
    let (grads, stats) = sft::gradients(&trainer, &sft, &rows).expect("gradients");
    put("SFT", stats.loss, grads);
    // Only three rows of the tables are exchanged.
    let tokens = vec![IDS.swi, IDS.swi_end, IDS.latent];
    let mut trainer = trainer;
    trainer.token_rows = Some(tokens.clone());
    let (mut grads, stats) = sft::gradients(&trainer, &sft, &rows).expect("gradients");
    keep_token_rows(&model, &mut grads, &tokens);
    put("SFT of three rows", stats.loss, grads);

    let (values, rollouts) = GrpoValues::read(fixtures, "grpo").expect("rollouts");
    assert!(rollouts.iter().filter(|rollout| rollout.trace.switched()).count() > 1);
    let (settings, reasoning) = (values.decoding(), Reasoning::default());
    let policy = Behaviour { reasoning: &reasoning, switch: IDS, settings: &settings, compute: Compute::F32 };
    for replay in [ReplayMode::Segmented, ReplayMode::FullBptt] {
        let grpo = Grpo { replay, ..Grpo::default() };
        let own = world.own(&rollouts);
        let (grads, parts) = gradients_among(world, &model, policy, &own, (&grpo, 1), None).expect("gradients");
        assert_eq!(parts.tokens, values.n_tok);
        put(&format!("GRPO {replay:?}"), parts.loss, grads);
    }
    all
}

/// Output folder of the processes in the test below.
const WRITTEN: &str = "SWITCHYARD_GRADIENTS";

#[test]
#[ignore = "is what the processes of the next test do"]
fn losses_and_gradients_of_a_process() {
    let Some(folder) = std::env::var_os(WRITTEN) else { return };
    let launched = Launch::start().expect("under mpirun");
    let all = losses_and_gradients(launched.world);
    let file = Path::new(&folder).join(launched.world.rank.to_string());
    std::fs::write(file, serde_json::to_vec(&all).expect("JSON")).expect("written");
}

#[test]
fn gradients_of_several_processes_equal_those_of_one() {
    let program = std::env::current_exe().expect("this program");
    let one = losses_and_gradients(World::ALONE);
    for n in [2, 3] {
        let home = tempfile::tempdir().expect("a folder");
        let mut command = launch(n, &program);
        done(command.args(["--ignored", "--exact", "losses_and_gradients_of_a_process"]).env(WRITTEN, home.path()));
        let read = |rank: usize| std::fs::read(home.path().join(rank.to_string())).expect("written");
        assert!((1..n).all(|rank| read(rank) == read(0)), "the same bits on every process");
        let several: BTreeMap<String, Vec<f32>> = serde_json::from_slice(&read(0)).expect("JSON");
        assert!(one.len() > 4 * 10 && one.keys().eq(several.keys()));
        let off = |name: &String| (common::relative(&several[name], &one[name]), name.clone());
        let worst = one.keys().map(off).max_by(|a, b| a.0.total_cmp(&b.0)).expect("gradients");
        println!("{n} processes: {} tensors, largest relative difference {worst:?}", one.len());
        assert!(worst.0 <= 1e-5, "{worst:?}");
    }
}

/// Sizes of exchanged buffers, in f32 values.
const SIZES: [usize; 4] = [1, 1 << 18, 1 << 20, 1 << 22];

#[test]
#[ignore = "is what the processes of the next test do"]
fn exchange_rates_of_a_process() {
    let Some(folder) = std::env::var_os(WRITTEN) else { return };
    let launched = Launch::start().expect("under mpirun");
    let world = launched.world;
    let median = |size: usize| {
        let mut values = vec![1.0_f32; size];
        let mut milliseconds: Vec<f64> = vec![];
        for _ in 0..21 {
            world.barrier();
            let begun = Instant::now();
            world.sum(&mut values);
            milliseconds.push(1e3 * begun.elapsed().as_secs_f64());
        }
        milliseconds.sort_by(f64::total_cmp);
        milliseconds[10]
    };
    let medians = SIZES.map(median);
    if world.writes() {
        std::fs::write(Path::new(&folder).join("rates"), serde_json::to_vec(&medians).expect("JSON")).expect("written");
    }
}

#[test]
#[ignore = "a measurement for experiments/cluster/scaling.py, on an idle machine"]
fn exchange_rates() {
    for n in [2, 4] {
        let home = tempfile::tempdir().expect("a folder");
        let mut command = launch(n, &std::env::current_exe().expect("this program"));
        done(command.args(["--ignored", "--exact", "exchange_rates_of_a_process"]).env(WRITTEN, home.path()));
        let medians = std::fs::read(home.path().join("rates")).expect("written");
        let medians: [f64; SIZES.len()] = serde_json::from_slice(&medians).expect("JSON");
        for (size, milliseconds) in SIZES.iter().zip(medians) {
            println!("{n} processes: {:.3} MB summed in {milliseconds:.3} ms", 4e-6 * *size as f64);
        }
    }
}
