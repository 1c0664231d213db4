//! Where the difference between two problems lives: activation patching over layer × latent step and layer × position.
//!
//! Pairs are problems of the same structure and names whose start value differs; of a file with known values, two whose questions
//! differ in their numbers alone and whose first steps make different values. Both are decoded normally; a pair is usable where the
//! two responses agree up to some visible token (the read-out) and have opened a block before it. The corrupt row is then run again
//! with one activation of the residual stream taken from the clean row, and `effect` is the share of the difference of logits (the
//! clean row's token minus the corrupt row's, at the read-out) that comes back: Σ (patched − corrupt) / Σ (clean − corrupt). Latents
//! after a patched one follow from it.
//!
//! Layer 0 is the input of the first block (an embedding, or the injected state), layer l the stream after block l.
//! Misleads where several places carry the value: each alone may be worth nothing (a backup), or all of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::{About, Files, Fit, Journal};
use crate::latent::{Sequence, Switching};
use crate::model::hooks::Site;
use crate::model::{Activation, HookSpec, Hooks, PointKind, Step};
use crate::nth::Nth;
use crate::schema::{Axis, Identity, Measurement, Named, PatchRow, PatchedPlaceRow, Place, recovered};
use crate::store::Measurements;
use crate::study::circuits::pairs::{Pair, Prompts, decoded, no_twins, of_task};
use crate::study::{DoesNotApply, Study};

/// What it asks.
pub const ABOUT: About =
    About::asking("where the difference between two problems lives: layer × latent step, layer × position");

/// Rows that run at once.
const ROWS: usize = 256;

settings! {
    /// Settings.
    pub struct Config {
        /// Pairs that are drawn; not all are usable.
        pub candidates: usize = 300,
        /// Usable pairs that are patched, at most.
        pub pairs: usize = 48,
    }
}

/// One patch: layer and position, and what it does to the read-out (patched minus corrupt).
type Effect = ((usize, usize), f64);

/// What a pair was found to do.
struct Patched {
    /// Clean minus corrupt.
    whole: f64,
    effects: Vec<Effect>,
}

/// Makes its pairs from a generated task, or of a file's problems with known values.
///
/// # Errors
/// None.
pub fn fits(study: &Study, _config: &Config) -> Result<Fit> {
    let missing = no_twins(study, "activation_patching").filter(|_| of_problems(study).len() < 2);
    let own =
        if study.recipe.task.is_some() { "" } else { ", or problems with known values that differ in numbers alone" };
    Ok(missing.map(|why| why + own).into())
}

/// The prompts of the task, or of the file where there is none.
fn prompts(study: &Study, candidates: usize) -> Result<Vec<Prompts>> {
    let mut own = of_problems(study);
    own.truncate(candidates);
    if own.is_empty() { of_task(study, candidates) } else { Ok(own) }
}

/// Pairs of a file's problems: of those that are the same but for their numbers, each of the smaller first values with one of the larger.
fn of_problems(study: &Study) -> Vec<Prompts> {
    let corpus = &study.corpus;
    let mut alike: BTreeMap<(String, usize), Vec<(i64, usize)>> = BTreeMap::new();
    for (index, problem) in corpus.test.iter().enumerate().filter(|_| study.recipe.task.is_none()) {
        if let Some(value) = problem.steps.first().and_then(|step| step.value.number()) {
            let structure = (without_numbers(&problem.question), problem.steps.len());
            alike.entry(structure).or_default().push((value, index));
        }
    }
    let mut out = vec![];
    for problems in alike.values_mut() {
        problems.sort_unstable();
        let (smaller, larger) = problems.split_at(problems.len() / 2);
        for ((low, clean), (high, corrupt)) in smaller.iter().zip(larger) {
            if low != high {
                out.push((corpus.test_prompts[*clean].clone(), corpus.test_prompts[*corrupt].clone()));
            }
        }
    }
    out
}

/// A question with one sign for each number.
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

/// Patches pairs of the recipe's task or the file whose places are not there yet.
///
/// # Errors
/// A task that has no pairs; as [`run_pairs`].
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<PatchedPlaceRow>) -> Result<()> {
    study.say("activation patching");
    places(study, config, &prompts(study, config.candidates)?, rows)
}

