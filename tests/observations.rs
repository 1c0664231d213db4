//! Observations: rows depend only on them, a killed run resumes from them to the same bytes, and those of another run are an error.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::common::programs::{done, program, refused};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use switchyard::experiments::{ALL, Experiment, Journal, Run, Settings};
use switchyard::schema::{
    AttributedNodeRow, EdgePairRow, Form, InterventionRow, KnownValueRow, Observation, PatchedPlaceRow, RowFile,
    SteeringTrialRow, Steps, SwitchProblemRow, summarise,
};
use switchyard::stats::Estimate;
use switchyard::store::{Measurements, read};
use switchyard::study::Study;

fn fixture<R: DeserializeOwned>(name: &str) -> Vec<R> {
    let file = Path::new(".").join("fixtures/rows").join(name).with_extension("parquet");
    read(&file).expect("a committed fixture")
}

#[test]
fn rows_follow_from_observations_alone() {
    // Both are from one run of 40 problems; the rows have older intervals, and older tests of several draws.
    let mut observations: Vec<Observation> = fixture("observations-sft");
    let rows: Vec<InterventionRow> = fixture("latent_intervention-sft");
    let known: Vec<KnownValueRow> = fixture("known_value-sft");
    // Shuffled: the order of arrival does not matter.
    observations.sort_by_key(|o| (o.problem * 7919 + o.cell * 104_729 + o.draw * 13) % 1009);
    let summary = summarise(&observations).expect("a summary");
    assert_eq!(summary.rows.len(), rows.len());
    let point = |e: Estimate| Estimate { value: (e.value * 1e9).round(), low: 0.0, high: 0.0, ..e };
    let points = |row: &InterventionRow| InterventionRow {
        accuracy: point(row.accuracy),
        answer_changed: point(row.answer_changed),
        diagnostic_accuracy: row.diagnostic_accuracy.map(point),
        wrong_to_right: row.wrong_to_right.map(point),
        accuracy_change: point(row.accuracy_change),
        before: None,
        p_value: 0.0,
        p_holm: 0.0,
        mean_change: 0.0,
        ..row.clone()
    };
    for (ours, theirs) in summary.rows.iter().zip(&rows) {
        let off = (ours.mean_change - theirs.mean_change).abs();
        assert!(off <= 1e-12 * theirs.mean_change, "{}: the sum of norms is in another order, no more", ours.mode);
        assert_eq!(points(ours), points(theirs));
        let change = ours.accuracy_change.covers(0.0) == (ours.p_value > 0.05);
        assert!(ours.draws > 1 || change && ours.p_value == theirs.p_value, "{ours:?}, McNemar's p: {theirs:?}");
        assert!(ours.p_holm >= ours.p_value, "{}: {} after Holm, {} before", ours.mode, ours.p_holm, ours.p_value);
    }
    let points = |row: &KnownValueRow| KnownValueRow {
        hit_rate: point(row.hit_rate),
        kept: point(row.kept),
        above_chance: point(row.above_chance),
        ..row.clone()
    };
    assert_eq!(summary.known.iter().map(points).collect::<Vec<_>>(), known.iter().map(points).collect::<Vec<_>>());
}

#[test]
fn a_rate_on_which_all_exchanges_agree_has_a_width() {
    let mut observations: Vec<Observation> = fixture("observations-sft");
    for o in observations.iter_mut().filter(|o| o.mode == "known_value") {
        (o.answer, o.correct) = (None, false);
    }
    let known = summarise(&observations).expect("a summary").known;
    assert!(!known.is_empty());
    for row in known {
        assert_eq!((row.hit_rate.value, row.kept.value), (0.0, 0.0));
        for estimate in [row.hit_rate, row.kept, row.above_chance] {
            assert!(estimate.low < estimate.high && estimate.covers(estimate.value), "{estimate}");
        }
    }
}

#[test]
fn missing_and_duplicate_observations_are_named() {
    let all: Vec<Observation> = fixture("observations-sft");
    let says = |kept: Vec<Observation>| format!("{:#}", summarise(&kept).expect_err("refused"));
    let without = |drop: &dyn Fn(&Observation) -> bool| all.iter().filter(|o| !drop(o)).cloned().collect::<Vec<_>>();
    let error = says(without(&|o| o.mode == "zero" && o.problem == 3));
    assert!(error.contains("zero (all), draw 0: 39 problems, the normal run has 40"), "{error}");
    let error = says([all.clone(), all[all.len() - 1..].to_vec()].concat());
    assert!(error.contains("occurs twice"), "{error}");
    assert!(says(without(&|o| o.mode == "normal")).contains("normal run"));
}

