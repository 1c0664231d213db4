//! Activation patching (denoising) over layer × latent step and layer × position: where does the difference between two problems
//! reside?
//!
//! 1. Pairs: problems with the same structure and names but another start value; in a file with known values, two questions that differ
//!    only in their numbers and whose first steps give different values.
//! 2. Decode both normally. A pair is usable if the responses agree up to a visible token (the readout) after at least one block.
//! 3. Rerun the corrupt sequence with one activation of the residual stream from the clean one. Later latents are recomputed.
//! 4. `effect` = Σ (patched − corrupt) / Σ (clean − corrupt), where each term is the logit difference (clean token minus corrupt token)
//!    at the readout.
//!
//! In rows layer 0 is the embedding (at a latent step the injected state), layer l the output of `blocks.{l-1}`.
//! Misleads if several places carry the value: each alone may have no effect (a backup), or the whole effect.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::markdown::{by_step, or_dash, table_of, titled};
use super::{About, Files, Journal, Unfit};
use crate::latent::{Sequence, Switching};
use crate::model::Step;
use crate::nth::Nth;
use crate::schema::{Axis, Identity, PatchRow, PatchedPlaceRow, Place, RowFile, recovered, stream_name};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::circuits::pairs::{Pair, PairPrompts, decoded, no_twins, task_prompts};
use crate::study::circuits::patch::{Node, Patch, leads, points, record};
use crate::study::units::measure_in_memory;

pub const ABOUT: About =
    About::asking("where the difference between two problems resides: layer × latent step, layer × position");

settings! {
    pub struct Config {
        /// Pairs that are drawn; not all are usable.
        pub candidates: usize = 300,
        /// Usable pairs that are patched, at most.
        pub pairs: usize = 48,
    }
}

/// Makes its pairs from a generated task, or of a file's problems with known values.
pub fn unfit(study: &Study, _config: &Config) -> Result<Unfit> {
    let missing = no_twins(study, "activation_patching").filter(|_| of_problems(study).len() < 2);
    let own =
        if study.recipe.task.is_some() { "" } else { ", or problems with known values that differ in numbers alone" };
    Ok(missing.map(|why| why + own))
}

/// The prompts of the task, or of the file if there is no task.
fn prompts(study: &Study, candidates: usize) -> Result<Vec<PairPrompts>> {
    let mut own = of_problems(study);
    own.truncate(candidates);
    if own.is_empty() { task_prompts(study, candidates) } else { Ok(own) }
}

/// Pairs of a file's problems: among those equal except for their numbers, each of the smaller first values with one of the larger.
fn of_problems(study: &Study) -> Vec<PairPrompts> {
    let corpus = &study.corpus;
    let mut alike: BTreeMap<(String, usize), Vec<(i64, usize)>> = BTreeMap::new();
    for (index, problem) in corpus.test.iter().enumerate().filter(|_| study.recipe.task.is_none()) {
        let Some(value) = problem.steps.first().and_then(|step| step.value.number()) else { continue };
        let structure = (without_numbers(&problem.question), problem.steps.len());
        alike.entry(structure).or_default().push((value, index));
    }
    let prompt = |index: usize| corpus.test_prompts[index].clone();
    let mut out = vec![];
    for mut problems in alike.into_values() {
        problems.sort_unstable();
        let (smaller, larger) = problems.split_at(problems.len() / 2);
        let differ = smaller.iter().zip(larger).filter(|(low, high)| low.0 != high.0);
        out.extend(differ.map(|(clean, corrupt)| (prompt(clean.1), prompt(corrupt.1))));
    }
    out
}

/// A question with every number replaced by the same sign.
fn without_numbers(question: &str) -> String {
    let mut out = String::with_capacity(question.len());
    for letter in question.chars() {
        match letter {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            other => out.push(other),
        }
    }
    out
}

pub(crate) const FILES: &[Files] = &[(PatchedPlaceRow::NAME, PatchRow::NAME)];

/// Patches the pairs of the recipe's task or the file that `rows` lacks.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<PatchedPlaceRow>) -> Result<()> {
    study.say("activation patching");
    places(study, config, &prompts(study, config.candidates)?, rows)
}

pub(crate) fn conclude(_config: &Config, rows: Measurements<PatchedPlaceRow>, journal: &mut Journal) -> Result<String> {
    let rows = recovered(&journal.finish(rows, false)?)?;
    journal.tell(&rows, table)
}

