//! Runs in which one node's output is replaced at some positions. Knows rows and values; where the values come from is the
//! caller's business.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use anyhow::{Context, Result};
use burn::tensor::Tensor;

use crate::latent::{Gradient, LatentSource, Piece, Sequence, Stream, unroll};
use crate::model::config::ModelConfig;
use crate::model::hooks::{Place, Site};
use crate::model::{Activation, Decoder, HookPoint, HookSpec, Hooks, PointKind, Trunk};
use crate::schema::Component;
use crate::study::Study;
use crate::study::readout::{lead, logits};

/// Rows that run at once.
const ROWS: usize = 256;

/// Something that can be patched at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// A head's `z`: (layer, head).
    Head(usize, usize),
    /// What an MLP adds to the stream.
    Mlp(usize),
    /// The stream: 0 is the input of the first block, l the output of the l-th (from 1).
    Resid(usize),
}

impl Node {
    /// Every head, MLP and stream of a model.
    pub fn all(config: &ModelConfig) -> Vec<Self> {
        let layers = 0..config.num_hidden_layers;
        let heads = layers.clone().flat_map(|l| (0..config.num_attention_heads).map(move |h| Node::Head(l, h)));
        heads.chain(layers.map(Node::Mlp)).chain((0..=config.num_hidden_layers).map(Node::Resid)).collect()
    }

    pub fn point(self) -> HookPoint {
        match self {
            Node::Head(layer, _) => HookPoint::at(layer, PointKind::Z),
            Node::Mlp(layer) => HookPoint::at(layer, PointKind::MlpOut),
            Node::Resid(0) => HookPoint::at(0, PointKind::ResidPre),
            Node::Resid(layer) => HookPoint::at(layer - 1, PointKind::ResidPost),
        }
    }

    /// The block from which on it changes anything.
    fn start(self, model: &Decoder) -> usize {
        match self {
            Node::Head(layer, _) | Node::Mlp(layer) => layer,
            Node::Resid(layer) => layer.min(model.layers.len() - 1),
        }
    }

    /// Where a run that begins with that block meets it: the stream at the block's input.
    fn seen(self, model: &Decoder) -> HookPoint {
        match self {
            Node::Resid(layer) if layer < model.layers.len() => HookPoint::at(layer, PointKind::ResidPre),
            node => node.point(),
        }
    }

    /// As rows name it: what it is, its layer, its head.
    pub fn named(self) -> (Component, usize, Option<usize>) {
        match self {
            Node::Head(layer, head) => (Component::Head, layer, Some(head)),
            Node::Mlp(layer) => (Component::Mlp, layer, None),
            Node::Resid(layer) => (Component::Resid, layer, None),
        }
    }

    /// Its part of the values at its point.
    pub fn part(self, config: &ModelConfig) -> Range<usize> {
        match self {
            Node::Head(_, head) => head * config.head_dim..(head + 1) * config.head_dim,
            _ => 0..config.hidden_size,
        }
    }
}

/// The distinct hook points of some nodes.
pub fn points(nodes: impl IntoIterator<Item = Node>) -> Vec<HookPoint> {
    let points: BTreeSet<HookPoint> = nodes.into_iter().map(Node::point).collect();
    points.into_iter().collect()
}

/// Values of one row: by point and position, heads side by side.
pub(crate) type RowCapture = HashMap<(HookPoint, usize), Vec<f32>>;

/// Runs rows of any lengths and keeps what stands at `points` at the positions that `wanted` names (index of the row,
/// position).
///
/// # Errors
/// A point without a row of values for each position, and as the model's.
pub fn record(
    study: &Study,
    rows: &[Sequence],
    points: &[HookPoint],
    wanted: impl Fn(usize, usize) -> bool,
) -> Result<Vec<RowCapture>> {
    record_of(&study.model, &study.reasoning.source, rows, points, wanted)
}

/// [`record`] of another model.
pub(crate) fn record_of(
    model: &Decoder,
    source: &dyn LatentSource,
    rows: &[Sequence],
    points: &[HookPoint],
    wanted: impl Fn(usize, usize) -> bool,
) -> Result<Vec<RowCapture>> {
    let held = RefCell::new(vec![RowCapture::new(); rows.len()]);
    let mut hooks = Hooks::none();
    for point in points {
        let spec = HookSpec::all(point);
        let (held, wanted) = (&held, &wanted);
        hooks.observe(&spec, model.layers.len(), move |site, value| {
            let mut held = held.borrow_mut();
            for (place, values) in site.values(value, |place| wanted(place.batch, place.position))? {
                held[place.batch].insert((site.point, place.position), values);
            }
            Ok(())
        })?;
    }
    unroll(model, rows, source, Gradient::Through, &mut hooks)?;
    drop(hooks);
    Ok(held.into_inner())
}

/// A node's output at some positions, to be put in place of a run's own. Without values: the run as it is.
#[derive(Clone, Debug)]
pub struct Patch {
    pub node: Node,
    pub values: Vec<(usize, Vec<f32>)>,
}

impl Patch {
    /// Of a run as it is.
    pub const NONE: Self = Self { node: Node::Resid(0), values: vec![] };

    /// What another run held there.
    ///
    /// # Errors
    /// A place that the other run lacks.
    pub fn from(held: &RowCapture, node: Node, positions: &[usize], config: &ModelConfig) -> Result<Self> {
        let value = |&position: &usize| {
            let all = held.get(&(node.point(), position)).context("a place that the other run lacks")?;
            Ok((position, all[node.part(config)].to_vec()))
        };
        Ok(Self { node, values: positions.iter().map(value).collect::<Result<_>>()? })
    }
}

