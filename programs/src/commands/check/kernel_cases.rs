//! Cases of the part `kernels`: operations and the shapes of their inputs.

use burn::tensor::{Tensor, TensorData};

use super::kernels::{Case, MANY, Way, noise};
use super::stored_cases;
use switchyard::ops::{self, AdamW, Heads, MASKED, RotaryAngles, Targets, composed};

pub(super) fn all() -> Vec<Case> {
    [
        norms(),
        gates(),
        rotations(),
        heads(),
        sums(),
        patterns(),
        attentions(),
        attentions_in_parts(),
        losses(),
        stored_cases::all(),
        steps(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A case with compared gradients.
pub(super) fn tracked(
    operation: &'static str,
    shape: String,
    inputs: Vec<TensorData>,
    run: impl Fn(&[Tensor<4>], Way) -> Tensor<4> + 'static,
) -> Case {
    Case { operation, shape, inputs, gradients: true, there: true, floor: 0.01, run: Box::new(run) }
}

pub(super) fn untracked(
    operation: &'static str,
    shape: String,
    inputs: Vec<TensorData>,
    run: impl Fn(&[Tensor<4>], Way) -> Tensor<4> + 'static,
) -> Case {
    Case { gradients: false, ..tracked(operation, shape, inputs, run) }
}

/// The same shape contiguous and as a view with another order.
fn both(shape: [usize; 4]) -> [([usize; 4], bool, String); 2] {
    let [a, b, c, d] = shape;
    [(shape, false, format!("{shape:?}")), ([a, c, b, d], true, format!("{shape:?} as a view"))]
}

fn seen(x: &Tensor<4>, view: bool) -> Tensor<4> {
    if view { x.clone().swap_dims(1, 2) } else { x.clone() }
}

fn norms() -> Vec<Case> {
    // The last has more rows than a dimension of cubes.
    let shapes = [[1, 1, 1, 1], [1, 1, 1, 64], [1, 3, 5, 67], [2, 7, 19, 128], [1, 1, 2, 4096], [1, 1, 70_000, 3]];
    let case = |(shape, view, name): ([usize; 4], bool, String)| {
        let width = shape[3];
        let inputs = vec![noise(shape, 1, 3.0), noise([1, 1, 1, width], 2, 2.0)];
        let run = move |x: &[Tensor<4>], way| {
            let weight = x[1].clone().reshape([width]);
            match way {
                Way::Fused | Way::Halves => ops::rms_norm(seen(&x[0], view), weight, 1e-6),
                Way::Composed => composed::rms_norm(seen(&x[0], view), weight, 1e-6),
            }
        };
        let there = shape[1] * shape[2] <= MANY;
        Case { floor: 1.0, there, ..tracked("rms_norm", name, inputs, run) }
    };
    shapes.into_iter().flat_map(both).map(case).collect()
}

fn gates() -> Vec<Case> {
    let case = |(shape, view, name): ([usize; 4], bool, String)| {
        // Sizes at which the exponential of f32 ends.
        let inputs = vec![noise(shape, 3, 100.0), noise(shape, 4, 2.0)];
        tracked("swiglu", name, inputs, move |x, way| match way {
            Way::Fused | Way::Halves => ops::swiglu(seen(&x[0], view), seen(&x[1], view)),
            Way::Composed => composed::swiglu(seen(&x[0], view), seen(&x[1], view)),
        })
    };
    [[1, 1, 1, 1], [1, 3, 5, 67], [1, 2, 30, 257]].into_iter().flat_map(both).map(case).collect()
}

fn rotations() -> Vec<Case> {
    let case = |(shape, view, name): ([usize; 4], bool, String)| {
        let [b, l, half] = [shape[0], if view { shape[2] } else { shape[1] }, shape[3] / 2];
        tracked("rotate", name, vec![noise(shape, 5, 3.0)], move |x, way| {
            let positions: Vec<Vec<usize>> = (0..b).map(|row| (row * 3..row * 3 + l).collect()).collect();
            let frequencies: Vec<f32> = (0..half).map(|i| 1.0 / (i as f32 + 1.0)).collect();
            let rotation = RotaryAngles::new(&positions, &frequencies, x[0].dtype(), &x[0].device().inner());
            match way {
                Way::Fused | Way::Halves => ops::rotate(seen(&x[0], view), &rotation),
                Way::Composed => composed::rotate(seen(&x[0], view), &rotation),
            }
        })
    };
    [[1, 1, 1, 2], [2, 5, 3, 14], [3, 4, 2, 128]].into_iter().flat_map(both).map(case).collect()
}

/// Queries, keys and values written into a cache with room, and attention over the used slots.
fn heads() -> Vec<Case> {
    // Rows, positions, heads, groups, width, slots in use before, room.
    let shapes =
        [[1, 1, 2, 1, 8, 0, 3], [2, 1, 4, 2, 64, 37, 64], [3, 4, 8, 2, 128, 5, 40], [1, 2, 3, 3, 80, 600, 640]];
    let case = |([b, l, h, g, dh, at, room], normed): ([usize; 7], bool)| {
        let inputs = vec![
            noise([b, l, h, dh], 41, 3.0),
            noise([b, l, g, dh], 42, 3.0),
            noise([b, l, g, dh], 43, 1.0),
            noise([1, 1, 1, dh], 44, 2.0),
            noise([1, 1, 1, dh], 45, 2.0),
            noise([b, g, dh, room], 46, 1.0),
            noise([b, g, room, dh], 47, 1.0),
        ];
        let name = format!("{h} heads of {g} groups of {dh}, {b} x {l} after {at} of {room}, normalised: {normed}");
        untracked("append_heads", name, inputs, move |x, way| {
            let positions = vec![(at..at + l).collect::<Vec<usize>>(); b];
            let frequencies: Vec<f32> = (0..dh / 2).map(|i| 1.0 / (i as f32 + 1.0)).collect();
            let rotation = &RotaryAngles::new(&positions, &frequencies, x[0].dtype(), &x[0].device());
            let gain = |i: usize| x[i].clone().reshape([dh]);
            let [q, k, v] = [0, 1, 2].map(|i| x[i].clone());
            let gains = normed.then(|| ([gain(3), gain(4)], 1e-6));
            let cache = [x[5].clone(), x[6].clone()];
            let heads = Heads { q: q.clone(), k: k.clone(), v: v.clone(), gains, rotation };
            let (cache, done) = match way {
                Way::Fused | Way::Halves => ops::append_heads(&heads, cache, at),
                Way::Composed => (cache, None),
            };
            let on_gpu = !ops::is_cpu(&x[0].device()) && cfg!(not(feature = "fusion"));
            assert!(done.is_some() || matches!(way, Way::Composed) || !on_gpu, "a kernel for heads did not run");
            let [q, keys, values] = done.map(|q| [q, cache[0].clone(), cache[1].clone()]).unwrap_or_else(|| {
                let [keys, values] = cache.clone();
                let turned = |x: Tensor<4>, by: usize| {
                    let x = if normed { composed::rms_norm(x, gain(by), 1e-6) } else { x };
                    composed::rotate(x, rotation)
                };
                let k = turned(k, 4).swap_dims(1, 2).swap_dims(2, 3);
                let keys = keys.slice_assign([0..b, 0..g, 0..dh, at..at + l], k);
                let values = values.slice_assign([0..b, 0..g, at..at + l, 0..dh], v.swap_dims(1, 2));
                [turned(q, 3), keys, values]
            });
            let used = |x: Tensor<4>| ops::first_of(x, 2, at + l);
            let (k, v) = (used(keys.clone().swap_dims(2, 3)), used(values.clone()));
            let z = match way {
                Way::Composed => composed::attend(q.clone(), k, v, None),
                _ => ops::attend(q.clone(), k, v, None),
            };
            let flat = |x: Tensor<4>| x.reshape([1, 1, 1, -1]);
            Tensor::cat([z, q, keys, values].map(flat).to_vec(), 3)
        })
    };
    shapes.into_iter().flat_map(|shape| [(shape, false), (shape, true)]).map(case).collect()
}

/// A stream, a summand, and the norm of the sum.
fn sums() -> Vec<Case> {
    let case = |[b, l, d]: [usize; 3]| {
        let inputs = vec![noise([1, b, l, d], 51, 3.0), noise([1, b, l, d], 52, 3.0), noise([1, 1, 1, d], 53, 2.0)];
        untracked("add_rms_norm", format!("{b} x {l} x {d}"), inputs, move |x, way| {
            let gain = x[2].clone().reshape([d]);
            let [x, more] = [0, 1].map(|i| x[i].clone().reshape([b, l, d]));
            let made = match way {
                Way::Fused | Way::Halves => ops::add_rms_norm(&x, &more, &gain, 1e-6),
                Way::Composed => None,
            };
            let (sum, normed) = made.unwrap_or_else(|| {
                let sum = x + more;
                (sum.clone(), composed::rms_norm(sum, gain, 1e-6))
            });
            Tensor::cat(vec![sum, normed], 2).unsqueeze()
        })
    };
    [[1, 1, 1], [1, 3, 67], [2, 5, 128], [1, 2, 4096]].into_iter().map(case).collect()
}

/// Three in ten slots are masked; every fifth query sees nothing.
fn mask([b, l, t]: [usize; 3], like: &Tensor<4>, way: Way) -> Tensor<4> {
    let draws = noise([b, 1, l, t], 6, 1.0).try_to_vec::<f32>().unwrap_or_default();
    // f16 ends at 65,504; and a query that sees nothing must not lose its scores' precision in f32.
    let masked = if way == Way::Halves { -1024.0 } else { MASKED };
    let bias = draws.iter().enumerate().map(|(i, draw)| if i / t % 5 == 4 || *draw < -0.4 { masked } else { 0.0 });
    let bias = TensorData::new(bias.collect::<Vec<f32>>(), [b, 1, l, t]).convert_dtype(like.dtype());
    Tensor::from_data(bias, (&like.device().inner(), like.dtype()))
}

fn patterns() -> Vec<Case> {
    let shapes = [[1, 1, 1, 1], [2, 3, 7, 39], [1, 2, 1, 1000], [1, 1, 2, 151_672]];
    let mut out = vec![];
    for (shape, view, name) in shapes.into_iter().flat_map(both) {
        for masked in [false, true] {
            let [b, h, l, t] = shape;
            let l = if view { h } else { l };
            let name = if masked { format!("{name}, masked") } else { name.clone() };
            let run = move |x: &[Tensor<4>], way| {
                // Without another owner, so that it may be overwritten.
                let own = seen(&x[0], view).mul_scalar(1.0);
                let mask = masked.then(|| mask([b, l, t], &x[0], way));
                match way {
                    Way::Fused | Way::Halves => ops::grouped_pattern(own, mask),
                    Way::Composed => composed::grouped_pattern(own, mask),
                }
            };
            // With one slot, the pattern is 1 and its gradient a difference of equal values.
            out.push(Case {
                floor: if t == 1 { 1.0 } else { 1e-6 },
                there: t <= MANY,
                ..tracked("softmax", name, vec![noise(shape, 7, 12.0)], run)
            });
        }
    }
    // A hook reads the scores too: they must not be overwritten.
    out.push(tracked(
        "softmax",
        "scores that are read twice".to_owned(),
        vec![noise([2, 3, 7, 39], 7, 12.0)],
        |x, way| {
            let pattern = match way {
                Way::Fused | Way::Halves => ops::grouped_pattern(x[0].clone(), None),
                Way::Composed => composed::grouped_pattern(x[0].clone(), None),
            };
            pattern + x[0].clone().mul_scalar(0.1)
        },
    ));
    out
}

fn attentions() -> Vec<Case> {
    // Rows, key/value heads, query heads of each, positions, slots, width.
    let sizes = [
        [1, 1, 1, 1, 1, 1],
        [2, 2, 3, 1, 300, 64],
        [3, 1, 4, 8, 37, 67],
        [1, 2, 2, 1, 1030, 128],
        [2, 1, 4, 2, 515, 256],
        // More positions than decoding has: by matrix products.
        [1, 2, 2, 9, 40, 16],
    ];
    let mut out = vec![];
    for [b, groups, share, l, t, dh] in sizes {
        for (masked, cached) in [(false, false), (true, false), (false, true), (true, true)] {
            let shape = format!(
                "{b} rows, {groups}x{share} heads, {l} positions, {t} slots, width {dh}{}{}",
                if masked { ", masked" } else { "" },
                if cached { ", from a cache" } else { "" }
            );
            let keys = if cached { [b, groups, dh, t + 5] } else { [b, t, groups, dh] };
            let inputs = vec![
                noise([b, l, groups * share, dh], 8, 2.0),
                noise(keys, 9, 2.0),
                noise([b, groups, t + 3, dh], 10, 2.0),
            ];
            let run = move |x: &[Tensor<4>], way| {
                let keys = x[1].clone();
                let k = if cached { keys.narrow(3, 0, t).swap_dims(2, 3) } else { keys.swap_dims(1, 2) };
                let (q, v) = (x[0].clone(), x[2].clone().narrow(2, 0, t));
                let mask = masked.then(|| mask([b, l, t], &x[0], way));
                match way {
                    Way::Fused | Way::Halves => ops::attend(q, k, v, mask),
                    Way::Composed => composed::attend(q, k, v, mask),
                }
            };
            out.push(Case { there: l > 8, ..untracked("attend", shape, inputs, run) });
        }
    }
    out
}

/// Attention in chunks, with gradients.
fn attentions_in_parts() -> Vec<Case> {
    // Rows, key/value heads, query heads of each, positions, slots before them, width, positions of a part.
    let sizes = [[2, 2, 3, 70, 5, 24, 16], [1, 2, 2, 40, 0, 16, 64]];
    let case = |[b, groups, share, l, before, dh, part]: [usize; 7]| {
        let t = before + l;
        let held = part * b * groups * share * t * size_of::<f32>();
        let shape = format!("{b} rows, {groups}x{share} heads, {l} positions, {t} slots, width {dh}");
        let inputs = vec![
            noise([b, l, groups * share, dh], 21, 2.0),
            noise([b, t, groups, dh], 22, 2.0),
            noise([b, groups, t, dh], 23, 2.0),
        ];
        let run = move |x: &[Tensor<4>], way| {
            let seen = |i: usize| {
                let (slot, own) = (i % t, before + i / t % l);
                slot == own || slot < own && !slot.is_multiple_of(5)
            };
            let seen: Vec<bool> = (0..b * l * t).map(seen).collect();
            let mask = ops::additive_mask(&seen, [b, l, t], x[0].dtype(), &x[0].device().inner());
            let (q, k, v) = (x[0].clone(), x[1].clone().swap_dims(1, 2), x[2].clone());
            match way {
                Way::Fused | Way::Halves => ops::attend_in_parts(q, k, v, mask, held),
                Way::Composed => composed::attend(q, k, v, Some(mask)),
            }
        };
        Case { there: false, ..tracked("attend_in_parts", shape, inputs, run) }
    };
    sizes.map(case).into()
}

fn losses() -> Vec<Case> {
    let mut out = vec![];
    // Rows, width, vocabulary.
    for [n, d, vocab] in [[1, 1, 2], [3, 5, 151_672]] {
        for bans in [false, true] {
            let name = format!("[{n}, {d}], a vocabulary of {vocab}{}", if bans { ", some left out" } else { "" });
            let inputs = vec![noise([1, 1, n, d], 11, 2.0), noise([1, 1, d, vocab], 12, 2.0)];
            let run = move |x: &[Tensor<4>], way| {
                let mut targets = Targets::new((0..n).map(|row| (row * 7919 % vocab) as u32).collect());
                if bans {
                    targets.banned = vec![1, vocab as u32 - 1];
                    targets.unrestricted = (0..n).map(|row| row % 3 == 1).collect();
                }
                let (hidden, head) = (x[0].clone().reshape([n, d]), x[1].clone().reshape([d, vocab]));
                let (loss, hits) = match way {
                    Way::Fused | Way::Halves => ops::head_loss(hidden, head, targets),
                    Way::Composed => ops::loss_of_logits(hidden.matmul(head), targets),
                };
                Tensor::cat(vec![loss, hits], 0).reshape([1, 1, 2, n])
            };
            out.push(Case { there: false, ..tracked("cross_entropy", name, inputs, run) });
        }
    }
    out
}

fn steps() -> Vec<Case> {
    let settings = AdamW { learning_rate: 0.01, beta_1: 0.9, beta_2: 0.98, epsilon: 1e-8, weight_decay: 0.1, time: 7 };
    let mut out = vec![];
    for n in [1, 257, 300_001] {
        let inputs: Vec<TensorData> = (0..4).map(|i| noise([1, 1, 1, n], 13 + i, 1.0)).collect();
        for shared in [false, true] {
            let name = format!("{n} parameters{}", if shared { " with another owner" } else { "" });
            out.push(untracked("adamw", name, inputs.clone(), move |x, way| {
                let own = |x: &Tensor<4>| if shared { x.clone() } else { x.clone().mul_scalar(1.0) };
                let (weight, moments) = (own(&x[0]), [own(&x[2]), own(&x[3].clone().abs())]);
                let (weight, [m, v]) = match way {
                    Way::Fused | Way::Halves => ops::adamw(weight, x[1].clone(), moments, settings),
                    Way::Composed => composed::adamw(weight, x[1].clone(), moments, settings),
                };
                // The old weight too: values with another owner must not be overwritten.
                Tensor::cat(vec![weight, m, v, x[0].clone()], 0)
            }));
        }
        out.push(untracked("sum_of_squares", format!("{n} values"), vec![noise([1, 1, 1, n], 18, 1.0)], |x, way| {
            let sum = match way {
                Way::Fused | Way::Halves => ops::sum_of_squares(x[0].clone()),
                Way::Composed => x[0].clone().square().sum(),
            };
            sum.sum().reshape([1, 1, 1, 1])
        }));
    }
    out
}
