//! Peak memory, counted by the allocator: replay does not grow with the number of blocks, loading not beyond the file.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use common::{one_step, tiny_config};
use switchyard::corpus::Row;
use switchyard::latent::trace::{Position, PositionRole};
use switchyard::latent::{DecodeSettings, End, Reasoning, SwitchIds, Trace};
use switchyard::model::checkpoint::{ModelFiles, expected_parameters, write_random};
use switchyard::model::config::Family;
use switchyard::model::{Decoder, ModelConfig};
use switchyard::recipe::{Compute, Facts, Grpo, Optimizer, ReplayMode};
use switchyard::train::grpo::gradients;
use switchyard::train::rollouts::{Behaviour, Rollout};
use switchyard::train::sft::{self, position_bytes};
use switchyard::train::trainer::Trainer;

const IDS: SwitchIds = SwitchIds { swi: 21, swi_end: 22, latent: 23 };

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system's allocator; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time: the count is for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Peak bytes of `work`, minus those allocated before.
fn peak(work: impl FnOnce()) -> usize {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    PEAK.load(Ordering::Relaxed) - before
}

/// One response: `blocks` blocks of `latents` latents, each after `text` text tokens.
fn rollout(blocks: usize, latents: usize, text: usize) -> Rollout {
    let sampled = |token, kind| Position {
        token,
        kind,
        logprob: Some(-1.0),
        entropy: None,
        p_swi: None,
        p_exit: None,
        drawn: None,
        mixed: None,
    };
    let mut positions = vec![];
    for _ in 0..blocks {
        positions.extend((0..text).map(|t| sampled(t as u32 % 20, PositionRole::Text)));
        positions.push(sampled(IDS.swi, PositionRole::Swi));
        positions.extend((0..latents).map(|_| sampled(IDS.latent, PositionRole::Latent)));
        positions.push(sampled(IDS.swi_end, PositionRole::SwiEndSampled));
    }
    let trace = Trace { problem: 0, rollout: 0, prompt: vec![1, 2, 3], positions, end: End::Stop };
    let terms = Grpo::default().reward.of(Facts::new(&trace, true));
    let anchor = trace.positions.iter().map(|p| p.logprob).collect();
    Rollout { anchor, trace, terms, correct: true, advantage: 1.0, weight: 1.0, first: true }
}

fn replay(model: &Decoder, mode: ReplayMode, blocks: usize, text: usize) -> usize {
    replay_of(model, mode, &vec![rollout(blocks, 2, text); 4])
}

fn replay_of(model: &Decoder, replay: ReplayMode, rollouts: &[Rollout]) -> usize {
    replay_as(model, Grpo { replay, ..Grpo::default() }, rollouts)
}

fn replay_as(model: &Decoder, grpo: Grpo, rollouts: &[Rollout]) -> usize {
    let settings = DecodeSettings { k_min: 2, ..DecodeSettings::default() };
    let reasoning = Reasoning::default();
    let behaviour = Behaviour { reasoning: &reasoning, switch: IDS, settings: &settings, compute: Compute::F32 };
    peak(|| {
        gradients(model, behaviour, rollouts, &grpo, 1).expect("gradients");
    })
}

#[test]
fn replay_stores_only_one_segment() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let model = Decoder::random(&tiny_config(Family::Qwen3, true), 0, &Device::flex().autodiff()).expect("a model");
    replay(&model, ReplayMode::Segmented, 2, 24); // thread pools and tables of the first call

    let growth = |few: usize, many: usize| many as f64 / few as f64;
    let of = |mode, blocks, text| replay(&model, mode, blocks, text);
    // The same 384 text tokens in 2 or 16 segments. Only one segment's graph is in memory, so more segments cost less.
    let [few, many] = [(2, 192), (16, 24)].map(|(blocks, text)| of(ReplayMode::Segmented, blocks, text));
    println!("segmented, 384 text tokens: 2 segments {few} B, 16 segments {many} B ({:.2} x)", growth(few, many));
    assert!(growth(few, many) < 0.5, "segmented replay stores more than a segment: {few} B, {many} B");
    // Eight times the text: one graph stores every segment and its copy of the earlier keys; segmented replay stores one segment and
    // the keys, so only the keys grow.
    let [short, long] = [2, 16].map(|blocks| of(ReplayMode::Segmented, blocks, 24));
    let [graph_short, graph_long] = [2, 16].map(|blocks| of(ReplayMode::TextGraph, blocks, 24));
    println!(
        "24 text tokens a segment, 2 and 16 segments: segmented {short} B, {long} B ({:.1} x)",
        growth(short, long)
    );
    println!("  in one graph: {graph_short} B, {graph_long} B ({:.1} x)", growth(graph_short, graph_long));
    assert!(growth(short, long) < 5.0 && growth(graph_short, graph_long) > 2.0 * growth(short, long));

    // Gradient through latents: recomputed waves are not stored.
    let rollouts = vec![rollout(16, 2, 24); 4];
    let [whole, again] = [0, 4].map(|checkpoint_every| {
        replay_as(&model, Grpo { replay: ReplayMode::FullBptt, checkpoint_every, ..Grpo::default() }, &rollouts)
    });
    println!("through 32 latents: one graph {whole} B, run again by fours {again} B ({:.2} x)", growth(whole, again));
    assert!(growth(whole, again) < 0.5, "recomputed segments stay in memory: {whole} B, {again} B");

    // Latents without gradient: more blocks of the same text cost the graph only copies of keys and values, one per block (a larger share
    // in this narrow model than in a wide one).
    let [one, twelve] = [(1, 240), (12, 20)].map(|(blocks, text)| of(ReplayMode::TextGraph, blocks, text));
    println!("frozen latents, 240 text tokens: 1 block {one} B, 12 blocks {twelve} B ({:.2} x)", growth(one, twelve));
    assert!(growth(one, twelve) < 1.6, "frozen replay grows with the number of blocks: {one} B, {twelve} B");
}

