//! A table as HTML. Knows cells: a number of ours stands with its interval and n, one of the paper's without.

use std::fmt::Write;

use super::escape::{prose, text};
use crate::report::render_table::number;
use crate::report::tables::{Cell, ColumnKind, Table};

/// The table with caption, note and links to its files in `folder`; `how` is put under it.
pub(super) fn html(table: &Table, folder: &str, how: &str) -> String {
    let stem = format!("{folder}/{}", text(&table.label.replace(':', "-")));
    let mut head = String::new();
    for column in &table.columns {
        let class = class(column.kind);
        let _ = write!(head, "<th scope=\"col\"{class}>{}</th>", text(&column.name));
    }
    let mut body = String::new();
    for row in table.rows() {
        body += "<tr>";
        for (at, (cell, column)) in row.iter().zip(&table.columns).enumerate() {
            let content = shown(cell, column.kind);
            if at == 0 && column.kind == ColumnKind::Text {
                let _ = write!(body, "<th scope=\"row\">{content}</th>");
            } else {
                let _ = write!(body, "<td{}>{content}</td>", class(column.kind));
            }
        }
        body += "</tr>\n";
    }
    let note =
        if table.note.is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>", prose(&table.note)) };
    format!(
        "<figure class=\"table\" id=\"{}\"><figcaption><b>{}</b> <code>{}</code> <span class=\"files\">\
         <a href=\"{stem}.csv\">csv</a> <a href=\"{stem}.tex\">tex</a> <a href=\"{stem}.md\">md</a></span></figcaption>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table><thead><tr>{head}</tr></thead>\n\
         <tbody>{body}</tbody></table></div>{note}{how}</figure>\n",
        text(&format!("{folder}-{}", table.label).replace(['/', ':', '.'], "-")),
        text(&table.title),
        text(&table.label),
        text(&table.title),
    )
}

fn class(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Text => "",
        ColumnKind::Count => " class=\"num\"",
        ColumnKind::Published(_) => " class=\"num paper\"",
        ColumnKind::Measured(_) => " class=\"num ours\"",
    }
}

fn shown(cell: &Cell, kind: ColumnKind) -> String {
    let digits = if let ColumnKind::Published(d) | ColumnKind::Measured(d) = kind { d } else { 3 };
    match cell {
        Cell::Text(s) => prose(s),
        Cell::Count(c) => c.to_string(),
        Cell::Published(v) => number(*v, digits),
        Cell::Measured(e) => format!(
            "{} <small>[{}, {}] <i>n</i> {}</small>",
            number(e.value, digits),
            number(e.low, digits),
            number(e.high, digits),
            e.n
        ),
        Cell::Missing(reason) if reason.is_empty() => "<span class=\"none\">–</span>".into(),
        Cell::Missing(reason) => text(reason),
    }
}
