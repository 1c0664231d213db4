//! Which heads, MLPs and layers carry the value, and where: every node × place is patched with its output in a twin run.
//!
//! Pairs as in `activation_patching`: the same problem with another start value, decoded, cut at the first token that differs
//! (`form` = latents, after a block); and the same two solutions as plain text, cut before the last value (`form` = text), so that a
//! step in latents can be compared with the same step in words, token k of the clause with latent k. A pair file (`pairs_file`) replaces
//! the task. `effect` is a share of the whole difference between the two runs, Σ moved / Σ (clean − corrupt), in logit differences of the
//! clean token minus the corrupt token:
//! - `denoise`: the clean value into the corrupt run; 1 restores everything (the node is sufficient).
//! - `noise`: the corrupt value into the clean run; 1 removes everything (the node is necessary).
//! - `mean`: the mean of all runs at that place into the clean run (necessary, without another value to change to).
//!
//! `p_holm`: exact sign test that more than half of the pairs are moved in one direction by more than `least` of their difference, Holm
//! over all cells of a form and mode. A cell with a smaller median effect is never significant.
//!
//! Misleads: if two nodes carry the same value, `noise` of each may be 0 and `denoise` of each 1 (a backup). `mean` is off the
//! distribution if a node has few distinct values.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::markdown::{largest, table_of, titled};
use super::{About, Files, Journal, Unfit, check_of};
use crate::recipe::Range::NotNegative;
use crate::schema::{
    Component, Form, FormsRow, HeadPatchRow, Identity, LEAST_SHARE, PatchMode, PatchedNodeRow, RowFile, agreement,
    place_name, shares, too_few,
};
use crate::stats::MeanVector;
use crate::store::Measurements;
use crate::study::Study;
use crate::study::circuits::pairs::{Pair, PairChoice, PairPrompts, no_pairs, read_prompts};
use crate::study::circuits::patch::{Node, Patch, RowCapture, leads, points, record};
use crate::study::circuits::places::{Place, Placed, every_position, named_places};
use crate::study::units::measure_in_memory;

pub const ABOUT: About =
    About::asking("which heads, MLPs and layers carry the value, at which latent step or token: patched one by one");

settings! {
    pub struct Config {
        /// Pairs that are drawn; not all are usable.
        pub candidates: usize = 300,
        /// Usable pairs that are patched, at most.
        pub pairs: usize = 48,
        /// A file of pairs instead of the task's: `{"clean": "a question", "corrupt": "its twin"}` a line.
        pub pairs_file: Option<PathBuf> = None,
        /// Of latents and text: blocks as latent steps, or their clauses written out.
        pub forms: Vec<Form> = Form::ALL.to_vec(),
        /// denoise: the clean value into the corrupt run; noise: the corrupt value into the clean run; mean: the mean of all runs.
        pub modes: Vec<PatchMode> = PatchMode::ALL.to_vec(),
        /// Number of last blocks (in text, clauses) before the readout whose places are patched.
        pub blocks: usize = 2,
        /// Patch every position by its number, of the pairs with the most common length.
        pub every_position: bool = false,
        /// The test ignores effects up to this share of the whole difference.
        pub least: f64 = LEAST_SHARE => NotNegative,
    }
}

impl Config {
    fn check(&self) -> Result<()> {
        check_of("head_patching", self, Self::RANGES)?;
        ensure!(!self.modes.is_empty(), "head_patching.modes is empty: name denoise, noise or mean");
        ensure!(!self.forms.is_empty(), "head_patching.forms is empty: name latents or text");
        Ok(())
    }
}

/// Needs a generated task or a file for its pairs.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    config.check()?;
    Ok(no_pairs(study, "head_patching", config.pairs_file.as_deref()))
}

pub(crate) const FILES: &[Files] = &[(PatchedNodeRow::NAME, HeadPatchRow::NAME)];

/// Patches the pairs that `rows` lacks.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<PatchedNodeRow>) -> Result<()> {
    study.say("head patching");
    let given = read_prompts(study, config.pairs_file.as_deref())?;
    patched(study, config, given.as_deref(), rows)
}

