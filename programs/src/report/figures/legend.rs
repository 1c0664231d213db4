//! The legend above a chart. Knows names and how their series look.

use plotters::style::RGBColor;

use super::fonts::width;
use super::scene::{Anchor, Scene, Shape};
use super::style::{LABEL, PAD, WIDTH};
use super::ticks::wrap;

/// A legend's mark next to a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Key {
    /// A line with a series' dash and, if it has one, marker.
    Line(usize, bool),
    /// The marker of a series whose points are not joined.
    Mark(usize),
    /// A filled box.
    Patch(RGBColor),
    /// A dotted line of no series.
    Dashes,
    /// The mark of a published value.
    Diamond,
}

/// Draws legend entries in rows from `top`; returns their lower end.
pub(super) fn draw(scene: &mut Scene, legend: &[(String, Key)], top: f64) -> f64 {
    let (mut x, mut y) = (PAD, top);
    for (name, key) in legend {
        let lines = wrap(name, WIDTH - PAD - 110.0, LABEL, false);
        let widest = lines.iter().map(|line| width(line, LABEL, false)).fold(0.0, f64::max);
        let needed = 76.0 + widest + 34.0;
        if x > PAD && x + needed > WIDTH {
            (x, y) = (PAD, y + 1.2 * LABEL);
        }
        let middle = y + 0.5 * LABEL;
        match key {
            Key::Line(series, marked) => {
                let colour = super::style::colour(*series);
                scene.line(&[(x, middle), (x + 64.0, middle)], colour, 5.0, super::style::dash(*series));
                if *marked {
                    super::lines::marker(scene, (x + 32.0, middle), *series);
                }
            }
            Key::Mark(series) => super::lines::marker(scene, (x + 32.0, middle), *series),
            Key::Patch(colour) => {
                let (from, to) = ((x + 18.0, middle - 14.0), (x + 64.0, middle + 14.0));
                scene.shapes.push(Shape::Box { from, to, colour: *colour, alpha: 1.0 });
            }
            Key::Dashes => {
                let points = [(x, middle), (x + 64.0, middle)];
                scene.line(&points, super::style::INK, 3.0, Some((6.0, 9.0)));
            }
            Key::Diamond => super::bars::diamond(scene, (x + 40.0, middle)),
        }
        for (at, line) in lines.iter().enumerate() {
            scene.text((x + 76.0, middle + at as f64 * 1.2 * LABEL), line, LABEL, false, Anchor::Left);
        }
        y += lines.len().saturating_sub(1) as f64 * 1.2 * LABEL;
        x += needed;
    }
    if legend.is_empty() { top } else { y + 1.2 * LABEL }
}
