//! One SFT step and one Switch-GRPO loss against PyTorch (fixtures/make_steps.py), and their invariants.

use std::collections::BTreeMap;

use crate::common::{one_step, relative};
use crate::parity::reference::{assert_all, fixture, fixtures, tiny};
use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType, GradientCheckpointingStrategy, Int, Tensor, TensorData};
use serde::Deserialize;
use switchyard::corpus::Row;
use switchyard::latent::{Gradient, HiddenState, Reasoning, SwitchIds};
use switchyard::model::checkpoint::{HostTensor, ModelFiles};
use switchyard::model::gradients::gradients_by_name;
use switchyard::model::lora::LoraSettings;
use switchyard::model::{Decoder, Hooks};
use switchyard::parity::{GRPO_CASES, GrpoValues, grpo_step, sft_step};
use switchyard::recipe::{Compute, Grpo, Optimizer, ReplayMode};
use switchyard::train::grpo::{cosine, gradients};
use switchyard::train::rollouts::{Behaviour, Rollout};
use switchyard::train::sft;
use switchyard::train::state::PhaseFolder;
use switchyard::train::trainer::Trainer;

const IDS: SwitchIds = SwitchIds { swi: 93, swi_end: 94, latent: 95 };

fn model() -> Decoder {
    tiny("qwen3_tied", &Device::flex().autodiff())
}

#[derive(Deserialize)]
struct RowFixture {
    ids: Vec<u32>,
    prompt: usize,
}

fn known_rows() -> Vec<Row> {
    let text = std::fs::read_to_string(fixture("latent/rows.json")).expect("rows");
    let sets: BTreeMap<String, Vec<RowFixture>> = serde_json::from_str(&text).expect("rows");
    sets["b"]
        .iter()
        .map(|r| Row { ids: r.ids.clone(), prompt: r.prompt, teacher: None, slots: vec![], noise: None })
        .collect()
}

#[test]
fn an_sft_step_agrees_with_pytorch() {
    // One thread, two threads and two micro-batches are the same step.
    for (threads, accumulate) in [(1, 1), (2, 1), (1, 2)] {
        assert_all(sft_step(&fixtures(), threads, accumulate));
    }
}

#[test]
fn checkpointing_recomputes_and_changes_nothing() {
    let after = |device: Device| {
        let mut trainer = Trainer::new(tiny("qwen3_tied", &device), &Optimizer::default());
        sft::step(&mut trainer, &one_step(IDS.latent, 1), &known_rows(), 1e-3).expect("a step");
        trainer.decoder().export().expect("weights")
    };
    let before = model().valid().export().expect("weights");
    let kept = after(Device::flex().autodiff());
    assert!(before.iter().zip(&kept).all(|((_, a), (_, b))| a != b), "the step changed no weight");
    let recomputed = after(Device::flex().autodiff().gradient_checkpointing());
    for ((name, a), (_, b)) in kept.iter().zip(&recomputed) {
        assert!(relative(&a.data, &b.data) < 1e-6, "{name}");
    }
}

#[test]
fn a_restored_trainer_still_recomputes() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    let begin = || {
        let settings = LoraSettings { rank: 2, ..LoraSettings::default() };
        Trainer::new(tiny("qwen3_tied", &device).with_lora(&settings).expect("factors"), &Optimizer::default())
    };
    let step = |trainer: &mut Trainer| {
        sft::step(trainer, &one_step(IDS.latent, 1), &known_rows(), 1e-3).expect("a step");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = PhaseFolder::open(folder.path(), "sft").expect("a phase");
    let mut whole = begin();
    step(&mut whole);
    folder.save(1, &whole).expect("saves");
    let mut restored = begin();
    let at = folder.restore(&mut restored).expect("reads");
    assert_eq!(at, 1);
    let strategy = Some(GradientCheckpointingStrategy::Balanced);
    assert_eq!(restored.model.device().gradient_checkpointing_strategy(), strategy);
    assert_eq!(restored.model.parameters(), whole.model.parameters());
    step(&mut whole);
    step(&mut restored);
    assert_eq!(restored.decoder().export().expect("weights"), whole.decoder().export().expect("weights"));
}

