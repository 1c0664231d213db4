//! Direct logit attribution (Elhage et al. 2021): the direct contribution of each head, MLP and embedding to a logit, at text and at every
//! latent step.
//!
//! Sequences are the held-out solutions, teacher forced: with latents at tagged spans (`form` = latents) and as plain text. The residual
//! stream is the sum of its nodes' outputs, and with the final norm's scale fixed the head projects it on one direction per token: so
//! contributions sum to the logit exactly (tested to 1e-5). `logit` is the target's logit (with `centred` minus the mean over tokens);
//! `lead` is the margin over the best other token that can be drawn there, which decides. At a latent step the embedding is the injected
//! state; `carried` decomposes it in turn, along the recurrence, into the nodes of the block's earlier steps and `<swi>`.
//!
//! Misleads: a node may act through others (no direct contribution, although everything depends on it) and may counteract its own
//! effect. Use `head_patching` for the effect of removing it.

mod attribution;

use std::collections::BTreeMap;

use anyhow::Result;
use ndarray::Array2;

use super::markdown::{largest, or_dash, table_of, titled};
use super::{About, check_of};
use crate::nth::Nth;
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::Count;
use crate::schema::{Component, DirectLogitRow, Form, Part, Target};
use crate::stats::Bootstrap;
use crate::stats::by_problem::share;
use crate::study::Study;
use crate::study::circuits::edges::{EdgeGraph, Sender};
use crate::study::circuits::{SolutionForms, solution_forms};

pub use attribution::{Decision, Explanation, centre, decisions, explain};

pub const ABOUT: About = About::asking(
    "direct contribution of each head, MLP and embedding to the answer, the value, <swi> and </swi>, exact",
)
.of_switching();

/// Number of problems whose activations are in memory at once.
const HELD: usize = 32;

settings! {
    pub struct Config {
        /// Problems with a tagged span that are explained, at most.
        pub problems: usize = 200 => Count(2, MOST_ROWS),
        /// Subtracts the mean over the vocabulary from every token's logit, as TransformerLens does by default (`center_unembed`): equal
        /// contributions to all tokens then vanish from `logit`. `lead` does not change.
        pub centred: bool = false,
    }
}

/// A kind of decision.
type Key = (Form, Target, Option<usize>);

/// Sums over a problem's decisions of one kind.
#[derive(Clone, Default)]
struct DecisionSums {
    decisions: usize,
    /// Number of decisions whose target was the most probable token.
    top: usize,
    /// Number of decisions whose injected state could be decomposed.
    carried: usize,
    /// Of each column.
    values: Vec<f64>,
}

/// One row per kind of decision and node.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<DirectLogitRow>> {
    check_of("direct_logit", config, Config::RANGES)?;
    study.is_plain_sum()?;
    let solutions = solution_forms(study, config.problems)?;
    let nodes = EdgeGraph::new(study.model.config()).senders();
    let columns = 2 * (2 * nodes.len() + 1);
    let centre = config.centred.then(|| centre(&study.model)).transpose()?;
    let mut kinds: BTreeMap<Key, BTreeMap<usize, DecisionSums>> = BTreeMap::new();
    for form in Form::ALL {
        for chunk in solutions.chunks(HELD) {
            let sequences: Vec<_> = chunk.iter().map(|w| w.sequence(form).clone()).collect();
            let of = |w: &SolutionForms| decisions(w, form, study.corpus.switch, &study.reasoning.blocks);
            let decided: Vec<_> = chunk.iter().map(of).collect();
            let explained = explain(study, &sequences, &decided, centre.as_deref())?;
            for (w, (decided, explained)) in chunk.iter().zip(decided.iter().zip(&explained)) {
                for (decision, explained) in decided.iter().zip(explained) {
                    let key = (form, decision.target, decision.step);
                    add(kinds.entry(key).or_default().entry(w.problem).or_default(), explained, columns);
                }
            }
        }
    }
    let rows = kinds.iter().map(|(key, problems)| of_kind(study, *key, problems, &nodes));
    let rows = rows.collect::<Result<Vec<_>>>()?.concat();
    let too_few = "fewer than two problems with a decision of one kind, and an interval needs two: raise --problems";
    study.require(!rows.is_empty(), || too_few.into())?;
    Ok(rows)
}

