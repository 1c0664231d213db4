//! The prompt explorer: every layer's prediction at every token of a problem, and every head's attention, from the records of `token_lens`
//! and `patterns`. CSS selects the enlarged head; the script adds the value under the pointer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::escape::{text, token};
use super::pattern::{self, CELL, NAMES, Name};
use super::trace::pairs;
use crate::report::folder::{Folder, called, distinct};
use switchyard::nth::Nth;
use switchyard::schema::{PatternRow, PositionKind, TokenLensRow, stream_name};

const INTRODUCTION: &str = "<p class=\"note\">A problem with its answer, token by token (latent steps pink). First \
    each layer’s next token at each position, through the model’s output head; the last layer is the model’s \
    prediction; the stronger the colour, the surer. Then each head’s attention pattern: rows are queries, columns \
    keys; the stronger the colour, the more. Choose a head to enlarge it; hover over it, or move with the \
    arrow keys, for the share of its attention.</p>\n";

/// Maximum attention cells that a page draws: longer responses are named, not drawn.
const MOST_CELLS: usize = 400_000;

/// Entropy (nats) from which on a cell has no colour.
const UNSURE: f64 = 2.5;

/// One `<details>` per problem, one column per checkpoint; and the number of problems.
pub(super) fn html(folder: &Folder, id: &str) -> (String, usize) {
    let lenses = folder.checkpoints_with::<TokenLensRow>();
    let checkpoints = distinct(lenses.into_iter().chain(folder.checkpoints_with::<PatternRow>()));
    let lens = checkpoints.iter().flat_map(|c| folder.rows::<TokenLensRow>(c)).map(|row| row.problem);
    let patterns = checkpoints.iter().flat_map(|c| folder.rows::<PatternRow>(c)).map(|row| row.problem);
    let problems: BTreeSet<usize> = lens.chain(patterns).collect();
    let (mut out, mut room) = (String::new(), MOST_CELLS);
    for problem in &problems {
        let mut sides = String::new();
        for checkpoint in &checkpoints {
            let key = format!("{id}-{}-{problem}", super::plain(checkpoint));
            let grid = lens_grid(folder.rows::<TokenLensRow>(checkpoint), *problem);
            let heads = patterns_of(folder.rows::<PatternRow>(checkpoint), *problem, &key, &mut room);
            if !(grid.is_empty() && heads.is_empty()) {
                let _ = write!(sides, "<div class=\"side\"><h3>{}</h3>{grid}{heads}</div>", text(&called(checkpoint)));
            }
        }
        let _ = write!(
            out,
            "<details class=\"problem explorer\" name=\"{id}-explorer\"{}><summary>Problem {problem}</summary>\n<div class=\"sides\">{sides}</div>\n\
             <output class=\"tip\" aria-live=\"polite\" hidden></output></details>\n",
            if out.is_empty() { " open" } else { "" },
        );
    }
    (if out.is_empty() { out } else { format!("{INTRODUCTION}{out}") }, problems.len())
}

/// Names of positions in their order; steps count from 1 in each block.
fn names<'a>(positions: impl Iterator<Item = (Option<PositionKind>, &'a str)>) -> Vec<Name> {
    let mut step = 0;
    let name = |(kind, word): (Option<PositionKind>, &str)| {
        step = if kind == Some(PositionKind::Latent) { step + 1 } else { 0 };
        match kind {
            Some(PositionKind::Latent) => (format!("latent {}", Nth::new(step - 1)), true),
            Some(PositionKind::Swi) => ("swi".into(), true),
            Some(PositionKind::SwiEndSampled) => ("/swi".into(), true),
            Some(PositionKind::SwiEndForced) => ("/swi forced".into(), true),
            Some(PositionKind::Text) | None if word.trim().is_empty() => ("␣".into(), false),
            Some(PositionKind::Text) | None => (word.trim().into(), false),
        }
    };
    positions.map(name).collect()
}

/// Positions downwards, layers to the right; empty without records.
fn lens_grid(rows: &[TokenLensRow], problem: usize) -> String {
    let rows: Vec<&TokenLensRow> = rows.iter().filter(|row| row.problem == problem).collect();
    let mut by_position: BTreeMap<usize, BTreeMap<usize, &TokenLensRow>> = BTreeMap::new();
    rows.iter().for_each(|row| _ = by_position.entry(row.position).or_default().insert(row.layer, row));
    let layers: BTreeSet<usize> = rows.iter().map(|row| row.layer).collect();
    let first = by_position.values().filter_map(|layers| layers.values().next());
    let names = names(first.map(|row| (row.kind, row.token.as_str())));
    let mut body = String::new();
    for ((name, latent), readings) in names.iter().zip(by_position.values()) {
        let chip = if *latent { " class=\"latent\"" } else { "" };
        let _ = write!(body, "<tr><th scope=\"row\"{chip}>{}</th>", token(name));
        for layer in &layers {
            body += &readings.get(layer).map_or_else(|| "<td></td>".into(), |row| cell(name, row));
        }
        body += "</tr>\n";
    }
    if body.is_empty() {
        return body;
    }
    let head: String = layers.iter().map(|layer| format!("<th scope=\"col\">{}</th>", stream_name(*layer))).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\"><table class=\"grid small\"><caption>What each layer would say next</caption><thead><tr><td></td>{head}</tr></thead>\
         <tbody>{body}</tbody></table></div>"
    )
}