#[test]
fn a_model_read_in_bf16_equals_the_rounded_f32_one() {
    let checkpoint = ModelFiles::open_folder(fixture("tiny/qwen3_tied")).expect("the tiny model");
    let read = Compute::Bf16.load(&checkpoint, &Device::flex()).expect("its weights");
    let rounded = Decoder::load(&checkpoint, &Device::flex()).expect("its weights").cast(FloatDType::BF16);
    assert_eq!(Compute::new(&read), Compute::Bf16);
    assert_eq!(read.export().expect("weights"), rounded.export().expect("weights"));
    assert_eq!(read.parameters(), rounded.parameters());
}

#[test]
fn bf16_compute_with_f32_master_weights_is_close_to_f32() {
    let after = |dtype| {
        let mut trainer = Trainer::new(model(), &Optimizer { dtype, ..Optimizer::default() });
        let stats = sft::step(&mut trainer, &one_step(IDS.latent, 2), &known_rows(), 1e-3).expect("a step");
        (stats, trainer.decoder().export().expect("weights"))
    };
    let ((f32_stats, _), (bf16_stats, weights)) = (after(Compute::F32), after(Compute::Bf16));
    let off = (f32_stats.loss - bf16_stats.loss).abs() / f32_stats.loss;
    assert!(off > 0.0 && off < 1e-2, "loss {} against {}", bf16_stats.loss, f32_stats.loss);
    assert!((f32_stats.norm - bf16_stats.norm).abs() / f32_stats.norm < 5e-2, "{bf16_stats:?} against {f32_stats:?}");
    // A step below half a bf16 ulp still changes the weights: they are stored in f32.
    let before = model().valid().export().expect("weights");
    let small = before.iter().zip(&weights).flat_map(|((_, a), (_, b))| a.data.iter().zip(&b.data));
    let moved = small.filter(|(a, b)| a != b && half::bf16::from_f32(**a) == half::bf16::from_f32(**b)).count();
    assert!(moved > 0, "no weight moved by less than bf16 can hold");

    // Rollout and replay in bf16 agree to bf16's rounding.
    let (values, rollouts) = grpo_fixture();
    let settings = values.decoding();
    let reasoning = Reasoning::default();
    let policy = Behaviour { reasoning: &reasoning, switch: IDS, settings: &settings, compute: Compute::Bf16 };
    let (_, parts) = gradients(&model(), policy, &rollouts, &with(ReplayMode::Segmented), 1).expect("gradients");
    assert!((parts.loss - values.loss).abs() < 0.05, "loss {} against {}", parts.loss, values.loss);
}

