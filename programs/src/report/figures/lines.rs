//! Lines of points with intervals. Knows x, y and the ends of an interval.

use anyhow::{Context, Result};

use super::axes::{Axis, Plot};
use super::legend::Key;
use super::scene::{At, Scene, Shape};
use super::style::{INK, PINK, Series, WIDTH, colour, dash};
use switchyard::stats::Estimate;

/// A point and its interval; equal ends draw none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

impl Point {
    /// An estimate at `x`.
    pub fn new(x: f64, y: Estimate) -> Self {
        Self { x, y: y.value, low: y.low, high: y.high }
    }

    /// A value without an interval, e.g. the paper's.
    pub fn bare(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }
}

/// How intervals are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// A shaded band, for lines of many points.
    Band,
    /// A bar at each point.
    Bars,
}

/// One series.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<Point>,
    pub interval: Interval,
    /// Whether the points are joined.
    pub joined: bool,
    /// Whether each point gets a marker.
    pub marked: bool,
}

impl Line {
    /// A joined line with a band.
    pub fn band(name: &str, points: Vec<Point>) -> Self {
        Self { name: name.to_string(), points, interval: Interval::Band, joined: true, marked: false }
    }

    /// Joined, marked points with bars.
    pub fn bars(name: &str, points: Vec<Point>) -> Self {
        Self { name: name.to_string(), points, interval: Interval::Bars, joined: true, marked: true }
    }

    /// Runs of consecutive points inside the axes.
    fn runs<'a>(&'a self, y: &'a Axis) -> impl Iterator<Item = &'a [Point]> {
        self.points.split(move |p| !(p.x.is_finite() && y.shows(p.y))).filter(|run| !run.is_empty())
    }

    /// Whether there is a line between two of its points.
    fn is_drawn(&self, y: &Axis) -> bool {
        self.joined && self.runs(y).any(|run| run.len() > 1)
    }

    /// Marked points with bars, not joined.
    pub(crate) fn scatter(name: &str, points: Vec<Point>) -> Self {
        Self { joined: false, ..Self::bars(name, points) }
    }
}

/// Pixels between series that share an x.
const DODGE: f64 = 8.0;

#[derive(Clone, Debug, Default)]
pub struct LineChart {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
    /// Thin horizontal lines, e.g. chance level, in the units of y.
    pub levels: Vec<f64>,
    /// Name of the levels in the legend; empty: not named.
    pub level: String,
    /// Thin vertical lines, e.g. the boundary at offset 0, in the units of x.
    pub marks: Vec<f64>,
    /// Ranges of x that are shaded, e.g. where a run hacks its reward.
    pub shaded: Vec<(f64, f64)>,
}

impl LineChart {
    /// Drops points outside the axes and lines without points, and switches to a linear axis if a logarithmic one would show nothing; `None` if
    /// nothing is left. An infinite interval is not drawn.
    pub(super) fn drawable(mut self) -> Option<Self> {
        let finite = |axis: &Axis, v: f64| Axis { log: false, ..axis.clone() }.shows(v);
        for line in &mut self.lines {
            line.points.retain(|p| self.x.shows(p.x) && finite(&self.y, p.y));
            for p in &mut line.points {
                p.low = if finite(&self.y, p.low) { p.low } else { p.y };
                p.high = if finite(&self.y, p.high) { p.high } else { p.y };
            }
        }
        self.y.log &= self.lines.iter().flat_map(|line| &line.points).any(|p| self.y.shows(p.y));
        for line in &mut self.lines {
            let (all, below) = (line.points.len(), line.points.iter().filter(|p| !self.y.shows(p.y)).count());
            if below > 0 {
                line.name += &format!(" ({below} of {all} not above 0)");
            }
        }
        self.lines.retain(|line| line.points.iter().any(|p| self.y.shows(p.y)));
        (!self.lines.is_empty()).then_some(self)
    }

    /// Values that the y axis must include.
    fn heights(&self) -> impl Iterator<Item = f64> {
        let points = self.lines.iter().flat_map(|l| &l.points);
        points.flat_map(|p| [p.low, p.high, p.y]).chain(self.levels.iter().copied())
    }

    /// The x of every point.
    fn places(&self) -> impl Iterator<Item = f64> {
        self.lines.iter().flat_map(|l| &l.points).map(|p| p.x)
    }

    /// Whether an axis excludes zero.
    pub(super) fn is_cut(&self) -> bool {
        self.x.is_cut(self.places()) || self.y.is_cut(self.heights())
    }

    /// Whether points are shifted sideways from those of other lines.
    fn dodges(&self, line: &Line) -> bool {
        line.joined && line.interval == Interval::Bars && self.x.whole
    }

    /// The x axis with a margin of this many pixels, plus those of a marker, on both sides of its data.
    fn wider(&self, pixels: f64) -> Axis {
        let (low, high) = self.places().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
        let share = ((pixels + 24.0) / WIDTH).min(0.3);
        let room = (high - low) * (share / (1.0 - 2.0 * share)).max(0.04);
        let range = (low < high).then_some((low - room, high + room));
        Axis { range: self.x.range.or(range), ..self.x.clone() }
    }

