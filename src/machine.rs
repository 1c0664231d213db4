//! Device, float type of the model, and worker threads of a program. The only place that names devices; knows nothing of command lines.

#[cfg(feature = "gpu")]
mod launches;
pub mod memory;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::sync::OnceLock;

use anyhow::{Result, bail, ensure};
use burn::tensor::{DType, Device, FloatDType};
#[cfg(feature = "gpu")]
use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

use crate::model::Decoder;
use crate::model::checkpoint::ModelFiles;
use crate::ops::{self, stored::Inputs};
use crate::world::Place;

/// The user's choice, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Outside autodiff.
    pub device: Device,
    pub dtype: Compute,
    pub threads: usize,
}

/// The CPU in f32, one worker thread per core.
impl Default for Machine {
    fn default() -> Self {
        Self { device: Device::flex(), dtype: Compute::F32, threads: threads() }
    }
}

/// Default number of worker threads: one per core.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// mimalloc's number of the option, and the time in milliseconds after which it returns freed memory to the system. A training step of a
/// language model on a CPU takes seconds: with the default of one second the next step would have to request its memory again.
const KEPT_FOR: (libmimalloc_sys::mi_option_t, std::ffi::c_long) = (15, 20_000);

/// Lets the programs' allocator keep freed memory, unless `MIMALLOC_PURGE_DELAY` is set. Call it at the start of a program.
pub fn keep_freed_memory() {
    let (option, milliseconds) = KEPT_FOR;
    // SAFETY: sets a number in the allocator's table, before there are threads.
    #[allow(unsafe_code)]
    unsafe {
        libmimalloc_sys::mi_option_set_default(option, milliseconds);
    }
}

names! {
    /// The float type of a computation.
    #[derive(Default)]
    pub enum Compute {
        #[default]
        F32 = "f32",
        /// As `F32`, on GPUs that multiply f32 faster when both factors are rounded to TF32 (10 bits of mantissa of 23): they are. For the whole
        /// process.
        Tf32 = "tf32",
        Bf16 = "bf16",
        /// In f32, with matrices kept in memory as their files store them. Over them LoRA factors can be trained.
        Stored = "stored",
        /// As `Stored` on the CPU, with the other factor of a stored matrix rounded to bf16 first. Recipes and commands call it `stored-bf16`.
        StoredBf16 = "stored-bf16",
        /// As `Stored` on the CPU, with the other factor of a matrix of integers rounded to 8 bits per 32 values, as in llama.cpp: for
        /// decoding, not for gradients or readings of states. Recipes and commands call it `stored-q8`.
        StoredQ8 = "stored-q8",
    }
}

impl Compute {
    /// The compute type of a decoder; f32 if it stores only floats.
    pub fn new(model: &Decoder) -> Self {
        match model.norm.weight.val().dtype() {
            DType::BF16 => Compute::Bf16,
            _ if model.rounds_inputs(Inputs::Bf16) => Compute::StoredBf16,
            _ if model.rounds_inputs(Inputs::Q8) => Compute::StoredQ8,
            _ if model.is_kept() => Compute::Stored,
            _ if ops::rounds_to_tf32() => Compute::Tf32,
            _ => Compute::F32,
        }
    }

    /// Type of multiplied floats.
    pub fn dtype(self) -> FloatDType {
        match self {
            Compute::Bf16 => FloatDType::BF16,
            _ => FloatDType::F32,
        }
    }

    /// Whether matrices stay in their stored type, frozen.
    pub fn is_stored(self) -> bool {
        matches!(self, Compute::Stored | Compute::StoredBf16 | Compute::StoredQ8)
    }

    fn runs_on(self, device: &Device) -> bool {
        let keeps = match self {
            Compute::F32 | Compute::Bf16 => true,
            Compute::Tf32 => ops::has_tf32(device),
            // Our kernels do not work with Burn's fusion.
            Compute::Stored => is_cpu(device) || !cfg!(feature = "fusion"),
            Compute::StoredBf16 | Compute::StoredQ8 => is_cpu(device),
        };
        keeps && device.supports_dtype(self.dtype())
    }

    /// Default type for models that are only examined.
    pub fn for_examining(device: &Device) -> Self {
        if is_cpu(device) { Compute::Stored } else { Compute::F32 }
    }

