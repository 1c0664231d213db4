//! Observations from a checkpoint: which cells run, how each is decoded, and what is recorded.

use std::collections::BTreeMap;

use anyhow::{Error, Result, ensure};

use super::Config;
use crate::interventions::{Draw, FORCE_SWITCH, Firings, Intervention, Material, Swap};
use crate::model::Activation;
use crate::schema::{KnownValueRow, Observation};
use crate::store::Measurements;
use crate::study::arithmetic::{Arithmetic, of_study};
use crate::study::block_values::{Plan, plan};
use crate::study::modes::{self, Action, Cell};
use crate::study::record::{RecordTemplate, StudyRecord, blank};
use crate::study::sweep::{Continuation, Sweep};
use crate::study::{Study, nulls};

/// The cells in the order of the settings: all of them at the first place, at the others only replaced inputs.
pub fn list_cells(config: &Config, k_cap: usize) -> Result<Vec<Cell>> {
    let cells = modes::cells(&config.modes, &config.steps, config.draws, k_cap)?;
    let mut asked: Vec<Cell> = vec![];
    for (later, at) in config.later.iter().flat_map(|&later| config.at.iter().map(move |&at| (later, at))) {
        let first = asked.is_empty();
        let of = cells.iter().filter(|c| first || matches!(c.action, Action::Replace(_)));
        asked.extend(of.map(|cell| Cell { later, at, ..cell.clone() }));
    }
    Ok(asked)
}

pub type Ready = (Vec<Cell>, Vec<Plan>);

/// The possible cells among the requested ones; and the impossible ones, with reasons.
pub fn ready(study: &Study, config: &Config, arithmetic: Option<&dyn Arithmetic>) -> Result<(Ready, Vec<String>)> {
    let mut asked = list_cells(config, study.longest_block())?;
    let sweep = &study.sweep()?;
    let (mut plans, mut skipped) = (vec![], vec![]);
    let mut leave_out = |asked: &mut Vec<Cell>, which: &dyn Fn(&Cell) -> bool, why: &Error| {
        for cell in asked.extract_if(.., |cell| which(cell)) {
            let why = format!("{}: {why:#}", cell.mode);
            if !skipped.contains(&why) {
                skipped.push(why);
            }
        }
    };
    if let Some(draws) = asked.iter().find(|cell| cell.mode == KnownValueRow::MODE).map(|cell| cell.draws) {
        let planned = sweep.switches().and_then(|()| match arithmetic {
            Some(arithmetic) => plan(sweep, study, arithmetic, draws),
            None => plan(sweep, study, of_study(study)?.as_ref(), draws),
        });
        match planned {
            Ok(planned) => plans = planned,
            Err(why) => leave_out(&mut asked, &|cell| cell.mode == KnownValueRow::MODE, &why),
        }
    }
    if let Err(why) = sweep.switches() {
        // If nothing that changes the model is left, the reasons become the error.
        let acts = |cell: &Cell| matches!(cell.action, Action::Replace(_) | Action::Rule(_));
        if !asked.iter().any(|cell| acts(cell) && !cell.needs_blocks()) && asked.iter().any(acts) {
            return Err(why);
        }
        leave_out(&mut asked, &Cell::needs_blocks, &why);
    }
    let nothing = asked.iter().all(|cell| matches!(cell.action, Action::Normal));
    ensure!(!nothing || skipped.is_empty(), "{}", skipped.join("; "));
    Ok(((asked, plans), skipped))
}

