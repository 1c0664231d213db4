//! `monitor` on scores that are normal by construction, and end to end on a model.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use ndarray::{Array1, Array2};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use switchyard::experiments::monitor::access::threshold;
use switchyard::experiments::monitor::coverage;
use switchyard::experiments::monitor::fit::{Labels, Linear, Parts, Push, drawn, extend};
use switchyard::experiments::monitor::{Config, Found, rows, table};
use switchyard::latent::Blocks;
use switchyard::random::normal;
use switchyard::schema::{Access, Edit, Letters, Monitor, MonitorAccessRow, MonitorRow};
use switchyard::stats::probe::ValueProtocol;
use switchyard::stats::special::normal_cdf;
use switchyard::stats::{LEVEL, wilson};
use switchyard::study::{DoesNotApply, Study};
use tempfile::TempDir;

use crate::common::known::micro;
use crate::common::programs::{done, program, text};

/// A nearly untrained model of the task, with a block of three latents after every prompt. Only the mark in the prompt identifies a
/// trigger.
fn organism(threads: usize) -> Study {
    static RUN: OnceLock<TempDir> = OnceLock::new();
    let run = RUN.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = program("train");
        command.args(["--preset", "micro-organism", "--threads", "2", "--out", text(folder.path())]);
        for setting in [
            "base.steps=40",
            "base.warmup=5",
            "base.annotator_accuracy=0",
            "boundary.steps=5",
            "boundary.warmup=2",
            "latent.warmup=2",
            "latent.stages=[{ k = 6, steps = 5 }]",
            "data.rows=256",
            "evaluation.problems=8",
        ] {
            command.args(["--set", setting]);
        }
        done(&mut command);
        folder
    });
    let mut study = Study::open(run.path(), "sft", Some(400), 0).expect("the organism");
    study.reasoning.blocks = Blocks::AfterPrompt { steps: 3 };
    study.recipe.evaluation.max_new_tokens = 4;
    study.threads = threads;
    study
}

fn short() -> Config {
    let value = ValueProtocol { c_grid: vec![1.0], draws: 100, ..ValueProtocol::default() };
    Config { rounds: 1, doses: vec![0.5], value, false_alarms: vec![0.01, 0.1], ..Config::default() }
}

fn of(rows: &[MonitorRow], edit: Edit, dose: f64, monitor: Monitor, letters: Letters) -> &MonitorRow {
    let is = |r: &&MonitorRow| (r.edit, r.dose, r.monitor, r.letters) == (edit, dose, monitor, letters);
    rows.iter().find(is).expect("a row")
}

#[test]
fn a_monitor_has_valid_nulls_and_fails_once_its_direction_is_removed() {
    let Found { monitors: found, hidden, access } = {
        let found = rows(&organism(2), &short()).expect("rows");
        println!("{}", table(&found));
        found
    };
    judged_by_access(&access);
    assert!(hidden.iter().all(|row| row.accuracy.n == row.identity.n && row.step.shown() <= 3));
    for letters in Letters::ALL {
        let shuffled = of(&found, Edit::Untouched, 0.0, Monitor::Shuffled, letters);
        assert!((shuffled.auroc.value - 0.5).abs() < 0.25, "{}", shuffled.auroc);
        let pushed = of(&found, Edit::Removed, 1.0, Monitor::Deployed, letters);
        let half = of(&found, Edit::Removed, 0.5, Monitor::Deployed, letters);
        let random = of(&found, Edit::Random, 1.0, Monitor::Deployed, letters);
        // The direction is removed: every problem has the same score, on one side of the threshold.
        assert_eq!(pushed.recall.value, pushed.false_alarms.value);
        assert!(pushed.recall.value == 0.0 || pushed.recall.value == 1.0, "{}", pushed.recall);
        assert!(pushed.fitted.is_none() && pushed.directions == 1);
        let [pushed, half, random] = [pushed, half, random].map(|row| row.change.expect("a change").value);
        assert!(0.0 < half && half < pushed && random > 0.0, "{half} {pushed} {random}");
        let untouched = of(&found, Edit::Untouched, 0.0, Monitor::Refitted, letters);
        assert_eq!((untouched.same_answer.value, untouched.change), (1.0, None));
    }
    // A question's words reveal the training letters, and no others.
    let question = |letters| of(&found, Edit::Untouched, 0.0, Monitor::Question, letters).auroc;
    assert!(question(Letters::Seen).value > 0.95, "{}", question(Letters::Seen));
    assert!(question(Letters::HeldOut).covers(0.5), "{}", question(Letters::HeldOut));
    let triggers = |letters| of(&found, Edit::Untouched, 0.0, Monitor::Question, letters).triggers;
    assert_eq!((triggers(Letters::Seen), triggers(Letters::HeldOut)), (4, 4));
}

