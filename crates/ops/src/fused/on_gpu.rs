//! Operations that are fused on a GPU only, outside autodiff. Decoding there waits for launches, and these reduce their number.

#[cfg(all(feature = "gpu", not(feature = "fusion")))]
use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor as Float};
use burn::tensor::Tensor;

use crate::RotaryAngles;

/// Outputs of the projections: queries `[B, L, H, dh]`, keys and values `[B, L, Hkv, dh]`.
pub struct Heads<'a> {
    pub q: Tensor<4>,
    pub k: Tensor<4>,
    pub v: Tensor<4>,
    /// Gains `[dh]` of the norms of queries and keys, and their epsilon.
    pub gains: Option<([Tensor<1>; 2], f64)>,
    pub rotation: &'a RotaryAngles,
}

#[cfg(all(feature = "gpu", not(feature = "fusion")))]
#[backend_extension(Cube)]
pub(crate) trait OnGpu: Backend {
    /// Queries `[B, L, H, dh]` and keys `[B, L, Hkv, dh]` normalised (with `eps`) and turned, keys and values `[B, L, Hkv, dh]` written into
    /// a cache `[B, Hkv, dh, capacity]` and `[B, Hkv, capacity, dh]` from slot `at` on: the queries and the cache.
    fn append_heads(
        q: Float<Self>,
        k: Float<Self>,
        v: Float<Self>,
        q_gain: Float<Self>,
        k_gain: Float<Self>,
        cos: Float<Self>,
        sin: Float<Self>,
        keys: Float<Self>,
        values: Float<Self>,
        at: usize,
        eps: Option<f64>,
    ) -> (Float<Self>, Float<Self>, Float<Self>);
    /// `x + more`, and the norm of the sum.
    fn add_rms_norm(x: Float<Self>, more: Float<Self>, weight: Float<Self>, eps: f64) -> (Float<Self>, Float<Self>);
    /// The first `n` of an axis, without a copy.
    fn first_of(x: Float<Self>, axis: usize, n: usize) -> Float<Self>;
}

/// Normalises and rotates queries and keys, and writes keys and values into a cache with room, keys `[B, Hkv, dh, capacity]` and values
/// `[B, Hkv, capacity, dh]`, from slot `at` on. Returns the cache and the queries; without a kernel for all of it, the unchanged cache.
pub fn append_heads(heads: &Heads, cache: [Tensor<4>; 2], at: usize) -> ([Tensor<4>; 2], Option<Tensor<4>>) {
    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    if takes_heads(heads, &cache) {
        let Heads { q, k, v, gains, rotation } = heads;
        // Placeholders for missing gains are not read.
        let [q_gain, k_gain] = match gains {
            Some((gains, _)) => gains.clone().map(Tensor::into_dispatch),
            None => [0, 1].map(|_| rotation.cos.clone().into_dispatch()),
        };
        let [q, k, v, cos, sin] = [q, k, v, &rotation.cos, &rotation.sin].map(|x| x.clone().into_dispatch());
        let [keys, values] = cache.map(Tensor::into_dispatch);
        let eps = gains.as_ref().map(|(_, eps)| *eps);
        let (q, keys, values) =
            <Dispatch as OnGpu>::append_heads(q, k, v, q_gain, k_gain, cos, sin, keys, values, at, eps);
        return ([keys, values].map(Tensor::from_dispatch), Some(Tensor::from_dispatch(q)));
    }
    let _ = (heads, at);
    (cache, None)
}

#[cfg(all(feature = "gpu", not(feature = "fusion")))]
fn takes_heads(Heads { q, k, v, gains, rotation }: &Heads, cache: &[Tensor<4>; 2]) -> bool {
    let plain = |x: &Tensor<4>| !x.is_autodiff() && x.dtype() == q.dtype();
    let heads = [q, k, v, &rotation.cos, &rotation.sin].into_iter().chain(cache).all(plain);
    let of_one_type = |(gains, _): &([Tensor<1>; 2], f64)| gains.iter().all(|gain| gain.dtype() == q.dtype());
    let width = q.dims()[3];
    heads
        && super::is_forward_fused(q)
        && super::widest_head(q).is_some_and(|widest| width <= widest && width % 2 == 0)
        && rotation.cos.dims()[3] * 2 == width
        && gains.as_ref().is_none_or(of_one_type)
}

/// `x + more` and its `rms_norm`, `[B, L, D]` each; `None` without a kernel for both.
pub fn add_rms_norm(x: &Tensor<3>, more: &Tensor<3>, gain: &Tensor<1>, eps: f64) -> Option<(Tensor<3>, Tensor<3>)> {
    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    {
        let dtype = x.dtype();
        let tracked = x.is_autodiff() || more.is_autodiff() || gain.is_autodiff();
        if super::on_gpu(x) && super::is_forward_fused(x) && !tracked && more.dtype() == dtype && gain.dtype() == dtype
        {
            let [x, more] = [x, more].map(|x| x.clone().into_dispatch());
            let (sum, normed) = <Dispatch as OnGpu>::add_rms_norm(x, more, gain.clone().into_dispatch(), eps);
            return Some((Tensor::from_dispatch(sum), Tensor::from_dispatch(normed)));
        }
    }
    let _ = (x, more, gain, eps);
    None
}

/// The first `n` of an axis: on a GPU, outside autodiff, a view of the same memory.
pub fn first_of<const R: usize>(x: Tensor<R>, axis: usize, n: usize) -> Tensor<R> {
    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    if super::on_gpu(&x) && !x.is_autodiff() {
        return Tensor::from_dispatch(<Dispatch as OnGpu>::first_of(x.into_dispatch(), axis, n));
    }
    x.narrow(axis, 0, n)
}
