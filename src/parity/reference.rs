//! Reading reference values, and the difference from them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{Int, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};

use crate::guard::{MOST_FILE, read_bytes};
use crate::model::Decoder;
use crate::model::checkpoint::HostTensor;
use crate::ops;

/// Reference tensors by name; integers are converted.
pub type References = BTreeMap<String, HostTensor>;

/// Reads a file of reference values.
///
/// # Errors
/// A file that cannot be read, and tensors that are neither f32 nor i64.
pub fn read(path: &Path) -> Result<References> {
    let origin = path.display();
    let bytes = read_bytes(path, MOST_FILE)
        .with_context(|| format!("{origin}: cannot read; name the folder with --fixtures"))?;
    let file = SafeTensors::deserialize(&bytes).with_context(|| format!("{origin}: not a safetensors file"))?;
    let mut out = References::new();
    for (name, view) in file.iter() {
        let data = match view.dtype() {
            Dtype::F32 => view.data().as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect(),
            Dtype::I64 => view.data().as_chunks::<8>().0.iter().map(|c| i64::from_le_bytes(*c) as f32).collect(),
            other => bail!("{origin}: `{name}` is {other:?}, expected F32 or I64"),
        };
        out.insert(name.to_owned(), HostTensor::new(view.shape().to_vec(), data)?);
    }
    Ok(out)
}

pub fn get<'r>(references: &'r References, name: &str) -> Result<&'r HostTensor> {
    references.get(name).with_context(|| format!("the reference values have no `{name}`"))
}

/// The rows of token ids of a tiny model.
pub fn rows(references: &References) -> Result<Vec<Vec<u32>>> {
    let row = |r| Ok(get(references, &format!("row{r}.ids"))?.data.iter().map(|&id| id as u32).collect());
    (0..3).map(row).collect()
}

/// The largest error of some values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deviation {
    /// Relative to the largest reference value; infinite if a value is not finite or missing.
    pub off: f64,
    /// Number of compared values.
    pub values: usize,
    /// Where the error is; may be empty.
    pub at: String,
}

impl Deviation {
    /// max |ours − reference| ÷ max(floor, max |reference|).
    pub fn above(floor: f32, ours: &[f32], reference: &[f32]) -> Self {
        let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0_f32, |most, x| most.max(x.abs()));
        let finite = ours.len() == reference.len() && ours.iter().chain(reference).all(|x| x.is_finite());
        let difference = f64::from(largest(&mut ours.iter().zip(reference).map(|(a, b)| a - b)));
        let scale = f64::from(largest(&mut reference.iter().copied()).max(floor));
        let off = if finite { difference / scale } else { f64::INFINITY };
        Self { off, values: reference.len(), at: String::new() }
    }

    /// max |ours − reference| ÷ max |reference|.
    pub fn relative(ours: &[f32], reference: &[f32]) -> Self {
        Self::above(f32::MIN_POSITIVE, ours, reference)
    }

    /// |ours − reference| of one number.
    pub fn absolute(ours: f64, reference: f64) -> Self {
        let off = if ours.is_finite() { (ours - reference).abs() } else { f64::INFINITY };
        Self { off, values: 1, at: String::new() }
    }

    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        Self { at: place.into(), ..self }
    }

    /// The larger of two errors, of all their values.
    pub fn merge(&mut self, other: Self) {
        let values = self.values + other.values;
        if other.off > self.off || other.off.is_nan() {
            *self = other;
        }
        self.values = values;
    }
}

impl FromIterator<Deviation> for Deviation {
    fn from_iter<I: IntoIterator<Item = Self>>(all: I) -> Self {
        let mut worst = Self::default();
        all.into_iter().for_each(|found| worst.merge(found));
        worst
    }
}

/// Every gradient of `ours` against `prefix.grad.*`.
///
/// # Errors
/// A gradient that only one of the two has.
pub fn gradients(ours: &[(String, HostTensor)], references: &References, prefix: &str) -> Result<Vec<Deviation>> {
    let prefix = format!("{prefix}.grad.");
    let expected = references.keys().filter(|key| key.starts_with(&prefix)).count();
    ensure!(ours.len() == expected, "{prefix}: {} gradients, the reference has {expected}", ours.len());
    let largest = |values: &[f32]| values.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let of_all = references.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(_, grad)| largest(&grad.data));
    let of_all = of_all.fold(0.0, f32::max);
    let one = |(name, grad): &(String, HostTensor)| {
        let reference = get(references, &format!("{prefix}{name}"))?;
        ensure!(grad.shape == reference.shape, "{prefix}{name}: shapes differ");
        let mut found = Deviation::relative(&grad.data, &reference.data);
        // One that is 0 but for rounding, as a key's bias has it without rotation, is measured by the largest of all.
        let own = largest(&reference.data).max(f32::MIN_POSITIVE);
        if own < 1e-6 * of_all {
            found.off *= f64::from(own / of_all);
        }
        Ok(found)
    };
    ours.iter().map(one).collect()
}

/// A tensor's values on the host.
pub fn values<const R: usize>(x: &Tensor<R>) -> Result<Vec<f32>> {
    x.clone().try_into_vec_as::<f32>().map_err(|e| anyhow::anyhow!("reading values: {e:?}"))
}

/// Mean cross-entropy of `targets` under the head: hidden states `[n, D]`.
pub fn mean_cross_entropy(model: &Decoder, hidden: Tensor<2>, targets: &[u32]) -> Tensor<1> {
    let targets: Vec<i64> = targets.iter().map(|&t| i64::from(t)).collect();
    let n = targets.len();
    let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [1, n]), &hidden.device());
    ops::token_log_probs(model.unembed(hidden.unsqueeze_dim(0)), targets).mean().neg()
}
