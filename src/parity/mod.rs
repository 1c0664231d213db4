//! Compares the decoder with reference values, made by the scripts of `fixtures/` (PyTorch, `transformers`), on any device. Tests
//! require every difference to be within its bound; `probe check` prints them.

mod decoding;
mod gradients;
mod hooks;
mod latent;
pub mod recorder;
pub mod reference;
mod steps;

pub use decoding::compare_traces;
pub use gradients::gradients;
pub use hooks::{compare_hooks, hooks};
pub use latent::known_rows;
pub use steps::{GRPO_CASES, GrpoCase, GrpoValues, HYBRID, gated, grpo_step, sft_settings, sft_step};

use std::path::PathBuf;

use anyhow::Result;
use burn::tensor::Device;

use crate::model::Decoder;
use crate::model::checkpoint::ModelFiles;
use reference::Deviation;

/// The tiny models that have reference values.
pub const TINY: [&str; 16] = [
    "qwen3_tied",
    "qwen3_untied",
    "qwen3_yarn",
    "qwen3_window",
    "qwen3_moe",
    "qwen2_tied",
    "qwen2_untied",
    "llama_gqa",
    "llama3_scaled",
    "llama_linear",
    "mistral_gqa",
    "mistral_window",
    "gemma_mqa",
    "gemma2_window",
    "gpt2_tied",
    "olmo2_gqa",
];

/// Reference values, and the device that is compared with them.
#[derive(Clone, Debug)]
pub struct Fixtures {
    /// The folder `fixtures`.
    pub root: PathBuf,
    /// Outside autodiff.
    pub device: Device,
    /// Whether models keep their matrices as their files store them.
    kept: bool,
}

/// One row of a check: the worst deviation of its values, and its bound.
#[derive(Clone, Debug, PartialEq)]
pub struct ParityComparison {
    pub what: String,
    pub found: Deviation,
    pub bound: f64,
}

impl ParityComparison {
    pub fn new(what: impl Into<String>, bound: f64, all: impl IntoIterator<Item = Deviation>) -> Self {
        Self { what: what.into(), found: all.into_iter().collect(), bound }
    }

    /// Within the bound. Nothing compared is no pass.
    pub fn passes(&self) -> bool {
        self.found.values > 0 && self.found.off <= self.bound
    }
}

impl Fixtures {
    pub fn new(root: PathBuf, device: Device) -> Self {
        Self { root, device, kept: false }
    }

    pub fn tiny(&self, name: &str, device: &Device) -> Result<Decoder> {
        let checkpoint = ModelFiles::open_folder(self.path(&format!("tiny/{name}")))?;
        if self.kept { Decoder::load_kept_to_train(&checkpoint, device) } else { Decoder::load(&checkpoint, device) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Every comparison with a reference value, simple ones first; `seen` gets each as it is made.
    pub fn all(&self, seen: fn(&ParityComparison)) -> Result<Vec<ParityComparison>> {
        let mut out = vec![];
        let mut add = |found: Vec<ParityComparison>| {
            found.iter().for_each(seen);
            out.extend(found);
        };
        for name in TINY {
            add(hooks(self, name)?);
        }
        for name in TINY {
            add(gradients(self, name)?);
        }
        add(known_rows(self)?);
        add(vec![decoding::against_one_row_on_the_cpu(self)?]);
        add(vec![decoding::drawn_from_a_large_vocabulary(self)?]);
        add(sft_step(self, 1, 1)?);
        for case in &GRPO_CASES {
            add(grpo_step(self, case, 1)?);
        }
        Ok(out)
    }

    /// The comparisons of models with matrices in their file format: nothing in them is trained.
    pub fn of_kept(&self) -> Result<Vec<ParityComparison>> {
        let kept = Self { kept: true, ..self.clone() };
        let mut out = vec![];
        for name in TINY {
            out.extend(hooks(&kept, name)?);
        }
        out.push(decoding::against_one_row_on_the_cpu(&kept)?);
        Ok(out)
    }
}
