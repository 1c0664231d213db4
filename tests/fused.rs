//! Fused kernels against the compositions that they replace: values and gradients, odd shapes, masks, empty rows.

use crate::common::{relative, values};
use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;
use switchyard::ops::{self, MASKED, RotaryAngles, Targets, composed};

/// Pseudo-random numbers of about the given size.
fn noise<const R: usize>(shape: [usize; R], seed: u64, size: f32) -> TensorData {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let n: usize = shape.iter().product();
    TensorData::new((0..n).map(|_| (rng.random::<f32>() - 0.5) * 2.0 * size).collect::<Vec<_>>(), shape)
}

/// Value of `f` and gradients of its inputs under a fixed weighting of its outputs.
fn run<const R: usize, const O: usize>(
    inputs: &[TensorData],
    f: impl Fn(Vec<Tensor<R>>) -> Tensor<O>,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let device = Device::flex().autodiff();
    let inputs: Vec<Tensor<R>> =
        inputs.iter().map(|data| Tensor::from_data(data.clone(), &device).require_grad()).collect();
    let out = f(inputs.clone());
    let dims: [usize; O] = out.dims();
    let weights = Tensor::<O>::from_data(noise(dims, 99, 1.0), &device);
    let grads = (out.clone() * weights).sum().backward();
    let gradients = inputs.iter().map(|x| values(&x.grad(&grads).expect("a gradient")));
    (values(&out.without_autodiff()), gradients.collect())
}

/// `floor`: scale for gradients whose terms may cancel to 0.
fn same(
    what: &str,
    floor: f32,
    (ours, our_grads): (Vec<f32>, Vec<Vec<f32>>),
    (theirs, their_grads): (Vec<f32>, Vec<Vec<f32>>),
) -> Result<(), TestCaseError> {
    let off = relative(&ours, &theirs);
    prop_assert!(off <= 2e-6, "{what}: values off by {off:e}");
    for (i, (ours, theirs)) in our_grads.iter().zip(&their_grads).enumerate() {
        let scale = theirs.iter().fold(floor, |most, x| most.max(x.abs()));
        let off = ours.iter().zip(theirs).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs())) / scale;
        prop_assert!(off <= 5e-6, "{what}: gradient of input {i} off by {off:e}");
    }
    Ok(())
}