/// Columns: total, own nodes, carried nodes; `[logit, margin]` each.
fn add(sums: &mut DecisionSums, explained: &Explanation, columns: usize) {
    sums.decisions += 1;
    sums.top += usize::from(explained.rivals.lead > 0.0);
    sums.carried += usize::from(explained.carried.is_some());
    sums.values.resize(columns, 0.0);
    let total = [[explained.rivals.logit, explained.rivals.lead]];
    let all = total.iter().chain(&explained.own).chain(explained.carried.iter().flatten());
    sums.values.iter_mut().zip(all.flatten()).for_each(|(sum, x)| *sum += x);
}

fn of_kind(
    study: &Study,
    key: Key,
    problems: &BTreeMap<usize, DecisionSums>,
    nodes: &[Sender],
) -> Result<Vec<DirectLogitRow>> {
    let all: Vec<&DecisionSums> = problems.values().collect();
    let shape = (all.len(), all.first().map_or(0, |s| s.values.len()));
    let sums = Array2::from_shape_fn(shape, |(i, column)| all[i].values[column]);
    let sizes = Array2::from_shape_fn(shape, |(i, _)| all[i].decisions as f64);
    let estimates = Bootstrap::seeded(study.seed).columns(sums.view(), sizes.view())?;
    let (form, target, step) = key;
    let events = problems.iter().flat_map(|(&p, s)| (0..s.decisions).map(move |i| (p, i < s.top)));
    let top = share(study.seed, &events.collect::<Vec<_>>())?;
    let whole = problems.values().all(|s| s.carried == s.decisions);
    let mut named = vec![(Component::Total, None, None, Part::Own)];
    for part in [Part::Own, Part::Carried] {
        let there = part == Part::Own || whole;
        named.extend(nodes.iter().filter(|_| there).map(|node| match *node {
            Sender::Input => (Component::Embed, None, None, part),
            Sender::Head(layer, head) => (Component::Head, Some(layer), Some(head), part),
            Sender::Mlp(layer) => (Component::Mlp, Some(layer), None, part),
        }));
    }
    let rows = named.into_iter().zip(estimates.chunks_exact(2)).filter_map(|((component, layer, head, part), two)| {
        Some(DirectLogitRow {
            identity: study.identity(problems.len()),
            form,
            target,
            step: step.map(Nth::new),
            component,
            layer,
            head,
            part,
            positions: problems.values().map(|s| s.decisions).sum(),
            logit: two[0]?,
            lead: two[1]?,
            top: top.filter(|_| component == Component::Total),
        })
    });
    Ok(rows.collect())
}

/// Markdown: the four nodes that add most to each decision's lead, for and against.
pub fn table(rows: &[DirectLogitRow]) -> String {
    let totals = rows.iter().filter(|r| r.component == Component::Total);
    let columns = "form | target | latent step | lead | target on top | largest contributions";
    let table = table_of(columns, totals, |total| {
        let DirectLogitRow { form, target, step, lead, top, .. } = total;
        let same = |r: &&DirectLogitRow| {
            (r.form, r.target, r.step) == (*form, *target, *step) && r.component != Component::Total
        };
        let said = |r: &DirectLogitRow| {
            let (node, carried) =
                (r.component.label(r.layer, r.head), if r.part == Part::Carried { " (carried)" } else { "" });
            format!("{node}{carried} {:+.2}{}", r.lead.value, if r.adds() { " *" } else { "" })
        };
        let nodes = largest(rows.iter().filter(same), 4, |r| r.lead.value.abs());
        let (largest, top) =
            (nodes.into_iter().map(said).collect::<Vec<_>>().join(", "), or_dash(top.map(|top| format!("{top:.2}"))));
        format!("{form} | {target} | {} | {lead:.2} | {top} | {largest}", or_dash(*step))
    });
    titled(
        "Margin of the target over the best other token (nats), and the nodes that add most to it (* more than zero) [95 %].",
        &table,
    )
}
