//! The recurrence against its definition, and invariants of the decoder.

use crate::common::{naive, relative, tiny, tiny_config, tiny_on, values};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor};
use proptest::prelude::*;
use switchyard::latent::{
    Blocks, Decode, DecodeSettings, End, Gradient, HiddenState, LatentSource, Request, Sampling, Sequence, Source,
    SwitchIds, Switching, Trace, decode, replay, trace::PositionRole, unroll,
};
use switchyard::model::checkpoint::EMBED;
use switchyard::model::config::{Family, ModelConfig};
use switchyard::model::gradients::gradients_by_name;
use switchyard::model::{Decoder, Hooks, Span};
use switchyard::recipe::Facts;

const IDS: SwitchIds = SwitchIds { swi: 21, swi_end: 22, latent: 23 };

/// Prompt, then text and blocks of latents in any order.
fn row() -> impl Strategy<Value = Vec<u32>> {
    let text = || prop::collection::vec(0_u32..21, 1..6);
    let block = (0_usize..16).prop_map(|n| [vec![IDS.swi], vec![IDS.latent; n], vec![IDS.swi_end]].concat());
    (text(), prop::collection::vec((block, prop::collection::vec(0_u32..21, 0..4)), 0..5))
        .prop_map(|(prompt, blocks)| blocks.into_iter().fold(prompt, |row, (b, t)| [row, b, t].concat()))
}

fn sequences(rows: &[Vec<u32>]) -> Vec<Sequence> {
    let make = |(i, ids): (usize, &Vec<u32>)| Sequence::new(i, ids.clone(), 1, Some(IDS.latent)).expect("a row");
    rows.iter().enumerate().map(make).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..ProptestConfig::default()
    })]

    #[test]
    fn unroll_equals_the_definition(rows in prop::collection::vec(row(), 1..8), seed in 0_u64..4) {
        // In f64 the two are the same to rounding; in f32 a chain of up to 60 recurrent steps amplifies each rounding.
        for (dtype, bound) in [(FloatDType::F64, 1e-6), (FloatDType::F32, 5e-5)] {
        let model = tiny(seed).cast(dtype);
        let sequences = sequences(&rows);
        for gradient in [Gradient::Through, Gradient::Frozen, Gradient::Segmented] {
            let all = unroll(&model, &sequences, &HiddenState, gradient, &mut Hooks::none()).expect("unroll");
            for (b, ids) in rows.iter().enumerate() {
                let reference = naive(&model, ids, IDS.latent).concat();
                let places: Vec<_> = (0..ids.len()).map(|p| (b, p)).collect();
                let ours = values(&all.hidden_at(&places).expect("places exist"));
                let off = relative(&ours, &reference);
                prop_assert!(off <= bound, "row {b} under {gradient:?} in {dtype:?}: off by {off:e}");
            }
        }
        }
    }
}

#[test]
fn a_batch_costs_one_call_plus_one_per_latent_of_its_longest_row() {
    let block = |n: usize| [vec![IDS.swi], vec![IDS.latent; n], vec![IDS.swi_end, 5]].concat();
    // 3 blocks of 4 latents, 1 of 7, none: 12 is the most.
    let rows = [[vec![1, 2], block(4), block(4), block(4)].concat(), [vec![3], block(7)].concat(), vec![4, 5, 6]];
    let model = tiny(0);
    let calls = std::cell::Cell::new(0);
    let mut hooks = Hooks::none();
    let count = |_: &switchyard::model::hooks::Site, _: &switchyard::model::Activation| {
        calls.set(calls.get() + 1);
        Ok(())
    };
    hooks.observe(&"hook_embed".parse().expect("a hook"), 2, count).expect("attached");
    unroll(&model, &sequences(&rows), &HiddenState, Gradient::Through, &mut hooks).expect("unroll");
    drop(hooks);
    assert_eq!(calls.get(), 1 + 12);
}