fn cell(name: &str, row: &TokenLensRow) -> String {
    let top = pairs(&row.top);
    let words: Vec<String> = top.iter().map(|(word, p)| format!("{} {p:.2}", word.trim())).collect();
    let tip =
        format!("{name} · {} would say {} · entropy {:.2}", stream_name(row.layer), words.join(", "), row.entropy);
    let sure = 1.0 - (row.entropy / UNSURE).clamp(0.0, 1.0);
    let word = top.first().map_or_else(String::new, |(word, _)| token(word));
    format!("<td class=\"p\" tabindex=\"0\" style=\"--s:{sure:.2}\" title=\"{}\">{word}</td>", text(&tip))
}

/// A small picture per head and the selected one large; empty without records. `room`: cells that may still be drawn.
fn patterns_of(rows: &[PatternRow], problem: usize, key: &str, room: &mut usize) -> String {
    let mut heads: BTreeMap<(usize, usize), Vec<&PatternRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.problem == problem) {
        heads.entry((row.layer, row.head)).or_default().push(row);
    }
    heads.values_mut().for_each(|rows| rows.sort_by_key(|row| row.position));
    let Some(first) = heads.values().next() else { return String::new() };
    let names = names(first.iter().map(|row| (row.kind, row.token.as_str())));
    let drawn = heads.len() * names.len() * (names.len() + 1) / 2;
    if drawn > *room {
        let (n, heads) = (names.len(), heads.len());
        return format!(
            "<p class=\"note\">{heads} patterns of {n} positions are too many to draw here; the rows `patterns` have them.</p>"
        );
    }
    *room -= drawn;
    let (layers, across) = heads.keys().fold((0, 0), |(l, h), (layer, head)| (l.max(layer + 1), h.max(head + 1)));
    let chosen = most_to_latents(&heads, &names);
    let mut out = String::new();
    for (at, ((layer, head), rows)) in heads.iter().enumerate() {
        let weights: Vec<&[f64]> = rows.iter().map(|row| row.weights.as_slice()).collect();
        let picture = Picture { key, names: &names, head: (*layer, *head), weights };
        let shared = (at == 0)
            .then(|| format!("<defs><g id=\"{key}-names\" class=\"names\">{}</g></defs>", pattern::names(&names)));
        let checked = (*layer, *head) == chosen;
        let place = (layers - layer, head + 1);
        let _ = writeln!(
            out,
            "<div class=\"head\">{}{}</div>",
            picture.small(&shared.unwrap_or_default(), checked, place),
            picture.large(layers + 1)
        );
    }
    let labels: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
    let labels = serde_json::to_string(&labels).unwrap_or_default();
    format!(
        "<h4>Where each head looks</h4><div class=\"heads\" role=\"radiogroup\" aria-label=\"Head that is shown large\" style=\"--n:{across}\" \
         data-names=\"{}\">\n{out}</div>",
        text(&labels)
    )
}

/// The head with the most attention from later positions to latents, which is shown first; the first head without latents.
fn most_to_latents(heads: &BTreeMap<(usize, usize), Vec<&PatternRow>>, names: &[Name]) -> (usize, usize) {
    let mass = |rows: &[&PatternRow]| -> f64 {
        let outside = rows.iter().filter(|row| !names[row.position.min(names.len() - 1)].1);
        outside.flat_map(|row| row.weights.iter().zip(names)).filter(|(_, name)| name.1).map(|(w, _)| w).sum()
    };
    let by_mass = heads.iter().rev().max_by(|a, b| mass(a.1).total_cmp(&mass(b.1)));
    by_mass.map_or((0, 0), |(head, _)| *head)
}

/// One head's pattern in two sizes; the large one reuses the small one's cells.
struct Picture<'a> {
    /// Prefix of ids.
    key: &'a str,
    names: &'a [Name],
    head: (usize, usize),
    weights: Vec<&'a [f64]>,
}

impl Picture<'_> {
    fn small(&self, shared: &str, checked: bool, (row, column): (usize, usize)) -> String {
        let Self { key, names, head: (layer, head), weights } = self;
        let (n, checked) = (names.len(), if checked { " checked" } else { "" });
        format!(
            "<label style=\"grid-area:{row}/{column}\"><input type=\"radio\" name=\"{key}\"{checked}><svg role=\"img\" viewBox=\"0 0 {n} {n}\">\
             <title>blocks.{layer}, head {head}</title>{shared}<g id=\"{key}-{layer}-{head}\" class=\"cells\" transform=\"translate(0 .5)\">{}</g></svg>\
             <small>L{layer}H{head}</small></label>",
            pattern::cells(weights)
        )
    }

    /// `row`: the grid's row below all small pictures.
    fn large(&self, row: usize) -> String {
        let Self { key, names, head: (layer, head), weights } = self;
        let side = names.len() * CELL + NAMES;
        format!(
            "<div class=\"big scroll\" style=\"grid-row:{row}\" tabindex=\"0\"><svg role=\"img\" width=\"{side}\" height=\"{side}\" viewBox=\"-{NAMES} -{NAMES} {side} {side}\" \
             data-w=\"{}\"><title>blocks.{layer}, head {head}: from each position (rows) to each earlier one (columns)</title>\
             <use href=\"#{key}-names\"/><g transform=\"scale({CELL})\"><use href=\"#{key}-{layer}-{head}\"/></g></svg></div>",
            pattern::percents(weights)
        )
    }
}
