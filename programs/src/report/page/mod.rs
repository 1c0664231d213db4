//! `reports/index.html`: one page over all folders, without network or other files. Knows HTML; its numbers are already rendered.
//!
//! The top shows what this is, three findings per checkpoint and one solved problem; everything else is folded under headings. All of it is
//! readable without JavaScript, as long as the page needs no packing ([`packed`]). The script adds keyboard movement between tokens, the panel
//! of details and the filter of claims; if small checkpoints lie next to the records, also the laboratory ([`super::live`]).

mod attention;
mod cards;
mod claims;
pub(super) mod escape;
mod explorer;
mod figures;
mod heads;
mod lens;
mod manifest;
mod packed;
mod pattern;
mod steps;
mod table;
mod trace;

use std::fmt::Write;

use anyhow::Result;
use base64::prelude::{BASE64_STANDARD as STANDARD, Engine};
use escape::text;
use packed::Piece;
use sha2::{Digest, Sha256};

use super::figures::fonts::font_face_css;
use super::live::{self, Live};
use super::paper::Paper;
use super::recipes::ExhibitRecipe;
use super::render::Rendering;

/// Marks a page as ours.
pub const MARKER: &str = "<meta name=\"generator\" content=\"switchyard report\">";

/// Start of the list of the page's folders, in its head.
const FOLDERS: &str = "<meta name=\"switchyard-folders\" content=\"";

/// Locations of a page's folders; empty for a page without a list.
pub(super) fn shown(html: &str) -> Vec<String> {
    let said = html.split_once(FOLDERS).and_then(|(_, rest)| rest.split_once('"'));
    let unescaped = |raw: &str| {
        raw.replace("&quot;", "\"")
            .replace("&#39;", "'")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&")
    };
    said.and_then(|(list, _)| serde_json::from_str(&unescaped(list)).ok()).unwrap_or_default()
}

pub(super) const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The whole page; `places` are its folders' locations, `live` the models that run in it.
pub(crate) fn html(
    paper: &Paper,
    folders: &[Rendering<'_>],
    recipes: &[(&'static str, ExhibitRecipe)],
    places: &[String],
    live: &Live,
) -> Result<String> {
    let mut body = vec![];
    let mut nav = if live.is_empty() { String::new() } else { "<a href=\"#try\">Try it</a>".into() };
    for (number, r) in folders.iter().enumerate() {
        let id = id(number, &r.folder.name);
        let laboratory = if live.stands_in(number) { live::SECTION } else { "" };
        body.extend(folder(paper, r, recipes, &id, laboratory));
        if folders.len() > 1 {
            let _ = write!(nav, "<a href=\"#{id}\">{}</a>", text(&r.folder.name));
        }
    }
    let places = text(&serde_json::to_string(places).unwrap_or_default());
    let nav = if nav.is_empty() { nav } else { format!("<nav aria-label=\"On this page\">{nav}</nav>") };
    let script = format!("\n{SCRIPT}{}", live.script());
    let style = format!("{}{STYLE}{}", font_face_css(), if live.is_empty() { "" } else { live::STYLE });
    let data = live.data()?;
    let invitation = if live.is_empty() { "" } else { live::INVITATION };
    let body = packed::joined(body, style.len() + script.len() + data.len() + AROUND)?;
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{}\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n{MARKER}\n{FOLDERS}{places}\">\n<title>Switchyard: report</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">To the results</a>\n\
         <header><p class=\"brand\">Switchyard</p>{nav}</header>\n<main id=\"main\">\n{INTRODUCTION}\n{invitation}{body}</main>\n\
         {data}<script>{script}</script>\n</body>\n</html>\n",
        policy(&script, ""),
    ))
}

/// Content security policy of a page: this script, no other content than the page's, and no requests except those that `more` allows. Values
/// of records are escaped text; if one were parsed as a script anyway, it would not run.
pub(super) fn policy(script: &str, more: &str) -> String {
    let hash = STANDARD.encode(Sha256::digest(script.as_bytes()));
    format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; \
         font-src data:; img-src data:; {more}base-uri 'none'; form-action 'none'\">"
    )
}

/// More than the bytes of the head, the navigation and the introduction.
const AROUND: usize = 10_000;

const INTRODUCTION: &str = "<p class=\"lead\">These language models may stop writing, think for some steps in hidden states between \
    <code>&lt;swi&gt;</code> and <code>&lt;/swi&gt;</code>, and continue; this page measures that thinking.</p>\n\
    <p class=\"note\">Each number has its 95 % interval and its <i>n</i>, the number of problems.</p>";

