//! Times of the decoder: forward, training step, cached decoding, hooks, latents.
//!
//! `cargo bench --bench decoder`. Besides criterion's report, one JSON line per measurement goes to standard output for
//! `benches/peer.py`, which times the same models in PyTorch.

use std::cell::{LazyCell, RefCell};
use std::hint::black_box;
use std::time::{Duration, Instant};

use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group};
use serde_json::json;
use switchyard::corpus::Row;
use switchyard::latent::{Blocks, Decode, DecodeSettings, HiddenState, Request, SwitchIds, Switching, decode};
use switchyard::machine::Compute;
use switchyard::method::CrossEntropy;
use switchyard::model::checkpoint::{ModelFiles, write_random};
use switchyard::model::config::{Family, ModelConfig};
use switchyard::model::hooks::Site;
use switchyard::model::lora::LoraSettings;
use switchyard::model::{Activation, Decoder, HookPoint, HookSpec, Hooks, PointKind, Span};
use switchyard::ops::Targets;
use switchyard::parallel;
use switchyard::parity::sft_settings;
use switchyard::recipe::Optimizer;
use switchyard::train::sft::{self, Sft};
use switchyard::train::trainer::Trainer;
use switchyard_allocator as _;

/// A model and the batch it is timed on.
struct Size {
    name: &'static str,
    config: ModelConfig,
    rows: usize,
    length: usize,
}

/// SmolLM2-135M's shape.
fn smollm2() -> Size {
    let [qwen, _] = sizes();
    let config = ModelConfig {
        family: Family::Llama,
        vocab_size: 49152,
        hidden_size: 576,
        intermediate_size: 1536,
        num_hidden_layers: 30,
        num_attention_heads: 9,
        num_key_value_heads: 3,
        head_dim: 64,
        rms_norm_eps: 1e-5,
        rope_theta: 1e5,
        qk_norm: false,
        ..qwen.config
    };
    Size { name: "smollm2", config, rows: 4, length: 256 }
}

fn sizes() -> [Size; 2] {
    let config = |d, layers, heads, kv, dh, ffn, vocab| ModelConfig {
        vocab_size: vocab,
        hidden_size: d,
        intermediate_size: ffn,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: kv,
        head_dim: dh,
        rope_theta: 1e6,
        max_position_embeddings: 1024,
        ..ModelConfig::new(Family::Qwen3)
    };
    [
        Size { name: "4.8M", config: config(256, 6, 8, 2, 32, 768, 512), rows: 16, length: 128 },
        Size { name: "micro", config: config(64, 4, 4, 2, 16, 192, 32), rows: 32, length: 48 },
    ]
}

impl Size {
    fn model(&self, device: &Device) -> Decoder {
        Decoder::random(&self.config, 1, device).expect("a valid model")
    }

    fn ids(&self) -> Vec<Vec<u32>> {
        let token = |i: usize| (i * 7919 % (self.config.vocab_size - 3)) as u32;
        (0..self.rows).map(|r| (0..self.length).map(|p| token(r * self.length + p)).collect()).collect()
    }

    fn tokens(&self) -> u64 {
        (self.rows * self.length) as u64
    }
}

/// Reads one value back: a device may be asynchronous.
fn finish<const R: usize>(x: Tensor<R>) {
    black_box(x.narrow(0, 0, 1).sum().into_scalar::<f32>());
}

