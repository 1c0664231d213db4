//! Lines of points with intervals. Knows x, y and the ends of an interval.

use anyhow::{Context, Result};

use super::axes::{Axis, Plot, is_cut};
use super::legend::Key;
use super::scene::{At, Scene, Shape};
use super::style::{INK, Series, colour, dash};
use crate::stats::Estimate;

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

    /// A value without an interval, e.g. one the paper reports.
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

    /// Marked points with bars, not joined.
    pub(crate) fn scatter(name: &str, points: Vec<Point>) -> Self {
        Self { joined: false, ..Self::bars(name, points) }
    }
}

/// A chart of lines.
#[derive(Clone, Debug, Default)]
pub struct LineChart {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
    /// Thin horizontal lines, e.g. chance level, in the units of y.
    pub levels: Vec<f64>,
    /// Thin vertical lines, e.g. the boundary at offset 0, in the units of x.
    pub marks: Vec<f64>,
}

impl LineChart {
    /// The same without points that no axis has a place for, without lines that then have none, and on a linear axis where a
    /// logarithmic one would show nothing; none where nothing is left. An interval without an end is not drawn.
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

    /// What the y axis must hold.
    fn heights(&self) -> impl Iterator<Item = f64> {
        let points = self.lines.iter().flat_map(|l| &l.points);
        points.flat_map(|p| [p.low, p.high, p.y]).chain(self.levels.iter().copied())
    }

    /// Whether the y axis does not begin at zero.
    pub(super) fn is_cut(&self) -> bool {
        is_cut(&self.y, self.heights())
    }

    pub(super) fn scene(&self, series: &Series) -> Result<Scene> {
        let places = || self.lines.iter().flat_map(|l| &l.points).map(|p| p.x);
        let first = places().next().with_context(|| format!("chart '{}' has no points", self.title))?;
        let mut data: Vec<(f64, f64)> = self.heights().map(|y| (first, y)).collect();
        data.extend(places().map(|x| (x, f64::NAN)));
        let number = |(place, line): (usize, &Line)| series.number(&line.name, place);
        let legend: Vec<(String, Key)> = self
            .lines
            .iter()
            .enumerate()
            .filter(|(_, line)| !line.name.is_empty())
            .map(|(i, l)| {
                let of = number((i, l));
                (l.name.clone(), if l.joined { Key::Line(of, l.marked) } else { Key::Mark(of) })
            })
            .collect();
        let (mut scene, plot) = Plot::new(&self.title, &self.x, &self.y, &data, None, &legend)?;
        for &y in &self.levels {
            scene.line(&[(plot.left, plot.y(y)), (plot.right, plot.y(y))], INK, 2.0, Some((4.0, 8.0)));
        }
        for &x in &self.marks {
            scene.line(&[(plot.x(x), plot.top), (plot.x(x), plot.bottom)], INK, 2.0, Some((4.0, 8.0)));
        }
        for (i, line) in self.lines.iter().enumerate() {
            // Series share their x; a few pixels keep their bars from hiding one another. Only where nothing lies between two
            // values of x: elsewhere the place says the value.
            let middle = 0.5 * (self.lines.len() - 1) as f64;
            let dodge = if line.joined && self.x.whole { 8.0 * (i as f64 - middle) } else { 0.0 };
            draw(&mut scene, &plot, &self.y, line, number((i, line)), dodge);
        }
        plot.finish(&mut scene);
        Ok(scene)
    }
}

fn draw(scene: &mut Scene, plot: &Plot, y: &Axis, line: &Line, series: usize, dodge: f64) {
    let aside = if line.interval == Interval::Bars { dodge } else { 0.0 };
    let place = |p: &Point| plot.x(p.x) + aside;
    // What has no place on the axis is not drawn; the line breaks there instead of pretending.
    for run in line.points.split(|p| !(p.x.is_finite() && y.shows(p.y))).filter(|run| !run.is_empty()) {
        if line.interval == Interval::Band && run.len() > 1 {
            let above = run.iter().map(|p| plot.at(p.x, p.high));
            let below = run.iter().rev().map(|p| plot.at(p.x, p.low));
            scene.shapes.push(Shape::Area { points: above.chain(below).collect(), colour: colour(series), alpha: 0.2 });
        }
        if line.joined {
            let path: Vec<At> = run.iter().map(|p| (place(p), plot.y(p.y))).collect();
            scene.line(&path, colour(series), 5.0, dash(series));
        }
        for p in run {
            let x = place(p);
            if (line.interval == Interval::Bars || run.len() == 1) && p.high > p.low {
                whisker(scene, x, plot.y(p.low), plot.y(p.high), colour(series));
            }
            if line.marked {
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

/// The marker of a series: disc, square, triangle, cross in turn.
pub(super) fn marker(scene: &mut Scene, (x, y): At, series: usize) {
    let (r, colour) = (10.0, colour(series));
    match series % 4 {
        0 => scene.shapes.push(Shape::Dot { at: (x, y), radius: r, colour }),
        1 => scene.shapes.push(Shape::Box { from: (x - r, y - r), to: (x + r, y + r), colour, alpha: 1.0 }),
        2 => {
            let points = vec![(x, y - 1.3 * r), (x - 1.2 * r, y + r), (x + 1.2 * r, y + r)];
            scene.shapes.push(Shape::Area { points, colour, alpha: 1.0 });
        }
        _ => {
            scene.line(&[(x - r, y - r), (x + r, y + r)], colour, 5.0, None);
            scene.line(&[(x - r, y + r), (x + r, y - r)], colour, 5.0, None);
        }
    }
}
