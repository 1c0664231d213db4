//! Self-attention of one block: projections, optional QK-norm and RoPE, cache, grouped attention.

use std::ops::Range;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::cache::KvCache;
use super::config::ModelConfig;
use super::decoder::Make;
use super::hooks::{HookPoint, Hooks, PointKind};
use super::linear::Linear;
use super::norm::Norm;
use super::span::Span;
use crate::ops::{self, Heads, RotaryAngles};

/// Weights of one block's attention.
#[derive(Module, Debug)]
pub struct Attention {
    pub q_proj: Linear,
    pub k_proj: Linear,
    pub v_proj: Linear,
    pub o_proj: Linear,
    /// Norms of q and k: `[dh]` per head, or `[H · dh]` over all heads.
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
}

/// Shared state of the blocks in one call.
pub(super) struct Call<'a> {
    pub config: &'a ModelConfig,
    pub span: &'a Span,
    /// `None` for learned positions.
    pub rotation: Option<RotaryAngles>,
    pub mask: Option<Tensor<4>>,
    /// Mask of layers with a sliding window.
    pub sliding_mask: Option<Tensor<4>>,
}

impl Attention {
    pub(super) fn new(config: &ModelConfig, layer: usize, device: &Device, make: Make) -> Result<Self> {
        let (d, dh) = (config.hidden_size, config.head_dim);
        let (q, kv) = (config.num_attention_heads * dh, config.num_key_value_heads * dh);
        let joint = config.family.qk_norm_is_joint;
        let norm = |all| config.qk_norm.then(|| Norm::new(if joint { all } else { dh }, config, device));
        let mut linear =
            |name: &str, shape| Linear::named(&format!("model.layers.{layer}.self_attn.{name}"), shape, make);
        let (qkv, other) = (config.family.qkv_bias, config.family.other_biases);
        Ok(Self {
            q_proj: linear("q_proj", [q, d])?.biased(qkv, q, device),
            k_proj: linear("k_proj", [kv, d])?.biased(qkv, kv, device),
            v_proj: linear("v_proj", [kv, d])?.biased(qkv, kv, device),
            o_proj: linear("o_proj", [d, q])?.biased(other, d, device),
            q_norm: norm(q),
            k_norm: norm(kv),
        })
    }

