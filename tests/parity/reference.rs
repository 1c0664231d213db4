//! Reading fixtures, and comparing with them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};
use switchyard::model::Decoder;
use switchyard::model::checkpoint::Checkpoint;
use switchyard::ops;

pub const TINY: [&str; 4] = ["qwen3_tied", "qwen3_untied", "llama_gqa", "llama3_scaled"];

pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(".").join("fixtures").join(path)
}

/// One tensor of a fixture.
#[derive(Clone, Debug)]
pub struct Reference {
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

/// A whole file of reference values; integers are converted.
pub fn read(path: &str) -> BTreeMap<String, Reference> {
    let path = fixture(path);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let convert = |view: &safetensors::tensor::TensorView| match view.dtype() {
        Dtype::F32 => view.data().chunks(4).map(|c| f32::from_le_bytes(c.try_into().expect("4 bytes"))).collect(),
        Dtype::I64 => {
            view.data().chunks(8).map(|c| i64::from_le_bytes(c.try_into().expect("8 bytes")) as f32).collect()
        }
        other => panic!("{other:?} in a fixture"),
    };
    file.iter()
        .map(|(name, view)| (name.to_owned(), Reference { shape: view.shape().to_vec(), data: convert(&view) }))
        .collect()
}

/// The rows of ids of a tiny model.
pub fn rows(reference: &BTreeMap<String, Reference>) -> Vec<Vec<u32>> {
    (0..3).map(|r| reference[&format!("row{r}.ids")].data.iter().map(|&id| id as u32).collect()).collect()
}

pub fn tiny(name: &str, device: &Device) -> Decoder {
    let checkpoint = Checkpoint::open_folder(fixture(&format!("tiny/{name}"))).expect("the fixture opens");
    Decoder::load(&checkpoint, device).expect("the fixture loads")
}

pub fn values<const R: usize>(x: &Tensor<R>) -> Vec<f32> {
    x.clone().try_into_vec_as::<f32>().expect("values on the host")
}

/// max |ours − reference| ÷ max |reference|.
#[track_caller]
pub fn relative(ours: &[f32], reference: &[f32], what: &str) -> f32 {
    assert_eq!(ours.len(), reference.len(), "{what}: sizes differ");
    let scale = reference.iter().fold(f32::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let off = ours.iter().zip(reference).fold(0.0_f32, |m, (a, b)| {
        assert!(a.is_finite(), "{what}: {a}");
        m.max((a - b).abs())
    });
    off / scale
}

/// Every gradient of `ours` against `prefix.grad.*`; returns the worst.
#[track_caller]
pub fn compare_gradients(
    ours: &[(String, switchyard::model::checkpoint::HostTensor)],
    reference: &BTreeMap<String, Reference>,
    prefix: &str,
    bound: f32,
) -> f32 {
    let prefix = format!("{prefix}.grad.");
    let expected = reference.keys().filter(|k| k.starts_with(&prefix)).count();
    assert_eq!(ours.len(), expected, "{prefix}: not every parameter has a gradient");
    let mut worst = 0.0_f32;
    for (name, grad) in ours {
        let reference = &reference[&format!("{prefix}{name}")];
        assert_eq!(grad.shape, reference.shape, "{prefix}{name}");
        let off = relative(&grad.data, &reference.data, name);
        assert!(off <= bound, "{prefix}{name}: off by {off:e}");
        worst = worst.max(off);
    }
    worst
}

/// Mean cross-entropy of `targets` under the head: hidden states `[n, D]`.
pub fn mean_cross_entropy(model: &Decoder, hidden: Tensor<2>, targets: &[u32]) -> Tensor<1> {
    let targets: Vec<i64> = targets.iter().map(|&t| i64::from(t)).collect();
    let targets = Tensor::<2, Int>::from_data(TensorData::new(targets.clone(), [1, targets.len()]), &hidden.device());
    ops::token_log_probs(model.unembed(hidden.unsqueeze_dim(0)), targets).mean().neg()
}