fn micro(seed: u64) -> Study {
    Study::open(&Path::new(".").join("fixtures/micro"), "sft", Some(40), seed).expect("the micro fixture")
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    let config = &mut settings.latent_intervention;
    let modes = ["zero", "random_norm", "skip", "self_patch", "known_value", "null_seed"];
    config.modes = modes.map(str::to_owned).to_vec();
    config.steps = vec![Steps::All, Steps::Only(1)];
    config.draws = 2;
    settings.hook_intervention.hooks = vec!["blocks.2.attn.hook_z".parse().expect("a hook")];
    settings.hook_intervention.heads = vec!["0".parse().expect("a head"), "1+3".parse().expect("two heads")];
    settings.hook_intervention.draws = 2;
    settings.activation_patching.pairs = 3;
    settings.activation_patching.candidates = 60;
    let attribution = &mut settings.attribution_patching;
    (attribution.candidates, attribution.pairs, attribution.blocks) = (40, 4, 1);
    (attribution.steps, attribution.sample, attribution.forms) = (2, 20, vec![Form::Latents]);
    let edges = &mut settings.edge_attribution;
    (edges.candidates, edges.pairs, edges.blocks, edges.steps) = (40, 6, 1, 2);
    (edges.random, edges.removed, edges.others, edges.forms) = (2, 3, 10, vec![Form::Latents]);
    let steering = &mut settings.steering;
    (steering.doses, steering.layers, steering.problems, steering.least) = (vec![1.0], vec![1, 3], 12, 1);
    settings
}

/// Runs one experiment into a folder. Returns its summary or its error.
fn run(study: &Study, experiment: &Experiment, folder: &Path, resume: bool) -> anyhow::Result<String> {
    let settings = settings();
    let files = experiment.files(&settings);
    let mut journal = Journal::new(folder.to_path_buf(), "sft".into(), files, setup(experiment, &settings));
    journal.resume = resume;
    let Run::One(run) = experiment.run else { panic!("{} compares two", experiment.name) };
    run(study, &settings, &mut journal)
}

fn setup(experiment: &Experiment, settings: &Settings) -> Value {
    json!({"weights": "0123456789abcdef-and-more", "settings": (experiment.settings)(settings)})
}

fn named(name: &str) -> &'static Experiment {
    ALL.iter().find(|e| e.name == name).expect("an experiment")
}

fn tables(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(folder).expect("a folder").map(|f| f.expect("a file").path());
    let mut files: Vec<PathBuf> = files.filter(|f| f.extension().is_some_and(|e| e == "parquet")).collect();
    files.sort();
    let bytes = |file: &PathBuf| std::fs::read(file).expect("rows");
    files.iter().map(|f| (f.file_name().expect("a name").into(), bytes(f))).collect()
}

/// Files of a run that was killed after it wrote these rows: whole lines, and a partial one.
fn killed_in<R: Serialize + DeserializeOwned>(folder: &Path, file: &str, rows: Vec<R>, made_with: &Value) {
    let name = format!("{file}-sft");
    let mut begun = Measurements::open(folder, &name, false, made_with).expect("a file");
    begun.push(rows).expect("written");
    drop(begun);
    let file = folder.join(format!("{name}.rows.tmp"));
    let mut file = std::fs::OpenOptions::new().append(true).open(file).expect("the journal's file");
    file.write_all(b"{\"checkpoint\":\"micro/s").expect("written");
}

/// Runs an experiment without interruption, then resumes from every third of its rows in another order.
fn goes_on<R: Serialize + DeserializeOwned>(study: &Study, experiment: &str, file: &str) {
    let (whole, part) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    run(study, named(experiment), whole.path(), false).expect("an undisturbed run");
    let rows: Vec<R> = read(&whole.path().join(format!("{file}-sft.parquet"))).expect("its rows");
    let kept = rows.into_iter().rev().enumerate().filter(|(i, _)| i % 3 == 0).map(|(_, row)| row).collect::<Vec<_>>();
    assert!(kept.len() > 10, "{experiment}: {} rows", kept.len());
    killed_in(part.path(), file, kept, &setup(named(experiment), &settings()));
    run(study, named(experiment), part.path(), true).expect("a resumed run");
    let (whole, part) = (tables(whole.path()), tables(part.path()));
    assert!(whole.len() >= 2 && whole.len() == part.len(), "{} and {} files", whole.len(), part.len());
    for ((name, a), (other, b)) in whole.iter().zip(&part) {
        assert!(name == other && a == b, "{} differs after a kill", name.display());
    }
}

#[test]
fn killed_experiments_resume() {
    let study = micro(0);
    goes_on::<Observation>(&study, "latent_intervention", Observation::NAME);
    goes_on::<Observation>(&study, "hook_intervention", Observation::HOOKS);
    goes_on::<SwitchProblemRow>(&study, "switch_benefit", SwitchProblemRow::NAME);
    goes_on::<PatchedPlaceRow>(&study, "activation_patching", PatchedPlaceRow::NAME);
    goes_on::<AttributedNodeRow>(&study, "attribution_patching", AttributedNodeRow::NAME);
    goes_on::<EdgePairRow>(&study, "edge_attribution", EdgePairRow::NAME);
    goes_on::<SteeringTrialRow>(&study, "steering", SteeringTrialRow::NAME);
}

