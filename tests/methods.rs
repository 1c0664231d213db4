//! Methods against PyTorch (fixtures/make_methods.py), against each other where one is a special case, and their latents in the
//! experiments of SWITCH.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::optim::GradientsParams;
use burn::tensor::Device;
use serde::Deserialize;
use switchyard::corpus::{Corpus, Row};
use switchyard::evaluation::Outcome;
use switchyard::experiments::latent_intervention;
use switchyard::experiments::layer_probe;
use switchyard::grade::{Grader, Grading};
use switchyard::interventions::Steps;
use switchyard::latent::gumbel::Density;
use switchyard::latent::{
    Blocks, Decode, DecodeSettings, Request, Sampling, Source, SwitchIds, Switching, Trace, decode, replay, rules,
    trace::{Position, PositionRole},
};
use switchyard::method::Recipe;
use switchyard::method::{Context, Phase, SupervisedPhase, Work, by_name};
use switchyard::model::checkpoint::HostTensor;
use switchyard::model::gradients::gradients_by_name;
use switchyard::model::heads::HeadSizes;
use switchyard::model::{Decoder, HookSpec, Hooks};
use switchyard::recipe::{Invalid, Optimizer};
use switchyard::study::Study;
use switchyard::text::tagging::TaggedLine;
use switchyard::text::{Sample, Template, Vocabulary};
use switchyard::train::sft::{self, Sft};
use switchyard::train::trainer::Trainer;

use crate::common::one_step;
use crate::common::programs::{done, program, refused};
use crate::parity::reference::{compare_gradients, fixture, read, tiny};

const IDS: SwitchIds = SwitchIds { swi: 93, swi_end: 94, latent: 95 };
/// Ends a response.
const END: u32 = 92;

#[derive(Deserialize)]
struct MethodSample {
    prompt: Vec<u32>,
    steps: Vec<Vec<u32>>,
    answer: Vec<u32>,
}

/// The fixture's samples, as a corpus of four.
fn corpus() -> Corpus {
    let text = std::fs::read_to_string(fixture("methods/samples.json")).expect("the fixture");
    let written: Vec<MethodSample> = serde_json::from_str(&text).expect("samples");
    let sample = |(i, w): (usize, MethodSample)| {
        let mut clauses = vec![];
        for step in &w.steps {
            let from = clauses.last().map_or(0, |c: &std::ops::Range<usize>| c.end);
            clauses.push(from..from + step.len());
        }
        let chain = w.steps.concat();
        Sample {
            id: i.to_string(),
            prompt: w.prompt,
            answer: Some(chain.len()..chain.len() + w.answer.len()),
            response: [chain, w.answer].concat(),
            solution: String::new(),
            offsets: vec![],
            clauses,
            prose: false,
            spans: None,
        }
    };
    Corpus {
        vocabulary: Vocabulary::from_words(["0".to_owned()]).expect("a vocabulary"),
        switch: IDS,
        template: Template::Words.into(),
        end: END,
        stops: vec![END],
        train: written.into_iter().enumerate().map(sample).collect(),
        train_answers: vec![],
        rewarded: vec![],
        test: vec![],
        test_prompts: vec![],
        dropped: 0,
        grading: Grading::by(Grader::Exact),
        is_task: true,
        budgets: false,
        told: vec![],
    }
}

/// Tags the first clause of every sample except the first.
fn tagged(corpus: &Corpus) -> Vec<TaggedLine> {
    let spans = |i: usize, s: &Sample| if i == 0 { vec![] } else { vec![s.clauses[0].clone()] };
    let tagged = |(i, s): (usize, &Sample)| TaggedLine {
        id: s.id.clone(),
        spans: spans(i, s),
        latents: 0,
        tagged_solution: String::new(),
    };
    corpus.train.iter().enumerate().map(tagged).collect()
}

fn recipe(set: &[&str]) -> Recipe {
    let set: Vec<String> = set.iter().map(|s| (*s).to_owned()).collect();
    Recipe::resolve("smoke", &set).expect("a recipe")
}

/// A method's declaration of this phase.
fn declared<'a>(method: &str, phase: &str, context: Context<'a>) -> SupervisedPhase<'a> {
    let phases = by_name(method).expect("a method").phases(context.recipe);
    let found = phases.into_iter().find(|p| p.name == phase).expect("a phase");
    let Work::Supervised(declare) = found.work else { panic!("{phase} learns from no rows") };
    declare(context).expect("a declaration")
}

fn rows(what: &SupervisedPhase, step: usize) -> Vec<Row> {
    (0..what.lengths.len()).map(|i| (what.row)(step, i).expect("a row")).collect()
}

