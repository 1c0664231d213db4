//! Which edges carry the value: a circuit, found by gradients and tested by running it alone.
//!
//! An edge is one term of the sum that a head (its query, key or value), an MLP, the next latent's input or the logits read from the
//! stream: (sender → receiver) at one place of the row ([`crate::study::circuits::edges`]). Pairs, forms and places are those of
//! `head_patching`; positions outside its places get places of their own, so that no edge is left out. One half of the pairs is used to
//! find the circuit, the other half to test it; pairs that share a program up to renaming are in the same half.
//! - `score`: gradient at the receiver's input × (clean − corrupt) of the sender; the gradient is the mean over `steps` runs between the
//!   two (EAP with integrated gradients, Syed et al. 2023, Hanna et al. 2024), through the recurrence.
//! - the circuit: the fewest edges of largest |score| that alone restore `share` of the difference, without those on no path from a
//!   difference to the readout.
//! - the tests: the clean rows run with these edges alone, all others having the corrupt run's value (resample ablation). `found`:
//!   faithfulness. `rest`: all other edges without the circuit, near 0 if it is complete. `less_one`: the circuit without one of a sample of
//!   its edges (minimality). `random`: as many random edges. `top`: a share of all edges from the top of the ranking. Only possible edges
//!   count: the logits read at the last place only, a latent's input only before a latent.
//!
//! Misleads: a circuit suffices for the difference between these pairs; it does not show how the model works elsewhere. A quantity that
//! both rows share (the counter of a block, say) is in the ablated values too and needs no edge. Scores are first order: few `steps` miss a
//! gate that is all or nothing. The greedy choice includes redundant edges: two edges with the same effect are both in the circuit, and
//! `less_one` finds neither needed. A transfer between positions is not an edge but a head.

mod edges;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use ndarray::Array2;

use super::markdown::{table_of, titled};
use super::{About, Files, Journal, Unfit, check_of};
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::{Below, Count};
use crate::schema::{CircuitRow, EdgePairRow, EdgeRow, Form, RowFile, circuits, place_name};
use crate::stats::by_problem::cell;
use crate::stats::grouped_holdout;
use crate::store::Measurements;
use crate::study::Study;
use crate::study::circuits::edges::EdgeWeights;
use crate::study::circuits::pairs::{Pair, PairChoice, no_pairs, read_prompts};
use crate::study::circuits::places::{Place, place_of_each};
use crate::study::units::measure_in_memory;
use edges::{Edges, RecordedPair, ranked};
use trial::EdgeTrial;

pub const ABOUT: About =
    About::asking("which edges between heads, MLPs and latents carry the value: a circuit, run alone").on_request();

settings! {
    pub struct Config {
        /// Pairs that are drawn; not all are usable.
        pub candidates: usize = 300,
        /// Usable pairs, at most; half of them find the circuit.
        pub pairs: usize = 48,
        /// A file of pairs instead of the task's, as in `head_patching`.
        pub pairs_file: Option<PathBuf> = None,
        /// Of latents and text: blocks as latent steps, or their clauses written out.
        pub forms: Vec<Form> = Form::ALL.to_vec(),
        /// Number of last blocks (in text, clauses) before the readout whose places are distinguished.
        pub blocks: usize = 2,
        /// Runs of integrated gradients; 0: the gradient of the corrupt run.
        pub steps: usize = 16,
        /// Share of the difference that the circuit must restore.
        pub share: f64 = 0.8 => Below(1.0),
        /// Random circuits.
        pub random: usize = 20 => Count(1, MOST_ROWS),
        /// Maximum number of edges that are removed from the circuit, one at a time.
        pub removed: usize = 40,
        /// Maximum number of edges outside the circuit that are recorded.
        pub others: usize = 200,
    }
}

impl Config {
    fn check(&self) -> Result<()> {
        check_of("edge_attribution", self, Self::RANGES)?;
        ensure!(!self.forms.is_empty(), "edge_attribution.forms is empty: name latents or text");
        Ok(())
    }
}

/// Makes its pairs from a generated task or a file.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    config.check()?;
    Ok(no_pairs(study, "edge_attribution", config.pairs_file.as_deref()))
}

pub(crate) const FILES: &[Files] = &[(EdgePairRow::NAME, EdgeRow::NAME)];

/// Finds the circuits, then measures them in every pair that `rows` lacks. Every process, and a resumed run, repeats the search.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<EdgePairRow>) -> Result<()> {
    study.say("edge attribution");
    config.check()?;
    study.is_plain_sum()?;
    let given = read_prompts(study, config.pairs_file.as_deref())?;
    let weights = EdgeWeights::new(&study.model)?;
    let &Config { ref forms, candidates, pairs: limit, .. } = config;
    let choice = PairChoice { forms, given: given.as_deref(), candidates, limit, alike: false };
    choice.each(study, true, |form, pairs| of_pairs(study, config, &weights, (form, pairs), rows))
}

