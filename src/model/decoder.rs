//! The decoder of all [families](super::config::Family): embed → blocks → final norm, and the head apart.

use anyhow::{Result, ensure};
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::attention::{Attention, Call, soft_capped};
use super::cache::KvCache;
use super::checkpoint::{EMBED, HEAD};
use super::config::{ModelConfig, NormPlace};
use super::heads::Heads;
use super::hooks::{HookPoint, Hooks, PointKind};
use super::kept::matrix::index;
use super::linear::{Linear, Matrix};
use super::lora::TARGETS;
use super::mlp::FeedForward;
use super::norm::Norm;
use super::span::Span;
use crate::ops::{self, RotaryAngles, Targets, stored::Inputs};
use crate::progress::ensure_wanted;

/// One transformer layer. [`NormPlace`] determines its norms.
#[derive(Module, Debug)]
pub struct Block {
    pub input_layernorm: Option<Norm>,
    pub self_attn: Attention,
    pub post_attention_layernorm: Option<Norm>,
    pub pre_feedforward_layernorm: Option<Norm>,
    pub post_feedforward_layernorm: Option<Norm>,
    pub mlp: FeedForward,
    #[module(skip)]
    norm_place: NormPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Attention,
    FeedForward,
}

/// A decoder-only transformer. Field names follow Hugging Face's parameter names.
#[derive(Module, Debug)]
pub struct Decoder {
    /// `[V, D]`.
    pub embed_tokens: Matrix,
    /// `[P, D]`, if positions are learned.
    pub embed_positions: Option<Param<Tensor<2>>>,
    pub layers: Vec<Block>,
    pub norm: Norm,
    /// `None`: the head is the transposed embedding.
    pub lm_head: Option<Linear>,
    /// Heads that a method trains in addition.
    pub heads: Heads,
    #[module(skip)]
    pub(super) config: ModelConfig,
    #[module(skip)]
    pub(super) inv_freq: Vec<f32>,
}

/// Makes the matrix of a name and a shape `[d_out, d_in]`.
pub(super) type Make<'a> = &'a mut dyn FnMut(&str, [usize; 2]) -> Result<Matrix>;

/// Hook points of the norm at one of the four places of a block, by TransformerLens' names: the only norm of a half is its `ln`, before
/// or after.
fn norm_points(norms: NormPlace, place: usize) -> [PointKind; 2] {
    match (place, norms) {
        (1, NormPlace::Both) => [PointKind::Ln1PostScale, PointKind::Ln1PostNormalized],
        (3, NormPlace::Both) => [PointKind::Ln2PostScale, PointKind::Ln2PostNormalized],
        (0 | 1, _) => [PointKind::Ln1Scale, PointKind::Ln1Normalized],
        _ => [PointKind::Ln2Scale, PointKind::Ln2Normalized],
    }
}

/// The residual stream `[B, L, D]` and a pending summand: one kernel adds it and computes the next norm.
pub(super) struct Residual {
    x: Tensor<3>,
    more: Option<Tensor<3>>,
}

impl From<Tensor<3>> for Residual {
    fn from(x: Tensor<3>) -> Self {
        Self { x, more: None }
    }
}

impl Residual {
    pub(super) fn sum(self) -> Tensor<3> {
        match self.more {
            Some(more) => self.x + more,
            None => self.x,
        }
    }
}

impl Block {
    fn new(config: &ModelConfig, layer: usize, device: &Device, make: Make) -> Result<Self> {
        let d = config.hidden_size;
        let self_attn = Attention::new(config, layer, device, make)?;
        let norm_place = config.family.norm_place;
        let norm = |name| norm_place.names().contains(&Some(name)).then(|| Norm::new(d, config, device));
        Ok(Self {
            norm_place,
            input_layernorm: norm("input_layernorm"),
            self_attn,
            post_attention_layernorm: norm("post_attention_layernorm"),
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm"),
            post_feedforward_layernorm: norm("post_feedforward_layernorm"),
            mlp: FeedForward::new(config, layer, device, make)?,
        })
    }

