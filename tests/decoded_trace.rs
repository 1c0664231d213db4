//! `decoded_trace` on organisms and on the committed micro models.

use std::path::Path;

use switchyard::calibration::known::Built;
use switchyard::experiments::decoded_trace::{Config, rows, rows_by, table};
use switchyard::latent::Blocks;
use switchyard::schema::{DecodedTraceRow, Reader};
use switchyard::study::{DoesNotApply, Study};

use crate::common::known::{EXIT_STEP, Purpose, study};

/// Problems of one step: the value at the end of its block and, if latents are read, the resulting answer.
fn found(which: Purpose, n: usize, seed: u64) -> Vec<DecodedTraceRow> {
    let (built, study) = (Built::new(which), study(which, n, seed));
    let test = study.corpus.test.clone();
    let follows = move |problem: usize, values: &[&str]| {
        let digit = test[problem].question.split_whitespace().nth(3).and_then(|word| word.parse().ok()).expect("digit");
        let value: usize = values[0].parse().expect("a value");
        let answer = built.answer_of(value).to_string();
        vec![value == built.state(digit, built.exit), !built.is_read() || answer == test[problem].answer]
    };
    let found = rows_by(&study, &Config::default(), &follows).expect("rows");
    println!("{which:?}\n{}", table(&found));
    assert_eq!(found.len(), 2 * EXIT_STEP, "a row a reader and latent");
    found
}

#[test]
fn carried_values_are_a_derivation_and_others_are_not() {
    for seed in 0..3 {
        for which in [Purpose::Working, Purpose::Inert] {
            for row in found(which, 120, seed) {
                // The state changes from latent to latent: the head reads its current value, a probe can predict the final one.
                let holds = row.reader == Reader::Probe || row.step.shown() == EXIT_STEP;
                assert_eq!((row.derives(), row.valid.value > 0.95), (holds, holds), "{which:?}: {row:?}");
                assert_eq!((row.reads, row.left_out, row.permuted), (row.identity.n, 0, None), "one step a problem");
                let shuffled = row.shuffled.expect("all blocks are as long");
                assert!(shuffled.covers(1.0 / 7.0) || !holds, "{which:?}: {shuffled}");
                assert!(shuffled.high < 0.5, "{which:?}: {shuffled}");
            }
        }
        for row in found(Purpose::Empty, 120, seed) {
            let shuffled = row.shuffled.expect("all blocks are as long");
            assert!(!row.derives() && row.valid.low < 1.0 / 7.0, "{row:?}");
            // Below chance is possible: an uninformed probe predicts the commonest training value, which leaving one question out makes
            // rarer there.
            assert!(row.difference.expect("paired").low <= 0.0, "{:.3} against {shuffled:.3}", row.valid);
        }
    }
}

/// Latents that identify the program reveal the value only to a probe trained on the program or the calculation.
#[test]
fn memorised_programs_are_not_a_derivation() {
    for seed in 0..3 {
        let mut study = study(Purpose::Memorised, 300, seed);
        let gold: Vec<i64> = study.corpus.test.iter().filter_map(|problem| problem.steps[0].value.number()).collect();
        let read = |study: &Study| {
            let follows = |problem: usize, values: &[&str]| vec![values[0].parse() == Ok(gold[problem]); 2];
            let found = rows_by(study, &Config::default(), &follows).expect("rows");
            println!("{}", table(&found));
            found.into_iter().filter(|row| row.reader == Reader::Probe).collect::<Vec<_>>()
        };
        let by_heart = |rows: Vec<DecodedTraceRow>| rows.iter().all(|row| !row.derives() && row.valid.value < 0.25);
        assert!(by_heart(read(&study)), "split by program and calculation");
        // Other letters count as other programs, as if a split by question sufficed: the calculation is the same.
        study.corpus.test.iter_mut().for_each(|problem| problem.group = None);
        assert!(by_heart(read(&study)), "split by question and calculation");
        study.corpus.test.iter_mut().enumerate().for_each(|(i, problem)| problem.steps[0].clause = i.to_string());
        assert!(read(&study).iter().all(|row| row.derives() && row.valid.value > 0.9), "split by question");
    }
}

fn micro(run: &str, threads: usize) -> Study {
    let mut study = Study::open(Path::new("fixtures").join(run).as_path(), "sft", Some(40), 0).expect("micro");
    study.threads = threads;
    study
}

#[test]
fn chains_and_graphs_have_rows_that_do_not_depend_on_threads() {
    for run in ["micro-compressed", "micro-graph"] {
        let one = rows(&micro(run, 1), &Config::default()).expect("rows");
        println!("{run}\n{}", table(&one));
        assert_eq!(one, rows(&micro(run, 3), &Config::default()).expect("rows"));
        assert!(one.iter().any(|row| row.reader == Reader::Logit && row.permuted.is_some()), "{run}");
        assert!(one.iter().all(|row| row.reads >= row.identity.n && row.step.shown() == 1), "{run}");
    }
}

#[test]
fn unreadable_targets_are_named() {
    let wrong = rows(&micro("micro-graph", 1), &Config { layer: Some(5), ..Config::default() });
    let wrong = wrong.expect_err("refused").to_string();
    assert!(wrong.contains("layer 5 does not exist, the model has 0 to 4"), "{wrong}");
    let mut study = micro("micro", 1);
    study.reasoning.blocks = Blocks::AfterPrompt { steps: 3 };
    let error = rows(&study, &Config::default()).expect_err("one block stands for all steps");
    assert!(error.downcast_ref::<DoesNotApply>().is_some(), "{error}");
}
