//! One optimiser step: gradients, global clip, AdamW, and the handling of NaN.

use anyhow::{Result, ensure};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::adamw::adamw;
use crate::model::Decoder;
use crate::model::gradients;
use crate::recipe::{Compute, Optimizer};
use crate::world::World;

/// A run ends after this many consecutive steps without a finite loss and gradient.
const GIVE_UP_AFTER: usize = 3;

/// A model being trained.
pub struct Trainer {
    pub model: Decoder,
    pub optimizer: ModuleOptimizer,
    settings: Optimizer,
    /// Compute type of forward and backward. Trained weights and optimiser state stay f32; frozen weights are stored in this type, once
    /// for all steps and workers.
    pub compute: Compute,
    /// Tokens whose rows of embedding table and head are trained; `None`: all unfrozen weights.
    pub token_rows: Option<Vec<u32>>,
    /// Learning rates by prefix of the parameter's name, instead of the step's.
    pub own_rates: Vec<(&'static str, f64)>,
    /// The processes that train together: each has the same weights and its share of every batch.
    pub world: World,
    /// Health of the training, part of its saved state.
    pub health: Health,
}

/// Skipped steps. Saved, so that a resumed run ends where an uninterrupted one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Steps skipped because loss or gradient was not finite.
    pub skipped: usize,
    in_a_row: usize,
}

impl Trainer {
    pub fn new(model: Decoder, settings: &Optimizer) -> Self {
        Self {
            model: settings.dtype.hold_frozen(model),
            optimizer: adamw(settings),
            settings: settings.clone(),
            compute: settings.dtype,
            token_rows: None,
            own_rates: vec![],
            world: World::ALONE,
            health: Health::default(),
        }
    }

    /// The trainer shared by several processes.
    #[must_use]
    pub fn among(self, world: World) -> Self {
        Self { world, ..self }
    }

    /// Resets the optimiser: curricula that change the objective begin without the old moments.
    pub(crate) fn forget(&mut self) {
        self.optimizer = adamw(&self.settings);
    }

    /// Applies gradients of a normalised loss. Returns the global norm before clipping.
    ///
    /// # Errors
    /// The third consecutive step whose loss or gradient is not finite; the weights are those before it.
    pub fn apply(&mut self, mut grads: GradientsParams, loss: f64, lr: f64) -> Result<f64> {
        if let Some(tokens) = &self.token_rows {
            gradients::keep_token_rows(&self.model, &mut grads, tokens);
        }
        let norm = gradients::clip_global_norm(&self.model, &mut grads, self.settings.clip);
        if !(loss.is_finite() && norm.is_finite()) {
            self.skip(|| format!("without a finite loss or gradient (loss {loss}, norm {norm})"))?;
            return Ok(norm);
        }
        self.health.in_a_row = 0;
        let apart: Vec<_> =
            self.own_rates.iter().map(|(name, rate)| (*rate, gradients::take(&self.model, &mut grads, name))).collect();
        for (rate, grads) in apart.into_iter().chain([(lr, grads)]) {
            // The optimiser takes the model by value and skips parameters without gradient.
            let model = self.model.clone();
            self.model = self.optimizer.step(rate, model, grads);
        }
        Ok(norm)
    }

    /// Counts a step that was skipped because something in it was not finite.
    ///
    /// # Errors
    /// The third in a row; the weights are those before it.
    pub(crate) fn skip(&mut self, why: impl Fn() -> String) -> Result<()> {
        self.health.skipped += 1;
        self.health.in_a_row += 1;
        ensure!(
            self.health.in_a_row < GIVE_UP_AFTER,
            "{GIVE_UP_AFTER} steps in a row {}: lower the learning rate; the last good checkpoint was not overwritten",
            why()
        );
        Ok(())
    }

    /// Compares a hash of the weights across processes: all made the same steps, so that every bit is equal.
    ///
    /// # Errors
    /// Weights that differ: the processes run different programs or machines.
    pub(crate) fn ensure_same(&self) -> Result<()> {
        if self.world.size == 1 {
            return Ok(());
        }
        let mut hash = Hash(Sha256::new());
        self.model.valid().visit(&mut hash);
        let all = self.world.gather(hash.0.finalize().to_vec());
        let other = all.iter().position(|hash| *hash != all[0]);
        ensure!(
            other.is_none(),
            "the weights of process {} are not those of process 0: run the same program on machines of the same kind",
            other.unwrap_or_default()
        );
        Ok(())
    }

    /// The weights outside autodiff, with factors unmerged, for export.
    pub fn decoder(&self) -> Decoder {
        self.model.valid()
    }

    /// The weights outside autodiff for rollouts, in the compute type of training. LoRA factors are merged in f32, which avoids composing
    /// them at every token. In bf16, and over weights in their stored type, factors stay unmerged, so that the base is not copied.
    pub fn policy(&self) -> Decoder {
        match self.compute {
            Compute::Bf16 => self.compute.apply(self.model.valid()),
            _ => self.model.valid().materialize().folded(),
        }
    }
}

/// Hash of all weights.
struct Hash(Sha256);

impl ModuleVisitor for Hash {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        self.0.update(param.val().into_data().as_bytes());
    }
}
