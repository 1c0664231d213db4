//! Activation patching for a user's pairs: every head, MLP and stream × position, between two prompts, on any model.
//!
//! A line of the file has two prompts and two tokens ([`crate::study::circuits::given`]); the logit difference is the logit of `answer`
//! minus that of `wrong` at the prompt's end. Modes, `effect` and `p_holm` are those of [`super::head_patching`]; positions count from 0
//! and are compared by number. A pair whose clean run has no larger logit difference than its corrupt run is excluded: a patch has nothing
//! to restore. Rows have form `latents` if the prompt contains latent steps, else `text`.
//!
//! Misleads: the excluded pairs are those that the model does not solve, so that effects describe solved ones only.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::head_patching::patch_form;
use super::markdown::{largest, or_dash, table_of, titled};
use super::{About, Files, Journal, Unfit, check_of};
use crate::latent::Sequence;
use crate::progress::say;
use crate::recipe::Range::NotNegative;
use crate::schema::{
    Component, Form, HeadPatchRow, LEAST_SHARE, PatchMode, PatchedNodeRow, place_name, place_order, shares,
    stream_name, too_few,
};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::circuits::given::{PlacedPair, read};
use crate::study::circuits::pairs::Pair;
use crate::study::circuits::patch::{Node, Patch, leads};
use crate::study::circuits::places::{every_position, named_places};
use crate::study::units::measure_in_memory;

pub const ABOUT: About =
    About::asking("your own pairs (intervene pairs): which head, MLP or stream carries the answer, at which position")
        .on_request();

/// How positions of different pairs are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Places {
    /// By number: all prompts have equally many tokens.
    #[default]
    Number,
    /// By name: where the prompts differ (`source`), `<swi>`, latent steps and `</swi>` of the last two blocks, and the readout.
    Name,
}

settings! {
    pub struct Config {
        /// `{"clean": …, "corrupt": …, "answer": …, "wrong": …}` a line.
        pub file: Option<PathBuf> = None,
        /// number: positions with the same number; name: source, swi, latent[k], swi_end and readout.
        pub places: Places = Places::Number,
        /// Of head, mlp and resid.
        pub components: Vec<Component> = vec![Component::Head, Component::Mlp, Component::Resid],
        /// Counted from 0; empty: all.
        pub layers: Vec<usize> = vec![],
        /// As in `head_patching`.
        pub modes: Vec<PatchMode> = vec![PatchMode::Denoise, PatchMode::Noise],
        /// The test ignores effects up to this share of the whole difference.
        pub least: f64 = LEAST_SHARE => NotNegative,
    }
}

impl Config {
    fn check(&self) -> Result<()> {
        let patched = [Component::Head, Component::Mlp, Component::Resid];
        let known = self.components.iter().all(|component| patched.contains(component));
        ensure!(known && !self.components.is_empty(), "pair_patching.components: name head, mlp or resid");
        ensure!(!self.modes.is_empty(), "pair_patching.modes is empty: name denoise, noise or mean");
        check_of("pair_patching", self, Self::RANGES)
    }

    fn nodes(&self, study: &Study) -> Vec<Node> {
        let all = Node::all_nodes(study.model.config()).into_iter();
        let chosen = |node: &Node| {
            // A stream belongs to the layer whose output it is, the embedding to layer 0.
            let layer = node.point().layer.unwrap_or_default();
            self.components.contains(&node.name_parts().0) && (self.layers.is_empty() || self.layers.contains(&layer))
        };
        all.filter(chosen).collect()
    }
}

/// Reads its pairs, so that a malformed line is refused before any work.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    config.check()?;
    let name = &study.name;
    let Some(file) = &config.file else {
        return Ok(Some(format!("{name}: pair_patching needs a file of pairs: `intervene pairs PAIRS.jsonl {name}`")));
    };
    let (layers, last) = (study.model.config().num_hidden_layers, config.layers.iter().max());
    if let Some(layer) = last.filter(|layer| **layer >= layers) {
        bail!("pair_patching.layers (--layers): {layer} is not a layer of {name}, which has 0 to {}", layers - 1);
    }
    comparable(&read(study, file)?, config.places)?;
    Ok(None)
}

pub(crate) const FILES: &[Files] = &[(PatchedNodeRow::PAIRS, HeadPatchRow::PAIRS)];

/// Patches the pairs that `rows` lacks.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<PatchedNodeRow>) -> Result<()> {
    study.say("patching pairs");
    config.check()?;
    let file = config.file.as_ref().context("pair_patching.file is missing")?;
    let given = read(study, file)?;
    comparable(&given, config.places)?;
    let (nodes, switch) = (config.nodes(study), study.corpus.switch);
    let usable = usable(study, given)?;
    let places = |pair: &Pair| match config.places {
        Places::Number => every_position(pair),
        Places::Name => named_places(pair, switch, 2),
    };
    let mut any = false;
    for form in Form::ALL {
        let pairs: Vec<Pair> = usable.iter().filter(|pair| form_of(pair) == form).cloned().collect();
        if pairs.len() > 1 {
            any = true;
            patch_form(study, (form, &pairs), (&nodes, &config.modes), places, rows)?;
        }
    }
    let few = || {
        format!(
            "{}: usable pairs: {}, and an interval needs two; in Python, `model.patch` patches one pair",
            file.display(),
            usable.len()
        )
    };
    study.require(any, few)
}

