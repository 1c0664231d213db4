//! A small version of the paper's released adapter and decoding rule (`fixtures/make_released.py`).

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde::Deserialize;
use switchyard::latent::trace::PositionRole;
use switchyard::latent::{Blocks, DecodeSettings, Exit, LearntRule, Reasoning, Request, Trace, decode};
use switchyard::loading::{Checkpoint, Loaded};
use switchyard::machine::Compute;
use switchyard::method::Recipe;
use switchyard::model::checkpoint::HEAD;
use switchyard::model::checkpoint::peft::{AdapterConfig, Apply};
use switchyard::model::gradients::gradients_by_name;
use switchyard::model::{Decoder, Hooks};
use switchyard::recipe::Grpo;
use switchyard::text::{Prompts, Template, Vocabulary};
use switchyard::train::grpo::gradients;
use switchyard::train::rollouts::{Behaviour, Rollout};

use crate::common::programs::{copy, done, program, refused, text};
use crate::common::real_data;
use crate::parity::reference::{read, relative, values};

const BASE: &str = "fixtures/released/base";
const ADAPTER: &str = "fixtures/released/adapter";

fn open(apply: Apply) -> Checkpoint {
    Checkpoint::open(BASE, Some(Path::new(ADAPTER)), apply).expect("the released layout opens")
}

fn loaded(device: &Device) -> Loaded {
    open(Apply::Merged).load(device).expect("it loads")
}

#[test]
fn logits_over_the_base_agree_with_peft() {
    let references = read("released/reference.safetensors");
    for (apply, dtype) in
        [(Apply::Merged, Compute::F32), (Apply::Merged, Compute::Stored), (Apply::ReplacedOnly, Compute::F32)]
    {
        let model = open(apply).load_as(dtype, &Device::flex()).expect("loads").model;
        for row in 0..2 {
            let of = |what: &str| references[&format!("row{row}.{what}")].data.as_slice();
            let ids = of("ids").iter().map(|id| *id as u32).collect::<Vec<_>>();
            let logits = model.logits(&[ids], &mut Hooks::none()).expect("a forward");
            let off = relative(&values(&logits), of("logits"), "logits");
            println!("{apply:?} {dtype:?} row {row}: {off:.1e}");
            assert!(off <= 1e-5, "{apply:?} {dtype:?} row {row}: {off:e}");
        }
    }
}

/// One decode of a PyTorch loop.
#[derive(Deserialize)]
struct Decoded {
    question: String,
    prompt: Vec<u32>,
    limit: usize,
    visible: Vec<u32>,
    /// Visible tokens before the block (including `<swi>`), latent steps, whether it exits by argmax.
    blocks: Vec<(usize, usize, bool)>,
}

fn decoded() -> Vec<Decoded> {
    let text = std::fs::read_to_string("fixtures/released/decodes.json").expect("a fixture");
    serde_json::from_str(&text).expect("decodes")
}

fn trace_of(model: &Loaded, rule: LearntRule, of: &[Decoded]) -> Vec<Trace> {
    let reasoning = Reasoning { blocks: Blocks::Learnt(rule), ..Reasoning::released() };
    let settings = DecodeSettings {
        k_min: reasoning.k_min,
        k_cap: reasoning.k_cap,
        max_new_tokens: 24,
        stop: model.stop.clone(),
        ..DecodeSettings::default()
    };
    let request = |(problem, d): (usize, &Decoded)| Request {
        problem,
        prompt: d.prompt.clone(),
        rollout: 0,
        limit: Some(d.limit),
    };
    let requests: Vec<Request> = of.iter().enumerate().map(request).collect();
    let with = Loaded { reasoning, ..model.clone() };
    decode(with.decode(&settings), &requests, 1, &mut Hooks::none()).expect("decodes")
}