pub(crate) fn conclude(config: &Config, rows: Measurements<PatchedNodeRow>, journal: &mut Journal) -> Result<String> {
    let done = journal.finish(rows, false)?;
    let rows = shares(&done, config.least)?;
    let forms = agreement(&done)?;
    if let Some(forms) = &forms {
        journal.save(FormsRow::NAME, std::slice::from_ref(forms))?;
    }
    journal.save(HeadPatchRow::NAME, &rows)?;
    Ok(table(&rows) + &forms.map_or_else(String::new, |forms| agreement_note(&forms)))
}

pub fn rows(study: &Study, config: &Config) -> Result<Vec<HeadPatchRow>> {
    shares(&measure_in_memory(|rows| measure(study, config, rows))?, config.least)
}

/// The maps of given pairs of prompts, clean and corrupt, in memory; as for a pair file.
pub(crate) fn run_pairs(study: &Study, config: &Config, prompts: &[PairPrompts]) -> Result<Vec<HeadPatchRow>> {
    shares(&measure_in_memory(|rows| patched(study, config, Some(prompts), rows))?, config.least)
}

fn patched(
    study: &Study,
    config: &Config,
    given: Option<&[PairPrompts]>,
    rows: &mut Measurements<PatchedNodeRow>,
) -> Result<()> {
    config.check()?;
    let (nodes, switch) = (Node::all_nodes(study.model.config()), study.corpus.switch);
    let &Config { ref forms, candidates, pairs: limit, every_position: alike, .. } = config;
    let places = |pair: &Pair| if alike { every_position(pair) } else { named_places(pair, switch, config.blocks) };
    PairChoice { forms, given, candidates, limit, alike }
        .each(study, false, |form, pairs| patch_form(study, (form, pairs), (&nodes, &config.modes), places, rows))
}

/// Patches the pairs of a form that `rows` lacks: every node × place, in every mode.
pub(super) fn patch_form(
    study: &Study,
    (form, pairs): (Form, &[Pair]),
    (nodes, modes): (&[Node], &[PatchMode]),
    places: impl Fn(&Pair) -> Vec<Placed> + Sync,
    rows: &mut Measurements<PatchedNodeRow>,
) -> Result<()> {
    let identity = study.identity(pairs.len());
    let points = points(nodes.iter().copied());
    let recorded = study.each("pairs run", pairs, |pair| {
        let places = places(pair);
        let wanted = |_: usize, position: usize| places.iter().any(|(_, at)| at.contains(&position));
        let mut held = record(study, &[pair.clean.clone(), pair.corrupt.clone()], &points, wanted)?;
        let (corrupt, clean) = held.pop().zip(held.pop()).context("a pair without runs")?;
        Ok(PatchedPair { pair, places, clean, corrupt })
    })?;
    let means = means(study, &recorded, nodes)?;
    let patching = PatchPlan { study, identity: &identity, form, nodes, modes, means: &means };
    let expected = |r: &PatchedPair| ((Some(form), r.pair.number), r.places.len() * nodes.len() * modes.len());
    study.measure(rows, &identity, (&recorded, 1), expected, |some| {
        Ok(some.iter().map(|r| patching.of_pair(r)).collect::<Result<Vec<_>>>()?.concat())
    })
}

/// A pair with its places and the activations of its two runs.
struct PatchedPair<'p> {
    pair: &'p Pair,
    places: Vec<Placed>,
    clean: RowCapture,
    corrupt: RowCapture,
}

/// The mean of a node's output at a place over all runs.
type NodeMeans = BTreeMap<(Place, Node), Vec<f32>>;

/// The mean of every cell over both runs of all pairs and over the positions of a place.
fn means(study: &Study, recorded: &[PatchedPair], nodes: &[Node]) -> Result<NodeMeans> {
    let mut sums: BTreeMap<(Place, Node), MeanVector> = BTreeMap::new();
    for r in recorded {
        for ((place, positions), node) in cells(&r.places, nodes) {
            for held in [&r.clean, &r.corrupt] {
                for (_, values) in Patch::from_run(held, node, positions, study.model.config())?.values {
                    sums.entry((place.clone(), node)).or_default().add(&values);
                }
            }
        }
    }
    Ok(sums.into_iter().map(|(cell, sum)| (cell, sum.mean_f32())).collect())
}

/// Every node at every place.
pub(super) fn cells<'p>(places: &'p [Placed], nodes: &'p [Node]) -> impl Iterator<Item = (&'p Placed, Node)> + Clone {
    places.iter().flat_map(|place| nodes.iter().map(move |&node| (place, node)))
}

