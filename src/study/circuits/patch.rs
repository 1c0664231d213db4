//! Activation patching: forwards with one node's output replaced at some positions. Knows sequences and values; the caller decides
//! where values come from.

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

/// Batch size.
const ROWS: usize = 256;

/// A node that can be patched at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// A head's `z`: (layer, head).
    Head(usize, usize),
    /// Output of an MLP.
    Mlp(usize),
    /// The stream: 0 is the input of the first block, l the output of block l (from 1).
    Resid(usize),
}

impl Node {
    /// Every head, MLP and stream of a model.
    pub fn all_nodes(config: &ModelConfig) -> Vec<Self> {
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

    /// The first block that sees the change.
    fn start(self, model: &Decoder) -> usize {
        match self {
            Node::Head(layer, _) | Node::Mlp(layer) => layer,
            Node::Resid(layer) => layer.min(model.layers.len() - 1),
        }
    }

    /// The hook point in a forward that starts at that block: the stream at the block's input.
    fn point_at_start(self, model: &Decoder) -> HookPoint {
        match self {
            Node::Resid(layer) if layer < model.layers.len() => HookPoint::at(layer, PointKind::ResidPre),
            node => node.point(),
        }
    }

    /// Its name in records: component, layer, head.
    pub fn name_parts(self) -> (Component, usize, Option<usize>) {
        match self {
            Node::Head(layer, head) => (Component::Head, layer, Some(head)),
            Node::Mlp(layer) => (Component::Mlp, layer, None),
            Node::Resid(layer) => (Component::Resid, layer, None),
        }
    }

    /// Its range in the values at its point.
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

/// Activations of one sequence by point and position, heads concatenated.
pub(crate) type RowCapture = HashMap<(HookPoint, usize), Vec<f32>>;

/// Runs sequences of any lengths and returns the activations at `points` at the positions that `wanted` selects (index of the
/// sequence, position).
///
/// # Errors
/// A point without values per position; failures of the model.
pub fn record(
    study: &Study,
    rows: &[Sequence],
    points: &[HookPoint],
    wanted: impl Fn(usize, usize) -> bool,
) -> Result<Vec<RowCapture>> {
    record_of(&study.model, &study.reasoning.source, rows, points, wanted)
}

/// [`record`] for another model.
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

/// Replacement of a node's output at some positions. Without values: the unchanged run.
#[derive(Clone, Debug)]
pub struct Patch {
    pub node: Node,
    pub values: Vec<(usize, Vec<f32>)>,
}

impl Patch {
    /// The unchanged run.
    pub const NONE: Self = Self { node: Node::Resid(0), values: vec![] };

    /// Values from another run.
    pub fn from_run(held: &RowCapture, node: Node, positions: &[usize], config: &ModelConfig) -> Result<Self> {
        let value = |&position: &usize| {
            let all = held.get(&(node.point(), position)).context("a position that the other run lacks")?;
            Ok((position, all[node.part(config)].to_vec()))
        };
        Ok(Self { node, values: positions.iter().map(value).collect::<Result<_>>()? })
    }
}

/// Logit difference (`says[0]` minus `says[1]`) at the sequence's end for every patch. The positions before a patch's first one, and
/// the blocks below it up to the next latent, do not change: they are computed once for all.
pub fn leads(study: &Study, row: &Sequence, patches: &[Patch], says: [u32; 2]) -> Result<Vec<f64>> {
    let (model, end) = (&study.model, row.ids.len());
    // With windows or caps a shared prefix differs by more than rounding, for an unknown reason: all is recomputed.
    let extras = &model.config().extras;
    // States mixed into text propagate a patch: all is recomputed.
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
        let points: BTreeSet<HookPoint> = changed.map(|p| p.node.point_at_start(model)).collect();
        for point in points {
            let (spec, mine) = (HookSpec::all(point), &mine);
            hooks.replace(&spec, model.layers.len(), move |site, value| apply_patches(model, site, value, mine))?;
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

/// Runs a sequence and returns its stream, keys and values.
fn trunk(study: &Study, row: &Sequence) -> Result<Trunk> {
    let model = &study.model;
    let layers = model.layers.len();
    let held = RefCell::new(vec![vec![]; layers + 1]);
    let mut hooks = Hooks::none();
    for layer in 0..=layers {
        let held = &held;
        hooks.observe(&HookSpec::all(Node::Resid(layer).point_at_start(model)), layers, move |_, value| {
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

/// Feeds some positions of one sequence to all rows of a stream, up to each latent in turn.
fn feed(stream: &mut Stream, row: &Sequence, positions: Range<usize>, hooks: &mut Hooks) -> Result<()> {
    let mut at = positions.start;
    while at < positions.end {
        let piece = next_piece(row, &mut at, positions.end);
        stream.advance(&vec![piece; stream.rows().len()], hooks)?;
    }
    Ok(())
}

/// The next piece to feed: from the cursor up to a latent or to `end`.
pub(super) fn next_piece(row: &Sequence, cursor: &mut usize, end: usize) -> Piece {
    let from = *cursor;
    *cursor = (from + 1..end).find(|&p| row.is_latent(p)).unwrap_or(end).max(from);
    Piece { ids: row.ids[from..*cursor].to_vec(), steps: row.steps[from..*cursor].to_vec() }
}

/// `patches`: one per batch row.
fn apply_patches(model: &Decoder, site: &Site, value: Activation, patches: &[&Patch]) -> Result<Activation> {
    let here = |place: &&Place| patches[place.batch].node.point_at_start(model) == site.point;
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
