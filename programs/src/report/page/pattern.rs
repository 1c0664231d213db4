//! One head's attention as a picture: queries downwards, keys to the right, darker for more weight. Knows weights and names of positions;
//! nothing of checkpoints.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::escape::text;

/// Lower bounds of the shades; smaller weights are not drawn.
const SHADES: [f64; 8] = [0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85];

/// Pixels of a cell in the large picture, and of the names next to it.
pub(super) const CELL: usize = 13;
pub(super) const NAMES: usize = 74;

/// A position's name, and whether it belongs to a latent block.
pub(super) type Name = (String, bool);

/// The cells of a pattern in units of a cell: `weights[query][key]`. Each shade is one path of horizontal strokes, adjacent cells in one
/// stroke.
pub(super) fn cells(weights: &[&[f64]]) -> String {
    let mut paths: BTreeMap<usize, String> = BTreeMap::new();
    for (query, weights) in weights.iter().enumerate() {
        let shades: Vec<usize> = weights.iter().map(|w| SHADES.iter().filter(|bound| *w >= **bound).count()).collect();
        let mut key = 0;
        for run in shades.chunk_by(|a, b| a == b) {
            if run[0] > 0 {
                let _ = write!(paths.entry(run[0]).or_default(), "M{key} {query}h{}", run.len());
            }
            key += run.len();
        }
    }
    let paths = paths.iter().map(|(shade, path)| format!("<path class=\"w{shade}\" d=\"{path}\"/>"));
    paths.collect()
}

/// Characters for 0 to 100 %.
fn character(percent: usize) -> char {
    const FIRST: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    match FIRST.get(percent) {
        Some(byte) => char::from(*byte),
        None => char::from_u32(0xC0 + (percent.min(100) - FIRST.len()) as u32).unwrap_or('z'),
    }
}

/// All weights in percent, one character each, query after query: input of the script.
pub(super) fn percents(weights: &[&[f64]]) -> String {
    let percent = |w: &f64| character((100.0 * w.clamp(0.0, 1.0)).round() as usize);
    weights.iter().flat_map(|of_query| of_query.iter().map(percent)).collect()
}

/// Names next to the rows and above the columns, in pixels from the corner of the cells.
pub(super) fn names(names: &[Name]) -> String {
    let mut out = String::new();
    for (at, (name, latent)) in names.iter().enumerate() {
        let middle = at * CELL + CELL / 2;
        let chip = if *latent { " class=\"c\"" } else { "" };
        if *latent {
            let (from, size) = (at * CELL, NAMES - 3);
            let _ = write!(
                out,
                "<rect x=\"-{NAMES}\" y=\"{from}\" width=\"{size}\" height=\"{CELL}\"/><rect x=\"{from}\" y=\"-{NAMES}\" width=\"{CELL}\" height=\"{size}\"/>"
            );
        }
        let name = text(name);
        let _ = write!(
            out,
            "<text{chip} x=\"-6\" y=\"{middle}\" text-anchor=\"end\">{name}</text><text{chip} transform=\"translate({middle} -6) rotate(-90)\">{name}</text>"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{cells, character, percents};

    #[test]
    fn every_shade_is_one_path_and_faint_cells_are_left_out() {
        let weights: [&[f64]; 3] = [&[1.0], &[0.01, 0.99], &[0.25, 0.25, 0.5]];
        assert_eq!(
            cells(&weights),
            "<path class=\"w4\" d=\"M0 2h2\"/><path class=\"w6\" d=\"M2 2h1\"/><path class=\"w8\" d=\"M0 0h1M1 1h1\"/>"
        );
    }

    #[test]
    fn percents_are_told_apart() {
        let all: std::collections::BTreeSet<char> = (0..=100).map(character).collect();
        assert_eq!(all.len(), 101);
        assert_eq!(percents(&[&[1.0], &[0.004, 0.61]]), "\u{e6}0z");
    }
}
