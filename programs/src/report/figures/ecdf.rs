//! Empirical cumulative distributions with a simultaneous band. Knows numbers only.

use anyhow::Result;

use super::axes::{Axis, Plot};
use super::histogram::{check, with_n};
use super::scene::{At, Scene, Shape};
use super::style::{Series, colour, dash};
use switchyard::stats::LEVEL;

/// The share of each sample at or below x. The band covers the whole true curve with 95 %: ± √(ln(2/α) / 2n)
/// (Dvoretzky, Kiefer & Wolfowitz 1956, with Massart's constant).
#[derive(Clone, Debug)]
pub struct Ecdf {
    pub title: String,
    pub x: Axis,
    /// Unit of counting, e.g. `problems`.
    pub of: String,
    /// Name and values of each sample; n is added to the name.
    pub samples: Vec<(String, Vec<f64>)>,
}

impl Ecdf {
    pub(super) fn scene(&self, series: &Series) -> Result<Scene> {
        check(&self.title, &self.samples)?;
        let data: Vec<(f64, f64)> = self.samples.iter().flat_map(|(_, v)| v.iter().map(|&x| (x, 0.0))).collect();
        let y = Axis::new(&format!("share of {} ≤ x", self.of)).range(0.0, 1.0);
        let (mut scene, plot) = Plot::new(&self.title, &self.x, &y, &data, None, &with_n(&self.samples, series))?;
        for (i, (name, values)) in self.samples.iter().enumerate() {
            let i = series.number(name, i);
            let margin = ((2.0 / (1.0 - LEVEL)).ln() / (2.0 * values.len() as f64)).sqrt();
            let steps = steps(values);
            let curve = |shift: f64| steps.iter().map(move |&(x, y)| (x, (y + shift).clamp(0.0, 1.0)));
            let place = |(x, y): (f64, f64)| plot.at(x, y);
            let band: Vec<At> = curve(margin).chain(curve(-margin).rev()).map(place).collect();
            scene.shapes.push(Shape::Area { points: band, colour: colour(i), alpha: 0.15 });
            let path: Vec<At> = curve(0.0).map(place).collect();
            scene.line(&path, colour(i), 5.0, dash(i));
        }
        plot.finish(&mut scene);
        Ok(scene)
    }
}

/// Corners of the staircase, from 0 at the smallest value to 1 at the largest.
fn steps(values: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    sorted.iter().enumerate().flat_map(|(i, &v)| [(v, i as f64 / n), (v, (i + 1) as f64 / n)]).collect()
}