fn requests(n: usize) -> Vec<Request> {
    Request::all((0..n).map(|i| (0..2 + i % 5).map(|t| ((i * 7 + t * 3) % 21) as u32).collect()))
}

fn settings(temperature: f64) -> DecodeSettings {
    DecodeSettings {
        sampling: Sampling { temperature, seed: 5, ..Sampling::default() },
        k_min: 2,
        k_cap: 6,
        max_new_tokens: 24,
        stop: vec![0],
        ..DecodeSettings::default()
    }
}

/// A tiny model that often switches: the `<swi>` and `</swi>` rows of the tied table are scaled up.
fn switching_model(seed: u64) -> Decoder {
    let base = tiny(seed);
    let held: std::collections::BTreeMap<_, _> = base.export().expect("weights").into_iter().collect();
    let scaled = |name: &str| {
        let mut tensor = held[name].clone();
        if name == EMBED {
            let d = tensor.shape[1];
            for id in [IDS.swi, IDS.swi_end] {
                tensor.data[id as usize * d..(id as usize + 1) * d].iter_mut().for_each(|x| *x *= 2.0);
            }
        }
        Ok(tensor)
    };
    Decoder::from_weights(base.config(), &base.device(), scaled).expect("same size")
}

fn tokens(t: &Trace) -> Vec<(u32, PositionRole)> {
    t.positions.iter().map(|p| (p.token, p.kind)).collect()
}

fn run(model: &Decoder, settings: &DecodeSettings, requests: &[Request], rollouts: usize) -> Vec<Trace> {
    let how = how(model, settings);
    decode(how, requests, rollouts, &mut Hooks::none()).expect("decode")
}

#[test]
fn a_batch_of_sixteen_equals_sixteen_batches_of_one() {
    for (seed, temperature) in [(1, 0.0), (2, 0.8), (3, 1.5)] {
        let model = switching_model(seed);
        let settings = settings(temperature);
        let together = run(&model, &settings, &requests(16), 1);
        assert!(together.iter().any(Trace::switched), "no row switched: the test is vacuous");
        for (request, batched) in requests(16).into_iter().zip(&together) {
            let alone = run(&model, &settings, &[request], 1).remove(0);
            assert_eq!(tokens(&alone), tokens(batched));
            assert_eq!(alone.end, batched.end);
        }
    }
}

#[test]
fn rollouts_do_not_depend_on_their_number() {
    let model = switching_model(2);
    let three = run(&model, &settings(1.0), &requests(4), 3);
    let one = run(&model, &settings(1.0), &requests(4), 1);
    for (i, trace) in one.iter().enumerate() {
        assert_eq!(trace.visible(), three[i * 3].visible());
    }
    assert_ne!(three[0].visible(), three[1].visible(), "two rollouts of one prompt drew the same tokens");
}

fn how<'a>(model: &'a Decoder, settings: &'a DecodeSettings) -> Decode<'a> {
    Decode {
        model,
        source: &HiddenState,
        controller: &Blocks::LEARNT,
        switch: Some(IDS),
        settings,
        cancel: None,
        ahead: None,
    }
}

/// Traces with decisions on the device, several steps per read, against decisions on the host at every step.
fn ahead_of_the_host(how: Decode, requests: &[Request], rollouts: usize) -> (f64, Vec<Trace>) {
    let decoded = |ahead| {
        let how = Decode { ahead: Some(ahead), ..how };
        decode(how, requests, rollouts, &mut Hooks::none()).expect("decode")
    };
    let (host, mut worst) = (decoded(0), 0.0_f64);
    for ahead in [1, 3, 16] {
        let device = decoded(ahead);
        assert_eq!(host.len(), device.len());
        for (host, device) in host.iter().zip(&device) {
            assert_eq!((&host.prompt, host.rollout, &host.end), (&device.prompt, device.rollout, &device.end));
            let steps = |trace: &Trace| trace.positions.iter().map(|p| (p.token, p.kind)).collect::<Vec<_>>();
            assert_eq!(steps(host), steps(device), "{ahead} steps between reads");
            for (a, b) in host.positions.iter().zip(&device.positions) {
                for (a, b) in [(a.logprob, b.logprob), (a.entropy, b.entropy), (a.p_swi, b.p_swi), (a.p_exit, b.p_exit)]
                {
                    assert_eq!(a.is_some(), b.is_some());
                    worst = worst.max((a.unwrap_or(0.0) - b.unwrap_or(0.0)).abs());
                }
            }
        }
    }
    (worst, host)
}