    /// A checkpoint's decoder, computing in this type.
    pub fn load(self, checkpoint: &ModelFiles, device: &Device) -> Result<Decoder> {
        match self {
            Compute::Stored => Decoder::load_kept(checkpoint, device),
            Compute::StoredBf16 => Decoder::load_kept_rounding(checkpoint, Inputs::Bf16, device),
            Compute::StoredQ8 => Decoder::load_kept_rounding(checkpoint, Inputs::Q8, device),
            Compute::F32 | Compute::Tf32 | Compute::Bf16 => {
                Ok(self.apply(Decoder::load_in(checkpoint, self.dtype(), device)?))
            }
        }
    }

    /// Reads a model for training: float tables of tokens in f32; an adapter's factors stay unmerged over stored matrices.
    pub fn load_to_train(self, checkpoint: &ModelFiles, device: &Device) -> Result<Decoder> {
        match self {
            Compute::Stored => Decoder::load_kept_to_train(checkpoint, device),
            Compute::StoredBf16 | Compute::StoredQ8 => self.load(checkpoint, device),
            Compute::F32 | Compute::Tf32 | Compute::Bf16 => Decoder::load_in(checkpoint, self.dtype(), device),
        }
    }

    /// Applies the settings of this type to the whole process; call it before anything is computed.
    pub fn begin(self, device: &Device) -> Result<()> {
        ensure!(
            self.runs_on(device),
            "--dtype (optimizer.dtype) {}: {} does not compute in it; use f32",
            self.name(),
            name(device)
        );
        if self == Compute::Tf32 {
            ops::round_to_tf32();
        }
        Ok(())
    }

    /// A decoder for training in this type: frozen weights are stored in it, trained ones in f32.
    pub fn hold_frozen(self, model: Decoder) -> Decoder {
        if self == Compute::Bf16 { model.cast_frozen(self.dtype()) } else { model }
    }

    /// Converts the decoder to this type; f32 and stored types need no conversion after loading.
    pub fn apply(self, model: Decoder) -> Decoder {
        if self == Compute::Bf16 { model.cast(self.dtype()) } else { model }
    }
}

fn is_cpu(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

/// Kinds of GPU by name (on the command line, and of the cargo feature), and whether this build supports them.
const GPUS: [(&str, bool); 2] = [("cuda", cfg!(feature = "cuda")), ("wgpu", cfg!(feature = "wgpu"))];

/// This computer's devices that this build supports, by the names of [`by_name`]. Listed once, because drivers are slow.
fn devices() -> &'static [(String, Device)] {
    static DEVICES: OnceLock<Vec<(String, Device)>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        #[cfg(feature = "fusion")]
        one_stream();
        // Without this, every process compiles its kernels again.
        #[cfg(feature = "cuda")]
        CubeClRuntimeConfig::try_set(settings());
        #[cfg_attr(not(feature = "gpu"), expect(unused_mut))]
        let mut devices = vec![("cpu".to_owned(), Device::flex())];
        #[cfg(feature = "cuda")]
        devices.extend(numbered("cuda", Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec()));
        #[cfg(feature = "wgpu")]
        devices.extend(numbered("wgpu", wgpu::devices()));
        devices
    })
}

#[cfg(feature = "gpu")]
fn numbered(kind: &str, devices: Vec<Device>) -> impl Iterator<Item = (String, Device)> {
    devices.into_iter().enumerate().map(move |(i, device)| (format!("{kind}:{i}"), device))
}

/// CubeCL's settings from `cubecl.toml`, plus a cache of compiled kernels for later processes, if the build supports it: in
/// `target/environment` below a `Cargo.toml`, else in the user's cache.
#[cfg(feature = "gpu")]
fn settings() -> CubeClRuntimeConfig {
    #[cfg_attr(not(feature = "cuda"), expect(unused_mut))]
    let mut settings = CubeClRuntimeConfig::from_current_dir().override_from_env();
    #[cfg(feature = "cuda")]
    {
        settings.compilation.cache = true;
    }
    settings
}

/// Uses one stream of the device for all workers. With one stream per thread, fused kernels fail on weights that workers share: two workers
/// trained wrong from the fourth step on, without an error (`.ci/device` compares them).
#[cfg(feature = "fusion")]
fn one_stream() {
    cubecl_environment::stream::set_policy(cubecl_environment::stream::StreamPolicy::Single);
}

