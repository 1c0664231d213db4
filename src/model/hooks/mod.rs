//! Hooks: observe or replace any activation, by TransformerLens' names.
//!
//! A [`Hooks`] value is passed to each call; the model stores none. Without hooks a call does no extra work.
//!
//! | point | shape |
//! | --- | --- |
//! | `hook_embed`, `hook_pos_embed` (learned positions), `blocks.{l}.hook_resid_pre｜resid_mid｜resid_post｜attn_out｜mlp_out` | `[B, L, D]` |
//! | `blocks.{l}.ln1｜ln2`, `ln1_post｜ln2_post` (a second norm, after), `ln_final` `.hook_scale` | `[B, L, 1]` |
//! | same `.hook_normalized` (before the weight) | `[B, L, D]` |
//! | `blocks.{l}.attn.hook_q｜k｜v` (before QK-norm and RoPE), `hook_rot_q｜k` (after both) | `[B, L, H or Hkv, dh]` |
//! | `blocks.{l}.attn.hook_attn_scores` (after the mask), `hook_pattern` | `[B, H, L, T]`, T = cache slots |
//! | `blocks.{l}.attn.hook_z`; `hook_result` (opt-in: name it) | `[B, L, H, dh]`; `[B, L, H, D]` |
//! | `blocks.{l}.mlp.hook_pre` (gate; without a gate the activation's input), `hook_pre_linear` (up), `hook_post` | `[B, L, F]` |
//! | `blocks.{l}.mlp.hook_expert_weights` (for a mixture of experts, instead of these three) | `[B, L, E]` |
//! | `latent.hook_source`, `latent.hook_injected`; `boundary.hook_logits` | `[B, 1, D]`; `[B, 1, V]` |

mod activation;
mod aliases;
mod point;
mod recording;
mod shape;
mod spec;

use anyhow::{Result, bail, ensure};
use burn::tensor::{Bool, Device, Tensor, TensorData};

pub(crate) use activation::rows_of;
pub use activation::{Activation, Hookable};
pub use point::{HookPoint, PointKind};
pub use recording::{RecordedTensor, Recording};
pub use spec::{HookSpec, Select, outside_brackets, parse_specs};

use super::span::{Span, Step};

/// One selected position of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index into the batch axis.
    pub batch: usize,
    /// Index into the span's position axis.
    pub index: usize,
    /// [`Span::rows`] of the row.
    pub row: usize,
    /// True position in the row.
    pub position: usize,
    pub step: Step,
}

/// Context of a hook call: point, span, selected positions.
#[derive(Debug)]
pub struct Site<'a> {
    pub point: HookPoint,
    pub span: &'a Span,
    /// The positions that the spec selects, never padding, never empty.
    pub places: &'a [Place],
}

impl<'a> Site<'a> {
    /// Each `wanted` place with its values of `[B, L, ..]`, heads concatenated; only these are copied from the device.
    pub(crate) fn values(
        &self,
        value: &Activation,
        wanted: impl Fn(&Place) -> bool,
    ) -> Result<Vec<(&'a Place, Vec<f32>)>> {
        let (places, length): (Vec<&Place>, usize) =
            (self.places.iter().filter(|place| wanted(place)).collect(), value.dims()[1]);
        let rows: Vec<usize> = places.iter().map(|place| place.batch * length + place.index).collect();
        Ok(places.into_iter().zip(value.rows(&rows)?).collect())
    }
}

type Observe<'h> = Box<dyn FnMut(&Site, &Activation) -> Result<()> + 'h>;
/// Returns the new value, and the number of replaced positions.
type Replace<'h> = Box<dyn FnMut(&Site, Activation) -> Result<(Activation, usize)> + 'h>;

enum HookAction<'h> {
    Observe(Observe<'h>),
    Replace(Replace<'h>),
}

struct HookEntry<'h> {
    /// For messages.
    name: String,
    select: Select,
    points: Vec<HookPoint>,
    action: HookAction<'h>,
    fired: usize,
}

/// A set of hooks for one or more calls.
#[derive(Default)]
pub struct Hooks<'h> {
    entries: Vec<HookEntry<'h>>,
}

impl<'h> Hooks<'h> {
    pub fn none() -> Self {
        Self::default()
    }

    /// Calls `f` with the value at every point and position that `spec` selects.
    ///
    /// # Errors
    /// A spec that does not resolve in a model with `layers` blocks.
    pub fn observe<F>(&mut self, spec: &HookSpec, layers: usize, f: F) -> Result<&mut Self>
    where
        F: FnMut(&Site, &Activation) -> Result<()> + 'h,
    {
        self.add(spec, layers, HookAction::Observe(Box::new(f)))
    }

