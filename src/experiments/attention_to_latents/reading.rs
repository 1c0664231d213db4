//! Attention patterns of known sequences, summed by class of query and key during the forward; no pattern is stored. Knows nothing of
//! records or intervals.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use ndarray::Array2;

use crate::latent::Sequence;
use crate::model::hooks::Site;
use crate::model::{Activation, Decoder, HookSpec, Hooks, PointKind};
use crate::nth::Nth;
use crate::schema::Form;
use crate::study::Study;
use crate::study::circuits::{At, Role, SolutionForms};
use crate::study::readout::{Rivals, directions, logits, writes};

/// A class of queries or keys, as named in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Class {
    pub role: Role,
    /// For a query: whether it is the position that decides the answer.
    pub answer: bool,
    /// For a key: blocks between it and the query, 0 for the query's own or, outside a block, for the last one before it; all from [`FAR`]
    /// on are one class. `None` for keys outside blocks.
    pub back: Option<usize>,
}

/// Blocks further back than this form one class.
const FAR: usize = 2;

impl Class {
    /// `latent[2]`, `clause[2]`, `swi`, `swi_end`, `text`, `prompt`, `answer`.
    pub fn name(&self, form: Form) -> String {
        match self.role {
            _ if self.answer => "answer".into(),
            Role::Prompt => "prompt".into(),
            Role::Text => "text".into(),
            Role::Swi => "swi".into(),
            Role::SwiEnd => "swi_end".into(),
            Role::Step(k) => format!("{}[{}]", if form == Form::Latents { "latent" } else { "clause" }, Nth::new(k)),
        }
    }
}

/// The class of each response position as a query; `None` in the prompt.
fn query(roles: &[At], position: usize, answer: Option<usize>) -> Option<Class> {
    match roles[position].role {
        _ if answer == Some(position) => Some(ANSWER),
        Role::Prompt => None,
        role => Some(Class { role, answer: false, back: None }),
    }
}

/// The position that decides the answer, whatever its role.
const ANSWER: Class = Class { role: Role::Text, answer: true, back: None };

/// The class of a key relative to a query. Every key has one, so that a query's classes cover its whole pattern.
fn key(roles: &[At], query: usize, key: usize) -> Class {
    let At { role, block } = roles[key];
    let plain = matches!(role, Role::Prompt | Role::Text);
    let back = block.zip(roles[query].block).filter(|_| !plain).map(|(key, query)| (query - key).min(FAR));
    Class { role, answer: false, back }
}

/// Queries of one class to keys of one class in one problem. Lists are `[layer · heads + head]`.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Queries that see such a key.
    pub queries: usize,
    /// Attention, summed over queries and keys.
    pub mass: Vec<f64>,
    /// If the query decides the answer: the head's contribution to the answer's margin from these keys.
    pub direct: Vec<f64>,
}

/// By class of query and of key.
pub(crate) type ClassCells = BTreeMap<(Class, Class), Cell>;

/// A sequence during reading.
struct Open<'a> {
    written: &'a SolutionForms,
    roles: Vec<At>,
    answer: Option<usize>,
    cells: ClassCells,
    /// Position in each slot of the cache.
    slots: Vec<Option<usize>>,
    /// The answer's query: `[layer · heads + head]`, a weight for each position.
    pattern: Vec<Vec<f64>>,
    /// `[layer]` of `[position][kv head · dh]`.
    values: Vec<Vec<Vec<f32>>>,
    scale: f64,
}

/// Reads a batch; `masked` are tokens that cannot be drawn as an answer.
pub fn read(study: &Study, batch: &[&SolutionForms], form: Form, masked: &[u32]) -> Result<Vec<(usize, ClassCells)>> {
    let model = &study.model;
    let layers = model.config().num_hidden_layers;
    let sequences: Vec<Sequence> = batch.iter().map(|w| w.sequence(form).clone()).collect();
    let opened: Vec<Open> = batch.iter().map(|w| Open::new(w, form, layers)).collect();
    let rows = RefCell::new(opened);
    let mut hooks = Hooks::none();
    for pattern in ["blocks.*.attn.hook_v", "blocks.*.attn.hook_pattern", "ln_final.hook_scale"] {
        let spec: HookSpec = pattern.parse()?;
        hooks.observe(&spec, layers, |site, value| see(model, &mut rows.borrow_mut(), site, value))?;
    }
    let all = study.unroll(&sequences, &mut hooks)?;
    drop(hooks);
    let mut rows = rows.into_inner();
    let decided: Vec<(usize, usize)> = rows.iter().enumerate().filter_map(|(b, row)| Some((b, row.answer?))).collect();
    if !decided.is_empty() {
        let logits = logits(model, all.hidden_at(&decided)?)?;
        let written: Vec<Array2<f32>> = (0..layers).map(|layer| writes(model, layer)).collect::<Result<_>>()?;
        for (&(b, _), logits) in decided.iter().zip(&logits) {
            rows[b].attribute(model, &written, logits, masked)?;
        }
    }
    Ok(rows.into_iter().map(|row| (row.written.problem, row.cells)).collect())
}

