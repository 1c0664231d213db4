//! What a program computes on: a device, the float type of its model, worker threads. The one place that names devices;
//! knows nothing of command lines.

use anyhow::{Result, bail, ensure};
use burn::tensor::{DType, Device, FloatDType};
use serde::{Deserialize, Serialize};

use crate::model::Decoder;
use crate::model::checkpoint::Checkpoint;
use crate::world::Place;

/// What the user chose, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Outside autodiff.
    pub device: Device,
    pub dtype: Compute,
    pub threads: usize,
}

/// The CPU in f32, one worker thread a core.
impl Default for Machine {
    fn default() -> Self {
        Self { device: Device::flex(), dtype: Compute::F32, threads: threads() }
    }
}

/// Worker threads by default: one a core.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The float type of a computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compute {
    #[default]
    F32,
    Bf16,
    /// In f32, with matrices kept in memory as their files store them; on the CPU, for models that are not trained.
    Stored,
}

impl Compute {
    /// As recipes, manifests and the command line write it.
    pub fn name(self) -> &'static str {
        match self {
            Compute::F32 => "f32",
            Compute::Bf16 => "bf16",
            Compute::Stored => "stored",
        }
    }

    /// What a decoder computes in; f32 where all that it keeps as stored are floats.
    pub fn of(model: &Decoder) -> Self {
        match model.norm.weight.val().dtype() {
            DType::BF16 => Compute::Bf16,
            _ if model.is_kept() => Compute::Stored,
            _ => Compute::F32,
        }
    }

    fn dtype(self) -> FloatDType {
        match self {
            Compute::F32 | Compute::Stored => FloatDType::F32,
            Compute::Bf16 => FloatDType::BF16,
        }
    }

    fn runs_on(self, device: &Device) -> bool {
        device.supports_dtype(self.dtype()) && (self != Compute::Stored || is_cpu(device))
    }

    /// What models that are only examined are read as, where the user does not say.
    pub fn for_examining(device: &Device) -> Self {
        if is_cpu(device) { Compute::Stored } else { Compute::F32 }
    }

    /// A checkpoint's decoder, computing in this type.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(self, checkpoint: &Checkpoint, device: &Device) -> Result<Decoder> {
        match self {
            Compute::Stored => Decoder::load_kept(checkpoint, device),
            _ => Ok(self.apply(Decoder::load(checkpoint, device)?)),
        }
    }

    /// # Errors
    /// A device that does not compute in this type.
    pub fn check(self, device: &Device) -> Result<()> {
        ensure!(
            self.runs_on(device),
            "--dtype (optimizer.dtype) {}: {} does not compute in it; use f32",
            self.name(),
            name(device)
        );
        Ok(())
    }

    /// The decoder computing in this type; f32 is what it is in already, and how it is kept was settled when it was read.
    pub fn apply(self, model: Decoder) -> Decoder {
        if self == Compute::Bf16 { model.cast(self.dtype()) } else { model }
    }
}

fn is_cpu(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

/// The devices of this build that this computer has, by the names that [`by_name`] takes.
fn devices() -> Vec<(String, Device)> {
    let cpu = std::iter::once(("cpu".to_owned(), Device::flex()));
    #[cfg(not(feature = "cuda"))]
    return cpu.collect();
    #[cfg(feature = "cuda")]
    {
        let cuda = Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec();
        cpu.chain(cuda.into_iter().enumerate().map(|(i, device)| (format!("cuda:{i}"), device))).collect()
    }
}

/// `cpu`, `cuda` (the first; of several processes on a computer each takes the next) or `cuda:N`.
///
/// # Errors
/// A device that the build or the computer does not have, naming those that there are.
pub fn by_name(asked: &str) -> Result<Device> {
    let devices = devices();
    let full = &if asked == "cuda" { format!("cuda:{}", of_local(devices.len() - 1)) } else { asked.to_owned() };
    let there = devices.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some((_, device)) = devices.into_iter().find(|(name, _)| name == full) {
        return Ok(device);
    }
    if full.starts_with("cuda:") && !cfg!(feature = "cuda") {
        bail!("--device {asked}: this build has no CUDA; build with --features cuda (it has {there})");
    }
    bail!("--device {asked}: expected cpu or cuda[:N]; this build and computer have {there}");
}

/// Which of `n` GPUs is this process's, where a launcher started several on this computer: one each, from the first again where
/// there are fewer. A scheduler that shows each process its own GPU only has made it the first already.
fn of_local(n: usize) -> usize {
    Place::of_process().map_or(0, |place| place.local % n.max(1))
}

/// The name that [`by_name`] takes, as manifests record it. Autodiff makes no difference.
pub fn name(device: &Device) -> String {
    let known = devices().into_iter().find(|(_, known)| known == device);
    known.map_or_else(|| format!("{device:?}"), |(name, _)| name)
}

/// A line for every device: its name and the float types that it computes in.
pub fn list() -> String {
    let mut out = String::new();
    for (name, device) in devices() {
        let types: Vec<_> = [Compute::F32, Compute::Bf16, Compute::Stored]
            .iter()
            .filter(|t| t.runs_on(&device))
            .map(|t| t.name())
            .collect();
        out += &format!("{name:<8} {}\n", types.join(", "));
    }
    if !cfg!(feature = "cuda") {
        out += "cuda     not in this build: cargo build --features cuda\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_go_both_ways() {
        for (name, device) in devices() {
            assert_eq!(by_name(&name).unwrap(), device);
            assert_eq!(super::name(&device.clone().autodiff()), name, "autodiff makes no difference");
        }
        assert!(devices().iter().any(|(name, _)| name == "cpu"), "the CPU is always there");
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        for asked in ["tpu", "", "cpu:1", "cuda:", "cuda:x", "cuda:4096"] {
            let said = by_name(asked).unwrap_err().to_string();
            assert!(said.contains(&format!("--device {asked}")) && said.contains("cpu"), "{said}");
        }
        if !cfg!(feature = "cuda") {
            assert!(by_name("cuda").unwrap_err().to_string().contains("--features cuda"));
            assert!(list().contains("not in this build"));
        }
    }
}