/// Runs one bench and prints its JSON line, the median of criterion's samples. False if its filter excludes the bench.
fn time(c: &mut Criterion, group: &str, size: &Size, what: &str, tokens: u64, mut f: impl FnMut()) -> bool {
    let mut runs: Vec<Duration> = vec![];
    let mut g = c.benchmark_group(group);
    g.throughput(Throughput::Elements(tokens)).sample_size(10).sampling_mode(SamplingMode::Flat);
    g.warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(6));
    g.bench_function(BenchmarkId::new(what, size.name), |b| {
        b.iter_custom(|n| {
            let mut total = Duration::ZERO;
            for _ in 0..n {
                let start = Instant::now();
                f();
                let took = start.elapsed();
                runs.push(took);
                total += took;
            }
            total
        });
    });
    g.finish();
    runs.sort();
    if runs.is_empty() {
        return false;
    }
    let rate = |q: f64| tokens as f64 / runs[((runs.len() - 1) as f64 * q).round() as usize].as_secs_f64();
    let name = format!("{group}/{what}/{}", size.name);
    println!(
        "{}",
        json!({ "name": name, "tokens_per_s": rate(0.5), "slowest_quarter": rate(0.75), "fastest_quarter": rate(0.25), "n": runs.len() })
    );
    true
}

fn forward_and_step(c: &mut Criterion) {
    for size in sizes() {
        let ids = size.ids();
        let model = LazyCell::new(|| size.model(&Device::flex()));
        time(c, "decoder", &size, "forward", size.tokens(), || {
            finish(model.logits(&ids, &mut Hooks::none()).expect("a forward"));
        });
        let mut model: Option<Decoder> = None;
        let mut optimizer = AdamWConfig::new().init();
        let targets: Vec<u32> = ids.iter().flatten().copied().collect();
        time(c, "decoder", &size, "train_step", size.tokens(), || {
            let held = model.take().unwrap_or_else(|| size.model(&Device::flex().autodiff()));
            let x = held.embed(&ids).expect("tokens of the vocabulary");
            let span = Span::prompts(&vec![size.length; size.rows], false);
            let hidden = held.hidden(x, &span, &mut held.cache(size.rows), &mut Hooks::none()).expect("a forward");
            let hidden = hidden.reshape([targets.len(), size.config.hidden_size]);
            let (losses, _) =
                held.token_losses(hidden, Targets::new(targets.clone())).expect("targets of the vocabulary");
            let loss = losses.mean();
            let grads = GradientsParams::from_grads(loss.backward(), &held);
            model = Some(optimizer.step(1e-4, held, grads));
        });
        as_train_does(c, &size, "train_two_workers", 2, |model| model);
    }
}

/// A step of `train`: each worker computes a share of the rows, gradients are summed and clipped by their global norm.
fn as_train_does(c: &mut Criterion, size: &Size, what: &str, threads: usize, prepare: impl Fn(Decoder) -> Decoder) {
    // Made at the first call: a filter may exclude this bench.
    let trainer = || Trainer::new(prepare(size.model(&Device::flex().autodiff())), &Optimizer::default());
    let mut trainer = LazyCell::new(trainer);
    let rows: Vec<Row> =
        size.ids().into_iter().map(|ids| Row { ids, prompt: 1, teacher: None, slots: vec![], noise: None }).collect();
    let text = CrossEntropy::text();
    let step = Sft { objective: &text, threads, ..sft_settings(size.config.vocab_size as u32, 1) };
    time(c, "decoder", size, what, size.tokens(), || {
        sft::step(LazyCell::force_mut(&mut trainer), &step, &rows, 1e-4).expect("a step");
    });
}

/// SmolLM2's shape with LoRA factors on every projection.
fn lora_step(c: &mut Criterion) {
    let settings = LoraSettings { rank: 16, alpha: 32.0, train_embeddings: false, ..LoraSettings::default() };
    let attach = |model: Decoder| model.with_lora(&settings).expect("factors");
    let size = smollm2();
    as_train_does(c, &size, "lora_step", 1, attach);
    as_train_does(c, &size, "lora_two_workers", 2, attach);
}

/// Every hook point of the decoder except the opt-in `hook_result`.
fn everything(layers: usize) -> Vec<HookSpec> {
    let latent = [PointKind::LatentSource, PointKind::LatentInjected, PointKind::BoundaryLogits, PointKind::Result];
    let points = HookPoint::all(layers).into_iter().filter(|p| !latent.contains(&p.kind));
    points.map(HookSpec::all).collect()
}

