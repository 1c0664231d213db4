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
    pub bins: usize,
}

impl Histogram {
    pub(super) fn scene(&self, series: &Series) -> Result<Scene> {
        ensure!(self.bins > 0, "histogram '{}' has no bins", self.title);
        ensure!(!self.x.log, "histogram '{}': bins are of equal width, not logarithmic", self.title);
        check(&self.title, &self.samples)?;
        let values = || self.samples.iter().flat_map(|(_, v)| v.iter().copied());
        let (low, high) = self.x.range.unwrap_or_else(|| {
            let (l, h) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
            if h > l { (l, h) } else { (l - 0.5, l + 0.5) }
        });
        ensure!(high > low, "histogram '{}': range {low} to {high} is empty", self.title);
        let step = (high - low) / self.bins as f64;
        let shares: Vec<Vec<f64>> = self.samples.iter().map(|(_, v)| self.shares(v, low, step)).collect();
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

    /// Share of `values` in each bin; values beyond a fixed range count in the outer bins, so that shares sum to 1.
    fn shares(&self, values: &[f64], low: f64, step: f64) -> Vec<f64> {
        let mut shares = vec![0.0; self.bins];
        for v in values {
            let bin = ((v - low) / step).floor().clamp(0.0, (self.bins - 1) as f64) as usize;
            shares[bin] += 1.0 / values.len() as f64;
        }
        shares
    }
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