#[test]
fn losses_and_gradients_agree_with_pytorch() {
    let (corpus, mut reference) = (corpus(), read("methods/reference.safetensors"));
    reference.extend(read("methods/latent_sft.safetensors"));
    let recipe = recipe(&[
        "latent_sft.chain_steps=1",
        "latent_sft.steps=1",
        "latent_sft.compression=3",
        "latent_sft.top_k=5",
        "latent_sft.noise=0",
        "latent_sft.kl=0.8",
        "icot.batch=4",
        "icot.remove_per_epoch=1",
        "icot.smoothing=inf",
        "pause.tokens=3",
        "coconut.c=2",
        "coconut.max_stage=3",
        "coconut.stages=[{k=2,steps=1},{k=4,steps=1}]",
        "simcot.weight=0.6",
        "codi.steps=1",
        "codi.latents=3",
        "codi.teacher=0.7",
        "codi.distance=20",
        "colar.steps=1",
        "colar.factors=[3]",
        "colar.slots=0.8",
        "colar.entropy=0.01",
    ]);
    let context = Context { recipe: &recipe, corpus: &corpus, tagged: &[] };
    // Four samples are one batch: iCoT removes one token per step.
    let projection = HeadSizes { projection: Some(24), ..HeadSizes::default() };
    for (name, method, step, heads) in [
        ("icot", "icot", 3, HeadSizes::default()),
        ("pause", "pause", 0, HeadSizes::default()),
        ("coconut", "coconut", 0, HeadSizes::default()),
        ("coconut_rest", "coconut", 1, HeadSizes::default()),
        ("coconut_pause", "coconut_pause", 0, HeadSizes::default()),
        ("simcot", "simcot", 1, HeadSizes { auxiliary: true, ..HeadSizes::default() }),
        ("codi_fixed", "codi_fixed", 0, HeadSizes::default()),
        ("codi", "codi", 0, projection),
        ("colar", "colar", 0, HeadSizes { latent: Some(20), ..HeadSizes::default() }),
        ("chain", "latent_sft", 0, HeadSizes { auxiliary: true, ..HeadSizes::default() }),
        ("superposed", "latent_sft", 1, HeadSizes { auxiliary: true, ..HeadSizes::default() }),
    ] {
        let what = declared(method, method, context);
        let model = tiny("qwen3_tied", &Device::flex().autodiff());
        let own: BTreeMap<String, HostTensor> = model.export().expect("weights").into_iter().collect();
        let model = model.with_heads(heads, |key| {
            if let Some(key) = key.strip_prefix("heads.auxiliary.0.") {
                let HostTensor { shape, data } = own[key].clone();
                return HostTensor::new(shape, data.iter().map(|x| x * 0.5).collect());
            }
            let HostTensor { shape, data } = reference[&format!("{name}.{key}")].clone();
            HostTensor::new(shape, data)
        });
        let model = model.expect("the heads of the fixture");
        let mut rows = rows(&what, step);
        for slot in rows.iter_mut().flat_map(|row| &mut row.slots) {
            assert!(slot.tokens.contains(&slot.label), "{slot:?}");
            // Chosen at random; the fixture trains on the first.
            slot.label = slot.tokens[0];
        }
        let sums = what.objective.sums(&model, &rows, IDS.latent).expect("a loss");
        let value = |key: &str| reference[&format!("{name}.{key}")].data[0];
        let tokens = what.objective.tokens(&rows, IDS.latent);
        assert_eq!(tokens, value("tokens") as usize, "{name}: learnt tokens, by which the sum is divided");
        let loss = sums.loss.div_scalar(tokens as f64);
        let (ours, theirs) = (loss.clone().into_scalar::<f32>(), value("loss"));
        assert!((ours - theirs).abs() <= 1e-5 * theirs, "{name}: loss {ours}, PyTorch {theirs}");
        if !reference.keys().any(|key| key.starts_with(&format!("{name}.grad."))) {
            continue;
        }
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let grads = gradients_by_name(&model, &grads).expect("gradients");
        let bound = if method == "latent_sft" { 1e-5 } else { 1e-4 };
        let worst = compare_gradients(&grads, &reference, name, bound);
        println!("{name}: loss {:.1e}, gradients {worst:.1e}", (ours - theirs).abs() / theirs);
    }
}

/// The weights after three steps, as bits.
fn trained(what: &SupervisedPhase) -> Vec<Vec<u32>> {
    let model = tiny("qwen3_tied", &Device::flex().autodiff());
    let heads = what.objective.heads(model.config().hidden_size);
    let mut trainer = Trainer::new(model.with_new_heads(heads, 1).expect("heads"), &Optimizer::default());
    for step in 0..3 {
        let sft = Sft { objective: what.objective.as_ref(), ..one_step(IDS.latent, 2) };
        sft::step(&mut trainer, &sft, &rows(what, step), 1e-2).expect("a step");
    }
    let weights = trainer.decoder().export().expect("weights");
    weights.into_iter().map(|(_, tensor)| tensor.data.iter().map(|x| x.to_bits()).collect()).collect()
}

#[test]
fn special_cases_equal_the_other_method_bit_for_bit() {
    let corpus = corpus();
    let tagged = tagged(&corpus);
    let cases = [
        // A phase, the settings that reduce it to another method, that method.
        (("coconut", "coconut"), vec!["coconut.stages=[{k=0,steps=3}]"], ("text_cot", "base")),
        (("icot", "icot"), vec!["icot.remove_per_epoch=0", "icot.smoothing=inf"], ("text_cot", "base")),
        (("pause", "pause"), vec!["pause.tokens=0"], ("no_cot", "no_cot")),
        (("coconut_pause", "coconut_pause"), vec!["coconut.stages=[{k=0,steps=3}]"], ("text_cot", "base")),
        (
            ("switch", "sft"),
            vec!["latent.keep_text=1", "latent.untagged=0", "boundary.untagged=0"],
            ("switch", "boundary"),
        ),
    ];
    let phase = |(method, phase): (&str, &str), set: &[&str]| {
        let recipe = recipe(set);
        let what = declared(method, phase, Context { recipe: &recipe, corpus: &corpus, tagged: &tagged });
        (trained(&what), what.reasoning.blocks.clone())
    };
    for (special, set, other) in cases {
        let (ours, blocks) = phase(special, &set);
        let (theirs, _) = phase(other, &set);
        assert!(ours == theirs, "{special:?} with {set:?} is not {other:?}");
        // With other settings the two differ: the comparison can fail.
        let (usual, _) = phase(special, &[]);
        assert!(usual != theirs, "{special:?} is {other:?} whatever its settings");
        if special.0 != "switch" {
            assert_eq!(blocks.after_prompt(), None, "{special:?}: decoded with a block");
        }
    }
}