/// Observes the cells that `rows` lacks, on this process's problems.
pub fn observe(study: &Study, (asked, plans): &Ready, rows: &mut Measurements<Observation>) -> Result<()> {
    let sweep = &study.sweep()?;
    let siblings = match asked.iter().find(|cell| cell.mode == "sibling").map(|cell| cell.draws) {
        Some(draws) => {
            study.say("sampling sibling rollouts");
            nulls::siblings(study, sweep, draws)?
        }
        None => vec![],
    };
    let swaps = plans.iter().map(|plan| plan.iter().map(|(&problem, e)| (problem, e.swap)).collect());
    let swaps: Vec<BTreeMap<usize, Swap>> = swaps.collect();
    let exit = Activation::Rank3(study.model.embed(&[vec![study.corpus.switch.swi_end]])?).to_vec()?;
    let material =
        Material { bank: &sweep.bank, siblings: &siblings, swaps: &swaps, model: Some(&study.model), exit: &exit };
    let blank = blank(study, sweep, rows.weights());
    let template = |cell: &Cell| {
        let Cell { mode, action, dose, steps, draws, later, at } = cell.clone();
        // The first of two seeds is the reference for the second.
        let draws = if matches!(action, Action::NullSeed) { 2 } else { draws };
        RecordTemplate { says: Observation { mode, dose, steps, later, at, ..blank.clone() }, draws }
    };
    let cells = asked.iter().map(template).collect();
    let record = StudyRecord::new(cells, sweep.forkable_problems().count(), plans, rows)?;
    for (number, cell) in asked.iter().enumerate() {
        let draws = match cell.action {
            Action::Normal => {
                vec![sweep.forkable_problems().map(|problem| (problem, sweep.normal[problem].clone())).collect()]
            }
            Action::NullBatch if !record.holds_all(number) => nulls::run_nulls(study, sweep, &[None])?,
            Action::NullSeed if !record.holds_all(number) => nulls::run_nulls(study, sweep, &[Some(0), Some(1)])?,
            _ => continue,
        };
        for (draw, outcomes) in draws.iter().enumerate() {
            let forked = !matches!(cell.action, Action::Normal);
            record.add(outcomes.iter().map(|(p, o)| ((number, draw, *p), o, forked, Firings::default())))?;
        }
    }
    // Cells that act at the same place decode together.
    let numbers: Vec<usize> = (0..asked.len()).collect();
    let place = |i: usize| (asked[i].later, asked[i].at);
    let mut groups = numbers.chunk_by(|&a, &b| place(a) == place(b));
    groups.try_for_each(|group| continuations(study, sweep, asked, group, &material, &record))
}

/// Decodes those cells of one place that need it.
fn continuations(
    study: &Study,
    sweep: &Sweep,
    asked: &[Cell],
    group: &[usize],
    material: &Material,
    record: &StudyRecord,
) -> Result<()> {
    // One intervention per draw, constructed before any run.
    let mut made: Vec<Vec<Box<dyn Intervention + '_>>> = vec![];
    for cell in group.iter().map(|&number| &asked[number]) {
        let of = |number: usize| match cell.action {
            Action::Replace(about) => Some((about.make)(material, Draw::keyed(study.seed, number, cell.dose))),
            _ => None,
        };
        made.push((0..cell.draws).filter_map(of).collect());
    }
    // Continuations, and the cell and draw of each.
    let (mut all, mut keys) = (vec![], vec![]);
    for (&number, made) in group.iter().zip(&made) {
        let cell = &asked[number];
        let same_shape = cell.mode == "self_patch";
        let mut add = |draw, continuation| {
            all.push(Continuation { same_shape, ..continuation });
            keys.push((number, draw));
        };
        match cell.action {
            Action::Replace(_) => made.iter().enumerate().for_each(|(draw, with)| {
                add(draw, Continuation { inputs: Some((with.as_ref(), cell.steps)), ..Continuation::default() });
            }),
            Action::Rule(rule) => {
                let force = rule == FORCE_SWITCH;
                add(0, Continuation { switching: rule.switching, force, ..Continuation::default() });
            }
            _ => {}
        }
    }
    study.say(&format!("{} continuations of {} problems", all.len(), sweep.forkable_problems().count()));
    for (continuation, &(cell, draw)) in all.iter().zip(&keys) {
        let same = sweep.forkable_problems().filter(|&problem| !sweep.forks(problem, continuation));
        record.add(same.map(|p| ((cell, draw, p), &sweep.normal[p], false, Firings::default())))?;
    }
    let place = &asked[group[0]];
    let known = |problem: usize, c: usize| record.holds((keys[c].0, keys[c].1, problem));
    sweep.each(&all, place.later, place.at, &known, &|forks| {
        record.add(forks.iter().map(|f| {
            let (cell, draw) = keys[f.continuation];
            ((cell, draw, f.problem), &f.outcome, true, f.firings)
        }))
    })
}
