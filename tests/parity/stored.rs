//! Weights in the format of their files against the same weights widened to floats.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use switchyard::latent::{Blocks, Decode, DecodeSettings, HiddenState, Request, SwitchIds, Switching, Trace, decode};
use switchyard::loading::Checkpoint;
use switchyard::machine::Compute;
use switchyard::model::checkpoint::peft::Apply;
use switchyard::model::checkpoint::{Dtype, ModelFiles, SaveOptions, save_hf_folder, write_random};
use switchyard::model::{Decoder, HookSpec, Hooks, ModelConfig, Span};
use switchyard::ops::Targets;
use switchyard::parity::recorder::{padded, pieces, ragged, record};

use super::reference::{TINY, assert_all, fixture, fixtures, read, relative, rows, values};

const BOUND: f32 = 1e-5;

/// A tiny model's folder in another number format.
fn rewritten(root: &Path, name: &str, dtype: Dtype) -> PathBuf {
    let checkpoint = ModelFiles::open_folder(fixture(&format!("tiny/{name}"))).expect("the fixture opens");
    let dir = root.join(format!("{name}-{}", dtype.size()));
    let options = SaveOptions { dtype, overwrite: true, ..SaveOptions::default() };
    save_hf_folder(&dir, &checkpoint.config, checkpoint.tensors(), &options).expect("saves");
    dir
}

#[test]
fn a_kept_model_has_pytorchs_hook_points_and_decodes_as_one_row_alone() {
    let model = fixtures().of_kept();
    let points = model.as_ref().expect("compares").iter().filter(|c| c.what.contains("every hook point")).count();
    assert_eq!(points, 7 * TINY.len(), "seven ways of running each model");
    assert_all(model);
}

/// In the stored format, and widened.
fn both(path: &Path, device: &Device) -> [Decoder; 2] {
    let checkpoint = ModelFiles::open(path.to_str().expect("a path")).expect("opens");
    let [kept, wide] = [Compute::Stored, Compute::F32].map(|dtype| dtype.load(&checkpoint, device).expect("loads"));
    assert!(kept.is_kept() && Compute::new(&kept) == Compute::Stored, "{}", path.display());
    assert_eq!(Compute::new(&wide), Compute::F32);
    [kept, wide]
}

/// Largest difference over all hook points, hidden states and logits.
fn compare(path: &Path, ids: &[Vec<u32>]) -> f32 {
    let [kept, wide] = both(path, &Device::flex());
    let mut worst = 0.0_f32;
    let token_by_token = |r: usize| pieces(ids, r, &(0..=ids[r].len()).collect::<Vec<_>>());
    for calls in [vec![padded(ids, false)], ragged(ids, &[4, 9, 1]), token_by_token(0), token_by_token(1)] {
        let (ours, theirs) = (record(&kept, &calls).expect("a forward"), record(&wide, &calls).expect("a forward"));
        assert_eq!(ours.len(), theirs.len());
        for (key, positions) in &theirs {
            let flat =
                |x: &std::collections::BTreeMap<usize, Vec<f32>>| x.values().flatten().copied().collect::<Vec<_>>();
            let off = relative(&flat(&ours[key]), &flat(positions), &key.0);
            assert!(off <= BOUND, "{}: {key:?} is off by {off:e}", path.display());
            worst = worst.max(off);
        }
    }
    worst
}

#[test]
fn every_hook_point_is_that_of_the_widened_model() {
    let root = tempfile::tempdir().expect("a folder");
    for name in TINY {
        let ids = rows(&read(&format!("tiny/{name}/reference.safetensors")));
        for dtype in [Dtype::BF16, Dtype::F16] {
            println!("{name} {dtype:?}: {:.1e}", compare(&rewritten(root.path(), name, dtype), &ids));
        }
    }
    let ids: Vec<Vec<u32>> = [13, 17, 9].map(|n| (0..n).map(|i| i * 7 % 60).collect()).to_vec();
    for name in ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q5_k_m", "qwen2", "f16", "bf16"] {
        println!("{name}: {:.1e}", compare(&fixture(&format!("gguf/tiny-{name}.gguf")), &ids));
    }
}