#[test]
fn two_hundred_decodes_agree_with_a_loop_in_pytorch() {
    let (model, all) = (loaded(&Device::flex()), decoded());
    assert_eq!((all.len(), &model.reasoning), (200, &Reasoning::released()), "the layout names the rule");
    let prompts = Prompts::new(Template::ChatBoxed, model.vocabulary.as_ref().expect("text")).expect("a template");
    let (mut at_cap, mut others) = (0, 0);
    for (decoded, trace) in all.iter().zip(trace_of(&model, LearntRule::RELEASED, &all)) {
        let vocabulary = model.vocabulary.as_ref().expect("text");
        let prompt = prompts.encode_prompt(vocabulary, &decoded.question).expect("a prompt");
        assert_eq!(prompt, decoded.prompt, "{}", decoded.question);
        assert_eq!(trace.visible(), decoded.visible, "{}", decoded.question);
        let ours: Vec<_> = trace.blocks().iter().map(|b| (b.after + 1, b.p_exit.len(), !b.forced)).collect();
        // The last token may be a `<swi>` whose block exceeds the budget.
        let ours: Vec<_> = ours.into_iter().filter(|block| block.1 > 0).collect();
        assert_eq!(ours, decoded.blocks, "{}", decoded.question);
        at_cap += decoded.blocks.iter().filter(|block| !block.2).count();
        others += decoded.blocks.iter().filter(|block| block.2 && block.1 > 4).count();
    }
    let ids = model.switch.expect("switch tokens");
    let latents = all.iter().flat_map(|d| &d.visible).filter(|&&token| token == ids.latent).count();
    println!(
        "{at_cap} blocks reach the cap, {others} end after more than four steps, {latents} times <latent> is text"
    );
    assert!(at_cap >= 10 && others >= 10 && latents > 0);
    // The rule of the paper's text gives other tokens: the settings have an effect.
    let papers = trace_of(&model, LearntRule::default(), &all[..20]);
    assert!(papers.iter().zip(&all).any(|(trace, d)| trace.visible() != d.visible));
}

#[test]
fn an_exit_outside_the_loss_has_no_gradient() {
    let device = Device::flex().autodiff();
    let (model, all) = (loaded(&Device::flex()), decoded());
    let ids = model.switch.expect("switch tokens");
    let head_row = |exit_in_loss: bool| {
        // Masked in text, `</swi>` gets a gradient only from exits.
        let rule = LearntRule { exit: Exit::Argmax, exit_in_loss, mask_markers: true };
        let traces = trace_of(&model, rule, &all[..12]);
        let natural = traces.iter().flat_map(|t| &t.positions).filter(|p| p.kind == PositionRole::SwiEndSampled);
        assert!(natural.clone().count() > 3 && natural.clone().all(|p| p.logprob.is_some() == exit_in_loss));
        let rollouts: Vec<Rollout> = traces.into_iter().map(|trace| Rollout::new(trace, 1.0)).collect();
        let settings = DecodeSettings { k_cap: 256, max_new_tokens: 24, ..DecodeSettings::default() };
        let reasoning = Reasoning { blocks: Blocks::Learnt(rule), ..Reasoning::released() };
        let policy = Behaviour { reasoning: &reasoning, switch: ids, settings: &settings, compute: Compute::F32 };
        let trained: Decoder = loaded(&device).model;
        let (grads, parts) = gradients(&trained, policy, &rollouts, &Grpo::default(), 1).expect("gradients");
        let sampled = rollouts.iter().flat_map(|r| &r.trace.positions).filter(|p| p.logprob.is_some());
        assert_eq!(parts.tokens, sampled.count());
        assert!(parts.max_drift < 1e-3, "replayed as it was drawn: {parts:?}");
        let grads = gradients_by_name(&trained, &grads).expect("gradients");
        let (_, head) = grads.into_iter().find(|(name, _)| name == HEAD).expect("a head");
        let of = |token: u32| head.data[token as usize * 16..][..16].to_vec();
        assert!(of(ids.swi).iter().any(|x| *x != 0.0));
        of(ids.swi_end)
    };
    assert!(head_row(false).iter().all(|x| *x == 0.0), "no gradient at </swi>");
    assert!(head_row(true).iter().any(|x| *x != 0.0));
}

/// The fixture's questions.
fn problems(folder: &Path) -> PathBuf {
    let line =
        |d: &Decoded| serde_json::json!({ "problem": d.question, "answer": "3", "solution": "It is $\\boxed{3}$." });
    let file = folder.join("math500.jsonl");
    let lines: Vec<String> = decoded().iter().take(30).map(|d| line(d).to_string()).collect();
    std::fs::write(&file, lines.join("\n")).expect("a file");
    file
}