#[test]
fn decisions_ahead_on_the_device_equal_the_hosts() {
    let rules = [Blocks::default(), Blocks::Never, Blocks::AfterPrompt { steps: 3 }, Blocks::Thinking { limit: 4 }];
    let switchings = [Switching::Free, Switching::Suppressed, Switching::Forced, Switching::Empty];
    let (mut kinds, mut ends) = (std::collections::HashSet::new(), vec![]);
    for (seed, temperature) in [(1, 0.0), (2, 0.7), (4, 1.0), (2, 1.3)] {
        let model = switching_model(seed);
        for (rule, switching) in rules.iter().flat_map(|rule| switchings.map(|switching| (rule, switching))) {
            let settings = DecodeSettings { switching, masked: vec![3, 4], ..settings(temperature) };
            let how = Decode { controller: rule, ..how(&model, &settings) };
            let (worst, traces) = ahead_of_the_host(how, &requests(9), 2);
            assert!(worst < 2e-5, "{rule:?}, {switching:?}, temperature {temperature}: off by {worst}");
            // The device's f32 numbers differ from the host's f64: so it did decide, except in rows that the host closes at once.
            assert_eq!(worst > 0.0, switching != Switching::Empty, "{rule:?}, {switching:?}: who decided?");
            kinds.extend(traces.iter().flat_map(|t| t.positions.iter().map(|p| p.kind)));
            ends.extend(traces.into_iter().map(|trace| trace.end));
        }
    }
    assert_eq!(kinds.len(), 5, "every kind of position was there: {kinds:?}");
    assert!(ends.contains(&End::Stop) && ends.contains(&End::Budget));
}

#[test]
fn a_model_without_switch_tokens_and_other_sources_are_decided_ahead() {
    let model = switching_model(4);
    let settings = settings(1.0);
    let plain = Decode { switch: None, controller: &Blocks::Never, ..how(&model, &settings) };
    assert!(ahead_of_the_host(plain, &requests(5), 2).0 < 2e-5);
    for source in [Source::FixedEmbedding { token: IDS.latent }, Source::ScaledState { norm: 0.7 }] {
        let (worst, traces) = ahead_of_the_host(Decode { source: &source, ..how(&model, &settings) }, &requests(9), 1);
        assert!(worst < 2e-5 && traces.iter().any(Trace::switched), "{source:?}");
    }
}

/// A source that makes every latent NaN.
struct Broken;

impl LatentSource for Broken {
    fn inject(&self, h: Tensor<3>, _at: &Span, _model: &Decoder) -> anyhow::Result<Tensor<3>> {
        Ok(h.mul_scalar(f32::NAN))
    }

    fn name(&self) -> String {
        "broken".into()
    }

    fn stays_on_device(&self) -> bool {
        true
    }
}

#[test]
fn non_finite_rows_end_on_the_device_as_on_the_host() {
    let broken = |temperature| {
        let (model, settings) = (switching_model(2), settings(temperature));
        ahead_of_the_host(Decode { source: &Broken, ..how(&model, &settings) }, &requests(9), 1).1
    };
    let traces: Vec<Trace> = [0.0, 0.7].into_iter().flat_map(broken).collect();
    let broken = traces.iter().filter(|trace| trace.end == End::NonFinite).collect::<Vec<_>>();
    assert!(!broken.is_empty() && broken.iter().all(|trace| trace.switched()));
    assert!(broken.iter().any(|trace| trace.visible_tokens() > 3), "some rows break late: ahead of the host");
}

