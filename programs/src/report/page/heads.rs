//! Effects of patching one head or MLP, layer by head for each place, and the gradient's prediction for the same cell. Knows the records of
//! `head_patching` and `attribution_patching`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::escape::text;
use crate::report::folder::{Folder, called, distinct, sound};
use crate::report::render_table::number;
use crate::report::verdicts::shown_p;
use switchyard::schema::{AttributionRow, Component, Form, HeadPatchRow, PatchMode, place_name, place_order};
use switchyard::stats::Estimate;

const INTRODUCTION: &str = "<p class=\"note\">Pairs of problems differ in one value. In each cell the output of one \
    head (columns H0, H1, …) or MLP (M) of one layer (rows) at one place is patched from the clean run into the \
    corrupt run: the number is the share of their difference that this restores (<i>denoise</i>). Blue: towards the clean answer; orange: away from it; bold: more \
    than nothing (sign test, Holm over all cells of the form, p ≤ 0.05); a point: less than 0.005. Hover or focus a cell for the interval, for \
    the opposite patch (<i>noise</i>), for the mean ablation, and for the gradient’s prediction \
    (<i>attribution</i>). In italics: predicted only.</p>\n";

/// Effects from here on have the full colour.
const FULL: f64 = 0.5;

/// One node at one place: a column of a layer's row.
type Cell<'a> = (usize, Component, Option<usize>, &'a str, Option<usize>);

#[derive(Default)]
struct NodeRows<'a> {
    patched: BTreeMap<PatchMode, &'a HeadPatchRow>,
    predicted: Vec<&'a AttributionRow>,
}

pub(super) fn html(folder: &Folder, id: &str) -> String {
    let mut out = String::new();
    let patched = folder.checkpoints_with::<HeadPatchRow>();
    for checkpoint in distinct(patched.into_iter().chain(folder.checkpoints_with::<AttributionRow>())) {
        let mut forms = String::new();
        for form in Form::ALL {
            let cells = cells(folder, checkpoint, form);
            if cells.is_empty() {
                continue;
            }
            let _ = write!(
                forms,
                "<details name=\"{id}-heads-{0}\"{1}><summary>{2}</summary><div class=\"places\">{3}</div></details>",
                text(checkpoint),
                if forms.is_empty() { " open" } else { "" },
                match form {
                    Form::Latents => "with latents",
                    Form::Text => "the same problems as text",
                },
                grids(&cells)
            );
        }
        if !forms.is_empty() {
            let _ = writeln!(
                out,
                "<div class=\"lens\"><h3>{}</h3>{forms}<output class=\"tip\" aria-live=\"polite\" hidden></output></div>",
                text(&called(checkpoint))
            );
        }
    }
    if out.is_empty() { out } else { format!("{INTRODUCTION}{out}") }
}

/// The cells of heads and MLPs; the residual stream has a figure.
fn cells<'a>(folder: &'a Folder, checkpoint: &str, form: Form) -> BTreeMap<Cell<'a>, NodeRows<'a>> {
    let node = |component| matches!(component, Component::Head | Component::Mlp);
    let mut out: BTreeMap<Cell, NodeRows> = BTreeMap::new();
    for row in folder.rows::<HeadPatchRow>(checkpoint).iter().filter(|r| r.form == form && node(r.component)) {
        let cell = (row.layer, row.component, row.head, row.place.as_str(), row.back);
        out.entry(cell).or_default().patched.insert(row.mode, row);
    }
    for row in folder.rows::<AttributionRow>(checkpoint).iter().filter(|r| r.form == form && node(r.component)) {
        let cell = (row.layer, row.component, row.head, row.place.as_str(), row.back);
        out.entry(cell).or_default().predicted.push(row);
    }
    out
}

