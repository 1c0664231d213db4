//! The embedded typeface. Knows text and its width, not where it goes.

use std::sync::OnceLock;

use anyhow::{Result, anyhow};
use base64::prelude::{BASE64_STANDARD as STANDARD, Engine};
use plotters::style::{FontDesc, FontFamily, FontStyle, register_font};

/// Font family of the figures; an SVG viewer without it uses those in [`FALLBACK`].
pub(crate) const FAMILY: &str = "DejaVu Sans";
pub(super) const FALLBACK: &str = "DejaVu Sans, Verdana, sans-serif";

static REGULAR: &[u8] = include_bytes!("../../../../fixtures/fonts/DejaVuSans-subset.ttf");
static BOLD: &[u8] = include_bytes!("../../../../fixtures/fonts/DejaVuSans-Bold-subset.ttf");

/// Registers the typeface with plotters, under its own name and the generic ones, in every style: with `ab_glyph`, plotters knows no system
/// fonts and fails on an unregistered family.
pub(super) fn register() -> Result<()> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        [FAMILY, "sans-serif", "serif", "monospace"].iter().all(|family| {
            let faces = [
                (FontStyle::Normal, REGULAR),
                (FontStyle::Italic, REGULAR),
                (FontStyle::Oblique, REGULAR),
                (FontStyle::Bold, BOLD),
            ];
            faces.into_iter().all(|(style, bytes)| register_font(family, style, bytes).is_ok())
        })
    });
    if *done { Ok(()) } else { Err(anyhow!("the embedded font cannot be read")) }
}

/// The typeface at a height in plotters' pixels.
pub(super) fn font(height: f64, bold: bool) -> FontDesc<'static> {
    let style = if bold { FontStyle::Bold } else { FontStyle::Normal };
    FontDesc::new(FontFamily::Name(FAMILY), height, style)
}

/// Width of a line of text in pixels; 0 if the font is not registered.
pub(super) fn width(text: &str, height: f64, bold: bool) -> f64 {
    font(height, bold).layout_box(text).map_or(0.0, |((left, _), (right, _))| f64::from(right - left))
}

/// `@font-face` rules with embedded fonts, for a page that must look the same without a network.
pub fn font_face_css() -> String {
    let face = |weight: &str, bytes: &[u8]| {
        format!(
            "@font-face{{font-family:\"{FAMILY}\";font-weight:{weight};src:url(data:font/ttf;base64,{}) format(\"truetype\")}}",
            STANDARD.encode(bytes)
        )
    };
    format!("{}\n{}\n", face("normal", REGULAR), face("bold", BOLD))
}
