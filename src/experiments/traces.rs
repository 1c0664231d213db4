//! Generation traces (tab:gen-analysis): lengths of correct and wrong responses, with and without switching, and the certainty of the
//! switch.
//!
//! The paper's columns come first: visible tokens, `<swi>` and latent steps of a response. Entropy and p(`<swi>`) are of the distribution
//! from which an emitted `<swi>` was drawn. The model chooses on which problems it switches, so a gap between groups is a correlation, not
//! an effect of switching (`accuracy`'s `forced` and `text_only` measure that).

use anyhow::Result;

use super::About;
pub use super::NoSettings as Config;
use super::markdown::table_of;
use crate::evaluation::Outcome;
use crate::latent::Trace;
use crate::latent::trace::PositionRole;
use crate::schema::ResponseRow;
use crate::stats::by_problem::{cell, mean};
use crate::stats::{LEVEL, wilson};
use crate::study::Study;

pub const ABOUT: About = About::asking("length, blocks and confidence of right and wrong responses (tab:gen-analysis)")
    .of_grpo_start()
    .of_responses()
    .at_first();

/// A problem in a group or not.
type Belongs = fn(&Outcome) -> bool;

/// The groups; the last four are the paper's rows.
const GROUPS: [(&str, Belongs); 7] = [
    ("all", |_| true),
    ("correct", |o| o.correct),
    ("wrong", |o| !o.correct),
    ("correct_no_swi", |o| o.correct && !o.switched),
    ("correct_swi", |o| o.correct && o.switched),
    ("wrong_no_swi", |o| !o.correct && !o.switched),
    ("wrong_swi", |o| !o.correct && o.switched),
];

/// One row per group that is not empty.
pub fn rows(study: &Study, _config: &Config) -> Result<Vec<ResponseRow>> {
    let (scores, traces) = study.decoded()?;
    let cases = |of: Belongs| scores.outcomes.iter().zip(traces).filter(move |case| of(case.0)).collect::<Vec<_>>();
    let groups = GROUPS.into_iter().map(|(group, belongs)| (group, cases(belongs)));
    groups.filter(|(_, cases)| !cases.is_empty()).map(|(group, cases)| row(study, group, &cases)).collect()
}

fn row(study: &Study, group: &str, cases: &[(&Outcome, &Trace)]) -> Result<ResponseRow> {
    let of_problem = |value: &dyn Fn(&Outcome, &Trace) -> usize| {
        mean(study.seed, cases.iter().map(|(o, t)| (o.problem, value(o, t) as f64)))
    };
    let share = |holds: Belongs| wilson(cases.iter().filter(|(outcome, _)| holds(outcome)).count(), cases.len(), LEVEL);
    let at_swi = |value: fn(&crate::latent::trace::Position) -> Option<f64>| {
        let switches = cases.iter().flat_map(|(_, t)| t.positions.iter().map(move |p| (t.problem, p)));
        let values = switches.filter(|(_, p)| p.kind == PositionRole::Swi);
        mean(study.seed, values.filter_map(|(problem, p)| Some((problem, value(p)?))))
    };
    let first = cases.iter().filter_map(|(o, t)| {
        Some((o.problem, t.blocks().first()?.after as f64 / o.visible_tokens as f64)) // a block is at least one token
    });
    Ok(ResponseRow {
        identity: study.identity(cases.len()),
        group: group.to_owned(),
        visible_tokens: of_problem(&|o, _| o.visible_tokens)?,
        blocks: of_problem(&|_, t| t.blocks().len())?,
        latent_calls: of_problem(&|o, _| o.latent_calls)?,
        switch_rate: share(|o| o.switched)?,
        entropy: at_swi(|p| p.entropy)?,
        p_swi: at_swi(|p| p.p_swi)?,
        first_swi: mean(study.seed, first)?,
        truncated: share(|o| o.truncated)?,
    })
}

/// Markdown, the paper's columns first.
pub fn table(rows: &[ResponseRow]) -> String {
    let columns = "group | avg. tokens | avg. swi | avg. latent steps | switch rate | H at swi (nats) | p(swi) at swi | first swi";
    table_of(columns, rows, |r| {
        let (ResponseRow { group, switch_rate, .. }, tokens) = (r, cell(r.visible_tokens, 1));
        let [blocks, latents] = [r.blocks, r.latent_calls].map(|mean| cell(mean, 2));
        let [entropy, p_swi, first] = [r.entropy, r.p_swi, r.first_swi].map(|mean| cell(mean, 3));
        format!("{group} | {tokens} | {blocks} | {latents} | {switch_rate:.3} | {entropy} | {p_swi} | {first}")
    })
}