#[test]
fn rollout_is_replay() {
    let mut worst: f64 = 0.0;
    for (seed, temperature) in [(1, 0.0), (2, 0.7), (4, 1.3)] {
        let model = switching_model(seed);
        let settings = settings(temperature);
        let traces = run(&model, &settings, &requests(8), 2);
        let again = replay::logprobs(how(&model, &settings), &traces).expect("replay");
        assert!(traces.iter().any(Trace::switched), "seed {seed}: no row switched: the test is vacuous");
        for (trace, again) in traces.iter().zip(again) {
            assert_eq!(trace.positions.len(), again.len());
            for (position, new) in trace.positions.iter().zip(again) {
                assert_eq!(position.logprob.is_some(), new.is_some(), "{position:?}");
                worst = worst.max((position.logprob.unwrap_or(0.0) - new.unwrap_or(0.0)).abs());
            }
        }
    }
    println!("rollout against replay: max |Δ log-prob| = {worst:.2e}");
    assert!(worst <= 1e-4, "drift {worst:e}");
}

#[test]
fn the_block_obeys_its_bounds() {
    let model = switching_model(2);
    let (mut forced, mut sampled) = (0, 0);
    for (k_min, k_cap) in [(0, 3), (4, 4), (2, 6)] {
        let settings = DecodeSettings { k_min, k_cap, ..settings(1.5) };
        let traces = run(&model, &settings, &requests(16), 2);
        let blocks: Vec<_> = traces.iter().filter(|t| t.end == End::Stop).flat_map(Trace::blocks).collect();
        assert!(!blocks.is_empty());
        for block in blocks {
            assert!(block.p_exit.len() >= k_min.max(1) && block.p_exit.len() <= k_cap, "{block:?}");
            assert!(!block.forced || block.p_exit.len() == k_cap);
            *(if block.forced { &mut forced } else { &mut sampled }) += 1;
        }
        for position in traces.iter().flat_map(|t| &t.positions) {
            assert!(
                position.kind != PositionRole::Text || (position.token != IDS.latent && position.token != IDS.swi_end)
            );
        }
    }
    assert!(forced > 0 && sampled > 0, "{forced} blocks forced to end, {sampled} ended by a draw");
}

/// Sampling as in the paper: `</swi>` may occur in text; such a response is ill-formed, and its replay has the sampling probabilities.
#[test]
fn without_the_mask_a_response_may_be_ill_formed() {
    let model = switching_model(2);
    let settings = DecodeSettings { mask_tags: false, ..settings(1.5) };
    let traces = run(&model, &settings, &requests(16), 2);
    let formed = |trace: &Trace| Facts::new(trace, true).well_formed;
    let ill = traces.iter().filter(|trace| !formed(trace)).count();
    assert!(ill > 0 && ill < traces.len(), "{ill} of {} are ill-formed", traces.len());
    assert!(traces.iter().flat_map(|t| &t.positions).all(|p| p.kind == PositionRole::Latent || p.token != IDS.latent));
    let again = replay::logprobs(how(&model, &settings), &traces).expect("replay");
    for (trace, again) in traces.iter().zip(again) {
        for (position, again) in trace.positions.iter().zip(again) {
            let off = (position.logprob.unwrap_or(0.0) - again.unwrap_or(0.0)).abs();
            assert!(position.logprob.is_some() == again.is_some() && off < 1e-4, "{position:?}: {again:?}");
        }
    }
    let masked = run(&model, &DecodeSettings { mask_tags: true, ..settings }, &requests(16), 2);
    let whole = |trace: &&Trace| trace.end == End::Stop;
    assert!(masked.iter().filter(whole).all(formed));
}

#[test]
fn switching_can_be_suppressed_and_forced() {
    let model = switching_model(2);
    let with = |switching| run(&model, &DecodeSettings { switching, ..settings(1.0) }, &requests(8), 1);
    assert!(with(Switching::Free).iter().any(Trace::switched), "nothing to suppress");
    assert!(with(Switching::Suppressed).iter().all(|t| !t.switched()));
    assert!(with(Switching::Forced).iter().all(|t| t.positions[0].kind == PositionRole::Swi));
}

