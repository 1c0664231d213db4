//! fig:calibration, fig:calibration-full: the trajectory of Switch-GRPO, as the paper's overlay and in full; its ends as cells
//! (`ours:training/reward/late`).

use super::{Drawing, Exhibit};
use crate::report::cells::{Cells, mean};
use crate::report::curves::{curve, rolling, window};
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, number};
use crate::report::paper::Paper;
use switchyard::schema::hacking::{HackingStep, begins};
use switchyard::schema::{GrpoStepRow, METRICS};
use switchyard::stats::{Estimate, FEWEST, unsigned_zero};
use switchyard::store::FlatRow;

const SOURCES: &[&str] = &[METRICS];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { cell, draw: overlay, ..Exhibit::new("fig:calibration", SOURCES) },
    Exhibit { cell, draw: full, ..Exhibit::new("fig:calibration-full", SOURCES) },
    Exhibit { cell, ..Exhibit::new("ours:training", SOURCES) },
];

/// The four metrics of the paper's figure: name, unit.
const SHOWN: [(&str, &str); 4] = [
    ("reward", "mean reward of a batch"),
    ("switch rate", "share of rollouts"),
    ("latent invocations", "per rollout"),
    ("visible tokens", "per rollout"),
];
const COLUMNS: &[&str; 4] = columns!(GrpoStepRow: reward, switch_rate, latent_calls, visible_tokens);

/// The paper's latent invocations are blocks; older rows count latent steps alone.
fn measured(rows: &[FlatRow], key: &'static str) -> &'static str {
    let [steps, blocks] = *columns!(GrpoStepRow: latent_calls, blocks);
    if key == steps && rows.iter().any(|row| number(row, blocks).is_some()) { blocks } else { key }
}

/// Ends of the trajectory: the means of the first and the last tenth of the steps, but at least as many as an interval needs. `None` if
/// the two would overlap.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let rows = cells.folder.flat(METRICS, &cells.folder.grpo);
    let tenth = rows.len().div_ceil(10).max(FEWEST);
    if rows.len() < 2 * tenth {
        return None;
    }
    let early = matches!(column, "start" | "before");
    let part = if early { &rows[..tenth] } else { &rows[rows.len() - tenth..] };
    let key = if row == "tokens" { COLUMNS[3] } else { COLUMNS.iter().find(|key| **key == row)? };
    let key = measured(rows, key);
    let found = mean(&part.iter().filter_map(|row| number(row, key)).collect::<Vec<_>>())?;
    // The paper's figure has this one in percent, and blocks as counts.
    Some(if row == "switch_rate" { found.scaled(100.0) } else { found })
}

/// The step from which a run hacks its reward, and its last step, which the checkpoint is from.
struct Stretches {
    hacking: Option<f64>,
    /// Whether there are enough steps with the watched quantities for a test of hacking.
    tested: bool,
    checkpoint: Option<f64>,
}

fn stretches(rows: &[FlatRow]) -> Stretches {
    let [accuracy, switch_rate, latent_calls] = columns!(GrpoStepRow: accuracy, switch_rate, latent_calls);
    let watched = rows.iter().filter_map(|row| {
        let of = |key| number(row, key);
        Some((of("step")?, HackingStep::from_rates(of(accuracy), of(switch_rate), of(latent_calls))?))
    });
    let (at, steps): (Vec<f64>, Vec<HackingStep>) = watched.unzip();
    Stretches {
        hacking: begins(&steps, window(steps.len())).and_then(|first| at.get(first).copied()),
        tested: steps.len() >= 2 * window(steps.len()),
        checkpoint: rows.last().and_then(|row| number(row, "step")),
    }
}

