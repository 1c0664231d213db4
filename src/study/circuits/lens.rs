//! The Jacobian lens of text (Gurnee et al. 2026): for each layer the mean over prompts of `∂h_final / ∂h_l`, fitted here or loaded
//! from the authors' files. Index l is the output of block l; the last block has no matrix, its output is the final state.
//!
//! The authors' estimator: drop a prompt's first few positions and its last, sum the final states over the others, and average the
//! gradient over them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::jacobian::{Passage, jacobians};
use crate::latent::{LatentSource, Sequence};
use crate::model::checkpoint::{HostTensor, PickleFile, write_lens};
use crate::model::{Decoder, HookPoint, PointKind};
use crate::parallel;
use crate::progress::Progress;
use crate::stats::MeanVector;
use crate::store::write_atomic;

/// One matrix `[D, D]` per layer.
#[derive(Clone, Debug, PartialEq)]
pub struct JacobianLens {
    pub matrices: BTreeMap<usize, HostTensor>,
    /// Number of prompts in the mean; 0 if the file does not record it.
    pub prompts: usize,
    pub width: usize,
}

/// Settings of the fit.
#[derive(Clone, Copy, Debug)]
pub struct Fitting {
    /// First positions of a prompt that are dropped: they act as attention sinks.
    pub skip: usize,
    /// Dimensions of the final state per backward pass.
    pub together: usize,
    pub threads: usize,
}

impl JacobianLens {
    /// Fits every layer but the last; prompts that are too short for `skip` are dropped.
    ///
    /// # Errors
    /// No prompt is long enough; as [`jacobians`].
    pub fn fit(model: &Decoder, source: &dyn LatentSource, prompts: &[Sequence], how: Fitting) -> Result<Self> {
        let long: Vec<&Sequence> = prompts.iter().filter(|row| row.ids.len() > how.skip + 1).collect();
        let (skip, all) = (how.skip, prompts.len());
        ensure!(
            !long.is_empty(),
            "none of {all} prompts is long enough: the first {skip} positions and the last are dropped"
        );
        let points: Vec<HookPoint> =
            (0..model.layers.len() - 1).map(|layer| HookPoint::at(layer, PointKind::ResidPost)).collect();
        ensure!(!points.is_empty(), "a model of one layer has no layer before the last");
        let width = model.config().hidden_size;
        let mut sums = vec![MeanVector::default(); points.len()];
        let mut progress = Progress::new("lens", long.len(), 0);
        progress.update(0, "texts");
        // Sums are added in the order of the prompts.
        for (chunk, some) in long.chunks(how.threads.max(1)).enumerate() {
            let passed = parallel::each(some, how.threads, |row| {
                let places: Vec<usize> = (skip..row.ids.len() - 1).collect();
                let passage = Passage { row, from: std::slice::from_ref(&places), to: &places };
                jacobians(model, source, passage, &points, how.together)
            })?;
            for passed in passed {
                for (sum, point) in sums.iter_mut().zip(&points) {
                    let jacobian = passed.jacobians.get(&(*point, 0)).context("a Jacobian is missing")?;
                    sum.add(jacobian);
                }
            }
            progress.update(chunk * how.threads.max(1) + some.len(), "texts");
        }
        progress.finish();
        let host =
            |(layer, sum): (usize, &MeanVector)| Ok((layer, HostTensor::new(vec![width, width], sum.mean_f32())?));
        Ok(Self { matrices: sums.iter().enumerate().map(host).collect::<Result<_>>()?, prompts: long.len(), width })
    }

    /// Reads `{"J": {layer: [D, D]}, "n_prompts": …, "d_model": …}` as `torch.save` writes it (the authors' and TransformerLens' files).
    ///
    /// # Errors
    /// A file of another format; matrices that are not square or differ in width.
    pub fn load(path: &Path) -> Result<Self> {
        let (file, numbers) = PickleFile::open_lens(path)?;
        let origin = path.display();
        let mut matrices = BTreeMap::new();
        for name in file.names() {
            let layer = name.parse().with_context(|| format!("{origin}: `{name}` is not a layer"))?;
            matrices.insert(layer, file.tensor(name)?);
        }
        let number = |name: &str| numbers.get(name).and_then(|&n| usize::try_from(n).ok());
        let first = matrices.values().next().map_or(0, HostTensor::width);
        let width = number("d_model").unwrap_or(first);
        for (layer, HostTensor { shape, data }) in &matrices {
            ensure!(*shape == [width, width], "{origin}: layer {layer} has shape {shape:?}, d_model is {width}");
            ensure!(data.iter().all(|x| x.is_finite()), "{origin}: layer {layer} has numbers that are not finite");
        }
        Ok(Self { matrices, prompts: number("n_prompts").unwrap_or(0), width })
    }

    /// Writes the same format, in half precision.
    ///
    /// # Errors
    /// A path that cannot be written; entries beyond half precision's range.
    pub fn save(&self, path: &Path) -> Result<()> {
        let beyond = self.matrices.iter().find(|(_, m)| m.data.iter().any(|x| x.abs() > 65504.0));
        if let Some((layer, _)) = beyond {
            bail!("{}: layer {layer} has entries beyond the range of half precision (65504)", path.display());
        }
        write_atomic(path, &write_lens(&self.matrices, self.prompts, self.width)?)
    }

    /// Checks that the lens fits a model of this shape.
    ///
    /// # Errors
    /// Another width, or a layer outside the model's layers before the last.
    pub fn check_fits(&self, width: usize, layers: usize) -> Result<()> {
        ensure!(self.width == width, "the lens has width {}, the model {width}", self.width);
        if let Some(layer) = self.matrices.keys().find(|layer| **layer + 1 >= layers) {
            let most = layers.saturating_sub(2);
            bail!("the lens has layer {layer}; a model of {layers} layers has 0 to {most} before its last");
        }
        Ok(())
    }

    /// Maps states of a layer `[n × D]` to the final state's basis; `None` if the lens lacks the layer.
    pub fn carry(&self, layer: usize, states: &[f32]) -> Option<Vec<f32>> {
        let matrix = self.matrices.get(&layer)?;
        let dot = |h: &[f32], row: &[f32]| row.iter().zip(h).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let carried =
            states.chunks(self.width).flat_map(|h| matrix.data.chunks(self.width).map(move |row| dot(h, row) as f32));
        Some(carried.collect())
    }
}
