//! Whole models in 16 bits, compared with the same rounded weights in f32 on the CPU: the first block's output, the final hidden states and
//! the logits, in one call and token by token over a cache, and the gradient of the first block's input. Skips types that the device lacks.

use anyhow::{Context, Result};
use burn::tensor::{Device, FloatDType, Tensor};

use switchyard::machine::Machine;
use switchyard::model::{Decoder, Hooks, Span};
use switchyard::ops::Targets;
use switchyard::parity::recorder::{Recordings, padded, pieces, record};
use switchyard::parity::reference::{Deviation, values};
use switchyard::parity::{Fixtures, ParityComparison};

/// Tolerance after a few layers, with every operation's output rounded to 11 or 8 bits.
const TYPES: [(FloatDType, &str, f64); 2] = [(FloatDType::F16, "f16", 2e-2), (FloatDType::BF16, "bf16", 8e-2)];

/// With norms of heads, and with groups of heads.
const MODELS: [&str; 2] = ["qwen3_tied", "llama_gqa"];

pub(super) fn against_f32(fixtures: &Fixtures) -> Result<Vec<ParityComparison>> {
    let mut out = vec![];
    for (dtype, called, bound) in TYPES.into_iter().filter(|of| fixtures.device.supports_dtype(of.0)) {
        for name in MODELS {
            let cpu = Machine::default().device.autodiff();
            let rounded = |device: &Device| anyhow::Ok(fixtures.tiny(name, device)?.cast(dtype));
            let (ours, theirs) = (rounded(&fixtures.device.clone().autodiff())?, rounded(&cpu)?.cast(FloatDType::F32));
            let mut line = |what: &str, [ours, theirs]: [Vec<f32>; 2]| {
                let what = format!("{name} in {called}: {what}");
                out.push(ParityComparison::new(what, bound, [Deviation::relative(&ours, &theirs)]));
            };
            let ids: Vec<Vec<u32>> = [13, 17, 9].map(|n| (0..n).map(|i| i * 7 % 40).collect()).to_vec();
            let token_by_token = pieces(&ids, 1, &(0..=ids[1].len()).collect::<Vec<_>>());
            for (what, calls) in [("in one call", vec![padded(&ids, false)]), ("token by token", token_by_token)] {
                let (ours, theirs) = (record(&ours, &calls)?, record(&theirs, &calls)?);
                for point in ["blocks.0.hook_resid_post", "final_hidden", "logits"] {
                    line(&format!("{point}, {what}"), [flat(&ours, point), flat(&theirs, point)]);
                }
            }
            line("gradient of the embeddings", [gradient(&ours, &ids[1])?, gradient(&theirs, &ids[1])?]);
        }
    }
    Ok(out)
}

fn flat(recorded: &Recordings, point: &str) -> Vec<f32> {
    let of = recorded.iter().filter(|((name, _), _)| name == point);
    of.flat_map(|(_, positions)| positions.values().flatten().copied()).collect()
}

/// Gradient of the mean loss of predicting each token from its own position.
fn gradient(model: &Decoder, ids: &[u32]) -> Result<Vec<f32>> {
    let x = model.embed(&[ids.to_vec()])?.detach().require_grad();
    let hidden =
        model.hidden(x.clone(), &Span::prompts(&[ids.len()], false), &mut model.cache(1), &mut Hooks::none())?;
    let [_, l, d] = hidden.dims();
    let (losses, _) = model.token_losses(hidden.reshape([l, d]), Targets::new(ids.to_vec()))?;
    let mean: Tensor<1> = losses.mean();
    let grads = mean.backward();
    values(&x.grad(&grads).context("the embeddings have no gradient")?)
}
