//! The decoder of the Qwen3 and Llama families: embed → blocks → final norm, and the head apart.

use anyhow::{Result, ensure};
use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::attention::{Attention, Call};
use super::cache::KvCache;
use super::config::ModelConfig;
use super::heads::Heads;
use super::hooks::{HookPoint, Hooks, Kind};
use super::linear::Linear;
use super::norm::RmsNorm;
use super::span::Span;
use crate::ops::{self, Rotation, Targets};

/// The gated feed-forward of one block.
#[derive(Module, Debug)]
pub struct Mlp {
    pub gate_proj: Linear,
    pub up_proj: Linear,
    pub down_proj: Linear,
}

/// One pre-norm block.
#[derive(Module, Debug)]
pub struct Block {
    pub input_layernorm: RmsNorm,
    pub self_attn: Attention,
    pub post_attention_layernorm: RmsNorm,
    pub mlp: Mlp,
}

/// A decoder-only transformer. Field names follow Hugging Face's parameter names.
#[derive(Module, Debug)]
pub struct Decoder {
    /// `[V, D]`.
    pub embed_tokens: Param<Tensor<2>>,
    pub layers: Vec<Block>,
    pub norm: RmsNorm,
    /// `None` where the head is the embedding, transposed.
    pub lm_head: Option<Linear>,
    /// What a method trains beside it.
    pub heads: Heads,
    #[module(skip)]
    config: ModelConfig,
    #[module(skip)]
    inv_freq: Vec<f32>,
}

impl Block {
    fn zeros(config: &ModelConfig, device: &Device) -> Self {
        let (d, f, eps) = (config.hidden_size, config.intermediate_size, config.rms_norm_eps);
        Self {
            input_layernorm: RmsNorm::ones(d, eps, device),
            self_attn: Attention::zeros(config, device),
            post_attention_layernorm: RmsNorm::ones(d, eps, device),
            mlp: Mlp {
                gate_proj: Linear::zeros(d, f, device),
                up_proj: Linear::zeros(d, f, device),
                down_proj: Linear::zeros(f, d, device),
            },
        }
    }

    fn forward(
        &self,
        x: Tensor<3>,
        layer: usize,
        head_dim: usize,
        call: &Call,
        cache: &mut KvCache,
        hooks: &mut Hooks,
    ) -> Result<Tensor<3>> {
        let at = |kind| HookPoint::at(layer, kind);
        let span = call.span;
        let resid_pre = hooks.apply(at(Kind::ResidPre), span, x)?;

        let ln1 = [at(Kind::Ln1Scale), at(Kind::Ln1Normalized)];
        let normed = self.input_layernorm.forward(resid_pre.clone(), ln1, span, hooks)?;
        let attn_out = self.self_attn.forward(normed, layer, head_dim, call, cache, hooks)?;
        let attn_out = hooks.apply(at(Kind::AttnOut), span, attn_out)?;
        let resid_mid = hooks.apply(at(Kind::ResidMid), span, resid_pre + attn_out)?;

        let ln2 = [at(Kind::Ln2Scale), at(Kind::Ln2Normalized)];
        let normed = self.post_attention_layernorm.forward(resid_mid.clone(), ln2, span, hooks)?;
        let gate = hooks.apply(at(Kind::MlpPre), span, self.mlp.gate_proj.forward(normed.clone()))?;
        let up = hooks.apply(at(Kind::MlpPreLinear), span, self.mlp.up_proj.forward(normed))?;
        let post = hooks.apply(at(Kind::MlpPost), span, ops::swiglu(gate, up))?;
        let mlp_out = hooks.apply(at(Kind::MlpOut), span, self.mlp.down_proj.forward(post))?;
        hooks.apply(at(Kind::ResidPost), span, resid_mid + mlp_out)
    }
}