/// A mask; some queries see no key.
fn mask([b, l, t]: [usize; 3], seed: u64) -> Tensor<4> {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut bias = vec![];
    for row in 0..b * l {
        let nothing = row % 5 == 4;
        bias.extend((0..t).map(|_| if nothing || rng.random::<f32>() < 0.4 { MASKED } else { 0.0 }));
    }
    Tensor::from_data(TensorData::new(bias, [b, 1, l, t]), &Device::flex())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(11),
        ..ProptestConfig::default()
    })]

    #[test]
    fn rms_norm(rows in 1_usize..9, d in 1_usize..67, seed in 0_u64..1000, size in 0.01_f32..30.0) {
        let inputs = [noise([1, rows, d], seed, size), noise([1, 1, d], seed + 1, 2.0)];
        let with = |f: fn(Tensor<3>, Tensor<1>, f64) -> Tensor<3>| run(&inputs, |x: Vec<Tensor<3>>| {
            f(x[0].clone(), x[1].clone().reshape([d]), 1e-6)
        });
        same("rms_norm", 1.0 / size, with(ops::rms_norm), with(composed::rms_norm))?;
    }

    #[test]
    fn swiglu(n in 1_usize..200, seed in 0_u64..1000, size in 0.1_f32..40.0) {
        let inputs = [noise([1, n], seed, size), noise([1, n], seed + 1, 2.0)];
        let with = |f: fn(Tensor<2>, Tensor<2>) -> Tensor<2>| run(&inputs, |x: Vec<Tensor<2>>| f(x[0].clone(), x[1].clone()));
        same("swiglu", 1e-30, with(ops::swiglu), with(composed::swiglu))?;
    }

    #[test]
    fn rotate(b in 1_usize..4, l in 1_usize..7, h in 1_usize..5, half in 1_usize..17, seed in 0_u64..1000) {
        let inputs = [noise([b, l, h, 2 * half], seed, 3.0)];
        let positions: Vec<Vec<usize>> = (0..b).map(|r| (r * 3..r * 3 + l).collect()).collect();
        let freqs: Vec<f32> = (0..half).map(|i| 1.0 / (i as f32 + 1.0)).collect();
        let rotation = RotaryAngles::new(&positions, &freqs, burn::tensor::DType::F32, &Device::flex());
        let with = |f: fn(Tensor<4>, &RotaryAngles) -> Tensor<4>| run(&inputs, |x: Vec<Tensor<4>>| f(x[0].clone(), &rotation));
        same("rotate", 1e-30, with(ops::rotate), with(composed::rotate))?;
        // Attention may pass a view.
        let view = |f: fn(Tensor<4>, &RotaryAngles) -> Tensor<4>| run(&[noise([b, h, l, 2 * half], seed, 3.0)], |x: Vec<Tensor<4>>| {
            f(x[0].clone().swap_dims(1, 2), &rotation)
        });
        same("rotate of a view", 1e-30, view(ops::rotate), view(composed::rotate))?;
    }

    #[test]
    fn pattern(b in 1_usize..4, h in 1_usize..5, l in 1_usize..7, t in 1_usize..40, seed in 0_u64..1000, seen in any::<bool>()) {
        let inputs = [noise([b, h, l, t], seed, 12.0)];
        let mask = seen.then(|| mask([b, l, t], seed));
        type Pattern = fn(Tensor<4>, Option<Tensor<4>>) -> Tensor<4>;
        // The scores are read twice, as by a hook: the kernel must not overwrite them.
        let with = |f: Pattern| run(&inputs, |x: Vec<Tensor<4>>| f(x[0].clone(), mask.clone()) + x[0].clone().mul_scalar(0.1));
        same("pattern", 1e-30, with(ops::grouped_pattern), with(composed::grouped_pattern))?;
    }

    #[test]
    fn adamw(n in 1_usize..300, time in 1_usize..2000, seed in 0_u64..1000, shared in any::<bool>()) {
        let device = Device::flex();
        let tensor = |seed, size| Tensor::<2>::from_data(noise([1, n], seed, size), &device);
        let (weight, grad) = (tensor(seed, 1.0), tensor(seed + 1, 3.0));
        let moments = || [tensor(seed + 2, 1.0), tensor(seed + 3, 1.0).abs()];
        let step = ops::AdamW { learning_rate: 0.01, beta_1: 0.9, beta_2: 0.98, epsilon: 1e-8, weight_decay: 0.1, time };
        // A weight with another owner must not change in place.
        let held = shared.then(|| weight.clone());
        let before = values(&weight);
        let (theirs, their_moments) = composed::adamw(weight.clone(), grad.clone(), moments(), step);
        let (ours, our_moments) = ops::adamw(weight, grad.clone(), moments(), step);
        prop_assert!(relative(&values(&ours), &values(&theirs)) <= 2e-6);
        for (ours, theirs) in our_moments.iter().zip(&their_moments) {
            prop_assert!(relative(&values(ours), &values(theirs)) <= 2e-6);
        }
        prop_assert!(held.is_none_or(|held| values(&held) == before));
        let squares: f64 = values(&grad).iter().map(|g| f64::from(*g).powi(2)).sum();
        prop_assert!((ops::scalars([ops::sum_of_squares(grad)]).iter().sum::<f64>() - squares).abs() <= 1e-6 * squares);
    }

    #[test]
    fn attend(b in 1_usize..4, groups in 1_usize..4, share in 1_usize..4, l in 1_usize..20, t in 1_usize..40, dh in 1_usize..70, seed in 0_u64..1000, seen in any::<bool>()) {
        let device = Device::flex();
        let tensor = |shape: [usize; 4], seed| Tensor::<4>::from_data(noise(shape, seed, 2.0), &device);
        let q = tensor([b, l, groups * share, dh], seed);
        let v = tensor([b, groups, t + 3, dh], seed + 2).narrow(2, 0, t);
        let mask = seen.then(|| mask([b, l, t], seed));
        // Keys from a projection, and from a cache with spare capacity.
        let plain = tensor([b, t, groups, dh], seed + 1).swap_dims(1, 2);
        let kept = Tensor::cat(vec![plain.clone().swap_dims(2, 3), Tensor::ones([b, groups, dh, 5], &device)], 3);
        for k in [plain, kept.narrow(3, 0, t).swap_dims(2, 3)] {
            let ours = values(&ops::attend(q.clone(), k.clone(), v.clone(), mask.clone()));
            let theirs = values(&composed::attend(q.clone(), k, v.clone(), mask.clone()));
            let off = relative(&ours, &theirs);
            prop_assert!(off <= 2e-6, "attend off by {off:e}");
        }
    }

    #[test]
    fn attend_backward(b in 1_usize..4, groups in 1_usize..4, share in 1_usize..4, l in 1_usize..40, more in 0_usize..20, dh in 1_usize..70, seed in 0_u64..1000, kind in 0_u8..3) {
        let t = l + more;
        let inputs = [noise([b, l, groups * share, dh], seed, 2.0), noise([b, t, groups, dh], seed + 1, 2.0), noise([b, groups, t, dh], seed + 2, 2.0)];
        let mask = match kind {
            0 => None,
            1 => Some(mask([b, l, t], seed)),
            _ => {
                let seen: Vec<bool> = (0..b * l * t).map(|i| i % t <= i / t % l + more).collect();
                Some(ops::additive_mask(&seen, [b, l, t], burn::tensor::DType::F32, &Device::flex().autodiff()))
            }
        };
        type Attend = fn(Tensor<4>, Tensor<4>, Tensor<4>, Option<Tensor<4>>) -> Tensor<4>;
        let with = |f: Attend| run(&inputs, |x: Vec<Tensor<4>>| {
            f(x[0].clone(), x[1].clone().swap_dims(1, 2), x[2].clone(), mask.clone())
        });
        same("attend", 0.1, with(ops::attend), with(composed::attend))?;
    }

    #[test]
    fn attend_in_parts(b in 1_usize..4, groups in 1_usize..4, share in 1_usize..4, l in 1_usize..90, more in 0_usize..20, dh in 1_usize..40, seed in 0_u64..1000, held in prop_oneof![Just(1_usize), Just(3_000), Just(100_000), Just(1 << 26)], frozen in any::<bool>()) {
        let t = l + more;
        let inputs = [noise([b, l, groups * share, dh], seed, 2.0), noise([b, t, groups, dh], seed + 1, 2.0), noise([b, groups, t, dh], seed + 2, 2.0)];
        // The query's slot and earlier ones, with gaps.
        let seen: Vec<bool> = (0..b * l * t).map(|i| {
            let (slot, own) = (i % t, i / t % l + more);
            slot == own || slot < own && !(slot * 7 + i / (t * l) + seed as usize).is_multiple_of(5)
        }).collect();
        let mask = ops::additive_mask(&seen, [b, l, t], burn::tensor::DType::F32, &Device::flex());
        type Attend<'a> = &'a dyn Fn(Tensor<4>, Tensor<4>, Tensor<4>) -> Tensor<4>;
        let with = |f: Attend| run(&inputs, |x: Vec<Tensor<4>>| {
            // Cached keys of a frozen prefix have no gradient.
            let v = if frozen { x[2].clone().detach() + x[2].clone().mul_scalar(0.0) } else { x[2].clone() };
            f(x[0].clone(), x[1].clone().swap_dims(1, 2), v)
        });
        let ours = with(&|q, k, v| ops::attend_in_parts(q, k, v, Tensor::from_inner(mask.clone()), held));
        same("attend_in_parts", 0.1, ours, with(&|q, k, v| composed::attend(q, k, v, Some(Tensor::from_inner(mask.clone())))))?;
    }

    #[test]
    fn linear(b in 1_usize..5, l in 1_usize..12, k in 1_usize..150, n in 1_usize..150, seed in 0_u64..1000) {
        let device = Device::flex();
        let x = Tensor::<3>::from_data(noise([b, k, l], seed, 2.0), &device).swap_dims(1, 2);
        let w = Tensor::<2>::from_data(noise([k, n], seed + 1, 1.0), &device);
        let table = Tensor::<2>::from_data(noise([n, k], seed + 2, 1.0), &device);
        let off = relative(&values(&ops::linear(x.clone(), w.clone())), &values(&composed::linear(x.clone(), w.clone())));
        prop_assert!(off <= 2e-6, "linear off by {off:e}");
        let ours = values(&ops::linear_transposed(x.clone(), table.clone()));
        let off = relative(&ours, &values(&composed::linear_transposed(x.clone(), table)));
        prop_assert!(off <= 2e-6, "linear_transposed off by {off:e}");
        // In small batches a row has the same bits as alone.
        if b * l <= 32 {
            let all = values(&ops::linear(x.clone(), w.clone()));
            let last = values(&ops::linear(x.narrow(0, b - 1, 1).narrow(1, l - 1, 1), w));
            prop_assert_eq!(&all[all.len() - n..], &last[..]);
        }
    }

    #[test]
    fn head_loss(n in 1_usize..600, d in 1_usize..20, v in prop_oneof![4_usize..90, Just(5000)], seed in 0_u64..1000, size in 0.1_f32..20.0, tied in any::<bool>(), bans in any::<bool>()) {
        let inputs = [noise([n, d], seed, size), noise(if tied { [v, d] } else { [d, v] }, seed + 1, 1.0)];
        let ids: Vec<u32> = (0..n).map(|i| 3 + ((i * 31 + seed as usize) % (v - 3)) as u32).collect();
        let banned = if bans { vec![0, 2] } else { vec![] };
        let targets = Targets { ids, banned, unrestricted: (0..n).map(|i| i % 3 == 0).collect() };
        let hits = std::cell::RefCell::new(vec![]);
        type Loss = fn(Tensor<2>, Tensor<2>, Targets) -> (Tensor<1>, Tensor<1>);
        let with = |f: Loss| run(&inputs, |x: Vec<Tensor<2>>| {
            let head = if tied { x[1].clone().transpose() } else { x[1].clone() };
            let (loss, hit) = f(x[0].clone(), head, targets.clone());
            hits.borrow_mut().push(values(&hit.without_autodiff()));
            loss
        });
        let composed = |hidden: Tensor<2>, head, targets| ops::loss_of_logits(hidden.matmul(head), targets);
        let (ours, theirs) = (with(ops::head_loss), with(composed));
        prop_assert_eq!(&hits.borrow()[0], &hits.borrow()[1]);
        let size = size * d as f32;
        // A row whose target is certain has a loss near 0: compare on the scale of the logits.
        let off = ours.0.iter().zip(&theirs.0).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        prop_assert!(off <= 2e-6 * size.max(1.0), "head_loss off by {off:e}");
        for (ours, theirs) in ours.1.iter().zip(&theirs.1) {
            let scale = theirs.iter().fold(1.0_f32, |most, x| most.max(x.abs()));
            let off = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            prop_assert!(off <= 2e-5 * scale, "its gradient off by {off:e} of {scale:e}");
        }
    }
}

#[test]
fn a_mask_made_on_the_device_equals_the_hosts() {
    use burn::tensor::DType;
    let device = Device::flex();
    let [b, l, t] = [2, 3, 7];
    for holes in [&[][..], &[1, 6, 9]] {
        let held: Vec<bool> = (0..b * t).map(|slot| !holes.contains(&slot)).collect();
        let sees = |i: usize| held[i / (l * t) * t + i % t] && i % t <= t - l + i / t % l;
        let visible: Vec<bool> = (0..b * l * t).map(sees).collect();
        let host = ops::additive_mask(&visible, [b, l, t], DType::F32, &device);
        let made = ops::causal_mask(&held, [b, l, t], DType::F32, &device);
        assert_eq!(values(&made), values(&host), "holes {holes:?}");
    }
}
