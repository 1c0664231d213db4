//! Matrix products, for which a device uses the fastest of Burn's kernels: odd and even sizes, vectors, batches, one matrix for several,
//! views. Values and gradients in f32, f16 and bf16.

use anyhow::Result;
use burn::tensor::{Device, FloatDType, Tensor};

use super::kernel_cases::{tracked, untracked};
use super::kernels::{Case, HALVES, in_one_type, noise};
use switchyard::machine::Machine;
use switchyard::ops;
use switchyard::parity::ParityComparison;

/// Bound for f32 sums in another order.
const BOUND: f64 = 1e-5;

/// Every product in every type of the device, compared with the CPU in f32 on the same inputs.
pub(super) fn against_the_cpu(device: &Device) -> Result<Vec<ParityComparison>> {
    let cpu = Machine::default().device;
    let mut out = vec![];
    for (dtype, name, bound) in [(FloatDType::F32, "f32", BOUND)].into_iter().chain(HALVES) {
        if device.supports_dtype(dtype) {
            let all = cases().into_iter().chain(few_rows()).chain(with_factors()).collect();
            out.extend(in_one_type(all, device, &cpu, dtype, name, bound)?);
        }
    }
    Ok(out)
}

/// Few rows times one, two and three matrices and times a table, as in decoding, outside autodiff. Also rows that are not a whole number of
/// vectors, and matrices whose columns cubes share in several ways.
fn few_rows() -> Vec<Case> {
    let mut out = vec![];
    for [m, k, n] in [[1, 256, 64], [3, 512, 96], [8, 64, 2048], [13, 128, 8], [2, 67, 33], [1, 64, 36_864]] {
        for count in 1..=3 {
            let inputs = (0..=count).map(|i| match i {
                0 => noise([1, 1, m, k], 33, 1.0),
                _ => noise([1, 1, k, (n / i / 8 * 8).max(8) + n % 8], 33 + i as u64, 1.0),
            });
            out.push(untracked("few rows", format!("{m} by {k} by {n}, {count}"), inputs.collect(), |x, _| {
                let weights: Vec<Tensor<2>> = x[1..].iter().map(|w| w.clone().squeeze_dims(&[0, 1])).collect();
                let x = x[0].clone().squeeze_dim::<3>(0);
                let products = match <[Tensor<2>; 3]>::try_from(weights) {
                    Ok(three) => ops::linear_three(x, three).to_vec(),
                    Err(fewer) => match <[Tensor<2>; 2]>::try_from(fewer) {
                        Ok(two) => ops::linear_two(x, two).to_vec(),
                        Err(one) => one.into_iter().map(|w| ops::linear(x.clone(), w)).collect(),
                    },
                };
                Tensor::cat(products, 2).unsqueeze()
            }));
        }
        let inputs = vec![noise([1, 1, m, k], 37, 1.0), noise([1, 1, n, k], 38, 1.0)];
        out.push(untracked("few rows by a table", format!("{m} by {k} by {n}"), inputs, |x, _| {
            ops::linear_transposed(x[0].clone().squeeze_dim(0), x[1].clone().squeeze_dims(&[0, 1])).unsqueeze()
        }));
    }
    out
}

/// A product with a frozen matrix and LoRA factors: values, and gradients of x and both factors.
fn with_factors() -> Vec<Case> {
    let case = |[b, l, k, n, r]: [usize; 5]| {
        let inputs = vec![noise([1, b, l, k], 61, 1.0), noise([1, 1, k, r], 62, 0.3), noise([1, 1, r, n], 63, 0.3)];
        tracked("with factors", format!("{b} x {l} by {k} by {n}, rank {r}"), inputs, move |x, _| {
            let weight = noise([1, 1, k, n], 64, 0.3).convert_dtype(x[0].dtype());
            let weight = Tensor::<4>::from_data(weight, (&x[0].device(), x[0].dtype())).reshape([k, n]);
            let (a, b_factor) = (x[1].clone().reshape([k, r]), x[2].clone().reshape([r, n]));
            let x = x[0].clone().reshape([b, l, k]);
            let scale = 2.0;
            let made = ops::adapted(&x, &weight, [&a, &b_factor], scale);
            let y = made.unwrap_or_else(|| {
                let more = ops::linear(ops::linear(x.clone(), a), b_factor).mul_scalar(scale);
                ops::linear(x, weight) + more
            });
            y.unsqueeze()
        })
    };
    [[1, 5, 67, 33, 3], [2, 20, 64, 96, 32], [3, 90, 200, 264, 8]].into_iter().map(case).collect()
}

