//! Attention of many queries in chunks of positions, so that no whole pattern is ever in memory. The backward pass recomputes the patterns.
//! For devices with fast matrix products; decoding has its own kernel.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor as Float;
use burn::tensor::{FloatDType, Shape, Slice};

use super::{BackwardOps, FusedOps};

/// Chunks are a multiple of this many positions, if there are as many: the tile of matrix products.
const TILE: usize = 64;

/// q `[B, L, H, dh]`, k and v `[B, Hkv, T, dh]`, the mask `[B, 1, L, T]`, by which query l of L sees no slot after `T − L + l`.
#[derive(Clone, Debug)]
pub(super) struct Inputs<B: FusedOps> {
    pub q: Float<B>,
    pub k: Float<B>,
    pub v: Float<B>,
    pub mask: Float<B>,
    /// Maximum bytes of scores in memory, unless those of a single position need more.
    pub held: usize,
}

/// Inputs for a chunk of positions, without slots that none of them sees.
struct AttentionChunk<B: FusedOps> {
    /// `[B, Hkv, H / Hkv · n, dh]`, scaled by `1 / √dh`.
    q: Float<B>,
    k: Float<B>,
    v: Float<B>,
    /// Softmax of its scores, `[B, H, n, t]`.
    pattern: Float<B>,
    positions: Range<usize>,
    slots: usize,
}

fn cut<B: FusedOps>(x: &Float<B>, axis: usize, range: &Range<usize>) -> Float<B> {
    let some = |i| if i == axis { Slice::from(range.clone()) } else { Slice::full() };
    B::float_slice(x.clone(), &(0..x.shape().num_dims()).map(some).collect::<Vec<_>>())
}

fn reshaped<B: FusedOps>(x: Float<B>, shape: [usize; 4]) -> Float<B> {
    B::float_reshape(x, Shape::new(shape))
}

impl<B: FusedOps> Inputs<B> {
    fn scale(&self) -> f64 {
        1.0 / (self.q.shape()[3] as f64).sqrt()
    }

    fn parts(&self) -> Vec<Range<usize>> {
        let ([b, l, h, _], slots) = (self.q.shape().dims(), self.k.shape()[2]);
        let of_position = b * h * slots * self.q.dtype().size();
        let fit = (self.held / of_position.max(1)).max(1);
        let step = if fit > TILE { fit / TILE * TILE } else { fit };
        (0..l).step_by(step).map(|from| from..(from + step).min(l)).collect()
    }

    /// Some positions of `[B, L, H, dh]`, the heads of a group as rows: `[B, Hkv, H / Hkv · n, dh]`.
    fn grouped(&self, x: &Float<B>, positions: &Range<usize>) -> Float<B> {
        let ([b, _, h, dh], groups) = (self.q.shape().dims(), self.k.shape()[1]);
        let some = B::float_swap_dims(cut::<B>(x, 1, positions), 1, 2);
        reshaped::<B>(some, [b, groups, h / groups * positions.len(), dh])
    }

    /// The inverse: `[B, n, H, dh]`.
    fn apart(&self, x: Float<B>, positions: &Range<usize>) -> Float<B> {
        let [b, _, h, dh] = self.q.shape().dims();
        B::float_swap_dims(reshaped::<B>(x, [b, h, positions.len(), dh]), 1, 2)
    }

    fn part(&self, positions: Range<usize>) -> AttentionChunk<B> {
        let ([b, l, h, _], all) = (self.q.shape().dims(), self.k.shape()[2]);
        let slots = all - l + positions.end;
        let [k, v] = [&self.k, &self.v].map(|x| cut::<B>(x, 2, &(0..slots)));
        let q = B::float_mul_scalar(self.grouped(&self.q, &positions), self.scale().into());
        let scores = B::matmul(q.clone(), B::float_swap_dims(k.clone(), 2, 3));
        let mask = cut::<B>(&cut::<B>(&self.mask, 2, &positions), 3, &(0..slots));
        let pattern = B::masked_softmax(reshaped::<B>(scores, [b, h, positions.len(), slots]), mask);
        AttentionChunk { q, k, v, pattern, positions, slots }
    }

    /// A pattern or its gradient in the shape of the products: `[B, H, n, t]` → `[B, Hkv, H / Hkv · n, t]`.
    fn rows(&self, x: Float<B>) -> Float<B> {
        let ([b, h, n, t], groups) = (x.shape().dims(), self.k.shape()[1]);
        reshaped::<B>(x, [b, groups, h / groups * n, t])
    }
}

/// `softmax(q·k / √dh + mask) v`, `[B, L, H, dh]`.
pub(super) fn forward<B: FusedOps>(inputs: &Inputs<B>) -> Float<B> {
    let z = |positions: Range<usize>| {
        let AttentionChunk { v, pattern, .. } = inputs.part(positions.clone());
        inputs.apart(B::matmul(inputs.rows(pattern), v), &positions)
    };
    B::float_cat(inputs.parts().into_iter().map(z).collect(), 1)
}

/// Gradients of q, k and v, if needed, from that of the output.
pub(super) fn backward<B: BackwardOps>(
    inputs: &Inputs<B>,
    grad: &Float<B>,
    wanted: [bool; 3],
) -> [Option<Float<B>>; 3] {
    let mut of_q = vec![];
    let [mut of_k, mut of_v] = [&inputs.k, &inputs.v].map(Sum::<B>::like);
    for positions in inputs.parts() {
        let AttentionChunk { q, k, v, pattern, slots, positions } = inputs.part(positions);
        let of_z = inputs.grouped(grad, &positions);
        let rows = inputs.rows(pattern.clone());
        if wanted[2] {
            of_v = of_v.plus(B::matmul(B::float_swap_dims(rows, 2, 3), of_z.clone()), slots);
        }
        if !wanted[0] && !wanted[1] {
            continue;
        }
        let of_pattern = B::matmul(of_z, B::float_swap_dims(v, 2, 3));
        let of_scores = B::softmax_backward(pattern.clone(), reshaped::<B>(of_pattern, pattern.shape().dims()));
        let of_scores = inputs.rows(of_scores);
        if wanted[1] {
            of_k = of_k.plus(B::matmul(B::float_swap_dims(of_scores.clone(), 2, 3), q), slots);
        }
        if wanted[0] {
            let of_part = B::float_mul_scalar(B::matmul(of_scores, k), inputs.scale().into());
            of_q.push(inputs.apart(of_part, &positions));
        }
    }
    [wanted[0].then(|| B::float_cat(of_q, 1)), wanted[1].then(|| of_k.done()), wanted[2].then(|| of_v.done())]
}

/// A gradient `[B, Hkv, T, dh]`, accumulated in f32; chunks add to its first slots.
struct Sum<B: FusedOps> {
    so_far: Float<B>,
    dtype: FloatDType,
}

impl<B: FusedOps> Sum<B> {
    fn like(x: &Float<B>) -> Self {
        let so_far = B::float_zeros(x.shape(), &x.device(), FloatDType::F32);
        Self { so_far, dtype: x.dtype().into() }
    }

    fn plus(self, more: Float<B>, slots: usize) -> Self {
        let first = cut::<B>(&self.so_far, 2, &(0..slots));
        let more = B::float_add(first, B::float_cast(more, FloatDType::F32));
        let place: Vec<Slice> = more.shape().iter().map(|&n| Slice::from(0..n)).collect();
        Self { so_far: B::float_slice_assign(self.so_far, &place, more), ..self }
    }

    fn done(self) -> Float<B> {
        B::float_cast(self.so_far, self.dtype)
    }
}
