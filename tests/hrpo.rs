//! HRPO: a gate mixes hidden states into token embeddings. Against PyTorch (fixtures/make_hrpo.py), and invariants.

use std::cell::RefCell;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use switchyard::latent::hybrid::{Hybrid, MixedInput};
use switchyard::latent::{
    Blocks, Decode, DecodeSettings, Gradient, HiddenState, LatentSource, Request, Sampling, Sequence, Source,
    SwitchIds, Trace, decode, replay, unroll,
};
use switchyard::method::Recipe;
use switchyard::model::checkpoint::HostTensor;
use switchyard::model::gradients::gradients_by_name;
use switchyard::model::heads::HeadSizes;
use switchyard::model::{Decoder, HookSpec, Hooks};
use switchyard::parity::{HYBRID, gated};
use switchyard::recipe::Optimizer;
use switchyard::train::trainer::Trainer;

use crate::parity::reference::{fixtures, read, relative, tiny, values};

const IDS: SwitchIds = SwitchIds { swi: 93, swi_end: 94, latent: 95 };

/// The fixture's first rollout and a shorter one, as known rows.
fn known() -> Vec<Sequence> {
    let text = std::fs::read_to_string(crate::parity::reference::fixture("steps/hrpo.json")).expect("rollouts");
    let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let ids = |of: &serde_json::Value| -> Vec<u32> { serde_json::from_value(of.clone()).expect("ids") };
    let row = |i: usize| {
        let rollout = &file["rollouts"][i];
        let prompt = ids(&rollout["prompt"]);
        let all = [prompt.clone(), ids(&rollout["tokens"])].concat();
        Sequence::new(i, all, prompt.len(), Some(IDS.latent)).expect("a row")
    };
    vec![row(0), row(2), row(5)]
}

/// Inputs and outputs, alone and in a batch of rows with other thinking lengths.
#[test]
fn inputs_and_logits_agree_with_pytorch() {
    let (model, reference) = (gated(&fixtures(), &Device::flex()).expect("a model"), read("steps/hrpo.safetensors"));
    let rows = known();
    for rows in [&rows[..1], &rows[..]] {
        let fed = RefCell::new(vec![]);
        let mut hooks = Hooks::none();
        let spec: HookSpec = "hook_embed".parse().expect("a spec");
        hooks
            .observe(&spec, model.layers.len(), |site, value| {
                // The first row; padding is on the right.
                let (values, steps) = (value.to_vec()?, &site.span.steps[0]);
                let width = values.len() / site.span.rows.len() / steps.len();
                fed.borrow_mut().extend_from_slice(&values[..steps.iter().flatten().count() * width]);
                Ok(())
            })
            .expect("a hook");
        let all = unroll(&model, rows, &Source::Hybrid(HYBRID), Gradient::Through, &mut hooks).expect("unrolled");
        drop(hooks);
        let off = relative(&fed.into_inner(), &reference["inputs"].data, "inputs");
        let places: Vec<(usize, usize)> = (0..rows[0].ids.len()).map(|p| (0, p)).collect();
        let logits = model.unembed(all.hidden_at(&places).expect("states").unsqueeze_dim(0));
        let off = off.max(relative(&values(&logits), &reference["logits"].data, "logits"));
        println!("{} rows: {off:.1e}", rows.len());
        assert!(off <= 1e-5, "{} rows: {off:e}", rows.len());
    }
}

fn settings(temperature: f64) -> DecodeSettings {
    let sampling = Sampling { temperature, seed: 3, ..Sampling::default() };
    DecodeSettings { sampling, max_new_tokens: 14, stop: vec![92], ..DecodeSettings::default() }
}

fn requests() -> Vec<Request> {
    let prompt = |problem: u32| (0..3 + problem % 4).map(|i| (11 * i + 5 * problem) % 90).collect();
    Request::all((0..6).map(prompt))
}

fn how<'a>(model: &'a Decoder, source: &'a dyn LatentSource, settings: &'a DecodeSettings) -> Decode<'a> {
    Decode { model, source, controller: &Blocks::Never, switch: Some(IDS), settings, cancel: None, ahead: None }
}

fn decoded(model: &Decoder, source: &dyn LatentSource, requests: &[Request], temperature: f64) -> Vec<Trace> {
    let settings = settings(temperature);
    decode(how(model, source, &settings), requests, 2, &mut Hooks::none()).expect("decoded")
}

fn logprobs(trace: &Trace) -> Vec<f64> {
    trace.positions.iter().map(|p| p.logprob.expect("drawn")).collect()
}