/// Number of latents of each row, per step of a phase.
fn latents(what: &SupervisedPhase) -> Vec<usize> {
    let count = |row: Row| row.ids.iter().filter(|id| **id == IDS.latent).count();
    (0..what.schedule.steps).flat_map(|step| rows(what, step)).map(count).collect()
}

#[test]
fn mixed_stages_have_their_shares_and_unmixed_rows_are_not_random() {
    let corpus = corpus();
    let at = |set: &[&str]| {
        let stages = "coconut.stages=[{k=3,steps=600}]";
        let recipe = recipe(&[&[stages, "coconut.max_stage=3", "coconut.c=2", "coconut.smoothing=0"], set].concat());
        let what = declared("coconut", "coconut", Context { recipe: &recipe, corpus: &corpus, tagged: &[] });
        (latents(&what), rows(&what, 0))
    };
    for (mixing, expected) in [("1", [1.0 / 6.0, 2.0 / 6.0, 0.5, 0.0]), ("0.4", [0.4 / 6.0, 0.8 / 6.0, 0.2, 0.6])] {
        let (found, _) = at(&[&format!("coconut.mixing={mixing}")]);
        for (stage, expected) in expected.into_iter().enumerate() {
            let share = found.iter().filter(|n| **n == 2 * stage).count() as f64 / found.len() as f64;
            // Four standard errors of 2,400 draws.
            assert!((share - expected).abs() < 0.041, "mixing {mixing}, stage {stage}: {share}, not {expected}");
        }
    }
    let (off, first) = at(&["coconut.mixing=0"]);
    assert!(off.iter().all(|n| *n == 6) && first == at(&["coconut.mixing=0", "seed=7"]).1);
    assert!(first == at(&[]).1 && first != at(&["coconut.mixing=1"]).1);
}

#[test]
fn controls_of_coconut_differ_only_as_named() {
    let corpus = corpus();
    let stages = "coconut.stages=[{k=1,steps=2},{k=4,steps=3}]";
    let recipe = recipe(&[stages, "coconut.max_stage=3", "coconut.c=2", "coconut.mixing=0.5", "coconut.smoothing=0.2"]);
    let context = Context { recipe: &recipe, corpus: &corpus, tagged: &[] };
    let (coconut, pause) =
        (declared("coconut", "coconut", context), declared("coconut_pause", "coconut_pause", context));
    let bare = declared("coconut_no_thought", "coconut_no_thought", context);
    let last = declared("coconut_no_curriculum", "coconut_no_curriculum", context);
    for step in 0..coconut.schedule.steps {
        let (theirs, bare) = (rows(&coconut, step), rows(&bare, step));
        assert_eq!(rows(&pause, step), theirs, "the same rows: only the inputs differ");
        for (mut row, bare) in theirs.into_iter().zip(bare) {
            row.ids.retain(|id| ![IDS.swi, IDS.latent, IDS.swi_end].contains(id));
            assert_eq!((row.ids.len() - bare.prompt, &row.ids), (bare.ids.len() - bare.prompt, &bare.ids));
        }
    }
    let all_gone = |row: &Row| row.ids[row.prompt..].len() == 3;
    let of_last = (0..last.schedule.steps).flat_map(|step| rows(&last, step)).collect::<Vec<_>>();
    assert!(of_last.len() == 20 && of_last.iter().all(all_gone) && latents(&last).iter().all(|n| *n == 6));
    for same in [&pause, &bare, &last] {
        assert_eq!((same.schedule.steps, same.stream), (coconut.schedule.steps, coconut.stream));
    }
    let blocks = |what: &SupervisedPhase| (what.reasoning.blocks.clone(), what.reasoning.source);
    let (block, fixed) = (Blocks::AfterPrompt { steps: 6 }, Source::FixedEmbedding { token: IDS.latent });
    assert_eq!(blocks(&bare).0, Blocks::Never);
    assert_eq!(blocks(&last), (block.clone(), Source::HiddenState));
    assert_eq!(blocks(&pause), (block, fixed));
    assert!(pause.exports.iter().all(|export| export.reasoning.as_ref().is_some_and(|r| r.source == fixed)));
    // Text is removed stage by stage, and all latents are present.
    let recipe = self::recipe(&[stages, "coconut.max_stage=3", "coconut.c=2", "coconut.all_latents=true"]);
    let whole = declared("coconut", "coconut", Context { recipe: &recipe, ..context });
    assert!(latents(&whole).iter().all(|n| *n == 6) && !all_gone(&rows(&whole, 0)[3]));
}