#[test]
fn every_program_opens_it_over_the_base_and_prints_the_rule() {
    let temp = tempfile::tempdir().expect("a folder");
    let (data, out) = (problems(temp.path()), temp.path().join("out"));
    let rule = "blocks end by argmax and are cut at 256 steps";
    for named in
        [&[BASE, "--adapter", ADAPTER][..], &["--adapter", ADAPTER, "--base", BASE], &[ADAPTER, "--base", BASE]]
    {
        let mut command = program("probe");
        command.args(named).args(["--data", text(&data), "--problems", "4", "--only", "accuracy", "--replace"]);
        let like = temp.path().join("short.toml");
        std::fs::write(&like, "extends = \"switch-released\"\n[evaluation]\nmax_new_tokens = 24\n").expect("a recipe");
        let (_, said) = done(command.args(["--like", text(&like), "--out", text(&out)]));
        assert!(said.contains(rule), "{named:?}: {said}");
    }
    let mut command = program("probe");
    refused(command.args([ADAPTER, "--data", text(&data)]), &["/home/authors/models/Qwen3", "--adapter"]);
    let mut command = program("train");
    refused(command.args(["--from", ADAPTER, "--preset", "smoke"]), &["name the model with --base"]);

    let run = temp.path().join("run");
    let mut command = program("train");
    command.args(["--preset", "switch-released", "--from", ADAPTER, "--base", BASE, "--data", text(&data)]);
    command.args(["--field", "question=problem,solution=solution,answer=answer", "--only", "base,annotate,boundary"]);
    for set in "data.test_path= boundary.epochs=0 boundary.steps=2 lora.rank=4 evaluation.problems=1 \
        evaluation.max_new_tokens=8"
        .split(' ')
    {
        let set = if set == "data.test_path=" { format!("{set}{}", text(&data)) } else { set.to_owned() };
        command.args(["--set", &set]);
    }
    let (_, said) = done(command.args(["--out", text(&run)]));
    assert!(said.contains(rule), "{said}");
    let written = AdapterConfig::read(&run.join("boundary/checkpoint/adapter_config.json")).expect("an adapter");
    let base = std::fs::canonicalize(BASE).expect("a base").display().to_string();
    assert_eq!(written.base_model, Some(base), "one adapter over the base, not over the adapter");
    assert_eq!(Recipe::like(text(&run.join("recipe.toml"))).expect("a recipe").adapter.as_deref(), Some(ADAPTER));
}

#[test]
fn prompts_equal_those_of_the_release() {
    #[derive(Deserialize)]
    struct JournalPrompt {
        unique_id: String,
        prompt_ids: Option<Vec<u32>>,
    }
    let Some(data) = real_data("prompts of the release") else { return };
    let Ok(journal) = std::fs::read_to_string(data.join("../released/journal.jsonl")) else { return };
    let records: Vec<JournalPrompt> =
        journal.lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
    let problems = switchyard::text::read_problems(data.join("math500/test.jsonl")).expect("MATH-500");
    let vocabulary = Vocabulary::load(data.join("qwen3_tokenizer")).expect("a vocabulary");
    let mut seen = 0;
    for template in [Template::Qwen3Boxed, Template::ChatBoxed] {
        if template == Template::ChatBoxed && vocabulary.chat(None).expect("a template").is_none() {
            continue;
        }
        let prompts = Prompts::new(template, &vocabulary).expect("a form");
        for record in &records {
            let Some(theirs) = &record.prompt_ids else { continue };
            let problem = problems.iter().find(|p| p.id == record.unique_id).expect("a problem of MATH-500");
            let ours = prompts.encode_prompt(&vocabulary, &problem.question).expect("a prompt");
            assert_eq!(ours, *theirs, "{} by {template:?}", record.unique_id);
            seen += 1;
        }
    }
    println!("{seen} prompts");
    assert!(seen >= 48);
}

#[test]
fn reasoning_json_sets_the_decoding() {
    let temp = tempfile::tempdir().expect("a folder");
    copy(Path::new(ADAPTER), temp.path());
    let own = serde_json::to_string(&Reasoning::default()).expect("JSON");
    std::fs::write(temp.path().join("reasoning.json"), own).expect("a file");
    let opened = Checkpoint::open(BASE, Some(temp.path()), Apply::Merged).expect("opens");
    assert_eq!((opened.is_released, opened.reasoning), (false, Some(Reasoning::default())));
}
