//! The KV cache: passed into each call and owned by the caller, so that a forward is a function.
//!
//! All rows share the slot axis `T`; a row with padding in a span has *holes* there, which no query sees.

use anyhow::{Result, ensure};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

use super::kept::matrix::index;
use super::span::Span;
use crate::ops::{self, Heads};

/// Keys (rotated) and values of every layer, `[B, Hkv, T, dh]` each.
#[derive(Clone, Debug)]
pub struct KvCache {
    layers: Vec<Option<LayerCache>>,
    /// `[B][T]`: the true position of a slot, or a hole.
    slots: Vec<Vec<Option<usize>>>,
    /// Whether there is only one call: a layer's keys and values are then freed after the layer.
    for_one_call: bool,
}

/// One layer's keys and values. Outside autodiff the tensors have room for more slots, so that a decoding step writes one slot in place
/// instead of copying all, and keys are stored as `[B, Hkv, dh, capacity]`, so that scores are sums of contiguous rows.
#[derive(Clone, Debug)]
struct LayerCache {
    k: Tensor<4>,
    /// `[B, Hkv, capacity, dh]`.
    v: Tensor<4>,
    /// Slots in use.
    len: usize,
}

/// Minimum slots by which a full layer grows. A long one grows by an eighth, and so is copied eight times up to its end: little compared
/// with computing its slots, and the caches of an 8B model waste no gigabytes.
const ROOM: usize = 32;

impl LayerCache {
    /// A cache of keys and values, each `[B, Hkv, T, dh]`.
    fn exact(k: Tensor<4>, v: Tensor<4>) -> Self {
        let len = v.dims()[2];
        Self { k: if k.is_autodiff() { k } else { k.swap_dims(2, 3) }, v, len }
    }

    /// `[B, Hkv, T, dh]` each.
    fn get(&self) -> (Tensor<4>, Tensor<4>) {
        let k = if self.k.is_autodiff() { self.k.clone() } else { self.k.clone().swap_dims(2, 3) };
        let whole = self.v.dims()[2] == self.len;
        let cut = |x: Tensor<4>| if whole { x } else { ops::first_of(x, 2, self.len) };
        (cut(k), cut(self.v.clone()))
    }

    /// [`ops::append_heads`] if there is room and no gradient; otherwise unchanged, without queries.
    fn push_heads(self, heads: &Heads) -> (Self, Option<Tensor<4>>) {
        let Self { k, v, len } = self;
        let more = heads.v.dims()[1];
        if k.is_autodiff() || len + more > v.dims()[2] {
            return (Self { k, v, len }, None);
        }
        let ([k, v], q) = ops::append_heads(heads, [k, v], len);
        let len = if q.is_some() { len + more } else { len };
        (Self { k, v, len }, q)
    }

    /// Appends `[B, Hkv, L, dh]` each.
    fn push(self, k: Tensor<4>, v: Tensor<4>) -> Self {
        let more = v.dims()[2];
        if self.k.is_autodiff() || k.is_autodiff() {
            let (past_k, past_v) = self.get();
            return Self::exact(Tensor::cat(vec![past_k, k], 2), Tensor::cat(vec![past_v, v], 2));
        }
        let Self { k: past_k, v: past_v, len } = self;
        let [b, h, capacity, dh] = past_v.dims();
        let k = k.swap_dims(2, 3);
        let (k, v) = if len + more <= capacity {
            let at = len..len + more;
            let k = past_k.slice_assign([0..b, 0..h, 0..dh, at.clone()], k);
            (k, past_v.slice_assign([0..b, 0..h, at, 0..dh], v))
        } else {
            let room = ROOM.max(len / 8);
            let empty = |shape: [usize; 4]| Tensor::zeros(shape, (&v.device(), v.dtype()));
            let (k_room, v_room) = (empty([b, h, dh, room]), empty([b, h, room, dh]));
            let k = Tensor::cat(vec![past_k.narrow(3, 0, len), k, k_room], 3);
            (k, Tensor::cat(vec![past_v.narrow(2, 0, len), v, v_room], 2))
        };
        Self { k, v, len: len + more }
    }
}

impl KvCache {
    /// An empty cache for `rows` rows of a model with `layers` blocks.
    pub fn new(layers: usize, rows: usize) -> Self {
        Self { layers: vec![None; layers], slots: vec![vec![]; rows], for_one_call: false }
    }