#[test]
fn thoughts_replace_the_removed_steps() {
    let corpus = corpus();
    let at = |set: &[&str], step: usize| {
        let stages = "coconut.stages=[{k=2,steps=1},{k=4,steps=1}]";
        let recipe = recipe(&[&[stages, "coconut.max_stage=3", "coconut.c=2"], set].concat());
        let what = declared("simcot", "simcot", Context { recipe: &recipe, corpus: &corpus, tagged: &[] });
        rows(&what, step).into_iter().map(|row| row.slots.into_iter().map(|slot| slot.tokens).collect()).collect()
    };
    for (i, sample) in corpus.train.iter().enumerate() {
        let steps: Vec<Vec<u32>> =
            sample.clauses.iter().map(|clause| sample.response[clause.clone()].to_vec()).collect();
        let answer = sample.response[sample.answer.clone().expect("an answer")].to_vec();
        let n = steps.len();
        let padded = |mut said: Vec<Vec<u32>>, thoughts: usize, rest: Vec<u32>| {
            said.resize(thoughts, rest);
            said
        };
        let merged = [&steps[..n.min(2)], &[steps[n.min(2)..].concat()]].concat();
        let merged: Vec<Vec<u32>> = merged.into_iter().filter(|said| !said.is_empty()).collect();
        let found: [Vec<Vec<Vec<u32>>>; 3] = [at(&[], 0), at(&[], 1), at(&["coconut.all_latents=true"], 0)];
        assert_eq!(found[0][i], padded(steps[..n.min(2)].to_vec(), 2, answer.clone()), "sample {i}");
        assert_eq!(found[1][i], padded(merged.clone(), 3, answer.clone()), "sample {i}, all gone");
        assert_eq!(found[2][i], padded(merged, 3, answer), "sample {i}, the third step still written");
    }
}

/// The loss of a method's first batch under a setting, and its gradients by name.
fn graded(method: &str, set: &str) -> (f32, Vec<(String, HostTensor)>) {
    let corpus = corpus();
    let recipe = recipe(&["coconut.c=2", "coconut.max_stage=3", "coconut.stages=[{k=3,steps=1}]", set]);
    let what = declared(method, method, Context { recipe: &recipe, corpus: &corpus, tagged: &[] });
    let auxiliary = HeadSizes { auxiliary: method == "simcot", ..HeadSizes::default() };
    let model = tiny("qwen3_tied", &Device::flex().autodiff());
    let own: BTreeMap<String, HostTensor> = model.export().expect("weights").into_iter().collect();
    let copy = |key: &str| Ok(own[key.trim_start_matches("heads.auxiliary.0.")].clone());
    let model = model.with_heads(auxiliary, copy).expect("heads");
    let loss = what.objective.sums(&model, &rows(&what, 0), IDS.latent).expect("a loss").loss;
    let value = loss.clone().into_scalar::<f32>();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    (value, gradients_by_name(&model, &grads).expect("gradients"))
}

/// Difference of losses and gradients; per parameter as a share of its largest gradient. The second may have more parameters.
fn apart((a, grads): &(f32, Vec<(String, HostTensor)>), (b, others): &(f32, Vec<(String, HostTensor)>)) -> f32 {
    let most = |tensor: &HostTensor| tensor.data.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let one = |(name, x): &(String, HostTensor)| {
        let (_, y) = others.iter().find(|(other, _)| other == name).expect("the same parameters");
        let far = x.data.iter().zip(&y.data).fold(0.0_f32, |far, (x, y)| far.max((x - y).abs()));
        far / most(y).max(1e-12)
    };
    grads.iter().map(one).fold((a - b).abs() / b, f32::max)
}

/// In a causal decoder, the inputs of pauses do not depend on a state.
#[test]
fn pauses_in_one_forward_equal_those_in_many() {
    let one = graded("coconut_pause", "coconut.one_pass=true");
    let same = apart(&one, &graded("coconut_pause", "coconut.one_pass=false"));
    println!("one pass and six: {same:.1e}");
    assert!(same < 1e-5, "one pass and many are off by {same:e}");
    assert!(apart(&one, &graded("coconut", "coconut.one_pass=true")) > 1e-3, "Coconut's own latents are the pauses");
}

/// Not bit for bit: sums over parameters, including the decoder's zeros, round in another order.
#[test]
fn sim_cot_without_its_decoder_is_coconut() {
    let coconut = graded("coconut", "simcot.weight=0");
    let same = apart(&coconut, &graded("simcot", "simcot.weight=0"));
    println!("Coconut and SIM-CoT without weight: {same:.1e}");
    assert!(same < 1e-5, "off by {same:e}");
    assert!(apart(&coconut, &graded("simcot", "simcot.weight=1")) > 1e-3, "the decoder teaches nothing");
}

