//! Rotary position embedding (Su et al. 2021), in Hugging Face's half-split layout.

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::fused;

/// Cosines and sines of a span, `[B, L, 1, dh/2]` each.
#[derive(Clone, Debug)]
pub struct RotaryAngles {
    pub cos: Tensor<4>,
    pub sin: Tensor<4>,
}

impl RotaryAngles {
    /// Angles `position * inv_freq` for each row's true positions. `positions` is `[B][L]`, rectangular.
    ///
    /// Products are computed in f64 from f32 frequencies: Hugging Face stores `inv_freq` in f32.
    pub fn new(positions: &[Vec<usize>], inv_freq: &[f32], dtype: DType, device: &Device) -> Self {
        let (b, l) = (positions.len(), positions.first().map_or(0, Vec::len));
        let mut cos = Vec::with_capacity(b * l * inv_freq.len());
        let mut sin = Vec::with_capacity(b * l * inv_freq.len());
        for &position in positions.iter().flatten() {
            for &freq in inv_freq {
                let (s, c) = (position as f64 * f64::from(freq)).sin_cos();
                cos.push(c);
                sin.push(s);
            }
        }
        let shape = [b, l, 1, inv_freq.len()];
        let tensor = |values: Vec<f64>| {
            let data = TensorData::new(values, shape).convert_dtype(dtype);
            Tensor::from_data(data, (device, dtype))
        };
        Self { cos: tensor(cos), sin: tensor(sin) }
    }

    /// The rotation, scaled by this factor (YaRN).
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        if factor == 1.0 {
            return self;
        }
        Self { cos: self.cos.mul_scalar(factor), sin: self.sin.mul_scalar(factor) }
    }
}

/// Rotates `[B, L, heads, dh]`: `(x1, x2) → (x1 cos − x2 sin, x2 cos + x1 sin)` on the two halves of `dh`.
pub fn rotate(x: Tensor<4>, rotation: &RotaryAngles) -> Tensor<4> {
    if fused::is_forward_fused(&x) && x.dtype() == rotation.cos.dtype() {
        return fused::rotate(x, rotation.cos.clone(), rotation.sin.clone());
    }
    composed_rotate(x, rotation)
}

pub fn composed_rotate(x: Tensor<4>, rotation: &RotaryAngles) -> Tensor<4> {
    let half = x.dims()[3] / 2;
    let x1 = x.clone().narrow(3, 0, half);
    let x2 = x.narrow(3, half, half);
    let (cos, sin) = (rotation.cos.clone(), rotation.sin.clone());
    let first = x1.clone() * cos.clone() - x2.clone() * sin.clone();
    let second = x2 * cos + x1 * sin;
    Tensor::cat(vec![first, second], 3)
}
