//! The map of `head_patching` by backward passes in place of a run for each cell: gradient of the read-out's lead × (clean −
//! corrupt) of every node at every place, to first order what a patch would move (attribution patching, Nanda 2023; Syed et
//! al. 2023). Gradients pass through the recurrence: a node at an early latent step gets what it does to all later ones.
//!
//! Pairs, places, nodes and `effect` are those of `head_patching`. `gradient` says where it is taken:
//! - `corrupt`: in the corrupt run; predicts `denoise`.
//! - `clean`: in the clean run; predicts `noise`.
//! - `integrated`: the mean over `steps` runs whose token embeddings lie between the two, at the middles of as many equal parts
//!   of the way (EAP-IG, Hanna et al. 2024). At the inputs that differ it sums up to the whole difference as `steps` grows;
//!   on `micro` that takes hundreds (`tests/circuits.rs`).
//!
//! `exact` and the agreement rows hold the maps against patches that were run on a sample of the cells, in the same pairs.
//!
//! Misleads where the model is saturated: a gate or an attention that is all or nothing has no slope at either end, and a node
//! that decides everything through it gets 0 from `corrupt` and `clean`; `integrated` sees it if a step falls on the slope. The
//! agreement rows say how far to trust a map; `head_patching` is what it stands for.

mod effects;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::markdown::{largest, place, table_of, titled};
use super::{About, Files, Journal, Unfit};
use crate::schema::{
    AttributedNodeRow, AttributionAgreementRow, AttributionRow, Component, Form, GradientAt, LEAST_SHARE, RowFile,
    attributions,
};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::circuits::pairs::{PairChoice, no_pairs, of_file};
use crate::study::circuits::patch::Node;
use crate::study::circuits::places::named;
use crate::study::units::in_memory;
use effects::{AttributionRun, PairPlaces};

pub const ABOUT: About =
    About::asking("the map of head_patching by one backward pass, and how far it agrees with patches").on_request();

settings! {
    pub struct Config {
        /// Pairs that are drawn; not all are usable.
        pub candidates: usize = 300,
        /// Usable pairs, at most.
        pub pairs: usize = 48,
        /// A file of pairs instead of the task's, as in `head_patching`.
        pub pairs_file: Option<PathBuf> = None,
        pub forms: Vec<Form> = Form::ALL.to_vec(),
        /// Blocks (of text, clauses) before the read-out whose places are looked at.
        pub blocks: usize = 2,
        /// Runs of integrated gradients; 0: the plain gradients only.
        pub steps: usize = 8,
        /// Cells of each form that are patched too, to compare with; 0: none.
        pub sample: usize = 150,
        /// Effects up to this share of the whole difference count as none in the test.
        pub least: f64 = LEAST_SHARE,
    }
}

impl Config {
    fn check(&self) -> Result<()> {
        ensure!(self.least >= 0.0, "attribution_patching.least must not be below 0, found {}", self.least);
        ensure!(!self.forms.is_empty(), "attribution_patching.forms is empty: name latents or text");
        Ok(())
    }
}

/// Makes its pairs from a generated task or a file.
///
/// # Errors
/// Settings that say nothing to do.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    config.check()?;
    Ok(no_pairs(study, "attribution_patching", config.pairs_file.as_deref()))
}

pub(crate) const FILES: &[Files] = &[(AttributedNodeRow::NAME, AttributionRow::NAME)];

/// Attributes every pair that is not there yet, and patches its sampled cells.
///
/// # Errors
/// No pairs to make, fewer than two usable ones in every form, and as the model's.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<AttributedNodeRow>) -> Result<()> {
    study.say("attribution patching");
    config.check()?;
    let given = of_file(study, config.pairs_file.as_deref())?;
    let nodes = Node::all(study.model.config());
    let &Config { ref forms, candidates, pairs: limit, .. } = config;
    let choice = PairChoice { forms, given: given.as_deref(), candidates, limit, alike: false };
    choice.each(study, false, |form, pairs| {
        let identity = study.identity(pairs.len());
        let attributing = AttributionRun { study, identity: &identity, form, nodes: &nodes, steps: config.steps };
        let placed = |pair| (pair, named(pair, study.corpus.switch, config.blocks));
        let places: Vec<PairPlaces> = pairs.iter().map(placed).collect();
        let sample = attributing.sample(&places, config.sample);
        let expected = |placed: &PairPlaces| ((Some(form), placed.0.number), attributing.rows(placed, &sample));
        study.measure(rows, &identity, (&places, attributing.pairs_at_once()), expected, |some| {
            attributing.of_pairs(some, &sample)
        })
    })
}

pub(crate) fn conclude(
    config: &Config,
    rows: Measurements<AttributedNodeRow>,
    journal: &mut Journal,
) -> Result<String> {
    let (rows, agreement) = attributions(&journal.finish(rows, false)?, config.least)?;
    if !agreement.is_empty() {
        journal.save(AttributionAgreementRow::NAME, &agreement)?;
    }
    journal.save(AttributionRow::NAME, &rows)?;
    Ok(table(&rows, &agreement))
}

/// The maps and how they agree with patches, in memory.
pub fn rows(study: &Study, config: &Config) -> Result<(Vec<AttributionRow>, Vec<AttributionAgreementRow>)> {
    attributions(&in_memory(|rows| measure(study, config, rows))?, config.least)
}

/// Markdown: the agreement of every map, and the largest heads and MLPs of each form.
pub fn table(rows: &[AttributionRow], agreement: &[AttributionAgreementRow]) -> String {
    let columns = "form | gradient | patch | cells | rank correlation | mean miss | worst miss";
    let agreement = table_of(columns, agreement, |a| {
        let AttributionAgreementRow { form, gradient, mode, cells, rank_correlation, mean_miss, .. } = a;
        let AttributionAgreementRow { worst_miss, worst_predicted, worst_exact, worst_cell, .. } = a;
        format!(
            "{form} | {gradient} | {mode} | {cells} | {rank_correlation:.2} | {mean_miss:.3} | \
             {worst_miss:.2}: {worst_predicted:.2} in place of {worst_exact:.2}, {worst_cell}"
        )
    });
    let kinds = Form::ALL.into_iter().flat_map(|form| GradientAt::ALL.map(|at| (form, at)));
    let found = kinds.flat_map(|kind| {
        let same =
            move |r: &&AttributionRow| (r.form, r.gradient) == kind && r.component != Component::Resid && r.matters();
        largest(rows.iter().filter(same), 8, |r| r.effect.value.abs())
    });
    let found = table_of("form | gradient | node | place | effect | patch", found, |r| {
        let (node, place) = (r.component.label(Some(r.layer), r.head), place(&r.place, r.back));
        let exact = r.exact.map_or_else(String::new, |exact| format!("{exact:.2}"));
        let AttributionRow { form, gradient, effect, .. } = r;
        format!("{form} | {gradient} | {node} | {place} | {effect:.2} | {exact}")
    });
    titled(
        "How well gradients predict patches, over a sample of cells [95 %]; misses are shares of the whole difference.",
        &agreement,
    ) + &titled("\nSignificant cells (Holm), largest first [95 %].", &found)
}
