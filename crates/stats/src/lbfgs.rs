//! L-BFGS (Nocedal 1980) for smooth convex functions, in f64. Knows vectors only.

/// Past steps from which the curvature is estimated.
const MEMORY: usize = 40;
/// Maximum number of steps.
const STEPS: usize = 3000;
/// Armijo's constant: the share of the decrease predicted by the slope that a step must reach.
const DECREASE: f64 = 1e-4;
/// Relative change of the value that counts as rounding.
const ROUNDING: f64 = 1e-13;

/// The best point found from `start` on, and the norm of the gradient there: at most `tolerance`, unless rounding hides any
/// further descent or the steps ran out. `function` writes the gradient into its second argument and returns the value.
pub(super) fn minimise(
    start: Vec<f64>,
    tolerance: f64,
    function: impl Fn(&[f64], &mut [f64]) -> f64,
) -> (Vec<f64>, f64) {
    let (mut gradient, mut x) = (vec![0.0; start.len()], start);
    let mut value = function(&x, &mut gradient);
    // Steps, changes of the gradient, and one over their product, the latest last.
    let mut past: Vec<(Vec<f64>, Vec<f64>, f64)> = vec![];
    let (mut next, mut next_gradient) = (x.clone(), gradient.clone());
    for _ in 0..STEPS {
        let norm = dot(&gradient, &gradient).sqrt();
        if norm <= tolerance {
            break;
        }
        let direction = direction(&gradient, &past);
        let slope = dot(&gradient, &direction);
        let mut step = if past.is_empty() { (1.0 / norm).min(1.0) } else { 1.0 };
        let found = (0..40).find_map(|_| {
            next.iter_mut().zip(&x).zip(&direction).for_each(|((next, x), d)| *next = x + step * d);
            let new = function(&next, &mut next_gradient);
            // The slopes decide if the decrease is below rounding.
            let level = new <= value + ROUNDING * value.abs() && dot(&next_gradient, &direction).abs() <= slope.abs();
            let falls = new <= value + DECREASE * step * slope;
            step *= 0.5;
            (falls || level).then_some(new)
        });
        let Some(new) = found else { break };
        let moved: Vec<f64> = next.iter().zip(&x).map(|(a, b)| a - b).collect();
        let changed: Vec<f64> = next_gradient.iter().zip(&gradient).map(|(a, b)| a - b).collect();
        let product = dot(&moved, &changed);
        std::mem::swap(&mut x, &mut next);
        std::mem::swap(&mut gradient, &mut next_gradient);
        value = new;
        if product > 0.0 {
            if past.len() == MEMORY {
                past.remove(0);
            }
            past.push((moved, changed, 1.0 / product));
        } else {
            past.clear();
        }
    }
    let norm = dot(&gradient, &gradient).sqrt();
    (x, norm)
}

/// Minus the gradient times the inverse curvature, estimated from past steps.
fn direction(gradient: &[f64], past: &[(Vec<f64>, Vec<f64>, f64)]) -> Vec<f64> {
    let mut q: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut shares = vec![];
    for (moved, changed, inverse) in past.iter().rev() {
        let share = inverse * dot(moved, &q);
        add(&mut q, -share, changed);
        shares.push(share);
    }
    if let Some((_, changed, inverse)) = past.last() {
        let scale = 1.0 / (inverse * dot(changed, changed));
        q.iter_mut().for_each(|q| *q *= scale);
    }
    for ((moved, changed, inverse), share) in past.iter().zip(shares.iter().rev()) {
        let other = inverse * dot(changed, &q);
        add(&mut q, share - other, moved);
    }
    q
}

/// Eight sums in parallel, which the compiler vectorises.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (left, right) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = left.remainder().iter().zip(right.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in left.zip(right) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f64>() + rest
}

pub(super) fn add(to: &mut [f64], times: f64, what: &[f64]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += times * what);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bowl_of_very_unlike_sides_is_descended_to_its_bottom() {
        // Curvatures from 1 to 10⁶ around (1, 2, …).
        let curvature = |i: usize| 10f64.powf(6.0 * i as f64 / 19.0);
        let bowl = |x: &[f64], gradient: &mut [f64]| {
            let mut value = 3.0;
            for (i, (x, g)) in x.iter().zip(gradient).enumerate() {
                let off = x - i as f64 - 1.0;
                value += 0.5 * curvature(i) * off * off;
                *g = curvature(i) * off;
            }
            value
        };
        let (x, norm) = minimise(vec![0.0; 20], 1e-8, bowl);
        assert!(norm <= 1e-8, "{norm}");
        assert!(x.iter().enumerate().all(|(i, x)| (x - i as f64 - 1.0).abs() < 1e-7), "{x:?}");
        // A decrease below rounding ends the search.
        let (x, norm) = minimise(vec![0.0; 20], 0.0, bowl);
        assert!(norm < 1e-6 && (x[19] - 20.0).abs() < 1e-9, "{norm}");
    }
}
