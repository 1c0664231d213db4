//! Loops compiled three times: for any x86-64, for AVX2 and for AVX-512, chosen at run time. Plain Rust that the compiler
//! vectorises.

/// Defines `fn name(args)` whose body is also compiled with AVX2 and AVX-512, for processors that have them. No fused multiply-add: all
/// versions round equally.
macro_rules! vectorised {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        pub(super) fn $name($($arg: $type),*) {
            #[inline(always)]
            fn body($($arg: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq")]
                fn widest($($arg: $type),*) {
                    body($($arg),*);
                }
                #[target_feature(enable = "avx2")]
                fn wide($($arg: $type),*) {
                    body($($arg),*);
                }
                match $crate::cpu::cpu() {
                    #[allow(unsafe_code)]
                    // SAFETY: the processor has AVX-512.
                    $crate::Cpu::Avx512 => return unsafe { widest($($arg),*) },
                    #[allow(unsafe_code)]
                    // SAFETY: the processor has AVX2.
                    $crate::Cpu::Avx2 => return unsafe { wide($($arg),*) },
                    _ => {}
                }
            }
            body($($arg),*);
        }
    };
}
pub(super) use vectorised;

/// `1.5 · 2²³`: adding it rounds to the nearest integer, in the low bits.
const ROUND: f32 = 12_582_912.0;

/// eˣ to about 1e-7 relative, 0 below −87 (Cephes' `expf`; branch-free, so that it vectorises).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let clamped = x.clamp(-87.0, 88.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts, so that n · ln 2 is exact.
    let r = clamped - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_6e-1;
    let p = p * r + 5e-1;
    let y = p * r * r + r + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < -87.0 { 0.0 } else { y * scale }
}

/// Lanes of a partial sum: the order of summation is fixed, for any vector width.
pub(super) const LANES: usize = 16;

/// Σ f(values at i) over slices of one length, in [`LANES`] interleaved partial sums.
#[inline(always)]
pub(super) fn sum<const N: usize>(slices: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let split = slices.map(|slice| slice.as_chunks::<LANES>());
    let whole = split.iter().map(|(chunks, _)| chunks.len()).min().unwrap_or(0);
    let mut lanes = [0.0_f32; LANES];
    for at in 0..whole {
        let chunks = split.map(|(chunks, _)| &chunks[at]);
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total += f(chunks.map(|chunk| chunk[lane]));
        }
    }
    let rest = split.map(|(_, rest)| rest);
    let count = rest.iter().map(|rest| rest.len()).min().unwrap_or(0);
    (0..count).fold(across(lanes, |a, b| a + b), |total, i| total + f(rest.map(|rest| rest[i])))
}

/// The largest value of a slice, −∞ if empty.
#[inline(always)]
pub(super) fn max(x: &[f32]) -> f32 {
    let larger = |most: f32, value: f32| if value > most { value } else { most };
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (most, &value) in lanes.iter_mut().zip(chunk) {
            *most = larger(*most, value);
        }
    }
    rest.iter().fold(across(lanes, larger), |most, &value| larger(most, value))
}

/// Softmax in place; returns the largest value, and the reciprocal of the sum of exponentials relative to it.
#[inline(always)]
pub(super) fn softmax(x: &mut [f32]) -> [f32; 2] {
    let most = max(x);
    for x in x.iter_mut() {
        *x = exp(*x - most);
    }
    let over = 1.0 / sum([x], |[v]| v);
    for x in x.iter_mut() {
        *x *= over;
    }
    [most, over]
}

/// Reduces all lanes by halves: four dependent steps instead of sixteen.
#[inline(always)]
fn across(lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| join(lanes[i], lanes[i + 8]));
    let four: [f32; 4] = std::array::from_fn(|i| join(eight[i], eight[i + 4]));
    let two = [join(four[0], four[2]), join(four[1], four[3])];
    join(two[0], two[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exp() {
        for i in -8_800..=8_800 {
            let x = i as f32 / 100.0;
            let (ours, theirs) = (f64::from(exp(x)), f64::from(x).exp());
            let bound = if x < -87.0 { 1.1e-38 * 2.0 } else { 3e-7 * theirs };
            assert!((ours - theirs).abs() <= bound, "exp({x}) = {ours:e}, not {theirs:e}");
        }
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn sums_and_maxima_of_any_length() {
        for n in 0..70 {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37) % 11) as f32 - 5.0).collect();
            assert_eq!(sum([&x], |[v]| v), x.iter().sum::<f32>());
            assert_eq!(sum([&x, &x], |[a, b]| a * b), x.iter().map(|v| v * v).sum::<f32>());
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
