//! A base with an adapter as one set of weights.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};

use super::super::params::{EMBED, HEAD};
use super::super::{HostTensor, Weights, expected_parameters};
use super::{Adapter, Factors};
use crate::config::ModelConfig;
use switchyard_ops::stored::StoredMatrix;

/// Which parts of an adapter are applied to the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// Everything: W + s·B·A.
    Merged,
    /// Only weights that are replaced whole; factors stay unmerged, for a decoder that trains them.
    ReplacedOnly,
}

/// The base's weights with an adapter applied, in the shapes of the joint configuration.
pub struct Overlay {
    base: Arc<dyn Weights>,
    adapter: Arc<Adapter>,
    apply: Apply,
    /// Whether the base has one matrix for embedding and head.
    is_tied: bool,
    shapes: Vec<(String, Vec<usize>)>,
}

impl Overlay {
    /// `below` is the base's configuration, `config` the result of [`Adapter::fit`].
    pub fn new(
        base: Arc<dyn Weights>,
        adapter: Arc<Adapter>,
        apply: Apply,
        [below, config]: [&ModelConfig; 2],
    ) -> Self {
        Self { base, adapter, apply, is_tied: below.tie_word_embeddings, shapes: expected_parameters(config) }
    }

    fn key(&self, name: &str) -> Option<&str> {
        self.adapter.replacement(name, self.is_tied).map(|replaced| replaced.key.as_str())
    }

    /// The base's name of a parameter.
    fn below<'n>(&self, name: &'n str) -> &'n str {
        if self.is_tied && name == HEAD { EMBED } else { name }
    }
}

impl Weights for Overlay {
    fn names(&self) -> Vec<String> {
        self.shapes.iter().map(|(name, _)| name.clone()).collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shapes.iter().find(|(n, _)| n == name).map(|(_, shape)| shape.as_slice())
    }

    fn tensor(&self, name: &str) -> Result<HostTensor> {
        let shape =
            self.shape(name).ok_or_else(|| anyhow!("{}: no parameter `{name}`", self.file_of(name).display()))?;
        let mut weight = match self.key(name) {
            Some(key) => self.adapter.file.tensor(key)?,
            None => self.base.tensor(self.below(name))?,
        };
        // If the adapter has only one of embedding and head, the other is cut to the same number of rows.
        if (name == EMBED || name == HEAD) && weight.shape[0] > shape[0] {
            weight.data.truncate(shape[0] * shape[1]);
            weight.shape[0] = shape[0];
        }
        if let Some(rows) = self.adapter.token_rows(name)? {
            let width = shape[1];
            weight.data.resize(shape[0] * width, 0.0);
            weight.shape[0] = shape[0];
            for (token, row) in rows {
                weight.data[token * width..][..width].copy_from_slice(&row);
            }
        }
        if let (Apply::Merged, Some(factors)) = (self.apply, self.adapter.factors(name)?) {
            factors
                .merge_into(&mut weight, self.adapter.scaling(name))
                .map_err(|e| anyhow!("{}: `{name}`: {e}", self.adapter.path.display()))?;
        }
        ensure!(
            weight.shape == shape,
            "{}: `{name}` must be {shape:?}, found {:?}",
            self.file_of(name).display(),
            weight.shape
        );
        Ok(weight)
    }

    fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>> {
        let stored = match self.key(name) {
            Some(key) => self.adapter.file.stored(key, floats)?,
            // Only this adapter's factors are added to a stored matrix, not those of an adapter below it.
            None if self.base.factors(self.below(name))?.is_some() => None,
            None => self.base.stored(self.below(name), floats)?,
        };
        let Some((matrix, rows)) = stored.zip(self.shape(name).and_then(|shape| shape.first().copied())) else {
            return Ok(None);
        };
        let Some(learnt) = self.adapter.token_rows(name)? else { return Ok(Some(matrix.cut(rows))) };
        // Rows before the first learnt one stay as stored; learnt ones are near the end.
        let (first, width) = (learnt.keys().next().copied().unwrap_or(rows).min(matrix.rows()), matrix.width());
        let mut tail = matrix.widened_range(first..matrix.rows().min(rows).max(first));
        tail.resize((rows - first) * width, 0.0);
        for (token, row) in learnt {
            tail[(token - first) * width..][..width].copy_from_slice(&row);
        }
        matrix.cut(first).with_rows(&tail).map(Some)
    }

    fn factors(&self, name: &str) -> Result<Option<(Factors, f64)>> {
        let factors = if self.apply == Apply::Merged { self.adapter.factors(name)? } else { None };
        Ok(factors.map(|factors| (factors, self.adapter.scaling(name))))
    }

    fn file_of(&self, name: &str) -> &Path {
        if self.key(name).is_some() { &self.adapter.path } else { self.base.file_of(self.below(name)) }
    }
}
