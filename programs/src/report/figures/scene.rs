//! A list of shapes in pixels. Knows no axes, no data and no file formats.

use plotters::style::RGBColor;

use super::fonts::width;
use super::style::{LABEL, PAD, TITLE, WIDTH};
use super::ticks::wrap;
use crate::report::letters;

/// A point, in pixels from the top left.
pub(super) type At = (f64, f64);

/// Alignment of a text relative to its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Anchor {
    Left,
    Centre,
    Right,
    /// Rotated to read upwards, centred.
    Upwards,
    /// Rotated to read upwards, ending at the position.
    UpwardsEnd,
}

/// One shape; `alpha` 1 is opaque.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Line { points: Vec<At>, colour: RGBColor, width: f64 },
    Area { points: Vec<At>, colour: RGBColor, alpha: f64 },
    Box { from: At, to: At, colour: RGBColor, alpha: f64 },
    Frame { from: At, to: At, colour: RGBColor },
    Dot { at: At, radius: f64, colour: RGBColor },
    Text { at: At, text: String, height: f64, bold: bool, anchor: Anchor, colour: RGBColor },
}

/// Shapes on a page of `width` × `height` pixels.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) shapes: Vec<Shape>,
}

impl Scene {
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, shapes: Vec::new() }
    }

    /// A line, dashed by `(on, off)` pixels if given.
    pub fn line(&mut self, points: &[At], colour: RGBColor, width: f64, dash: Option<(f64, f64)>) {
        let Some((on, off)) = dash else {
            return self.shapes.push(Shape::Line { points: points.to_vec(), colour, width });
        };
        for points in dashes(points, on, off) {
            self.shapes.push(Shape::Line { points, colour, width });
        }
    }

    /// A line of text in the ink colour.
    pub(super) fn text(&mut self, at: At, text: &str, height: f64, bold: bool, anchor: Anchor) {
        let colour = super::style::INK;
        self.shapes.push(Shape::Text { at, text: letters::sanitize(text), height, bold, anchor, colour });
    }

    /// Draws the name of an axis, smaller if it would exceed its room.
    pub(super) fn label(&mut self, at: At, text: &str, room: f64, anchor: Anchor) {
        let height = LABEL * (room / width(text, LABEL, false).max(1.0)).min(1.0);
        self.text(at, text, height, false, anchor);
    }

    /// Draws a heading at the top left; returns its lower end.
    pub fn title(&mut self, title: &str) -> f64 {
        let mut top = PAD;
        for line in wrap(title, WIDTH - 2.0 * PAD, TITLE, true) {
            self.text((PAD, top + 0.5 * TITLE), &line, TITLE, true, Anchor::Left);
            top += TITLE * 1.1;
        }
        top
    }

    /// Inserts another scene with its top left corner at `to`, growing this one to fit.
    pub(crate) fn put(&mut self, other: Scene, to: At) {
        let down = |(x, y): At| (x + to.0, y + to.1);
        (self.width, self.height) = (self.width.max(to.0 + other.width), self.height.max(to.1 + other.height));
        self.shapes.extend(other.shapes.into_iter().map(|shape| match shape {
            Shape::Line { points, colour, width } => {
                Shape::Line { points: points.into_iter().map(down).collect(), colour, width }
            }
            Shape::Area { points, colour, alpha } => {
                Shape::Area { points: points.into_iter().map(down).collect(), colour, alpha }
            }
            Shape::Box { from, to, colour, alpha } => Shape::Box { from: down(from), to: down(to), colour, alpha },
            Shape::Frame { from, to, colour } => Shape::Frame { from: down(from), to: down(to), colour },
            Shape::Dot { at, radius, colour } => Shape::Dot { at: down(at), radius, colour },
            Shape::Text { at, text, height, bold, anchor, colour } => {
                Shape::Text { at: down(at), text, height, bold, anchor, colour }
            }
        }));
    }
}

/// Cuts a line into dashes of `on` pixels, `off` pixels between them, around its corners.
fn dashes(points: &[At], on: f64, off: f64) -> Vec<Vec<At>> {
    let mut out = Vec::new();
    let Some(&first) = points.first() else {
        return out;
    };
    let (mut drawing, mut left, mut dash) = (true, on, vec![first]);
    for pair in points.windows(2) {
        let (mut from, to) = (pair[0], pair[1]);
        loop {
            let length = (to.0 - from.0).hypot(to.1 - from.1);
            if length < left {
                left -= length;
                if drawing {
                    dash.push(to);
                }
                break;
            }
            let t = left / length;
            from = (from.0 + t * (to.0 - from.0), from.1 + t * (to.1 - from.1));
            if drawing {
                dash.push(from);
                out.push(std::mem::take(&mut dash));
            } else {
                dash = vec![from];
            }
            drawing = !drawing;
            left = if drawing { on } else { off };
        }
    }
    if drawing && dash.len() > 1 {
        out.push(dash);
    }
    out
}