    pub(super) fn scene(&self, series: &Series) -> Result<Scene> {
        let first = self.places().next().with_context(|| format!("chart '{}' has no points", self.title))?;
        let mut data: Vec<(f64, f64)> = self.heights().map(|y| (first, y)).collect();
        data.extend(self.places().map(|x| (x, f64::NAN)));
        // Series share their x; a shift of a few pixels separates their bars. Only between discrete values of x: elsewhere the position is the
        // value.
        let middle = 0.5 * (self.lines.len() - 1) as f64;
        let dodge = |(i, line): (usize, &Line)| if self.dodges(line) { DODGE * (i as f64 - middle) } else { 0.0 };
        let x =
            if self.lines.iter().any(|line| self.dodges(line)) { self.wider(middle * DODGE) } else { self.x.clone() };
        let number = |(place, line): (usize, &Line)| series.number(&line.name, place);
        let legend: Vec<(String, Key)> = self
            .lines
            .iter()
            .enumerate()
            .filter(|(_, line)| !line.name.is_empty())
            .map(|(i, l)| {
                let of = number((i, l));
                (l.name.clone(), if l.is_drawn(&self.y) { Key::Line(of, l.marked) } else { Key::Mark(of) })
            })
            .chain((!self.levels.is_empty() && !self.level.is_empty()).then(|| (self.level.clone(), Key::Dashes)))
            .collect();
        let (mut scene, plot) = Plot::new(&self.title, &x, &self.y, &data, None, &legend)?;
        for &(from, to) in &self.shaded {
            let points = vec![
                (plot.x(from), plot.top),
                (plot.x(to), plot.top),
                (plot.x(to), plot.bottom),
                (plot.x(from), plot.bottom),
            ];
            scene.shapes.push(Shape::Area { points, colour: PINK, alpha: 0.25 });
        }
        for &y in &self.levels {
            scene.line(&[(plot.left, plot.y(y)), (plot.right, plot.y(y))], INK, 2.0, Some((4.0, 8.0)));
        }
        for &x in &self.marks {
            scene.line(&[(plot.x(x), plot.top), (plot.x(x), plot.bottom)], INK, 2.0, Some((4.0, 8.0)));
        }
        for (i, line) in self.lines.iter().enumerate() {
            draw(&mut scene, &plot, &self.y, line, number((i, line)), dodge((i, line)));
        }
        plot.finish(&mut scene);
        Ok(scene)
    }
}

fn draw(scene: &mut Scene, plot: &Plot, y: &Axis, line: &Line, series: usize, dodge: f64) {
    let place = |p: &Point| plot.x(p.x) + dodge;
    // Points outside the axis are not drawn, and the line breaks there.
    for run in line.runs(y) {
        if line.interval == Interval::Band && run.len() > 1 {
            let above = run.iter().map(|p| plot.at(p.x, p.high));
            let below = run.iter().rev().map(|p| plot.at(p.x, p.low));
            scene.shapes.push(Shape::Area { points: above.chain(below).collect(), colour: colour(series), alpha: 0.2 });
        }
        if line.joined && run.len() > 1 {
            let path: Vec<At> = run.iter().map(|p| (place(p), plot.y(p.y))).collect();
            scene.line(&path, colour(series), 5.0, dash(series));
        }
        for p in run {
            let x = place(p);
            if (line.interval == Interval::Bars || run.len() == 1) && p.high > p.low {
                whisker(scene, x, plot.y(p.low), plot.y(p.high), colour(series));
            }
            if line.marked || run.len() == 1 {
                marker(scene, (x, plot.y(p.y)), series);
            }
        }
    }
}

/// An interval as a vertical bar with caps.
pub(super) fn whisker(scene: &mut Scene, x: f64, low: f64, high: f64, colour: plotters::style::RGBColor) {
    scene.line(&[(x, low), (x, high)], colour, 3.0, None);
    for y in [low, high] {
        scene.line(&[(x - 9.0, y), (x + 9.0, y)], colour, 3.0, None);
    }
}

/// The marker of a series: disc, square, triangle, cross, inverted triangle in turn, so that repeated (darker) colours have other markers.
pub(super) fn marker(scene: &mut Scene, (x, y): At, series: usize) {
    let (r, colour) = (10.0, colour(series));
    match series % 5 {
        0 => scene.shapes.push(Shape::Dot { at: (x, y), radius: r, colour }),
        1 => scene.shapes.push(Shape::Box { from: (x - r, y - r), to: (x + r, y + r), colour, alpha: 1.0 }),
        3 => {
            scene.line(&[(x - r, y - r), (x + r, y + r)], colour, 5.0, None);
            scene.line(&[(x - r, y + r), (x + r, y - r)], colour, 5.0, None);
        }
        at => {
            let up = if at == 2 { r } else { -r };
            let points = vec![(x, y - 1.3 * up), (x - 1.2 * r, y + up), (x + 1.2 * r, y + up)];
            scene.shapes.push(Shape::Area { points, colour, alpha: 1.0 });
        }
    }
}