/// Noise is added only to targets and inputs of the second stage, and depends on step and sample.
#[test]
fn latent_sft_learns_superpositions_with_noise() {
    let corpus = corpus();
    let loss = |noise: &str, step: usize| {
        let recipe = recipe(&["latent_sft.chain_steps=1", "latent_sft.steps=2", "latent_sft.top_k=5", noise]);
        let what = declared("latent_sft", "latent_sft", Context { recipe: &recipe, corpus: &corpus, tagged: &[] });
        assert_eq!((what.resets.as_slice(), what.schedule.steps), ([1].as_slice(), 3));
        let model = tiny("qwen3_tied", &Device::flex().autodiff());
        let model = model.with_new_heads(what.objective.heads(0), 1).expect("an encoder");
        what.objective.sums(&model, &rows(&what, step), IDS.latent).expect("a loss").loss.into_scalar::<f32>()
    };
    let (plain, noisy) = ("latent_sft.noise=0", "latent_sft.noise=1");
    assert_eq!(loss(plain, 0), loss(noisy, 0), "the chain is learnt without noise");
    assert!(loss(plain, 1) == loss(plain, 2) && loss(noisy, 1) == loss(noisy, 1), "the same of the same rows");
    let [none, one, two] = [loss(plain, 1), loss(noisy, 1), loss(noisy, 2)];
    assert!((none - one).abs() > 1e-3 && (one - two).abs() > 1e-3, "without noise {none}, with {one} and {two}");
}

/// A block of mixtures ends where `</swi>` is the most probable token, whatever the sampling settings.
#[test]
fn superpositions_end_with_the_most_probable_token() {
    let model = tiny("qwen3_tied", &Device::flex());
    let (source, blocks) =
        (Source::VocabularyMixture { top_k: 5, top_p: 1.0, temperature: 1.0 }, Blocks::Thinking { limit: 6 });
    let latents = |swi_end: u32, temperature: f64| -> Vec<usize> {
        let sampling = Sampling { temperature, seed: 5, ..Sampling::default() };
        let settings = DecodeSettings { sampling, max_new_tokens: 3, ..DecodeSettings::default() };
        let request = Request::all([vec![3, 14, 15]]);
        let switch = Some(SwitchIds { swi_end, ..IDS });
        let how = Decode { source: &source, controller: &blocks, switch, ..pauses(&model, &settings) };
        let traces = decode(how, &request, 6, &mut Hooks::none()).expect("decoded");
        traces.iter().map(Trace::latent_calls).collect()
    };
    let ends = (0..90).map(|token| (token, latents(token, 0.0)[0])).filter(|(_, n)| (2..6).contains(n));
    let ends: Vec<(u32, usize)> = ends.collect();
    assert!(!ends.is_empty(), "no token is the most probable one after some latents");
    for (token, n) in ends {
        assert_eq!(latents(token, 2.0), [n; 6], "token {token}");
    }
}

/// The method's GRPO settings equal those of its table.
#[test]
fn latent_grpo_follows_its_settings() {
    let asked = |set: &[&str]| {
        let recipe = recipe(set);
        let phases = by_name("latent_grpo").expect("a method").phases(&recipe);
        let Some(Phase { from, work: Work::Grpo(settings), .. }) = phases.last() else { panic!("no GRPO") };
        assert_eq!(*from, Some("latent_sft"));
        settings(&recipe)
    };
    let plain = asked(&[]);
    assert_eq!((plain.invalid, plain.first, plain.density), (Invalid::Mask, true, Density::OneSided));
    assert_eq!((plain.gumbel, plain.top_p, plain.beta, plain.own_rates.len()), (1.0, 0.95, 0.0, 1));
    let other = asked(&[
        "latent_grpo.invalid=exclude",
        "latent_grpo.first=false",
        "latent_grpo.freeze_embeddings=false",
        "latent_grpo.gumbel=0.5",
    ]);
    assert_eq!((other.invalid, other.first, other.gumbel), (Invalid::Exclude, false, 0.5));
    assert!(other.own_rates.is_empty());
}

#[test]
fn coconut_and_icot_reset_the_optimiser_at_each_stage() {
    let corpus = corpus();
    let stages = "coconut.stages=[{k=1,steps=4},{k=2,steps=5}]";
    let set = [stages, "coconut.batch=2", "icot.batch=4", "icot.remove_per_epoch=0.5"];
    let recipe_with = |more: &str| recipe(&[set.as_slice(), &[more]].concat());
    let resets = |method: &str, more: &str| {
        let recipe = recipe_with(more);
        declared(method, method, Context { recipe: &recipe, corpus: &corpus, tagged: &[] }).resets
    };
    // Two batches of two are one epoch of the four samples.
    assert_eq!(resets("coconut", "coconut.reset=epoch"), [2, 4, 6, 8]);
    assert_eq!(resets("coconut", "coconut.reset=stage"), [4]);
    assert!(resets("coconut", "coconut.reset=never").is_empty() && resets("icot", "icot.reset=false").is_empty());
    let recipe = recipe_with("coconut.reset=epoch");
    let context = Context { recipe: &recipe, corpus: &corpus, tagged: &[] };
    let coconut = declared("coconut", "coconut", context);
    assert_eq!(coconut.schedule.steps, 9);
    // Their learning rates are constant; ours may decay after the text is removed.
    let last = |method: &str, more: &str| {
        let recipe = recipe_with(more);
        let what = declared(method, method, Context { recipe: &recipe, corpus: &corpus, tagged: &[] });
        what.schedule.at(what.schedule.steps - 1) / what.schedule.peak
    };
    for method in ["coconut", "icot", "colar"] {
        assert_eq!(last(method, "seed=0"), 1.0, "{method}");
        assert!(last(method, &format!("{method}.cosine=true")) < 0.5, "{method}");
    }
    // The checkpoint of a stage decodes as the stage was trained.
    let blocks: Vec<_> =
        coconut.exports.iter().map(|e| (e.after, e.reasoning.as_ref().map(|r| r.blocks.clone()))).collect();
    assert_eq!(blocks, [(4, Some(Blocks::AfterPrompt { steps: 2 }))]);
    assert_eq!(coconut.reasoning.blocks, Blocks::AfterPrompt { steps: 4 });
    // One token every second step, until the longest chain (11 tokens) is removed.
    assert_eq!(declared("icot", "icot", context).resets, (1..12).map(|n| 2 * n).collect::<Vec<_>>());
}

