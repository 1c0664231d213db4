//! Which heads, MLPs and layers carry the value, and where: every node × place patched with its own output in a twin.
//!
//! Pairs as in `activation_patching`: the same problem with another start value, decoded, cut at the first token that differs
//! (`form` = latents, a block stands before it); and the same two solutions as plain text, cut where the last value is due
//! (`form` = text), so that a step in latents and the same step in words can be compared, token k of the clause beside latent k.
//! A pair file (`pairs_file`) takes the place of the task. `effect` is a share of the whole difference between the two runs,
//! Σ moved / Σ (clean − corrupt), in logits of the clean row's token over the corrupt row's:
//! - `denoise`: the clean value into the corrupt run; 1 brings everything back (the node suffices).
//! - `noise`: the corrupt value into the clean run; 1 takes everything away (the node is needed).
//! - `mean`: the mean of all runs at that place into the clean run (needed, without another value to go to).
//!
//! `p_holm`: exact sign test that more than half of the pairs are moved by more than `least` of their difference to one side,
//! Holm over all cells of a form and mode. A cell with a smaller median effect is never called significant.
//!
//! Misleads: where two nodes carry the same value, `noise` of each may be 0 and `denoise` of each 1 (a backup). `mean` is off
//! the distribution wherever a node has few distinct values.

mod effects;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::markdown::{largest, place, table_of, titled};
use super::{About, Files, Journal, Unfit};
use crate::schema::{
    Component, Form, FormsRow, HeadPatchRow, LEAST_SHARE, PatchMode, PatchedNodeRow, RowFile, agreement, shares,
    too_few,
};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::circuits::pairs::{Pair, PairChoice, Prompts, no_pairs, of_file};
use crate::study::circuits::patch::Node;
use crate::study::circuits::places::{every, named};
use crate::study::units::in_memory;
pub(super) use effects::{cells, patch_form, row};

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
        pub forms: Vec<Form> = Form::ALL.to_vec(),
        pub modes: Vec<PatchMode> = PatchMode::ALL.to_vec(),
        /// Blocks (of text, clauses) before the read-out whose places are patched.
        pub blocks: usize = 2,
        /// Patch every position by its number, of the pairs with the most common length.
        pub every_position: bool = false,
        /// Effects up to this share of the whole difference count as none in the test.
        pub least: f64 = LEAST_SHARE,
    }
}

impl Config {
    fn check(&self) -> Result<()> {
        ensure!(self.least >= 0.0, "head_patching.least must not be below 0, found {}", self.least);
        ensure!(!self.modes.is_empty(), "head_patching.modes is empty: name denoise, noise or mean");
        ensure!(!self.forms.is_empty(), "head_patching.forms is empty: name latents or text");
        Ok(())
    }
}

/// Makes its pairs from a generated task or a file.
///
/// # Errors
/// Settings that say nothing to do.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    config.check()?;
    Ok(no_pairs(study, "head_patching", config.pairs_file.as_deref()))
}

pub(crate) const FILES: &[Files] = &[(PatchedNodeRow::NAME, HeadPatchRow::NAME)];

/// Patches every pair that is not there yet.
///
/// # Errors
/// No pairs to make, fewer than two usable ones in every form, and as the model's.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<PatchedNodeRow>) -> Result<()> {
    study.say("head patching");
    let given = of_file(study, config.pairs_file.as_deref())?;
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
    Ok(table(&rows) + &forms.map_or_else(String::new, |forms| said(&forms)))
}

/// The maps, in memory.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<HeadPatchRow>> {
    shares(&in_memory(|rows| measure(study, config, rows))?, config.least)
}

/// The maps of given pairs of prompts, clean and corrupt, in memory; as those of a pair file.
pub(crate) fn run_pairs(study: &Study, config: &Config, prompts: &[Prompts]) -> Result<Vec<HeadPatchRow>> {
    shares(&in_memory(|rows| patched(study, config, Some(prompts), rows))?, config.least)
}

fn patched(
    study: &Study,
    config: &Config,
    given: Option<&[Prompts]>,
    rows: &mut Measurements<PatchedNodeRow>,
) -> Result<()> {
    config.check()?;
    let (nodes, switch) = (Node::all(study.model.config()), study.corpus.switch);
    let &Config { ref forms, candidates, pairs: limit, every_position: alike, .. } = config;
    let places = |pair: &Pair| if alike { every(pair) } else { named(pair, switch, config.blocks) };
    PairChoice { forms, given, candidates, limit, alike }
        .each(study, false, |form, pairs| patch_form(study, (form, pairs), (&nodes, &config.modes), places, rows))
}

fn said(forms: &FormsRow) -> String {
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
        let (node, place) = (r.component.label(Some(r.layer), r.head), place(&r.place, r.back));
        let HeadPatchRow { form, mode, effect, p_holm, .. } = r;
        format!("{form} | {mode} | {node} | {place} | {effect:.2} | {p_holm:.1e}")
    });
    let title = "Share of the logit difference that one node moves; significant cells (Holm), largest first [95 %].";
    titled(title, &table) + &too_few(rows).map_or_else(String::new, |why| format!("\n{why}"))
}
