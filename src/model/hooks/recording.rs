//! Records activations by hook point and position during a run, like TransformerLens' `run_with_cache`.
//!
//! For any sequence of calls (one, many over a cache, a decode, waves of latents), the result is one tensor per point. Rows are
//! right-padded with zeros to the longest; the key axis of scores and pattern counts positions, not cache slots.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::{Activation, HookPoint, HookSpec, Hooks, Place, Select, Site};
use crate::model::config::ModelConfig;
use crate::ops::{self, MASKED};

/// One tensor: a hook point at the positions selected.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedTensor {
    /// The point's name, with its selection if it has one; `logits` for logits.
    pub name: String,
    /// `[rows, positions, …]`; scores and pattern `[rows, H, positions, keys]`.
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
    /// Positions along the position axis, in order.
    pub positions: Vec<usize>,
    /// Axis of the positions: 1; for scores and pattern, 2.
    pub position_axis: usize,
}

impl RecordedTensor {
    /// The values at a position of a row, heads concatenated.
    ///
    /// # Errors
    /// A row or a position that was not recorded.
    pub fn at(&self, row: usize, position: usize) -> Result<Vec<f32>> {
        let (name, n, axis) = (&self.name, self.positions.len(), self.position_axis);
        ensure!(row < self.shape[0], "`{name}`: row {row} of {}", self.shape[0]);
        let nth = self.positions.binary_search(&position).ok();
        let nth = nth.with_context(|| format!("`{name}`: nothing was recorded at position {position}"))?;
        let (before, width): (usize, usize) =
            (self.shape[1..axis].iter().product(), self.shape[axis + 1..].iter().product());
        let part = |head: usize| ((row * before + head) * n + nth) * width;
        Ok((0..before).flat_map(|head| &self.data[part(head)..part(head) + width]).copied().collect())
    }
}

/// A recording in progress. Attach it to the hooks of any number of calls, then call [`Recording::tensors`].
#[derive(Debug, Default)]
pub struct Recording {
    kept: RefCell<Vec<PointValues>>,
}

/// The recorded values at one point.
#[derive(Debug)]
struct PointValues {
    name: String,
    /// `None`: logits, which have no point.
    point: Option<HookPoint>,
    select: Select,
    /// Axes of the value at one place; for scores and pattern only the heads.
    axes: Vec<usize>,
    /// By row and position; of scores and pattern the keys up to the position, head after head.
    values: BTreeMap<(usize, usize), Vec<f32>>,
    /// For scores and pattern: the position in each cache slot, by row; `None` is padding.
    slots: BTreeMap<usize, Vec<Option<usize>>>,
}

const LOGITS: &str = "logits";

impl Recording {
    /// A recording of every point that the specs name in a model of these settings; a point named twice is stored once.
    ///
    /// # Errors
    /// A spec that does not resolve.
    pub fn for_model(specs: &[HookSpec], config: &ModelConfig) -> Result<Self> {
        let mut kept: Vec<PointValues> = vec![];
        for spec in specs {
            for point in spec.resolve_in(config)? {
                let name = HookSpec { pattern: point.to_string(), select: spec.select }.to_string();
                if kept.iter().all(|k| k.name != name) {
                    kept.push(PointValues::new(name, Some(point), spec.select));
                }
            }
        }
        Ok(Self { kept: RefCell::new(kept) })
    }

    /// Whether nothing is requested.
    pub fn is_empty(&self) -> bool {
        self.kept.borrow().is_empty()
    }

    /// Adds the recording hooks, after hooks that replace: the recorded value is the one that the model used.
    ///
    /// # Errors
    /// A point that does not exist.
    pub fn attach<'h>(&'h self, hooks: &mut Hooks<'h>, layers: usize) -> Result<()> {
        for (index, kept) in self.kept.borrow().iter().enumerate() {
            let Some(point) = kept.point else { continue };
            // Every position is seen, so that the slots of the key axis are known; the selection is applied on storing.
            let spec = HookSpec::all(point);
            hooks.observe(&spec, layers, move |site, value| self.kept.borrow_mut()[index].take(site, value))?;
        }
        Ok(())
    }

    /// Stores the logits `[B, L, V]` at these places, under the name `logits`.
    pub(crate) fn keep_logits(&self, places: &[Place], logits: &Activation) -> Result<()> {
        let mut kept = self.kept.borrow_mut();
        let index = kept.iter().position(|k| k.name == LOGITS).unwrap_or_else(|| {
            kept.push(PointValues::new(LOGITS.into(), None, Select::All));
            kept.len() - 1
        });
        kept[index].keep(places, logits)
    }

    /// One tensor per point, in the order of the requests. Rows are numbered by [`super::Span::rows`], from 0 to `rows`; a row without such a
    /// position is zero.
    ///
    /// # Errors
    /// A point without any recorded value: it would have been a silent no-op.
    pub fn tensors(self, rows: usize) -> Result<Vec<RecordedTensor>> {
        self.kept.into_inner().into_iter().map(|kept| kept.tensor(rows)).collect()
    }
}