struct PatchPlan<'a> {
    study: &'a Study,
    identity: &'a Identity,
    form: Form,
    nodes: &'a [Node],
    modes: &'a [PatchMode],
    means: &'a NodeMeans,
}

impl PatchPlan<'_> {
    /// Every cell of a pair in every mode.
    fn of_pair(&self, r: &PatchedPair) -> Result<Vec<PatchedNodeRow>> {
        let cells = cells(&r.places, self.nodes);
        let (mut into_clean, mut into_corrupt) = (vec![Patch::NONE], vec![Patch::NONE]);
        for &mode in self.modes {
            for (placed, node) in cells.clone() {
                let into = if mode == PatchMode::Denoise { &mut into_corrupt } else { &mut into_clean };
                into.push(self.patch(r, mode, node, placed)?);
            }
        }
        let mut clean = leads(self.study, &r.pair.clean, &into_clean, r.pair.says)?.into_iter();
        let mut corrupt = leads(self.study, &r.pair.corrupt, &into_corrupt, r.pair.says)?.into_iter();
        let (from, to) = clean.next().zip(corrupt.next()).context("a pair without runs")?;
        let mut rows = vec![];
        for &mode in self.modes {
            for ((place, _), node) in cells.clone() {
                let moved = match mode {
                    PatchMode::Denoise => corrupt.next().context("a patch without a run")? - to,
                    PatchMode::Noise | PatchMode::Mean => from - clean.next().context("a patch without a run")?,
                };
                rows.push(row(self.identity, self.form, (r.pair.number, mode), (place, node), [moved, from - to]));
            }
        }
        Ok(rows)
    }

    fn patch(&self, r: &PatchedPair, mode: PatchMode, node: Node, (place, positions): &Placed) -> Result<Patch> {
        let config = self.study.model.config();
        match mode {
            PatchMode::Denoise => Patch::from_run(&r.clean, node, positions, config),
            PatchMode::Noise => Patch::from_run(&r.corrupt, node, positions, config),
            PatchMode::Mean => {
                let mean = self.means.get(&(place.clone(), node)).context("a place without a mean")?;
                Ok(Patch { node, values: positions.iter().map(|&p| (p, mean.clone())).collect() })
            }
        }
    }
}

/// The record of a patch that `moved` the logit difference, out of the `whole` difference.
pub(super) fn row(
    identity: &Identity,
    form: Form,
    (pair, mode): (usize, PatchMode),
    (place, node): (&Place, Node),
    [moved, whole]: [f64; 2],
) -> PatchedNodeRow {
    let (component, layer, head) = node.name_parts();
    let Place { name: place, back } = place.clone();
    PatchedNodeRow { identity: identity.clone(), form, pair, mode, component, layer, head, place, back, moved, whole }
}

fn agreement_note(forms: &FormsRow) -> String {
    format!(
        "\nThe same heads and MLPs at latent k as at token k of the clause? Rank correlation of the denoise effects over {} \
         cells of the last block: {:.2}.\n",
        forms.cells, forms.rank_correlation
    )
}

/// Markdown: the significant heads and MLPs of each form and mode, largest first.
pub fn table(rows: &[HeadPatchRow]) -> String {
    let kinds = Form::ALL.into_iter().flat_map(|form| PatchMode::ALL.map(|mode| (form, mode)));
    let found = kinds.flat_map(|kind| {
        let same = move |r: &&HeadPatchRow| (r.form, r.mode) == kind && r.component != Component::Resid && r.matters();
        largest(rows.iter().filter(same), 8, |r| r.effect.value.abs())
    });
    let table = table_of("form | mode | node | place | effect | p (Holm)", found, |r| {
        let (node, place) = (r.component.label(Some(r.layer), r.head), place_name(&r.place, r.back));
        let HeadPatchRow { form, mode, effect, p_holm, .. } = r;
        format!("{form} | {mode} | {node} | {place} | {effect:.2} | {p_holm:.1e}")
    });
    let title = "Share of the logit difference that one node moves; significant cells (Holm), largest first [95 %].";
    titled(title, &table) + &too_few(rows).map_or_else(String::new, |why| format!("\n{why}"))
}