/// Cost of the gradient through the recurrence against frozen latents: 48 text tokens, and latents in blocks of six.
#[test]
#[ignore = "a measurement"]
fn cost_of_the_gradient_through_latents() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = ModelConfig {
        hidden_size: 64,
        intermediate_size: 192,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        ..tiny_config(Family::Qwen3, true)
    };
    let model = Decoder::random(&config, 0, &Device::flex().autodiff()).expect("a model");
    replay(&model, ReplayMode::FullBptt, 2, 24);
    println!(
        "| latents | replay | peak, MB | over segmented | ms | over segmented |\n| --- | --- | --- | --- | --- | --- |"
    );
    const HOW: [(&str, ReplayMode, usize); 6] = [
        ("segmented", ReplayMode::Segmented, 0),
        ("text_graph", ReplayMode::TextGraph, 0),
        ("full_bptt", ReplayMode::FullBptt, 0),
        ("full_bptt, every 12", ReplayMode::FullBptt, 12),
        ("full_bptt, every 6", ReplayMode::FullBptt, 6),
        ("full_bptt, every 3", ReplayMode::FullBptt, 3),
    ];
    for blocks in [1, 2, 4, 8] {
        let rollouts = vec![rollout(blocks, 6, 48 / blocks); 8];
        let mut least = [None; 6];
        for _ in 0..5 {
            for (&(_, replay, checkpoint_every), least) in HOW.iter().zip(&mut least) {
                let start = std::time::Instant::now();
                let bytes = replay_as(&model, Grpo { replay, checkpoint_every, ..Grpo::default() }, &rollouts) as f64;
                let took = start.elapsed().as_secs_f64();
                let (_, before) = least.unwrap_or((bytes, took));
                *least = Some((bytes, took.min(before)));
            }
        }
        let of = least.map(|of| of.expect("measured"));
        for ((name, ..), (bytes, took)) in HOW.iter().zip(of) {
            let (mb, ms) = (bytes / 1e6, took * 1e3);
            println!(
                "| {} | {name} | {mb:.1} | {:.2} | {ms:.1} | {:.2} |",
                6 * blocks,
                bytes / of[0].0,
                took / of[0].1
            );
        }
    }
}

/// The planned bytes of a supervised batch equal those of its gradient, for every family and length.
#[test]
fn a_training_batch_uses_the_planned_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let wide = |family, hidden_size, intermediate_size| ModelConfig {
        hidden_size,
        intermediate_size,
        vocab_size: 256,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: hidden_size / 4,
        max_position_embeddings: 1024,
        ..tiny_config(family, true)
    };
    for (config, rows, length) in [
        (wide(Family::Qwen3, 64, 192), 8, 64),
        (wide(Family::Qwen3, 64, 192), 1, 512),
        (wide(Family::Llama, 128, 512), 4, 128),
        (wide(Family::Llama, 128, 128), 8, 256),
    ] {
        let model = Decoder::random(&config, 0, &Device::flex().autodiff()).expect("a model");
        let trainer = Trainer::new(model, &Optimizer::default());
        let sft = one_step(IDS.latent, 1);
        let ids = |row: u32| (0..length as u32).map(|at| (at * 7 + row) % 20).collect();
        let rows: Vec<Row> =
            (0..rows).map(|row| Row { ids: ids(row), prompt: 4, teacher: None, noise: None, slots: vec![] }).collect();
        let learn = || drop(sft::gradients(&trainer, &sft, &rows).expect("gradients"));
        learn();
        let held = peak(learn) as f64;
        let weights: usize =
            expected_parameters(&config).iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        let planned = (4 * weights) as f64 + (position_bytes(&config, 4) * (rows.len() * length) as u64) as f64;
        println!(
            "{:?} d {} f {}: {} rows of {length}: {held} B, {planned} B planned ({:.2} x), without gradients {} B a position",
            config.family,
            config.hidden_size,
            config.intermediate_size,
            rows.len(),
            planned / held,
            (held - (4 * weights) as f64) / (rows.len() * length) as f64
        );
        assert!((0.7..1.6).contains(&(planned / held)));
    }
}

/// A model of 26 MB in bf16: each matrix is less than a tenth of it.
#[test]
fn a_model_in_its_stored_format_uses_the_memory_of_its_file() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = ModelConfig {
        vocab_size: 2048,
        hidden_size: 512,
        intermediate_size: 1024,
        num_hidden_layers: 5,
        num_attention_heads: 8,
        num_key_value_heads: 4,
        head_dim: 64,
        ..tiny_config(Family::Qwen3, true)
    };
    let root = tempfile::tempdir().expect("a folder");
    for (name, file) in [("folder", "folder/model.safetensors"), ("model.gguf", "model.gguf")] {
        write_random(&config, &root.path().join(name), 0).expect("writes");
        let size = std::fs::metadata(root.path().join(file)).expect("a file").len() as f64;
        let mut held = None;
        let load = |held: &mut Option<Decoder>| {
            let checkpoint = ModelFiles::open(root.path().join(name).to_str().expect("a path")).expect("opens");
            *held = Some(Decoder::load_kept(&checkpoint, &Device::flex()).expect("loads"));
        };
        let most = peak(|| load(&mut held)) as f64;
        println!("{name}: {size} B on disk, at most {most} B held while it is read ({:.3} x)", most / size);
        assert!(most <= 1.15 * size, "{name}: {most} B for a file of {size} B");
    }
}
