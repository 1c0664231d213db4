//! Linear maps without bias.

use burn::tensor::Tensor;
use burn::tensor::module::linear as composed;

use super::frozen::FrozenMatrix;
use super::{fused, matmul};

/// `x W`: x `[B, L, K]`, W `[K, N]` → `[B, L, N]`.
pub fn linear(x: Tensor<3>, weight: Tensor<2>) -> Tensor<3> {
    if fused::is_cpu_fused(&x) && fused::is_cpu_fused(&weight) {
        return fused::linear(x, weight);
    }
    if fused::is_few_on_gpu(&x, std::slice::from_ref(&weight)) {
        return fused::linear_one(x, weight);
    }
    if fused::chooses_products(&x) {
        return of_all_rows(x, weight.unsqueeze());
    }
    composed_linear(x, weight)
}

/// `x Tᵀ`: x `[B, L, K]`, a table `[N, K]` → `[B, L, N]`. The head of a model whose head is its embedding.
pub fn linear_transposed(x: Tensor<3>, table: Tensor<2>) -> Tensor<3> {
    if fused::is_cpu_fused(&x) && fused::is_cpu_fused(&table) {
        return fused::linear_transposed(x, table);
    }
    if fused::is_few_on_gpu(&x, std::slice::from_ref(&table)) {
        return fused::linear_by_row(x, table);
    }
    if fused::chooses_products(&x) {
        return of_all_rows(x, table.transpose().unsqueeze());
    }
    composed_linear_transposed(x, table)
}

/// `x W + scale · (x A) B` for a frozen W `[K, N]` with factors `[K, R]` and `[R, N]`, as one node of the graph: x `[B, L, K]` →
/// `[B, L, N]`. `None` if `ops::cube` does not compute such products, or nothing is trained.
pub fn adapted(x: &Tensor<3>, weight: &Tensor<2>, factors: [&Tensor<2>; 2], scale: f64) -> Option<Tensor<3>> {
    let of_one_type = factors.iter().chain([&weight]).all(|w| w.dtype() == x.dtype());
    if !x.is_autodiff() || !of_one_type || weight.is_require_grad() || !fused::chooses_products(x) {
        return None;
    }
    let ([b, l, k], n) = (x.dims(), weight.dims()[1]);
    let factors = factors.map(|factor| factor.clone().unsqueeze());
    let y = fused::adapted(x.clone().reshape([1, b * l, k]), weight.clone().unsqueeze(), factors, scale);
    Some(y.reshape([b, l, n]))
}

/// The product of all rows of a batch as one, so that the weight's gradient is one product too: x `[B, L, K]`, W `[1, K, N]`.
fn of_all_rows(x: Tensor<3>, weight: Tensor<3>) -> Tensor<3> {
    let ([b, l, k], n) = (x.dims(), weight.dims()[2]);
    matmul(x.reshape([1, b * l, k]), weight).reshape([b, l, n])
}

/// [`linear`] of one input with two weights.
pub fn linear_two(x: Tensor<3>, weights: [Tensor<2>; 2]) -> [Tensor<3>; 2] {
    match is_inference(&x, &weights) {
        true => fused::linear_two(x, weights),
        false => weights.map(|weight| linear(x.clone(), weight)),
    }
}

/// [`linear`] of one input with three weights.
pub fn linear_three(x: Tensor<3>, weights: [Tensor<2>; 3]) -> [Tensor<3>; 3] {
    match is_inference(&x, &weights) {
        true => fused::linear_three(x, weights),
        false => weights.map(|weight| linear(x.clone(), weight)),
    }
}

fn is_inference(x: &Tensor<3>, weights: &[Tensor<2>]) -> bool {
    let usable = |weight: &Tensor<2>| fused::is_cpu_fused(weight) && !weight.is_autodiff();
    fused::is_few_on_gpu(x, weights) || fused::is_cpu_fused(x) && !x.is_autodiff() && weights.iter().all(usable)
}

/// [`super::linear_stored`] of one input with several weights.
pub fn linear_stored_each<const P: usize>(x: Tensor<3>, weights: [&FrozenMatrix; P]) -> [Tensor<3>; P] {
    match x.is_autodiff() || !fused::is_cpu_fused(&x) {
        true => weights.map(|weight| fused::linear_stored(x.clone(), weight)),
        false => fused::linear_stored_each(x, weights.map(FrozenMatrix::clone)),
    }
}

/// Whether several CPU threads share the product of so few rows with a weight.
pub fn is_shared(weight: &Tensor<2>, rows: usize) -> bool {
    fused::is_cpu_fused(weight) && fused::is_shared(weight.shape().num_elements(), rows)
}

/// Whether a product with a weight in its file format is shared.
pub fn is_stored_shared(weight: &FrozenMatrix, rows: usize) -> bool {
    !weight.is_on_device() && fused::is_shared(weight.rows() * weight.width(), rows)
}

pub fn composed_linear(x: Tensor<3>, weight: Tensor<2>) -> Tensor<3> {
    composed(x, weight, None)
}

pub fn composed_linear_transposed(x: Tensor<3>, table: Tensor<2>) -> Tensor<3> {
    composed(x, table.transpose(), None)
}
