//! The tuned lens' affine maps, one per layer, and their training (Belrose et al. 2023, arXiv 2303.08112, §3).
//!
//! Translator of layer l: `h ↦ h + s (A h/s + b)`, with s the root mean square of the layer's states, so that one learning rate suits
//! every layer and model. A and b start at zero: an untrained tuned lens is the logit lens. Trained by KL from the model's own
//! distribution with Adam and a learning rate that decays to zero, in f32 for every compute type.

use anyhow::{Result, ensure};
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, FloatDType, Tensor, activation::softmax};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::Config;
use super::residuals::PositionSample;
use crate::model::Decoder;
use crate::model::hooks::rows_of;
use crate::ops;
use crate::study::Study;
use crate::study::readout::LOGITS_HELD;

/// Affine maps of N layers, trained side by side.
#[derive(Module, Debug)]
struct AffineMap {
    /// A, `[N, D, D]`.
    weight: Param<Tensor<3>>,
    /// b, `[N, 1, D]`.
    bias: Param<Tensor<3>>,
}

impl AffineMap {
    fn zeros(layers: usize, width: usize, device: &Device) -> Self {
        Self {
            weight: Param::from_tensor(Tensor::zeros([layers, width, width], device)),
            bias: Param::from_tensor(Tensor::zeros([layers, 1, width], device)),
        }
    }

    /// `[N, n, D]`, already divided by s → `[N, n, D]`.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        x.clone() + ops::matmul(x, self.weight.val()) + self.bias.val()
    }

    fn layer(&self, i: usize) -> Self {
        let [_, d, _] = self.weight.val().dims();
        Self {
            weight: Param::from_tensor(self.weight.val().slice([i..i + 1, 0..d, 0..d])),
            bias: Param::from_tensor(self.bias.val().slice([i..i + 1, 0..1, 0..d])),
        }
    }
}

/// Trained translators, in the order of the layers. The last layer has none: it is the model's own.
pub(crate) struct Translators {
    /// A `[1, D, D]`, b `[1, 1, D]` and s.
    layers: Vec<(AffineMap, f64)>,
}

impl Translators {
    /// Maps states of the `index`-th layer, `[n, D]`, to the last layer's coordinates, `[n, D]`.
    pub(crate) fn translate(&self, index: usize, h: Tensor<2>) -> Tensor<2> {
        let Some((affine, scale)) = self.layers.get(index) else { return h };
        let dtype = FloatDType::from(h.dtype());
        let moved = affine.forward(f32(h).div_scalar(*scale).unsqueeze_dim(0)).mul_scalar(*scale);
        moved.squeeze_dim(0).cast(dtype)
    }
}

/// Trains the translators on the positions `seen` of a sample. The batches depend only on seed and fold.
pub fn train(
    study: &Study,
    config: &Config,
    text: &PositionSample,
    seen: &[usize],
    fold: usize,
) -> Result<Translators> {
    let model = &study.model;
    let layers: Vec<usize> = (0..text.states.len() - 1).collect();
    let scales: Vec<f64> = layers.iter().map(|&layer| root_mean_square(&text.states[layer])).collect::<Result<_>>()?;
    let batches = batches(config, seen, study.seed.wrapping_add(fold as u64));
    // Batching layers makes fewer, larger calls, as long as their logits fit.
    let fit = LOGITS_HELD / (config.batch.min(seen.len()) * model.config().vocab_size).max(1);
    let together = layers.len().div_ceil(study.threads.max(1)).min(fit).max(1);
    let groups: Vec<&[usize]> = layers.chunks(together).collect();
    let trained = study.each("groups of layers trained", &groups, |group| {
        let affine = train_group(model, config, text, group, &scales, &batches)?;
        Ok(group.iter().enumerate().map(|(i, &layer)| (affine.layer(i), scales[layer])).collect::<Vec<_>>())
    })?;
    Ok(Translators { layers: trained.into_iter().flatten().collect() })
}

fn train_group(
    model: &Decoder,
    config: &Config,
    text: &PositionSample,
    group: &[usize],
    scales: &[f64],
    batches: &[Vec<usize>],
) -> Result<AffineMap> {
    let d = model.config().hidden_size;
    let dtype = FloatDType::from(model.norm.weight.val().dtype());
    let mut affine = AffineMap::zeros(group.len(), d, &model.device().autodiff());
    // Adam: weight decay would pull towards the logit lens.
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).with_epsilon(1e-8).init();
    for (step, batch) in batches.iter().enumerate() {
        let n = batch.len();
        let state = |&l: &usize| f32(rows_of(&text.states[l], batch)).div_scalar(scales[l]).unsqueeze_dim(0);
        let states: Vec<Tensor<3>> = group.iter().map(state).collect();
        let target = softmax(f32(model.unembed(rows_of(&text.own, batch).unsqueeze_dim(0))), 2);
        let moved = affine.forward(Tensor::cat(states, 0));
        // The norm does not see s, but for its epsilon.
        let normed = model.norm.apply_in_f32(moved);
        // d KL / d logits = (q − p) / n: the head needs no graph, and its logits are stored once. [N, n, V]
        let logits = model.unembed(normed.clone().without_autodiff().cast(dtype));
        let slope = softmax(f32(logits.clone()), 2) - target;
        let slope = f32(model.unembed_back(logits, slope.cast(dtype))).div_scalar(n as f64);
        let grads = (normed * slope).sum().backward();
        let grads = GradientsParams::from_grads(grads, &affine);
        let rate = config.learning_rate * (1.0 - step as f64 / batches.len() as f64);
        affine = optimizer.step(rate, affine, grads);
    }
    Ok(affine.valid())
}

fn f32<const R: usize>(x: Tensor<R>) -> Tensor<R> {
    x.cast(FloatDType::F32)
}

/// Positions of each optimiser step: epochs, each in its own order.
fn batches(config: &Config, seen: &[usize], seed: u64) -> Vec<Vec<usize>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let size = config.batch.min(seen.len());
    let (mut order, mut at) = (seen.to_vec(), seen.len());
    let mut batches = vec![];
    for _ in 0..config.steps {
        if at + size > order.len() {
            order.shuffle(&mut rng);
            at = 0;
        }
        batches.push(order[at..at + size].to_vec());
        at += size;
    }
    batches
}

fn root_mean_square(states: &Tensor<2>) -> Result<f64> {
    let mean = f64::from(states.clone().square().mean().into_scalar::<f32>());
    let sound = mean.is_finite() && mean > 0.0;
    ensure!(sound, "the states of a layer have mean square {mean}: no translator can be trained on them");
    Ok(mean.sqrt())
}

#[cfg(test)]
mod tests {
    use super::{Config, batches};

    #[test]
    fn every_position_is_seen_once_an_epoch() {
        let config = Config { steps: 6, batch: 4, ..Config::default() };
        let seen: Vec<usize> = (10..22).collect();
        let steps = batches(&config, &seen, 0);
        let mut first: Vec<usize> = steps[..3].concat();
        first.sort_unstable();
        assert_eq!(first, seen);
        assert_ne!(steps[..3], steps[3..]);
        assert_eq!(batches(&config, &seen[..2], 0)[5].len(), 2, "a batch is never larger than what there is");
    }
}