/// A small grid per place, in the order of the places.
fn grids(cells: &BTreeMap<Cell, NodeRows>) -> String {
    let mut places: Vec<(&str, Option<usize>)> = cells.keys().map(|(.., place, back)| (*place, *back)).collect();
    places.sort_by_key(|(place, back)| place_order(place, *back));
    places.dedup();
    let layers: BTreeSet<usize> = cells.keys().map(|cell| cell.0).collect();
    let columns: BTreeSet<(Component, Option<usize>)> = cells.keys().map(|cell| (cell.1, cell.2)).collect();
    let named = |(component, head): &(Component, Option<usize>)| match (component, head) {
        (Component::Head, Some(head)) => format!("<th scope=\"col\">H{head}</th>"),
        _ => "<th scope=\"col\">M</th>".into(),
    };
    let head: String = columns.iter().map(named).collect();
    let mut out = String::new();
    for (place, back) in places {
        let mut body = String::new();
        for layer in layers.iter().rev() {
            let _ = write!(body, "<tr><th scope=\"row\">blocks.{layer}</th>");
            for (component, head) in &columns {
                let there = cells.get(&(*layer, *component, *head, place, back));
                body += &there
                    .map_or_else(|| "<td></td>".into(), |known| cell(component.label(Some(*layer), *head), known));
            }
            body += "</tr>";
        }
        let _ = writeln!(
            out,
            "<table class=\"grid small\"><caption>{}</caption><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>",
            text(&place_name(place, back))
        );
    }
    out
}

fn cell(node: String, known: &NodeRows) -> String {
    let shown = known.patched.get(&PatchMode::Denoise).or_else(|| known.patched.values().next());
    let effect = shown.map_or_else(|| known.predicted.first().map(|row| row.effect), |row| Some(row.effect));
    let Some(effect) = effect.and_then(sound) else { return "<td></td>".into() };
    let mut tip = vec![node];
    let range = |e: Estimate| {
        let [value, low, high] = [e.value, e.low, e.high].map(|x| number(x, 3));
        format!("{value} [{low}, {high}]")
    };
    tip.extend(
        known.patched.values().map(|r| format!("{} {}, Holm {}", r.mode.name(), range(r.effect), shown_p(r.p_holm))),
    );
    let predicted = known.predicted.iter().map(|row| {
        // The patch in the same pairs, if the map of patches is missing.
        let exact = row.exact.filter(|_| known.patched.is_empty());
        let exact = exact.map_or_else(String::new, |e| format!(" (the patch itself {})", range(e)));
        let n = if row.effect.n == effect.n { String::new() } else { format!(" n={}", row.effect.n) };
        format!("{} {}{n}{exact}", row.gradient.name(), range(row.effect))
    });
    let predicted: Vec<String> = predicted.collect();
    if !predicted.is_empty() {
        tip.push(format!("by gradient: {}", predicted.join(", ")));
    }
    tip.push(format!("n={}", effect.n));
    let sure = shown.map_or_else(|| known.predicted.iter().any(|row| row.matters()), |row| row.matters());
    let class = match (shown.is_some(), sure) {
        (true, true) => "p sure",
        (true, false) => "p",
        (false, true) => "p sure only",
        (false, false) => "p only",
    };
    let strength = (effect.value.abs() / FULL).min(1.0);
    format!(
        "<td class=\"{class}{}\" tabindex=\"0\"{} title=\"{}\">{}</td>",
        if effect.value < 0.0 { " away" } else { "" },
        if strength < 0.005 { String::new() } else { format!(" style=\"--s:{strength:.2}\"") },
        text(&tip.join(" · ")),
        short(effect.value)
    )
}

/// Two digits: `.41`, `−.05`, `1.02`; a value that rounds to zero is a point.
fn short(value: f64) -> String {
    let said = format!("{:.2}", value.abs());
    let sign = if value < 0.0 { "−" } else { "" };
    match said.as_str() {
        "0.00" => "·".into(),
        _ => format!("{sign}{}", said.strip_prefix('0').unwrap_or(&said)),
    }
}
