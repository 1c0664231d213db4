//! Activations of known rows, kept by position whatever the waves in which they were computed.
//!
//! Rows are right-padded with zeros to the longest; the key axis of scores and pattern counts positions, not cache slots.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};

use crate::latent::{Gradient, LatentSource, Sequence, Wave, Waves};
use crate::model::hooks::{Activation, Place, Site};
use crate::model::{Decoder, HookPoint, HookSpec, Hooks, Kind, Select, Step};
use crate::ops::MASKED;

/// Rows handed to the model at once.
const BATCH: usize = 16;

/// One tensor of the result: a hook point at the positions selected.
pub(crate) struct Captured {
    /// The point's name, with its selection if it has one; `logits` for those.
    pub name: String,
    /// `[rows, positions, …]`; scores and pattern `[rows, H, positions, keys]`.
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
    /// Positions of the rows that the position axis holds, in order.
    pub positions: Vec<usize>,
    point: Option<HookPoint>,
    select: Select,
    /// Longest row: the size of the key axis.
    width: usize,
    rows: usize,
    /// What the cache's slots hold, per row of the running batch.
    slots: Vec<Vec<Option<usize>>>,
}

/// What `specs` ask for, point by point, checked before anything runs.
///
/// # Errors
/// A spec that does not resolve, or that no position of these rows satisfies.
pub fn plan(specs: &[HookSpec], layers: usize, sequences: &[Sequence], logits: bool) -> Result<Vec<Captured>> {
    let mut plan: Vec<Captured> = vec![];
    for spec in specs {
        let mut fires = false;
        for point in spec.resolve(layers)? {
            let name = HookSpec { pattern: point.to_string(), select: spec.select.clone() }.to_string();
            let captured = Captured::new(name, Some(point), spec.select.clone(), sequences);
            if captured.positions.is_empty() {
                continue;
            }
            fires = true;
            if plan.iter().all(|c| c.name != captured.name) {
                plan.push(captured);
            }
        }
        if !fires {
            bail!("hook `{spec}` would never fire: no position of these rows reaches it");
        }
    }
    if logits {
        plan.push(Captured::new("logits".into(), None, Select::All, sequences));
    }
    ensure!(!plan.is_empty(), "nothing to record: give --hooks, --logits or both");
    Ok(plan)
}

/// Runs the rows and fills the plan.
///
/// # Errors
/// As [`Waves::next_wave`], and a hook that never fired.
pub fn run(model: &Decoder, source: &dyn LatentSource, sequences: &[Sequence], plan: &mut [Captured]) -> Result<()> {
    let layers = model.config().num_hidden_layers;
    for batch in sequences.chunks(BATCH) {
        let (hooked, rest) = plan.split_at_mut(plan.iter().take_while(|c| c.point.is_some()).count());
        let mut hooks = Hooks::none();
        for captured in hooked {
            let Some(point) = captured.point else { continue };
            captured.slots = vec![vec![]; batch.len()];
            // Every position is seen, so that the slots of the key axis are known; the selection is made while keeping.
            let spec = HookSpec { pattern: point.to_string(), select: Select::All };
            hooks.observe(&spec, layers, move |site, value| captured.take(site, value))?;
        }
        let mut waves = Waves::new(model, batch, source, Gradient::Through)?;
        while let Some(wave) = waves.next_wave(&mut hooks)? {
            for captured in rest.iter_mut() {
                captured.take_logits(model, batch, &wave)?;
            }
        }
    }
    // A batch may pass no such position; all of them together may not.
    match plan.iter().find(|c| c.shape.is_empty()) {
        Some(captured) => bail!("hook `{}` never fired", captured.name),
        None => Ok(()),
    }
}

impl Captured {
    fn new(name: String, point: Option<HookPoint>, select: Select, sequences: &[Sequence]) -> Self {
        let mut positions = BTreeSet::new();
        for sequence in sequences {
            for (position, &step) in sequence.steps.iter().enumerate() {
                if select.admits(position, step) && reaches(point, step) {
                    positions.insert(position);
                }
            }
        }
        let width = sequences.iter().map(|s| s.ids.len()).max().unwrap_or(0);
        let positions = positions.into_iter().collect();
        Self {
            name,
            shape: vec![],
            data: vec![],
            positions,
            point,
            select,
            width,
            rows: sequences.len(),
            slots: vec![],
        }
    }

    /// Whether every value is a number.
    pub fn is_finite(&self) -> bool {
        self.data.iter().all(|x| x.is_finite())
    }

    fn take(&mut self, site: &Site, value: &Activation) -> Result<()> {
        for (slots, (steps, at)) in self.slots.iter_mut().zip(site.span.steps.iter().zip(&site.span.positions)) {
            slots.extend(steps.iter().zip(at).map(|(step, &position)| step.map(|_| position)));
        }
        let (dims, data) = (value.dims(), value.to_vec()?);
        for place in site.places {
            self.keep(place, &dims, &data);
        }
        Ok(())
    }

    fn take_logits(&mut self, model: &Decoder, batch: &[Sequence], wave: &Wave) -> Result<()> {
        let value = Activation::Rank3(model.unembed(wave.hidden.clone()));
        let (dims, data) = (value.dims(), value.to_vec()?);
        for (row, columns) in wave.columns.iter().enumerate() {
            for (index, position) in columns.iter().enumerate() {
                if let Some(position) = *position {
                    let step = batch[row].steps[position];
                    let place = Place { batch: row, index, row: batch[row].row, position, step };
                    self.keep(&place, &dims, &data);
                }
            }
        }
        Ok(())
    }

    /// Copies the values at one place, if it is among the positions selected.
    fn keep(&mut self, place: &Place, dims: &[usize], data: &[f32]) {
        if !self.select.admits(place.position, place.step) {
            return;
        }
        let Ok(at) = self.positions.binary_search(&place.position) else { return };
        let n = self.positions.len();
        let is_attention = self.point.is_some_and(|p| matches!(p.kind, Kind::AttnScores | Kind::Pattern));
        if self.data.is_empty() {
            let masked = self.point.is_some_and(|p| p.kind == Kind::AttnScores);
            self.shape = if is_attention {
                vec![self.rows, dims[1], n, self.width]
            } else {
                [&[self.rows, n], &dims[2..]].concat()
            };
            self.data = vec![if masked { MASKED } else { 0.0 }; self.shape.iter().product()];
        }
        if !is_attention {
            let (l, tail) = (dims[1], dims[2..].iter().product::<usize>());
            let (from, to) = ((place.batch * l + place.index) * tail, (place.row * n + at) * tail);
            self.data[to..to + tail].copy_from_slice(&data[from..from + tail]);
            return;
        }
        let [_, h, l, t] = [dims[0], dims[1], dims[2], dims[3]];
        for head in 0..h {
            let from = ((place.batch * h + head) * l + place.index) * t;
            let to = ((place.row * h + head) * n + at) * self.width;
            for (slot, position) in self.slots[place.batch].iter().enumerate() {
                if let Some(position) = position {
                    self.data[to + position] = data[from + slot];
                }
            }
        }
    }
}

/// Whether a known row's position passes the point at all.
fn reaches(point: Option<HookPoint>, step: Step) -> bool {
    match point.map(|p| p.kind) {
        Some(Kind::LatentSource | Kind::LatentInjected) => matches!(step, Step::Latent { .. }),
        // Only a decoder stands at a boundary.
        Some(Kind::BoundaryLogits) => false,
        _ => true,
    }
}
