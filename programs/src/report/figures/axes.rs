//! Title, axes and grid of a chart, and the map from data to pixels. Knows ranges and names, not the plotted data.

use super::fonts::width;
use super::legend::{self, Key};
use super::scene::{Anchor, At, Scene};
use super::style::{GRID, INK, LABEL, PAD, PLOT_HEIGHT, TICK, WIDTH};
use super::ticks::{ticks, whole_ticks, words};
use anyhow::{Result, ensure};

/// One axis: its label with unit, whether it is logarithmic or has whole numbers only (latent steps), and its range (by default that of the
/// data).
#[derive(Clone, Debug, Default)]
pub struct Axis {
    pub label: String,
    pub log: bool,
    pub whole: bool,
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// A linear axis over the range of the data.
    pub fn new(label: &str) -> Self {
        Self { label: label.to_string(), ..Self::default() }
    }

    pub fn log(self) -> Self {
        Self { log: true, ..self }
    }

    /// Restricts the axis to whole numbers.
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// An axis of shares, from 0 to 1.
    pub(crate) fn share(label: &str) -> Self {
        Self::new(label).range(0.0, 1.04)
    }

    /// This axis with a fixed range.
    pub fn range(self, low: f64, high: f64) -> Self {
        Self { range: Some((low, high)), ..self }
    }

    /// The range for these data: with a margin on both sides, or the given one.
    fn span(&self, data: impl Iterator<Item = f64>) -> Result<(f64, f64)> {
        if let Some((low, high)) = self.range {
            ensure!(low < high && low.is_finite() && high.is_finite(), "axis '{}': range {low} to {high}", self.label);
            ensure!(!self.log || low > 0.0, "logarithmic axis '{}' cannot start at {low}", self.label);
            return Ok((low, high));
        }
        let (low, high) =
            data.filter(|v| self.shows(*v)).fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        ensure!(low <= high, "axis '{}' has no finite values to show", self.label);
        let largest = low.abs().max(high.abs());
        Ok(if self.log {
            let room = 10f64.powf(0.04 * (high.log10() - low.log10())).max(1.3);
            (low / room, high * room)
        } else if high - low > 1e-12 * largest && high - low > SMALLEST {
            let room = 0.04 * (high - low);
            // Includes zero if that takes at most a third of the axis.
            match (low > 0.0, high < 0.0) {
                _ if self.whole => (low - room, high + room),
                (true, _) if low < 0.5 * (high - low) => (0.0, high + room),
                (_, true) if -high < 0.5 * (high - low) => (low - room, 0.0),
                _ => (low - room, high + room),
            }
        } else {
            // A single value, or values too close for a tick between them.
            let room = 0.5f64.max(0.05 * largest);
            (low - room, high + room)
        })
    }

    /// Whether a linear axis excludes zero; one of whole numbers counts and needs no zero.
    fn cut(&self, (low, high): (f64, f64)) -> bool {
        !self.log && !self.whole && (low > 0.0 || high < 0.0)
    }

    /// Whether the axis for these data excludes zero.
    pub(super) fn is_cut(&self, data: impl Iterator<Item = f64>) -> bool {
        self.span(data).is_ok_and(|span| self.cut(span))
    }

    /// Whether a value can be shown: on a logarithmic axis only above zero.
    pub(crate) fn shows(&self, value: f64) -> bool {
        value.abs() < LARGEST && (!self.log || value > SMALLEST)
    }
}

/// Values that a chart can show are smaller than this; ranges and logarithms larger than this. Beyond both, sums overflow.
const LARGEST: f64 = 1e300;
const SMALLEST: f64 = 1e-300;

fn ticks_of(axis: &Axis, low: f64, high: f64) -> Vec<(f64, String)> {
    if axis.whole { whole_ticks(low, high) } else { ticks(low, high, axis.log) }
}

/// Named positions on the x axis instead of numbers.
pub(super) type Names<'a> = Option<&'a [String]>;

/// A plotting area with its scales.
pub(super) struct Plot {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
    x: (f64, f64, bool),
    y: (f64, f64, bool),
    /// Whether each axis excludes zero.
    cut: [bool; 2],
}

