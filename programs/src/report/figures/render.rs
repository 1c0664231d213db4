//! Shapes to SVG and PNG by plotters. Knows shapes only.

use anyhow::{Result, anyhow};
use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Polygon, Rectangle, Text};
use plotters::prelude::DrawingBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, RGBColor, ShapeStyle, TextStyle};

use super::fonts::{self, FALLBACK, FAMILY};
use super::png;
use super::scene::{Anchor, At, Scene, Shape};
use super::style::PAPER_WHITE;
use crate::report::letters;

/// Differences between backends: pixels per unit, and the offset that centres a text's capitals, as a share of its height (plotters centres
/// the x-height in SVG and the em box in bitmaps).
#[derive(Clone, Copy)]
struct Backend {
    scale: f64,
    sink: f64,
}

/// The page as SVG, with this title and description as text alternative.
pub(super) fn svg(scene: &Scene, title: &str, description: &str) -> Result<String> {
    let mut svg = String::new();
    {
        let size = (scene.width.ceil() as u32, scene.height.ceil() as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(scene, area, Backend { scale: 1.0, sink: 0.07 })?;
    }
    let family = |name: &str| format!("font-family=\"{name}\"");
    let plain = |text: &str| letters::sanitize(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut head = format!(">\n<title>{}</title>", plain(title));
    if !description.is_empty() {
        head += &format!("\n<desc>{}</desc>", plain(description));
    }
    let named = svg.replacen("<svg ", "<svg role=\"img\" ", 1).replacen('>', &head, 1);
    Ok(named.replace(&family(FAMILY), &family(FALLBACK)))
}

/// The page as PNG, drawn at twice the size and halved for antialiasing.
pub(super) fn bitmap(scene: &Scene) -> Result<Vec<u8>> {
    let (width, height) = (2 * scene.width.ceil() as usize, 2 * scene.height.ceil() as usize);
    let mut pixels = vec![255; 3 * width * height];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, (width as u32, height as u32)).into_drawing_area();
        draw(scene, area, Backend { scale: 2.0, sink: 0.2 })?;
    }
    png::encode(&png::halve(&pixels, width, height), width / 2, height / 2)
}

fn draw<DB: DrawingBackend>(scene: &Scene, area: DrawingArea<DB, Shift>, backend: Backend) -> Result<()> {
    fonts::register()?;
    let failed = |e: plotters::drawing::DrawingAreaErrorKind<DB::ErrorType>| anyhow!("cannot draw a figure: {e}");
    area.fill(&PAPER_WHITE).map_err(failed)?;
    for shape in &scene.shapes {
        draw_shape(&area, shape, backend).map_err(failed)?;
    }
    area.present().map_err(failed)
}

type DrawResult<DB> = Result<(), plotters::drawing::DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

fn draw_shape<DB: DrawingBackend>(area: &DrawingArea<DB, Shift>, shape: &Shape, backend: Backend) -> DrawResult<DB> {
    let k = backend.scale;
    let px = |(x, y): At| ((x * k).round() as i32, (y * k).round() as i32);
    let all = |points: &[At]| points.iter().map(|&p| px(p)).collect::<Vec<_>>();
    let stroke =
        |colour: RGBColor, width: f64| ShapeStyle::from(&colour).stroke_width((width * k).round().min(100.0) as u32);
    match shape {
        Shape::Line { points, colour, width } => area.draw(&PathElement::new(all(points), stroke(*colour, *width))),
        Shape::Area { points, colour, alpha } => area.draw(&Polygon::new(all(points), colour.mix(*alpha))),
        Shape::Box { from, to, colour, alpha } => {
            area.draw(&Rectangle::new([px(*from), px(*to)], colour.mix(*alpha).filled()))
        }
        Shape::Frame { from, to, colour } => area.draw(&Rectangle::new([px(*from), px(*to)], stroke(*colour, 2.0))),
        Shape::Dot { at, radius, colour } => {
            area.draw(&Circle::new(px(*at), (radius * k).round() as i32, colour.filled()))
        }
        Shape::Text { at, text, height, bold, anchor, colour } => {
            let upwards = matches!(anchor, Anchor::Upwards | Anchor::UpwardsEnd);
            let font = fonts::font(height * k, *bold);
            let font = if upwards { font.transform(FontTransform::Rotate270) } else { font };
            let across = match anchor {
                Anchor::Left => HPos::Left,
                Anchor::Centre | Anchor::Upwards => HPos::Center,
                Anchor::Right | Anchor::UpwardsEnd => HPos::Right,
            };
            let style = TextStyle::from(font).color(colour).pos(Pos::new(across, VPos::Center));
            let sink = backend.sink * height;
            let at = if upwards { (at.0 + sink, at.1) } else { (at.0, at.1 + sink) };
            area.draw(&Text::new(text.as_str(), px(at), style))
        }
    }
}
