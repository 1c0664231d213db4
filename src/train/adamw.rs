//! PyTorch's AdamW as a Burn optimiser: the step comes from this crate, the state is Burn's, so that states saved by Burn's AdamW load.

use burn::optim::{AdamWState, AdaptiveMomentumState, LearningRate, ModuleOptimizer, Optimizer as BurnOptimizer};
use burn::tensor::{Device, Tensor};

use crate::ops;
use crate::recipe::Optimizer;

/// Its learning rate and time are those of each step.
#[derive(Clone)]
struct BurnAdamW(ops::AdamW);

/// Builds PyTorch's AdamW.
pub fn adamw(settings: &Optimizer) -> ModuleOptimizer {
    ModuleOptimizer::from(BurnAdamW(ops::AdamW {
        learning_rate: 0.0,
        beta_1: settings.beta_1 as f32,
        beta_2: settings.beta_2 as f32,
        epsilon: settings.epsilon as f32,
        weight_decay: settings.weight_decay as f32,
        time: 0,
    }))
}

impl BurnOptimizer for BurnAdamW {
    type State<const R: usize> = AdamWState<R>;

    fn step<const R: usize>(
        &self,
        lr: LearningRate,
        weight: Tensor<R>,
        grad: Tensor<R>,
        state: Option<Self::State<R>>,
    ) -> (Tensor<R>, Option<Self::State<R>>) {
        let (time, moments) = match state {
            Some(AdamWState { momentum }) => (momentum.time, [momentum.moment_1, momentum.moment_2]),
            None => (0, [weight.zeros_like(), weight.zeros_like()]),
        };
        let step = ops::AdamW { learning_rate: lr, time: time + 1, ..self.0 };
        let (weight, [moment_1, moment_2]) = ops::adamw(weight, grad, moments, step);
        (weight, Some(AdamWState::new(AdaptiveMomentumState::new(time + 1, moment_1, moment_2))))
    }

    fn to_device<const R: usize>(mut state: Self::State<R>, device: &Device) -> Self::State<R> {
        state.momentum = state.momentum.to_device(device);
        state
    }
}