/// A forward under hooks that keep a handle to every value they see.
fn hooked(model: &Decoder, ids: &[Vec<u32>], specs: &[HookSpec]) {
    let layers = model.config().num_hidden_layers;
    let held = RefCell::new(vec![]);
    let mut hooks = Hooks::none();
    for spec in specs {
        let keep = |_: &Site, value: &Activation| {
            held.borrow_mut().push(value.clone());
            Ok(())
        };
        hooks.observe(spec, layers, keep).expect("a known point");
    }
    finish(model.logits(ids, &mut hooks).expect("a forward"));
    black_box(held.borrow().len());
}

fn hooks(c: &mut Criterion) {
    for size in sizes() {
        let ids = size.ids();
        let model = size.model(&Device::flex());
        let layers = size.config.num_hidden_layers;
        let resid = vec![HookSpec::all("blocks.*.hook_resid_post")];
        let sets = [("none", vec![]), ("resid_post", resid), ("everything", everything(layers))];
        let mut all = true;
        for (what, specs) in &sets {
            all &= time(c, "hooks", &size, what, size.tokens(), || hooked(&model, &ids, specs));
        }
        if !all {
            continue;
        }
        // On a shared machine, differences of a few percent are visible only if the three alternate. The bare call runs
        // twice and shows the resolution of the comparison.
        let mut calls: Vec<Call> =
            vec![("no_hooks_set", Box::new(|| finish(model.logits(&ids, &mut Hooks::none()).expect("a forward"))))];
        for (what, specs) in &sets {
            calls.push((what, Box::new(|| hooked(&model, &ids, specs))));
        }
        take_turns("hooks_ratio", &size, &mut calls, if size.name == "micro" { 200 } else { 24 });
    }
}

/// A timed call and its name.
type Call<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Runs the calls in turn and prints each one's time over the first one's: median of the per-round ratios, quartiles.
fn take_turns(group: &str, size: &Size, calls: &mut [Call], rounds: usize) {
    let mut ratios: Vec<Vec<f64>> = vec![vec![]; calls.len()];
    for _ in 0..rounds {
        let mut took = vec![];
        for (_, call) in calls.iter_mut() {
            let start = Instant::now();
            call();
            took.push(start.elapsed().as_secs_f64());
        }
        for (ratios, t) in ratios.iter_mut().zip(&took) {
            ratios.push(t / took[0]);
        }
    }
    for ((what, _), ratios) in calls.iter().zip(&mut ratios) {
        ratios.sort_by(f64::total_cmp);
        let at = |q: f64| ratios[((rounds - 1) as f64 * q).round() as usize];
        let name = format!("{group}/{what}/{}", size.name);
        println!("{}", json!({ "name": name, "ratio": at(0.5), "quartiles": [at(0.25), at(0.75)], "n": rounds }));
    }
}

const PROMPT: usize = 32;
const NEW: usize = 64;

fn requests(size: &Size, rows: usize) -> Vec<Request> {
    let ids = size.ids();
    Request::all((0..rows).map(|i| ids[i % ids.len()][..PROMPT].to_vec()))
}

fn run(model: &Decoder, switch: Option<SwitchIds>, settings: &DecodeSettings, requests: &[Request]) {
    let how = Decode {
        model,
        source: &HiddenState,
        controller: &Blocks::LEARNT,
        switch,
        settings,
        cancel: None,
        ahead: None,
    };
    black_box(decode(how, requests, 1, &mut Hooks::none()).expect("decodes"));
}

fn plain_decoding(
    c: &mut Criterion,
    size: &Size,
    model: &LazyCell<Decoder, impl FnOnce() -> Decoder>,
) -> DecodeSettings {
    let plain = DecodeSettings { max_new_tokens: NEW, ..DecodeSettings::default() };
    for rows in [1, 16] {
        let requests = requests(size, rows);
        let what = format!("batch_{rows}");
        time(c, "decode", size, &what, (rows * NEW) as u64, || run(model, None, &plain, &requests));
    }
    plain
}

