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

#[cfg(test)]
mod tests {
    use super::PALETTE;

    type Matrix = [[f64; 3]; 3];

    /// Full colour vision, protanopia and deuteranopia on linear RGB (Machado, Oliveira & Fernandes 2009, severity 1).
    const READERS: [(&str, Matrix); 3] = [
        ("all colours", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        ),
        (
            "deuteranopia",
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        ),
    ];

    /// From linear RGB to XYZ over the white point D65.
    const XYZ: Matrix = [
        [0.4124564 / 0.95047, 0.3575761 / 0.95047, 0.1804375 / 0.95047],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339 / 1.08883, 0.1191920 / 1.08883, 0.9503041 / 1.08883],
    ];

    fn times(m: &Matrix, v: [f64; 3]) -> [f64; 3] {
        m.map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum())
    }

    /// CIELAB as a reader sees it.
    fn lab(colour: plotters::style::RGBColor, reader: &Matrix) -> [f64; 3] {
        let linear = [colour.0, colour.1, colour.2].map(|part| {
            let share = f64::from(part) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        });
        let seen = times(reader, linear).map(|part| part.clamp(0.0, 1.0));
        let [x, y, z] =
            times(&XYZ, seen).map(|t| if t > 216.0 / 24389.0 { t.cbrt() } else { (24389.0 / 27.0 * t + 16.0) / 116.0 });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// CIE76 distance; 2.3 is just noticeable.
    #[test]
    fn colour_blind_readers_tell_every_pair_of_colours_apart() {
        for (reader, matrix) in READERS {
            for (i, a) in PALETTE.iter().enumerate() {
                for (j, b) in PALETTE.iter().enumerate().skip(i + 1) {
                    let (a, b) = (lab(*a, &matrix), lab(*b, &matrix));
                    let distance = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                    assert!(distance > 15.0, "{reader}: colours {i} and {j} are {distance:.1} apart");
                }
            }
        }
    }
}
