//! Verdicts on organisms: a small part of `probe calibrate`, and its aggregation of rows.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::known::of;
use crate::common::programs::{done, program, refused};
use switchyard::calibration::known::{Built, Purpose};
use switchyard::calibration::{Settings, draw_model, kinds};
use switchyard::experiments::latent_intervention::{self, Config};
use switchyard::machine::Machine;
use switchyard::schema::{CalibrationDrawRow, CalibrationRow, Identity, InterventionRow, calibrated};
use switchyard::store::read;
use switchyard::study::Study;
use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::render::report;

fn rows(only: &[&str], n: &[usize], draws: usize) -> Vec<CalibrationDrawRow> {
    let only = only.iter().map(|name| (*name).to_owned()).collect();
    let settings = Settings { draws, seed: 1, only, n: n.to_vec() };
    let Machine { device, threads, .. } = Machine::default();
    settings.run(&settings.jobs().expect("jobs"), &device, threads).expect("rows")
}

/// Two models of each kind.
fn models() -> impl Iterator<Item = (&'static str, Built)> {
    kinds().flat_map(|kind| (0..2).map(move |draw| (kind, draw_model(kind, 2, draw).expect("a kind of truth"))))
}

/// The digit of a problem: the second-to-last word of its question.
fn digit(study: &Study, problem: usize) -> usize {
    let question = &study.corpus.test[problem].question;
    question.split(' ').rev().nth(1).and_then(|word| word.parse().ok()).expect("a digit")
}

fn switches(study: &Study, problem: usize) -> bool {
    study.corpus.test[problem].subject.as_deref() == Some("switch")
}

#[test]
fn models_of_every_kind_answer_as_built() {
    for (kind, built) in models() {
        let study = &of(&built, 60, 3);
        let (scores, traces) = study.decoded().expect("decoded");
        for (i, trace) in traces.iter().enumerate() {
            let (outcome, what) = (&scores.outcomes[i], format!("{kind} {built:?}: {trace:?}"));
            assert_eq!(trace.latent_calls(), if trace.switched() { built.exit } else { 0 }, "{what}");
            assert!(built.kind == Purpose::Blind || trace.switched() == switches(study, i), "{what}");
            // The noisy model picks one of two answers at random; a memoriser may not know the program.
            let unknown = built.kind == Purpose::Noisy || built.is_rote();
            assert!(outcome.correct || (unknown && trace.switched()), "{what}");
        }
        let of_kind =
            |switched| traces.iter().enumerate().filter(move |(i, t)| switches(study, *i) && t.switched() == switched);
        match built.kind {
            Purpose::Noisy => {
                let right = of_kind(true).filter(|(i, _)| scores.outcomes[*i].correct).count();
                assert!(right > 0 && right < of_kind(true).count(), "{kind}: {right}");
            }
            Purpose::Blind => assert!(of_kind(true).count() > 0 && of_kind(false).count() > 0, "{kind}"),
            _ => {}
        }
    }
}

