//! Inputs of latent positions.

use anyhow::{Context, Result, ensure};
use burn::tensor::{Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use super::hybrid::{Hybrid, Mixing};
use super::sampling::Key;
use crate::model::{Decoder, Span, heads};
use crate::ops;

/// Turns the hidden state before a latent position into its input.
pub trait LatentSource: Send + Sync {
    /// Hidden states after the final norm `[B, 1, D]` → input embeddings `[B, 1, D]`. `at`: row, position and step of each (`None` for a row
    /// that is not at a latent, whose value is not used).
    ///
    /// # Errors
    /// A source that does not fit the model.
    fn inject(&self, h: Tensor<3>, at: &Span, model: &Decoder) -> Result<Tensor<3>>;

    /// Name in results.
    fn name(&self) -> String;

    /// The token of largest weight in the mixture fed at this position, from the logits `[V]` before it; `None` if it is not a mixture.
    fn top(&self, _logits: &[f32], _at: Key) -> Option<u32> {
        None
    }

    /// The source of states mixed into text tokens, if any.
    fn mixing(&self) -> Option<&dyn Mixing> {
        None
    }

    /// Whether it depends on `h` and the model alone and reads nothing back, so that the device needs no host between latents.
    fn stays_on_device(&self) -> bool {
        false
    }
}

/// The sources that a checkpoint can name in its `reasoning.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Source {
    #[default]
    HiddenState,
    /// The hidden state at a given L2 norm.
    ScaledState {
        norm: f64,
    },
    FixedEmbedding {
        token: u32,
    },
    VocabularyMixture {
        top_k: usize,
        /// Nucleus: the smallest set of tokens with this total probability; 1 for all.
        #[serde(default = "whole")]
        top_p: f64,
        temperature: f64,
    },
    Projection,
    LatentHead,
    /// Text whose tokens are mixed with states; no latents.
    Hybrid(Hybrid),
}

fn whole() -> f64 {
    1.0
}

/// The most probable token, the first of equals.
pub(super) fn largest(logits: &[f32]) -> u32 {
    let likelier = |best: usize, (token, x): (usize, &f32)| if *x > logits[best] { token } else { best };
    logits.iter().enumerate().fold(0, likelier) as u32
}

impl Source {
    /// # Errors
    /// A value out of range, by name.
    pub fn check(&self) -> Result<()> {
        if let Source::VocabularyMixture { top_k, top_p, temperature } = *self {
            ensure!(top_k > 0, "vocabulary mixture: top_k must be at least 1, found 0");
            ensure!(top_p > 0.0 && top_p <= 1.0, "vocabulary mixture: top_p must be in (0, 1], found {top_p}");
            ensure!(temperature > 0.0, "vocabulary mixture: temperature must be above 0, found {temperature}");
        }
        if let Source::ScaledState { norm } = *self {
            ensure!(norm > 0.0 && norm.is_finite(), "scaled state: norm must be a finite number above 0, found {norm}");
        }
        if let Source::Hybrid(Hybrid { temperature, .. }) = *self {
            ensure!(temperature > 0.0, "hybrid: temperature must be above 0, found {temperature}");
        }
        Ok(())
    }
}

impl LatentSource for Source {
    fn inject(&self, h: Tensor<3>, at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        match *self {
            Source::HiddenState => HiddenState.inject(h, at, model),
            Source::ScaledState { norm } => ScaledState { norm }.inject(h, at, model),
            Source::FixedEmbedding { token } => FixedEmbedding { token }.inject(h, at, model),
            Source::VocabularyMixture { top_k, top_p, temperature } => {
                VocabularyMixture { top_k, top_p, temperature }.inject(h, at, model)
            }
            Source::Projection => Projection.inject(h, at, model),
            Source::LatentHead => PredictedMean.inject(h, at, model),
            Source::Hybrid(hybrid) => hybrid.inject(h, at, model),
        }
    }

    fn name(&self) -> String {
        match *self {
            Source::HiddenState => HiddenState.name(),
            Source::ScaledState { norm } => ScaledState { norm }.name(),
            Source::FixedEmbedding { token } => FixedEmbedding { token }.name(),
            Source::VocabularyMixture { top_k, top_p, temperature } => {
                VocabularyMixture { top_k, top_p, temperature }.name()
            }
            Source::Projection => Projection.name(),
            Source::LatentHead => PredictedMean.name(),
            Source::Hybrid(hybrid) => hybrid.name(),
        }
    }

    fn top(&self, logits: &[f32], _at: Key) -> Option<u32> {
        matches!(self, Source::VocabularyMixture { .. }).then(|| largest(logits))
    }

