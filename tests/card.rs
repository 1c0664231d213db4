//! The card of organisms, of a model without latents, and as a command.

use std::path::Path;

use crate::common::known::{self, Purpose, micro};
use crate::common::programs;
use switchyard::calibration::draw_model;
use switchyard::experiments::card::{Config, rows, table};
use switchyard::latent::Blocks;
use switchyard::schema::{CardAnswer, CardQuestion, CardRow};
use switchyard::study::Study;

fn answers(study: &Study) -> Vec<(CardQuestion, CardAnswer)> {
    let found: Vec<CardRow> = rows(study, &Config::default()).expect("a card");
    println!("{}", table(&found));
    assert_eq!(found.iter().map(|row| row.question).collect::<Vec<_>>(), CardQuestion::ALL);
    found.into_iter().map(|row| (row.question, row.answer)).collect()
}

fn answer(answers: &[(CardQuestion, CardAnswer)], question: CardQuestion) -> CardAnswer {
    answers.iter().find(|(asked, _)| *asked == question).expect("asked").1
}

#[test]
fn latents_that_carry_the_answer_are_used_and_idle_ones_are_not() {
    let working = answers(&known::study(Purpose::Working, 60, 0));
    for question in [CardQuestion::Used, CardQuestion::OneStep, CardQuestion::Specific, CardQuestion::Readable] {
        assert_eq!(answer(&working, question), CardAnswer::Yes, "{question:?}");
    }
    let inert = answers(&known::study(Purpose::Inert, 60, 0));
    assert_ne!(answer(&inert, CardQuestion::Used), CardAnswer::Yes);
    assert_eq!(answer(&inert, CardQuestion::Ordered), CardAnswer::NotAsked);
    assert_eq!(answer(&inert, CardQuestion::Readable), CardAnswer::Yes, "the value is present, and unread");
    let memoriser = draw_model("memoriser", 0, 0).expect("a kind of truth");
    let memoriser = answers(&known::of(&memoriser, 300, 0));
    assert_eq!(answer(&memoriser, CardQuestion::Used), CardAnswer::Yes);
    assert_ne!(answer(&memoriser, CardQuestion::Readable), CardAnswer::Yes, "programs were learnt by heart");
}

#[test]
fn a_model_without_blocks_gets_no_tests() {
    let mut study = micro("sft", 24);
    study.reasoning.blocks = Blocks::Plain;
    let rows = rows(&study, &Config::default()).expect("a card");
    for row in &rows {
        assert!(row.answer == CardAnswer::NotAsked && !row.detail.is_empty() && row.number.is_none(), "{row:?}");
    }
}

#[test]
fn one_command_writes_the_card_and_a_second_run_the_same_bytes() {
    // A checkpoint inside a run brings the run's problems.
    let temp = tempfile::tempdir().expect("a folder");
    let root = temp.path().join("micro/sft/checkpoint");
    programs::copy(Path::new("fixtures/micro"), &temp.path().join("micro"));
    let model_card = "# micro\n<!-- certificate -->\nnone\n<!-- /certificate -->\nend\n";
    std::fs::write(root.join("README.md"), model_card).expect("a model card");
    let card = |out: &str| {
        let args = ["card", &root.display().to_string(), "--problems", "40", "--out", out];
        let (text, _) = programs::done(programs::program("probe").args(args).current_dir(temp.path()));
        assert!(text.contains("Do right answers need the latents' content?"), "{text}");
        let read = |file: &str| std::fs::read(temp.path().join(out).join(file)).expect(file);
        [read("card-sft.parquet"), read("tables/tab-card.md"), read("tables/card-sft.json")]
    };
    let first = card("a");
    let certified = std::fs::read_to_string(root.join("README.md")).expect("a model card");
    assert!(
        certified.contains("- yes: Do right answers need") && certified.ends_with("<!-- /certificate -->\nend\n"),
        "{certified}"
    );
    assert_eq!(first, card("b"));
    let json: serde_json::Value = serde_json::from_slice(&first[2]).expect("JSON");
    let lines = json["lines"].as_array().expect("lines");
    assert_eq!((&json["schema"], lines.len()), (&1.into(), CardQuestion::ALL.len()));
    assert!(lines.iter().all(|line| line["on_known_models"].as_str().is_some_and(|rates| rates.contains("power"))));
    assert!(Path::new(temp.path()).join("index.html").is_file());
}
