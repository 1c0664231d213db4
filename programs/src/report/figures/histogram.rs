//! Histograms of several samples over shared bins, each with its mean. Knows numbers only.

use anyhow::{Result, ensure};

use super::axes::{Axis, Plot};
use super::legend::Key;
use super::scene::{At, Scene, Shape};
use super::style::{Series, colour, dash};

/// Shares of each sample per bin; a dashed vertical line marks each mean. Samples of different size can be compared.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub title: String,
    pub x: Axis,
    /// Unit of counting, e.g. `problems`.
    pub of: String,
    /// Name and values of each sample; n and mean are added to the name.
    pub samples: Vec<(String, Vec<f64>)>,
    /// Number of bins; on an axis of whole numbers at most this many.
    pub bins: usize,
}

impl Histogram {
    pub(super) fn scene(&self, series: &Series) -> Result<Scene> {
        ensure!(self.bins > 0, "histogram '{}' has no bins", self.title);
        ensure!(!self.x.log, "histogram '{}': bins are of equal width, not logarithmic", self.title);
        check(&self.title, &self.samples)?;
        let values = || self.samples.iter().flat_map(|(_, v)| v.iter().copied());
        let (l, h) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high, bins) = match self.x.range {
            Some((low, high)) => (low, high, self.bins),
            // Each bin has as many whole numbers as the others, or flat data would look jagged.
            None if self.x.whole => {
                let numbers = h - l + 1.0;
                let width = (numbers / self.bins as f64).ceil();
                let bins = (numbers / width).ceil();
                (l - 0.5, l - 0.5 + width * bins, bins as usize)
            }
            None if h > l => (l, h, self.bins),
            None => (l - 0.5, l + 0.5, self.bins),
        };
        ensure!(high > low, "histogram '{}': range {low} to {high} is empty", self.title);
        let step = (high - low) / bins as f64;
        let shares: Vec<Vec<f64>> = self.samples.iter().map(|(_, v)| shares(v, low, step, bins)).collect();
        let top = shares.iter().flatten().fold(0.0f64, |a, &b| a.max(b));
        let mut legend = with_n(&self.samples, series);
        for ((text, _), (name, values)) in legend.iter_mut().zip(&self.samples) {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let digits = if mean.abs() < 10.0 { 2 } else { 0 };
            *text = format!("{name} (n={}, mean {mean:.digits$})", values.len());
        }
        let y = Axis::new(&format!("share of {}", self.of)).range(0.0, 1.08 * top);
        let ends = [(low, 0.0), (high, 0.0)];
        let (mut scene, plot) = Plot::new(&self.title, &self.x, &y, &ends, None, &legend)?;
        for ((i, shares), (name, _)) in shares.iter().enumerate().zip(&self.samples) {
            let i = series.number(name, i);
            let mut outline: Vec<At> = vec![plot.at(low, 0.0)];
            for (bin, share) in shares.iter().enumerate() {
                let edge = low + bin as f64 * step;
                outline.extend([plot.at(edge, *share), plot.at(edge + step, *share)]);
            }
            outline.push(plot.at(high, 0.0));
            scene.shapes.push(Shape::Area { points: outline.clone(), colour: colour(i), alpha: 0.15 });
            scene.line(&outline, colour(i), 5.0, dash(i));
        }
        for (i, (name, values)) in self.samples.iter().enumerate() {
            let i = series.number(name, i);
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            scene.line(&[(plot.x(mean), plot.top), (plot.x(mean), plot.bottom)], colour(i), 4.0, Some((14.0, 10.0)));
        }
        plot.finish(&mut scene);
        Ok(scene)
    }
}

/// Share of `values` in each bin; values beyond a fixed range count in the outer bins, so that shares sum to 1.
fn shares(values: &[f64], low: f64, step: f64, bins: usize) -> Vec<f64> {
    let mut shares = vec![0.0; bins];
    for v in values {
        let bin = ((v - low) / step).floor().clamp(0.0, (bins - 1) as f64) as usize;
        shares[bin] += 1.0 / values.len() as f64;
    }
    shares
}

/// Legend entries `name (n = …)`.
pub(super) fn with_n(samples: &[(String, Vec<f64>)], series: &Series) -> Vec<(String, Key)> {
    let entry = |(i, (name, values)): (usize, &(String, Vec<f64>))| {
        (format!("{name} (n={})", values.len()), Key::Line(series.number(name, i), false))
    };
    samples.iter().enumerate().map(entry).collect()
}

/// Requires finite numbers.
pub(super) fn check(title: &str, samples: &[(String, Vec<f64>)]) -> Result<()> {
    ensure!(!samples.is_empty(), "chart '{title}' has no samples");
    for (name, values) in samples {
        ensure!(!values.is_empty(), "chart '{title}': sample '{name}' is empty");
        ensure!(
            values.iter().all(|v| v.is_finite()),
            "chart '{title}': sample '{name}' holds a value that is not finite"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The heights of the outline's corners, without its ends on the axis.
    fn heights(values: Vec<f64>) -> Vec<f64> {
        let samples = vec![("a".to_owned(), values)];
        let (title, x, of) = ("t".into(), Axis::new("x").whole(), "problems".into());
        let scene = Histogram { title, x, of, samples, bins: 30 }.scene(&Series::default()).expect("a scene");
        let outline = scene.shapes.iter().find_map(|shape| match shape {
            Shape::Area { points, .. } => Some(points.iter().map(|point| point.1).collect::<Vec<f64>>()),
            _ => None,
        });
        let corners = outline.expect("an outline");
        corners[1..corners.len() - 1].to_vec()
    }

    #[test]
    fn whole_numbers_that_are_equally_frequent_have_bins_of_one_height() {
        // 46 numbers in bins of 2; 20 numbers in bins of 1.
        for (last, bins) in [(53, 23), (27, 20)] {
            let corners = heights((8..=last).map(f64::from).collect());
            assert_eq!(corners.len(), 2 * bins);
            assert!(corners.iter().all(|y| (y - corners[0]).abs() < 1e-6), "{corners:?}");
        }
        assert_eq!(heights(vec![5.0, 5.0]).len(), 2);
    }
}