pub(crate) fn conclude(_config: &Config, rows: Measurements<EdgePairRow>, journal: &mut Journal) -> Result<String> {
    let (edges, circuits) = circuits(&journal.finish(rows, false)?)?;
    journal.save(CircuitRow::NAME, &circuits)?;
    journal.save(EdgeRow::NAME, &edges)?;
    Ok(table(&edges, &circuits))
}

/// Edges and circuits of every form, in memory.
pub fn rows(study: &Study, config: &Config) -> Result<(Vec<EdgeRow>, Vec<CircuitRow>)> {
    circuits(&measure_in_memory(|rows| measure(study, config, rows))?)
}

fn of_pairs(
    study: &Study,
    config: &Config,
    weights: &EdgeWeights,
    (form, pairs): (Form, &[Pair]),
    rows: &mut Measurements<EdgePairRow>,
) -> Result<()> {
    let by_name: Vec<Vec<Place>> =
        pairs.iter().map(|pair| place_of_each(pair, study.corpus.switch, config.blocks)).collect();
    let places: Vec<Place> = by_name.iter().flatten().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    let number = |name: &Place| places.partition_point(|place| place < name);
    let numbered: Vec<Vec<usize>> = by_name.iter().map(|names| names.iter().map(number).collect()).collect();
    let edges = Edges { study, weights, places: places.len() };
    let groups: Vec<usize> = pairs.iter().map(|pair| pair.group).collect();
    let several = groups.iter().any(|group| *group != groups[0]);
    study
        .require(several, || format!("all {} pairs share programs: none is left to test a circuit on", pairs.len()))?;
    let halves = grouped_holdout(&groups, 0.5, study.seed)?;
    let (train, test) = (halves.train.len(), halves.test.len());
    study.require(train > 1 && test > 1, || {
        format!(
            "of {} pairs {train} would find a circuit and {test} test it, because pairs that share a program are in the same \
             half: both need two",
            pairs.len()
        )
    })?;
    let recorded = edges.recorded(pairs, &numbered)?;
    let finds: Vec<&RecordedPair> = halves.train.iter().map(|&number| &recorded[number]).collect();
    let scores: BTreeMap<usize, Vec<Array2<f64>>> =
        halves.train.iter().copied().zip(edges.scores(&finds, config.steps)?).collect();
    let ranked = ranked(&edges, &recorded, scores.values());
    let found = edges.smallest(&finds, &ranked, config.share)?;
    let recorded: Vec<(usize, RecordedPair)> = recorded.into_iter().enumerate().collect();
    let identity = study.identity(pairs.len());
    let trial = EdgeTrial::new(&edges, &places, &ranked, &found, config, (form, &identity));
    let expected =
        |(number, _): &(usize, RecordedPair)| ((Some(form), *number), trial.rows(scores.contains_key(number)));
    study.measure(rows, &identity, (&recorded, 2), expected, |some| {
        let one = |(number, recorded): &(usize, RecordedPair)| match scores.get(number) {
            Some(scores) => Ok(trial.edges(*number, recorded, scores)),
            None => trial.circuits(*number, recorded),
        };
        Ok(some.iter().map(one).collect::<Result<Vec<_>>>()?.concat())
    })
}

/// Maximum number of edges shown per circuit.
const SHOWN: usize = 20;

/// Markdown: the effect of every circuit alone, and the largest edges of the found ones.
pub fn table(edges: &[EdgeRow], circuits: &[CircuitRow]) -> String {
    let columns = "form | circuit | edges | of | circuits | effect | extreme | edges needed";
    let circuits = table_of(columns, circuits, |c| {
        let extreme = c.extreme.map_or_else(String::new, |extreme| format!("{extreme:.2}"));
        let CircuitRow { form, circuit, edges, of, circuits, effect, .. } = c;
        format!("{form} | {circuit} | {edges} | {of} | {circuits} | {effect:.2} | {extreme} | {}", cell(c.needed, 2))
    });
    let of_form = |form| edges.iter().filter(move |e| e.form == form && e.in_circuit).take(SHOWN);
    let shown = Form::ALL.into_iter().flat_map(of_form);
    let edges = table_of("form | from | to | place | score | needed", shown, |e| {
        let EdgeRow { form, sender, receiver, score, .. } = e;
        format!(
            "{form} | {sender} | {receiver} | {} | {score:.2} | {}",
            place_name(&e.place, e.back),
            cell(e.needed, 2)
        )
    });
    titled("Share of the difference that some edges bring alone, the corrupt value on all others [95 %].", &circuits)
        + &titled("\nThe largest edges of the circuits [95 %].", &edges)
}