#[test]
fn an_error_in_one_row_ends_that_row_only() {
    let model = switching_model(1);
    let spec = "boundary.hook_logits@text[1]".parse().expect("a spec");
    let mut hooks = Hooks::none();
    hooks
        .replace(&spec, 2, |site, value| {
            let x = value.three()?;
            let mut data = values(&x);
            let v = x.dims()[2];
            for place in site.places.iter().filter(|p| p.row == 3) {
                data[place.batch * v] = f32::NAN;
            }
            let new = Tensor::from_data(burn::tensor::TensorData::new(data, x.dims()), &x.device());
            Ok(switchyard::model::Activation::Rank3(new))
        })
        .expect("a known hook");
    let s = settings(0.0);
    let traces = decode(how(&model, &s), &requests(6), 1, &mut hooks).expect("decode");
    let clean = run(&model, &s, &requests(6), 1);
    assert_eq!((traces.len(), clean.len()), (6, 6));
    for (i, (hit, clean)) in traces.iter().zip(&clean).enumerate() {
        if i == 3 {
            // Tokens before the broken logits remain; the row would have continued.
            assert!(hit.end == End::NonFinite && clean.end != End::NonFinite, "{hit:?}");
            assert!(
                hit.positions.len() < clean.positions.len(),
                "{} positions of {}",
                hit.positions.len(),
                clean.positions.len()
            );
            assert_eq!(hit.positions[..], clean.positions[..hit.positions.len()]);
        } else {
            assert_eq!((hit.visible(), &hit.end), (clean.visible(), &clean.end), "row {i}");
        }
    }
}

/// Mean of a fixed projection of the hidden states after the blocks, as a function of the model.
fn probe_loss(model: &Decoder, rows: &[Vec<u32>], source: &Source, gradient: Gradient) -> Tensor<1> {
    let sequences = sequences(rows);
    let all = unroll(model, &sequences, source, gradient, &mut Hooks::none()).expect("unroll");
    let places: Vec<_> = rows.iter().enumerate().map(|(b, r)| (b, r.len() - 1)).collect();
    let h = all.hidden_at(&places).expect("places");
    let [n, d] = h.dims();
    let weights: Vec<f32> = (0..n * d).map(|i| ((i * 37 % 11) as f32 - 5.0) / 7.0).collect();
    let weights = Tensor::<2>::from_data(burn::tensor::TensorData::new(weights, [n, d]), &h.device()).cast(h.dtype());
    (h * weights).sum()
}

#[test]
fn through_gradients_agree_with_finite_differences() {
    through_gradients_agree(&Source::HiddenState);
    through_gradients_agree(&Source::ScaledState { norm: 0.7 });
}

fn through_gradients_agree(source: &Source) {
    let rows = vec![vec![3, 5, 21, 23, 23, 23, 22, 7], vec![4, 21, 23, 22, 9, 21, 23, 23, 22, 2]];
    let device = Device::flex();
    let base = tiny(7);
    let held: std::collections::BTreeMap<_, _> = base.export().expect("weights").into_iter().collect();
    let model = tiny_on(&device.clone().autodiff(), 7).cast(FloatDType::F64);
    let loss = probe_loss(&model, &rows, source, Gradient::Through);
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let by_name = gradients_by_name(&model, &grads).expect("gradients");

    // Embedding rows of tokens before a block (3, 5, 4), and entries of matrices.
    let checks = [
        ("model.embed_tokens.weight", vec![3 * 16 + 2, 5 * 16 + 7, 4 * 16 + 1]),
        ("model.layers.0.self_attn.k_proj.weight", vec![0, 45]),
        ("model.layers.1.mlp.down_proj.weight", vec![10, 100]),
        ("model.norm.weight", vec![3]),
    ];
    let step = 1e-3_f32;
    for (name, entries) in checks {
        let (_, grad) = by_name.iter().find(|(n, _)| n == name).expect("a gradient for every parameter");
        for entry in entries {
            let at = |delta: f32| -> f64 {
                let moved = Decoder::from_weights(base.config(), &device, |n| {
                    let mut t = held[n].clone();
                    if n == name {
                        t.data[entry] += delta;
                    }
                    Ok(t)
                });
                let moved = moved.expect("a model").cast(FloatDType::F64);
                probe_loss(&moved, &rows, source, Gradient::Through).into_scalar::<f64>()
            };
            // The actual step of the f32 weights.
            let value = held[name].data[entry];
            let width = f64::from(value + step) - f64::from(value - step);
            let numeric = (at(step) - at(-step)) / width;
            let ours = f64::from(grad.data[entry]);
            let off = (ours - numeric).abs() / numeric.abs().max(1e-2);
            assert!(off < 1e-3, "{source:?}, {name}[{entry}]: gradient {ours}, finite difference {numeric}");
        }
    }
}