/// The stated role of the latents holds for every answer, not only on average.
#[test]
fn the_stated_mechanism_holds_for_every_kind() {
    let modes =
        ["zero", "resample", "mean", "scale:0.5", "scale:2", "skip", "empty_block", "embedding_argmax", "reverse"];
    for (kind, built) in models() {
        let study = &of(&built, 60, 4);
        let config = Config { modes: modes.map(str::to_owned).to_vec(), draws: 1, ..Config::default() };
        let rows = latent_intervention::rows(study, &config).expect("rows").rows;
        let row = |mode: &str, dose: Option<f64>| -> &InterventionRow {
            rows.iter().find(|r| r.mode == mode && r.dose == dose).expect("a row of the mode")
        };
        let changed = |mode| row(mode, None).answer_changed.value;
        // On problems where the model switches and answers correctly.
        let right = |mode, dose| row(mode, dose).diagnostic_accuracy.expect("problems that switch").value;
        let switched: Vec<usize> = (0..60).filter(|&i| switches(study, i)).collect();
        // A model that reads no latents answers with the digit.
        let is_digit = |i: &&usize| study.corpus.test[**i].answer == digit(study, **i).to_string();
        let by_digit = switched.iter().filter(is_digit).count() as f64 / switched.len() as f64;
        match built.kind {
            Purpose::Working | Purpose::Superposed => {
                assert_eq!((right("zero", None), built.least > 0), (by_digit, by_digit > 0.0), "{kind} {built:?}");
                assert!(right("resample", None) < 1.0 && changed("mean") > 0.0, "{kind} {built:?}: {rows:#?}");
            }
            // A latent equals its token's embedding, so replacing it by the embedding changes nothing.
            Purpose::Token | Purpose::Copied => {
                assert!(right("resample", None) < 0.5 && changed("mean") > 0.0, "{kind} {built:?}: {rows:#?}");
                assert_eq!(changed("embedding_argmax"), 0.0, "{kind} {built:?}");
                assert_eq!(changed("reverse") > 0.0, built.kind == Purpose::Token, "{kind} {built:?}");
            }
            // It has memorised none of these programs.
            Purpose::Memorised if built.is_rote() => {
                let text = (0..60).filter(|&i| !switches(study, i)).count();
                let right = study.decoded().expect("scores").0.outcomes.iter().filter(|o| o.correct).count();
                assert!((text..text + 15).contains(&right), "{kind} {built:?}: {right} right, {text} text problems");
            }
            // Without its latents the answer is the digit.
            Purpose::Memorised => {
                assert_eq!(right("zero", None), by_digit, "{kind} {built:?}");
                assert!(by_digit < 0.5 && right("resample", None) < 0.5, "{kind} {built:?}: {rows:#?}");
            }
            // No latent input is read.
            Purpose::Inert | Purpose::Empty | Purpose::Blind | Purpose::Marked | Purpose::Covert => {
                assert_eq!(modes[..3].iter().map(|&mode| changed(mode)).sum::<f64>(), 0.0, "{kind} {built:?}");
            }
            // The block is needed, not its content.
            Purpose::Bound => {
                let idle = ["zero", "resample", "mean", "empty_block"];
                assert_eq!(idle.map(changed).iter().sum::<f64>(), 0.0, "{kind} {built:?}");
                assert!(right("skip", None) < 0.5, "{kind} {built:?}");
            }
            // Only the block's length is needed.
            Purpose::Surprised => {
                assert_eq!(changed("resample"), 0.0, "{kind} {built:?}");
                assert!(right("empty_block", None) < 0.5, "{kind} {built:?}");
            }
            // A latent with another value changes the answer; a latent without a value does not.
            Purpose::Backed => {
                let idle = ["zero", "mean", "skip", "empty_block"];
                assert_eq!(idle.map(changed).iter().sum::<f64>(), 0.0, "{kind} {built:?}");
                assert!(right("resample", None) < 0.5, "{kind} {built:?}");
            }
            // The text determines the answer; the latents only count.
            Purpose::Redundant => {
                assert_eq!((changed("zero"), changed("resample")), (0.0, 0.0), "{kind} {built:?}");
                let lead = row("resample", None).logit_diff_change.expect("leads");
                assert!(lead.high < 0.0, "{kind} {built:?}: {lead}");
            }
            // States of other problems have the same norm; for any other norm the answer is the digit.
            Purpose::Norm => {
                assert_eq!((changed("resample"), changed("mean")), (0.0, 0.0), "{kind} {built:?}");
                for (mode, dose) in [("zero", None), ("scale", Some(0.5)), ("scale", Some(2.0))] {
                    assert_eq!(right(mode, dose), by_digit, "{kind} {built:?}: {mode} {dose:?}");
                }
            }
            // Answers change. For the noisy model, on average as many become right as wrong.
            Purpose::Noisy | Purpose::Operand => {
                assert!(changed("zero") > 0.0 && changed("resample") > 0.0, "{kind} {built:?}")
            }
        }
    }
}

/// Largest number of wrong verdicts among `n` that does not reject, at 1 %, a 95 % rate of right ones: P(X > most) ≤ 0.01 for
/// X ~ Binomial(n, 0.05).
fn most_wrong(n: usize) -> usize {
    let wrong = 0.05_f64;
    let (mut term, mut up_to, mut most) = ((1.0 - wrong).powi(n as i32), 0.0, 0);
    loop {
        up_to += term;
        if 1.0 - up_to <= 0.01 {
            return most;
        }
        term *= (n - most) as f64 / (most + 1) as f64 * wrong / (1.0 - wrong);
        most += 1;
    }
}

#[test]
fn verdicts_are_right_where_the_truth_is_known() {
    let mut seen = rows(&[], &[100, 24], 1);
    let kinds: BTreeSet<&str> = seen.iter().map(|row| row.kind.as_str()).collect();
    let tests: BTreeSet<&str> = seen.iter().map(|row| row.test.as_str()).collect();
    assert!(kinds.len() >= 8 && tests.len() > 20, "{kinds:?} {tests:?}");
    // Known misses, and effects that need more than 100 problems.
    seen.retain(|row| row.blind.is_empty() && row.kind != "share");
    let wrong: Vec<_> = seen.iter().filter(|row| !row.right).collect();
    println!("{} of {} verdicts are wrong", wrong.len(), seen.len());
    // scipy.stats.binom.ppf(0.99, 100, 0.05).
    assert_eq!(most_wrong(100), 11);
    assert!(seen.len() > 100 && wrong.len() <= most_wrong(seen.len()), "{wrong:#?}");
}

/// The same seed gives the same rows, whatever else is measured.
#[test]
fn seeds_give_the_same_rows_whatever_else_is_measured() {
    let all = rows(&["exit"], &[20, 50], 2);
    let one = rows(&["exit_probability"], &[50], 1);
    assert!(!one.is_empty() && one.iter().all(|row| all.contains(row)), "{one:#?}\n{all:#?}");
}