impl Plot {
    /// Lays out title, legend and axes into a new scene.
    pub fn new(
        title: &str,
        x: &Axis,
        y: &Axis,
        data: &[(f64, f64)],
        names: Names<'_>,
        legend: &[(String, Key)],
    ) -> Result<(Scene, Self)> {
        super::fonts::register()?;
        let (x0, x1) = x.span(data.iter().map(|d| d.0))?;
        let (y0, y1) = y.span(data.iter().map(|d| d.1))?;
        let ticks_y = ticks(y0, y1, y.log);
        let widest = ticks_y.iter().map(|t| width(&t.1, TICK, false)).fold(0.0, f64::max);
        let mut scene = Scene::new(WIDTH, 0.0);
        let top = scene.title(title);
        let top = legend::draw(&mut scene, legend, top + 4.0) + 0.5 * TICK;
        let left = PAD + 1.35 * LABEL + widest + 14.0;
        // The last number below the x axis is centred on its tick and may extend beyond the axis.
        let ticks_x = if names.is_some() { Vec::new() } else { ticks_of(x, x0, x1) };
        let last = ticks_x.last().map_or(0.0, |t| 0.5 * width(&t.1, TICK, false) + 8.0);
        let margin = last.max(PAD + 10.0);
        let plot = Self {
            left,
            top,
            right: WIDTH - margin,
            bottom: top + PLOT_HEIGHT,
            x: (x0, x1, x.log),
            y: (y0, y1, y.log),
            cut: [x.cut((x0, x1)), y.cut((y0, y1))],
        };
        for (value, text) in &ticks_y {
            let at = plot.y(*value);
            scene.line(&[(plot.left, at), (plot.right, at)], GRID, 2.0, None);
            scene.text((plot.left - 12.0, at), text, TICK, false, Anchor::Right);
        }
        let middle = 0.5 * (plot.top + plot.bottom);
        scene.label((PAD + 0.5 * LABEL, middle), &y.label, PLOT_HEIGHT + 2.0 * TICK, Anchor::Upwards);
        let below = match names {
            Some(names) => plot.name_ticks(&mut scene, names),
            None => plot.number_ticks(&mut scene, x),
        };
        let middle = 0.5 * (plot.left + plot.right);
        scene.label((middle, below + 0.6 * LABEL), &x.label, plot.right - plot.left, Anchor::Centre);
        scene.height = below + if x.label.is_empty() { PAD } else { 1.2 * LABEL + PAD };
        Ok((scene, plot))
    }

    /// Draws numbers below the x axis; returns their lower end.
    fn number_ticks(&self, scene: &mut Scene, axis: &Axis) -> f64 {
        for (value, text) in ticks_of(axis, self.x.0, self.x.1) {
            let at = self.x(value);
            scene.line(&[(at, self.bottom), (at, self.bottom + 10.0)], INK, 2.0, None);
            scene.text((at, self.bottom + 12.0 + 0.5 * TICK), &text, TICK, false, Anchor::Centre);
        }
        self.bottom + 12.0 + 1.1 * TICK
    }

    /// Draws names at positions 0, 1, …: wrapped, or vertical if even a word is too wide.
    fn name_ticks(&self, scene: &mut Scene, names: &[String]) -> f64 {
        let slot = (self.right - self.left) / names.len() as f64 - 8.0;
        let wrapped: Vec<Vec<String>> = names.iter().map(|n| words(n, slot, TICK, false)).collect();
        let fits = wrapped.iter().flatten().all(|line| width(line, TICK, false) <= slot);
        let mut end: f64 = self.bottom + 12.0;
        for (i, lines) in wrapped.iter().enumerate() {
            let at = self.x(i as f64);
            if fits {
                for (row, line) in lines.iter().enumerate() {
                    let y = self.bottom + 12.0 + (row as f64 + 0.5) * TICK;
                    scene.text((at, y), line, TICK, false, Anchor::Centre);
                    end = end.max(y + 0.6 * TICK);
                }
            } else {
                scene.text((at, self.bottom + 12.0), &names[i], TICK, false, Anchor::UpwardsEnd);
                end = end.max(self.bottom + 18.0 + width(&names[i], TICK, false));
            }
        }
        end
    }

    /// Draws the two axis lines last, over the data; with a zigzag at the foot of one that excludes zero.
    pub fn finish(&self, scene: &mut Scene) {
        let Self { left, bottom, .. } = *self;
        // Along the axis, and to its side.
        let zigzag = [(12.0, 0.0), (18.0, 9.0), (30.0, -9.0), (36.0, 0.0)];
        let up = zigzag.into_iter().rev().map(|(along, aside)| (left - aside, bottom - along));
        let right = zigzag.into_iter().map(|(along, aside)| (left + along, bottom - aside));
        let [up, right]: [Vec<At>; 2] = [up.filter(|_| self.cut[1]).collect(), right.filter(|_| self.cut[0]).collect()];
        let corner = [(left, self.top)].into_iter().chain(up).chain([(left, bottom)]).chain(right);
        scene.line(&corner.chain([(self.right, bottom)]).collect::<Vec<At>>(), INK, 3.0, None);
    }

    pub fn x(&self, value: f64) -> f64 {
        self.left + share(value, self.x) * (self.right - self.left)
    }

    pub fn y(&self, value: f64) -> f64 {
        self.bottom - share(value, self.y) * (self.bottom - self.top)
    }

    pub fn at(&self, x: f64, y: f64) -> At {
        (self.x(x), self.y(y))
    }
}

/// Relative position of a value in a range, clipped to 0 to 1: a band that leaves the axis ends at its edge.
fn share(value: f64, (low, high, log): (f64, f64, bool)) -> f64 {
    let f = |v: f64| if log { v.max(SMALLEST).log10() } else { v };
    ((f(value) - f(low)) / (f(high) - f(low))).clamp(0.0, 1.0)
}