#[test]
fn frozen_latents_pass_no_gradient() {
    let model = tiny_on(&Device::flex().autodiff(), 7);
    // The loss reads the state at the last latent: everything before it is frozen.
    let rows = vec![vec![3, 5, 21, 23, 23]];
    let gradient_of = |gradient| {
        let loss = probe_loss(&model, &rows, &Source::HiddenState, gradient);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        gradients_by_name(&model, &grads).expect("gradients")
    };
    let (through, frozen) = (gradient_of(Gradient::Through), gradient_of(Gradient::Frozen));
    assert_eq!(
        through.len(),
        tiny(7).export().expect("weights").len(),
        "every weight is on the way to the last latent"
    );
    for (name, grad) in &through {
        assert!(grad.data.iter().any(|&g| g != 0.0), "`{name}` has no gradient to freeze");
        let held = frozen.iter().find(|(frozen, _)| frozen == name);
        let none = held.is_none_or(|(_, grad)| grad.data.iter().all(|&g| g == 0.0));
        assert!(none, "`{name}` has a gradient through frozen latents");
    }
    // Text after the block: token 5 reaches the loss through attention, and through the block only with `Through` gradients.
    let rows = vec![vec![3, 5, 21, 23, 23, 22, 7]];
    let norm = |gradient| {
        let loss = probe_loss(&model, &rows, &Source::HiddenState, gradient);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        values(&grads.get::<2>(model.embed_tokens.param().expect("floats").id).expect("embedding gradient"))
    };
    let (through, frozen, segmented) = (norm(Gradient::Through), norm(Gradient::Frozen), norm(Gradient::Segmented));
    assert!(relative(&frozen, &through) > 1e-3, "frozen and through gradients must differ");
    let row = |g: &[f32], id: usize| g[id * 16..(id + 1) * 16].iter().map(|x| x.abs()).sum::<f32>();
    assert_eq!(row(&segmented, 3), 0.0, "a segment must not reach the text before its block");
    assert!(row(&frozen, 3) > 0.0);
}

