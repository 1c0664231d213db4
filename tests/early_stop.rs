//! `early_stop` on organisms, on blocks that a rule opens after the prompt, and on the committed micro model.

use switchyard::calibration::known::Built;
use switchyard::experiments::early_stop::{Config, rows, table};
use switchyard::latent::Blocks;
use switchyard::schema::EarlyStopRow;

use crate::common::known::{EXIT_STEP, Purpose, micro, micro_on, of, study};

fn numbers(rows: &[EarlyStopRow]) -> Vec<usize> {
    rows.iter().map(|row| row.k).collect()
}

#[test]
fn answers_need_the_read_latent_and_no_idle_one() {
    for (which, reads) in [(Purpose::Working, true), (Purpose::Inert, false)] {
        let found = rows(&study(which, 60, 0), &Config::default()).expect("rows");
        println!("{which:?}\n{}", table(&found));
        assert_eq!(numbers(&found), (0..=EXIT_STEP).collect::<Vec<_>>());
        let (full, before) = found.split_last().expect("the full run");
        assert_eq!((full.accuracy.value, full.committed.value, full.difference), (1.0, 1.0, None));
        assert!(before.iter().all(|row| row.needs_later() == reads), "{which:?}");
        assert!(before.iter().all(|row| (row.committed.value == 1.0) != reads && row.reversed.value < 0.5));
        assert!(found.iter().all(|row| row.others_answer.value < 0.5), "another problem's answer is not this one's");
        let gold: Vec<f64> = found.iter().map(|row| row.gold_logprob.expect("every response answers").value).collect();
        assert!((gold[0] < gold[EXIT_STEP] - 1.0) == reads, "{which:?}: {gold:?}");
    }
}

/// A model that reads no latents but was never trained on early exits: without a control its losses would be attributed to latents.
#[test]
fn the_cost_of_an_untrained_early_exit_is_not_attributed_to_latents() {
    let built = Built { decide: (1, 0), ..Built::new(Purpose::Surprised) };
    let found = rows(&of(&built, 120, 0), &Config::default()).expect("rows");
    println!("{}", table(&found));
    let (full, before) = found.split_last().expect("the full run");
    assert_eq!((full.accuracy.value, full.resampled), (1.0, None));
    for row in before {
        assert!(row.accuracy.value < 0.5 && row.p_holm.is_some_and(|p| p < 0.01), "{row:?}");
        assert_eq!(row.resampled.map(|accuracy| accuracy.value), Some(1.0), "it reads no latent");
        assert_eq!((row.verdict(), row.needs_later()), ("loses to the cut alone", false));
    }
    let old = EarlyStopRow { resampled: None, ..before[0].clone() };
    assert_eq!((old.verdict(), old.needs_later()), ("loses, no control", false));
}

#[test]
fn blocks_after_the_prompt_are_cut_with_and_without_markers() {
    for blocks in [Blocks::AfterPrompt { steps: 3 }, Blocks::Pause { steps: 3 }, Blocks::Thinking { limit: 3 }] {
        let mut study = micro("sft", 6);
        study.reasoning.blocks = blocks.clone();
        let found = rows(&study, &Config::default()).expect("rows");
        for row in &found {
            assert_eq!((row.of, row.identity.n), (3, 6), "{blocks:?}");
            let kept = row.latent_calls.expect("latents").value;
            assert!(
                kept <= row.k as f64 && (kept == row.k as f64 || blocks == Blocks::Thinking { limit: 3 }),
                "{blocks:?}: {kept}"
            );
        }
        assert_eq!(numbers(&found), [0, 1, 2, 3]);
    }
}

#[test]
fn rows_do_not_depend_on_threads_and_count_existing_latents() {
    let config = Config { k: vec![2, 0] };
    let one = rows(&micro_on(1, "sft", 24), &config).expect("rows");
    assert_eq!(one, rows(&micro_on(3, "sft", 24), &config).expect("rows"));
    assert_eq!(numbers(&one), [0, 2, 5]);
    let wrong = rows(&micro_on(1, "sft", 24), &Config { k: vec![6] }).expect_err("refused").to_string();
    assert!(wrong.contains("no block has 6 latents; the longest has 5"), "{wrong}");
}

#[test]
fn a_single_problem_with_a_block_is_counted() {
    let error = rows(&micro("sft", 1), &Config::default()).expect_err("one problem").to_string();
    assert!(error.contains("1 of 1 problems have a block, two are needed"), "{error}");
}
