//! Colours and sizes of all figures. Knows nothing of charts.

use plotters::style::RGBColor;

/// Okabe & Ito's colours in an order that separates neighbours for colour-blind and grey-scale readers, without yellow (too light for lines
/// on white).
pub(crate) const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),   // blue
    RGBColor(213, 94, 0),    // vermilion
    RGBColor(0, 158, 115),   // bluish green
    RGBColor(204, 121, 167), // reddish purple
    RGBColor(86, 180, 233),  // sky blue
    RGBColor(230, 159, 0),   // orange
    RGBColor(0, 0, 0),
];
pub(super) const INK: RGBColor = RGBColor(30, 30, 30);
pub(super) const GRID: RGBColor = RGBColor(225, 225, 225);
pub(super) const PINK: RGBColor = RGBColor(255, 130, 170);
pub(super) const PAPER_WHITE: RGBColor = RGBColor(255, 255, 255);
pub(super) const MISSING: RGBColor = RGBColor(200, 200, 200);

/// Width of every figure in pixels; at 85 mm a pixel is 1/12 mm.
pub(super) const WIDTH: f64 = 1020.0;
/// Height of a chart's plotting area.
pub(super) const PLOT_HEIGHT: f64 = 470.0;
pub(super) const PAD: f64 = 18.0;

/// Text heights in pixels (plotters' measure: 1.24 em); 34 is 6.5 points at 85 mm.
pub(super) const TITLE: f64 = 40.0;
pub(super) const LABEL: f64 = 37.0;
pub(super) const TICK: f64 = 34.0;

/// Colour of series `i`: the palette's, then darker versions (grey for black), so that fourteen series have distinct colours.
pub(super) fn colour(i: usize) -> RGBColor {
    let RGBColor(r, g, b) = PALETTE[i % PALETTE.len()];
    let dark = |part: u8| if i % (2 * PALETTE.len()) < PALETTE.len() { part } else { part / 2 };
    if (r, g, b) == (0, 0, 0) && dark(2) == 1 { RGBColor(128, 128, 128) } else { RGBColor(dark(r), dark(g), dark(b)) }
}

/// Names of series in the order of a figure's panels: a name has one colour, marker and dash in all of them.
#[derive(Debug, Default)]
pub(super) struct Series(Vec<String>);

impl Series {
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut all: Vec<String> = vec![];
        for name in names.map(bare).filter(|name| !name.is_empty()) {
            if !all.iter().any(|other| other == name) {
                all.push(name.to_owned());
            }
        }
        Self(all)
    }

    /// The number of a series by its name; without a name its index in its panel.
    pub fn number(&self, name: &str, place: usize) -> usize {
        self.0.iter().position(|other| other == bare(name)).unwrap_or(place)
    }
}

/// A name without its panel-specific part: `diagnostic` for `diagnostic (n=41)`.
fn bare(name: &str) -> &str {
    name.split(" (").next().unwrap_or(name)
}

/// Dash pattern of series `i` as (on, off) pixels; `None` is solid.
pub(super) fn dash(i: usize) -> Option<(f64, f64)> {
    [None, Some((22.0, 10.0)), Some((6.0, 9.0)), Some((34.0, 8.0))][i % 4]
}