#[test]
fn a_repeated_selected_cut_or_detached_cache_continues_like_its_rows_alone() {
    use switchyard::model::{KvCache, Span, Step};
    let model = tiny(3);
    let prompt = vec![vec![1, 2, 3, 4], vec![5, 6, 7, 8]];
    let start = |cache: &mut KvCache| {
        let x = model.embed(&prompt).expect("ids");
        model.hidden(x, &Span::prompts(&[4, 4], false), cache, &mut Hooks::none()).expect("a forward");
    };
    // Feeds one token at a position to every row.
    let next = |cache: &mut KvCache, position: usize| -> Vec<f32> {
        let rows = cache.rows();
        let x = model.embed(&vec![vec![9]; rows]).expect("ids");
        let span = Span {
            rows: (0..rows).collect(),
            positions: vec![vec![position]; rows],
            steps: vec![vec![Some(Step::Prompt)]; rows],
        };
        values(&model.hidden(x, &span, cache, &mut Hooks::none()).expect("a forward"))
    };
    let mut whole = model.cache(2);
    start(&mut whole);
    let fork = whole.clone();
    let plain = next(&mut whole, 4);
    let d = plain.len() / 2;
    // Later changes of the origin, in place or not, do not affect a fork.
    assert_eq!((fork.width(), whole.width()), (4, 5));
    let again = next(&mut whole.truncate(4).detach(), 4);
    assert!(relative(&again, &plain) < 1e-6);
    let repeated = next(&mut fork.keep(&[0, 0, 1, 1]), 4);
    for (row, from) in [0, 0, 1, 1].into_iter().enumerate() {
        assert!(relative(&repeated[row * d..(row + 1) * d], &plain[from * d..(from + 1) * d]) < 1e-6);
    }
    let kept = next(&mut fork.keep(&[1]), 4);
    assert!(relative(&kept, &plain[d..]) < 1e-6);
    assert!(relative(&plain[..d], &plain[d..]) > 1e-2, "the rows are equal: the test is vacuous");
    assert!(relative(&next(&mut fork.clone(), 4), &plain) < 1e-6);
}

/// Learned positions are limited by their table: longer responses are an error before the first forward that names the problem.
#[test]
fn a_response_beyond_the_table_of_positions_is_an_error() {
    let config = ModelConfig {
        max_position_embeddings: 20,
        num_key_value_heads: 4,
        head_dim: 4,
        ..tiny_config(Family::Gpt2, true)
    };
    let model = Decoder::random(&config, 1, &Device::flex()).expect("a model");
    let run = |max_new_tokens: usize| {
        let switching = Switching::Suppressed;
        let settings = DecodeSettings { max_new_tokens, k_min: 1, k_cap: 2, switching, ..Default::default() };
        let request = |n: usize| Request { problem: n, prompt: vec![1; n], rollout: 0, limit: None };
        decode(how(&model, &settings), &[request(3), request(8)], 1, &mut Hooks::none())
    };
    assert_eq!(run(10).expect("it fits").len(), 2);
    let error = run(11).expect_err("refused").to_string();
    for part in ["problem 8", "8 tokens", "max_new_tokens 11", "k_cap 2", "20 positions"] {
        assert!(error.contains(part), "{error}");
    }
}

/// A row with its own limit equals a run with that limit in the settings; the batch's other rows do not change.
#[test]
fn a_rows_limit_ends_only_that_row() {
    let model = switching_model(1);
    for (temperature, ahead) in [(0.0, None), (0.8, None), (0.8, Some(3))] {
        let settings = settings(temperature);
        let limits = [Some(1), None, Some(5), Some(9), None, Some(24), Some(40), Some(2)];
        let requests: Vec<Request> = requests(16)
            .into_iter()
            .zip(limits.iter().cycle())
            .map(|(r, limit)| Request { limit: *limit, ..r })
            .collect();
        let run = |settings: &DecodeSettings, requests: &[Request]| {
            let how = Decode { ahead, ..how(&model, settings) };
            decode(how, requests, 2, &mut Hooks::none()).expect("decode")
        };
        let together = run(&settings, &requests);
        let mut cut = 0;
        for (request, batched) in requests.iter().zip(together.chunks(2)) {
            let most = request.limit.unwrap_or(24).min(24);
            let own = DecodeSettings { max_new_tokens: most, ..settings.clone() };
            let alone = Request { limit: None, ..request.clone() };
            let alone = run(&own, &[alone]);
            for (alone, batched) in alone.iter().zip(batched) {
                assert_eq!((tokens(alone), &alone.end), (tokens(batched), &batched.end), "{request:?}");
                assert!(batched.visible_tokens() <= most);
                cut += usize::from(most < 24 && batched.end == End::Budget);
            }
        }
        assert!(cut >= 8, "only {cut} rows were cut: the test is vacuous");
    }
}
