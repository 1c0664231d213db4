//! Hidden-state latents with a density: Gaussian noise makes the latent itself an action of the policy (the samplable latent that the
//! paper names as its next step).
//!
//! 1. Rollout: the input is `x = h + s ε` with `ε ~ N(0, I_D)` and `s = σ ‖h‖₂ / √D`. `x` and `s` are recorded.
//! 2. Log-density under a policy whose state is `h'`: `−‖x − h'‖² / 2s²`. The constant is left out: it cancels in ratios, because `s` is
//!    that of the rollout.
//! 3. Replay: `x` is a constant; `h'` has the gradient, which moves it towards the `x` of a good rollout.
//!
//! Evaluations feed `h`. Misleads: the density is over D dimensions, so that one update changes the ratio of a latent more than that of a
//! token, and more latents are clipped.

use anyhow::{Context, Result, ensure};
use burn::tensor::{FloatDType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::drawn::{DrawLog, DrawnInput};
use super::sampling::Key;
use super::source::LatentSource;
use crate::model::{Decoder, Span, Step};
use crate::random::normal;

/// A drawn state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoisyState {
    /// x, `[D]`.
    pub state: Vec<f32>,
    /// s.
    pub deviation: f32,
}

/// Domain separation of the noise from the uniform value that draws a token at the same position ("noisy").
const NOISE: u64 = 0x006e_6f69_7379;

/// Draws a state at every latent position of a decode, and records it.
pub(crate) struct StateNoise {
    /// σ, relative to the root mean square of the state.
    sigma: f64,
    seed: u64,
    pub log: DrawLog,
}

impl StateNoise {
    pub fn new(sigma: f64, seed: u64, rows: Vec<(usize, usize)>) -> Self {
        Self { sigma, seed, log: DrawLog::new(rows) }
    }

    /// Adds noise to a state; returns the log-density and s.
    pub fn draw(&self, state: &mut [f32], key: Key) -> (f64, f32) {
        let square: f64 = state.iter().map(|x| f64::from(*x).powi(2)).sum();
        let deviation = (self.sigma * (square / state.len() as f64).sqrt()) as f32;
        let mut rng = key.rng(self.seed ^ NOISE);
        let mut density = 0.0;
        for x in state {
            let h = *x;
            *x = (f64::from(h) + f64::from(deviation) * normal(&mut rng)) as f32;
            // Of the rounded value, which is what a replay sees.
            density -= (f64::from(*x - h) / f64::from(deviation)).powi(2) / 2.0;
        }
        (density, deviation)
    }
}

impl LatentSource for StateNoise {
    fn inject(&self, h: Tensor<3>, at: &Span, _model: &Decoder) -> Result<Tensor<3>> {
        let ([b, _, d], dtype, device) = (h.dims(), h.dtype(), h.device());
        let mut states = h.try_into_vec_as::<f32>().context("reading the states before latents")?;
        for (row, state) in states.chunks_mut(d).enumerate() {
            let Some(Step::Latent { .. }) = at.steps[row][0] else { continue };
            let place = (at.rows[row], at.positions[row][0]);
            let (density, deviation) = self.draw(state, self.log.key(place)?);
            // Logits that are not finite end the row.
            ensure!(deviation != 0.0, "the state before a latent is 0: noise relative to it has no density");
            self.log.record(place, DrawnInput::State(NoisyState { state: state.to_vec(), deviation }), density);
        }
        Ok(Tensor::from_data(TensorData::new(states, [b, 1, d]), (&device, dtype)))
    }

    fn name(&self) -> String {
        format!("noisy_state({})", self.sigma)
    }
}

/// Log-densities `[n]` of drawn states in f32, from the states `[n, D]` of the policy.
pub(crate) fn log_densities(hidden: Tensor<2>, drawn: &[&NoisyState]) -> Tensor<1> {
    let hidden = hidden.cast(FloatDType::F32);
    let [n, d] = hidden.dims();
    let constant = |values: Vec<f32>, shape: [usize; 2]| {
        Tensor::<2>::from_data(TensorData::new(values, shape), (&hidden.device(), hidden.dtype()))
    };
    let x = constant(drawn.iter().flat_map(|drawn| drawn.state.iter().copied()).collect(), [n, d]);
    let deviation = constant(drawn.iter().map(|drawn| drawn.deviation).collect(), [n, 1]);
    let z = (x - hidden) / deviation;
    z.square().sum_dim(1).div_scalar(-2.0).squeeze_dim(1)
}