fn run(model: &Decoder, prompts: &[Vec<u32>]) -> Vec<Trace> {
    let v = model.config().vocab_size as u32;
    let switch = Some(SwitchIds { swi: v - 3, swi_end: v - 2, latent: v - 1 });
    let settings =
        DecodeSettings { k_min: 3, k_cap: 5, max_new_tokens: 12, switching: Switching::Forced, ..Default::default() };
    let how = Decode {
        model,
        source: &HiddenState,
        controller: &Blocks::LEARNT,
        switch,
        settings: &settings,
        cancel: None,
        ahead: None,
    };
    let requests = Request::all(prompts.iter().cloned());
    decode(how, &requests, 1, &mut Hooks::none()).expect("decodes")
}

#[test]
fn decoding_with_latents_runs_the_same_steps() {
    let root = tempfile::tempdir().expect("a folder");
    for name in ["qwen3_tied", "qwen2_tied", "llama_gqa"] {
        let [kept, wide] = both(&rewritten(root.path(), name, Dtype::BF16), &Device::flex());
        let prompts: Vec<Vec<u32>> = [5, 8, 3, 11].map(|n| (0..n).map(|i| (i * 11 + n) % 60).collect()).to_vec();
        let (ours, theirs) = (run(&kept, &prompts), run(&wide, &prompts));
        for (a, b) in ours.iter().zip(&theirs) {
            assert!(b.latent_calls() >= 3, "no latent steps ran");
            assert_eq!(a.positions.len(), b.positions.len());
            for (a, b) in a.positions.iter().zip(&b.positions) {
                assert_eq!((a.token, a.kind), (b.token, b.kind));
                let close = |a: Option<f64>, b: Option<f64>| match (a, b) {
                    (Some(a), Some(b)) => (a - b).abs() <= 1e-4,
                    (a, b) => a.is_none() && b.is_none(),
                };
                assert!(close(a.logprob, b.logprob) && close(a.p_exit, b.p_exit), "{a:?} is not {b:?}");
            }
        }
    }
}

#[test]
fn a_chunked_batch_has_the_bits_of_its_rows_alone() {
    let root = tempfile::tempdir().expect("a folder");
    let [kept, _] = both(&rewritten(root.path(), "qwen3_tied", Dtype::BF16), &Device::flex());
    // 1,200 positions: more than one chunk of the MLP and of the loss.
    let ids: Vec<Vec<u32>> = (0..30).map(|row| (0..40).map(|i| (i * 7 + row * 3) % 40).collect()).collect();
    let hidden = |ids: &[Vec<u32>]| {
        let span = Span::prompts(&vec![40; ids.len()], false);
        let x = kept.embed(ids).expect("embeds");
        let hidden = kept.hidden(x, &span, &mut kept.cache(ids.len()), &mut Hooks::none()).expect("a forward");
        hidden.reshape([ids.len() * 40, kept.config().hidden_size])
    };
    let losses = |hidden: Tensor<2>, ids: &[u32]| {
        let (losses, hits) = kept.token_losses(hidden, Targets::new(ids.to_vec())).expect("losses");
        [values(&losses), values(&hits)].concat()
    };
    let together = hidden(&ids);
    let [all, d] = together.dims();
    assert_eq!(all, 1200);
    let flat = ids.concat();
    let all = losses(together.clone(), &flat);
    for row in [0, 17, 29] {
        let alone = hidden(&ids[row..=row]);
        let here = together.clone().slice([row * 40..row * 40 + 40, 0..d]);
        assert_eq!(values(&alone), values(&here), "row {row}");
        let alone = losses(alone, &ids[row]);
        assert_eq!(alone[..40], all[row * 40..row * 40 + 40], "row {row}");
        assert_eq!(alone[40..], all[1200 + row * 40..1240 + row * 40], "row {row}");
    }
}

