//! Whether reinforcement learning preserves latents, and whether that depends on a gradient through the recurrence: the runs of
//! `experiments/rl-fate.toml`. Measures nothing.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{Drawing, Exhibit};
use crate::report::cells::Cells;
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::Folder;
use crate::report::paper::Paper;
use crate::report::tables::{Cell, ColumnKind, Table};
use crate::report::verdicts::shown_p;
use switchyard::schema::{ComparisonPoint, FateCell, FateRow, FateTest, Law, RowFile, fate_tests, law, runs};
use switchyard::stats::{Estimate, holm, mean_of_runs, sign_flip};

const SOURCES: &[&str] = &[FateRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { cell, over_runs: true, ..Exhibit::new("ours:rl-fate", SOURCES) },
    Exhibit { table: cells, covers: true, ..Exhibit::new("tab:rl-fate", SOURCES) },
    Exhibit { table: tests, ..Exhibit::new("tab:rl-fate-tests", SOURCES) },
    Exhibit { draw, ..Exhibit::new("fig:rl-fate", SOURCES) },
];

const RUNS: &str = "From stage 5 of phase 2 after 50 steps (step 0). `segmented` freezes the latents in the gradient, as the \
    paper's code does; `full_bptt` lets the gradient through the recurrence. Budget: visible tokens. Right with a block, and \
    without: a block forced, and `<swi>` forbidden. kl: nats per token to the start. Mean over seeds with Student's 95 % \
    interval; n: seeds.";

const TESTS: &str = "Preregistered (`experiments/rl-fate.toml`). Student's t over seeds, two-sided; Holm over the \
    hypotheses of a comparison. Sign flips: exact, and never below .0625 with five seeds. Equal distance: of a \
    seed's two runs, the one that moved farther is measured at the saved step with kl nearest to the other's. H5: bootstrap over seeds; \
    confirmed for a mode if the interval is above 0. H6: a separate t-test, once all five seeds exist.";

const LAW: &str = "A mark is a start and a budget: the mean over seeds, with Student's 95 % interval of the change. Left of 0 a block hurts at the start, right of 0 it helps. Above 0 the model switches more after \
    reinforcement learning.";

/// `<accuracy|with_block|switch_rate>` by `end` or `equal`: the change under `full_bptt` minus that under `segmented`, budget 30.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let compared = match column {
        "end" => ComparisonPoint::AtTheEnd,
        "equal" => ComparisonPoint::AtEqualDistance,
        _ => return None,
    };
    let tests = fate_tests(cells.folder.rows(""), compared).ok()?;
    tests.iter().find(|test| test.of == row)?.estimate().ok()
}

/// The runs of a mode and a budget.
fn groups() -> impl Iterator<Item = (usize, &'static str)> {
    FateRow::BUDGETS.into_iter().flat_map(|budget| FateRow::MODES.map(|mode| (budget, mode)))
}

fn cells(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    use ColumnKind::{Count, Measured, Text};
    let columns = [
        ("budget", Count),
        ("replay", Text),
        ("step", Count),
        ("accuracy", Measured(3)),
        ("switch rate", Measured(3)),
        ("right with a block", Measured(3)),
        ("without", Measured(3)),
        ("kl", Measured(3)),
    ];
    let mut table = Table::new(exhibit.label, "Does reinforcement learning keep the latents?", columns);
    table.note = RUNS.to_owned();
    for ((budget, mode), step) in groups().flat_map(|group| [0, FateRow::STEPS].map(|step| (group, step))) {
        let here = |row: &&FateRow| {
            (row.of, row.budget, row.replay.as_str(), row.step) == (FateRow::STEPS, budget, mode, step)
        };
        let of: Vec<&FateRow> = folder.rows::<FateRow>("").iter().filter(here).collect();
        if of.len() < 2 {
            continue;
        }
        let mean = |value: fn(&FateRow) -> f64| mean_of_runs(&of.iter().map(|row| value(row)).collect::<Vec<_>>()).ok();
        let share = |value: fn(&FateRow) -> f64| Cell::measured(mean(value).map(|e| e.share()));
        let kl = if step == 0 { Cell::nothing() } else { Cell::measured(mean(|row| row.kl)) };
        table.push(vec![
            Cell::Count(budget as i64),
            Cell::Text(mode.into()),
            Cell::Count(step as i64),
            share(|row| row.accuracy),
            share(|row| row.switch_rate),
            share(|row| row.with_block.unwrap_or(f64::NAN)),
            share(|row| row.without_block.unwrap_or(f64::NAN)),
            kl,
        ])?;
    }
    Ok(Some(table).filter(|table| !table.rows().is_empty()))
}

