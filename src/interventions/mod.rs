//! Interventions on latent states, one small documented value per file.
//!
//! An [`Intervention`] says what enters a latent position instead of the recurrence's input (`latent.hook_injected`).
//! Later latents are recomputed from what follows. Every firing is counted, with the norm of its change.

mod bank;
mod mean;
mod random_norm;
mod resample;
mod self_patch;
mod zero;

use std::cell::RefCell;

use anyhow::{Result, ensure};
use burn::tensor::{Tensor, TensorData};

pub use bank::Bank;
pub use mean::Mean;
pub use random_norm::RandomNorm;
pub use resample::Resample;
pub use self_patch::SelfPatch;
pub use zero::Zero;

use crate::model::hooks::Place;
use crate::model::{Activation, HookSpec, Hooks};

/// What replaces the input of one latent position. To add one: a file here, and a line in [`by_name`].
pub trait Intervention: Send + Sync {
    /// As it is named on the command line and in tables.
    fn name(&self) -> &'static str;

    /// The new input `[D]` at a place whose own would be `h` `[D]`; `None` leaves it alone (it then does not fire).
    fn input(&self, at: &Place, h: &[f32]) -> Option<Vec<f32>>;
}

/// Names that [`by_name`] knows.
pub const NAMES: [&str; 5] = ["zero", "random_norm", "self_patch", "mean", "resample"];

/// An intervention by name. `bank` holds the states of a normal run on the same problems.
pub fn by_name<'a>(name: &str, bank: &'a Bank, seed: u64) -> Option<Box<dyn Intervention + 'a>> {
    Some(match name {
        "zero" => Box::new(Zero),
        "random_norm" => Box::new(RandomNorm { seed }),
        "self_patch" => Box::new(SelfPatch { bank }),
        "mean" => Box::new(Mean::per_step(bank)),
        "resample" => Box::new(Resample::new(bank, seed)),
        _ => return None,
    })
}

/// How often an intervention fired and how far it moved the states.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Firings {
    pub count: usize,
    /// Σ ‖new − old‖.
    pub moved: f64,
}

impl Firings {
    pub fn mean_norm(&self) -> f64 {
        self.moved / self.count.max(1) as f64
    }
}

/// Attaches an intervention to the latent positions that `spec` selects.
///
/// # Errors
/// A spec that does not resolve; later, an input of another width.
pub fn attach<'h>(
    hooks: &mut Hooks<'h>,
    spec: &HookSpec,
    layers: usize,
    what: &'h dyn Intervention,
    firings: &'h RefCell<Firings>,
) -> Result<()> {
    hooks.replace(spec, layers, move |site, value| {
        let x = value.three()?;
        let dims = x.dims();
        let d = dims[2];
        let mut data = x.clone().try_into_vec_as::<f32>().map_err(|e| anyhow::anyhow!("reading a latent: {e:?}"))?;
        let mut count = firings.borrow_mut();
        for place in site.places {
            let from = (place.batch * dims[1] + place.index) * d;
            let old = &data[from..from + d];
            let Some(new) = what.input(place, old) else { continue };
            ensure!(new.len() == d, "{}: an input of width {}, expected {d}", what.name(), new.len());
            count.count += 1;
            count.moved += old.iter().zip(&new).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
            data[from..from + d].copy_from_slice(&new);
        }
        Ok(Activation::Three(Tensor::from_data(TensorData::new(data, dims), (&x.device(), x.dtype()))))
    })?;
    Ok(())
}