    fn mixing(&self) -> Option<&dyn Mixing> {
        if let Source::Hybrid(hybrid) = self { Some(hybrid) } else { None }
    }

    fn stays_on_device(&self) -> bool {
        !matches!(self, Source::VocabularyMixture { .. } | Source::Hybrid(_))
    }
}

/// Coconut's recurrence (Hao et al. 2024): the hidden state itself, unscaled. The paper's Eq. 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct HiddenState;

impl LatentSource for HiddenState {
    fn inject(&self, h: Tensor<3>, _at: &Span, _model: &Decoder) -> Result<Tensor<3>> {
        Ok(h)
    }

    fn name(&self) -> String {
        "hidden_state".into()
    }

    fn stays_on_device(&self) -> bool {
        true
    }
}

/// The hidden state's direction at another L2 norm: `norm · h / ‖h‖₂`. The final norm of a pretrained model leaves states many times as
/// long as its token embeddings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaledState {
    pub norm: f64,
}

impl LatentSource for ScaledState {
    fn inject(&self, h: Tensor<3>, _at: &Span, _model: &Decoder) -> Result<Tensor<3>> {
        let length = h.clone().square().sum_dim(2).add_scalar(f32::MIN_POSITIVE).sqrt();
        Ok(h * length.recip().mul_scalar(self.norm))
    }

    fn name(&self) -> String {
        format!("scaled_state({})", self.norm)
    }
}

/// CODI's recurrence (Shen et al. 2025): the hidden state through the model's [`projection`](crate::model::heads::Projection).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Projection;

impl LatentSource for Projection {
    fn inject(&self, h: Tensor<3>, _at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let head = model.heads.projection.as_ref();
        let head =
            head.with_context(|| format!("the source `projection` needs a head that is not in {}", heads::FILE))?;
        Ok(head.forward(h))
    }

    fn name(&self) -> String {
        "projection".into()
    }
}

/// CoLaR's slots (Tan et al. 2025): the mean that the model's [`latent head`](crate::model::heads::LatentHead) predicts, on the
/// scale of embeddings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PredictedMean;

impl LatentSource for PredictedMean {
    fn inject(&self, h: Tensor<3>, _at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let head = model.heads.latent.as_ref();
        let head =
            head.with_context(|| format!("the source `latent_head` needs a head that is not in {}", heads::FILE))?;
        Ok(head.forward(h).0 * head.scale.val().unsqueeze())
    }

    fn name(&self) -> String {
        "latent_head".into()
    }
}

/// The same token's embedding at every step: sequential compute without recurrence (the control of method §6).
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedEmbedding {
    pub token: u32,
}

impl LatentSource for FixedEmbedding {
    fn inject(&self, h: Tensor<3>, _at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let [b, _, d] = h.dims();
        Ok(model.embed(&[vec![self.token]])?.expand([b, 1, d]))
    }

    fn name(&self) -> String {
        format!("fixed_embedding({})", self.token)
    }
}

/// `Σ p_v E[v]` over the nucleus of `top_p` within the `top_k` most probable tokens, renormalised (Soft-Thinking, Zhang et al. 2025).
#[derive(Clone, Copy, Debug)]
pub(crate) struct VocabularyMixture {
    pub top_k: usize,
    pub top_p: f64,
    pub temperature: f64,
}

impl LatentSource for VocabularyMixture {
    fn inject(&self, h: Tensor<3>, _at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let Self { top_k, top_p, temperature } = *self;
        Source::VocabularyMixture { top_k, top_p, temperature }.check()?;
        let [b, _, d] = h.dims();
        let logits = model.unembed(h).div_scalar(self.temperature);
        let k = self.top_k.min(logits.dims()[2]);
        let (mut top, index) = logits.clone().topk_with_indices(k, 2);
        if top_p < 1.0 {
            let p = softmax(logits, 2).gather(2, index.clone());
            let before = p.clone().cumsum(2) - p;
            top = top.mask_fill(before.greater_equal_elem(top_p), f32::NEG_INFINITY);
        }
        let ids = index.reshape([b * k]).try_into_vec_as::<i64>();
        let ids = ids.context("reading the most probable tokens")?;
        let ids: Vec<usize> = ids.into_iter().map(|id| id as usize).collect();
        let rows = model.embed_rows(&ids)?.reshape([b, k, d]);
        Ok(ops::matmul(softmax(top, 2), rows))
    }

    fn name(&self) -> String {
        let top_p = if self.top_p < 1.0 { format!("top-p {}, ", self.top_p) } else { String::new() };
        format!("vocabulary_mixture({}, {top_p}{})", self.top_k, self.temperature)
    }
}
