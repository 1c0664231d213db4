//! Every hook point of a run, by row and position, whatever the calls in which it was computed.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::reference::values;
use crate::model::checkpoint::HostTensor;
use crate::model::hooks::{Activation, Site};
use crate::model::{Decoder, HookPoint, HookSpec, Hooks, KvCache, ModelConfig, PointKind, Span, Step};

/// `(point, row)` → position → values. Scores and pattern hold, per head, the keys up to the position: those unmasked.
pub type Recordings = BTreeMap<(String, usize), BTreeMap<usize, Vec<f32>>>;

/// Points of the decoder itself; `hook_result` is left out (it changes how the output is computed).
pub fn points(config: &ModelConfig) -> Vec<HookPoint> {
    let ours = |k: PointKind| {
        !matches!(
            k,
            PointKind::Result | PointKind::LatentSource | PointKind::LatentInjected | PointKind::BoundaryLogits
        )
    };
    let all = HookPoint::all(config.num_hidden_layers).into_iter();
    all.filter(|p| ours(p.kind) && p.is_in(config)).collect()
}

struct Recorder<'m> {
    config: &'m ModelConfig,
    found: Recordings,
    /// What the cache's slots hold, per point and batch row.
    slots: BTreeMap<HookPoint, Vec<Vec<Option<usize>>>>,
}

impl Recorder<'_> {
    fn take(&mut self, site: &Site, value: &Activation) -> Result<()> {
        let (dims, data) = (value.dims(), value.to_vec()?);
        let span = site.span;
        let slots = self.slots.entry(site.point).or_insert_with(|| vec![vec![]; span.rows.len()]);
        for (slots, (steps, at)) in slots.iter_mut().zip(span.steps.iter().zip(&span.positions)) {
            slots.extend(steps.iter().zip(at).map(|(step, &position)| step.map(|_| position)));
        }
        for place in site.places {
            let kept = if matches!(site.point.kind, PointKind::AttnScores | PointKind::Pattern) {
                let (h, l, t) = (dims[1], dims[2], dims[3]);
                let window = site.point.layer.and_then(|layer| self.config.window(layer));
                let nearest = window.map_or(0, |window| (place.position + 1).saturating_sub(window));
                let mut kept = vec![0.0; h * (place.position + 1)];
                for head in 0..h {
                    let from = ((place.batch * h + head) * l + place.index) * t;
                    for (slot, position) in slots[place.batch].iter().enumerate() {
                        match position {
                            Some(p) if (nearest..=place.position).contains(p) => {
                                kept[head * (place.position + 1) + p] = data[from + slot];
                            }
                            _ if site.point.kind == PointKind::Pattern => {
                                ensure!(data[from + slot] == 0.0, "{}: a masked key is attended to", site.point);
                            }
                            _ => {}
                        }
                    }
                }
                kept
            } else {
                let tail: usize = dims[2..].iter().product();
                let from = (place.batch * dims[1] + place.index) * tail;
                data[from..from + tail].to_vec()
            };
            self.found.entry((site.point.to_string(), place.row)).or_default().insert(place.position, kept);
        }
        Ok(())
    }
}

/// One call: ids `[B][L]` and their positions.
pub struct Call {
    pub ids: Vec<Vec<u32>>,
    pub span: Span,
}