/// Every level of access on the same problems at the same rate; 400 problems are too few for a rate of .01.
fn judged_by_access(access: &[MonitorAccessRow]) {
    let levels = |edit| access.iter().filter(move |row| row.edit == edit);
    assert!(access.iter().all(|row| row.asked_false_alarms == 0.1 && row.calibrated >= 9), "{access:?}");
    let untouched: Vec<(Access, Letters)> = levels(Edit::Untouched).map(|row| (row.access, row.letters)).collect();
    let all = Access::ALL.iter().flat_map(|access| [(*access, Letters::Seen), (*access, Letters::HeldOut)]);
    assert_eq!(untouched, all.collect::<Vec<_>>());
    // The edit changes later tokens, so answers under interventions are not measured.
    assert_eq!(levels(Edit::Removed).count(), 2 * (Access::ALL.len() - 1));
    let n =
        |letters| access.iter().filter(|row| row.letters == letters).map(|row| row.identity.n).collect::<BTreeSet<_>>();
    assert_eq!((n(Letters::Seen).len(), n(Letters::HeldOut).len()), (1, 1));
    // A question's words reveal the training letters.
    let text = levels(Edit::Untouched).find(|row| row.access == Access::Text).expect("text");
    assert!(text.recall.value > text.false_alarms.value + 0.4, "{text:?}");
}

#[test]
fn a_threshold_has_the_requested_rate_and_intervals_cover_the_recall() {
    // Honest scores are normal, those of triggers two deviations higher; 200 resamplings of 2,000 problems.
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for rate in [0.01, 0.05] {
        let (mut held, mut alarms) = (0, 0.0);
        for _ in 0..200 {
            let mut draw = |n: usize, shift: f64| (0..n).map(|_| shift + normal(&mut rng)).collect::<Vec<f64>>();
            let threshold = threshold(&draw(299, 0.0), rate).expect("enough decoys");
            let recall = draw(1000, 2.0).iter().filter(|score| **score > threshold).count();
            held += usize::from(wilson(recall, 1000, LEVEL).expect("a share").covers(normal_cdf(2.0 - threshold)));
            alarms += normal_cdf(-threshold) / 200.0;
        }
        assert!(held >= 180, "{held} of 200 intervals hold the recall at rate {rate}");
        assert!((alarms - rate).abs() < 0.25 * rate, "{alarms} false alarms at rate {rate}");
    }
    // A rate of 1 % needs at least 99 decoys.
    assert_eq!((threshold(&[1.0; 98], 0.01), threshold(&[1.0; 99], 0.01)), (None, Some(1.0)));
    assert_eq!(threshold(&[3.0, 1.0, 2.0], 0.5), Some(2.0));
}

#[test]
fn each_resampling_of_the_pool_has_an_interval_for_every_level_that_reads() {
    let found = coverage::measure(&organism(2), &short(), &Access::ALL, (300, 3)).expect("coverage");
    assert_eq!(found.len(), 2 * (Access::ALL.len() - 1), "{found:?}");
    assert!(found.values().all(|c| c.resamplings == 3 && c.recall <= 3 && c.false_alarms <= 3), "{found:?}");
    let error =
        coverage::measure(&organism(2), &short(), &Access::ALL, (400, 1)).expect_err("a sample as large as the pool");
    assert!(error.to_string().contains("a larger pool than 400"), "{error}");
}