#[test]
fn stages_may_compress_the_same_text_into_fewer_latents() {
    let corpus = corpus();
    let tagged = tagged(&corpus);
    let recipe = recipe(&[
        "latent.stages=[{k=2,steps=1},{k=5,steps=2},{k=5,steps=1,c=0.4},{k=5,steps=1,c=0.2}]",
        "latent.smoothing=0",
        "latent.keep_text=0",
        "latent.untagged=0",
        "grpo.from_step=0",
    ]);
    let what = declared("switch", "sft", Context { recipe: &recipe, corpus: &corpus, tagged: &tagged });
    let clause = |i: usize| corpus.train[i].clauses[0].len();
    let latents = |tokens: usize, c: f64| (c * tokens as f64).ceil() as usize;
    for (step, k, c) in [(0, 2, 1.0), (1, 5, 1.0), (3, 5, 0.4), (4, 5, 0.2)] {
        let found: Vec<usize> =
            rows(&what, step).iter().map(|row| row.ids.iter().filter(|id| **id == IDS.latent).count()).collect();
        let expected: Vec<usize> = (0..4).map(|i| if i == 0 { 0 } else { latents(clause(i).min(k), c) }).collect();
        assert_eq!(found, expected, "step {step}");
    }
    // Each stage's checkpoint records its trained block lengths.
    let dwell = |c: f64, k: usize| {
        let mut lengths: Vec<usize> = (1..4).map(|i| latents(clause(i).min(k), c)).collect();
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    };
    let kept: Vec<_> =
        what.exports.iter().map(|e| (e.name.as_str(), e.after, e.reasoning.clone().unwrap().trained_dwell)).collect();
    assert_eq!(
        kept,
        [("stage-2", 1, dwell(1.0, 2)), ("stage-5", 3, dwell(1.0, 5)), ("stage-5-c0.4", 4, dwell(0.4, 5))]
    );
    assert_eq!((what.reasoning.trained_dwell.clone(), dwell(1.0, 5) == vec![1]), (dwell(0.2, 5), false));
}

/// Rows of a random model with three pauses after the prompt.
fn paused(model: &Decoder, switching: Switching, temperature: f64) -> Vec<Trace> {
    let settings = settings(switching, temperature);
    let requests = Request::all((1..4).map(|i| vec![3, i, 7]));
    decode(pauses(model, &settings), &requests, 2, &mut Hooks::none()).expect("decodes")
}

fn settings(switching: Switching, temperature: f64) -> DecodeSettings {
    let mut settings = DecodeSettings { max_new_tokens: 6, stop: vec![END], switching, ..DecodeSettings::default() };
    settings.sampling.temperature = temperature;
    settings
}

fn pauses<'a>(model: &'a Decoder, settings: &'a DecodeSettings) -> Decode<'a> {
    Decode {
        model,
        source: &Source::FixedEmbedding { token: IDS.latent },
        controller: &Blocks::Pause { steps: 3 },
        switch: Some(IDS),
        settings,
        cancel: None,
        ahead: None,
    }
}

#[test]
fn pauses_are_between_prompt_and_text_without_markers() {
    let model = tiny("qwen3_tied", &Device::flex());
    for switching in [Switching::Free, Switching::Forced] {
        for trace in paused(&model, switching, 0.0) {
            let kinds: Vec<PositionRole> = trace.positions.iter().map(|p| p.kind).collect();
            assert_eq!(
                kinds[..4],
                [PositionRole::Latent, PositionRole::Latent, PositionRole::Latent, PositionRole::Text],
                "{switching:?}"
            );
            assert!(kinds[3..].iter().all(|k| *k == PositionRole::Text), "{switching:?}: {kinds:?}");
            assert_eq!((trace.latent_calls(), trace.blocks().len(), trace.switched()), (3, 1, true));
            // By definition a pause is a token with its own embedding.
            let ids: Vec<u32> = [trace.prompt.clone(), vec![IDS.latent; 3]].concat();
            let lengths = switchyard::model::Span::prompts(&[ids.len()], false);
            let embedded = model.embed(std::slice::from_ref(&ids)).expect("ids in the table");
            let hidden = model.hidden(embedded, &lengths, &mut model.cache(1), &mut Hooks::none()).expect("a pass");
            let logits = model.unembed(hidden.narrow(1, ids.len() - 1, 1)).try_into_vec_as::<f32>().expect("logits");
            let text = (0..IDS.swi).max_by(|a, b| logits[*a as usize].total_cmp(&logits[*b as usize]));
            assert_eq!(Some(trace.positions[3].token), text);
        }
    }
    for switching in [Switching::Suppressed, Switching::Empty] {
        let traces = paused(&model, switching, 0.0);
        assert!(traces.iter().all(|t| !t.switched() && t.visible_tokens() > 0), "{switching:?}");
    }
    // Replays of sampled rows have the sampling log-probabilities.
    let traces = paused(&model, Switching::Free, 0.9);
    let settings = settings(Switching::Free, 0.9);
    let replayed = replay::logprobs(pauses(&model, &settings), &traces).expect("a replay");
    let mut compared = 0;
    for (trace, logprobs) in traces.iter().zip(replayed) {
        for (position, logprob) in trace.positions.iter().zip(logprobs) {
            assert_eq!(position.logprob.is_some(), logprob.is_some(), "{:?}", position.kind);
            if let (Some(a), Some(b)) = (position.logprob, logprob) {
                assert!((a - b).abs() < 1e-4, "drawn with {a}, replayed with {b}");
                compared += 1;
            }
        }
    }
    assert!(compared > 6, "only {compared} log-probabilities");
}