/// An id for anchors, unique for folders of the same name.
fn id(number: usize, name: &str) -> String {
    format!("f{number}-{}", plain(name))
}

fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn folder(
    paper: &Paper,
    r: &Rendering<'_>,
    recipes: &[(&'static str, ExhibitRecipe)],
    id: &str,
    laboratory: &str,
) -> Vec<Piece> {
    let tables = || r.own_tables.iter().chain(r.paper_tables.iter().map(|b| &b.table));
    let anchor = |label: &str| {
        let there = tables().any(|table| table.label == label && !table.rows().is_empty());
        there.then(|| format!("{id}-{}", plain(label)))
    };
    let mut out = format!(
        "<article id=\"{id}\">\n<h1>{}</h1>\n{}{}{}{laboratory}",
        text(&r.folder.name),
        mixed(r),
        facts(r),
        cards::html(r.folder, id, &anchor)
    );
    if !r.claims.is_empty() {
        out += &claims::html(&r.claims, id);
    }
    let files = format!(
        "As files: <code>{0}/tables</code>, <code>{0}/figures</code>, and the rows next to them.",
        text(&r.folder.path.display().to_string())
    );
    let mut pieces = vec![Piece::Html(out)];
    let mut part = |key: &str, name: &str, count: usize, html: String| {
        if !html.is_empty() {
            let count = if count > 0 { format!(" <small>{count}</small>") } else { String::new() };
            let open = format!("<details class=\"part\" id=\"{id}-{key}\"><summary><h2>{name}{count}</h2></summary>\n");
            pieces.extend([
                Piece::Html(open),
                Piece::Folded { html, files: files.clone() },
                Piece::Html("</details>\n".into()),
            ]);
        }
    };
    let (traces, problems) = trace::html(r.folder, id);
    part("traces", "Problems, token by token", problems, traces);
    let (explored, problems) = explorer::html(r.folder, id);
    part("explorer", "Inside a problem: every layer, every head", problems, explored);
    part("lens", "What each layer would say at each latent step", 0, lens::html(r.folder, id));
    part("attention", "Where the heads look", 0, attention::html(r.folder, id));
    part("heads", "Which heads act", 0, heads::html(r.folder, id));
    part("figures", "Figures", r.figures.len(), figures::html(paper, r, recipes));
    part("own", "Tables", r.own_tables.len(), r.own_tables.iter().map(|t| table::html(t, id, "")).collect());
    let beside = r.paper_tables.iter().map(|b| {
        let how = if b.ours == 0 { missing(recipes, &b.table.label) } else { String::new() };
        table::html(&b.table, id, &how)
    });
    part("paper", "The paper’s tables next to ours", r.paper_tables.len(), beside.collect());
    part("manifest", "What the rows were made from", r.folder.files().count(), manifest::html(r.folder));
    pieces.push(Piece::Html("</article>\n".into()));
    pieces
}

/// A prominent list of files that were excluded because of their origin.
fn mixed(r: &Rendering<'_>) -> String {
    if r.folder.mixed.is_empty() {
        return String::new();
    }
    let files: String = r.folder.mixed.iter().map(|why| format!("<li>{}</li>", text(why))).collect();
    format!(
        "<div class=\"mixed\" role=\"alert\"><b>This folder holds rows of different origin under one name.</b> Left out, so \
         that no table mixes them:<ul>{files}</ul></div>\n"
    )
}

/// States the models and problems of a page.
fn facts(r: &Rendering<'_>) -> String {
    if r.folder.is_calibration() {
        return "<p class=\"facts\">How often the verdicts are right: every experiment on models whose mechanism is \
                known.</p>\n"
            .into();
    }
    let models: Vec<String> = r.folder.models().iter().map(|name| format!("<code>{}</code>", text(name))).collect();
    let n = r.folder.problems().map_or_else(String::new, |n| format!(", {n} problems"));
    let data = text(&r.folder.dataset());
    let untrained: String =
        r.folder.untrained().iter().map(|why| format!("<p class=\"facts\"><b>{}</b></p>\n", text(why))).collect();
    format!("<p class=\"facts\">Models {}; data <code>{data}</code>{n}</p>\n{untrained}", models.join(", "))
}

/// The command for a table or figure without records.
fn missing(recipes: &[(&'static str, ExhibitRecipe)], label: &str) -> String {
    let Some(recipe) = super::recipes::find_recipe(recipes, label).filter(|r| !r.command.is_empty()) else {
        return String::new();
    };
    let commands = text(&recipe.command.join("\n"));
    format!(
        "<details class=\"how\"><summary>No rows: how to get them</summary><pre>{commands}</pre><p>{}</p></details>",
        text(&recipe.scale)
    )
}
