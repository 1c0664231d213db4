//! The paper's causal experiment (tab:intervention): decode with the latent inputs replaced, compare with *normal* on
//! the same problems. Per mode, dose and choice of steps one row; draws of a random mode are pooled.
//!
//! `logit_diff` is the lead of the gold answer's first token over the best other token (difference of logits, nats), at
//! the position of the mode's own response that gives its answer; responses that give none are left out (its n says so).

mod known_value;
mod rows;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::interventions::{Bank, Draw, Firings, Intervention, Later, Material, Steps, Swap};
use crate::latent::Channel;
use crate::model::Activation;
use crate::stats::holm;
use crate::study::Study;
use crate::study::modes::{self, Cell, Kind, forces};
pub use crate::study::modes::{MODES, NORMAL, NULLS};
use crate::study::nulls;
use crate::study::sweep::{Continuation, Continued, Outcome, Sweep, What};
use known_value::{Exchange, Predict, hits, of_task, plan};
use rows::row;
pub use rows::{KnownRow, Row, known_rows, table};

/// Settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub modes: Vec<String>,
    /// One row each.
    pub steps: Vec<Steps>,
    /// Each with each of `at`; the first pair has the whole table, the others the replaced inputs only.
    pub later: Vec<Later>,
    pub at: Vec<Channel>,
    /// Draws of a random mode.
    pub draws: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            modes: MODES.map(String::from).to_vec(),
            steps: vec![Steps::All],
            later: vec![Later::Recompute],
            at: vec![Channel::Both],
            draws: 5,
        }
    }
}

/// Decodes the problems and runs every mode; rows in the order of the settings.
///
/// # Errors
/// An unknown mode or step before any work; as [`run_on`].
pub fn run(study: &Study, config: &Config, progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    check_modes(study, config)?;
    let settings = Sweep::settings(study);
    run_on(&Sweep::new(study, &settings)?, study, config, None, progress)
}

/// Refuses what cannot be run on this checkpoint, before any work.
///
/// # Errors
/// An unknown mode, dose or step; `known_value` without a generated task.
pub fn check_modes(study: &Study, config: &Config) -> Result<()> {
    let cells = cells(study, config)?;
    ensure!(!config.later.is_empty() && !config.at.is_empty(), "--later and --at each need a value");
    if cells.iter().any(|c| c.is("known_value")) {
        of_task(&study.subject).map(drop)?;
    }
    Ok(())
}

fn cells(study: &Study, config: &Config) -> Result<Vec<Cell>> {
    modes::cells(&config.modes, &config.steps, config.draws, study.subject.recipe.evaluation.k_cap)
}

/// Runs every mode on problems that are decoded already. `predict` is what `known_value` compares with; `None` takes the
/// arithmetic of the recipe's task.
///
/// # Errors
/// A mode that never fired or moved nothing; a self-patch that changed something; no problem on which the model switched.
pub fn run_on(
    sweep: &Sweep,
    study: &Study,
    config: &Config,
    predict: Option<&Predict>,
    mut progress: impl FnMut(&str),
) -> Result<Vec<Row>> {
    let cells = cells(study, config)?;
    if cells.iter().any(Cell::needs_blocks) {
        sweep.switches()?;
    }
    let wants = |name: &str| cells.iter().any(|c| c.is(name));
    let plans = match predict {
        _ if !wants("known_value") => vec![],
        Some(predict) => plan(sweep, &study.subject, predict, config.draws, study.seed)?,
        None => plan(sweep, &study.subject, &of_task(&study.subject)?, config.draws, study.seed)?,
    };
    if wants("sibling") {
        progress("sampling sibling rollouts");
    }
    let siblings = if wants("sibling") { nulls::siblings(study, sweep, config.draws)? } else { vec![] };
    let material = Given { plans: &plans, siblings: &siblings };
    let mut rows: Vec<(bool, Row)> = vec![];
    for (later, at) in config.later.iter().flat_map(|&later| config.at.iter().map(move |&at| (later, at))) {
        let first = rows.is_empty();
        let of: Vec<Cell> = cells.iter().filter(|c| first || matches!(c.kind, Kind::Replace(_))).cloned().collect();
        rows.extend(run_at(sweep, study, (later, at), &of, material, &mut progress)?);
    }
    let tested: Vec<usize> = (0..rows.len()).filter(|&i| rows[i].0).collect();
    if !tested.is_empty() {
        let p: Vec<f64> = tested.iter().map(|&i| rows[i].1.p_value).collect();
        tested.iter().zip(holm(&p)?).for_each(|(&i, adjusted)| rows[i].1.p_holm = adjusted);
    }
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// What some modes need beside the normal run.
#[derive(Clone, Copy)]
struct Given<'g> {
    plans: &'g [BTreeMap<usize, Exchange>],
    siblings: &'g [Bank],
}

