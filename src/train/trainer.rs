//! One optimiser step: gradients in, global clip, AdamW, learning-rate schedule, and what to do about NaN.

use anyhow::{Result, bail};
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};

use super::adamw::adamw;
use crate::model::Decoder;
use crate::model::gradients;
use crate::recipe::{Compute, Optimizer};

/// Steps in a row without a finite loss and gradient after which a run ends.
const GIVE_UP_AFTER: usize = 3;

/// Learning rate over a phase: linear warm-up, then constant or cosine from `cosine_from` to the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrSchedule {
    pub peak: f64,
    pub warmup: usize,
    /// First step of the cosine decay to zero; `steps` for none.
    pub cosine_from: usize,
    pub steps: usize,
}

impl LrSchedule {
    /// At a step counted from 0.
    pub fn at(&self, step: usize) -> f64 {
        let warm = if step < self.warmup { (step + 1) as f64 / self.warmup as f64 } else { 1.0 };
        if step < self.cosine_from || self.cosine_from >= self.steps {
            return self.peak * warm;
        }
        let share = (step - self.cosine_from) as f64 / (self.steps - self.cosine_from) as f64;
        self.peak * warm * 0.5 * (1.0 + (std::f64::consts::PI * share).cos())
    }
}

/// A model being trained.
pub struct Trainer {
    pub model: Decoder,
    pub optimizer: ModuleOptimizer,
    clip: f64,
    /// What forward and backward are computed in; weights and optimiser state stay f32.
    pub compute: Compute,
    /// Steps skipped for want of a finite loss or gradient.
    pub skipped: usize,
    in_a_row: usize,
}

impl Trainer {
    pub fn new(model: Decoder, settings: &Optimizer) -> Self {
        Self {
            model,
            optimizer: adamw(settings),
            clip: settings.clip,
            compute: settings.dtype,
            skipped: 0,
            in_a_row: 0,
        }
    }

    /// Applies gradients of a loss already normalised. Returns the global norm before clipping.
    ///
    /// # Errors
    /// The third step in a row whose loss or gradient is not finite; the weights are then those before it.
    pub fn apply(&mut self, mut grads: GradientsParams, loss: f64, lr: f64) -> Result<f64> {
        let norm = gradients::clip_global_norm(&self.model, &mut grads, self.clip);
        if !(loss.is_finite() && norm.is_finite()) {
            self.skipped += 1;
            self.in_a_row += 1;
            if self.in_a_row >= GIVE_UP_AFTER {
                bail!(
                    "{GIVE_UP_AFTER} steps in a row without a finite loss or gradient (loss {loss}, norm {norm}): \
                     lower the learning rate; the last good checkpoint is kept"
                );
            }
            return Ok(norm);
        }
        self.in_a_row = 0;
        // The optimiser takes the model by value.
        let model = self.model.clone();
        self.model = self.optimizer.step(lr, model, grads);
        Ok(norm)
    }

    /// The f32 weights outside autodiff, to be exported.
    pub fn frozen(&self) -> Decoder {
        self.model.valid()
    }

    /// The weights outside autodiff as rollouts see them: LoRA merged (it would be composed at every token otherwise), in
    /// the type that training computes in.
    pub fn policy(&self) -> Decoder {
        self.compute.apply(self.model.valid().materialize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_warms_up_holds_and_falls() {
        let s = LrSchedule { peak: 2.0, warmup: 4, cosine_from: 10, steps: 20 };
        assert!((s.at(0) - 0.5).abs() < 1e-12 && (s.at(3) - 2.0).abs() < 1e-12 && (s.at(9) - 2.0).abs() < 1e-12);
        assert!((s.at(15) - 1.0).abs() < 1e-12);
        assert!(s.at(19) < 0.06);
        let flat = LrSchedule { cosine_from: 20, ..s };
        assert!((flat.at(19) - 2.0).abs() < 1e-12);
    }
}