impl Decoder {
    /// A decoder of this shape with all weights zero (norms one): a place to load a checkpoint into.
    pub fn zeros(config: &ModelConfig, device: &Device) -> Self {
        let (v, d) = (config.vocab_size, config.hidden_size);
        Self {
            embed_tokens: Param::from_tensor(Tensor::zeros([v, d], device)),
            layers: (0..config.num_hidden_layers).map(|_| Block::zeros(config, device)).collect(),
            norm: RmsNorm::ones(d, config.rms_norm_eps, device),
            lm_head: (!config.tie_word_embeddings).then(|| Linear::zeros(d, v, device)),
            heads: Heads::default(),
            config: config.clone(),
            inv_freq: config.inv_freqs().into_iter().map(|f| f as f32).collect(),
        }
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn device(&self) -> Device {
        self.embed_tokens.val().device()
    }

    /// An empty cache for `rows` rows.
    pub fn cache(&self, rows: usize) -> KvCache {
        KvCache::new(self.layers.len(), rows)
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
                flat.push(i64::from(id));
            }
        }
        let table = self.embed_tokens.val();
        let index = Tensor::<1, Int>::from_data(TensorData::new(flat, [ids.len() * width]), &table.device());
        Ok(table.select(0, index).reshape([ids.len(), width, self.config.hidden_size]))
    }

    /// Embeddings `[B, L, D]` → hidden states after the final norm, `[B, L, D]`: what the head reads.
    ///
    /// The span says where each position stands; keys and values are appended to `cache`.
    ///
    /// # Errors
    /// Shapes that disagree, positions that do not increase, and whatever a hook returns. The cache is then
    /// left with the span half appended: drop it.
    pub fn hidden(&self, x: Tensor<3>, span: &Span, cache: &mut KvCache, hooks: &mut Hooks) -> Result<Tensor<3>> {
        let [b, l, d] = x.dims();
        ensure!(d == self.config.hidden_size, "embeddings have width {d}, the model {}", self.config.hidden_size);
        span.check(b, l)?;
        cache.open(span)?;
        let (device, dtype) = (x.device(), x.dtype());
        let call = Call {
            span,
            rotation: Rotation::new(&span.positions, &self.inv_freq, dtype, &device),
            mask: cache.mask(l, dtype, &device),
        };
        let mut x = hooks.apply(HookPoint::new(Kind::Embed), span, x)?;
        for (layer, block) in self.layers.iter().enumerate() {
            x = block.forward(x, layer, self.config.head_dim, &call, cache, hooks)?;
        }
        let ln = [HookPoint::new(Kind::LnFinalScale), HookPoint::new(Kind::LnFinalNormalized)];
        self.norm.forward(x, ln, span, hooks)
    }

    /// The head: hidden states after the final norm `[B, L, D]` → logits `[B, L, V]`.
    pub fn unembed(&self, h: Tensor<3>) -> Tensor<3> {
        match &self.lm_head {
            Some(head) => head.forward(h),
            None => ops::linear_transposed(h, self.embed_tokens.val()),
        }
    }

    /// `−log p(target)` of hidden states after the final norm `[N, D]` (nats), and 1 where no token is more probable, else 0:
    /// `[N]` each. All logits are never held at once where the head has no LoRA factors and computes in f32 on the CPU.
    ///
    /// # Errors
    /// Not one target for each state, or a token that the head does not have.
    pub fn token_losses(&self, hidden: Tensor<2>, targets: Targets) -> Result<(Tensor<1>, Tensor<1>)> {
        let (n, vocab) = (hidden.dims()[0], self.config.vocab_size);
        ensure!(targets.ids.len() == n && n > 0, "{} targets for {n} hidden states", targets.ids.len());
        for id in targets.ids.iter().chain(&targets.banned) {
            ensure!((*id as usize) < vocab, "token id {id} is to be predicted, and the head has {vocab} rows");
        }
        let head = match &self.lm_head {
            Some(head) if head.weight.adapter().is_some() => {
                let logits = self.unembed(hidden.unsqueeze_dim(0)).squeeze_dim::<2>(0);
                return Ok(ops::loss_of_logits(logits, targets));
            }
            Some(head) => head.weight.val(),
            None => self.embed_tokens.val().transpose(),
        };
        Ok(ops::head_loss(hidden, head, targets))
    }

    /// The most probable next token of one hidden state `[D]`; `None` where it does not fit the head.
    pub(crate) fn next_token(&self, h: &[f32]) -> Option<u32> {
        if h.len() != self.config.hidden_size {
            return None;
        }
        let table = self.embed_tokens.val();
        let state = TensorData::new(h.to_vec(), [1, 1, h.len()]);
        let logits = self.unembed(Tensor::from_data(state, (&table.device(), table.dtype())));
        let logits = logits.try_into_vec_as::<f32>().ok()?;
        let best = logits.iter().enumerate().fold(0, |best, (i, x)| if *x > logits[best] { i } else { best });
        u32::try_from(best).ok()
    }

    /// Ids → logits in one uncached call of unpadded rows, `[B][L]` → `[B, L, V]`.
    ///
    /// # Errors
    /// As [`Self::embed`] and [`Self::hidden`].
    pub fn logits(&self, ids: &[Vec<u32>], hooks: &mut Hooks) -> Result<Tensor<3>> {
        let x = self.embed(ids)?;
        let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
        let h = self.hidden(x, &Span::prompts(&lengths, false), &mut self.cache(ids.len()), hooks)?;
        Ok(self.unembed(h))
    }
}
