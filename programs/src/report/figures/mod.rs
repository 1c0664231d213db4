//! Figures for a one-column page: lines with intervals, bars, histograms, cumulative distributions, heat maps, networks.
//!
//! Knows numbers, names and intervals; nothing of experiments or records. Each chart is a plain value; [`save`] draws one or several charts
//! to SVG and PNG from the same list of shapes, so that the two cannot differ.
//!
//! Style: 1020 pixels wide, legible at 85 mm; the colour-blind-safe palette of Okabe & Ito (2008), with a dash pattern and a marker per
//! series in addition. Text is in DejaVu Sans, embedded in the program.

mod axes;
mod bars;
mod ecdf;
pub mod fonts;
mod heatmap;
mod histogram;
mod legend;
mod lines;
mod network;
mod png;
mod render;
mod scene;
mod style;
mod ticks;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

pub use axes::Axis;
pub use bars::{BarChart, BarSeries};
pub use ecdf::Ecdf;
pub use heatmap::HeatMap;
pub use histogram::Histogram;
pub use lines::{Interval, Line, LineChart, Point};
pub use network::{Link, Network, NetworkNode};
pub(crate) use scene::Scene;
use style::{Series, WIDTH};

use switchyard::store::write_atomic;

#[derive(Clone, Debug)]
pub enum Figure {
    Lines(LineChart),
    Bars(BarChart),
    Histogram(Histogram),
    Ecdf(Ecdf),
    HeatMap(HeatMap),
    Network(Network),
}

/// The two files of a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FigureFiles {
    pub svg: PathBuf,
    pub png: Option<PathBuf>,
}

impl Figure {
    /// A chart of the lines that can be drawn; `None` without any.
    pub(crate) fn lines(chart: LineChart) -> Option<Self> {
        chart.drawable().map(Self::Lines)
    }

    /// A chart of the series that have values; `None` without any.
    pub(crate) fn bars(mut chart: BarChart) -> Option<Self> {
        chart.series.retain(|series| series.values.iter().any(Option::is_some));
        (!chart.series.is_empty()).then_some(Self::Bars(chart))
    }

    /// Whether an axis of numbers excludes zero.
    pub(crate) fn is_cut(&self) -> bool {
        match self {
            Self::Lines(chart) => chart.is_cut(),
            Self::Histogram(Histogram { x, samples, .. }) | Self::Ecdf(Ecdf { x, samples, .. }) => {
                x.is_cut(samples.iter().flat_map(|(_, values)| values.iter().copied()))
            }
            Self::Bars(_) | Self::HeatMap(_) | Self::Network(_) => false,
        }
    }

    /// Whether its colours encode a number.
    pub(crate) fn is_heat(&self) -> bool {
        matches!(self, Self::HeatMap(_))
    }

    /// Whether it shows published values.
    pub(crate) fn has_paper(&self) -> bool {
        matches!(self, Self::Bars(chart) if chart.has_paper())
    }

    fn series(&self) -> Vec<&str> {
        match self {
            Self::Lines(chart) => chart.lines.iter().map(|line| line.name.as_str()).collect(),
            Self::Bars(chart) => chart.series.iter().map(|series| series.name.as_str()).collect(),
            Self::Histogram(Histogram { samples, .. }) | Self::Ecdf(Ecdf { samples, .. }) => {
                samples.iter().map(|(name, _)| name.as_str()).collect()
            }
            Self::HeatMap(_) | Self::Network(_) => vec![],
        }
    }

    fn title(&self) -> &str {
        match self {
            Self::Lines(chart) => &chart.title,
            Self::Bars(chart) => &chart.title,
            Self::Histogram(chart) => &chart.title,
            Self::Ecdf(chart) => &chart.title,
            Self::HeatMap(chart) => &chart.title,
            Self::Network(chart) => &chart.title,
        }
    }

    /// Text alternative in addition to the title; empty for charts whose numbers are also in tables.
    fn description(&self) -> String {
        match self {
            Self::Network(chart) => chart.description(),
            _ => String::new(),
        }
    }

    fn scene(&self, series: &Series) -> Result<Scene> {
        match self {
            Self::Lines(chart) => chart.scene(series),
            Self::Bars(chart) => chart.scene(series),
            Self::Histogram(chart) => chart.scene(series),
            Self::Ecdf(chart) => chart.scene(series),
            Self::HeatMap(chart) => chart.scene(),
            Self::Network(chart) => chart.scene(),
        }
    }
}

/// Draws `panels` from top to bottom into `<stem>.svg` and `<stem>.png`, each written whole or not at all.
pub fn save(stem: &Path, panels: &[Figure]) -> Result<FigureFiles> {
    let whole = laid_out(panels, 1).with_context(|| format!("figure {}", stem.display()))?;
    write(stem, panels, &whole, true)
}

/// Panels on one page. A series has the same colour in all of them.
pub(crate) fn laid_out(panels: &[Figure], columns: usize) -> Result<Scene> {
    ensure!(!panels.is_empty(), "no panels");
    let series = Series::new(panels.iter().flat_map(Figure::series));
    let mut whole = Scene::new(WIDTH, 0.0);
    let mut top = 0.0;
    for (number, panel) in panels.iter().enumerate() {
        let scene = panel.scene(&series).with_context(|| format!("panel {number}"))?;
        let column = number % columns;
        if column == 0 {
            top = whole.height;
        }
        whole.put(scene, (column as f64 * WIDTH, top));
    }
    Ok(whole)
}

/// Writes a page of panels as `<stem>.svg`, and with `png` as `<stem>.png`.
pub(crate) fn write(stem: &Path, panels: &[Figure], whole: &Scene, png: bool) -> Result<FigureFiles> {
    let path = |ending: &str| {
        let mut name = stem.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let files = FigureFiles { svg: path(".svg"), png: png.then(|| path(".png")) };
    let titles: Vec<&str> = panels.iter().map(Figure::title).collect();
    let described: Vec<String> = panels.iter().map(Figure::description).filter(|said| !said.is_empty()).collect();
    write_atomic(&files.svg, render::svg(whole, &titles.join("; "), &described.join(" "))?.as_bytes())?;
    files.png.iter().try_for_each(|file| write_atomic(file, &render::bitmap(whole)?))?;
    Ok(files)
}
