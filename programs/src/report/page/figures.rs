//! Inline figures, and a list of those that were not drawn.

use std::fmt::Write;

use super::escape::{prose, text};
use super::missing;
use crate::report::figures::Figure;
use crate::report::paper::Paper;
use crate::report::recipes::ExhibitRecipe;
use crate::report::render::{RenderedFigure, Rendering};

pub(super) fn html(paper: &Paper, r: &Rendering<'_>, recipes: &[(&'static str, ExhibitRecipe)]) -> String {
    if r.figures.is_empty() && r.undrawn.is_empty() {
        return String::new();
    }
    // Wide figures come last: between the others they would leave a gap in one of the two columns.
    let (broad, narrow): (Vec<&RenderedFigure>, Vec<&RenderedFigure>) =
        r.figures.iter().partition(|drawn| drawn.drawing.columns > 1);
    let heights: Vec<f64> = narrow.iter().map(|drawn| height(&drawn.svg)).collect();
    let columns = balanced(&heights).map(|places| {
        let shown = |place: &usize| figure(paper, r, narrow[*place], &format!(" style=\"order: {place}\""));
        format!("<div>\n{}</div>\n", places.iter().map(shown).collect::<String>())
    });
    let below: String = broad.iter().map(|drawn| figure(paper, r, drawn, "")).collect();
    let mut out = format!("<div class=\"gallery\">\n{}</div>\n{below}", columns.concat());
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

/// Height of a figure's caption and note, relative to its width.
const CAPTION_HEIGHT: f64 = 0.17;

/// A figure's height on the page, in units of its width.
fn height(svg: &str) -> f64 {
    let side = |key: &str| svg.split(key).nth(1).and_then(|rest| rest.split('"').next()?.parse::<f64>().ok());
    CAPTION_HEIGHT + side(" height=\"").unwrap_or(1.0) / side(" width=\"").unwrap_or(1.0)
}

/// Splits figures into two columns of similar height, greedily from the tallest; each column keeps their order.
fn balanced(heights: &[f64]) -> [Vec<usize>; 2] {
    let mut falling: Vec<usize> = (0..heights.len()).collect();
    falling.sort_by(|a, b| heights[*b].total_cmp(&heights[*a]));
    let (mut columns, mut ends) = ([vec![], vec![]], [0.0; 2]);
    for place in falling {
        let shorter = usize::from(ends[1] < ends[0]);
        columns[shorter].push(place);
        ends[shorter] += heights[place];
    }
    columns.iter_mut().for_each(|column| column.sort_unstable());
    columns
}

fn figure(paper: &Paper, r: &Rendering<'_>, drawn: &RenderedFigure, place: &str) -> String {
    let d = &drawn.drawing;
    let words = if r.claims.is_empty() { "" } else { paper.block(&d.label).map_or("", |b| b.words.as_str()) };
    let theirs =
        if words.is_empty() { String::new() } else { format!("<p class=\"note\">The paper: {}</p>", prose(words)) };
    format!(
        "<figure class=\"plot{}\"{place}><figcaption><b>{}</b> <code>{}</code></figcaption><div class=\"svg{}\"{}>{}</div>\
         <p class=\"note\">{}</p>{theirs}</figure>\n",
        if d.columns > 1 { " wide" } else { "" },
        text(&d.title),
        text(&d.label),
        if d.panels.iter().any(Figure::is_heat) { " heat" } else { "" },
        // Wider than a phone's screen: it must scroll by keyboard too.
        if d.columns > 1 { " tabindex=\"0\"" } else { "" },
        drawn.svg,
        prose(&d.note),
    )
}

#[cfg(test)]
mod tests {
    use super::{balanced, height};

    #[test]
    fn no_column_of_figures_ends_far_above_the_other() {
        // Heights of reports/micro, in order.
        let heights = [0.7, 0.74, 0.82, 2.15, 0.7, 1.15, 1.15, 1.15, 2.19, 1.34, 0.64, 0.7, 1.38, 1.34];
        let columns = balanced(&heights);
        let [one, other] = columns.each_ref().map(|column| column.iter().map(|place| heights[*place]).sum::<f64>());
        assert!((one - other).abs() < 0.3, "{one} and {other}");
        assert!(columns.iter().all(|column| column.is_sorted()));
        assert_eq!(columns.concat().len(), heights.len());
        assert_eq!(balanced(&[]), [Vec::<usize>::new(), vec![]]);
        assert!((height("<svg role=\"img\" width=\"1020\" height=\"510\">") - 0.67).abs() < 1e-9);
    }
}