    /// Normalised stream `[B, L, D]` → attention output, `[B, L, D]`.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        layer: usize,
        call: &Call,
        cache: &mut KvCache,
        hooks: &mut Hooks,
    ) -> Result<Tensor<3>> {
        let [b, l, _] = x.dims();
        let at = |kind| HookPoint::at(layer, kind);
        let (span, head_dim) = (call.span, call.config.head_dim);
        let heads = |y: Tensor<3>| {
            let h = y.dims()[2] / head_dim;
            y.reshape([b, l, h, head_dim])
        };
        let [q, k, v] = Linear::forward_three([&self.q_proj, &self.k_proj, &self.v_proj], x);
        let q = hooks.apply(at(PointKind::Q), span, heads(q))?;
        let k = hooks.apply(at(PointKind::K), span, heads(k))?;
        let v = hooks.apply(at(PointKind::V), span, heads(v))?;
        let seen = hooks.wants(at(PointKind::RotQ)) || hooks.wants(at(PointKind::RotK));
        let at_once = if seen { None } else { self.appended(&q, &k, &v, layer, call, cache) };
        let (q, k, v) = match at_once {
            Some([q, k, v]) => (q, k, v),
            None => {
                let joint = call.config.family.qk_norm_is_joint;
                let turned = |norm, x| match &call.rotation {
                    Some(rotation) => ops::rotate(normed(norm, joint, x), rotation),
                    None => normed(norm, joint, x),
                };
                let (q, k) = (turned(&self.q_norm, q), turned(&self.k_norm, k));
                let q = hooks.apply(at(PointKind::RotQ), span, q)?;
                let k = hooks.apply(at(PointKind::RotK), span, k)?;
                let (k, v) = cache.append(layer, k.swap_dims(1, 2), v.swap_dims(1, 2));
                (q, k, v)
            }
        };

        let scale = call.config.query_scale();
        let q = if scale == 1.0 { q } else { q.mul_scalar(scale) };
        let cap = call.config.extras.attention_cap;
        let mask = if call.config.window(layer).is_some() { &call.sliding_mask } else { &call.mask }.clone();
        let z = if hooks.wants(at(PointKind::AttnScores)) {
            let scores = ops::masked(soft_capped(ops::grouped_scores(q, k), cap), mask);
            let scores = hooks.apply(at(PointKind::AttnScores), span, scores)?;
            let pattern = hooks.apply(at(PointKind::Pattern), span, ops::grouped_pattern(scores, None))?;
            ops::grouped_values(pattern, v)
        } else if hooks.wants(at(PointKind::Pattern)) {
            let pattern = ops::grouped_pattern(soft_capped(ops::grouped_scores(q, k), cap), mask);
            ops::grouped_values(hooks.apply(at(PointKind::Pattern), span, pattern)?, v)
        } else if cap.is_some() {
            attend_capped(q, k, v, mask, cap)
        } else {
            ops::attend(q, k, v, mask)
        };
        let z = hooks.apply(at(PointKind::Z), span, z)?;

        if hooks.wants(at(PointKind::Result)) {
            let result = hooks.apply(at(PointKind::Result), span, self.per_head(z)?)?;
            let [b, l, _, d] = result.dims();
            let sum = result.sum_dim(2).reshape([b, l, d]);
            return Ok(match &self.o_proj.bias {
                Some(bias) => sum + bias.val().unsqueeze(),
                None => sum,
            });
        }
        let width = z.dims()[2] * head_dim;
        Ok(self.o_proj.forward(z.reshape([b, l, width])))
    }

    /// Normalised and rotated queries, keys and values, with keys and values appended to the cache, if one kernel does it
    /// ([`KvCache::append_heads`]).
    fn appended(
        &self,
        q: &Tensor<4>,
        k: &Tensor<4>,
        v: &Tensor<4>,
        layer: usize,
        call: &Call,
        cache: &mut KvCache,
    ) -> Option<[Tensor<4>; 3]> {
        if q.is_autodiff() || ops::is_cpu(&q.device()) {
            return None;
        }
        let gains = match (&self.q_norm, &self.k_norm) {
            (None, None) => None,
            (Some(of_q), Some(of_k)) if !call.config.family.qk_norm_is_joint && of_q.bias.is_none() => {
                Some(([of_q.gain(), of_k.gain()], of_q.eps))
            }
            _ => return None,
        };
        let rotation = call.rotation.as_ref()?;
        cache.append_heads(layer, &Heads { q: q.clone(), k: k.clone(), v: v.clone(), gains, rotation })
    }

    /// Each head's share of the output, without the bias: z `[B, L, H, dh]` → `[B, L, H, D]`.
    fn per_head(&self, z: Tensor<4>) -> Result<Tensor<4>> {
        let [b, l, h, dh] = z.dims();
        let z = self.o_proj.rounded(z.reshape([b, l, h * dh]))?.reshape([b, l, h, dh]);
        let weight = self.o_proj.floats(&z.device())?;
        let d = weight.dims()[1];
        // A product a head, with the rows of all of the batch: no matrix is repeated.
        let z = z.swap_dims(1, 2).swap_dims(0, 1).reshape([h, b * l, dh]);
        let result = ops::matmul(z, weight.reshape([h, dh, d])).reshape([h, b, l, d]);
        Ok(result.swap_dims(0, 1).swap_dims(1, 2))
    }
}

/// `c · tanh(x / c)` for a cap c.
pub(super) fn soft_capped<const R: usize>(x: Tensor<R>, cap: Option<f64>) -> Tensor<R> {
    match cap {
        Some(cap) => x.div_scalar(cap).tanh().mul_scalar(cap),
        None => x,
    }
}

/// Maximum number of scores in memory; at least one query's.
const HELD: usize = 1 << 24;

/// Attention with capped scores, in chunks of queries; shapes as [`ops::attend`].
fn attend_capped(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Option<Tensor<4>>, cap: Option<f64>) -> Tensor<4> {
    let ([b, l, h, _], t) = (q.dims(), k.dims()[2]);
    let part = |part: Range<usize>| {
        let scores = ops::grouped_scores(q.clone().narrow(1, part.start, part.len()), k.clone());
        let mask = mask.clone().map(|mask| mask.narrow(2, part.start, part.len()));
        ops::grouped_values(ops::grouped_pattern(soft_capped(scores, cap), mask), v.clone())
    };
    Tensor::cat(ops::like_parts(l, (HELD / (b * h * t)).max(1)).map(part).collect(), 1)
}

fn normed(norm: &Option<Norm>, joint: bool, x: Tensor<4>) -> Tensor<4> {
    let [b, l, h, dh] = x.dims();
    match norm {
        Some(norm) if joint => norm.apply(x.reshape([b, l, h * dh])).reshape([b, l, h, dh]),
        Some(norm) => norm.apply(x),
        None => x,
    }
}