/// Parses `cpu`, `cuda:N`, `wgpu:N`, `cuda` or `wgpu` (the first; with several processes on a computer, each uses the next).
///
/// # Errors
/// A device that the build or the computer lacks; the message lists the available ones.
pub fn by_name(asked: &str) -> Result<Device> {
    let of_kind = |kind: &str| devices().iter().filter(|(name, _)| name.split(':').next() == Some(kind)).count();
    let kind = GPUS.iter().any(|(kind, _)| *kind == asked);
    let full = if kind { format!("{asked}:{}", of_local(of_kind(asked))) } else { asked.to_owned() };
    let known = devices().iter().find(|(name, _)| *name == full);
    if let Some((_, device)) = known {
        return Ok(device.clone());
    }
    let there = devices().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    match GPUS.iter().find(|(kind, _)| full.strip_prefix(kind).is_some_and(|rest| rest.starts_with(':'))) {
        Some((kind, false)) => {
            bail!("--device {asked}: this build has no {kind}; build with --features {kind} (it has {there})")
        }
        Some(("wgpu", true)) => bail!(
            "--device {asked}: this computer has {there}; wgpu needs a driver for Vulkan, Metal or DirectX 12 (OpenGL is not used; \
             Debian's mesa-vulkan-drivers computes on the CPU)"
        ),
        _ => bail!("--device {asked}: expected cpu, cuda[:N] or wgpu[:N]; this build and computer have {there}"),
    }
}

/// Index of this process's GPU among `n`, if a launcher started several processes on this computer: its local rank, modulo n. If a scheduler
/// shows each process only its own GPU, that is 0.
fn of_local(n: usize) -> usize {
    Place::of_process().map_or(0, |place| place.local % n.max(1))
}

/// The device's name for [`by_name`], with or without autodiff.
pub fn name(device: &Device) -> String {
    let known = devices().iter().find(|(_, known)| known == device);
    known.map_or_else(|| format!("{device:?}"), |(name, _)| name.clone())
}

#[cfg(feature = "gpu")]
pub use launches::{count_launches, launched};

#[cfg(not(feature = "gpu"))]
pub fn count_launches() -> Result<()> {
    bail!("this build has no GPU whose kernel launches could be counted; build with --features cuda or wgpu")
}

#[cfg(not(feature = "gpu"))]
pub fn launched() -> u64 {
    0
}

/// Description for manifests: `cpu`, or a GPU's name and model: `wgpu:0, llvmpipe (LLVM 15.0.6, 256 bits), Vulkan`.
pub fn described(device: &Device) -> String {
    adapter(device).map_or_else(|| name(device), |adapter| format!("{}, {adapter}", name(device)))
}

/// A GPU's name for itself and, for wgpu, its graphics API. Opens the device.
#[cfg(feature = "gpu")]
fn adapter(device: &Device) -> Option<String> {
    let called = device.identity()?.name;
    #[cfg(feature = "wgpu")]
    if let Some(interface) = wgpu::interface(device) {
        return Some(format!("{called}, {interface}"));
    }
    Some(called)
}

#[cfg(not(feature = "gpu"))]
fn adapter(_device: &Device) -> Option<String> {
    None
}

/// One line per device: its name, its float types and, for a GPU, its model.
pub fn list() -> String {
    let mut out = String::new();
    for (name, device) in devices() {
        let types: Vec<_> = Compute::ALL.iter().filter(|t| t.runs_on(device)).map(|t| t.name()).collect();
        let adapter = adapter(device).map_or_else(String::new, |adapter| format!("   {adapter}"));
        out += &format!("{name:<8} {}{adapter}\n", types.join(", "));
    }
    for (kind, _) in GPUS.iter().filter(|(_, built)| !built) {
        out += &format!("{kind:<8} not in this build: cargo build --features {kind}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_go_both_ways() {
        for (name, device) in devices() {
            assert_eq!(by_name(name).unwrap(), *device);
            assert_eq!(super::name(&device.clone().autodiff()), *name, "autodiff makes no difference");
            assert!(described(device).starts_with(name) && list().contains(name));
        }
        assert!(devices().iter().any(|(name, _)| name == "cpu"), "the CPU is always there");
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        for asked in ["tpu", "", "cpu:1", "cuda:", "cuda:x", "cuda:4096", "cudax", "wgpu:", "wgpu:x", "wgpu:4096"] {
            let said = by_name(asked).unwrap_err().to_string();
            assert!(said.contains(&format!("--device {asked}")) && said.contains("cpu"), "{said}");
        }
        for (kind, _) in GPUS.iter().filter(|(_, built)| !built) {
            let features = format!("--features {kind}");
            assert!(by_name(kind).unwrap_err().to_string().contains(&features));
            assert!(by_name(&format!("{kind}:1")).unwrap_err().to_string().contains(&features));
            assert!(list().contains(&features));
        }
    }
}
