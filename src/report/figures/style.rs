//! Colours and sizes of all figures. Knows nothing of charts.

use plotters::style::RGBColor;

/// Okabe & Ito's colours in an order that keeps neighbours far apart for colour-blind and grey-scale readers; yellow is left
/// out (too light for lines on white).
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

/// Colour of series `i`.
pub(super) fn colour(i: usize) -> RGBColor {
    PALETTE[i % PALETTE.len()]
}

/// Dash pattern of series `i` as (on, off) pixels; `None` is solid.
pub(super) fn dash(i: usize) -> Option<(f64, f64)> {
    [None, Some((22.0, 10.0)), Some((6.0, 9.0)), Some((34.0, 8.0))][i % 4]
}