/// The lead of `says[0]`'s logit over `says[1]`'s at the row's end, once for every patch of the row. A patch changes nothing before its
/// first position, nor at positions up to the next latent below its block: that is computed once for all.
pub fn leads(study: &Study, row: &Sequence, patches: &[Patch], says: [u32; 2]) -> Result<Vec<f64>> {
    let (model, end) = (&study.model, row.ids.len());
    // With windows or caps a shared beginning is off by more than rounding, for a reason that is not known: all is run.
    let extras = &model.config().extras;
    // States that are mixed into text pass a patch on: all is run there too.
    let mixes = study.reasoning.source.mixing().is_some();
    let shared = !mixes && extras.sliding.is_none() && extras.attention_cap.is_none() && extras.logit_cap.is_none();
    let trunk = shared.then(|| trunk(study, row)).transpose()?;
    let first = |i: &usize| patches[*i].values.iter().map(|(position, _)| *position).min().unwrap_or(end - 1);
    let start =
        |i: &usize| if patches[*i].values.is_empty() { model.layers.len() } else { patches[*i].node.start(model) };
    let mut order: Vec<usize> = (0..patches.len()).collect();
    order.sort_by_key(|i| (first(i), start(i)));
    let mut out = vec![0.0; patches.len()];
    for group in order.chunk_by(|a, b| first(a) == first(b)).flat_map(|group| group.chunks(ROWS)) {
        let from = first(&group[0]);
        let until = (from + 1..end).find(|&p| row.is_latent(p)).unwrap_or(end);
        let mine: Vec<&Patch> = group.iter().map(|&i| &patches[i]).collect();
        let mut hooks = Hooks::none();
        let changed = mine.iter().filter(|p| !p.values.is_empty());
        let points: BTreeSet<HookPoint> = changed.map(|p| p.node.seen(model)).collect();
        for point in points {
            let (spec, mine) = (HookSpec::all(point), &mine);
            hooks.replace(&spec, model.layers.len(), move |site, value| replaced(model, site, value, mine))?;
        }
        let mut stream = match &trunk {
            None => Stream::new(model, &study.reasoning.source, Gradient::Through, vec![0; group.len()]),
            Some(trunk) => {
                let starts: Vec<usize> = group.iter().map(start).collect();
                let (ends, cache) = model.branch(trunk, &starts, (from..until, &row.steps[from..until]), &mut hooks)?;
                let cache = cache.unwrap_or_else(|| model.cache(group.len()));
                let fed = (vec![0; group.len()], vec![until; group.len()]);
                Stream::begun(model, &study.reasoning.source, fed, (cache, Some(ends)))
            }
        };
        feed(&mut stream, row, if trunk.is_some() { until } else { 0 }..end, &mut hooks)?;
        let ends = stream.last().cloned().context("a row without positions")?;
        for (&i, logits) in group.iter().zip(logits(model, ends)?) {
            out[i] = lead(&logits, says);
        }
    }
    Ok(out)
}

/// Runs a row and keeps its stream, keys and values.
fn trunk(study: &Study, row: &Sequence) -> Result<Trunk> {
    let model = &study.model;
    let layers = model.layers.len();
    let held = RefCell::new(vec![vec![]; layers + 1]);
    let mut hooks = Hooks::none();
    for layer in 0..=layers {
        let held = &held;
        hooks.observe(&HookSpec::all(Node::Resid(layer).seen(model)), layers, move |_, value| {
            held.borrow_mut()[layer].push(value.clone().three()?);
            Ok(())
        })?;
    }
    let mut stream = Stream::new(model, &study.reasoning.source, Gradient::Through, vec![0]);
    feed(&mut stream, row, 0..row.ids.len(), &mut hooks)?;
    drop(hooks);
    let cache = stream.cache().clone();
    Ok(Trunk { stream: held.into_inner().into_iter().map(|parts| Tensor::cat(parts, 1)).collect(), cache })
}

/// Feeds all rows of a stream some positions of one row, up to each latent in turn.
fn feed(stream: &mut Stream, row: &Sequence, positions: Range<usize>, hooks: &mut Hooks) -> Result<()> {
    let mut at = positions.start;
    while at < positions.end {
        let piece = next_piece(row, &mut at, positions.end);
        stream.advance(&vec![piece; stream.rows().len()], hooks)?;
    }
    Ok(())
}

/// What a row is fed next: from its cursor up to a latent or to an end.
pub(super) fn next_piece(row: &Sequence, cursor: &mut usize, end: usize) -> Piece {
    let from = *cursor;
    *cursor = (from + 1..end).find(|&p| row.is_latent(p)).unwrap_or(end).max(from);
    Piece { ids: row.ids[from..*cursor].to_vec(), steps: row.steps[from..*cursor].to_vec() }
}

/// `patches` in the order of the batch.
fn replaced(model: &Decoder, site: &Site, value: Activation, patches: &[&Patch]) -> Result<Activation> {
    let here = |place: &&Place| patches[place.batch].node.seen(model) == site.point;
    let new = |place: &Place| -> Option<&Vec<f32>> {
        let values = patches[place.batch].values.iter();
        values.filter(|(position, _)| *position == place.position).map(|(_, new)| new).next()
    };
    let mine: Vec<_> = site.places.iter().filter(here).filter_map(|place| Some((place, new(place)?))).collect();
    if mine.is_empty() {
        return Ok(value);
    }
    let (mut data, dims) = (value.to_vec()?, value.dims());
    for (place, new) in mine {
        let part = patches[place.batch].node.part(model.config());
        let from = (place.batch * dims[1] + place.index) * dims[2..].iter().product::<usize>();
        data[from + part.start..from + part.end].copy_from_slice(new);
    }
    Ok(value.with_values(data))
}