#[test]
fn a_frozen_bf16_base_is_stored_once_next_to_f32_factors() {
    let settings = LoraSettings { rank: 4, alpha: 8.0, train_embeddings: false, ..LoraSettings::default() };
    let lora = || model().with_lora(&settings).expect("factors");
    let after = |dtype| {
        let mut trainer = Trainer::new(lora(), &Optimizer { dtype, ..Optimizer::default() });
        let mut step = || sft::step(&mut trainer, &one_step(IDS.latent, 2), &known_rows(), 3e-3).expect("a step").loss;
        let losses = [step(), step(), step()];
        (losses, trainer)
    };
    let ((f32_losses, f32_trainer), (losses, trainer)) = (after(Compute::F32), after(Compute::Bf16));
    for (ours, f32) in losses.iter().zip(f32_losses) {
        assert!((ours - f32).abs() / f32 < 2e-2, "{losses:?} against {f32_losses:?}");
    }
    assert!(losses[2] < losses[0], "the factors learn: {losses:?}");

    // In memory: the base in bf16, factors in f32.
    let held = |trainer: &Trainer| {
        let weight = trainer.model.layers[0].self_attn.q_proj.weight.param().expect("floats").clone();
        (
            weight.base().dtype(),
            weight.adapter().expect("factors").b.val().dtype(),
            trainer.model.norm.weight.val().dtype(),
        )
    };
    assert_eq!(held(&trainer), (DType::BF16, DType::F32, DType::BF16));
    assert_eq!(held(&f32_trainer), (DType::F32, DType::F32, DType::F32));

    // Exported: the base to bf16's rounding, and the learnt change.
    let exported = |trainer: &Trainer| trainer.decoder().export().expect("weights");
    let (start, ours, theirs) =
        (model().valid().export().expect("weights"), exported(&trainer), exported(&f32_trainer));
    let mut learnt = 0;
    for (((name, start), (_, ours)), (_, theirs)) in start.iter().zip(&ours).zip(&theirs) {
        // AdamW's first steps have the same size for tiny and large gradients.
        let off = relative(&ours.data, &theirs.data);
        assert!(off < 5e-2, "{name}: {off}");
        let rounded = start.data.iter().map(|x| half::bf16::from_f32(*x).to_f32());
        learnt += usize::from(ours.data.iter().zip(rounded).any(|(ours, start)| *ours != start));
    }
    assert_eq!(learnt, 7 * model().layers.len(), "only projections changed, and all of them");

    // Rollouts: the same base with separate factors.
    let logits = |model: &Decoder| {
        let logits = model.logits(&[vec![3, 1, 4, 1, 5]], &mut Hooks::none()).expect("logits");
        logits.try_into_vec_as::<f32>().expect("values")
    };
    let policy = trainer.policy();
    assert_eq!(Compute::new(&policy), Compute::Bf16);
    assert!(relative(&logits(&policy), &logits(&trainer.decoder().materialize().cast(FloatDType::F32))) < 3e-2);
    assert!(relative(&logits(&policy), &logits(&model().valid())) > 1e-3, "the factors are in it");
}

fn grpo_fixture() -> (GrpoValues, Vec<Rollout>) {
    GrpoValues::read(&fixture(""), "grpo").expect("fixture")
}

fn with(replay: ReplayMode) -> Grpo {
    Grpo { replay, ..Grpo::default() }
}

#[test]
fn the_grpo_loss_agrees_with_pytorch() {
    let (_, rollouts) = grpo_fixture();
    let blocks: Vec<usize> = rollouts.iter().map(|r| r.trace.blocks().len()).collect();
    assert_eq!(blocks, [1, 0, 2, 1, 1, 0], "rollouts with blocks: only there do the replay modes differ");
    for (case, threads) in GRPO_CASES.iter().flat_map(|case| [(case, 1), (case, 2)]) {
        assert_all(grpo_step(&fixtures(), case, threads));
    }
}

#[test]
fn segmented_equals_text_graph_for_one_segment() {
    let (values, rollouts) = grpo_fixture();
    let settings = values.decoding();
    let reasoning = Reasoning::default();
    let policy = Behaviour { reasoning: &reasoning, switch: IDS, settings: &settings, compute: Compute::F32 };
    let (text, blocks): (Vec<_>, Vec<_>) = rollouts.into_iter().partition(|r| !r.trace.switched());
    assert!(!text.is_empty() && !blocks.is_empty());
    let pair = [&with(ReplayMode::Segmented), &with(ReplayMode::TextGraph)];
    let same = cosine(&model(), policy, &text, pair).expect("cosine");
    assert!((same - 1.0).abs() < 1e-6, "cosine {same} without blocks");
    for pair in [pair, [&with(ReplayMode::FullBptt), &with(ReplayMode::TextGraph)]] {
        let other = cosine(&model(), policy, &blocks, pair).expect("cosine");
        assert!(other < 1.0 - 1e-4, "with blocks {:?} must differ, cosine {other}", pair.map(|grpo| grpo.replay));
    }
}