    /// The norms before and after attention, before and after the feed-forward.
    pub fn norms(&self) -> [Option<&Norm>; 4] {
        self.norm_place.names().map(|name| match name? {
            "input_layernorm" => self.input_layernorm.as_ref(),
            "post_attention_layernorm" => self.post_attention_layernorm.as_ref(),
            "pre_feedforward_layernorm" => self.pre_feedforward_layernorm.as_ref(),
            _ => self.post_feedforward_layernorm.as_ref(),
        })
    }

    /// Copies a half of another block of this shape, with the norms before and after it.
    pub(crate) fn take(&mut self, half: Half, other: &Self) {
        let places = match half {
            Half::Attention => 0..2,
            Half::FeedForward => 2..4,
        };
        for name in self.norm_place.names()[places].iter().flatten() {
            match *name {
                "input_layernorm" => self.input_layernorm = other.input_layernorm.clone(),
                "post_attention_layernorm" => self.post_attention_layernorm = other.post_attention_layernorm.clone(),
                "pre_feedforward_layernorm" => self.pre_feedforward_layernorm = other.pre_feedforward_layernorm.clone(),
                _ => self.post_feedforward_layernorm = other.post_feedforward_layernorm.clone(),
            }
        }
        match half {
            Half::Attention => self.self_attn = other.self_attn.clone(),
            Half::FeedForward => self.mlp = other.mlp.clone(),
        }
    }

    /// Applies the norm at one of the four places, if there is one: `[B, L, D]` → `[B, L, D]`.
    fn normed(&self, place: usize, x: Tensor<3>, layer: usize, span: &Span, hooks: &mut Hooks) -> Result<Tensor<3>> {
        let Some(norm) = self.norms()[place] else { return Ok(x) };
        let points = norm_points(self.norm_place, place).map(|kind| HookPoint::at(layer, kind));
        norm.forward(x, points, span, hooks)
    }

    /// Its projections by the names of [`TARGETS`], without experts.
    fn linears(&self) -> impl Iterator<Item = (&'static str, &Linear)> {
        let (a, m) = (&self.self_attn, self.mlp.dense());
        let gate = m.and_then(|m| m.gate_proj.as_ref());
        let all = [
            Some(&a.q_proj),
            Some(&a.k_proj),
            Some(&a.v_proj),
            Some(&a.o_proj),
            gate,
            m.map(|m| &m.up_proj),
            m.map(|m| &m.down_proj),
        ];
        TARGETS.into_iter().zip(all).filter_map(|(name, linear)| Some((name, linear?)))
    }

    /// Its projections by their paths in the block.
    pub(super) fn projections(&self) -> impl Iterator<Item = (String, &Linear)> {
        let part = |name| if TARGETS[..4].contains(&name) { "self_attn" } else { "mlp" };
        self.linears().map(move |(name, linear)| (format!("{}.{name}", part(name)), linear))
    }