pub(crate) fn conclude(config: &Config, rows: Measurements<PatchedNodeRow>, journal: &mut Journal) -> Result<String> {
    let rows = shares(&journal.finish(rows, false)?, config.least)?;
    journal.save(HeadPatchRow::PAIRS, &rows)?;
    Ok(table(&rows))
}

pub fn rows(study: &Study, config: &Config) -> Result<Vec<HeadPatchRow>> {
    shares(&measure_in_memory(|rows| measure(study, config, rows))?, config.least)
}

fn form_of(pair: &Pair) -> Form {
    if pair.clean.latents() > 0 { Form::Latents } else { Form::Text }
}

/// Requires pairs of equal length within a form, if positions are matched by number.
fn comparable(given: &[PlacedPair], places: Places) -> Result<()> {
    for PlacedPair { pair, place } in given.iter().filter(|_| places == Places::Number) {
        let Some(first) = given.iter().find(|other| form_of(&other.pair) == form_of(pair)) else { continue };
        let (own, others) = (pair.clean.ids.len(), first.pair.clean.ids.len());
        ensure!(
            own == others,
            "{place}: prompts of {own} tokens, those of {} have {others}: positions are compared by number; use prompts of equal \
            length, or compare places by name (--places name)",
            first.place
        );
    }
    Ok(())
}

/// The pairs whose clean run has the larger logit difference; prints the others.
fn usable(study: &Study, given: Vec<PlacedPair>) -> Result<Vec<Pair>> {
    let lead = |row: &Sequence, says| leads(study, row, &[Patch::NONE], says).map(|leads| leads[0]);
    let wholes = study.each("pairs run", &given, |PlacedPair { pair, .. }| {
        Ok(lead(&pair.clean, pair.says)? - lead(&pair.corrupt, pair.says)?)
    })?;
    let (mut out, mut left) = (vec![], vec![]);
    let n = given.len();
    for (PlacedPair { pair, place }, whole) in given.into_iter().zip(wholes) {
        if whole > 0.0 { out.push(pair) } else { left.push(place) }
    }
    if !left.is_empty() {
        let shown = left.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let more = if left.len() > 5 { ", …" } else { "" };
        say(&format!(
            "{}: {} of {n} pairs left out: the clean run's logit difference is not larger than the corrupt one's ({shown}{more})",
            study.name,
            left.len()
        ));
    }
    Ok(out)
}

/// Most places of a printed layer × place table; with more, `report` draws it.
const MOST_PLACES: usize = 12;

/// Markdown: the effects of the residual stream, layer × place, a table for each form and mode.
fn stream_tables(rows: &[HeadPatchRow]) -> String {
    let kinds: BTreeSet<_> = rows.iter().map(|r| (r.form, r.mode)).collect();
    let mut out = String::new();
    let mut too_wide: Option<usize> = None;
    for (form, mode) in kinds {
        let is_stream = |r: &&HeadPatchRow| (r.form, r.mode, r.component) == (form, mode, Component::Resid);
        let cells: BTreeMap<_, _> =
            rows.iter().filter(is_stream).map(|r| ((r.layer, r.place.as_str(), r.back), r)).collect();
        let layers: BTreeSet<usize> = cells.keys().map(|cell| cell.0).collect();
        let mut places: Vec<_> = cells.keys().map(|&(_, place, back)| (place, back)).collect();
        places.sort_by_key(|(place, back)| place_order(place, *back));
        places.dedup();
        if !(1..=MOST_PLACES).contains(&places.len()) {
            if places.len() > MOST_PLACES {
                too_wide = too_wide.max(Some(places.len()));
            }
            continue;
        }
        let shown = |r: &&HeadPatchRow| format!("{:.2}{}", r.effect.value, if r.matters() { " *" } else { "" });
        let columns = places.iter().map(|(place, back)| place_name(place, *back));
        let columns = iter::once("layer".to_owned()).chain(columns).collect::<Vec<_>>().join(" | ");
        let table = table_of(&columns, layers, |layer| {
            let line = places.iter().map(|(place, back)| or_dash(cells.get(&(layer, *place, *back)).map(shown)));
            iter::once(stream_name(layer)).chain(line).collect::<Vec<_>>().join(" | ")
        });
        out += &titled(&format!("\nThe residual stream by layer and place: {form}, {mode}."), &table);
    }
    if let Some(n) = too_wide {
        out += &format!(
            "\nThe residual stream by layer and place has {n} places: `report` draws it, and --places name prints it with fewer.\n"
        );
    }
    out
}

/// Markdown: of each form, mode and component the largest effects, then the residual stream by layer and place.
pub fn table(rows: &[HeadPatchRow]) -> String {
    let kinds: BTreeSet<_> = rows.iter().map(|r| (r.form, r.mode, r.component)).collect();
    let found = kinds.into_iter().flat_map(|kind| {
        let same = rows.iter().filter(move |r| (r.form, r.mode, r.component) == kind);
        largest(same, 5, |r| r.effect.value.abs())
    });
    let table = table_of("form | mode | node | place | effect | p (Holm)", found, |r| {
        let (node, star) = (r.component.label(Some(r.layer), r.head), if r.matters() { " *" } else { "" });
        let (place, HeadPatchRow { form, mode, effect, p_holm, .. }) = (place_name(&r.place, r.back), r);
        format!("{form} | {mode} | {node} | {place} | {effect:.2}{star} | {p_holm:.1e}")
    });
    let title = "Share of the logit difference that one node moves, largest first [95 %]; * significant (Holm).";
    titled(title, &table) + &stream_tables(rows) + &too_few(rows).map_or_else(String::new, |why| format!("\n{why}"))
}