/// Largest difference between log-probabilities of the same tokens.
fn apart(a: &[Trace], b: &[Trace]) -> f64 {
    let mut worst = 0.0_f64;
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.visible(), b.visible());
        let pairs = logprobs(a).into_iter().zip(logprobs(b));
        worst = pairs.map(|(a, b)| (a - b).abs()).fold(worst, f64::max);
    }
    worst
}

#[test]
fn rollout_equals_replay_in_any_batch() {
    let model = gated(&fixtures(), &Device::flex()).expect("a model");
    let source = Source::Hybrid(HYBRID);
    for temperature in [0.0, 1.0] {
        let together = decoded(&model, &source, &requests(), temperature);
        let alone: Vec<Trace> =
            requests().iter().flat_map(|r| decoded(&model, &source, std::slice::from_ref(r), temperature)).collect();
        let batch = apart(&together, &alone);
        let settings = settings(temperature);
        let again = replay::logprobs(how(&model, &source, &settings), &together).expect("replayed");
        let pairs = together.iter().zip(again).flat_map(|(trace, again)| logprobs(trace).into_iter().zip(again));
        let drift = pairs.map(|(rollout, again)| (rollout - again.expect("drawn")).abs()).fold(0.0, f64::max);
        println!("temperature {temperature}: rollout against replay {drift:.1e}, batch against one row {batch:.1e}");
        assert!(drift <= 1e-5 && batch <= 1e-5, "{drift:e}, {batch:e}");
        // The states matter, and so does the end of thinking.
        let text = replay::logprobs(how(&model, &HiddenState, &settings), &together).expect("replayed");
        let other = |source: &dyn LatentSource| decoded(&model, source, &requests(), temperature);
        assert!(logprobs(&together[0]).iter().zip(&text[0]).any(|(a, b)| (a - b.expect("drawn")).abs() > 1e-3));
        let first = together[0].positions[0].token;
        let never = other(&Source::Hybrid(Hybrid { end: first, ..HYBRID }));
        assert_eq!(never[0].positions[1].entropy, other(&HiddenState)[0].positions[1].entropy, "no state was mixed in");
        assert_ne!(never[0].positions[1].entropy, together[0].positions[1].entropy);
    }
}

/// The fixture's gate with some parameters set to one value.
fn with(set: &[(&str, f32)]) -> Decoder {
    let (plain, reference) = (tiny("qwen3_tied", &Device::flex()), read("steps/hrpo.safetensors"));
    let model = plain.with_heads(HeadSizes { gate: true, ..HeadSizes::default() }, |name| {
        let HostTensor { shape, data } = reference[name.trim_start_matches("heads.")].clone();
        match set.iter().find(|(part, _)| name.ends_with(part)) {
            Some((_, value)) => HostTensor::new(shape, vec![*value; data.len()]),
            None => HostTensor::new(shape, data),
        }
    });
    model.expect("a gate")
}

#[test]
fn a_gate_with_weight_one_decodes_text() {
    for temperature in [0.0, 1.0] {
        let text = decoded(&with(&[]), &HiddenState, &requests(), temperature);
        let hybrid = |set: &[(&str, f32)]| decoded(&with(set), &Source::Hybrid(HYBRID), &requests(), temperature);
        // a = 1 mixes in nothing: the same bits. (Otherwise ε mixes in a ten-thousandth of the state.)
        let closed = [("lambda", 200.0), ("admit.weight", 0.0), ("admit.bias", -200.0)];
        assert_eq!(hybrid(&closed), text);
        let off = apart(&hybrid(&closed[..1]), &text);
        assert!(off > 0.0 && off < 5e-3, "a = 1: off by {off:e}");
        assert!(hybrid(&[]) != text);
    }
}

