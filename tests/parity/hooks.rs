//! Every hook point of every layer, for every computation mode.

use burn::tensor::{Device, Tensor, TensorData};
use switchyard::model::{HookSpec, Hooks};
use switchyard::parity::hooks;
use switchyard::parity::recorder::{padded, record};

use super::reference::{TINY, assert_all, fixtures, read, relative, rows, tiny, values};

#[test]
fn every_hook_point_agrees_with_transformers_in_every_mode() {
    for name in TINY {
        assert_all(hooks(&fixtures(), name));
    }
}

#[test]
fn the_stream_is_the_sum_of_its_parts() {
    for name in TINY {
        let model = tiny(name, &Device::flex());
        let rows = rows(&read(&format!("tiny/{name}/reference.safetensors")));
        let found = record(&model, &[padded(&rows, true)]).expect("a forward");
        let layers = model.config().num_hidden_layers;
        for row in 0..rows.len() {
            let at = |point: String, position: usize| found[&(point, row)][&position].clone();
            for layer in 0..layers {
                for position in 0..rows[row].len() {
                    let b = |kind: &str| at(format!("blocks.{layer}.{kind}"), position);
                    let sum = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(b).map(|(x, y)| x + y).collect::<Vec<_>>();
                    assert_eq!(sum(b("hook_resid_pre"), b("hook_attn_out")), b("hook_resid_mid"));
                    assert_eq!(sum(b("hook_resid_mid"), b("hook_mlp_out")), b("hook_resid_post"));
                    if layer + 1 < layers {
                        assert_eq!(b("hook_resid_post"), at(format!("blocks.{}.hook_resid_pre", layer + 1), position));
                    }
                    for head in b("attn.hook_pattern").chunks(position + 1) {
                        let sum: f32 = head.iter().sum();
                        assert!(
                            (sum - 1.0).abs() <= 1e-6 && head.iter().all(|p| *p >= 0.0),
                            "a pattern row sums to {sum}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn heads_add_up_to_the_output_of_attention() {
    for name in TINY {
        let model = tiny(name, &Device::flex());
        let rows = rows(&read(&format!("tiny/{name}/reference.safetensors")));
        let layers = model.config().num_hidden_layers;
        let mut results: Vec<(Vec<usize>, Vec<f32>)> = vec![];
        let mut outs: Vec<Vec<f32>> = vec![];
        let mut hooks = Hooks::none();
        let spec = |pattern: &str| HookSpec::all(pattern);
        hooks
            .observe(&spec("blocks.*.attn.hook_result"), layers, |_, value| {
                results.push((value.dims(), value.to_vec()?));
                Ok(())
            })
            .and_then(|hooks| {
                hooks.observe(&spec("blocks.*.hook_attn_out"), layers, |_, value| {
                    outs.push(value.to_vec()?);
                    Ok(())
                })
            })
            .expect("known points");
        let logits = model.logits(&rows[..1], &mut hooks).expect("a forward");
        drop(hooks);
        let plain = model.logits(&rows[..1], &mut Hooks::none()).expect("a forward");
        assert!(
            relative(&values(&logits), &values(&plain), "logits") <= 1e-5,
            "looking at the heads changed the result"
        );
        for (layer, ((dims, result), out)) in results.iter().zip(&outs).enumerate() {
            let (h, d) = (dims[2], dims[3]);
            let sum = |i: usize| (0..h).map(|head| result[(i / d * h + head) * d + i % d]).sum();
            let mut sums: Vec<f32> = (0..out.len()).map(sum).collect();
            if let Some(behind) = model.layers[layer].norms()[1] {
                let whole = TensorData::new(sums, [1, dims[1], d]);
                sums = values(&behind.apply(Tensor::<3>::from_data(whole, &Device::flex())));
            }
            // The remainder is the output's bias, equal at every position.
            let rest: Vec<f32> = out.iter().zip(&sums).map(|(out, sum)| out - sum).collect();
            let bias = if model.config().family.other_biases { &rest[..d] } else { &vec![0.0; d] };
            let all: Vec<f32> = sums.iter().enumerate().map(|(i, sum)| sum + bias[i % d]).collect();
            assert!(relative(&all, out, "hook_result") <= 1e-5);
        }
        assert_eq!(results.len(), layers);
    }
}