fn tests(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    use ColumnKind::{Measured, Text};
    let rows = folder.rows::<FateRow>("");
    let Some(problems) = rows.first().map(|row| row.n) else { return Ok(None) };
    let columns = [
        ("hypothesis", Text),
        ("compared", Text),
        ("mean over seeds", Measured(3)),
        ("by seed", Text),
        ("p", Text),
        ("p (Holm)", Text),
        ("p (sign flips)", Text),
    ];
    let mut table = Table::new(exhibit.label, "What the study was written to test", columns);
    table.note = TESTS.to_owned();
    for (compared, at) in
        [(ComparisonPoint::AtTheEnd, "at the end"), (ComparisonPoint::AtEqualDistance, "at equal distance")]
    {
        // Records of other seeds or modes have no such test.
        let Ok(tests) = fate_tests(rows, compared) else { continue };
        // A hypothesis whose runs have no interval is not tested, but counts in the family.
        let p: Vec<f64> = tests.iter().map(|test| test.p().unwrap_or(1.0)).collect();
        for ((test, p), held) in tests.iter().zip(&p).zip(holm(&p)?) {
            let flips: Vec<i64> = test.values.iter().map(|x| (x * problems as f64).round() as i64).collect();
            let shown = [shown_p(*p), shown_p(held), shown_p(sign_flip(&flips))];
            table.push(line(test, at, if test.p().is_ok() { shown } else { Default::default() }))?;
        }
    }
    of_grid(rows)?.into_iter().try_for_each(|row| table.push(row))?;
    Ok(Some(table).filter(|table| !table.rows().is_empty()))
}

/// A hypothesis over seeds, with its p-values.
fn line(test: &FateTest, at: &str, p: [String; 3]) -> Vec<Cell> {
    let shown = |x: &f64| if x.is_finite() { format!("{x:+.3}") } else { "–".to_owned() };
    let each: Vec<String> = test.values.iter().map(shown).collect();
    let [name, at, each] = [test.name, at, &each.join(", ")].map(|text| Cell::Text(text.to_owned()));
    [name, at, Cell::measured(test.estimate().ok()), each].into_iter().chain(p.map(Cell::Text)).collect()
}

/// H5 for each mode, and H6 between them, if the grid was run: H6 is tested with all planned seeds.
fn of_grid(rows: &[FateRow]) -> Result<Vec<Vec<Cell>>> {
    let [Some(frozen), Some(full)] = FateRow::MODES.map(|mode| law(rows, mode).ok().flatten()) else {
        return Ok(vec![]);
    };
    let mut out = vec![];
    for (mode, law) in FateRow::MODES.into_iter().zip([&frozen, &full]) {
        let seeds = law.seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let (follow, all) = signs(law);
        let name = format!(
            "H5: benefit of a block at the start and change of the switch rate, Spearman over {} cells, {mode}",
            law.cells.len()
        );
        let signs = format!("seeds {seeds}; the sign follows in {follow} of {all} cells whose benefit is not 0");
        let [name, at, signs] = [name, "at the end".to_owned(), signs].map(Cell::Text);
        let nothing = std::iter::repeat_n(Cell::nothing(), 3);
        out.push([name, at, Cell::Measured(law.correlation), signs].into_iter().chain(nothing).collect());
    }
    if frozen.seeds == full.seeds {
        let values = full.intercepts.iter().zip(&frozen.intercepts).map(|(a, b)| a - b).collect();
        let name = "H6: change of the switch rate at a benefit of 0, full_bptt less segmented";
        let test = FateTest { of: "switch_rate", name, values };
        let p = if test.values.len() == FateRow::SEEDS { shown_p(test.p()?) } else { String::new() };
        out.push(line(&test, "at the end", [p, String::new(), String::new()]));
    }
    Ok(out)
}