/// Four rolling means on one axis as in the paper, each between its own smallest and largest value, up to where hacking begins.
fn overlay(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let rows = folder.flat(METRICS, &folder.grpo);
    let Stretches { hacking, checkpoint, .. } = stretches(rows);
    let checkpoint = checkpoint.filter(|step| hacking.is_none_or(|first| *step < first));
    let stable = |step: f64| hacking.is_none_or(|first| step < first);
    let drawn = rows.iter().filter(|row| number(row, "step").is_some_and(stable)).count();
    let mut lines = vec![];
    for (key, (name, _)) in COLUMNS.iter().zip(SHOWN) {
        let key = measured(rows, key);
        let raw = rows.iter().filter_map(|r| Some((number(r, "step")?, number(r, key)?)));
        let raw: Vec<(f64, f64)> = raw.filter(|(step, _)| stable(*step)).collect();
        let smooth = rolling(&raw);
        let (low, high) = smooth.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), p| (l.min(p.y), h.max(p.y)));
        if high <= low {
            continue;
        }
        let points = smooth.iter().map(|p| Point::bare(p.x, (p.y - low) / (high - low))).collect();
        let end = raw.len().min(window(raw.len()));
        let ends = [&raw[..end], &raw[raw.len() - end..]].map(|part| {
            let mean = part.iter().map(|(_, y)| y).sum::<f64>() / end as f64;
            unsigned_zero(format!("{mean:.2}")).replace('-', "−")
        });
        lines.push(Line::band(&format!("{name} ({})", ends.join(" → ")), points));
    }
    let figure = Figure::lines(LineChart {
        title: "Switch-GRPO, four metrics".into(),
        x: Axis::new("optimiser step"),
        y: Axis::new("0: smallest, 1: largest"),
        lines,
        marks: checkpoint.into_iter().collect(),
        ..LineChart::default()
    });
    let mark = if checkpoint.is_some() { " Dashed: the measured checkpoint." } else { "" };
    let cut = if hacking.is_some() { " The figure ends where hacking begins (fig:calibration-full)." } else { "" };
    let note = format!(
        "Rolling means of {0} steps; in the legend, means of the first and last {0} steps. Each line is scaled to \
         its own minimum and maximum: heights of two lines are not comparable.{mark}{cut}",
        window(drawn)
    );
    exhibit.drawing("Switch-GRPO trajectory", 1, figure.into_iter().collect(), &note)
}

/// The four curves of the trajectory with their units, raw batches and bands, and where the run hacks its reward.
fn full(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let rows = folder.flat(METRICS, &folder.grpo);
    let (phases, Stretches { hacking, tested, checkpoint }) = ([(folder.grpo.as_str(), rows)], stretches(rows));
    let panel = |(key, (name, unit)): (&&'static str, (&str, &str))| {
        let figure = curve(&format!("Switch-GRPO: {name}"), unit, &phases, measured(rows, key), false)?;
        let Figure::Lines(chart) = figure else { return Some(figure) };
        let shaded = hacking.zip(checkpoint).into_iter().collect();
        Some(Figure::Lines(LineChart { shaded, marks: checkpoint.into_iter().collect(), ..chart }))
    };
    let panels = COLUMNS.iter().zip(SHOWN).filter_map(panel).collect();
    let hacks = match hacking {
        Some(first) => format!(
            "Shaded from step {first}: hacking. From the window with the most right answers on, accuracy falls while \
                                switch rate and latent steps rise."
        ),
        None if !tested => {
            "Not tested for hacking: too few steps with accuracy, switch rate and latent steps.".to_owned()
        }
        None => "No hacking is seen: accuracy does not fall while switch rate and latent steps rise.".to_owned(),
    };
    let note = format!(
        "Marks: batches. Band: rolling mean of {} steps ± 1.96 standard errors. Dashed: the measured checkpoint. \
         Latent invocations: blocks (in older rows, latent steps). {hacks}",
        window(rows.len())
    );
    exhibit.drawing("Switch-GRPO trajectory in full", 2, panels, &note)
}

#[cfg(test)]
mod tests {
    use switchyard::store::RowWriter;

    use super::*;

    /// 1,010 steps, cut to fewer than 1,000 by hacking, which is after the checkpoint's step.
    #[test]
    fn the_note_of_a_cut_trajectory_is_that_of_its_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = RowWriter::create(folder.path(), "metrics-grpo").expect("a file");
        for step in 1..=1010 {
            let x = f64::from(step) / 1010.0;
            let row = serde_json::json!({"step": step, "reward": x, "accuracy": 1.0 - (x - 0.5).abs(), "switch_rate": x,
                "latent_calls": 9.0 * x, "visible_tokens": 30.0 - x});
            writer.push(&row).expect("a row");
        }
        writer.finish().expect("a file");
        let (paper, folder) = (Paper::embedded().expect("the paper"), Folder::open(folder.path()).expect("rows"));
        let drawings = overlay(&EXHIBITS[0], &paper, &folder);
        let note = &drawings[0].note;
        assert!(note.contains("Rolling means of 20 steps") && note.contains("ends where hacking begins"), "{note}");
        let Figure::Lines(chart) = &drawings[0].panels[0] else { panic!("lines") };
        assert_eq!(note.contains("Dashed"), !chart.marks.is_empty(), "{note}");
        assert!(chart.marks.is_empty());
    }
}