type View = fn(Tensor<4>) -> Tensor<4>;

fn cases() -> Vec<Case> {
    let as_it_is: View = |x| x;
    let transposed: View = |x| x.swap_dims(2, 3);
    let of_heads: View = |x| x.swap_dims(1, 2);
    let fewer_matrices: View = |x| x.narrow(1, 1, 2);
    let fewer_rows: View = |x| x.narrow(2, 3, 40);
    let fewer_columns: View = |x| x.narrow(3, 8, 48);
    // At an unaligned address.
    let odd_columns: View = |x| x.narrow(3, 3, 48);
    let expanded: View = |x| x.expand([2, 3, 40, 64]);
    let case = |operation, (left, a): ([usize; 4], View), (right, b): ([usize; 4], View)| {
        let shape = format!("{left:?} by {right:?}");
        tracked(operation, shape, vec![noise(left, 31, 1.0), noise(right, 32, 1.0)], move |x, _| {
            ops::matmul(a(x[0].clone()), b(x[1].clone()))
        })
    };
    let plain = |operation, left, right| case(operation, (left, as_it_is), (right, as_it_is));
    vec![
        plain("matrices", [1, 1, 5, 67], [1, 1, 67, 33]),
        plain("matrices", [1, 1, 64, 128], [1, 1, 128, 96]),
        plain("matrices", [1, 1, 130, 200], [1, 1, 200, 72]),
        plain("matrices", [1, 1, 70, 600], [1, 1, 600, 40]),
        // More than one cube of a kernel in each direction, and more K tiles than are loaded at a time.
        plain("large matrices", [1, 1, 300, 712], [1, 1, 712, 584]),
        case("large and transposed", ([1, 1, 712, 304], transposed), ([1, 1, 584, 712], transposed)),
        plain("large batches", [2, 3, 136, 72], [2, 1, 72, 264]),
        plain("vectors", [1, 1, 1, 256], [1, 1, 256, 64]),
        plain("vectors", [1, 1, 64, 256], [1, 1, 256, 1]),
        plain("batches", [2, 3, 40, 64], [2, 3, 64, 48]),
        plain("batches by one", [2, 3, 40, 64], [1, 1, 64, 48]),
        plain("one by batches", [1, 1, 40, 64], [2, 3, 64, 48]),
        plain("batches by some", [2, 3, 40, 64], [2, 1, 64, 48]),
        plain("batches by some", [2, 3, 40, 64], [1, 3, 64, 48]),
        plain("some by some", [2, 1, 40, 64], [1, 3, 64, 48]),
        case("transposed", ([2, 3, 64, 40], transposed), ([2, 3, 64, 48], as_it_is)),
        case("transposed", ([2, 3, 40, 64], as_it_is), ([2, 3, 48, 64], transposed)),
        case("transposed", ([2, 3, 64, 40], transposed), ([2, 3, 48, 64], transposed)),
        case("heads", ([2, 40, 3, 64], of_heads), ([2, 64, 3, 48], of_heads)),
        case("expanded", ([1, 3, 40, 64], expanded), ([2, 3, 64, 48], as_it_is)),
        case("some matrices of more", ([2, 3, 40, 64], fewer_matrices), ([2, 3, 64, 48], fewer_matrices)),
        case("some rows of more", ([2, 3, 45, 64], fewer_rows), ([2, 3, 64, 48], as_it_is)),
        case("some columns of more", ([2, 3, 40, 64], as_it_is), ([2, 3, 64, 64], fewer_columns)),
        case("some columns of more", ([2, 3, 40, 64], as_it_is), ([2, 3, 64, 64], odd_columns)),
        case("some columns of more", ([2, 3, 40, 64], odd_columns), ([2, 3, 48, 48], as_it_is)),
    ]
}