#[test]
fn a_cache_for_one_call_stores_nothing() {
    let checkpoint = ModelFiles::open_folder(fixture("tiny/qwen3_tied")).expect("the fixture opens");
    let model = Decoder::load(&checkpoint, &Device::flex()).expect("loads");
    let ids: Vec<Vec<u32>> = [13, 9].map(|n| (0..13).map(|i| i * 7 % 40 + n).collect()).to_vec();
    let span = Span::prompts(&[13, 9], false);
    let (mut kept, mut once) = (model.cache(2), model.cache_for_one_call(2));
    let [with, without] = [&mut kept, &mut once].map(|cache| {
        let x = model.embed(&ids).expect("embeds");
        values(&model.hidden(x, &span, cache, &mut Hooks::none()).expect("a forward"))
    });
    assert_eq!(with, without);
    assert!(kept.layer(0).is_some() && once.layer(0).is_none());
    let x = model.embed(&[vec![1], vec![2]]).expect("embeds");
    let again = Span { rows: vec![0, 1], ..Span::prompts(&[1, 1], false) };
    let text = model.hidden(x, &again, &mut once, &mut Hooks::none()).expect_err("refused").to_string();
    assert!(text.contains("single call"), "{text}");
}

#[test]
fn gradients_pass_through_to_the_input() {
    let root = tempfile::tempdir().expect("a folder");
    for name in ["qwen3_tied", "qwen2_tied", "llama_gqa"] {
        let path = rewritten(root.path(), name, Dtype::BF16);
        let device = Device::flex().autodiff();
        let of = |model: &Decoder| {
            let ids: Vec<u32> = (0..40).map(|i| i % 50).collect();
            let x = model.embed(std::slice::from_ref(&ids)).expect("embeds").detach().require_grad();
            let span = Span::prompts(&[ids.len()], false);
            let hidden = model.hidden(x.clone(), &span, &mut model.cache(1), &mut Hooks::none()).expect("a forward");
            let [_, l, d] = hidden.dims();
            let (loss, _) = model.token_losses(hidden.reshape([l, d]), Targets::new(ids)).expect("losses");
            let loss: Tensor<1> = loss.mean();
            let grads = loss.backward();
            (values(&loss), values(&x.grad(&grads).expect("a gradient")))
        };
        let [kept, wide] = both(&path, &device).map(|model| of(&model));
        assert!(
            relative(&kept.0, &wide.0, "loss") <= BOUND && relative(&kept.1, &wide.1, "gradient") <= BOUND,
            "{name}"
        );
        assert!(wide.1.iter().any(|x| *x != 0.0));
    }
}

#[test]
fn adapters_over_stored_weights_equal_those_merged_into_floats() {
    let root = tempfile::tempdir().expect("a folder");
    for (base, adapter) in [
        ("qwen3_tied", "qwen3_tied_peft"),
        ("qwen2_tied", "qwen2_tied_peft"),
        ("qwen3_untied", "qwen3_untied_peft_modules"),
    ] {
        let base = rewritten(root.path(), base, Dtype::BF16).display().to_string();
        let adapter = fixture(&format!("tiny/{adapter}"));
        let load = |dtype, adapter: Option<&Path>| {
            let opened = Checkpoint::open(&base, adapter, Apply::Merged).expect("opens");
            opened.load_as(dtype, &Device::flex()).expect("loads").model
        };
        let ids = vec![(0..9).map(|i| i * 5 % 40).collect::<Vec<u32>>()];
        let logits = |model: &Decoder| values(&model.logits(&ids, &mut Hooks::none()).expect("a forward"));
        let (kept, wide) = (load(Compute::Stored, Some(&adapter)), load(Compute::F32, Some(&adapter)));
        assert!(kept.is_kept());
        assert!(relative(&logits(&kept), &logits(&wide), "logits") <= BOUND, "{base}");
        // The adapter may add tokens: compares the first position's logits over the common vocabulary.
        let (plain, wide) = (logits(&load(Compute::Stored, None)), logits(&wide));
        assert!(relative(&plain[..30], &wide[..30], "logits") > 1e-3, "the adapter changes nothing");
    }
}

