//! Tests every loop with every vector instruction set of this processor: equal bits or, where sums are split over lanes, equality to 1e-6 of
//! the sum of absolute values.

use super::attend::{Heads, Scale, Sizes, attend, padded};
use super::attend_gradient::AttentionPass;
use super::kernels;
use super::product::{rows_times, rows_times_transposed};
use super::simd::LANES;
use super::stored::rows_times_stored;
use super::stored_back::rows_through_stored;
use super::stored_many::many_rows_times_stored;
use crate::AdamW;
use crate::cpu::tests::with_each;
use crate::stored::{Format, Inputs, StoredMatrix};

pub(super) fn drawn(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

pub(super) fn sizes(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| x.abs()).collect()
}

/// Asserts that values agree to 1e-6 of `sizes`, the sums of absolute values.
pub(super) fn assert_near(what: &str, values: &[f32], expected: &[f32], sizes: &[f32]) {
    assert_eq!([values.len(), expected.len()], [sizes.len(); 2], "{what}");
    for ((value, expected), size) in values.iter().zip(expected).zip(sizes) {
        assert!(*size > 0.0 && (value - expected).abs() <= 1e-6 * size, "{what}: {value} is not {expected}, of {size}");
    }
}

/// Asserts that all sets give equal bits.
fn assert_same(what: &str, work: impl Fn() -> Vec<f32> + Sync) {
    let made = with_each(|| work().into_iter().map(f32::to_bits).collect::<Vec<_>>());
    let (first, expected) = &made[0];
    assert!(!expected.is_empty() && made.len() > 1, "{what}: nothing to compare");
    for (cpu, made) in &made[1..] {
        let differs = made.iter().zip(expected).position(|(made, expected)| made != expected);
        assert_eq!((differs, made.len()), (None, expected.len()), "{what}: a value of {cpu:?} and {first:?}");
    }
}

/// Asserts that all sets agree to 1e-6 of `sizes`.
fn close(what: &str, sizes: &[f32], work: impl Fn() -> Vec<f32> + Sync) {
    let made = with_each(work);
    let (first, expected) = &made[0];
    assert!(!expected.is_empty() && made.len() > 1, "{what}: nothing to compare");
    for (cpu, made) in &made[1..] {
        assert_near(&format!("{what}, {cpu:?} and {first:?}"), made, expected, sizes);
    }
}

#[test]
fn products_of_few_rows() {
    for [m, k, n] in [[1, 300, 67], [1, 64, 200], [4, 129, 33], [7, 65, 130], [32, 200, 100]] {
        let (x, w) = (drawn(m * k, 1), drawn(k * n, 2));
        assert_same(&format!("{m}x{k}x{n}"), || rows_times(&x, [&w], k).concat());
        let wide = rows_times_transposed(&sizes(&x), &sizes(&w), [k, n]);
        close(&format!("{m}x{k}x{n}, transposed"), &wide, || rows_times_transposed(&x, &w, [k, n]));
    }
}

#[test]
fn products_with_stored_matrices() {
    for format in Format::ALL {
        let [k, n] = [512, 70];
        let w = StoredMatrix::drawn(format, n, k);
        let floats = w.widened_range(0..n);
        assert_same(&format!("{format:?}, widened"), || w.widened_range(0..n));
        for m in [1, 3, 40] {
            let (x, y) = (drawn(m * k, 1), drawn(m * n, 2));
            let wide = rows_times_transposed(&sizes(&x), &sizes(&floats), [k, n]);
            close(&format!("{format:?}, {m} rows"), &wide, || rows_times_stored(&x, [&w]).concat());
            assert_same(&format!("{format:?}, {m} rows as many"), || many_rows_times_stored(&x, [&w]).concat());
            assert_same(&format!("{format:?}, {m} rows back"), || rows_through_stored(&y, &w));
        }
    }
    let [m, k, n] = [40, 96, 20];
    let (x, w) = (drawn(m * k, 1), StoredMatrix::drawn(Format::Bf16, n, k).with_inputs(Inputs::Bf16));
    let wide = rows_times_transposed(&sizes(&x), &sizes(&w.widened_range(0..n)), [k, n]);
    close("rounded inputs", &wide, || many_rows_times_stored(&x, [&w]).concat());
}