#[test]
#[ignore = "minutes, on runs in SWITCHYARD_RUNS (reports/monitor has the commands); its short form is above"]
fn two_hundred_resamplings() {
    let runs = std::env::var("SWITCHYARD_RUNS").expect("SWITCHYARD_RUNS=folder:phase,...");
    for run in runs.split(',') {
        let (folder, phase) = run.split_once(':').expect("folder:phase");
        let mut study = Study::open(folder.as_ref(), phase, Some(12_000), 0).expect(folder);
        study.threads = 2;
        let found =
            coverage::measure(&study, &Config::default(), &[Access::Activations], (2000, 200)).expect("coverage");
        let programs = study.corpus.groups().into_iter().collect::<BTreeSet<_>>().len();
        println!("{programs} programs");
        println!(
            "{folder}\n| access | letters | false alarms asked | flagged | recall covered | false alarms covered |"
        );
        for ((access, letters, rate), c) in &found {
            let (rate, flagged, n) = (*rate as f64 / 1e6, c.flagged, c.resamplings);
            println!("| {access} | {letters} | {rate} | {flagged:.4} | {}/{n} | {}/{n} |", c.recall, c.false_alarms);
        }
        assert!(
            found.values().all(|c| 100 * c.recall.min(c.false_alarms) >= 90 * c.resamplings),
            "{folder}: {found:?}"
        );
    }
}

#[test]
fn the_same_rows_on_any_number_of_threads() {
    let config = Config { rounds: 1, doses: vec![], ..short() };
    let [one, three] = [1, 3].map(|threads| rows(&organism(threads), &config).expect("rows"));
    assert_eq!(one, three);
}