/// Runs the calls over one cache; final hidden states and logits are recorded under those names.
pub fn record(model: &Decoder, calls: &[Call]) -> Result<Recordings> {
    let layers = model.config().num_hidden_layers;
    let recorder = RefCell::new(Recorder { config: model.config(), found: Recordings::new(), slots: BTreeMap::new() });
    let mut hooks = Hooks::none();
    for point in points(model.config()) {
        let spec = HookSpec::all(point);
        hooks.observe(&spec, layers, |site, value| recorder.borrow_mut().take(site, value))?;
    }
    let mut cache: Option<KvCache> = None;
    for call in calls {
        let cache = cache.get_or_insert_with(|| model.cache(call.ids.len()));
        let x = model.embed(&call.ids)?;
        let hidden = model.hidden(x, &call.span, cache, &mut hooks)?;
        let [_, l, d] = hidden.dims();
        let logits = model.unembed(hidden.clone());
        let v = logits.dims()[2];
        let (hidden, logits) = (values(&hidden)?, values(&logits)?);
        let mut recorder = recorder.borrow_mut();
        for (b, steps) in call.span.steps.iter().enumerate() {
            for (i, _) in steps.iter().enumerate().filter(|(_, s)| s.is_some()) {
                let (row, position, flat) = (call.span.rows[b], call.span.positions[b][i], b * l + i);
                let mut put = |name: &str, data: &[f32]| {
                    recorder.found.entry((name.to_owned(), row)).or_default().insert(position, data.to_vec());
                };
                put("final_hidden", &hidden[flat * d..(flat + 1) * d]);
                put("logits", &logits[flat * v..(flat + 1) * v]);
            }
        }
    }
    hooks.finish()?;
    drop(hooks);
    Ok(recorder.into_inner().found)
}

/// Rows padded with token 0.
pub fn padded(rows: &[Vec<u32>], left: bool) -> Call {
    let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
    let width = lengths.iter().copied().max().unwrap_or(0);
    let pad = |row: &Vec<u32>| {
        let holes = vec![0; width - row.len()];
        if left { [holes, row.clone()].concat() } else { [row.clone(), holes].concat() }
    };
    Call { ids: rows.iter().map(pad).collect(), span: Span::prompts(&lengths, left) }
}

/// One row in pieces: positions `cuts[i]..cuts[i + 1]` a call.
pub fn pieces(rows: &[Vec<u32>], row: usize, cuts: &[usize]) -> Vec<Call> {
    let one = |w: &[usize]| {
        let span = Span { rows: vec![row], ..Span::single_row(w[0], w[1] - w[0]) };
        Call { ids: vec![rows[row][w[0]..w[1]].to_vec()], span }
    };
    cuts.windows(2).map(one).collect()
}

/// All rows together: a ragged first call, then one token at a time; rows that have ended are padding.
pub fn ragged(rows: &[Vec<u32>], first: &[usize]) -> Vec<Call> {
    let prefixes: Vec<Vec<u32>> = rows.iter().zip(first).map(|(row, &n)| row[..n].to_vec()).collect();
    let mut calls = vec![padded(&prefixes, false)];
    let longest = rows.iter().zip(first).map(|(row, n)| row.len() - n).max().unwrap_or(0);
    for step in 0..longest {
        let at = |b: usize| first[b] + step;
        let token = |b: usize| rows[b].get(at(b)).copied();
        calls.push(Call {
            ids: (0..rows.len()).map(|b| vec![token(b).unwrap_or(0)]).collect(),
            span: Span {
                rows: (0..rows.len()).collect(),
                positions: (0..rows.len()).map(|b| vec![at(b)]).collect(),
                steps: (0..rows.len()).map(|b| vec![token(b).map(|_| Step::Prompt)]).collect(),
            },
        });
    }
    calls
}

/// A reference tensor of one row, in the form of [`Recordings`].
pub fn by_position(reference: &HostTensor, attention: bool) -> BTreeMap<usize, Vec<f32>> {
    let shape = &reference.shape;
    let position = |p: usize| {
        if !attention {
            let tail: usize = shape[2..].iter().product();
            return reference.data[p * tail..(p + 1) * tail].to_vec();
        }
        let (h, l) = (shape[1], shape[2]);
        (0..h).flat_map(|head| reference.data[(head * l + p) * l..(head * l + p) * l + p + 1].to_vec()).collect()
    };
    (0..if attention { shape[2] } else { shape[1] }).map(|p| (p, position(p))).collect()
}
