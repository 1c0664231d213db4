//! Paired differences on the same problems or positions, more powerful than two separate intervals. Knows which records are paired, not
//! verdicts.

use std::collections::BTreeMap;

use super::cells::{Cells, intervention_row};
use super::claims::{Comparison, Term};
use super::exhibits;
use super::folder::sound;
use super::paper::{Paper, parts};
use super::verdicts::{Contrast, Test, shown_p};
use switchyard::schema::{AccuracyRow, Event, OutcomeRow, PhaseChangeRow};
use switchyard::stats::{Bootstrap, Estimate, Flips, LEVEL};

/// left − right in the paper's unit, if the records are paired.
pub(crate) fn difference(paper: &Paper, cells: Cells<'_>, c: &Comparison) -> Option<Contrast> {
    let (Term::Cell(left), Term::Cell(right)) = (&c.left, &c.right) else { return None };
    let ([l, lr, lc], [r, rr, rc]) = (parts(left).ok()?, parts(right).ok()?);
    if l != r || lc != rc {
        return None;
    }
    let unit = paper.unit(left).ok()?.per_share();
    let of_phases =
        matches!((l, lr, rr), ("tab:sft-vs-rl", "grpo", "sft") | ("tab:appendix-sweep", "step800", "stage6"));
    if of_phases && lc == "latent_acc" {
        return if c.shared { where_both_switch(cells, unit) } else { where_each_switches(cells, c.times, unit) };
    }
    if c.times != 1.0 {
        return None;
    }
    match (l, lr, rr, lc) {
        ("tab:intervention", mode, "normal", "all_acc") => against_normal(cells, mode, unit),
        ("tab:main", "switch_grpo", "switch_sft", _) => {
            let rows = cells.folder.rows::<OutcomeRow>(&cells.folder.grpo);
            let dataset = rows.first().map_or("", |row| &row.identity.dataset);
            exhibits::answers(cells.folder, dataset, lc).then(|| between_phases(cells, lc, unit))?
        }
        ("tab:appendix-sweep", "step800", "stage6", "acc" | "tokens")
        | ("tab:sft-vs-rl", "grpo", "sft", "switch_rate" | "tokens") => between_phases(cells, lc, unit),
        ("tab:appendix-sweep", "stage6", "stage8", "acc") => against_free(cells, unit),
        ("tab:tf", "grpo_start", "sft_start", column) => same_positions(cells, column),
        ("tab:swi-window", "grpo", "sft", "at") => same_positions(cells, "p_swi"),
        _ => None,
    }
}

/// A share, from the problems that flipped.
fn of_flips(flips: Flips, unit: f64, on: &str) -> Option<Contrast> {
    let how = format!("gained {}, lost {}{on}, exact McNemar {}", flips.gained, flips.lost, shown_p(flips.p_value()));
    let difference = flips.change(LEVEL).ok()?.scaled(unit);
    Some(Contrast { difference, how, test: Test::Flips(flips, unit) })
}

/// Flips among `n` problems; the tests do not depend on how many of the others were correct.
fn flipped(n: usize, lost: usize, gained: usize) -> Option<Flips> {
    Some(Flips { both_right: n.checked_sub(lost + gained)?, lost, gained, both_wrong: 0 })
}

fn against_normal(cells: Cells<'_>, mode: &str, unit: f64) -> Option<Contrast> {
    let row = intervention_row(cells.folder, cells.checkpoint, mode)?;
    if row.draws == 1 {
        return of_flips(flipped(row.identity.n, row.lost, row.gained)?, unit, "");
    }
    let difference = sound(row.accuracy_change)?.scaled(unit);
    let how = format!("{} draws a problem, exact test of no change {}", row.draws, shown_p(row.p_value));
    Some(Contrast { difference, how, test: Test::AtZero(row.p_value) })
}

/// The free decode minus the one with another K_min.
fn against_free(cells: Cells<'_>, unit: f64) -> Option<Contrast> {
    let row = cells.folder.rows::<AccuracyRow>(cells.sft).iter().find(|row| row.group == "k_min:0")?;
    of_flips(flipped(row.identity.n, row.gained?, row.lost?)?, unit, "")
}

/// Outcomes of the same problem, with the same index and name, after each of two phases.
fn outcomes<'a>(cells: Cells<'a>) -> Vec<(&'a OutcomeRow, &'a OutcomeRow)> {
    let of = |checkpoint| cells.folder.rows::<OutcomeRow>(checkpoint).iter().map(|row| (row.problem, row));
    let before: BTreeMap<usize, &OutcomeRow> = of(cells.sft).collect();
    let same = |(problem, after): (usize, &'a OutcomeRow)| {
        before.get(&problem).filter(|row| row.id == after.id).map(|row| (*row, after))
    };
    of(&cells.folder.grpo).filter_map(same).collect()
}