/// The heat maps of those pairs, in memory.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<PatchRow>> {
    run_pairs(study, config, &prompts(study, config.candidates)?)
}

/// The heat maps of given pairs of prompts, clean and corrupt.
///
/// # Errors
/// Fewer than two usable pairs; failures of the model.
pub fn run_pairs(study: &Study, config: &Config, prompts: &[PairPrompts]) -> Result<Vec<PatchRow>> {
    recovered(&measure_in_memory(|rows| places(study, config, prompts, rows))?)
}

fn places(
    study: &Study,
    config: &Config,
    prompts: &[PairPrompts],
    rows: &mut Measurements<PatchedPlaceRow>,
) -> Result<()> {
    let mut pairs = decoded(study, prompts, Switching::Free, config.pairs)?;
    pairs.iter_mut().enumerate().for_each(|(number, pair)| pair.number = number);
    let (usable, all) = (pairs.len(), prompts.len());
    study.require(usable > 1, || {
        format!("{usable} of {all} pairs open a block before their responses part; activation_patching needs 2")
    })?;
    let identity = study.identity(usable);
    let expected = |pair: &Pair| ((None, pair.number), (study.model.layers.len() + 1) * pair.clean.ids.len());
    study.measure(rows, &identity, (&pairs, 1), expected, |some| {
        Ok(some.iter().map(|pair| patched(study, &identity, pair)).collect::<Result<Vec<_>>>()?.concat())
    })
}

/// Every layer and position of one pair, one record each.
fn patched(study: &Study, identity: &Identity, pair: &Pair) -> Result<Vec<PatchedPlaceRow>> {
    let config = study.model.config();
    let nodes: Vec<Node> = (0..=config.num_hidden_layers).map(Node::Resid).collect();
    let held = record(study, std::slice::from_ref(&pair.clean), &points(nodes.iter().copied()), |_, _| true)?;
    let cells: Vec<(usize, usize)> =
        (0..nodes.len()).flat_map(|l| (0..pair.clean.ids.len()).map(move |p| (l, p))).collect();
    let of_cell = |&(layer, position): &(usize, usize)| Patch::from_run(&held[0], nodes[layer], &[position], config);
    let mut patches = cells.iter().map(of_cell).collect::<Result<Vec<_>>>()?;
    patches.push(Patch::NONE);
    let clean = leads(study, &pair.clean, &[Patch::NONE], pair.says)?[0];
    let mut found = leads(study, &pair.corrupt, &patches, pair.says)?;
    let corrupt = found.pop().context("no unpatched row")?;
    let row = |(&(layer, position), lead): (&(usize, usize), f64)| {
        let at = pair.clean.steps[position];
        let (place, text, block, step) = match at {
            Step::Prompt => (Place::Prompt, None, None, None),
            Step::Text(t) => (Place::Text, Some(t), None, None),
            Step::Latent { block, step } => (Place::Latent, None, Some(Nth::new(block)), Some(Nth::new(step))),
        };
        let token = |sequence: &Sequence| match at {
            Step::Latent { .. } => at.to_string(),
            _ => study.corpus.vocabulary.token(sequence.ids[position]).unwrap_or_default(),
        };
        PatchedPlaceRow {
            identity: identity.clone(),
            pair: pair.number,
            layer,
            position,
            place,
            text,
            block,
            step,
            clean: token(&pair.clean),
            corrupt: token(&pair.corrupt),
            effect: lead - corrupt,
            whole: clean - corrupt,
        }
    };
    Ok(cells.iter().zip(found).map(row).collect())
}

/// Markdown: layer × latent step.
pub fn table(rows: &[PatchRow]) -> String {
    let of = |layer, index| rows.iter().find(|r| r.axis == Axis::Step && r.layer == layer && r.index == index);
    let steps = rows.iter().filter(|r| r.axis == Axis::Step).map(|r| r.index).max().unwrap_or(0);
    let layers = rows.iter().map(|r| r.layer + 1).max().unwrap_or(0);
    let cell = |r: &PatchRow| format!("{:.2}{}", r.effect, if r.carries() { " *" } else { "" });
    let columns = by_step("layer".into(), steps, |step| format!("step {step}"));
    let table = table_of(&columns, 0..layers, |layer| {
        by_step(stream_name(layer), steps, |step| or_dash(of(layer, step).map(cell)))
    });
    titled("Recovered logit difference [95 %]; * carries some of it.", &table)
}
