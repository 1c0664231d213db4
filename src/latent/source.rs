//! Inputs of latent positions.

use anyhow::{Context, Result, ensure};
use burn::tensor::{Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use super::hybrid::{Hybrid, Mixing, no_latents};
use super::sampling::{Key, argmax};
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
    /// Coconut's recurrence (Hao et al. 2024): the hidden state itself, unscaled. The paper's Eq. 1.
    #[default]
    HiddenState,
    /// The hidden state's direction at another L2 norm: `norm · h / ‖h‖₂`. The final norm of a pretrained model leaves states many times as
    /// long as its token embeddings.
    ScaledState { norm: f64 },
    /// The same token's embedding at every step: sequential compute without recurrence (the control of method §6).
    FixedEmbedding { token: u32 },
    /// `Σ p_v E[v]` over the nucleus of `top_p` within the `top_k` most probable tokens, renormalised (Soft-Thinking, Zhang et al. 2025).
    VocabularyMixture {
        top_k: usize,
        /// Nucleus: the smallest set of tokens with this total probability; 1 for all.
        #[serde(default = "whole")]
        top_p: f64,
        temperature: f64,
    },
    /// CODI's recurrence (Shen et al. 2025): the hidden state through the model's [`projection`](crate::model::heads::Projection).
    Projection,
    /// CoLaR's slots (Tan et al. 2025): the mean that the model's [`latent head`](crate::model::heads::LatentHead) predicts, on the scale of
    /// embeddings.
    LatentHead,
    /// Text whose tokens are mixed with states; no latents.
    Hybrid(Hybrid),
}

fn whole() -> f64 {
    1.0
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
    fn inject(&self, h: Tensor<3>, _at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let missing = || format!("the source `{}` needs a head that is not in {}", self.name(), heads::FILE);
        Ok(match *self {
            Source::HiddenState => h,
            Source::ScaledState { norm } => {
                let length = h.clone().square().sum_dim(2).add_scalar(f32::MIN_POSITIVE).sqrt();
                h * length.recip().mul_scalar(norm)
            }
            Source::FixedEmbedding { token } => {
                let [b, _, d] = h.dims();
                model.embed(&[vec![token]])?.expand([b, 1, d])
            }
            Source::VocabularyMixture { top_k, top_p, temperature } => {
                self.check()?;
                let [b, _, d] = h.dims();
                let logits = model.unembed(h).div_scalar(temperature);
                let k = top_k.min(logits.dims()[2]);
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
                ops::matmul(softmax(top, 2), rows)
            }
            Source::Projection => model.heads.projection.as_ref().with_context(missing)?.forward(h),
            Source::LatentHead => {
                let head = model.heads.latent.as_ref().with_context(missing)?;
                head.forward(h).0 * head.scale.val().unsqueeze()
            }
            Source::Hybrid(_) => return no_latents(),
        })
    }

    fn name(&self) -> String {
        match self {
            Source::HiddenState => "hidden_state".into(),
            Source::ScaledState { norm } => format!("scaled_state({norm})"),
            Source::FixedEmbedding { token } => format!("fixed_embedding({token})"),
            Source::VocabularyMixture { top_k, top_p, temperature } => {
                let top_p = if *top_p < 1.0 { format!("top-p {top_p}, ") } else { String::new() };
                format!("vocabulary_mixture({top_k}, {top_p}{temperature})")
            }
            Source::Projection => "projection".into(),
            Source::LatentHead => "latent_head".into(),
            Source::Hybrid(hybrid) => format!("hybrid({})", hybrid.temperature),
        }
    }

    fn top(&self, logits: &[f32], _at: Key) -> Option<u32> {
        matches!(self, Source::VocabularyMixture { .. }).then(|| argmax(logits))
    }

    fn mixing(&self) -> Option<&dyn Mixing> {
        if let Source::Hybrid(hybrid) = self { Some(hybrid) } else { None }
    }

    fn stays_on_device(&self) -> bool {
        !matches!(self, Source::VocabularyMixture { .. } | Source::Hybrid(_))
    }
}