#[test]
fn a_new_gate_starts_within_its_bounds() {
    let new = |bounds, seed| tiny("qwen3_tied", &Device::flex()).with_new_gate(bounds, seed);
    let lambda = |seed| {
        let model = new([0.9, 0.999], seed).expect("a gate");
        let shares = values(&model.heads.gate.as_ref().expect("a gate").lambda.val());
        shares.into_iter().map(|x| (1.0 + (-f64::from(x)).exp()).powi(-8)).collect::<Vec<_>>()
    };
    let shares = lambda(1);
    assert!(shares.iter().all(|a| (0.9 - 1e-6..=0.999 + 1e-6).contains(a)), "{shares:?}");
    assert!(shares.iter().any(|a| *a < 0.94) && shares.iter().any(|a| *a > 0.96), "{shares:?}");
    assert!(shares == lambda(1) && shares != lambda(2));
    // An existing one is not replaced.
    let model = with(&[]);
    let before = model.export_heads().expect("parameters");
    assert_eq!(model.with_new_gate([0.9, 0.999], 1).expect("a gate").export_heads().expect("parameters"), before);
    for bounds in [[0.0, 0.9], [0.9, 1.0], [0.9, 0.8], [f64::NAN, 0.9]] {
        let said = new(bounds, 1).expect_err("refused").to_string();
        assert!(said.contains("between 0 and 1"), "{said}");
    }
    for set in ["hrpo.r_min=0.0", "hrpo.r_min=0.9995", "hrpo.r_max=1.0"] {
        let said = format!("{:#}", Recipe::resolve("smoke", &[set.to_owned()]).expect_err("refused"));
        assert!(said.contains("hrpo.r_m"), "{set}: {said}");
    }
    let both = ["hrpo.loss=authors", "grpo.loss_mean=question"].map(str::to_owned);
    let said = format!("{:#}", Recipe::resolve("smoke", &both).expect_err("refused"));
    assert!(said.contains("grpo.loss_mean"), "{said}");
}

#[test]
fn a_checkpoint_without_gate_or_state_is_an_error() {
    let (plain, source) = (tiny("qwen3_tied", &Device::flex()), Source::Hybrid(HYBRID));
    let settings = settings(0.0);
    let refused = |model: &Decoder| decode(how(model, &source, &settings), &requests(), 1, &mut Hooks::none());
    let said = format!("{:#}", refused(&plain).expect_err("no gate"));
    assert!(said.contains("gate") && said.contains("heads.safetensors"), "{said}");
    // A rollout without one state, and one with another width.
    let model = with(&[]);
    let traces = decoded(&model, &source, &requests()[..1], 0.0);
    let broken = |at: usize, state: Option<MixedInput>| {
        let mut traces = traces.clone();
        let width = model.config().hidden_size;
        for position in traces.iter_mut().flat_map(|trace| &mut trace.positions) {
            position.mixed = Some(MixedInput { state: vec![0.0; width], token_share: 1.0 });
        }
        traces[1].positions[at].mixed = state;
        format!("{:#}", replay::logprobs(how(&model, &source, &settings), &traces).expect_err("refused"))
    };
    let prompt = traces[1].prompt.len();
    let said = broken(1, None);
    assert!(said.contains(&format!("row 1: no state was mixed in at position {}", prompt + 1)), "{said}");
    let said = broken(1, Some(MixedInput { state: vec![0.0; 3], token_share: 1.0 }));
    assert!(said.contains("a state of width 3"), "{said}");
}

#[test]
fn parts_of_the_gate_have_separate_learning_rates() {
    let device = Device::flex().autodiff();
    let model = gated(&fixtures(), &device).expect("a model");
    let mut trainer = Trainer::new(model, &Optimizer { weight_decay: 0.0, ..Optimizer::default() });
    trainer.own_rates = vec![("heads.gate.keep.", 1e-2), ("heads.gate.lambda", 0.1)];
    let before: Vec<(String, HostTensor)> = all_of(&trainer);
    let loss = {
        let rows = known();
        let all = unroll(&trainer.model, &rows, &Source::Hybrid(HYBRID), Gradient::Through, &mut Hooks::none());
        let hidden = all.expect("unrolled").hidden().expect("states");
        (hidden.clone() * hidden.square()).mean()
    };
    let grads = GradientsParams::from_grads(loss.backward(), &trainer.model);
    let known = gradients_by_name(&trainer.model, &grads).expect("gradients");
    assert_eq!(known.iter().filter(|(name, _)| name.starts_with("heads.gate.")).count(), 5, "all of it is learnt");
    trainer.apply(grads, 1.0, 1e-3).expect("a step");
    for ((name, old), (_, new)) in before.iter().zip(all_of(&trainer)) {
        // AdamW's first step has the size of the learning rate for every nonzero gradient.
        let step = old.data.iter().zip(&new.data).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let rate = match name.as_str() {
            _ if name.starts_with("heads.gate.keep.") => 1e-2,
            "heads.gate.lambda" => 0.1,
            _ => 1e-3,
        };
        assert!((step / rate - 1.0).abs() < 0.02, "{name}: {step}, its rate {rate}");
    }
}

fn all_of(trainer: &Trainer) -> Vec<(String, HostTensor)> {
    let model = trainer.model.valid();
    [model.export().expect("weights"), model.export_heads().expect("heads")].concat()
}