#[test]
fn the_count_of_forward_passes_is_exact() {
    let model = tiny("qwen3_tied", &Device::flex());
    let rules =
        [Blocks::Never, Blocks::Pause { steps: 3 }, Blocks::AfterPrompt { steps: 2 }, Blocks::Thinking { limit: 4 }];
    // One row ends at its budget, one at a stop token.
    let first = |trace: &Trace| trace.positions.iter().find(|p| p.kind == PositionRole::Text).map(|p| p.token);
    for rule in rules {
        let mut stop = END;
        for _ in 0..2 {
            let settings = DecodeSettings { stop: vec![stop], ..settings(Switching::Free, 0.0) };
            let calls = Cell::new(0);
            let mut hooks = Hooks::none();
            let every: HookSpec = "boundary.hook_logits".parse().expect("a hook");
            let counted = hooks.observe(&every, model.layers.len(), |_, _| {
                calls.set(calls.get() + 1);
                Ok(())
            });
            counted.expect("a hook");
            let how = Decode { controller: &rule, ..pauses(&model, &settings) };
            let traces = decode(how, &Request::all([vec![3, 1, 7]]), 1, &mut hooks).expect("decodes");
            let trace = &traces[0];
            let outcome = Outcome {
                problem: 0,
                level: None,
                subject: None,
                correct: false,
                switched: trace.switched(),
                visible_tokens: trace.visible_tokens(),
                latent_calls: trace.latent_calls(),
                truncated: trace.truncated(),
            };
            assert_eq!(outcome.forward_passes(), calls.get(), "{rule:?}, stop {stop}");
            stop = first(trace).expect("text");
        }
    }
}

#[derive(Deserialize)]
struct Fed {
    prompt: Vec<u32>,
    end: u32,
    certain: f64,
    fed_themselves: Vec<u32>,
    swireasoning: Vec<Option<u32>>,
    symbols: Vec<Option<u32>>,
    soft_thinking: Vec<Option<u32>>,
}

#[test]
fn training_free_rules_have_pytorchs_inputs() {
    let text = std::fs::read_to_string(fixture("methods/decodes.json")).expect("the fixture");
    let cases: Vec<Fed> = serde_json::from_str(&text).expect("decodes");
    let model = tiny("qwen3_tied", &Device::flex());
    let at = |temperature| DecodeSettings { max_new_tokens: 12, ..settings(Switching::Free, temperature) };
    let (settings, wild) = (at(0.0), at(3.0));
    let mut blocks = 0;
    for Fed { prompt, end, certain, fed_themselves, swireasoning, symbols, soft_thinking } in cases {
        let swi = rules::SwiReasoning { window: 2, budget: 3, switches: 0, limit: 4, end, symbols: vec![] };
        let fed = rules::SwiReasoning { budget: 0, switches: 2, symbols: fed_themselves, ..swi.clone() };
        let soft = rules::SoftThinking { certain, patience: 2, temperature: 0.6, limit: 6, end };
        // Thinking ends by the mixture, not by the sampled token.
        let source = mixture(3, 0.2, 0.6);
        let how = Decode { source: &source, controller: &soft, ..pauses(&model, &wild) };
        let request = Request { problem: 1, prompt: prompt.clone(), rollout: 0, limit: None };
        let drawn = &decode(how, &[request], 1, &mut Hooks::none()).expect("decodes")[0];
        let thought = soft_thinking.iter().take_while(|token| token.is_none()).count();
        assert_eq!(drawn.latent_calls(), thought, "{prompt:?}, end {end}");
        let says_end = soft_thinking.get(thought) == Some(&Some(end));
        assert!(!says_end || drawn.positions[thought].token == end, "{prompt:?}, end {end}");
        for (name, source, rule, theirs) in [
            ("swireasoning", mixture(96, 1.0, 1.0), Blocks::SwiReasoning(swi), swireasoning),
            ("symbols", mixture(96, 1.0, 1.0), Blocks::SwiReasoning(fed), symbols),
            ("soft_thinking", source, Blocks::SoftThinking(soft), soft_thinking),
        ] {
            let how = Decode { source: &source, controller: &rule, ..pauses(&model, &settings) };
            let traces = decode(how, &Request::all([prompt.clone()]), 1, &mut Hooks::none()).expect("decodes");
            let fed = |p: &Position| (p.kind == PositionRole::Text).then_some(p.token);
            assert_eq!(
                traces[0].positions.iter().map(fed).collect::<Vec<_>>(),
                theirs,
                "{name}, {prompt:?}, end {end}"
            );
            blocks += traces[0].blocks().len();
            // reasoning.json reads back unchanged.
            let json = serde_json::to_string(&rule).expect("JSON");
            assert_eq!(serde_json::from_str::<Blocks>(&json).expect("a rule"), rule, "{json}");
        }
    }
    assert!(blocks > 40, "only {blocks} blocks");
}