/// Every cell under one choice of where it acts; whether it is tested, and its row.
fn run_at(
    sweep: &Sweep,
    study: &Study,
    (later, at): (Later, Channel),
    cells: &[Cell],
    Given { plans, siblings }: Given,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<(bool, Row)>> {
    let swaps: Vec<BTreeMap<usize, Swap>> =
        plans.iter().map(|plan| plan.iter().map(|(&problem, e)| (problem, e.swap)).collect()).collect();
    let model = &study.subject.model;
    let exit = Activation::Rank3(model.embed(&[vec![study.subject.corpus.switch.swi_end]])?).to_vec()?;
    let material = Material { bank: &sweep.bank, siblings, swaps: &swaps, model, exit: &exit };
    // One intervention per draw, made before any is run.
    let mut made: Vec<Vec<Box<dyn Intervention + '_>>> = vec![];
    for cell in cells {
        let of = |number: usize| match cell.kind {
            Kind::Replace(about) => {
                let seed = study.seed.wrapping_add((number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                Some((about.make)(&material, Draw { number, seed, dose: cell.dose.unwrap_or(0.0) }))
            }
            _ => None,
        };
        made.push((0..cell.draws).filter_map(of).collect());
    }
    let mut continuations = vec![];
    for (cell, made) in cells.iter().zip(&made) {
        let same_shape = cell.is("self_patch");
        let mut add = |what| continuations.push(Continuation { what, same_shape });
        match cell.kind {
            Kind::Replace(_) => {
                made.iter().for_each(|with| add(What::Replace { with: with.as_ref(), steps: cell.steps }));
            }
            Kind::Rule(rule) if forces(&rule) => add(What::Force),
            Kind::Rule(rule) => add(What::Rule(rule.switching)),
            _ => {}
        }
    }
    progress(&format!("{} continuations of {} problems", continuations.len(), sweep.normal.len()));
    let mut done = sweep.run(&continuations, later, at)?.into_iter();
    let mut rows = vec![];
    for cell in cells {
        let results: Vec<Continued> = match cell.kind {
            Kind::Normal => vec![Continued { outcomes: sweep.normal.clone(), ..Continued::default() }],
            Kind::NullBatch => vec![nulls::other_batch(study, sweep)?],
            Kind::NullSeed => vec![],
            _ => done.by_ref().take(cell.draws).collect(),
        };
        let (before, results) = match cell.kind {
            Kind::NullSeed => {
                let (first, second) = nulls::two_seeds(study, sweep)?;
                (first.outcomes, vec![second])
            }
            _ => (sweep.normal.clone(), results),
        };
        check(cell, sweep, &results)?;
        let draws: Vec<&[Outcome]> = results.iter().map(|r| r.outcomes.as_slice()).collect();
        let hits = if cell.is("known_value") { Some(hits(plans, &draws, study.seed)?) } else { None };
        let mut firings = Firings::default();
        results.iter().for_each(|r| firings.add(&r.firings));
        let row = row(study, cell, &before, &draws, firings, hits)?;
        rows.push((cell.is_tested(), Row { later, at, blocks: sweep.blocks, ..row }));
    }
    Ok(rows)
}

/// A mode that did nothing, or a control that did something, is an error.
fn check(cell: &Cell, sweep: &Sweep, results: &[Continued]) -> Result<()> {
    let label = cell.label();
    let outcomes = || results.iter().flat_map(|r| &r.outcomes);
    let count = results.iter().map(|r| r.firings.count).sum::<usize>();
    match cell.kind {
        Kind::Rule(rule) => {
            let forks: usize = results.iter().map(|r| r.forks).sum();
            ensure!(forks > 0, "{label} never fired: all {} problems switch of their own accord", sweep.normal.len());
            let not = match rule.name {
                "skip" | "suppress_switch" => outcomes().filter(|o| o.switched).count(),
                "empty_block" => outcomes().filter(|o| o.latent_calls > 0).count(),
                _ => outcomes().filter(|o| !o.switched).count(),
            };
            ensure!(not == 0, "{label} did not take hold on {not} of {} problems", sweep.normal.len());
        }
        Kind::Replace(_) => {
            ensure!(count > 0, "{label} never fired: 0 latent positions were replaced");
            if cell.is("self_patch") {
                let changed = outcomes().filter(|o| !o.identical).count();
                ensure!(changed == 0, "{label} changed a token or a log-probability of {changed} problems");
                return Ok(());
            }
            let moved: f64 = results.iter().map(|r| r.firings.moved).sum();
            ensure!(moved > 0.0, "{label} fired {count} times and moved nothing");
        }
        _ => {}
    }
    Ok(())
}
