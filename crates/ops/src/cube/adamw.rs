//! AdamW. One thread per parameter. And sums of squares, for the gradient's norm.

use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::rows::sum_of_units;
use super::{UNITS, addresses, cubes, dim, made_like, units};
use crate::AdamW;

/// `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`, `w ← keep · w − rate · (m / over₁) / (√(v / over₂) + ε)`, into new tensors or in
/// place.
#[cube(launch, address_type = "dynamic")]
fn step(
    weight: LinearView<'_, f32>,
    grad: LinearView<'_, f32>,
    moment_1: LinearView<'_, f32>,
    moment_2: LinearView<'_, f32>,
    mut new_weight: LinearViewMut<'_, f32>,
    mut new_moment_1: LinearViewMut<'_, f32>,
    mut new_moment_2: LinearViewMut<'_, f32>,
    beta_1: f32,
    beta_2: f32,
    over_1: f32,
    over_2: f32,
    epsilon: f32,
    keep: f32,
    rate: f32,
) {
    if !new_weight.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let g = grad.read(ABSOLUTE_POS);
    let m = moment_1.read(ABSOLUTE_POS) * beta_1 + g * (1.0 - beta_1);
    let v = moment_2.read(ABSOLUTE_POS) * beta_2 + g * g * (1.0 - beta_2);
    let delta = m / over_1 / ((v / over_2).sqrt() + epsilon);
    new_moment_1.write(ABSOLUTE_POS, m);
    new_moment_2.write(ABSOLUTE_POS, v);
    new_weight.write(ABSOLUTE_POS, weight.read(ABSOLUTE_POS) * keep - delta * rate);
}

/// Partial sums of `Σ x²`, one per cube. Cube c sums the chunks c, c + `CUBE_COUNT`, … of `units` values.
#[cube(launch, address_type = "dynamic")]
fn squares(x: LinearView<'_, f32>, sums: &mut Tensor<f32>, #[comptime] units: usize) {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut sum = 0.0f32;
    let mut i = ABSOLUTE_POS;
    while i < x.shape() {
        let value = x.read(i);
        sum += value * value;
        i += CUBE_COUNT * units;
    }
    let total = sum_of_units(sum, &mut shared);
    if UNIT_POS == 0 {
        sums[CUBE_POS] = total;
    }
}

/// A weight and its two moments after a step, in place if they have no other owner.
pub(crate) fn adamw(
    weight: CubeTensor,
    grad: CubeTensor,
    [moment_1, moment_2]: [CubeTensor; 2],
    settings: AdamW,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let AdamW { learning_rate, beta_1, beta_2, epsilon, weight_decay, .. } = settings;
    let [over_1, over_2] = settings.corrections();
    let old = [weight, moment_1, moment_2];
    let in_place = old.iter().all(|x| x.can_mut() && x.is_nonoverlapping());
    let new = old.each_ref().map(|x| if in_place { x.clone() } else { made_like(x, x.shape()) });
    let n = grad.shape().num_elements();
    if n > 0 {
        let client = grad.client.clone();
        let units = units(&client, UNITS);
        let [new_weight, new_moment_1, new_moment_2] = new.each_ref();
        let address = addresses(&[&old[0], &grad, &old[1], &old[2], new_weight, new_moment_1, new_moment_2]);
        let written = |x: &CubeTensor, at: usize| {
            if in_place { x.as_linear_view_alias(at) } else { x.clone().into_linear_view() }
        };
        let [weight, moment_1, moment_2] = old;
        step::launch(
            &client,
            cubes(&client, n.div_ceil(units)),
            dim(units),
            address,
            weight.into_linear_view_like(new_weight),
            grad.into_linear_view_like(new_weight),
            moment_1.into_linear_view_like(new_weight),
            moment_2.into_linear_view_like(new_weight),
            written(new_weight, 0),
            written(new_moment_1, 2),
            written(new_moment_2, 3),
            beta_1,
            beta_2,
            over_1,
            over_2,
            epsilon,
            (1.0 - learning_rate * f64::from(weight_decay)) as f32,
            learning_rate as f32,
        );
    }
    let [weight, moment_1, moment_2] = new;
    (weight, moment_1, moment_2)
}

/// Maximum cubes that sum a large tensor: a GPU cannot run more at the same time.
const CUBES: usize = 1024;

/// Partial sums of `x²`, `[parts]`: another launch to add them would cost more than reading them. The order of summation depends only
/// on the tensor's size.
pub(crate) fn sum_of_squares(x: CubeTensor) -> CubeTensor {
    let parts = x.shape().num_elements().div_ceil(UNITS).clamp(1, CUBES);
    let out = made_like(&x, Shape::new([parts]));
    let client = x.client.clone();
    let units = units(&client, UNITS);
    squares::launch(
        &client,
        CubeCount::new_1d(parts as u32),
        dim(units),
        addresses(&[&x]),
        x.into_linear_view(),
        out.clone().into_tensor_arg(),
        units,
    );
    out
}