#[test]
fn attention_and_its_gradients() {
    for [batch, positions, heads, groups, slots, width] in
        [[2, 5, 4, 2, 9, 16], [1, 40, 6, 2, 40, 32], [1, 1, 8, 2, 70, 48], [2, 17, 3, 1, 33, 7]]
    {
        let sizes = Sizes { positions, heads, groups, slots, width };
        let (q, grad) =
            (drawn(batch * positions * sizes.query_width(), 1), drawn(batch * positions * sizes.query_width(), 2));
        let (k, v) = (drawn(batch * groups * slots * width, 3), drawn(batch * groups * slots * width, 4));
        let seen = |i: usize| i % slots <= slots - positions + i / slots % positions && i % slots != 2;
        let mask: Vec<f32> =
            (0..batch * positions * slots).map(|i| if seen(i) { 0.0 } else { crate::MASKED }).collect();
        let room = padded(slots);
        let mut across = vec![0.0; batch * groups * width * room];
        for i in 0..k.len() {
            across[i / (slots * width) * width * room + i % width * room + i / width % slots] = k[i];
        }
        let heads_of = |values, one, row| Heads { values, start: 0, steps: [groups * one * row, one * row, row] };
        let both = || {
            let (mut out, mut scales) = (vec![0.0; q.len()], vec![[0.0; 2]; batch * positions * heads]);
            let (keys, values) = (heads_of(&across, width, room), heads_of(&v, slots, width));
            attend(&q, &keys, &values, &mask, sizes, &mut out, &mut scales);
            let attended = AttentionPass {
                q: &q,
                keys: heads_of(&k, slots, width),
                values,
                mask: &mask,
                out: &out,
                scales: &scales,
                grad: &grad,
                sizes,
            };
            let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
            attended.backward(&mut dq, &mut dk, &mut dv);
            let scales: Vec<Scale> = scales;
            [&out[..], scales.as_flattened(), &dq, &dk, &dv].concat()
        };
        // Columns after the last whole vector are summed in another order.
        match width % LANES {
            0 => assert_same(&format!("{sizes:?} of {batch}"), both),
            _ => close(&format!("{sizes:?} of {batch}"), &vec![1.0; both().len()], both),
        }
    }
}

#[test]
fn norms_activations_rotations_losses_and_the_optimiser() {
    let (rows, d) = (5, 67);
    let (x, y, g, w) = (drawn(rows * d, 1), drawn(rows * d, 2), drawn(rows * d, 3), drawn(d, 4));
    let n = x.len();
    assert_same("rms_norm", || {
        let (mut out, mut dx, mut dw) = (vec![0.0; n], vec![0.0; n], vec![0.0; d]);
        kernels::rms_norm(&x, &w, 1e-6, &mut out);
        kernels::rms_norm_backward(&x, &w, &g, 1e-6, &mut dx, &mut dw);
        [out, dx, dw].concat()
    });
    assert_same("swiglu", || {
        let (mut out, mut da, mut db) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        kernels::swiglu(&x, &y, &mut out);
        kernels::swiglu_backward(&x, &y, &g, &mut da, &mut db);
        [out, da, db].concat()
    });
    assert_same("rotate", || {
        let (heads, half) = (3, 11);
        let x = drawn(4 * heads * 2 * half, 5);
        let mut out = vec![0.0; x.len()];
        kernels::rotate(&x, &drawn(4 * half, 6), &drawn(4 * half, 7), [heads, half], -1.0, &mut out);
        out
    });
    assert_same("softmax", || {
        let (mut p, mut grad) = (x.clone(), g.clone());
        kernels::softmax(&mut p, &y, [1, rows, d]);
        kernels::softmax_backward(&p, &mut grad, d);
        [p, grad].concat()
    });
    assert_same("cross_entropy", || {
        let targets = [3, 0, 66, 12, 40];
        let (mut loss, mut hits, mut logits) = (vec![0.0; rows], vec![0.0; rows], x.clone());
        kernels::cross_entropy(&x, &targets, &mut loss, &mut hits);
        kernels::cross_entropy_backward(&mut logits, &targets, &g[..rows]);
        [loss, hits, logits].concat()
    });
    assert_same("adamw", || {
        let step = AdamW { learning_rate: 1e-3, beta_1: 0.9, beta_2: 0.999, epsilon: 1e-8, weight_decay: 0.1, time: 7 };
        let (mut weight, mut m, mut v, mut sum) = (x.clone(), y.clone(), sizes(&g), 0.0);
        kernels::adamw(&mut weight, &g, &mut m, &mut v, step);
        kernels::sum_of_squares(&g, &mut sum);
        [weight, m, v, vec![sum]].concat()
    });
}
