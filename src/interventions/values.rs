//! Values of a safetensors file that are added to a model's or replace them: as written by `--record` and `probe activations`, or one
//! tensor with the size of one place.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::Deserialize;

use crate::guard::{MOST_FILE, read_bytes};
use crate::model::checkpoint::Dtype;
use crate::model::hooks::Place;
use crate::model::{HookPoint, ModelConfig, Step};
use crate::names::suggest;

/// One tensor of a file, for the places of a sequence.
#[derive(Clone, Debug)]
pub struct Values {
    data: Vec<f32>,
    /// Values a place.
    width: usize,
    /// Position and name of each part of `data`; empty: one part, for every place.
    places: Vec<(usize, String)>,
}

/// Positions of a tensor's second axis in the metadata: of all rows, or, if they count from the end, a list per row.
#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedPositions {
    OfAll(Vec<usize>),
    OfRows(Vec<Vec<usize>>),
}

impl Values {
    /// The file's values for each of these points, with the number of the point's heads.
    ///
    /// # Errors
    /// A file that cannot be read; a point whose last axis counts keys; as [`Self::new`].
    pub fn by_point(file: &Path, points: &[HookPoint], config: &ModelConfig) -> Result<Vec<(HookPoint, usize, Self)>> {
        let axes: Vec<Vec<usize>> = points.iter().map(|&point| Self::axes(point, config)).collect::<Result<_>>()?;
        let bytes = read_bytes(file, MOST_FILE).with_context(|| format!("{}: cannot read", file.display()))?;
        let of = |(&point, axes): (&HookPoint, &Vec<usize>)| {
            Ok((point, point.kind.heads(config).unwrap_or(1), Self::new(file, &bytes, &point.to_string(), axes)?))
        };
        points.iter().zip(&axes).map(of).collect()
    }

    /// The shape of a point's value at one place.
    ///
    /// # Errors
    /// A point whose last axis counts keys.
    pub fn axes(point: HookPoint, config: &ModelConfig) -> Result<Vec<usize>> {
        point.kind.tail(config).with_context(|| {
            format!(
                "`{point}`: its last axis counts keys, which differ between runs; only zero and scale are defined there"
            )
        })
    }

    /// The tensor of a file for a hook point whose value at one place has shape `axes`: the one named like the point (with or without a
    /// selection), or the only one. Its shape is `axes`, for every place, or as written by `--record`.
    ///
    /// # Errors
    /// Malformed bytes; a missing tensor; another shape; more than one sequence.
    fn new(file: &Path, bytes: &[u8], point: &str, axes: &[usize]) -> Result<Self> {
        let what = || file.display();
        let (_, header) =
            SafeTensors::read_metadata(bytes).with_context(|| format!("{}: not a safetensors file", what()))?;
        let tensors = SafeTensors::deserialize(bytes).with_context(|| format!("{}", what()))?;
        let names = tensors.names();
        let same = |name: &&&str| name.split('@').next() == Some(point);
        let name = match (names.iter().filter(same).count(), names.as_slice()) {
            (1, _) => names.iter().find(same).copied(),
            (0, [only]) if !only.contains("hook_") => Some(*only),
            (0, _) => {
                let (near, there) = (suggest(point, names.iter().copied()), some_of(&names));
                bail!("{}: no tensor `{point}`{near}; it has {there}", what())
            }
            (n, _) => bail!("{}: {n} tensors of `{point}`, expected one", what()),
        };
        let name = name.context("a tensor was named above")?;
        let view = tensors.tensor(name)?;
        let data = floats(&view).with_context(|| format!("{}: `{name}`", what()))?;
        let width: usize = axes.iter().product();
        let meta = header.metadata().as_ref();
        let told = |key: &str| meta.and_then(|meta| meta.get(key)).map(String::as_str);
        let expected = || format!("{}: `{name}` has shape {:?}, expected {axes:?}", what(), view.shape());
        if let (Some(positions), Some(steps)) = (told("positions"), told("steps")) {
            let positions: BTreeMap<String, RecordedPositions> = serde_json::from_str(positions)?;
            let steps: Vec<Vec<String>> = serde_json::from_str(steps)?;
            let [row] = steps.as_slice() else {
                bail!("{}: {} sequences; record one, so that each place has one value", what(), steps.len());
            };
            let positions = positions.get(name).with_context(|| format!("{}: `{name}` without positions", what()))?;
            let positions = match positions {
                RecordedPositions::OfAll(positions) => positions.clone(),
                RecordedPositions::OfRows(rows) => rows.concat(),
            };
            let shape = [&[1, positions.len()], axes].concat();
            ensure!(view.shape() == shape, "{} for each of {} positions", expected(), positions.len());
            let step = |position: &usize| row.get(*position).cloned().unwrap_or_default();
            let places = positions.iter().map(|position| (*position, step(position))).collect();
            return Ok(Self { data, width, places });
        }
        ensure!(data.len() == width && view.shape().ends_with(axes), "{}", expected());
        Ok(Self { data, width, places: vec![] })
    }

    /// The values for a place: of the same step; for a prompt, or with `by_position`, of the same position. A single one is for every place.
    pub fn values_at(&self, place: &Place, by_position: bool) -> Option<&[f32]> {
        let by_position = by_position || place.step == Step::Prompt;
        let step = place.step.to_string();
        let is = |(position, told): &&(usize, String)| {
            if by_position { *position == place.position } else { *told == step }
        };
        let index = if self.places.len() <= 1 { 0 } else { self.places.iter().position(|p| is(&p))? };
        self.data.get(index * self.width..(index + 1) * self.width)
    }

    /// The available places, for an error.
    pub fn places(&self) -> String {
        let names: Vec<String> = self.places.iter().map(|(position, step)| format!("{step} at {position}")).collect();
        some_of(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// The first few names of a list.
fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len().min(SHOWN)].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

fn floats(view: &TensorView) -> Result<Vec<f32>> {
    let (bytes, dtype) = (view.data(), view.dtype());
    if dtype == safetensors::Dtype::F64 {
        let one = |b: &[u8]| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32;
        return Ok(bytes.chunks_exact(8).map(one).collect());
    }
    let known = Dtype::from_tag(&format!("{dtype:?}"));
    Ok(known.with_context(|| format!("values of type {dtype:?}; write float32"))?.decode(bytes))
}