    /// A cache for a single call: only one layer's keys and values are in memory at a time.
    pub fn for_one_call(layers: usize, rows: usize) -> Self {
        Self { for_one_call: true, ..Self::new(layers, rows) }
    }

    pub fn rows(&self) -> usize {
        self.slots.len()
    }

    /// Slots of the shared axis `T`, holes included.
    pub fn width(&self) -> usize {
        self.slots.first().map_or(0, Vec::len)
    }

    /// `[B][T]`: the true position in each slot; `None` is a hole.
    pub fn slots(&self) -> &[Vec<Option<usize>>] {
        &self.slots
    }

    /// Keys and values of one layer, if anything was appended: `[B, Hkv, T, dh]`.
    pub fn layer(&self, layer: usize) -> Option<(Tensor<4>, Tensor<4>)> {
        self.layers.get(layer).and_then(Option::as_ref).map(LayerCache::get)
    }

    /// Opens slots for a span; the model then appends each layer's keys and values.
    ///
    /// # Errors
    /// Another batch size; a position that the row has already, or before its last one.
    pub(super) fn open(&mut self, span: &Span) -> Result<()> {
        ensure!(
            span.rows.len() == self.rows(),
            "the cache has {} rows, the span {}: repeat or keep the cache's rows first",
            self.rows(),
            span.rows.len()
        );
        ensure!(!self.for_one_call || self.width() == 0, "this cache was made for a single call, which has happened");
        for (b, slots) in self.slots.iter_mut().enumerate() {
            let mut last = slots.iter().rev().find_map(|slot| *slot);
            for (index, step) in span.steps[b].iter().enumerate() {
                let position = step.map(|_| span.positions[b][index]);
                if let (Some(position), Some(last)) = (position, last) {
                    ensure!(
                        position > last,
                        "row {b} of the span feeds position {position} after position {last}: positions must increase"
                    );
                }
                last = position.or(last);
                slots.push(position);
            }
        }
        Ok(())
    }

    /// Appends a span's keys and values `[B, Hkv, L, dh]`; returns all of the layer's, `[B, Hkv, T, dh]`.
    pub(super) fn append(&mut self, layer: usize, k: Tensor<4>, v: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        if self.for_one_call {
            return (k, v);
        }
        let held = match self.layers[layer].take() {
            Some(held) => held.push(k, v),
            None => LayerCache::exact(k, v),
        };
        self.layers[layer].insert(held).get()
    }

    /// [`Self::append`] of heads before normalisation and rotation; returns the queries, and all of the layer's keys and values. `None` if
    /// no single kernel does it: nothing is appended then.
    pub(super) fn append_heads(&mut self, layer: usize, heads: &Heads) -> Option<[Tensor<4>; 3]> {
        if self.for_one_call {
            return None;
        }
        let (held, q) = self.layers[layer].take()?.push_heads(heads);
        let held = self.layers[layer].insert(held);
        let q = q?;
        let (k, v) = held.get();
        Some([q, k, v])
    }

    /// Whether the positions of some row exceed such a window.
    pub(super) fn reaches_beyond(&self, window: usize) -> bool {
        let spread = |row: &Vec<Option<usize>>| {
            let mut held = row.iter().flatten();
            held.next().is_some_and(|first| held.next_back().is_some_and(|last| last - first >= window))
        };
        self.slots.iter().any(spread)
    }

    /// Additive mask `[B, 1, L, T]` for the queries of the last `width` slots, each with a window of the last `window` positions, or all;
    /// `None` if every query sees every slot.
    pub(super) fn mask(&self, width: usize, window: Option<usize>, dtype: DType, device: &Device) -> Option<Tensor<4>> {
        let t = self.width();
        let past = t - width;
        let full = self.slots.iter().all(|row| row.iter().all(Option::is_some));
        if width == 1 && full && window.is_none() {
            return None;
        }
        if width > 1 && !ops::is_cpu(device) {
            let held: Vec<bool> = self.slots.iter().flatten().map(Option::is_some).collect();
            let mask = ops::causal_mask(&held, [self.rows(), width, t], dtype, device);
            return Some(match window {
                Some(window) => mask.mask_fill(self.beyond(width, window, device), ops::mask_value(dtype)),
                None => mask,
            });
        }
        let mut visible = Vec::with_capacity(self.rows() * width * t);
        for row in &self.slots {
            for query in 0..width {
                // A hole's output is not used.
                let nearest = row[past + query].zip(window).map_or(0, |(own, window)| (own + 1).saturating_sub(window));
                let seen = |(slot, held): (usize, &Option<usize>)| {
                    slot <= past + query && held.is_some_and(|position| position >= nearest)
                };
                visible.extend(row.iter().enumerate().map(seen));
            }
        }
        Some(ops::additive_mask(&visible, [self.rows(), width, t], dtype, device))
    }

