//! `reports/index.html`: one page over all folders that needs no network. Knows HTML; its numbers come rendered.
//!
//! Everything is in the HTML as it is written: tables, figures, traces and the lens grid are readable without JavaScript;
//! the script adds keyboard movement between tokens, the panel of details and the filter of claims.

mod claims;
mod escape;
mod figures;
mod lens;
mod manifest;
mod table;
mod trace;

use std::fmt::Write;
use std::path::{Component, Path};

use escape::text;

use super::claims_list::count;
use super::figures::fonts::font_face_css;
use super::paper::Paper;
use super::recipes::Recipe;
use super::render::Rendered;
use super::verdicts::Verdict;
use crate::schema::{LensRow, PositionRow};

/// What tells a page of ours from somebody's own.
pub const MARKER: &str = "<meta name=\"generator\" content=\"switchyard report\">";

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The whole page; links to files are relative to `home`, the folder it will lie in.
pub fn html(paper: &Paper, folders: &[Rendered<'_>], recipes: &[(&'static str, Recipe)], home: &Path) -> String {
    let mut body = String::new();
    let mut nav = String::new();
    for (number, r) in folders.iter().enumerate() {
        let id = id(number, &r.folder.name);
        body += &folder(paper, r, recipes, &id, home);
        nav += &navigation(r, &id);
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n{MARKER}\n<title>Switchyard: report</title>\n\
         <style>\n{}{STYLE}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">To the results</a>\n\
         <header><p class=\"brand\">Switchyard</p><nav aria-label=\"Contents\">{nav}</nav></header>\n\
         <main id=\"main\">\n{INTRODUCTION}\n{body}</main>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        font_face_css()
    )
}

const INTRODUCTION: &str = "<p class=\"lead\">Switchable latent reasoning, measured beside the paper. Every number of ours \
    stands with its 95 % interval and its n; the paper's have neither. Other models on other problems: compare shapes, not \
    levels.</p>";

/// An id for anchors; folders of the same name stay apart.
fn id(number: usize, name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("f{number}-{name}")
}

fn navigation(r: &Rendered<'_>, id: &str) -> String {
    let mut links = String::new();
    for (part, name) in PARTS {
        let empty = match *part {
            "traces" => r.folder.of::<PositionRow>().is_empty(),
            "lens" => r.folder.of::<LensRow>().is_empty(),
            "figures" => r.figures.is_empty(),
            "claims" => r.claims.is_empty(),
            "paper" => r.paper_tables.is_empty(),
            "own" => r.own_tables.is_empty(),
            _ => false,
        };
        if !empty {
            let _ = write!(links, "<li><a href=\"#{id}-{part}\">{name}</a></li>");
        }
    }
    format!("<details open><summary>{}</summary><ul>{links}</ul></details>", text(&r.folder.name))
}

/// Parts of a folder's section, by anchor.
const PARTS: &[(&str, &str)] = &[
    ("claims", "Claims"),
    ("paper", "The paper’s tables"),
    ("own", "Our tables"),
    ("figures", "Figures"),
    ("traces", "Traces"),
    ("lens", "Lens grid"),
    ("manifest", "Manifest"),
];

fn folder(paper: &Paper, r: &Rendered<'_>, recipes: &[(&'static str, Recipe)], id: &str, home: &Path) -> String {
    let link = |path: &Path| text(&relative(path, home));
    let mut out = format!("<article id=\"{id}\">\n<h1>{}</h1>\n{}{}", text(&r.folder.name), mixed(r), facts(r));
    let mut part = |key: &str, intro: &str, content: String| {
        if !content.is_empty() {
            let name = PARTS.iter().find(|(k, _)| *k == key).map_or("", |(_, n)| n);
            let _ = write!(out, "<section id=\"{id}-{key}\">\n<h2>{name}</h2>\n{intro}{content}</section>\n");
        }
    };
    if !r.claims.is_empty() {
        part("claims", "", claims::html(&r.claims, id));
    }
    let tables: String = r
        .paper_tables
        .iter()
        .map(|b| {
            let how = if b.ours == 0 { missing(recipes, &b.table.label) } else { String::new() };
            table::html(&b.table, &link(&r.folder.path.join("tables")), &how)
        })
        .collect();
    part("paper", "", tables);
    part("own", "", r.own_tables.iter().map(|t| table::html(t, &link(&r.folder.path.join("tables")), "")).collect());
    part("figures", "", figures::html(paper, r, recipes, &link));
    part("traces", trace::INTRODUCTION, trace::html(r.folder, id));
    part("lens", lens::INTRODUCTION, lens::html(r.folder, id));
    part("manifest", "", manifest::html(r.folder));
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

/// The folder at a glance.
fn facts(r: &Rendered<'_>) -> String {
    let tile = |n: usize, what: &str, class: &str| format!("<li class=\"{class}\"><b>{n}</b> {what}</li>");
    let of = |v: Verdict| tile(count(&r.claims, v), v.words(), claims::class(v));
    let with_rows = r.paper_tables.iter().filter(|b| b.ours > 0).count();
    format!(
        "<p class=\"facts\">{} · {} of {} tables of the paper have rows of ours · {} figures</p>\n\
         <ul class=\"tiles\" aria-label=\"Verdicts\">{}{}{}{}</ul>\n",
        text(&r.folder.dataset()),
        with_rows,
        r.paper_tables.len(),
        r.figures.len(),
        of(Verdict::Reproduced),
        of(Verdict::NotReproduced),
        of(Verdict::Undecided),
        of(Verdict::NotTestable)
    )
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

/// A path as seen from the page's folder, for links.
fn relative(path: &Path, home: &Path) -> String {
    let parts = |p: &Path| -> Vec<String> {
        let full = p.canonicalize().unwrap_or_else(|_| p.to_path_buf());
        let named = full.components().filter(|c| *c != Component::CurDir);
        named.map(|c| c.as_os_str().to_string_lossy().into_owned()).collect()
    };
    let home = if home.as_os_str().is_empty() { Path::new(".") } else { home };
    let (path, home) = (parts(path), parts(home));
    let shared = path.iter().zip(&home).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..".to_owned(), home.len() - shared);
    up.chain(path[shared..].iter().cloned()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_relative() {
        let at = |path: &str, home: &str| relative(Path::new(path), Path::new(home));
        assert_eq!(at("/x/reports/micro/tables", "/x/reports"), "micro/tables");
        assert_eq!(at("/x/runs/micro", "/x/reports"), "../runs/micro");
    }
}