fn draw(n: usize, draw: usize, truth: bool, verdict: bool) -> CalibrationDrawRow {
    let hand = CalibrationRow::CHECKPOINT.to_owned();
    CalibrationDrawRow {
        identity: Identity { checkpoint: hand.clone(), dataset: hand, n, seed: 0 },
        kind: "share".into(),
        draw,
        test: "latent_intervention/zero".into(),
        default_n: n == 200,
        blind: String::new(),
        truth,
        verdict,
        right: truth == verdict,
    }
}

#[test]
fn power_and_false_alarms_are_counted_apart_and_by_n() {
    // 6, 9 and 10 of 10 found; one of 5 false alarms everywhere.
    let found = |(n, hits): (usize, usize)| (0..10).map(move |i| draw(n, i, true, i < hits));
    let mut draws: Vec<_> = [(50, 6), (100, 9), (200, 10)].into_iter().flat_map(found).collect();
    draws.extend([50, 100, 200].into_iter().flat_map(|n| (10..15).map(move |i| draw(n, i, false, i == 10))));
    let rows = calibrated(&draws).expect("rows");
    assert_eq!(rows.len(), 6, "three sizes, over all kinds and of one");
    let of: Vec<_> = rows.iter().filter(|row| row.kind == CalibrationRow::ALL).collect();
    let value = |row: &CalibrationRow| (row.problems, row.power.expect("power").value);
    assert_eq!(of.iter().map(|row| value(row)).collect::<Vec<_>>(), [(50, 0.6), (100, 0.9), (200, 1.0)]);
    assert!(of.iter().all(|row| row.false_alarms.is_some_and(|e| e.value == 0.2 && e.n == 5)));
    assert!(of.iter().all(|row| row.n_for_80 == Some(100)));
    assert_eq!((of[2].right.n, of[2].right.value, of[2].default_n), (15, 14.0 / 15.0, true));
}

/// `report` reads the command's rows and cites them next to claims that use a calibrated test.
#[test]
fn the_command_writes_what_the_report_cites() {
    let reports = tempfile::tempdir().expect("a folder");
    let out = reports.path().join("calibration");
    let probe = |more: &[&str]| {
        let mut command = program("probe");
        command.arg("calibrate").args(more).arg("--out").arg(&out);
        command
    };
    let (printed, _) = done(&mut probe(&["--draws", "2", "--n", "50", "--only", "latent_intervention,unread"]));
    assert!(
        printed.contains("| latent_intervention/zero | 50 |"),
        "its table, though 50 is not the default: {printed}"
    );
    let micro = reports.path().join("micro");
    std::fs::create_dir(&micro).expect("a folder");
    for file in std::fs::read_dir(Path::new(".").join("reports/micro")).expect("the committed rows").flatten() {
        if file.path().extension().is_some_and(|e| e == "parquet") {
            std::fs::copy(file.path(), micro.join(file.file_name())).expect("a copy");
        }
    }
    let folders = [out.clone(), micro.clone()].map(|path| Folder::open(&path).expect("rows"));
    report(&folders, &reports.path().join("index.html")).expect("a report");
    let text = |path: &Path| std::fs::read_to_string(path).expect("a table");
    let table = text(&out.join("tables/tab-calibration-power.md"));
    assert!(table.contains("latent_intervention/zero") && !out.join("tables/claims.md").exists(), "{table}");
    let claims = text(&micro.join("tables/claims.md"));
    assert!(claims.contains("(reports/calibration: latent_intervention/skip)"), "{claims}");
    refused(&mut probe(&["--only", "nothing"]), &["--list"]);
}

/// A later run adds its tests to the existing ones, and replaces only its own earlier rows.
#[test]
fn tests_can_be_added_to_existing_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("calibration");
    let probe = |more: &[&str]| {
        let mut command = program("probe");
        command.args(["calibrate", "--draws", "1", "--n", "20"]).args(more).arg("--out").arg(&out);
        command
    };
    let held = || read::<CalibrationDrawRow>(&out.join("calibration_draws-hand_built.parquet")).expect("rows");
    refused(&mut probe(&["--only", "unread,attention_to_latents", "--add"]), &["--add", "does not exist"]);
    done(&mut probe(&["--only", "unread,direct_logit"]));
    let first = held();
    done(&mut probe(&["--only", "unread,attention_to_latents", "--add"]));
    let both = held();
    assert!(both.len() > first.len() && both[..first.len()] == first, "{both:?}");
    done(&mut probe(&["--only", "unread,attention_to_latents", "--add"]));
    assert_eq!(held(), both, "made again, not doubled");
    let manifest = std::fs::read_to_string(out.join("manifest.json")).expect("a manifest");
    assert!(manifest.contains("\"kept\"") && manifest.contains("unread,direct_logit"), "{manifest}");
    refused(&mut probe(&["--only", "unread,attention_to_latents", "--add", "--seed", "3"]), &["--seed 0"]);
    assert_eq!(held(), both);
}