/// Number of cells in which the switch rate changes in the direction of the benefit, among those whose benefit differs from 0 over seeds.
fn signs(law: &Law) -> (usize, usize) {
    let mean = |cell: &FateCell, of: fn(&(f64, f64)) -> f64| {
        mean_of_runs(&cell.runs.values().map(of).collect::<Vec<_>>()).ok()
    };
    let clear = law.cells.iter().filter_map(|cell| {
        let benefit = mean(cell, |run| run.0).filter(|e| !e.covers(0.0))?;
        Some((benefit.value > 0.0) == (mean(cell, |run| run.1)?.value > 0.0))
    });
    clear.fold((0, 0), |(follow, all), same| (follow + usize::from(same), all + 1))
}

/// Change of the switch rate by the benefit of a block at the start: a panel per mode, because both modes have the same starts.
fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let rows = folder.rows::<FateRow>("");
    let mark = |runs: Vec<(f64, f64)>| {
        let (benefits, changes): (Vec<f64>, Vec<f64>) = runs.into_iter().unzip();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        // Runs that all have the same change have no interval.
        let y = mean_of_runs(&changes).ok();
        (benefits.len() > 1).then(|| match y {
            Some(y) => Point::new(mean(&benefits), y),
            None => Point::bare(mean(&benefits), mean(&changes)),
        })
    };
    let name = |budget: usize| format!("budget {budget}");
    let primary = |mode: &'static str| {
        let of = |[start, end]: [&FateRow; 2]| Some((start.benefit()?, end.switch_rate - start.switch_rate));
        let line = |budget: usize| {
            let runs = runs(rows, ComparisonPoint::AtTheEnd, (mode, budget)).ok()?;
            Some(Line::scatter(&name(budget), vec![mark(runs.into_iter().filter_map(of).collect())?]))
        };
        FateRow::BUDGETS.into_iter().filter_map(line).collect::<Vec<Line>>()
    };
    let grid = |mode: &'static str| {
        let cells = law(rows, mode).ok().flatten().map_or_else(Vec::new, |law| law.cells);
        let mut lines: BTreeMap<usize, Vec<Point>> = BTreeMap::new();
        for cell in cells {
            lines.entry(cell.budget).or_default().extend(mark(cell.runs.into_values().collect()));
        }
        lines.into_iter().map(|(budget, points)| Line::scatter(&name(budget), points)).collect::<Vec<Line>>()
    };
    let parts = [("80 steps", FateRow::MODES.map(grid)), ("160 steps", FateRow::MODES.map(primary))];
    let panels = parts.into_iter().flat_map(|(steps, modes)| {
        let ends = modes.iter().flatten().flat_map(|line| &line.points).flat_map(|p| [p.low, p.high]);
        let (low, high) = ends.fold((0.0, 0.0), |(low, high): (f64, f64), y| (low.min(y), high.max(y)));
        let room = 0.05 * (high - low);
        let panel = move |(mode, lines): (&str, Vec<Line>)| {
            Figure::lines(LineChart {
                title: format!("{mode}, {steps}: mean over seeds"),
                x: Axis::new("benefit of a block at the start"),
                y: Axis { range: Some((low - room, high + room)), ..Axis::new("change of the switch rate") },
                lines,
                levels: vec![0.0],
                marks: vec![0.0],
                ..LineChart::default()
            })
        };
        FateRow::MODES.into_iter().zip(modes).filter_map(panel).collect::<Vec<Figure>>()
    });
    let panels: Vec<Figure> = panels.collect();
    let title = "What switching is worth, and what reinforcement learning makes of it (ours)";
    exhibit.drawing(title, FateRow::MODES.len(), panels, LAW)
}