    /// `[B, 1, L, T]`: true where a slot is before the window of a query. Computed on the device.
    fn beyond(&self, width: usize, window: usize, device: &Device) -> Tensor<4, Bool> {
        let (b, t) = (self.rows(), self.width());
        let positions: Vec<i64> = self.slots.iter().flatten().map(|held| held.unwrap_or(0) as i64).collect();
        let keys = Tensor::<2, Int>::from_data(TensorData::new(positions, [b, t]), device);
        let queries = keys.clone().narrow(1, t - width, width).reshape([b, 1, width, 1]).expand([b, 1, width, t]);
        let first = queries.sub_scalar(window as i64 - 1);
        keys.reshape([b, 1, 1, t]).expand([b, 1, width, t]).lower(first)
    }

    /// The named rows, in that order; a row may be named more than once.
    #[must_use]
    pub fn keep(&self, rows: &[usize]) -> Self {
        let pick = |x: &Tensor<4>| x.clone().select(0, index(rows, &x.device()));
        // With their room: the next step writes into it.
        let kept = |held: &LayerCache| LayerCache { k: pick(&held.k), v: pick(&held.v), len: held.len };
        let layers = self.layers.iter().map(|layer| layer.as_ref().map(kept));
        let slots = rows.iter().map(|&row| self.slots[row].clone());
        Self { layers: layers.collect(), slots: slots.collect(), for_one_call: self.for_one_call }
    }

    /// [`Self::keep`], but only the positions that each row `sees`; the others become holes.
    #[must_use]
    pub(crate) fn keep_seeing(&self, rows: &[usize], sees: impl Fn(usize, usize) -> bool) -> Self {
        let mut kept = self.keep(rows);
        for (row, slots) in kept.slots.iter_mut().enumerate() {
            slots.iter_mut().for_each(|slot| *slot = slot.filter(|&position| sees(row, position)));
        }
        kept
    }

    /// The rows of several caches of one model as one batch; shorter ones get holes at the end.
    #[must_use]
    pub fn join(parts: &[&Self]) -> Self {
        let width = parts.iter().map(|part| part.width()).max().unwrap_or(0);
        let layers = parts.iter().map(|part| part.layers.len()).max().unwrap_or(0);
        let padded = |x: Tensor<4>| {
            let [b, h, t, dh] = x.dims();
            if t == width {
                return x;
            }
            let holes = Tensor::zeros([b, h, width - t, dh], (&x.device(), x.dtype()));
            Tensor::cat(vec![x, holes], 2)
        };
        let joined = |layer: usize| {
            let held: Option<Vec<_>> = parts.iter().map(|part| part.layer(layer)).collect();
            let (k, v): (Vec<_>, Vec<_>) = held?.into_iter().map(|(k, v)| (padded(k), padded(v))).unzip();
            (!k.is_empty()).then(|| LayerCache::exact(Tensor::cat(k, 0), Tensor::cat(v, 0)))
        };
        let slots = parts.iter().flat_map(|part| part.slots.clone());
        let slots = slots.map(|mut row: Vec<Option<usize>>| {
            row.resize(width, None);
            row
        });
        Self { layers: (0..layers).map(joined).collect(), slots: slots.collect(), for_one_call: false }
    }

    /// One layer of the first row's first `width` slots, repeated `rows` times; the other layers are empty.
    pub(super) fn of_layer(&self, layer: usize, width: usize, rows: usize) -> Self {
        let cut = |x: Tensor<4>| x.narrow(0, 0, 1).narrow(2, 0, width).repeat_dim(0, rows);
        let mut layers = vec![None; self.layers.len()];
        if width * rows > 0 {
            layers[layer] = self.layer(layer).map(|(k, v)| LayerCache::exact(cut(k), cut(v)));
        }
        Self { layers, slots: vec![self.slots[0][..width].to_vec(); rows], for_one_call: false }
    }

    /// Moves one layer of two caches with the same positions into this one, concatenated along rows.
    pub(super) fn take_layer(&mut self, layer: usize, parts: [Self; 2]) {
        let parts: Vec<&Self> = parts.iter().filter(|part| part.rows() > 0).collect();
        let mut joined = Self::join(&parts);
        self.layers[layer] = joined.layers[layer].take();
        self.slots = joined.slots;
    }