    /// Its projections by the names of [`TARGETS`], to be changed.
    pub(super) fn linears_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Linear)> {
        let a = &mut self.self_attn;
        let [gate, up, down] = self.mlp.linears_mut();
        let all = [Some(&mut a.q_proj), Some(&mut a.k_proj), Some(&mut a.v_proj), Some(&mut a.o_proj), gate, up, down];
        TARGETS.into_iter().zip(all).filter_map(|(name, linear)| Some((name, linear?)))
    }

    /// Adds the pending summand, applies the hooks at `kind`, and the norm at a place.
    fn added(
        &self,
        stream: Residual,
        kind: PointKind,
        place: usize,
        layer: usize,
        span: &Span,
        hooks: &mut Hooks,
    ) -> Result<(Tensor<3>, Tensor<3>)> {
        let point = HookPoint::at(layer, kind);
        let [scale, normalized] = norm_points(self.norm_place, place).map(|kind| HookPoint::at(layer, kind));
        if let (Some(norm), Some(more)) = (self.norms()[place], &stream.more)
            && ![point, scale, normalized].iter().any(|&point| hooks.wants(point))
            && let Some(both) = norm.apply_to_sum(&stream.x, more)
        {
            return Ok(both);
        }
        let x = hooks.apply(point, span, stream.sum())?;
        let normed = self.normed(place, x.clone(), layer, span, hooks)?;
        Ok((x, normed))
    }

    pub(super) fn forward(
        &self,
        stream: Residual,
        layer: usize,
        call: &Call,
        cache: &mut KvCache,
        hooks: &mut Hooks,
    ) -> Result<Residual> {
        let at = |kind| HookPoint::at(layer, kind);
        let span = call.span;
        let (resid_pre, normed) = self.added(stream, PointKind::ResidPre, 0, layer, span, hooks)?;
        let attn_out = self.self_attn.forward(normed, layer, call, cache, hooks)?;
        let attn_out = self.normed(1, attn_out, layer, span, hooks)?;
        let attn_out = hooks.apply(at(PointKind::AttnOut), span, attn_out)?;
        let stream = Residual { x: resid_pre, more: Some(attn_out) };
        let (resid_mid, normed) = self.added(stream, PointKind::ResidMid, 2, layer, span, hooks)?;
        let mlp_out = self.mlp.forward(normed, layer, span, hooks)?;
        let mlp_out = self.normed(3, mlp_out, layer, span, hooks)?;
        let mlp_out = hooks.apply(at(PointKind::MlpOut), span, mlp_out)?;
        let stream = Residual { x: resid_mid, more: Some(mlp_out) };
        Ok(match hooks.wants(at(PointKind::ResidPost)) {
            true => hooks.apply(at(PointKind::ResidPost), span, stream.sum())?.into(),
            false => stream,
        })
    }
}

impl Decoder {
    /// A decoder of this shape with norms of one; `make` returns its matrices, in the order of the forward pass.
    pub(super) fn new(config: &ModelConfig, device: &Device, make: Make) -> Result<Self> {
        let (v, d) = (config.vocab_size, config.hidden_size);
        let embed_tokens = make(EMBED, [v, d])?;
        let blocks = (0..config.num_hidden_layers).map(|layer| Block::new(config, layer, device, make));
        let layers = blocks.collect::<Result<_>>()?;
        let head = (!config.tie_word_embeddings).then(|| make(HEAD, [v, d]));
        let positions = || Param::from_tensor(Tensor::zeros([1, 1], device));
        Ok(Self {
            embed_tokens,
            embed_positions: config.family.learned_positions.then(positions),
            layers,
            norm: Norm::new(d, config, device),
            lm_head: head.transpose()?.map(|weight| Linear { weight, bias: None }),
            heads: Heads::default(),
            config: config.clone(),
            inv_freq: config.inv_freqs().into_iter().map(|f| f as f32).collect(),
        })
    }

    /// Whether some matrix is in its stored type: such a model is examined, or LoRA factors are trained over it.
    pub fn is_kept(&self) -> bool {
        self.any_matrix(|matrix| matrix.param().is_none())
    }

    /// Whether its embedding rows are read on the host: those of a stored table that is not on a GPU.
    pub fn looks_up_on_host(&self) -> bool {
        matches!(&self.embed_tokens, Matrix::Kept(kept) if !kept.matrix.is_on_device())
    }

    /// Whether inputs of some of its stored matrices are rounded in this way ([`Self::load_kept_rounding`]).
    pub fn rounds_inputs(&self, inputs: Inputs) -> bool {
        self.any_matrix(|matrix| matches!(matrix, Matrix::Kept(kept) if kept.matrix.inputs() == inputs))
    }

