//! The README's picture, as SVG: a problem's text and latents, and the effect of another value's latents on its answer.

use super::page::escape;
use switchyard::schema::PositionKind;
use switchyard::stats::Estimate;

const WIDTH: f64 = 880.0;
const MARGIN: f64 = 24.0;
const LINE: f64 = 40.0;
/// Width of a monospaced letter at 15 pixels.
const LETTER: f64 = 9.03;

const HEAD: &str = "<rect width=\"100%\" height=\"100%\" rx=\"10\" fill=\"#fff\"/>\n<style>text{font-family:ui-monospace,Menlo,Consolas,\
monospace;font-size:15px;fill:#1e1e1e}.say{font-family:system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif;font-size:16px}\
.note{font-size:13px;fill:#555}</style>\n";

/// `positions`: kind and text of each response position; `hit`: share of answers that become the predicted one.
pub(super) fn svg(prompt: &str, positions: &[(PositionKind, String)], hit: Estimate, chance: Estimate) -> String {
    let mut y = MARGIN + 10.0;
    let mut body = text(MARGIN, y, "say", &format!("Question: {prompt}"));
    y += 18.0;
    let (chips, below) = chips(positions, y);
    body += &chips;
    y = below + 22.0;
    body += &text(
        MARGIN,
        y,
        "say note",
        "white: what the model writes — blue: latent steps, with the token that each would say; nothing is written there",
    );
    y += 40.0;
    body += &text(
        MARGIN,
        y,
        "say",
        "Put in the latent steps of a block that holds another value. How often does the answer",
    );
    y += 22.0;
    body += &text(MARGIN, y, "say", "become the one that arithmetic predicts from that value?");
    body += &bar(y + 14.0, hit, chance);
    let height = y + 92.0;
    let about = "A problem as the model writes and thinks it, and how often its answer follows an exchanged thought";
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{about}\">\n{HEAD}{body}</svg>\n"
    )
}

/// The chips in lines of the picture's width, and their lower end.
fn chips(positions: &[(PositionKind, String)], mut y: f64) -> (String, f64) {
    let mut out = String::new();
    let mut x = MARGIN;
    for (kind, said) in positions {
        let latent = *kind == PositionKind::Latent;
        let width = LETTER * said.chars().count().max(1) as f64 + 14.0;
        if x + width > WIDTH - MARGIN {
            x = MARGIN;
            y += LINE;
        }
        let (fill, edge, ink) = match kind {
            PositionKind::Latent => ("#0072b2", "#0072b2", "#fff"),
            PositionKind::Text => ("#fff", "#bbb", "#1e1e1e"),
            _ => ("#f2f2f2", "#0072b2", "#0072b2"),
        };
        let rounding = if latent { 14.0 } else { 5.0 };
        out += &format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"28\" rx=\"{rounding}\" fill=\"{fill}\" stroke=\"{edge}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" style=\"fill:{ink}\">{}</text>\n",
            x + width / 2.0,
            y + 19.0,
            escape::text(said)
        );
        x += width + 5.0;
    }
    (out, y + 28.0)
}

/// A share as a bar with its interval, and a mark at chance.
fn bar(y: f64, hit: Estimate, chance: Estimate) -> String {
    let full = WIDTH - 2.0 * MARGIN - 190.0;
    let at = |share: f64| MARGIN + full * share;
    let middle = y + 14.0;
    let mut out = format!(
        "<rect x=\"{MARGIN}\" y=\"{y}\" width=\"{full}\" height=\"28\" rx=\"4\" fill=\"#eee\"/>\
         <rect x=\"{MARGIN}\" y=\"{y}\" width=\"{:.1}\" height=\"28\" rx=\"4\" fill=\"#0072b2\"/>\n\
         <path d=\"M{:.1} {middle}H{:.1}\" stroke=\"#1e1e1e\" stroke-width=\"3\"/>\n\
         <path d=\"M{:.1} {}v36\" stroke=\"#d55e00\" stroke-width=\"3\"/>\n",
        full * hit.value,
        at(hit.low),
        at(hit.high),
        at(chance.value),
        y - 4.0
    );
    out += &text(at(1.0) + 12.0, middle + 5.0, "say", &format!("{:.0} % of {} problems", 100.0 * hit.value, hit.n));
    out + &text(at(chance.value) - 8.0, y + 48.0, "say note", &format!("chance {:.0} %", 100.0 * chance.value))
}

fn text(x: f64, y: f64, class: &str, said: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>\n", escape::text(said))
}