#[test]
fn models_of_any_shape_are_written_and_read() {
    let root = tempfile::tempdir().expect("a folder");
    let ids: Vec<Vec<u32>> = [13, 17, 9].map(|n| (0..n).map(|i| i * 7 % 30).collect()).to_vec();
    let shapes = ["qwen2_untied", "qwen3_untied"].map(|name| {
        let config = ModelFiles::open_folder(fixture(&format!("tiny/{name}"))).expect("opens").config;
        // All rows are whole blocks, except those of o_proj.
        (name, ModelConfig { hidden_size: 64, intermediate_size: 96, ..config })
    });
    for (family, config) in &shapes {
        for name in ["folder", "file.gguf"] {
            let out = root.path().join(family).join(name);
            write_random(config, &out, 3).expect("writes");
            let read = ModelFiles::open(out.to_str().expect("a path")).expect("opens").config;
            assert_eq!((read.hidden_size, read.family), (config.hidden_size, config.family));
            compare(&out, &ids);
            assert!(write_random(config, &out, 3).is_err(), "an existing file is not overwritten");
        }
    }
    let (family, config) = &shapes[1];
    let root = root.path().join(family);
    let again = root.join("again");
    write_random(config, &again, 3).expect("writes");
    let file = |dir: &str| std::fs::read(root.join(dir).join("model.safetensors")).expect("reads");
    assert_eq!(file("folder"), file("again"), "the seed alone decides");
}

#[test]
fn large_f32_models_stay_in_their_stored_format() {
    let root = tempfile::tempdir().expect("a folder");
    let small = fixture("tiny/qwen3_tied");
    let checkpoint = ModelFiles::open_folder(&small).expect("the fixture opens");
    assert!(!Compute::Stored.load(&checkpoint, &Device::flex()).expect("loads").is_kept());
    let config = ModelConfig { vocab_size: 1 << 19, ..checkpoint.config };
    let model = Decoder::random(&config, 3, &Device::flex()).expect("a model");
    let large = root.path().join("large");
    let weights = model.export().expect("weights").into_iter().map(Ok);
    save_hf_folder(&large, &config, weights, &SaveOptions::default()).expect("saves");
    let ids: Vec<Vec<u32>> = [13, 17, 9].map(|n| (0..n).map(|i| i * 7 % 60).collect()).to_vec();
    compare(&large, &ids);
}

/// Observing the heads' results does not change the first attention's output, whose inputs are rounded.
fn assert_heads_are_rounded(model: &Decoder, ids: &[u32], name: &str) {
    let layers = model.config().num_hidden_layers;
    let [plain, observed] = [false, true].map(|observes| {
        let mut out = vec![];
        let mut hooks = Hooks::none();
        if observes {
            hooks.observe(&HookSpec::all("blocks.0.attn.hook_result"), layers, |_, _| Ok(())).expect("a point");
        }
        hooks
            .observe(&HookSpec::all("blocks.0.hook_attn_out"), layers, |_, value| {
                out = value.to_vec()?;
                Ok(())
            })
            .expect("a point");
        model.logits(&[ids.to_vec()], &mut hooks).expect("a forward");
        drop(hooks);
        out
    });
    let off = relative(&observed, &plain, name);
    assert!(off <= 1e-4, "{name}, {} positions: observing the heads changes attention by {off:e}", ids.len());
}