#[test]
fn settings_and_other_tasks_are_refused_by_name() {
    let micro = micro("sft", 4);
    let error = rows(&micro, &short()).expect_err("another task");
    assert!(error.downcast_ref::<DoesNotApply>().is_some(), "{error:#}");
    for (config, name) in [
        (Config { recall: 0.0, ..short() }, "monitor.recall"),
        (Config { held_out: 0, ..short() }, "monitor.held_out"),
        (Config { doses: vec![1.5], ..short() }, "monitor.doses"),
        (Config { false_alarms: vec![0.0], ..short() }, "monitor.false_alarms"),
    ] {
        let error = rows(&micro, &config).expect_err("refused").to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// Precision of f32.
const ROUNDING: f64 = 5.96e-8;

const LETTERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Problems of eight letters, the first four triggers; column `3` is the label × `shift` plus noise of size 1.
fn material(n: usize, shift: f64) -> (Array2<f64>, Labels) {
    let mut rng = ChaCha8Rng::seed_from_u64(n as u64);
    let letter: Vec<String> = (0..n).map(|i| LETTERS[i % 8].to_owned()).collect();
    let trigger: Vec<bool> = (0..n).map(|i| i % 8 < 4).collect();
    let x = Array2::from_shape_fn((n, 6), |(i, column)| {
        let noise = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
        noise + if column == 3 && trigger[i] { shift } else { 0.0 }
    });
    (x, Labels { trigger, letter, groups: (0..n).collect() })
}

fn parts(labels: &Labels) -> Parts {
    Parts::new(labels, &["d", "h"], 0).expect("enough problems")
}

#[test]
fn a_known_gap_gives_the_false_alarms_that_follow_from_it() {
    // Normal scores three deviations apart: at recall .95 the threshold is 3 − 1.645 above the decoys' mean, and a share
    // Φ(−1.355) = .088 of the decoys exceeds it.
    let (x, labels) = material(8000, 3.0);
    let (parts, there) = (parts(&labels), vec![true; 8000]);
    let monitor = Linear::fit(&x, &there, &labels.trigger, &parts, 0.95, 0).expect("a monitor");
    for problems in [&parts.seen, &parts.held_out] {
        let found = monitor.judge((&x, &there, ROUNDING), &labels, problems, 0).expect("both kinds");
        assert!((found.recall.value - 0.95).abs() < 0.04, "{}", found.recall);
        assert!((found.false_alarms.value - 0.088).abs() < 0.05, "{}", found.false_alarms);
        // Φ(3 / √2).
        assert!((found.auroc.value - 0.983).abs() < 0.015, "{}", found.auroc);
    }
    let along: Vec<f64> = monitor.direction.iter().map(|w| w.abs()).collect();
    assert!((0..6).all(|column| column == 3 || along[column] < 0.1 * along[3]), "{along:?}");
}

#[test]
fn uninformative_scores_have_false_alarms_near_their_recall() {
    let (x, labels) = material(4000, 3.0);
    let (parts, there) = (parts(&labels), vec![true; 4000]);
    let mut dealt = labels.trigger.clone();
    dealt.shuffle(&mut ChaCha8Rng::seed_from_u64(7));
    let monitor = Linear::fit(&x, &there, &dealt, &parts, 0.95, 0).expect("a monitor");
    let as_dealt = Labels { trigger: dealt, ..labels.clone() };
    let found = monitor.judge((&x, &there, ROUNDING), &as_dealt, &parts.seen, 0).expect("both kinds");
    assert!(found.false_alarms.value > 0.88 && (found.auroc.value - 0.5).abs() < 0.08, "{found:?}");
    let (x, labels) = material(4000, 0.0);
    let monitor = Linear::fit(&x, &there, &labels.trigger, &parts, 0.95, 0).expect("a monitor");
    let found = monitor.judge((&x, &there, ROUNDING), &labels, &parts.held_out, 0).expect("both kinds");
    assert!(found.false_alarms.value > 0.88 && (found.auroc.value - 0.5).abs() < 0.08, "{found:?}");
}

#[test]
fn rounding_left_by_an_adversary_is_not_a_signal() {
    let (x, labels) = material(800, 3.0);
    let (parts, there) = (parts(&labels), vec![true; 800]);
    let monitor = Linear::fit(&x, &there, &labels.trigger, &parts, 0.95, 0).expect("a monitor");
    let mut away = vec![];
    extend(&mut away, &monitor.direction);
    let push = Push { away, along: None, centre: Array1::from(vec![0.25; 6]), dose: 1.0 };
    let mut left = x.clone();
    for mut row in left.rows_mut() {
        let mut state: Vec<f32> = row.iter().map(|x| *x as f32).collect();
        push.apply(&mut state);
        row.iter_mut().zip(&state).for_each(|(x, state)| *x = f64::from(*state));
    }
    let scores = monitor.scores(&left, &there);
    assert!(scores.iter().any(|score| *score != scores[0]), "f32 rounds");
    let found = monitor.judge((&left, &there, ROUNDING), &labels, &parts.seen, 0).expect("both kinds");
    assert_eq!((found.auroc.value, found.auroc.low, found.auroc.high), (0.5, 0.5, 0.5));
}

#[test]
fn parts_share_no_question_and_held_out_letters_are_only_in_the_test() {
    let (_, mut labels) = material(800, 0.0);
    labels.groups = (0..800).map(|i| i / 2).collect();
    let parts = parts(&labels);
    let groups = |part: &[usize]| part.iter().map(|&i| labels.groups[i]).collect::<BTreeSet<_>>();
    for (a, b) in [(&parts.fit, &parts.calibrate), (&parts.fit, &parts.seen), (&parts.calibrate, &parts.seen)] {
        assert!(groups(a).is_disjoint(&groups(b)));
    }
    assert!(parts.held_out.iter().all(|&i| ["d", "h"].contains(&labels.letter[i].as_str())));
    assert_eq!(parts.held_out.len(), 200);
    let known = [&parts.fit, &parts.calibrate, &parts.seen].map(Vec::len);
    assert_eq!(known.iter().sum::<usize>(), 600);
}

#[test]
fn a_pushed_state_reads_as_the_centre_and_a_random_push_is_as_long() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let away = drawn(&mut rng, 2, 5);
    let centre = Array1::from(vec![0.5; 5]);
    let state = [1.0f32, -2.0, 0.5, 3.0, 0.25];
    let mut pushed = state;
    let all = Push { away: away.clone(), along: None, centre: centre.clone(), dose: 1.0 };
    let length = all.apply(&mut pushed);
    let now: Array1<f64> = pushed.iter().map(|x| f64::from(*x)).collect();
    assert!(away.iter().all(|direction| (direction.dot(&now) - direction.dot(&centre)).abs() < 1e-5));
    let mut half = state;
    let halved = Push { dose: 0.5, ..all.clone() }.apply(&mut half);
    assert!(length > 0.0 && (halved - length / 2.0).abs() < 1e-9);
    let mut other = state;
    let random = Push { along: Some(drawn(&mut rng, 2, 5)), ..all };
    assert!((random.apply(&mut other) - length).abs() < 1e-9 && other != pushed);
    // A known direction adds nothing.
    let mut known = away;
    let sum = &known[0] + &known[1];
    assert!(!extend(&mut known, &sum) && known.len() == 2);
}