/// Waves recomputed from saved states against one graph of all waves: with masks, and with the decisions to stay in the loss.
#[test]
fn recomputed_segments_have_the_gradient_of_the_whole_graph() {
    let (values, rollouts) = grpo_fixture();
    let (settings, reasoning) = (values.decoding(), Reasoning::default());
    let policy = Behaviour { reasoning: &reasoning, switch: IDS, settings: &settings, compute: Compute::F32 };
    let model = model();
    for (dropout_rollouts, continue_term) in [(0.0, false), (0.2, true)] {
        let of = |replay, checkpoint_every| {
            let grpo = Grpo { checkpoint_every, dropout_rollouts, continue_term, ..with(replay) };
            let (grads, parts) = gradients(&model, policy, &rollouts, &grpo, 1).expect("gradients");
            let grads = gradients_by_name(&model, &grads).expect("gradients");
            let names: Vec<String> = grads.iter().map(|(name, _)| name.clone()).collect();
            (names, grads.into_iter().flat_map(|(_, t)| t.data).collect::<Vec<f32>>(), parts)
        };
        let (names, whole, parts) = of(ReplayMode::FullBptt, 0);
        for every in [1, 2, 3, 100] {
            let (same_names, again, same) = of(ReplayMode::FullBptt, every);
            let off = relative(&again, &whole);
            println!("{every} latents a segment, masks {dropout_rollouts}: off by {off:.1e} of the largest");
            assert!(names == same_names && off <= 1e-6, "{every}: {off:e}");
            assert!((same.loss - parts.loss).abs() < 1e-6 && same.tokens == parts.tokens, "{same:?}, {parts:?}");
        }
        let frozen = of(ReplayMode::TextGraph, 0).1;
        assert!(relative(&frozen, &whole) > 1e-3, "the gradient through latents is not negligible");
    }
}

/// Only a lack of memory leaves a rollout out: any other panic is an error with its message.
#[test]
fn a_panic_of_a_replay_is_an_error() {
    let (values, mut rollouts) = grpo_fixture();
    let (settings, reasoning) = (values.decoding(), Reasoning::default());
    let policy = Behaviour { reasoning: &reasoning, switch: IDS, settings: &settings, compute: Compute::F32 };
    rollouts[2].anchor.clear();
    for (replay, threads) in [(ReplayMode::Segmented, 1), (ReplayMode::Segmented, 2), (ReplayMode::FullBptt, 1)] {
        let error = gradients(&model(), policy, &rollouts, &with(replay), threads).map(drop).expect_err("no anchor");
        assert!(error.to_string().contains("index out of bounds"), "{replay:?}: {error:#}");
    }
}

#[test]
fn nan_steps_are_skipped_and_counted_and_end_the_run() {
    let mut trainer = Trainer::new(model(), &Optimizer::default());
    let before = trainer.decoder().export().expect("weights");
    for attempt in 1..=3 {
        let grads = burn::optim::GradientsParams::new();
        let result = trainer.apply(grads, f64::NAN, 1e-3);
        assert_eq!(result.is_err(), attempt == 3, "attempt {attempt}");
        assert_eq!(trainer.health.skipped, attempt);
    }
    assert_eq!(before, trainer.decoder().export().expect("weights"));
}