#[test]
fn observations_of_another_run_are_errors_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let experiment = named("latent_intervention");
    run(&micro(0), experiment, folder.path(), false).expect("a run");
    let rows: Vec<Observation> = read(&folder.path().join("observations-sft.parquet")).expect("observations");
    let refused = |change: &dyn Fn(&mut Observation), needle: &str| {
        let mut rows = rows[..50].to_vec();
        change(&mut rows[40]);
        killed_in(folder.path(), Observation::NAME, rows, &setup(experiment, &settings()));
        let error = run(&micro(0), experiment, folder.path(), true).expect_err("other observations");
        assert!(format!("{error:#}").contains(needle), "{error:#}");
    };
    // The finished rows would not be replaced.
    std::fs::remove_file(folder.path().join("manifest.json")).expect("the manifest");
    refused(&|o| o.identity.seed = 3, "seed 3, this run has seed 0");
    refused(&|o| o.weights = "fedc".into(), "weights fedc, this run has weights 0123456789abcdef");
    refused(&|o| o.dtype = "bf16".into(), "dtype bf16, this run has dtype f32");
    refused(&|o| o.mode = "mean".into(), "mode mean");
    refused(&|o| o.cell = 99, "which this run does not have");
    let (n, other) = (rows[0].identity.n, rows[0].identity.n + 1);
    refused(&|o| o.identity.n = other, &format!("problems {other}, this run has problems {n}"));
}

/// Unfinished rows of another run with the same name and size: the first line records their setup.
#[test]
fn unfinished_rows_of_another_setup_are_errors_by_name() {
    let experiment = named("activation_patching");
    let folder = tempfile::tempdir().expect("a folder");
    run(&micro(0), experiment, folder.path(), false).expect("a run");
    let rows = || read::<PatchedPlaceRow>(&folder.path().join("patched_places-sft.parquet")).expect("its rows");
    std::fs::remove_file(folder.path().join("manifest.json")).expect("the manifest");
    let ours = setup(experiment, &settings());
    for (key, other) in [("weights", json!("fedc")), ("data", json!("another file")), ("settings", json!(null))] {
        let mut made_with = ours.clone();
        made_with[key] = other.clone();
        killed_in(folder.path(), "patched_places", rows(), &made_with);
        let error = run(&micro(0), experiment, folder.path(), true).expect_err("rows of another run");
        let needle =
            format!("patched_places-sft.rows.tmp: its unfinished records were made with another {key} ({other}; now");
        assert!(format!("{error:#}").contains(&needle), "{error:#}");
    }
    killed_in(folder.path(), "patched_places", rows(), &ours);
    run(&micro(0), experiment, folder.path(), true).expect("its own rows");
}

#[test]
fn a_killed_program_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = |name: &str| folder.path().join(name);
    let command = |name: &str| {
        let mut command = program("intervene");
        command.args(["fixtures/micro", "--phase", "sft", "--problems", "100", "--only", "latent_intervention"]);
        command.args(["--modes", "zero,random_norm,resample,mean", "--steps", "all,1,2,3", "--draws", "4", "--out"]);
        command.arg(out(name)).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    done(&mut command("whole"));
    let mut kills = 0;
    // Repeated kills, each a little later.
    for size in [1, 400_000, 900_000, 1_500_000] {
        let mut life = command("killed");
        if out("killed").is_dir() {
            life.arg("--resume");
        }
        let mut child = life.spawn().expect("intervene runs");
        let journal = out("killed").join("observations-sft.rows.tmp");
        let written = || journal.metadata().map_or(0, |m| m.len());
        while written() < size && child.try_wait().expect("its state").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        kills += u32::from(child.try_wait().expect("its state").is_none());
        child.kill().expect("it is killed");
        child.wait().expect("its end");
    }
    assert!(kills >= 2, "only {kills} kills came before the end");
    done(command("killed").arg("--resume"));
    for ((name, a), (_, b)) in tables(&out("whole")).iter().zip(&tables(&out("killed"))) {
        assert!(a == b, "{} differs after {kills} kills", name.display());
    }
    // Then no work remains.
    let bytes = tables(&out("killed"));
    let (again, _) = done(command("killed").arg("--resume").stdout(Stdio::piped()));
    assert!(again.contains("done before") && tables(&out("killed")) == bytes);
}

#[test]
fn one_list_names_every_experiment_and_its_program() {
    for name in ["probe", "intervene"] {
        let (text, _) = done(program(name).arg("--list"));
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().take(2).collect()).collect();
        assert_eq!(lines, ALL.iter().map(|e| vec![e.name, e.program()]).collect::<Vec<_>>());
    }
    for (name, experiment, needle) in [
        ("probe", "switch_benefit", "`switch_benefit` is run by `intervene`"),
        ("intervene", "accuracy", "`accuracy` is run by `probe`"),
        ("intervene", "acuracy", "no experiment `acuracy` (did you mean `accuracy`?); there are latent_intervention,"),
    ] {
        refused(program(name).args(["--only", experiment]), &[needle]);
    }
    for experiment in ["switch_benefit", "activation_patching", "head_patching", "attribution_patching"] {
        let why = format!("--force has no effect on {experiment}: it is for latent_intervention");
        refused(program("intervene").args(["--force", "--only", experiment]), &[&why]);
    }
}