    /// Puts `f`'s value in place of the activation, at the selected positions only.
    ///
    /// # Errors
    /// A spec that does not resolve in a model with `layers` blocks.
    pub fn replace<F>(&mut self, spec: &HookSpec, layers: usize, mut f: F) -> Result<&mut Self>
    where
        F: FnMut(&Site, Activation) -> Result<Activation> + 'h,
    {
        let counted = move |site: &Site, value: Activation| -> Result<(Activation, usize)> {
            Ok((f(site, value)?, site.places.len()))
        };
        self.add(spec, layers, HookAction::Replace(Box::new(counted)))
    }

    /// Replaces the activation at these points by `f`'s value. `f` selects the positions, and returns their number.
    pub(crate) fn replace_at<F>(&mut self, name: String, points: Vec<HookPoint>, f: F) -> &mut Self
    where
        F: FnMut(&Site, Activation) -> Result<(Activation, usize)> + 'h,
    {
        let action = HookAction::Replace(Box::new(f));
        self.entries.push(HookEntry { name, select: Select::All, points, action, fired: 0 });
        self
    }

    /// Lets `f` change the values of each selected position in place: a row-major copy, heads concatenated. The site passed to `f` has this
    /// one place.
    ///
    /// # Errors
    /// A spec that does not resolve in a model with `layers` blocks.
    pub fn edit<F>(&mut self, spec: &HookSpec, layers: usize, mut f: F) -> Result<&mut Self>
    where
        F: FnMut(&Site, &mut [f32]) -> Result<()> + 'h,
    {
        self.replace(spec, layers, move |site, value| {
            let (dims, mut data) = (value.dims(), value.to_vec()?);
            for place in site.places {
                let at: Vec<usize> = site.point.kind.ranges(&dims, place).into_iter().flatten().collect();
                let mut values: Vec<f32> = at.iter().map(|&i| data[i]).collect();
                f(&Site { places: std::slice::from_ref(place), ..*site }, &mut values)?;
                at.into_iter().zip(values).for_each(|(i, new)| data[i] = new);
            }
            Ok(value.with_values(data))
        })
    }

    fn add(&mut self, spec: &HookSpec, layers: usize, action: HookAction<'h>) -> Result<&mut Self> {
        let points = spec.resolve(layers)?;
        self.entries.push(HookEntry { name: spec.to_string(), select: spec.select, points, action, fired: 0 });
        Ok(self)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is a hook at `point`, so that unused values are never computed.
    pub(crate) fn wants(&self, point: HookPoint) -> bool {
        self.entries.iter().any(|entry| entry.points.contains(&point))
    }

    /// Runs the hooks at `point` in the order of their addition.
    ///
    /// # Errors
    /// Errors of a hook; a replacement of another shape.
    pub fn apply<T: Hookable>(&mut self, point: HookPoint, span: &Span, mut value: T) -> Result<T> {
        if self.entries.is_empty() {
            return Ok(value);
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.points.contains(&point)) {
            let places = select(span, &entry.select);
            if places.is_empty() {
                continue;
            }
            let site = Site { point, span, places: &places };
            match &mut entry.action {
                HookAction::Observe(f) => {
                    f(&site, &value.clone().wrap())?;
                    entry.fired += places.len();
                }
                HookAction::Replace(f) => {
                    let old = value.clone().wrap();
                    let dims = old.dims();
                    let (new, fired) = f(&site, old)?;
                    entry.fired += fired;
                    ensure!(
                        new.dims() == dims,
                        "hook `{}` at `{point}` returned shape {:?}, expected {dims:?}",
                        entry.name,
                        new.dims()
                    );
                    let Some(new) = T::unwrap_from(new) else {
                        bail!("hook `{}` at `{point}` returned another rank", entry.name);
                    };
                    value = if entry.select == Select::All {
                        new
                    } else {
                        let mask = mask_of(span, &places, &value.device_of());
                        value.merge(new, mask, point.kind.position_axis())
                    };
                }
            }
        }
        Ok(value)
    }

    /// Number of firings of each hook: one per selected position.
    ///
    /// # Errors
    /// A hook that never fired, by name: it would have been a silent no-op.
    pub fn finish(&self) -> Result<Vec<(String, usize)>> {
        for entry in &self.entries {
            ensure!(
                entry.fired > 0,
                "hook `{}` never fired: no call reached these points at these positions",
                entry.name
            );
        }
        Ok(self.entries.iter().map(|entry| (entry.name.clone(), entry.fired)).collect())
    }
}

fn select(span: &Span, select: &Select) -> Vec<Place> {
    let mut places = vec![];
    for (batch, steps) in span.steps.iter().enumerate() {
        for (index, step) in steps.iter().enumerate() {
            let position = span.positions[batch][index];
            if let Some(step) = *step
                && select.admits(position, step)
            {
                places.push(Place { batch, index, row: span.rows[batch], position, step });
            }
        }
    }
    places
}

fn mask_of(span: &Span, places: &[Place], device: &Device) -> Tensor<2, Bool> {
    let (b, l) = (span.rows.len(), span.width());
    let mut mask = vec![false; b * l];
    for place in places {
        mask[place.batch * l + place.index] = true;
    }
    Tensor::from_data(TensorData::new(mask, [b, l]), device)
}