#[test]
fn rounded_inputs_cost_only_bf16_rounding() {
    let root = tempfile::tempdir().expect("a folder");
    for name in TINY {
        let path = rewritten(root.path(), name, Dtype::BF16);
        let checkpoint = ModelFiles::open_folder(&path).expect("opens");
        let load = |dtype: Compute| dtype.load(&checkpoint, &Device::flex()).expect("loads");
        let (rounded, wide) = (load(Compute::StoredBf16), load(Compute::F32));
        assert!(rounded.is_kept() && Compute::new(&rounded) == Compute::StoredBf16);
        // Few and many rows use different loops.
        let most = checkpoint.config.max_position_embeddings.min(50);
        let long: Vec<u32> = (0..most as u32).map(|i| i * 7 % 40).collect();
        let logits = |model: &Decoder, ids: &[u32]| {
            values(&model.logits(&[ids.to_vec()], &mut Hooks::none()).expect("a forward"))
        };
        for n in [8, most] {
            let off = relative(&logits(&rounded, &long[..n]), &logits(&wide, &long[..n]), name);
            assert!((1e-4..0.03).contains(&off), "{name}, {n} rows: off by {off:e}");
            assert_heads_are_rounded(&rounded, &long[..n], name);
        }
        let few = logits(&rounded, &long[..8]);
        let off = relative(&few, &logits(&rounded, &long)[..few.len()], name);
        assert!(off < 0.03, "{name}: the loops differ by {off:e}");
    }
    let text =
        Compute::StoredBf16.load(&ModelFiles::open_folder(fixture("tiny/qwen3_tied")).expect("opens"), &Device::flex());
    let text = text.expect_err("refused").to_string();
    assert!(text.contains("qwen3_tied") && text.contains("use stored"), "{text}");
}

#[test]
fn inputs_of_eight_bits_cost_only_their_rounding_and_rows_do_not_depend_on_others() {
    for name in ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q5_k_m"] {
        let checkpoint = ModelFiles::open_gguf(fixture(&format!("gguf/tiny-{name}.gguf"))).expect("opens");
        let load = |dtype: Compute| dtype.load(&checkpoint, &Device::flex()).expect("loads");
        let (rounded, exact) = (load(Compute::StoredQ8), load(Compute::Stored));
        assert_eq!(Compute::new(&rounded), Compute::StoredQ8);
        let row = |from: u32, n: u32| (from..from + n).map(|i| i * 7 % 20).collect::<Vec<u32>>();
        let logits =
            |model: &Decoder, ids: &[Vec<u32>]| values(&model.logits(ids, &mut Hooks::none()).expect("a forward"));
        for n in [4, 40] {
            let off = relative(&logits(&rounded, &[row(0, n)]), &logits(&exact, &[row(0, n)]), name);
            assert!((1e-5..0.1).contains(&off), "{name}, {n} rows: off by {off:e}");
            assert_heads_are_rounded(&rounded, &row(0, n), name);
        }
        let both = logits(&rounded, &[row(3, 5), row(0, 5)]);
        assert_eq!(logits(&rounded, &[row(0, 5)]), both[both.len() / 2..], "{name}: a row alone");
    }
}

#[test]
fn unsupported_operations_of_stored_weights_are_errors() {
    let root = tempfile::tempdir().expect("a folder");
    let path = rewritten(root.path(), "qwen3_untied", Dtype::BF16);
    let [kept, _] = both(&path, &Device::flex().autodiff());
    let text = kept.export().expect_err("refused").to_string();
    assert!(text.contains("--dtype f32"), "{text}");
    // A NaN weight is an error that names tensor, file and row.
    let file = path.join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("reads");
    let at = bytes.len() - 2;
    bytes[at..].copy_from_slice(&half::bf16::NAN.to_le_bytes());
    std::fs::write(&file, bytes).expect("writes");
    let checkpoint = ModelFiles::open_folder(&path).expect("opens");
    let text = format!("{:#}", Compute::Stored.load(&checkpoint, &Device::flex()).expect_err("refused"));
    assert!(text.contains("model.safetensors") && text.contains("not finite") && text.contains("row"), "{text}");
}
