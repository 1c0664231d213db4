//! Cross-entropy. One cube per row of V logits.

use burn::backend::TensorMetadata;
use burn::backend::ops::IntTensorOps;
use burn::tensor::{Shape, TensorData};
use burn_cubecl::cubecl;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use cubecl::prelude::*;

use super::rows::{LOWEST, largest_of_units, sum_of_units};
use super::{addresses, cubes, dim, made_like, room_for, units};
use crate::{MASKED, Targets};

/// A logit, or [`MASKED`] if the row bans its token.
#[cube]
fn logit(
    logits: &Tensor<f32>,
    banned: &Tensor<u32>,
    restricted: &Tensor<u32>,
    row: usize,
    token: usize,
    #[comptime] bans: bool,
) -> f32 {
    let mut value = logits[row * logits.stride(0) + token * logits.stride(1)];
    if bans && restricted[row] == 1 {
        for i in 0..banned.shape(0) {
            if banned[i] as usize == token {
                value = MASKED.runtime();
            }
        }
    }
    value
}

/// The largest logit m of a row, and `Σ exp(x − m)`.
#[cube]
fn scales(
    logits: &Tensor<f32>,
    banned: &Tensor<u32>,
    restricted: &Tensor<u32>,
    row: usize,
    shared: &mut Shared<[f32]>,
    #[comptime] bans: bool,
    #[comptime] units: usize,
) -> (f32, f32) {
    let vocab = logits.shape(1);
    let mut most = LOWEST.runtime();
    let mut i = UNIT_POS as usize;
    while i < vocab {
        most = max(most, logit(logits, banned, restricted, row, i, bans));
        i += units;
    }
    let most = largest_of_units(most, shared);
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < vocab {
        sum += (logit(logits, banned, restricted, row, i, bans) - most).exp();
        i += units;
    }
    (most, sum_of_units(sum, shared))
}

/// `log Σ exp(x) − x[target]` of each row, and 1 if nothing is larger than `x[target]`, else 0: logits `[N, V]`.
#[cube(launch, address_type = "dynamic")]
fn forward(
    logits: &Tensor<f32>,
    targets: &Tensor<u32>,
    banned: &Tensor<u32>,
    restricted: &Tensor<u32>,
    losses: &mut Tensor<f32>,
    hits: &mut Tensor<f32>,
    #[comptime] bans: bool,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= logits.shape(0) {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units);
    let (most, sum) = scales(logits, banned, restricted, row, &mut shared, bans, units);
    if UNIT_POS == 0 {
        let own = logit(logits, banned, restricted, row, targets[row] as usize, bans);
        losses[row] = sum.ln() + most - own;
        hits[row] = select(own >= most, 1.0f32, 0.0f32);
    }
}

/// `g · (softmax(x) − one-hot(target))` of each row. `out` may be the logits themselves.
#[cube(launch, address_type = "dynamic")]
fn backward(
    logits: &Tensor<f32>,
    targets: &Tensor<u32>,
    banned: &Tensor<u32>,
    restricted: &Tensor<u32>,
    grad: &Tensor<f32>,
    out: &mut Tensor<f32>,
    #[comptime] bans: bool,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= logits.shape(0) {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units);
    let (most, sum) = scales(logits, banned, restricted, row, &mut shared, bans, units);
    let own = grad[row * grad.stride(0)];
    let scale = own / sum;
    let target = targets[row] as usize;
    let mut i = UNIT_POS as usize;
    while i < logits.shape(1) {
        let mut value = (logit(logits, banned, restricted, row, i, bans) - most).exp() * scale;
        if i == target {
            value -= own;
        }
        let to = row * out.stride(0) + i * out.stride(1);
        out[to] = value;
        i += units;
    }
}

/// The targets on the logits' device: ids `[N]`, banned tokens, and 1 for each row that bans them.
fn on_device(logits: &CubeTensor, targets: &Targets) -> ([CubeTensor; 3], bool) {
    let sent = |values: Vec<u32>| {
        let n = values.len();
        CubeBackend::int_from_data(TensorData::new(values, [n]), &logits.device)
    };
    let ids = sent(targets.ids.clone());
    if targets.banned.is_empty() {
        // A kernel needs all its arguments: without bans the ids are passed instead.
        return ([ids.clone(), ids.clone(), ids], false);
    }
    let restricted = (0..targets.ids.len()).map(|row| u32::from(!targets.banned(row).is_empty())).collect();
    ([ids, sent(targets.banned.clone()), sent(restricted)], true)
}

/// `−log softmax(x)[target]` of each row, and whether no token was more probable: `[N, V]` → `[N]`, `[N]`.
pub(crate) fn cross_entropy(logits: CubeTensor, targets: &Targets) -> (CubeTensor, CubeTensor) {
    let [n, vocab] = logits.shape().dims();
    let (losses, hits) = (made_like(&logits, Shape::new([n])), made_like(&logits, Shape::new([n])));
    if n * vocab == 0 {
        return (losses, hits);
    }
    let ([ids, banned, restricted], bans) = on_device(&logits, targets);
    let client = logits.client.clone();
    let units = units(&client, vocab);
    forward::launch(
        &client,
        cubes(&client, n),
        dim(units),
        addresses(&[&logits]),
        logits.into_tensor_arg(),
        ids.into_tensor_arg(),
        banned.into_tensor_arg(),
        restricted.into_tensor_arg(),
        losses.clone().into_tensor_arg(),
        hits.clone().into_tensor_arg(),
        bans,
        units,
    );
    (losses, hits)
}

/// Gradient of the logits from that of the losses `[N]`.
pub(crate) fn cross_entropy_backward(logits: CubeTensor, targets: &Targets, grad: CubeTensor) -> CubeTensor {
    let [n, vocab] = logits.shape().dims();
    let (out, in_place) = room_for(&logits);
    if n * vocab == 0 {
        return out;
    }
    let ([ids, banned, restricted], bans) = on_device(&logits, targets);
    let client = logits.client.clone();
    let units = units(&client, vocab);
    backward::launch(
        &client,
        cubes(&client, n),
        dim(units),
        addresses(&[&logits, &out]),
        logits.into_tensor_arg(),
        ids.into_tensor_arg(),
        banned.into_tensor_arg(),
        restricted.into_tensor_arg(),
        grad.into_tensor_arg(),
        if in_place { out.as_tensor_alias(0) } else { out.clone().into_tensor_arg() },
        bans,
        units,
    );
    out
}
