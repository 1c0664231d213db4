//! Models with matrices in their file format on the device: those with reference values, and models in Q8_0 and bf16 compared with the CPU on
//! the same files: LoRA factors and rows of tokens after a few steps over latents.

use std::path::Path;

use anyhow::{Result, ensure};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};

use super::kernels::noise;
use super::parts::Setting;
use switchyard::corpus::Row;
use switchyard::machine::{Compute, Machine};
use switchyard::model::ModelConfig;
use switchyard::model::checkpoint::{HostTensor, ModelFiles, write_random};
use switchyard::model::lora::LoraSettings;
use switchyard::parity::reference::{Deviation, values};
use switchyard::parity::{ParityComparison, sft_settings};
use switchyard::recipe::Optimizer;
use switchyard::train::sft;
use switchyard::train::trainer::Trainer;

/// Bound for losses and trained values, relative to the largest of its kind.
const BOUND: f64 = 1e-5;

const STEPS: usize = 3;

pub(super) fn on_the_device(setting: &Setting) -> Result<Vec<ParityComparison>> {
    let mut out = setting.fixtures.of_kept()?;
    let folder = setting.folder.join("stored");
    for (name, file) in [("qwen3_tied", "model.gguf"), ("qwen3_untied", "folder")] {
        let path = folder.join(name).join(file);
        let small = setting.fixtures.tiny(name, &Machine::default().device)?.config().clone();
        let config = ModelConfig { hidden_size: 64, intermediate_size: 128, head_dim: 16, ..small };
        std::fs::create_dir_all(folder.join(name))?;
        write_random(&config, &path, 5)?;
        let [ours, theirs] = [&setting.fixtures.device, &Machine::default().device].map(|on| learnt(&path, on));
        let (ours, theirs) = (ours?, theirs?);
        ensure!(ours.len() == theirs.len(), "{name}: {} and {} tensors were learnt", ours.len(), theirs.len());
        for ((what, ours), (_, theirs)) in ours.iter().zip(&theirs) {
            let what = format!("{file} as {name}, {STEPS} steps: {what}");
            out.push(ParityComparison::new(what, BOUND, [Deviation::relative(ours, theirs)]));
        }
    }
    Ok(out)
}

/// Losses, factors and rows of tokens after some steps over rows with latents.
fn learnt(path: &Path, device: &Device) -> Result<Vec<(String, Vec<f32>)>> {
    let checkpoint = ModelFiles::open(&path.display().to_string())?;
    let model = Compute::Stored.load_to_train(&checkpoint, &device.clone().autodiff())?;
    let last = model.config().vocab_size as u32 - 1;
    let (swi, swi_end, latent) = (last - 2, last - 1, last);
    let settings = LoraSettings { rank: 4, alpha: 8.0, train_embeddings: true, ..LoraSettings::default() };
    let model = model.learning_tokens(&[swi, swi_end, latent])?.with_lora(&settings)?;
    let model = model.map(&mut SeededValues { device: device.clone().autodiff(), seed: 0 });
    // A large ε, for the reason in the part `training`.
    let optimizer = Optimizer { dtype: Compute::Stored, epsilon: 1e-4, ..Optimizer::default() };
    let mut trainer = Trainer::new(model, &optimizer);
    let row = |r: u32| {
        let words = |n: u32| (0..n).map(move |i| (i * 7 + r * 3) % swi);
        let ids: Vec<u32> = words(4).chain([swi, latent, latent, swi_end]).chain(words(9)).collect();
        Row { ids, prompt: 3, teacher: None, slots: vec![], noise: None }
    };
    let rows: Vec<Row> = (0..4).map(row).collect();
    let step = sft_settings(latent, STEPS);
    let mut losses = vec![];
    for _ in 0..STEPS {
        losses.push(sft::step(&mut trainer, &step, &rows, 1e-3)?.loss as f32);
    }
    let trained = trainer.decoder();
    let adapter = trained.adapter_over(None, None, &[swi, swi_end, latent])?;
    let n = last as usize + 1;
    // Looked up as in decoding: by ids on the device, if the table is there.
    let looked_up = match trained.looks_up_on_host() {
        true => trained.embed_rows(&(0..n).collect::<Vec<_>>())?,
        false => trained.embed_on_device(Tensor::arange(0..n as i64, &trained.device()))?,
    };
    let of = |tensors: Vec<&HostTensor>| tensors.into_iter().flat_map(|t| t.data.iter().copied()).collect();
    let (a, b) = adapter.factors.values().map(|f| (&f.a, &f.b)).unzip();
    let tokens = adapter.token_rows.iter().chain(&adapter.head_rows).collect();
    let named = [
        ("A of all factors", of(a)),
        ("B of all factors", of(b)),
        ("rows of new tokens", of(tokens)),
        ("the embedding table, looked up", values(&looked_up)?),
    ];
    let named = named.map(|(name, values)| (name.to_owned(), values));
    Ok([("losses".to_owned(), losses)].into_iter().chain(named).collect())
}

/// Sets all trained parameters to values that do not depend on the device.
struct SeededValues {
    device: Device,
    seed: u64,
}

impl ModuleMapper for SeededValues {
    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        if !param.is_require_grad() {
            return param;
        }
        self.seed += 1;
        let n = param.val().shape().num_elements();
        let (id, old, mapper) = param.consume();
        let drawn = Tensor::<4>::from_data(noise([1, 1, 1, n], self.seed, 0.1), &self.device).reshape(old.shape());
        Param::from_mapped_value(id, drawn.set_require_grad(true), mapper)
    }
}
