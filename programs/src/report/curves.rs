//! Training curves of a run: loss and accuracy of the supervised phases, the GRPO trajectory (the paper's figures `calibration` and
//! `calibration-full`), and the histogram of annotation entropies.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::figures::{Axis, Figure, FigureFiles, Histogram, Line, LineChart, Point, save};
use super::folder::{number, place};
use switchyard::schema::{GrpoStepRow, METRICS, StepRow};
use switchyard::store::{FlatRow, ensure_inside, parquet, read_flat};

/// Window of the rolling mean over the raw values: the paper's 80 (of 1,964 steps) for runs of similar length.
pub(super) fn window(steps: usize) -> usize {
    if steps >= 1000 { 80 } else { 20 }
}

/// Whether these are the metrics of supervised training.
pub(super) fn is_supervised(rows: &[FlatRow]) -> bool {
    let [accuracy] = columns!(StepRow: token_accuracy);
    rows.first().is_some_and(|row| number(row, accuracy).is_some())
}

/// Draws every curve whose records exist under `run`; returns the files, none for an untrained run.
pub fn draw(run: &Path) -> Result<Vec<FigureFiles>> {
    let out = run.join("figures");
    ensure_inside(&out)?;
    let mut files = vec![];
    let mut supervised = vec![];
    for phase in phases(run)? {
        let rows = read_flat(&metrics(run, &phase))?;
        supervised.extend(Some((phase, rows)).filter(|(_, rows)| is_supervised(rows)));
    }
    if !supervised.is_empty() {
        let borrowed: Vec<(&str, &[FlatRow])> =
            supervised.iter().map(|(phase, rows)| (phase.as_str(), rows.as_slice())).collect();
        let [loss, accuracy] = columns!(StepRow: loss, token_accuracy);
        let panels = [
            curve("training loss", "cross-entropy (nats per token)", &borrowed, loss, true),
            curve("training accuracy", "token accuracy", &borrowed, accuracy, false),
        ];
        files.extend(saved(&out.join("training"), panels)?);
    }
    let grpo = metrics(run, "grpo");
    if grpo.exists() {
        let rows = read_flat(&grpo)?;
        let rows = [("grpo", rows.as_slice())];
        let [reward, switch_rate, latent_calls, visible_tokens] =
            columns!(GrpoStepRow: reward, switch_rate, latent_calls, visible_tokens);
        let panels = [
            curve("Switch-GRPO: reward", "mean reward of a batch", &rows, reward, false),
            curve("Switch-GRPO: switch rate", "share of rollouts", &rows, switch_rate, false),
            curve("Switch-GRPO: latent calls", "per rollout", &rows, latent_calls, false),
            curve("Switch-GRPO: visible tokens", "per rollout", &rows, visible_tokens, false),
        ];
        files.extend(saved(&out.join("grpo"), panels)?);
    }
    let entropies = run.join("annotate").join("entropies.parquet");
    if entropies.exists() {
        files.push(save(&out.join("entropies"), &[histogram(&entropies)?])?);
    }
    Ok(files)
}

/// Saves the existing panels, if any.
fn saved<const N: usize>(stem: &Path, panels: [Option<Figure>; N]) -> Result<Option<FigureFiles>> {
    let panels: Vec<Figure> = panels.into_iter().flatten().collect();
    if panels.is_empty() { Ok(None) } else { save(stem, &panels).map(Some) }
}

/// Phases with metrics, in the order of training.
fn phases(run: &Path) -> Result<Vec<String>> {
    let mut found = vec![];
    for entry in fs::read_dir(run).with_context(|| format!("reading {}", run.display()))? {
        found.extend(entry?.file_name().into_string());
    }
    found.retain(|phase| metrics(run, phase).is_file());
    found.sort_by_key(|phase| (place(phase), phase.clone()));
    Ok(found)
}

fn metrics(run: &Path, phase: &str) -> PathBuf {
    run.join(phase).join(format!("{METRICS}.parquet"))
}

/// A metric over the steps of the phases that have it, with single batches if there is only one phase; `None` without any.
pub(super) fn curve(title: &str, y: &str, phases: &[(&str, &[FlatRow])], key: &str, log: bool) -> Option<Figure> {
    let values = |rows: &[FlatRow]| -> Vec<(f64, f64)> {
        rows.iter()
            .filter_map(|row| Some((number(row, "step")?, number(row, key)?)))
            .filter(|(_, y)| y.is_finite())
            .collect()
    };
    let curves: Vec<(&str, Vec<(f64, f64)>)> =
        phases.iter().map(|(phase, rows)| (*phase, values(rows))).filter(|(_, points)| !points.is_empty()).collect();
    let mut lines = vec![];
    if let [(_, points)] = curves.as_slice() {
        lines.push(Line::scatter("each batch", points.iter().map(|&(x, y)| Point::bare(x, y)).collect()));
    }
    lines.extend(curves.iter().map(|(phase, points)| Line::band(&phase.replace('_', " "), rolling(points))));
    let axis = Axis::new(y);
    let y = if log { axis.log() } else { axis };
    Figure::lines(LineChart { title: title.into(), x: Axis::new("optimiser step"), y, lines, ..LineChart::default() })
}

/// Mean of the last [`window`] values, with ± 1.96 standard errors.
pub(super) fn rolling(points: &[(f64, f64)]) -> Vec<Point> {
    let (every, of) = ((points.len() / 200).max(1), window(points.len()));
    let at = |i: usize| {
        let window = &points[i.saturating_sub(of - 1)..=i];
        let n = window.len() as f64;
        let mean = window.iter().map(|p| p.1).sum::<f64>() / n;
        let variance = window.iter().map(|p| (p.1 - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let half = 1.96 * (variance / n).sqrt();
        // A band on a logarithmic axis must stay above zero.
        Point { x: points[i].0, y: mean, low: (mean - half).max(mean * 0.05).min(mean), high: mean + half }
    };
    (0..points.len()).step_by(every).map(at).collect()
}

fn histogram(path: &Path) -> Result<Figure> {
    let frame = parquet::read(path)?;
    let column = frame.column("entropy").with_context(|| format!("{}: has no column `entropy`", path.display()))?;
    let column = column.cast(&polars::prelude::DataType::Float64)?;
    let values: Vec<f64> = column.f64()?.iter().flatten().filter(|h| h.is_finite()).collect();
    Ok(Figure::Histogram(Histogram {
        title: "Next-token entropy of response positions".into(),
        x: Axis::new("entropy (nats)"),
        of: "response positions".into(),
        samples: vec![("annotator".into(), values)],
        bins: 60,
    }))
}