/// GRPO minus its start, problem by problem.
fn between_phases(cells: Cells<'_>, column: &str, unit: f64) -> Option<Contrast> {
    let pairs = outcomes(cells);
    if column.ends_with("tokens") {
        let (before, after): (Vec<f64>, Vec<f64>) =
            pairs.iter().map(|(b, a)| (b.visible_tokens as f64, a.visible_tokens as f64)).unzip();
        let difference = Bootstrap::default().paired(&before, &after).ok()?;
        return Some(Contrast { difference, how: "bootstrap over the same problems".into(), test: Test::Interval });
    }
    let of_switching = column == "switch_rate";
    let holds = |row: &OutcomeRow| if of_switching { row.switched } else { row.correct };
    let (before, after): (Vec<bool>, Vec<bool>) = pairs.iter().map(|(b, a)| (holds(b), holds(a))).unzip();
    let on = if of_switching { String::new() } else { whence(&pairs) };
    of_flips(Flips::count(&before, &after).ok()?, unit, &on)
}

/// Decomposition of a change in accuracy: problems gained and lost where both checkpoints switch, where only the first does, where only the
/// second does, and where neither does.
fn whence(pairs: &[(&OutcomeRow, &OutcomeRow)]) -> String {
    let count = |before: bool, after: bool| {
        let here = pairs.iter().filter(|(b, a)| (b.switched, a.switched) == (before, after));
        let (gained, lost) = here.fold((0, 0), |(gained, lost), (b, a)| {
            (gained + usize::from(!b.correct && a.correct), lost + usize::from(b.correct && !a.correct))
        });
        format!("+{gained} −{lost}")
    };
    format!(
        " ({} where both switch, {} where the latter stopped switching, {} where it began to, {} where neither does)",
        count(true, true),
        count(true, false),
        count(false, true),
        count(false, false)
    )
}

/// Accuracy where the second checkpoint switches minus `times` that where the first does. The two sets of problems overlap: whole problems are
/// resampled.
fn where_each_switches(cells: Cells<'_>, times: f64, unit: f64) -> Option<Contrast> {
    let (before, after): (Vec<&OutcomeRow>, Vec<&OutcomeRow>) = outcomes(cells).into_iter().unzip();
    let found = Bootstrap::default().units(before.len(), |counts| {
        let accuracy = |rows: &[&OutcomeRow]| {
            let drawn = || rows.iter().zip(counts).filter(|(row, _)| row.switched);
            let right: u32 = drawn().filter(|(row, _)| row.correct).map(|(_, times)| times).sum();
            f64::from(right) / f64::from(drawn().map(|(_, times)| times).sum::<u32>())
        };
        accuracy(&after) - times * accuracy(&before)
    });
    let switched = |rows: &[&OutcomeRow]| rows.iter().filter(|row| row.switched).count();
    let n = switched(&before).min(switched(&after));
    let difference = Estimate { n, ..found.ok()?.scaled(unit) };
    Some(Contrast { difference, how: "whole problems resampled, each in both".into(), test: Test::Interval })
}

/// Accuracy on the problems on which both checkpoints switch, which removes the effect of their choices.
fn where_both_switch(cells: Cells<'_>, unit: f64) -> Option<Contrast> {
    let pairs = outcomes(cells);
    let both = pairs.iter().filter(|(b, a)| b.switched && a.switched);
    let (before, after): (Vec<bool>, Vec<bool>) = both.map(|(b, a)| (b.correct, a.correct)).unzip();
    let on = format!(" of the {} problems on which both switch", before.len());
    of_flips(Flips::count(&before, &after).ok()?, unit, &on)
}

/// GRPO minus its start at the annotated positions.
fn same_positions(cells: Cells<'_>, column: &str) -> Option<Contrast> {
    let rows = cells.folder.rows::<PhaseChangeRow>(&format!("{}-{}", cells.sft, cells.folder.grpo));
    let row = rows.iter().find(|row| row.event == Event::SwiStart)?;
    let difference: Estimate = match column {
        "entropy" => row.d_entropy,
        "p_swi" => row.d_p_swi,
        "rank" => row.d_rank,
        "margin" => row.d_margin,
        _ => return None,
    };
    Some(Contrast { difference: sound(difference)?, how: "the same positions".into(), test: Test::Interval })
}