pub(crate) fn conclude(_config: &Config, rows: Measurements<PatchedPlaceRow>, journal: &mut Journal) -> Result<String> {
    let rows = recovered(&journal.finish(rows, false)?)?;
    journal.save(PatchRow::NAME, &rows)?;
    Ok(table(&rows))
}

/// The heat maps of those pairs, in memory.
///
/// # Errors
/// As [`measure`].
pub fn rows(study: &Study, config: &Config) -> Result<Vec<PatchRow>> {
    run_pairs(study, config, &prompts(study, config.candidates)?)
}

/// Those of given pairs of prompts, clean and corrupt.
///
/// # Errors
/// Fewer than two usable pairs, and as the model's.
pub fn run_pairs(study: &Study, config: &Config, prompts: &[Prompts]) -> Result<Vec<PatchRow>> {
    let mut rows = Measurements::in_memory();
    places(study, config, prompts, &mut rows)?;
    recovered(&rows.sorted(PatchedPlaceRow::key)?)
}

fn places(study: &Study, config: &Config, prompts: &[Prompts], rows: &mut Measurements<PatchedPlaceRow>) -> Result<()> {
    let pairs = decoded(study, prompts, Switching::Free, config.pairs)?;
    ensure!(
        pairs.len() > 1,
        DoesNotApply::because(format!(
            "{}: {} of {} pairs open a block before their responses part; activation_patching needs 2",
            study.name,
            pairs.len(),
            prompts.len()
        ))
    );
    let identity = study.identity(pairs.len());
    let pairs: Vec<(usize, Pair)> = pairs.into_iter().enumerate().collect();
    let expected =
        |(number, pair): &(usize, Pair)| ((None, *number), (study.model.layers.len() + 1) * pair.clean.ids.len());
    study.measure(rows, &identity, (&pairs, 1), expected, |some| {
        let of = |(number, pair): &(usize, Pair)| Ok(rows_of(study, &identity, *number, pair, patch(study, pair)?));
        Ok(some.iter().map(of).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

fn points() -> [HookSpec; 2] {
    ["blocks.0.hook_resid_pre", "blocks.*.hook_resid_post"].map(HookSpec::all)
}

/// Layer 0 is the input of the first block, layer l the stream after block l.
fn layer_of(site: &Site) -> usize {
    let after = usize::from(site.point.kind == PointKind::ResidPost);
    site.point.layer.unwrap_or(0) + after
}

/// Every layer and position of one pair, one row each.
fn patch(study: &Study, pair: &Pair) -> Result<Patched> {
    let layers = study.model.layers.len();
    let width = pair.clean.ids.len();
    let mut held: BTreeMap<(usize, usize), Vec<f32>> = BTreeMap::new();
    let cell = std::cell::RefCell::new(&mut held);
    let mut hooks = Hooks::none();
    for spec in points() {
        hooks.observe(&spec, layers, |site, value| {
            let (data, dims) = (value.to_vec()?, value.dims());
            for place in site.places {
                let from = (place.batch * dims[1] + place.index) * dims[2];
                cell.borrow_mut().insert((layer_of(site), place.position), data[from..from + dims[2]].to_vec());
            }
            Ok(())
        })?;
    }
    let whole_clean = leads(study, std::slice::from_ref(&pair.clean), pair, &mut hooks)?[0];
    drop(hooks);
    let cells: Vec<(usize, usize)> = (0..=layers).flat_map(|l| (0..width).map(move |p| (l, p))).collect();
    // The last row is not patched.
    let rows: Vec<Sequence> = (0..=cells.len()).map(|row| Sequence { row, ..pair.corrupt.clone() }).collect();
    let mut hooks = Hooks::none();
    for spec in points() {
        hooks.replace(&spec, layers, |site, value| replace(site, value, &cells, &held))?;
    }
    let mut found = vec![];
    for chunk in rows.chunks(ROWS) {
        found.extend(leads(study, chunk, pair, &mut hooks)?);
    }
    let corrupt = found.pop().context("no unpatched row")?;
    let effects = cells.iter().zip(found).map(|(&cell, lead)| (cell, lead - corrupt)).collect();
    Ok(Patched { whole: whole_clean - corrupt, effects })
}

/// What was found of a pair, as rows.
fn rows_of(study: &Study, identity: &Identity, number: usize, pair: &Pair, patched: Patched) -> Vec<PatchedPlaceRow> {
    let whole = patched.whole;
    let row = |((layer, position), effect): Effect| {
        let at = pair.clean.steps[position];
        let (place, text, block, step) = match at {
            Step::Prompt => (Place::Prompt, None, None, None),
            Step::Text(t) => (Place::Text, Some(t), None, None),
            Step::Latent { block, step } => (Place::Latent, None, Some(Nth::of(block)), Some(Nth::of(step))),
        };
        let token = |sequence: &Sequence| match at {
            Step::Latent { .. } => at.to_string(),
            _ => study.corpus.vocabulary.token(sequence.ids[position]).unwrap_or_default(),
        };
        let (clean, corrupt, identity) = (token(&pair.clean), token(&pair.corrupt), identity.clone());
        PatchedPlaceRow {
            identity,
            pair: number,
            layer,
            position,
            place,
            text,
            block,
            step,
            clean,
            corrupt,
            effect,
            whole,
        }
    };
    patched.effects.into_iter().map(row).collect()
}

fn replace(
    site: &Site,
    value: Activation,
    cells: &[(usize, usize)],
    held: &BTreeMap<(usize, usize), Vec<f32>>,
) -> Result<Activation> {
    let layer = layer_of(site);
    let mine: Vec<_> = site.places.iter().filter(|p| cells.get(p.row) == Some(&(layer, p.position))).collect();
    if mine.is_empty() {
        return Ok(value);
    }
    let dims = value.dims();
    let mut data = value.to_vec()?;
    for place in mine {
        let state = held.get(&(layer, place.position)).context("a place that the clean row lacks")?;
        let from = (place.batch * dims[1] + place.index) * dims[2];
        data[from..from + dims[2]].copy_from_slice(state);
    }
    let old = value.three()?;
    let data = burn::tensor::TensorData::new(data, old.dims());
    Ok(Activation::Rank3(burn::tensor::Tensor::from_data(data, (&old.device(), old.dtype()))))
}

/// Lead of the clean row's token over the corrupt row's at the end of each row.
fn leads(study: &Study, rows: &[Sequence], pair: &Pair, hooks: &mut Hooks) -> Result<Vec<f64>> {
    let all = study.unroll(rows, hooks)?;
    let last = pair.clean.ids.len() - 1;
    let at: Vec<_> = (0..rows.len()).map(|row| (row, last)).collect();
    let logits = study.model.unembed(all.hidden_at(&at)?.unsqueeze_dim(0)).squeeze_dim::<2>(0);
    let vocab = logits.dims()[1];
    let logits = logits.try_into_vec_as::<f32>().map_err(|e| anyhow::anyhow!("reading logits: {e:?}"))?;
    let [clean, corrupt] = pair.says.map(|token| token as usize);
    Ok(logits.chunks_exact(vocab).map(|row| f64::from(row[clean]) - f64::from(row[corrupt])).collect())
}

/// Markdown: layer × latent step.
pub fn table(rows: &[PatchRow]) -> String {
    let of = |layer, index| rows.iter().find(|r| r.axis == Axis::Step && r.layer == layer && r.index == index);
    let steps = rows.iter().filter(|r| r.axis == Axis::Step).map(|r| r.index).max().unwrap_or(0);
    let layers = rows.iter().map(|r| r.layer + 1).max().unwrap_or(0);
    let heads: String = (1..=steps).map(|s| format!(" step {s} |")).collect();
    let mut out = format!(
        "Recovered logit difference [95 %]; * carries some of it.\n\n| layer |{heads}\n|{}\n",
        " --- |".repeat(steps + 1)
    );
    for layer in 0..layers {
        let shown = |r: &PatchRow| format!(" {:.2}{} |", r.effect, if r.carries() { " *" } else { "" });
        let cell = |step| of(layer, step).map_or_else(|| " — |".into(), shown);
        out += &format!("| {layer} |{}\n", (1..=steps).map(cell).collect::<String>());
    }
    out
}
