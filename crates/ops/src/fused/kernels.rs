//! The loops: slices in, slices out, one row at a time. Knows no tensor and no backend.

use super::simd::{self, exp, max, sum, vectorised};
use crate::AdamW;

vectorised! {
    /// `out = x / rms(x) · weight` for each row of `weight.len()` values.
    fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let d = weight.len();
        for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
            let scale = 1.0 / (sum([x], |[v]| v * v) / d as f32 + eps).sqrt();
            for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
                *out = x * scale * w;
            }
        }
    }
}

vectorised! {
    /// With r = 1 / rms, y = x · r: `dx = r · (g·w − y · mean(g·w·y))`, `dw = Σ g · y`.
    fn rms_norm_backward(x: &[f32], weight: &[f32], grad: &[f32], eps: f32, dx: &mut [f32], dw: &mut [f32]) {
        let d = weight.len();
        for ((x, grad), dx) in x.chunks_exact(d).zip(grad.chunks_exact(d)).zip(dx.chunks_exact_mut(d)) {
            let r = 1.0 / (sum([x], |[v]| v * v) / d as f32 + eps).sqrt();
            let along = sum([x, grad, weight], |[x, g, w]| x * g * w) * r * r / d as f32;
            let values = x.iter().zip(grad).zip(weight).zip(dx).zip(dw.iter_mut());
            for ((((x, grad), weight), dx), dw) in values {
                *dx = r * (grad * weight - x * along);
                *dw += grad * x * r;
            }
        }
    }
}

vectorised! {
    fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
            *out = g / (1.0 + exp(-g)) * u;
        }
    }
}

vectorised! {
    /// silu' = σ · (1 + g · (1 − σ)).
    fn swiglu_backward(gate: &[f32], up: &[f32], grad: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        for i in 0..gate.len().min(up.len()).min(grad.len()).min(dgate.len()).min(dup.len()) {
            let g = gate[i];
            let s = 1.0 / (1.0 + exp(-g));
            dup[i] = grad[i] * g * s;
            dgate[i] = grad[i] * up[i] * s * (1.0 + g * (1.0 - s));
        }
    }
}

vectorised! {
    /// Rotates heads of `2 · half` values; a row of `cos` and `sin` serves `heads` heads.
    fn rotate(x: &[f32], cos: &[f32], sin: &[f32], shape: [usize; 2], sign: f32, out: &mut [f32]) {
        let [heads, half] = shape;
        let width = heads * 2 * half;
        let tables = cos.chunks_exact(half).zip(sin.chunks_exact(half));
        for ((x, out), (cos, sin)) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)).zip(tables) {
            for (x, out) in x.chunks_exact(2 * half).zip(out.chunks_exact_mut(2 * half)) {
                let (x1, x2) = x.split_at(half);
                let (o1, o2) = out.split_at_mut(half);
                for i in 0..half {
                    let s = sin[i] * sign;
                    o1[i] = x1[i] * cos[i] - x2[i] * s;
                    o2[i] = x2[i] * cos[i] + x1[i] * s;
                }
            }
        }
    }
}

vectorised! {
    /// Softmax of each row of `width` values, in place, after adding `mask`: its block of `rows` rows applies to `heads` blocks of scores in
    /// turn. An empty mask adds nothing.
    fn softmax(x: &mut [f32], mask: &[f32], shape: [usize; 3]) {
        let [heads, rows, width] = shape;
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            if !mask.is_empty() {
                let block = row / (heads * rows) * rows + row % rows;
                for (x, m) in x.iter_mut().zip(&mask[block * width..(block + 1) * width]) {
                    *x += m;
                }
            }
            simd::softmax(x);
        }
    }
}

vectorised! {
    /// `ds = p · (g − Σ g·p)` of each row, in place of `g`.
    fn softmax_backward(pattern: &[f32], grad: &mut [f32], width: usize) {
        for (p, g) in pattern.chunks_exact(width).zip(grad.chunks_exact_mut(width)) {
            let along = sum([p, g], |[p, g]| p * g);
            for (g, p) in g.iter_mut().zip(p) {
                *g = p * (*g - along);
            }
        }
    }
}

vectorised! {
    /// `log Σ exp(x) − x[target]` of each row, and 1 if nothing is larger than `x[target]`, else 0.
    fn cross_entropy(logits: &[f32], targets: &[u32], loss: &mut [f32], hits: &mut [f32]) {
        let width = logits.len() / targets.len().max(1);
        let rows = logits.chunks_exact(width.max(1)).zip(targets);
        for ((x, &target), (loss, hit)) in rows.zip(loss.iter_mut().zip(hits)) {
            let (most, own) = (max(x), x[target as usize]);
            *loss = sum([x], |[v]| exp(v - most)).ln() + most - own;
            *hit = if own >= most { 1.0 } else { 0.0 };
        }
    }
}

vectorised! {
    /// `g · (softmax(x) − one-hot(target))` of each row, overwriting `x`.
    fn cross_entropy_backward(x: &mut [f32], targets: &[u32], grad: &[f32]) {
        let width = x.len() / targets.len().max(1);
        for ((x, &target), &g) in x.chunks_exact_mut(width.max(1)).zip(targets).zip(grad) {
            let most = max(x);
            for x in x.iter_mut() {
                *x = exp(*x - most);
            }
            let scale = g / sum([x], |[v]| v);
            for x in x.iter_mut() {
                *x *= scale;
            }
            x[target as usize] -= g;
        }
    }
}

vectorised! {
    fn adamw(weight: &mut [f32], grad: &[f32], m: &mut [f32], v: &mut [f32], step: AdamW) {
        let AdamW { learning_rate, beta_1, beta_2, epsilon, weight_decay, .. } = step;
        let [over_1, over_2] = step.corrections();
        let keep = (1.0 - learning_rate * f64::from(weight_decay)) as f32;
        let rate = learning_rate as f32;
        for (((weight, grad), m), v) in weight.iter_mut().zip(grad).zip(m).zip(v) {
            *m = *m * beta_1 + grad * (1.0 - beta_1);
            *v = *v * beta_2 + grad * grad * (1.0 - beta_2);
            let delta = *m / over_1 / ((*v / over_2).sqrt() + epsilon);
            *weight = *weight * keep - delta * rate;
        }
    }
}

vectorised! {
    fn sum_of_squares(x: &[f32], out: &mut f32) {
        *out = sum([x], |[v]| v * v);
    }
}
