//! Figures for a one-column page: lines with intervals, bars, histograms, cumulative distributions, heat maps, networks.
//!
//! Knows numbers, names and intervals; nothing of experiments or rows. Each chart is a plain value; [`save`] draws one or
//! several charts to SVG and PNG from the same list of shapes, so the two cannot differ.
//!
//! Style: 1020 pixels wide, sized to be read at 85 mm; the palette of Okabe & Ito (2008), which the colour-blind can tell
//! apart, and besides colour a dash pattern and a marker per series. Text is set in DejaVu Sans, embedded in the program.

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
pub use network::{Link, Network, Node};
pub(crate) use scene::Scene;
use style::{Series, WIDTH};

use crate::store::write_atomic;

/// Any chart.
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
    /// A chart of the lines that have something to show; none where no line has.
    pub(crate) fn lines(chart: LineChart) -> Option<Self> {
        chart.drawable().map(Self::Lines)
    }

    /// Whether an axis of numbers does not begin at zero.
    pub(crate) fn is_cut(&self) -> bool {
        match self {
            Self::Lines(chart) => chart.is_cut(),
            Self::Histogram(Histogram { x, samples, .. }) | Self::Ecdf(Ecdf { x, samples, .. }) => {
                x.is_cut(samples.iter().flat_map(|(_, values)| values.iter().copied()))
            }
            Self::Bars(_) | Self::HeatMap(_) | Self::Network(_) => false,
        }
    }

    /// Whether its colours say a number.
    pub(crate) fn is_heat(&self) -> bool {
        matches!(self, Self::HeatMap(_))
    }

    /// Whether published values stand in it.
    pub(crate) fn has_paper(&self) -> bool {
        matches!(self, Self::Bars(chart) if chart.has_paper())
    }

    /// Names of its series.
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

    /// What a title cannot say, for those who cannot see it; empty for charts whose numbers stand in tables too.
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
///
/// # Errors
/// No panels, a chart that cannot be drawn, a disk that cannot be written.
pub fn save(stem: &Path, panels: &[Figure]) -> Result<FigureFiles> {
    let whole = laid_out(panels, 1).with_context(|| format!("figure {}", stem.display()))?;
    write(stem, panels, &whole, true)
}

/// Panels on one page. A series has the same colour in all of them.
///
/// # Errors
/// No panels; one whose numbers cannot be drawn.
pub(crate) fn laid_out(panels: &[Figure], columns: usize) -> Result<Scene> {
    ensure!(!panels.is_empty(), "no panels");
    let series = Series::of(panels.iter().flat_map(Figure::series));
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
///
/// # Errors
/// A disk that cannot be written.
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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::fonts::{register, width};

    /// A line of text of an SVG, and the box that it stands in: left, top, right, bottom.
    type Said = (String, [f64; 4]);

    fn texts(svg: &str) -> Vec<Said> {
        let mut found = vec![];
        for part in svg.split("<text ").skip(1) {
            let (tag, rest) = part.split_once('>').expect("a tag");
            let value = |key: &str| tag.split(&format!("{key}=\"")).nth(1).and_then(|rest| rest.split('"').next());
            let number = |key: &str| value(key).and_then(|n| n.parse::<f64>().ok()).expect("a number");
            let text = rest.split("</text>").next().expect("text").trim();
            let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
            // Plotters counts a text's height as 1.24 em.
            let long = width(&text, 1.24 * number("font-size"), tag.contains("bold"));
            let half = 0.4 * number("font-size");
            let before = match value("text-anchor") {
                Some("middle") => 0.5 * long,
                Some("end") => long,
                _ => 0.0,
            };
            let (x, y) = (number("x"), number("y"));
            found.push(if tag.contains("rotate(270") {
                (text, [x - half, y + before - long, x + half, y + before])
            } else {
                (text, [x - before, y - half, x - before + long, y + half])
            });
        }
        found
    }

    fn committed() -> Vec<PathBuf> {
        let folder = |path: &Path| -> Vec<PathBuf> {
            std::fs::read_dir(path).into_iter().flatten().map(|entry| entry.expect("an entry").path()).collect()
        };
        let reports = Path::new(env!("CARGO_MANIFEST_DIR")).join("reports");
        let mut all: Vec<PathBuf> =
            folder(&reports).iter().flat_map(|reports| folder(&reports.join("figures"))).collect();
        all.retain(|file| file.extension().is_some_and(|ending| ending == "svg"));
        all.sort();
        all
    }

    #[test]
    fn no_word_of_a_committed_figure_is_clipped_or_hides_another() {
        register().expect("the font");
        let files = committed();
        assert!(files.len() > 50, "{} figures", files.len());
        let mut wrong = vec![];
        for file in &files {
            let svg = std::fs::read_to_string(file).expect("an SVG");
            let side = |key: &str| -> f64 {
                svg.split(&format!(" {key}=\"")).nth(1).and_then(|n| n.split('"').next()?.parse().ok()).expect("a size")
            };
            let (page, texts) = ([side("width"), side("height")], texts(&svg));
            for (at, (text, [left, top, right, bottom])) in texts.iter().enumerate() {
                if *left < 0.0 || *top < 0.0 || *right > page[0] || *bottom > page[1] {
                    wrong.push(format!("{}: '{text}' leaves the page", file.display()));
                }
                let hides =
                    |b: &[f64; 4]| right.min(b[2]) - left.max(b[0]) > 2.0 && bottom.min(b[3]) - top.max(b[1]) > 2.0;
                let hidden = texts[at + 1..].iter().filter(|(_, b)| hides(b));
                wrong.extend(hidden.map(|(other, _)| format!("{}: '{text}' over '{other}'", file.display())));
            }
            if svg.contains("\n−0\n") || svg.contains("−0.0\n") || svg.contains("-0.0") {
                wrong.push(format!("{}: a zero with a sign", file.display()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