fn decoding(c: &mut Criterion) {
    let size = smollm2();
    plain_decoding(c, &size, &LazyCell::new(|| size.model(&Device::flex())));
    for size in sizes() {
        let model = LazyCell::new(|| size.model(&Device::flex()));
        let plain = plain_decoding(c, &size, &model);
        // A block of eight latents opens every response; a latent is a position like any other.
        let v = size.config.vocab_size as u32;
        let switch = Some(SwitchIds { swi: v - 3, swi_end: v - 2, latent: v - 1 });
        let latent = DecodeSettings { k_min: 8, k_cap: 8, switching: Switching::Forced, ..plain };
        let requests = requests(&size, 16);
        let tokens = (16 * (NEW + 8)) as u64;
        time(c, "latent_decode", &size, "together_16", tokens, || run(&model, switch, &latent, &requests));
        let one_by_one =
            || requests.iter().for_each(|request| run(&model, switch, &latent, std::slice::from_ref(request)));
        if !time(c, "latent_decode", &size, "one_by_one_16", tokens, one_by_one) {
            continue;
        }
        // Several batches per call: woken workers need milliseconds to spread over the cores.
        let (model, batches): (&Decoder, usize) = (&model, if size.name == "micro" { 8 } else { 1 });
        let together = || (0..batches).for_each(|_| run(model, switch, &latent, &requests));
        let one_by_one = || (0..batches).for_each(|_| one_by_one());
        // As in evaluation and rollouts, each of two workers decodes half of the rows.
        let two_workers = || {
            let parts = parallel::cut(&requests, 2);
            let work = |part: &[Request]| {
                (0..batches).for_each(|_| run(model, switch, &latent, part));
                Ok(())
            };
            parallel::run(&parts, work).expect("decodes");
        };
        let mut calls: Vec<Call> = vec![
            ("two_workers_16", Box::new(two_workers)),
            ("together_16", Box::new(together)),
            ("one_by_one_16", Box::new(one_by_one)),
        ];
        take_turns("latent_decode_ratio", &size, &mut calls, 25);
    }
}

/// Decoding with weights as stored and with the same shape in floats, in turn, so that noise affects both alike.
fn stored(c: &mut Criterion) {
    let size = smollm2();
    let root = tempfile::tempdir().expect("a folder");
    let load = |file: &str, dtype: Compute| {
        let path = root.path().join(file);
        if !path.exists() {
            write_random(&size.config, &path, 1).expect("writes");
        }
        let checkpoint = ModelFiles::open(&path.display().to_string()).expect("opens");
        dtype.load(&checkpoint, &Device::flex()).expect("loads")
    };
    let load = &load;
    let kinds =
        [("f32", "bf16", Compute::F32), ("bf16", "bf16", Compute::Stored), ("q8_0", "q8_0.gguf", Compute::Stored)];
    let models = kinds.map(|(name, file, dtype)| (name, LazyCell::new(move || load(file, dtype))));
    for rows in [1, 16] {
        let plain = DecodeSettings { max_new_tokens: NEW / 2, ..DecodeSettings::default() };
        let requests = requests(&size, rows);
        let tokens = (rows * NEW / 2) as u64;
        let mut all = true;
        for (name, model) in &models {
            let what = format!("{name}_{rows}");
            all &= time(c, "stored", &size, &what, tokens, || run(model, None, &plain, &requests));
        }
        if all {
            let mut calls: Vec<Call> = vec![];
            for (name, model) in &models {
                calls.push((name, Box::new(|| run(model, None, &plain, &requests))));
            }
            take_turns(&format!("stored_ratio_{rows}"), &size, &mut calls, 15);
        }
    }
}

criterion_group!(benches, forward_and_step, lora_step, hooks, decoding, stored);

/// Runs on a thread of the pool, as the binaries do.
fn main() {
    switchyard::ops::Cpu::chosen().expect("vector instructions");
    parallel::on_the_pool(switchyard::machine::threads(), || {
        benches();
        Criterion::default().configure_from_args().final_summary();
    })
    .expect("threads");
}
