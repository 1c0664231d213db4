//! Grouped bars with intervals and, next to them, published values. Knows categories and series.

use anyhow::{Result, ensure};

use super::axes::{Axis, Plot};
use super::legend::Key;
use super::lines::whisker;
use super::scene::{At, Scene, Shape};
use super::style::{INK, PAPER_WHITE, Series, colour};
use switchyard::stats::Estimate;

/// One value per category; `None` leaves a gap.
#[derive(Clone, Debug)]
pub struct BarSeries {
    pub name: String,
    pub values: Vec<Option<Estimate>>,
    /// The paper's values for the same cells, drawn as diamonds next to the interval; may be empty.
    pub paper: Vec<Option<f64>>,
}

/// A chart of bars from zero.
#[derive(Clone, Debug, Default)]
pub struct BarChart {
    pub title: String,
    pub y: Axis,
    pub categories: Vec<String>,
    pub series: Vec<BarSeries>,
}

impl BarChart {
    pub(super) fn has_paper(&self) -> bool {
        self.series.iter().any(|s| s.paper.iter().any(Option::is_some))
    }

    pub(super) fn scene(&self, numbers: &Series) -> Result<Scene> {
        ensure!(!self.categories.is_empty() && !self.series.is_empty(), "bar chart '{}' is empty", self.title);
        for series in &self.series {
            for (what, n) in [("values", series.values.len()), ("published values", series.paper.len())] {
                ensure!(
                    n == self.categories.len() || (n == 0 && what != "values"),
                    "bar chart '{}': series '{}' has {n} {what} for {} categories",
                    self.title,
                    series.name,
                    self.categories.len()
                );
            }
        }
        ensure!(!self.y.log, "bar chart '{}': bars start at zero, which a logarithmic axis lacks", self.title);
        let last = self.categories.len() as f64 - 0.5;
        let values = self.series.iter().flat_map(|s| s.values.iter().flatten());
        let mut data = vec![(-0.5, 0.0), (last, 0.0)];
        data.extend(values.flat_map(|v| [v.low, v.high, v.value]).filter(|v| self.y.shows(*v)).map(|v| (0.0, v)));
        data.extend(self.series.iter().flat_map(|s| s.paper.iter().flatten()).map(|&p| (0.0, p)));
        let of = |(place, series): (usize, &BarSeries)| colour(numbers.number(&series.name, place));
        let named = self.series.iter().enumerate();
        let mut legend: Vec<(String, Key)> = named.map(|s| (s.1.name.clone(), Key::Patch(of(s)))).collect();
        if self.has_paper() {
            legend.push(("paper".to_string(), Key::Diamond));
        }
        let x = Axis::default().range(-0.5, last);
        // Bars begin at zero, with a margin above the highest interval.
        let ends = |f: fn(f64, f64) -> f64| data.iter().map(|d| d.1).fold(0.0, f);
        let (low, high) = match (ends(f64::min), ends(f64::max)) {
            (low, high) if high - low > 1e-300 => (low, high),
            // All zeros.
            _ => (0.0, 1.0),
        };
        let room = 0.04 * (high - low);
        let fitted = (if low < 0.0 { low - room } else { 0.0 }, if high > 0.0 { high + room } else { 0.0 });
        let y = Axis { range: self.y.range.or(Some(fitted)), ..self.y.clone() };
        let (mut scene, plot) = Plot::new(&self.title, &x, &y, &data, Some(&self.categories), &legend)?;
        let wide = 0.8 / self.series.len() as f64;
        for (i, series) in self.series.iter().enumerate() {
            let (from, fill) = (|category: usize| category as f64 - 0.4 + wide * i as f64, of((i, series)));
            for (category, value) in series.values.iter().enumerate() {
                let Some(value) = value.filter(|v| self.y.shows(v.value)) else {
                    continue;
                };
                let (a, b) = (plot.at(from(category), value.value), plot.at(from(category) + 0.94 * wide, 0.0));
                let (top, bottom) = (a.1.min(b.1), a.1.max(b.1));
                scene.shapes.push(Shape::Box { from: (a.0, top), to: (b.0, bottom), colour: fill, alpha: 0.8 });
                whisker(&mut scene, 0.5 * (a.0 + b.0), plot.y(value.low), plot.y(value.high), INK);
            }
            for (category, paper) in series.paper.iter().enumerate() {
                if let Some(paper) = paper {
                    diamond(&mut scene, plot.at(from(category) + 0.75 * wide, *paper));
                }
            }
        }
        plot.finish(&mut scene);
        Ok(scene)
    }
}

/// The mark of a published value: white with a dark rim, visible on any bar.
pub(super) fn diamond(scene: &mut Scene, (x, y): At) {
    let shape = |r: f64| vec![(x, y - r), (x + r, y), (x, y + r), (x - r, y)];
    scene.shapes.push(Shape::Area { points: shape(17.0), colour: INK, alpha: 1.0 });
    scene.shapes.push(Shape::Area { points: shape(11.0), colour: PAPER_WHITE, alpha: 1.0 });
}