fn mixture(top_k: usize, top_p: f64, temperature: f64) -> Source {
    Source::VocabularyMixture { top_k, top_p, temperature }
}

/// A run of `smoke` with the baselines of SWITCH.
fn smoke(out: &Path) {
    let methods = "coconut,pause,icot,codi,colar,swireasoning,soft_thinking";
    let set = ["--set", "base.annotator_accuracy=0", "--set", "evaluation.problems=120", "--threads", "2"];
    // Nearly every word of this task is a digit, a letter or an operator.
    let set = [set.as_slice(), &["--set", "swireasoning.symbols=false"]].concat();
    done(program("train").args(["--preset", "smoke", "--method", methods, "--out"]).arg(out).args(set));
}

/// Target names of the layer probes.
fn probed(study: &Study) -> BTreeSet<String> {
    let quick = layer_probe::Config { untrained: false, ..layer_probe::Config::default() };
    let (rows, _) = layer_probe::probe(study, &quick).expect("probes");
    rows.into_iter().map(|row| row.target).collect()
}

#[test]
fn experiments_run_on_the_latents_of_every_method() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    smoke(temp.path());
    let summary = std::fs::read_to_string(temp.path().join("summary.md")).expect("a summary");
    println!("{summary}");
    for (phase, latents) in [("coconut", 4), ("pause", 3), ("codi", 3)] {
        let study = Study::open(temp.path(), phase, None, 0).expect("a checkpoint");
        let (scores, traces) = study.decoded().expect("decodes");
        assert_eq!((scores.switch_rate.value, scores.latent_calls), (1.0, f64::from(latents)), "{phase}");
        assert!(traces.iter().all(|t| t.blocks().len() == 1), "{phase}");
        // No `<swi>` was sampled: a forced one has no log-probability.
        let swi = |t: &Trace| {
            t.positions.iter().filter(|p| p.kind == PositionRole::Swi).map(|p| p.logprob).collect::<Vec<_>>()
        };
        let expected = if phase == "pause" { vec![] } else { vec![None] };
        assert!(traces.iter().all(|t| swi(t) == expected), "{phase}");
        let modes = ["zero", "random_norm", "resample", "mean", "skip", "self_patch", "known_value"];
        let config = latent_intervention::Config {
            modes: modes.map(str::to_owned).to_vec(),
            steps: vec![Steps::All],
            draws: 2,
            ..latent_intervention::Config::default()
        };
        let done = latent_intervention::rows(&study, &config);
        if phase == "pause" {
            // Every pause has the same embedding: another problem's has no effect, and the experiment reports that.
            let said = format!("{:#}", done.expect_err("an error"));
            assert!(said.contains("changed nothing"), "{said}");
        } else {
            let rows = done.expect("the experiment").rows;
            let names: Vec<&str> = rows.iter().map(|r| r.mode.as_str()).collect();
            assert!(modes.iter().all(|m| names.contains(m)), "{names:?}");
        }
        let targets = probed(&study);
        assert!(targets.iter().any(|t| t == &format!("value:s1@{latents}")), "{phase}: {targets:?}");
        assert!(targets.iter().all(|t| t.starts_with("value:s")), "{phase}: {targets:?}");
    }
    for phase in ["swireasoning", "soft_thinking", "colar"] {
        let study = Study::open(temp.path(), phase, None, 0).expect("a checkpoint");
        let config = latent_intervention::Config {
            modes: ["zero", "resample", "skip", "self_patch"].map(str::to_owned).to_vec(),
            ..latent_intervention::Config::default()
        };
        let rows = latent_intervention::rows(&study, &config).expect("the experiment").rows;
        assert!(rows.iter().any(|r| r.mode == "skip") && rows.iter().any(|r| r.mode == "zero"), "{phase}");
        if phase == "colar" {
            // The rule's limit (8) bounds a block, not the cap for blocks that the model closes (5).
            let beyond = |step| {
                let config = latent_intervention::Config { steps: vec![Steps::Only(step)], ..config.clone() };
                let done = latent_intervention::rows(&study, &config);
                done.is_err_and(|why| format!("{why:#}").contains("does not exist"))
            };
            assert!(!beyond(5) && beyond(8));
            // As many steps as the model ran, and no switch to probe.
            let targets = probed(&study);
            assert!(targets.contains("value:s1@1") && targets.iter().all(|t| t.starts_with("value:s")), "{targets:?}");
            let longest = study.decoded().expect("decodes").1.iter().map(|t| t.latent_calls()).max().expect("a block");
            assert!(
                targets
                    .iter()
                    .all(|t| t.rsplit_once('@').expect("a step").1.parse::<usize>().expect("a number") <= longest)
            );
        }
    }
    // Inapplicable experiments are skipped; naming one is an error.
    let probe = |only: &[&str]| {
        let mut command = program("probe");
        command.arg(temp.path()).args(["--phase", "coconut", "--problems", "40"]).args(only).arg("--out");
        command.arg(temp.path().join("rows"));
        command
    };
    refused(&mut probe(&["--only", "teacher_forced"]), &["chooses neither where to switch"]);
    let (_, said) = done(&mut probe(&[]));
    assert!(said.contains("teacher_forced-coconut: left out"), "{said}");
}
