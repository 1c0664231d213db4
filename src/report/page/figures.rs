//! Figures inline, and what is missing. Knows SVG only as text that our own renderer wrote.

use std::fmt::Write;

use super::escape::{prose, text};
use super::missing;
use crate::report::paper::Paper;
use crate::report::recipes::Recipe;
use crate::report::render::{Drawn, Rendered};

pub(super) fn html(paper: &Paper, r: &Rendered<'_>, recipes: &[(&'static str, Recipe)]) -> String {
    if r.figures.is_empty() && r.undrawn.is_empty() {
        return String::new();
    }
    // Broad ones stand below: between the others they would leave a hole in one of the two columns.
    let (broad, narrow): (Vec<&Drawn>, Vec<&Drawn>) = r.figures.iter().partition(|drawn| drawn.drawing.columns > 1);
    let all = |of: &[&Drawn]| of.iter().map(|drawn| figure(paper, r, drawn)).collect::<String>();
    let mut out = format!("<div class=\"gallery\">\n{}</div>\n{}", all(&narrow), all(&broad));
    let undrawn: Vec<_> = r.undrawn.iter().filter(|u| !u.reason.contains("no data")).collect();
    if !undrawn.is_empty() {
        out += "<h3>Not drawn</h3>\n<ul class=\"undrawn\">\n";
        for u in undrawn {
            let _ = writeln!(
                out,
                "<li><code>{}</code> {}: {}{}</li>",
                text(&u.label),
                text(&u.title),
                prose(&u.reason),
                if u.reason.starts_with("no rows") { missing(recipes, &u.label) } else { String::new() }
            );
        }
        out += "</ul>\n";
    }
    let room = r.folder.path.join("figures");
    out + &format!("<p class=\"note\">As files: <code>{}</code></p>\n", text(&room.display().to_string()))
}

fn figure(paper: &Paper, r: &Rendered<'_>, drawn: &Drawn) -> String {
    let d = &drawn.drawing;
    let words = if r.claims.is_empty() { "" } else { paper.block(&d.label).map_or("", |b| b.words.as_str()) };
    let theirs =
        if words.is_empty() { String::new() } else { format!("<p class=\"note\">The paper: {}</p>", prose(words)) };
    format!(
        "<figure class=\"plot{}\"><figcaption><b>{}</b> <code>{}</code></figcaption><div class=\"svg\"{}>{}</div>\
         <p class=\"note\">{}</p>{theirs}</figure>\n",
        if d.columns > 1 { " wide" } else { "" },
        text(&d.title),
        text(&d.label),
        // It is wider than a telephone: to be moved by keyboard too.
        if d.columns > 1 { " tabindex=\"0\"" } else { "" },
        drawn.svg,
        prose(&d.note),
    )
}
