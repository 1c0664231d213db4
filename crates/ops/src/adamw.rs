//! The arithmetic of AdamW on one parameter.

use burn::tensor::Tensor;

use super::fused;

/// Constants of one AdamW step (Loshchilov and Hutter, 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    pub learning_rate: f64,
    pub beta_1: f32,
    pub beta_2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
    /// Steps of this parameter, including this one.
    pub time: usize,
}

impl AdamW {
    /// `1 − βᵗ` of both moments. `powi` rounds differently if the compiler knows its arguments; these products do not.
    pub(crate) fn corrections(&self) -> [f32; 2] {
        [self.beta_1, self.beta_2].map(|mut square| {
            let (mut power, mut left) = (1.0, self.time);
            while left > 0 {
                if left % 2 == 1 {
                    power *= square;
                }
                square *= square;
                left /= 2;
            }
            1.0 - power
        })
    }
}

/// A weight and its moments `m`, `v` after a step with its gradient: `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`,
/// `w ← (1 − lr · decay) w − lr · m̂ / (√v̂ + ε)` with `m̂ = m / (1 − β₁ᵗ)`, `v̂ = v / (1 − β₂ᵗ)`.
pub fn adamw<const R: usize>(
    weight: Tensor<R>,
    grad: Tensor<R>,
    moments: [Tensor<R>; 2],
    step: AdamW,
) -> (Tensor<R>, [Tensor<R>; 2]) {
    if [&weight, &grad].into_iter().chain(&moments).all(fused::is_fused) {
        return fused::adamw(weight, grad, moments, step);
    }
    composed_adamw(weight, grad, moments, step)
}

pub fn composed_adamw<const R: usize>(
    weight: Tensor<R>,
    grad: Tensor<R>,
    [m, v]: [Tensor<R>; 2],
    step: AdamW,
) -> (Tensor<R>, [Tensor<R>; 2]) {
    let AdamW { learning_rate, beta_1, beta_2, epsilon, weight_decay, .. } = step;
    let [over_1, over_2] = step.corrections();
    let m = m.mul_scalar(beta_1) + grad.clone().mul_scalar(1.0 - beta_1);
    let v = v.mul_scalar(beta_2) + grad.square().mul_scalar(1.0 - beta_2);
    let delta = m.clone().div_scalar(over_1) / v.clone().div_scalar(over_2).sqrt().add_scalar(epsilon);
    let decayed = weight.mul_scalar(1.0 - learning_rate * f64::from(weight_decay));
    (decayed - delta.mul_scalar(learning_rate), [m, v])
}

/// Partial sums of `Σ x²`, `[parts]`.
pub fn sum_of_squares<const R: usize>(x: Tensor<R>) -> Tensor<1> {
    if fused::is_fused(&x) { fused::sum_of_squares(x) } else { x.square().sum() }
}