    /// The first `width` slots.
    #[must_use]
    pub fn truncate(&self, width: usize) -> Self {
        let width = width.min(self.width());
        if width == 0 {
            return Self::new(self.layers.len(), self.rows());
        }
        self.map(|x| x.narrow(2, 0, width), self.slots.iter().map(|row| row[..width].to_vec()).collect())
    }

    /// The same values without a graph.
    #[must_use]
    pub fn detach(&self) -> Self {
        self.map(Tensor::detach, self.slots.clone())
    }

    /// The first `width` slots of a cache outside autodiff, as leaves of a new graph.
    #[must_use]
    pub(crate) fn leaves(&self, width: usize) -> Self {
        let held = self.truncate(width);
        held.map(|x| Tensor::from_inner(x).require_grad(), held.slots.clone())
    }

    /// The same values on the device without autodiff.
    #[must_use]
    pub fn without_autodiff(&self) -> Self {
        self.map(Tensor::without_autodiff, self.slots.clone())
    }

    /// Appends the last `width` slots of `other`, as constants, to this cache's values, which may carry gradients.
    pub(crate) fn extend_from(&mut self, other: &Self, width: usize) {
        let from = other.width() - width;
        for (mine, theirs) in self.layers.iter_mut().zip(&other.layers) {
            let Some((k, v)) = theirs.as_ref().map(LayerCache::get) else { continue };
            let tail = |x: Tensor<4>| x.narrow(2, from, width);
            *mine = Some(match mine.take() {
                Some(held) => {
                    let like = |x: Tensor<4>| if held.k.is_autodiff() { Tensor::from_inner(x) } else { x };
                    let (k, v) = (like(tail(k)), like(tail(v)));
                    held.push(k, v)
                }
                None => LayerCache::exact(tail(k), tail(v)),
            });
        }
        for (mine, theirs) in self.slots.iter_mut().zip(&other.slots) {
            mine.extend_from_slice(&theirs[from..]);
        }
    }

    fn map(&self, f: impl Fn(Tensor<4>) -> Tensor<4>, slots: Vec<Vec<Option<usize>>>) -> Self {
        let each = |held: &LayerCache| {
            let (k, v) = held.get();
            LayerCache::exact(f(k), f(v))
        };
        let layers = self.layers.iter().map(|layer| layer.as_ref().map(each));
        Self { layers: layers.collect(), slots, for_one_call: self.for_one_call }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Step;

    /// Two rows, padded on either side, in two calls: visible positions of each query, as computed on the host and on a device.
    #[test]
    fn a_window_hides_what_lies_further_back() {
        let device: Device = Default::default();
        let mut cache = KvCache::new(1, 2);
        let lengths = [[3, 2], [2, 2]];
        for (call, width) in [(0, 3), (1, 2)] {
            let lead = |row: usize| width - lengths[row][call];
            let before = |row: usize| if call == 0 { 0 } else { lengths[row][0] };
            let positions = |row| (0..width).map(|i: usize| before(row) + i.saturating_sub(lead(row))).collect();
            let steps = |row| (0..width).map(|i| (i >= lead(row)).then_some(Step::Prompt)).collect();
            let span = Span {
                rows: vec![0, 1],
                positions: (0..2).map(positions).collect(),
                steps: (0..2).map(steps).collect(),
            };
            assert!(!cache.reaches_beyond(3));
            cache.open(&span).expect("positions increase");
        }
        let shown = |mask: Tensor<4>| mask.try_into_vec_as::<f32>().expect("values").into_iter().map(|x| x == 0.0);
        let seen: Vec<bool> = shown(cache.mask(2, Some(2), DType::F32, &device).expect("a mask")).collect();
        // Row 0 has 0 1 2 3 4, queries 3 and 4; row 1 has - 0 1 2 3, queries 2 and 3.
        let last_two = [[false, false, true, true, false], [false, false, false, true, true]];
        assert_eq!(seen, [last_two, last_two].concat().concat());
        let held: Vec<bool> = cache.slots().iter().flatten().map(Option::is_some).collect();
        let made =
            ops::causal_mask(&held, [2, 2, 5], DType::F32, &device).mask_fill(cache.beyond(2, 2, &device), ops::MASKED);
        assert_eq!(shown(made).collect::<Vec<_>>(), seen);
        let row = cache.keep(&[1]);
        assert!(row.reaches_beyond(3) && !row.reaches_beyond(4));
    }
}