fn see(model: &Decoder, rows: &mut [Open], site: &Site, value: &Activation) -> Result<()> {
    let layer = site.point.layer.unwrap_or(0);
    match site.point.kind {
        PointKind::Pattern => {
            let (data, dims) = (value.to_vec()?, value.dims());
            if layer == 0 {
                // The wave's columns are the last of the cache. Padding leaves a hole.
                let (width, slots) = (dims[2], dims[3]);
                rows.iter_mut().for_each(|row| row.slots.resize(slots, None));
                for place in site.places {
                    rows[place.batch].slots[slots - width + place.index] = Some(place.position);
                }
            }
            for place in site.places {
                for (head, range) in site.point.kind.ranges(&dims, place).into_iter().enumerate() {
                    rows[place.batch].look(place.position, layer * dims[1] + head, &data[range], model);
                }
            }
        }
        PointKind::V => {
            for (place, values) in site.values(value, |_| true)? {
                rows[place.batch].values[layer][place.position] = values;
            }
        }
        _ => {
            for (place, scale) in site.values(value, |place| rows[place.batch].answer == Some(place.position))? {
                rows[place.batch].scale = f64::from(scale[0]);
            }
        }
    }
    Ok(())
}

impl<'a> Open<'a> {
    fn new(written: &'a SolutionForms, form: Form, layers: usize) -> Self {
        let length = written.sequence(form).ids.len();
        Self {
            written,
            roles: written.roles(form),
            answer: written.answer.and_then(|_| written.answer_decided(form)),
            cells: ClassCells::new(),
            slots: vec![],
            pattern: vec![],
            values: vec![vec![vec![]; length]; layers],
            scale: 1.0,
        }
    }

    /// Adds one head's weights over the cache's slots, from one position.
    fn look(&mut self, position: usize, head: usize, weights: &[f32], model: &Decoder) {
        let Some(from) = query(&self.roles, position, self.answer) else { return };
        let heads = model.config().num_hidden_layers * model.config().num_attention_heads;
        let keys = || self.slots.iter().zip(weights).filter_map(|(slot, &w)| Some(((*slot)?, w)));
        let mut sums: HashMap<Class, f64> = HashMap::new();
        for (at, weight) in keys().filter(|(at, _)| *at <= position) {
            *sums.entry(key(&self.roles, position, at)).or_default() += f64::from(weight);
        }
        if from.answer {
            let mut pattern = vec![0.0; self.roles.len()];
            keys().for_each(|(at, weight)| pattern[at] = f64::from(weight));
            self.pattern.push(pattern);
        }
        for (to, sum) in sums {
            let cell = self.cells.entry((from, to)).or_default();
            cell.mass.resize(heads, 0.0);
            cell.queries += usize::from(head == 0);
            cell.mass[head] += sum;
        }
    }

    /// Splits each head's contribution to the answer's margin by key: `pattern[t] · v[t] · O_h · (w ⊙ ΔW) / s`.
    fn attribute(&mut self, model: &Decoder, written: &[Array2<f32>], logits: &[f32], masked: &[u32]) -> Result<()> {
        let config = model.config();
        let (heads, dh) = (config.num_attention_heads, config.head_dim);
        let group = heads / config.num_key_value_heads;
        let (Some(answer), Some(said)) = (self.answer, self.written.answer) else { return Ok(()) };
        let rivals = Rivals::new(logits, said.token, masked).context("the answer's token is outside the head")?;
        let two = directions(model, &[rivals.token, rivals.rival])?;
        let along: Vec<f64> =
            two[0].iter().zip(&two[1]).map(|(&a, &b)| (f64::from(a) - f64::from(b)) / self.scale).collect();
        for (head, pattern) in self.pattern.iter().enumerate() {
            let (layer, h) = (head / heads, head % heads);
            let of_row = |row: usize| written[layer].row(row).iter().zip(&along).map(|(&w, g)| f64::from(w) * g).sum();
            let read: Vec<f64> = (h * dh..(h + 1) * dh).map(of_row).collect();
            for (at, &weight) in pattern.iter().enumerate().take(answer + 1) {
                let value = &self.values[layer][at][(h / group) * dh..(h / group + 1) * dh];
                let adds: f64 = value.iter().zip(&read).map(|(&v, u)| f64::from(v) * u).sum();
                if let Some(cell) = self.cells.get_mut(&(ANSWER, key(&self.roles, answer, at))) {
                    cell.direct.resize(written.len() * heads, 0.0);
                    cell.direct[head] += weight * adds;
                }
            }
        }
        Ok(())
    }
}
