//! A grid of cells coloured by value.

use anyhow::{Result, ensure};
use plotters::style::RGBColor;
use plotters::style::colors::colormaps::{ColorMap, ViridisRGB};

use super::fonts::width;
use super::scene::{Anchor, Scene, Shape};
use super::style::{INK, LABEL, MISSING, PAD, PAPER_WHITE, PLOT_HEIGHT, TICK, WIDTH};
use switchyard::stats::unsigned_zero;

/// Cells `[row][column]`, first row at the top; `None` is grey. Colours are viridis: perceptually uniform and safe for the colour-blind.
#[derive(Clone, Debug, Default)]
pub struct HeatMap {
    pub title: String,
    pub x: String,
    pub y: String,
    /// Meaning of the colour, with unit.
    pub unit: String,
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    pub cells: Vec<Vec<Option<f64>>>,
    /// Ends of the colour scale; by default those of the data.
    pub range: Option<(f64, f64)>,
    /// Whether to print values in the cells; text shrinks to fit and is omitted if it would be too small.
    pub print: bool,
}

impl HeatMap {
    pub(super) fn scene(&self) -> Result<Scene> {
        super::fonts::register()?;
        let (low, high) = self.check()?;
        let mut scene = Scene::new(WIDTH, 0.0);
        let top = scene.title(&self.title) + 12.0;
        let widest = |names: &[String]| names.iter().map(|n| width(n, TICK, false)).fold(0.0, f64::max);
        let left = PAD + 1.35 * LABEL + widest(&self.rows) + 12.0;
        let ends = [format(low, low, high), format(high, low, high)];
        let bar = WIDTH - PAD - 1.3 * LABEL - widest(&ends) - 40.0;
        let (right, bottom) = (bar - 24.0, top + PLOT_HEIGHT);
        let (dx, dy) = ((right - left) / self.columns.len() as f64, (bottom - top) / self.rows.len() as f64);
        let printed = self.cells.iter().flatten().flatten().map(|&v| format(v, low, high));
        let broad = printed.map(|text| width(&text, TICK, false)).fold(1.0, f64::max);
        let size = TICK.min(0.8 * dy).min(TICK * (dx - 6.0) / broad);
        let print = self.print && size >= 17.0;
        for (r, row) in self.cells.iter().enumerate() {
            for (c, cell) in row.iter().enumerate() {
                let from = (left + c as f64 * dx, top + r as f64 * dy);
                let to = (from.0 + dx, from.1 + dy);
                let colour = cell.map_or(MISSING, |v| shade(v, low, high));
                scene.shapes.push(Shape::Box { from, to, colour, alpha: 1.0 });
                if let Some(text) = cell.filter(|_| print).map(|v| format(v, low, high)) {
                    // Black on light cells, white on dark ones, never the ink colour, which a dark page inverts.
                    let light =
                        0.3 * f64::from(colour.0) + 0.59 * f64::from(colour.1) + 0.11 * f64::from(colour.2) > 140.0;
                    let (at, anchor) = ((0.5 * (from.0 + to.0), 0.5 * (from.1 + to.1)), Anchor::Centre);
                    let colour = if light { RGBColor(0, 0, 0) } else { PAPER_WHITE };
                    scene.shapes.push(Shape::Text { at, text, height: size, bold: false, anchor, colour });
                }
            }
        }
        scene.shapes.push(Shape::Frame { from: (left, top), to: (right, bottom), colour: INK });
        // Every k-th label, so that labels do not overlap. Wide column labels are rotated, unless all are numbers.
        let every = |room: f64, need: f64| ((need / room).ceil() as usize).max(1);
        for (r, name) in self.rows.iter().enumerate().step_by(every(dy, TICK)) {
            scene.text((left - 10.0, top + (r as f64 + 0.5) * dy), name, TICK, false, Anchor::Right);
        }
        let widest = widest(&self.columns);
        let upright = widest + 12.0 > dx && self.columns.iter().any(|name| name.parse::<usize>().is_err());
        let need = if upright { TICK } else { widest + 12.0 };
        for (c, name) in self.columns.iter().enumerate().step_by(every(dx, need)) {
            let x = left + (c as f64 + 0.5) * dx;
            if upright {
                scene.text((x, bottom + 12.0), name, TICK, false, Anchor::UpwardsEnd);
            } else {
                scene.text((x, bottom + 0.7 * TICK), name, TICK, false, Anchor::Centre);
            }
        }
        let below = bottom + if upright { 18.0 + widest } else { 1.3 * TICK };
        let (across, down) = (0.5 * (left + right), 0.5 * (top + bottom));
        scene.label((PAD + 0.5 * LABEL, down), &self.y, bottom - top, Anchor::Upwards);
        scene.label((across, below + 0.6 * LABEL), &self.x, right - left, Anchor::Centre);
        for i in 0..100 {
            let y = |i: f64| bottom - i / 100.0 * (bottom - top);
            let (from, to) = ((bar, y(f64::from(i) + 1.0)), (bar + 30.0, y(f64::from(i))));
            let colour = shade(low + (high - low) * (f64::from(i) + 0.5) / 100.0, low, high);
            scene.shapes.push(Shape::Box { from, to, colour, alpha: 1.0 });
        }
        scene.shapes.push(Shape::Frame { from: (bar, top), to: (bar + 30.0, bottom), colour: INK });
        scene.text((bar + 38.0, bottom - 0.5 * TICK), &ends[0], TICK, false, Anchor::Left);
        scene.text((bar + 38.0, top + 0.5 * TICK), &ends[1], TICK, false, Anchor::Left);
        scene.label((bar + 46.0 + 0.5 * LABEL, down), &self.unit, bottom - top - 2.0 * TICK, Anchor::Upwards);
        scene.height = below + 1.2 * LABEL + PAD;
        Ok(scene)
    }

    /// Checks the shape; returns the ends of the colour scale.
    fn check(&self) -> Result<(f64, f64)> {
        let (r, c) = (self.rows.len(), self.columns.len());
        ensure!(r > 0 && c > 0, "heat map '{}' is empty ({r} × {c})", self.title);
        ensure!(
            self.cells.len() == r && self.cells.iter().all(|row| row.len() == c),
            "heat map '{}': cells are not {r} rows × {c} columns",
            self.title
        );
        let values = self.cells.iter().flatten().flatten();
        let found = values
            .filter(|v| v.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
        let (low, high) = self.range.unwrap_or(found);
        ensure!(low.is_finite() && high.is_finite(), "heat map '{}' has no finite cell", self.title);
        Ok(if high > low { (low, high) } else { (low - 0.5, low + 0.5) })
    }
}

fn shade(value: f64, low: f64, high: f64) -> RGBColor {
    if !value.is_finite() {
        return MISSING;
    }
    let position = ((value - low) / (high - low)).clamp(0.0, 1.0) as f32;
    let (r, g, b) = {
        use plotters::style::Color;
        ViridisRGB.get_color(position).rgb()
    };
    RGBColor(r, g, b)
}

/// Enough decimals to distinguish a hundredth of the colour scale, at most four. Values that round to zero have no sign.
fn format(value: f64, low: f64, high: f64) -> String {
    let digits = (1.9 - (high - low).log10()).ceil().clamp(0.0, 4.0) as usize;
    unsigned_zero(format!("{value:.digits$}")).replace('-', "−")
}
