//! `reports/index.html`: one page over all folders that needs no network and no other file. Knows HTML; its numbers come
//! rendered.
//!
//! A reader sees what this is, three findings a checkpoint and one problem solved; everything else is folded under headings.
//! All of it is in the HTML as it is written and readable without JavaScript; the script adds keyboard movement between
//! tokens, the panel of details and the filter of claims.

mod attention;
mod cards;
mod claims;
pub(super) mod escape;
mod explorer;
mod figures;
mod heads;
mod lens;
mod manifest;
mod pattern;
mod steps;
mod table;
mod trace;

use std::fmt::Write;

use escape::text;

use super::figures::fonts::font_face_css;
use super::paper::Paper;
use super::recipes::Recipe;
use super::render::Rendered;

/// What tells a page of ours from somebody's own.
pub const MARKER: &str = "<meta name=\"generator\" content=\"switchyard report\">";

/// What the folders of a page stand behind, in its head.
const FOLDERS: &str = "<meta name=\"switchyard-folders\" content=\"";

/// Places of the folders that a page shows; none of a page that does not say.
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

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The whole page; `places` say where its folders are.
pub fn html(paper: &Paper, folders: &[Rendered<'_>], recipes: &[(&'static str, Recipe)], places: &[String]) -> String {
    let mut body = String::new();
    let mut nav = String::new();
    for (number, r) in folders.iter().enumerate() {
        let id = id(number, &r.folder.name);
        body += &folder(paper, r, recipes, &id);
        let _ = write!(nav, "<a href=\"#{id}\">{}</a>", text(&r.folder.name));
    }
    let places = text(&serde_json::to_string(places).unwrap_or_default());
    let nav = if folders.len() > 1 { format!("<nav aria-label=\"Folders\">{nav}</nav>") } else { String::new() };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n{MARKER}\n{FOLDERS}{places}\">\n<title>Switchyard: report</title>\n\
         <style>\n{}{STYLE}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">To the results</a>\n\
         <header><p class=\"brand\">Switchyard</p>{nav}</header>\n<main id=\"main\">\n{INTRODUCTION}\n{body}</main>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        font_face_css()
    )
}

const INTRODUCTION: &str = "<p class=\"lead\">These language models may stop writing, think for some steps in hidden states between \
    <code>&lt;swi&gt;</code> and <code>&lt;/swi&gt;</code>, and go on; this page says what was measured of that thinking.</p>\n\
    <p class=\"note\">Each number stands with its 95 % interval and its <i>n</i>, the number of problems.</p>";

/// An id for anchors; folders of the same name stay apart.
fn id(number: usize, name: &str) -> String {
    format!("f{number}-{}", plain(name))
}

fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn folder(paper: &Paper, r: &Rendered<'_>, recipes: &[(&'static str, Recipe)], id: &str) -> String {
    let tables = || r.own_tables.iter().chain(r.paper_tables.iter().map(|b| &b.table));
    let anchor = |label: &str| {
        let there = tables().any(|table| table.label == label && !table.rows().is_empty());
        there.then(|| format!("{id}-{}", plain(label)))
    };
    let mut out = format!(
        "<article id=\"{id}\">\n<h1>{}</h1>\n{}{}{}",
        text(&r.folder.name),
        mixed(r),
        facts(r),
        cards::html(r.folder, id, &anchor)
    );
    if !r.claims.is_empty() {
        out += &claims::html(&r.claims, id);
    }
    let mut part = |key: &str, name: &str, count: usize, content: String| {
        if !content.is_empty() {
            let count = if count > 0 { format!(" <small>{count}</small>") } else { String::new() };
            let _ = writeln!(
                out,
                "<details class=\"part\" id=\"{id}-{key}\"><summary><h2>{name}{count}</h2></summary>\n{content}</details>"
            );
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
    part("paper", "The paper’s tables with ours beside them", r.paper_tables.len(), beside.collect());
    part("manifest", "What the rows were made from", r.folder.files().count(), manifest::html(r.folder));
    out + "</article>\n"
}

/// What was left out so that rows of different origin are not mixed: a bar that nobody overlooks.
fn mixed(r: &Rendered<'_>) -> String {
    if r.folder.mixed.is_empty() {
        return String::new();
    }
    let files: String = r.folder.mixed.iter().map(|why| format!("<li>{}</li>", text(why))).collect();
    format!(
        "<div class=\"mixed\" role=\"alert\"><b>This folder holds rows of different origin under one name.</b> Left out, so \
         that no table mixes them:<ul>{files}</ul></div>\n"
    )
}

/// Which models on which problems.
fn facts(r: &Rendered<'_>) -> String {
    if r.folder.is_calibration() {
        return "<p class=\"facts\">How often the verdicts of this workbench are right: models whose truth is known, through \
                every experiment.</p>\n"
            .into();
    }
    let models: Vec<String> = r.folder.models().iter().map(|name| format!("<code>{}</code>", text(name))).collect();
    let n = r.folder.problems().map_or_else(String::new, |n| format!(", {n} problems"));
    let data = text(&r.folder.dataset());
    format!("<p class=\"facts\">Models {}; data <code>{data}</code>{n}</p>\n", models.join(", "))
}

/// What to run for a table or figure that has no rows.
fn missing(recipes: &[(&'static str, Recipe)], label: &str) -> String {
    let Some(recipe) = super::recipes::of(recipes, label).filter(|r| !r.command.is_empty()) else {
        return String::new();
    };
    let commands = text(&recipe.command.join("\n"));
    format!(
        "<details class=\"how\"><summary>No rows: how to get them</summary><pre>{commands}</pre><p>{}</p></details>",
        text(&recipe.scale)
    )
}