    fn any_matrix(&self, holds: impl Fn(&Matrix) -> bool) -> bool {
        let Self { embed_tokens, layers, lm_head, .. } = self;
        let in_block = |block: &Block| {
            let of_experts = || block.mlp.experts_matrices().any(&holds);
            block.linears().any(|(_, linear)| holds(&linear.weight)) || of_experts()
        };
        let outside = std::iter::once(embed_tokens).chain(lm_head.as_ref().map(|head| &head.weight));
        outside.into_iter().any(&holds) || layers.iter().any(in_block)
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn device(&self) -> Device {
        self.norm.weight.val().device()
    }

    pub fn cache(&self, rows: usize) -> KvCache {
        KvCache::new(self.layers.len(), rows)
    }

    /// A cache for a single forward ([`KvCache::for_one_call`]).
    pub fn cache_for_one_call(&self, rows: usize) -> KvCache {
        KvCache::for_one_call(self.layers.len(), rows)
    }

    /// Token ids `[B][L]`, rectangular → embeddings `[B, L, D]`.
    ///
    /// # Errors
    /// An id outside the table, and a ragged batch.
    pub fn embed(&self, ids: &[Vec<u32>]) -> Result<Tensor<3>> {
        let width = ids.first().map_or(0, Vec::len);
        ensure!(width > 0, "nothing to embed: the batch has {} rows of {width} tokens", ids.len());
        let mut flat = Vec::with_capacity(ids.len() * width);
        for (row, ids) in ids.iter().enumerate() {
            ensure!(ids.len() == width, "row {row} has {} tokens, row 0 has {width}: pad first", ids.len());
            for &id in ids {
                ensure!(
                    (id as usize) < self.config.vocab_size,
                    "token id {id} in row {row} is outside the embedding table of {} rows",
                    self.config.vocab_size
                );
                flat.push(id as usize);
            }
        }
        Ok(self.embed_rows(&flat)?.reshape([ids.len(), width, self.config.hidden_size]))
    }

    /// Token ids `[N]`, all in the table → inputs of the first block, `[N, D]`.
    pub fn embed_rows(&self, ids: &[usize]) -> Result<Tensor<2>> {
        Ok(self.scaled(self.embed_tokens.embedding(ids, &self.device())?))
    }

    /// Multiplies rows of the embedding table by the model's constant.
    fn scaled<const R: usize>(&self, rows: Tensor<R>) -> Tensor<R> {
        let scale = self.config.embed_scale();
        if scale == 1.0 { rows } else { rows.mul_scalar(scale) }
    }

    /// `Σ p_v E[v]` for weights `[B, L, V]`: `[B, L, D]`, as inputs of the first block.
    pub(crate) fn embed_mixture(&self, p: Tensor<3>) -> Tensor<3> {
        self.scaled(self.embed_tokens.as_head_back(p))
    }

    /// The embedding table as a head, without gradient for the table: `[B, L, D]` → `[B, L, V]`.
    pub(crate) fn onto_embeddings(&self, x: Tensor<3>) -> Tensor<3> {
        self.embed_tokens.clone().no_grad().as_head(x)
    }

    /// Token ids `[N]` on the device, all in the table → inputs of the first block, `[N, D]`.
    pub fn embed_on_device(&self, ids: Tensor<1, Int>) -> Result<Tensor<2>> {
        Ok(self.scaled(self.embed_tokens.embedding_on_device(ids)?))
    }

    /// Embeddings `[B, L, D]` → hidden states after the final norm, `[B, L, D]`: the head's input.
    ///
    /// The span has the position of each token; keys and values are appended to `cache`.
    ///
    /// # Errors
    /// Shapes that disagree, positions that do not increase, [`ops::TooLarge`], errors of a hook. The cache then has a half-appended span:
    /// drop it.
    pub fn hidden(&self, x: Tensor<3>, span: &Span, cache: &mut KvCache, hooks: &mut Hooks) -> Result<Tensor<3>> {
        let [b, l, d] = x.dims();
        ensure!(d == self.config.hidden_size, "embeddings have width {d}, the model {}", self.config.hidden_size);
        span.check(b, l)?;
        cache.open(span)?;
        let call = self.call(span, cache, hooks, &x)?;
        let x = self.placed(hooks.apply(HookPoint::new(PointKind::Embed), span, x)?, span, hooks)?;
        let mut stream = Residual::from(x);
        for (layer, block) in self.layers.iter().enumerate() {
            ensure_wanted()?;
            stream = block.forward(stream, layer, &call, cache, hooks)?;
        }
        let ln = [HookPoint::new(PointKind::LnFinalScale), HookPoint::new(PointKind::LnFinalNormalized)];
        self.norm.forward(stream.sum(), ln, span, hooks)
    }

    /// Shared state of the blocks in a call, whose slots are open.
    ///
    /// # Errors
    /// [`ops::TooLarge`].
    pub(super) fn call<'a>(
        &'a self,
        span: &'a Span,
        cache: &KvCache,
        hooks: &Hooks,
        x: &Tensor<3>,
    ) -> Result<Call<'a>> {
        let ([b, l, _], dtype, device) = (x.dims(), x.dtype(), x.device());
        let mut points = (0..self.layers.len())
            .flat_map(|layer| [PointKind::AttnScores, PointKind::Pattern].map(|kind| (layer, kind)));
        let seen = points.any(|(layer, kind)| hooks.wants(HookPoint::at(layer, kind)));
        ops::ensure_attention_fits([b, self.config.num_attention_heads, l, cache.width()], seen, dtype, &device)?;
        if ops::is_cpu(&device) {
            let what = || format!("{l} positions in {b} rows (use shorter prompts, or fewer rows at a time)");
            ops::ensure_memory(what, self.config.bytes_of(b * l, dtype.size()))?;
        }
        let mask = cache.mask(l, None, dtype, &device);
        let window = self.config.extras.sliding.as_ref().map(|sliding| sliding.window);
        let sliding_mask = match window.filter(|&window| cache.reaches_beyond(window)) {
            None => mask.clone(),
            window => cache.mask(l, window, dtype, &device),
        };
        Ok(Call { config: &self.config, span, rotation: self.rotation(span, dtype, &device), mask, sliding_mask })
    }

    /// Rotations of queries and keys, if the model has rotary positions.
    fn rotation(&self, span: &Span, dtype: DType, device: &Device) -> Option<RotaryAngles> {
        let turned = || RotaryAngles::new(&span.positions, &self.inv_freq, dtype, device);
        self.embed_positions.is_none().then(|| turned().times(self.config.rope_attention_factor()))
    }

    /// Adds learned position embeddings, if any: `[B, L, D]` → `[B, L, D]`.
    fn placed(&self, x: Tensor<3>, span: &Span, hooks: &mut Hooks) -> Result<Tensor<3>> {
        let Some(table) = &self.embed_positions else { return Ok(x) };
        let there = self.config.max_position_embeddings;
        let mut rows = Vec::with_capacity(span.rows.len() * span.width());
        for (positions, steps) in span.positions.iter().zip(&span.steps) {
            for (&position, step) in positions.iter().zip(steps) {
                ensure!(
                    position < there || step.is_none(),
                    "position {position} has no row in the model's table of {there} positions: the sequence is too long"
                );
                rows.push(position.min(there - 1));
            }
        }
        let table = table.val();
        let rows = table.clone().select(0, index(&rows, &table.device())).reshape(x.dims()).cast(x.dtype());
        Ok(x + hooks.apply(HookPoint::new(PointKind::PosEmbed), span, rows)?)
    }

    /// The head: hidden states after the final norm `[B, L, D]` → logits `[B, L, V]`.
    pub fn unembed(&self, h: Tensor<3>) -> Tensor<3> {
        self.unembed_at(h, 1.0)
    }

    /// Logits `[B, L, V]` divided by a temperature: `c · tanh(x / c) / T = (c / T) · tanh((x / T) / (c / T))` for a cap c.
    pub(crate) fn unembed_at(&self, h: Tensor<3>, temperature: f64) -> Tensor<3> {
        // D values are divided instead of V.
        let h = if temperature == 1.0 { h } else { h.div_scalar(temperature) };
        let logits = match &self.lm_head {
            Some(head) => head.forward(h),
            None => self.embed_tokens.as_head(h),
        };
        soft_capped(logits, self.config.extras.logit_cap.map(|cap| cap / temperature))
    }

    /// Backward pass of the head: from the gradient `slope` at `logits`, both `[B, L, V]`, to its input, `[B, L, D]`. Not for a head that is
    /// being trained.
    pub(crate) fn unembed_back(&self, logits: Tensor<3>, slope: Tensor<3>) -> Tensor<3> {
        let slope = match self.config.extras.logit_cap {
            // tanh' = 1 − tanh²
            Some(cap) => slope * logits.div_scalar(cap).square().neg().add_scalar(1.0),
            None => slope,
        };
        match &self.lm_head {
            Some(head) => head.backward(slope),
            None => self.embed_tokens.as_head_back(slope),
        }
    }

    /// `−log p(target)` of hidden states after the final norm `[N, D]` (nats), and 1 if no token is more probable, else 0: `[N]` each. Logits
    /// are computed in parts if there is no gradient, or in f32 if the head has no LoRA factors, no cap, and its floats, if any, are trained.
    ///
    /// # Errors
    /// Another number of targets than of states; a token that the head lacks.
    pub fn token_losses(&self, hidden: Tensor<2>, targets: Targets) -> Result<(Tensor<1>, Tensor<1>)> {
        self.token_losses_at(hidden, targets, 1.0)
    }

    /// [`Self::token_losses`] of logits divided by a temperature.
    pub(crate) fn token_losses_at(
        &self,
        hidden: Tensor<2>,
        targets: Targets,
        temperature: f64,
    ) -> Result<(Tensor<1>, Tensor<1>)> {
        let (n, vocab) = (hidden.dims()[0], self.config.vocab_size);
        ensure!(targets.ids.len() == n && n > 0, "{} targets for {n} hidden states", targets.ids.len());
        for id in targets.ids.iter().chain(&targets.banned) {
            ensure!((*id as usize) < vocab, "token id {id} is to be predicted, and the head has {vocab} rows");
        }
        let capped = self.config.extras.logit_cap.is_some();
        let divided = |hidden: Tensor<2>| if temperature == 1.0 { hidden } else { hidden.div_scalar(temperature) };
        let head = match (&self.lm_head, &self.embed_tokens) {
            _ if capped => None,
            (Some(Linear { weight: Matrix::Dense(head), bias: None }), _) if head.adapter().is_none() => {
                Some(head.val())
            }
            (None, Matrix::Dense(table)) => Some(table.val().transpose()),
            (Some(Linear { weight: Matrix::Kept(kept), bias: None }), _) | (None, Matrix::Kept(kept))
                if let Some((stored, learnt)) = kept.rows_apart() =>
            {
                return Ok(ops::head_loss_stored(divided(hidden), learnt, stored, targets));
            }
            _ => None,
        };
        let unembed = |hidden: Tensor<2>| self.unembed_at(hidden.unsqueeze_dim(0), temperature).squeeze_dim::<2>(0);
        Ok(match head {
            Some(head) => ops::head_loss(divided(hidden), head, targets),
            None => ops::loss_in_parts(hidden, unembed, targets),
        })
    }

    /// The most probable next token of one hidden state `[D]`; `None` if it does not fit the head.
    pub(crate) fn next_token(&self, h: &[f32]) -> Option<u32> {
        if h.len() != self.config.hidden_size {
            return None;
        }
        let norm = self.norm.weight.val();
        let state = TensorData::new(h.to_vec(), [1, 1, h.len()]);
        let logits = self.unembed(Tensor::from_data(state, (&norm.device(), norm.dtype())));
        let logits = logits.try_into_vec_as::<f32>().ok()?;
        let best = logits.iter().enumerate().fold(0, |best, (i, x)| if *x > logits[best] { i } else { best });
        u32::try_from(best).ok()
    }

    /// Ids → logits in one uncached call of unpadded rows, `[B][L]` → `[B, L, V]`.
    pub fn logits(&self, ids: &[Vec<u32>], hooks: &mut Hooks) -> Result<Tensor<3>> {
        let x = self.embed(ids)?;
        let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
        let h = self.hidden(x, &Span::prompts(&lengths, false), &mut self.cache_for_one_call(ids.len()), hooks)?;
        Ok(self.unembed(h))
    }

    /// Logits of the last positions of one row, at most `n`: `[n, V]`.
    pub fn last_logits(&self, ids: &[u32], n: usize) -> Result<Tensor<2>> {
        let (len, x) = (ids.len(), self.embed(&[ids.to_vec()])?);
        let h = self.hidden(x, &Span::prompts(&[len], false), &mut self.cache_for_one_call(1), &mut Hooks::none())?;
        Ok(self.unembed(h.narrow(1, len - n.min(len), n.min(len))).squeeze_dim(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{Extras, Family};

    /// Losses and gradients with capped logits are those of the capped logits.
    #[test]
    fn capped_logits_have_losses_and_gradients_of_their_own() {
        let config = ModelConfig {
            vocab_size: 12,
            hidden_size: 8,
            intermediate_size: 8,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 4,
            max_position_embeddings: 16,
            extras: Extras { logit_cap: Some(0.5), ..Extras::default() },
            ..ModelConfig::new(Family::Gemma2)
        };
        let cpu: Device = Default::default();
        let model = Decoder::random(&config, 1, &cpu.clone().autodiff()).expect("a model");
        let plain = Decoder { config: ModelConfig { extras: Extras::default(), ..config }, ..model.clone() };
        let states: Vec<f32> = (0..24).map(|i| (i as f32).sin() * 3.0).collect();
        let hidden = Tensor::<2>::from_data(TensorData::new(states, [3, 8]), &cpu.clone().autodiff()).require_grad();
        let values = |x: Tensor<2>| x.without_autodiff().try_into_vec_as::<f32>().expect("values");
        let close = |a: Tensor<2>, b: Tensor<2>| {
            values(a).iter().zip(values(b)).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} is not {b}"));
        };
        let logits = model.unembed(hidden.clone().unsqueeze_dim(0));
        let uncapped: Tensor<2> = plain.unembed(hidden.clone().unsqueeze_dim(0)).squeeze_dim(0);
        close(logits.clone().squeeze_dim(0), uncapped.clone().mul_scalar(2.0).tanh().div_scalar(2.0));
        assert!(values(uncapped).iter().any(|x| x.abs() > 0.5), "nothing is capped");

        let targets = [5_u32, 0, 11];
        for temperature in [1.0, 0.7] {
            let targets = Targets::new(targets.to_vec());
            let losses = model.token_losses_at(hidden.clone(), targets.clone(), temperature).expect("losses").0;
            let expected = ops::loss_of_logits(logits.clone().div_scalar(temperature).squeeze_dim(0), targets).0;
            close(losses.unsqueeze_dim(0), expected.unsqueeze_dim(0));
        }

        let slope = Tensor::<3>::from_data([[[0.1_f32; 12], [-0.3; 12], [0.2; 12]]], &cpu);
        let like = Tensor::<3>::from_inner(slope.clone());
        let theirs = hidden.grad(&(logits.clone() * like).sum().backward()).expect("a gradient");
        let still = model.valid();
        close(still.unembed_back(logits.without_autodiff(), slope).squeeze_dim(0), theirs);
    }
}