#[test]
fn lora_composed_once_has_the_gradients_of_lora_composed_at_every_wave() {
    use burn::optim::GradientsParams;
    use switchyard::latent::{Sequence, unroll};
    use switchyard::method::objective::{response_loss, targets};

    let settings = LoraSettings { rank: 4, alpha: 8.0, train_embeddings: true, ..LoraSettings::default() };
    let model = model().with_lora(&settings).expect("factors");
    let rows = known_rows();
    let once = response_loss(&model, &rows, IDS.latent, &HiddenState, Gradient::Through).expect("a loss");
    let once_value = once.loss.clone().into_scalar::<f32>();
    let once = GradientsParams::from_grads(once.loss.backward(), &model);

    // The same loss with factors composed at every wave.
    let sequence = |(i, r): (usize, &Row)| Sequence::new(i, r.ids.clone(), r.prompt, Some(IDS.latent)).expect("a row");
    let sequences: Vec<_> = rows.iter().enumerate().map(sequence).collect();
    let all = unroll(&model, &sequences, &HiddenState, Gradient::Through, &mut Hooks::none()).expect("unroll");
    let targets = targets(&rows, IDS.latent);
    let places: Vec<_> = targets.iter().map(|&(b, p, _)| (b, p)).collect();
    let logits = model.unembed(all.hidden_at(&places).expect("places").unsqueeze_dim(0));
    let ids: Vec<i32> = targets.iter().map(|t| t.2 as i32).collect();
    let ids = TensorData::new(ids, [1, targets.len()]);
    let ids = Tensor::<2, Int>::from_data(ids, &logits.device());
    let loss = switchyard::ops::token_log_probs(logits, ids).sum().neg();
    assert!((loss.clone().into_scalar::<f32>() - once_value).abs() < 1e-3);
    let each = GradientsParams::from_grads(loss.backward(), &model);

    let (once, each) = (gradients_by_name(&model, &once).expect("a"), gradients_by_name(&model, &each).expect("b"));
    let factors = once.iter().filter(|(name, _)| name.contains("lora")).count();
    assert_eq!(factors, 2 * 7 * 3, "A and B of seven projections in three layers");
    // Gradients exactly on the factors, plus the embedding if the settings say so.
    assert_eq!(once.len(), factors + 1, "{:?}", once.iter().map(|(n, _)| n).collect::<Vec<_>>());
    for ((name, a), (_, b)) in once.iter().zip(&each) {
        let nothing = a.data.iter().chain(&b.data).all(|x| x.abs() < 1e-12);
        assert!(relative(&a.data, &b.data) < 1e-4 || nothing, "{name}");
    }
}

/// `lora.only_new_rows`: in embedding table and head only the rows of these tokens change, bit for bit; factors train as usual.
#[test]
fn only_the_rows_of_named_tokens_train() {
    for name in ["qwen3_tied", "qwen3_untied"] {
        let plain = |row: Row| Row { ids: row.ids.iter().map(|id| id % 60).collect(), ..row };
        let rows: Vec<Row> = known_rows().into_iter().map(plain).collect();
        let mut learnt = vec![rows[0].ids[0] as usize, rows[0].ids[1] as usize];
        learnt.sort_unstable();
        assert!(learnt[0] != learnt[1]);
        let settings = LoraSettings { rank: 4, alpha: 8.0, train_embeddings: true, ..LoraSettings::default() };
        let model = tiny(name, &Device::flex().autodiff());
        let before = model.valid().export().expect("weights");
        let after = |token_rows: Option<Vec<u32>>| {
            let optimizer = Optimizer { weight_decay: 0.0, ..Optimizer::default() };
            let model = model.clone().with_lora(&settings).expect("factors");
            let mut trainer = Trainer::new(model, &optimizer);
            trainer.token_rows = token_rows;
            for _ in 0..2 {
                sft::step(&mut trainer, &one_step(IDS.latent, 1), &rows, 1e-2).expect("a step");
            }
            trainer.policy().export().expect("weights")
        };
        let moved = |after: &[(String, HostTensor)], name: &str| -> Vec<usize> {
            let of = |all: &[(String, HostTensor)]| all.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
            let (Some(old), Some(new)) = (of(&before), of(after)) else { return vec![] };
            let width = old.shape[1];
            let rows = old.data.chunks(width).zip(new.data.chunks(width)).enumerate();
            rows.filter(|(_, (old, new))| old != new).map(|(row, _)| row).collect()
        };
        let (some, all) = (after(Some(learnt.iter().map(|&id| id as u32).collect())), after(None));
        let tables: Vec<&str> = ["model.embed_tokens.weight", "lm_head.weight"]
            .into_iter()
            .filter(|table| before.iter().any(|(name, _)| name == table))
            .collect();
        assert_eq!(tables.len(), if name == "qwen3_tied" { 1 } else { 2 }, "{name}");
        for table in tables {
            assert_eq!(moved(&some, table), learnt, "{name}: {table}");
            assert!(moved(&all, table).len() > 2, "{name}: {table}");
        }
        let factors = "model.layers.0.mlp.up_proj.weight";
        assert!(!moved(&some, factors).is_empty(), "{name}: {factors}");
    }
}