impl PointValues {
    fn new(name: String, point: Option<HookPoint>, select: Select) -> Self {
        Self { name, point, select, axes: vec![], values: BTreeMap::new(), slots: BTreeMap::new() }
    }

    fn is_attention(&self) -> bool {
        self.point.is_some_and(|point| point.kind.is_attention())
    }

    fn take(&mut self, site: &Site, value: &Activation) -> Result<()> {
        if self.is_attention() {
            let span = site.span;
            for ((&row, steps), at) in span.rows.iter().zip(&span.steps).zip(&span.positions) {
                let positions = steps.iter().zip(at).map(|(step, &position)| step.map(|_| position));
                self.slots.entry(row).or_default().extend(positions);
            }
        }
        self.keep(site.places, value)
    }

    fn keep(&mut self, places: &[Place], value: &Activation) -> Result<()> {
        let places: Vec<&Place> = places.iter().filter(|p| self.select.admits(p.position, p.step)).collect();
        if places.is_empty() {
            return Ok(());
        }
        let dims = value.dims();
        let bytes = 2 * (dims.iter().product::<usize>() * size_of::<f32>()) as u64;
        ops::ensure_memory(|| format!("recording `{}` {dims:?} (record fewer positions)", self.name), bytes)?;
        let data = value.to_vec()?;
        self.axes = if self.is_attention() { vec![dims[1]] } else { dims[2..].to_vec() };
        for place in places {
            let values = match self.point.filter(|point| point.kind.is_attention()) {
                Some(point) => {
                    let slots = self.slots.get(&place.row).map(Vec::as_slice).unwrap_or_default();
                    ensure!(slots.len() == dims[3], "{}: {} keys, {} were seen", self.name, dims[3], slots.len());
                    let heads = point.kind.ranges(&dims, place).into_iter();
                    heads.flat_map(|head| by_position(&data[head], slots, place.position, self.absent())).collect()
                }
                None => {
                    let width: usize = dims[2..].iter().product();
                    let from = (place.batch * dims[1] + place.index) * width;
                    data[from..from + width].to_vec()
                }
            };
            self.values.insert((place.row, place.position), values);
        }
        Ok(())
    }

    /// Fill value for a row without such a position or key.
    fn absent(&self) -> f32 {
        if self.point.is_some_and(|point| point.kind == super::PointKind::AttnScores) { MASKED } else { 0.0 }
    }

    fn tensor(self, rows: usize) -> Result<RecordedTensor> {
        ensure!(!self.values.is_empty(), "hook `{}` never fired: no call reached it at these positions", self.name);
        let positions: BTreeSet<usize> = self.values.keys().map(|(_, position)| *position).collect();
        let positions: Vec<usize> = positions.into_iter().collect();
        let n = positions.len();
        let (heads, width, shape) = if self.is_attention() {
            let longest = self.slots.values().flatten().flatten().max().map_or(0, |position| position + 1);
            (self.axes[0], longest, vec![rows, self.axes[0], n, longest])
        } else {
            (1, self.axes.iter().product(), [&[rows, n], &self.axes[..]].concat())
        };
        let bytes = (shape.iter().product::<usize>() * size_of::<f32>()) as u64;
        ops::ensure_memory(|| format!("the recording of `{}` {shape:?} (record fewer positions)", self.name), bytes)?;
        let mut data = vec![self.absent(); shape.iter().product()];
        for ((row, position), values) in &self.values {
            ensure!(*row < rows, "hook `{}`: row {row} of {rows}", self.name);
            let Ok(at) = positions.binary_search(position) else { continue };
            for (head, part) in values.chunks(values.len() / heads).enumerate() {
                let to = ((row * heads + head) * n + at) * width;
                data[to..to + part.len()].copy_from_slice(part);
            }
        }
        let position_axis = if self.is_attention() { 2 } else { 1 };
        Ok(RecordedTensor { name: self.name, shape, data, positions, position_axis })
    }
}

/// One query's keys sorted by position, up to its own.
fn by_position(keys: &[f32], slots: &[Option<usize>], own: usize, absent: f32) -> Vec<f32> {
    let mut out = vec![absent; own + 1];
    for (slot, position) in slots.iter().enumerate() {
        if let Some(place) = position.and_then(|position| out.get_mut(position)) {
            *place = keys[slot];
        }
    }
    out
}
