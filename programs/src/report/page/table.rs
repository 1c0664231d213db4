//! A table as HTML. Knows cells: our numbers have interval and n, the paper's do not.

use std::fmt::Write;

use base64::prelude::{BASE64_STANDARD as STANDARD, Engine};

use super::escape::{prose, text};
use super::plain;
use crate::report::render_table::number;
use crate::report::tables::{Cell, ColumnKind, Table};

/// The table with caption, note and embedded CSV; `how` is appended. `id`: the folder's.
pub(super) fn html(table: &Table, id: &str, how: &str) -> String {
    let mut head = String::new();
    for column in &table.columns {
        let class = class(column.kind);
        // A column without a name is not a header.
        let _ = match column.name.as_str() {
            "" => write!(head, "<td></td>"),
            name => write!(head, "<th scope=\"col\"{class}>{}</th>", text(name)),
        };
    }
    let mut body = String::new();
    for row in table.rows() {
        body += "<tr>";
        for (at, (cell, column)) in row.iter().zip(&table.columns).enumerate() {
            let content = shown(cell, column.kind);
            // An empty cell names no row.
            if at == 0 && column.kind == ColumnKind::Text && !content.is_empty() {
                let _ = write!(body, "<th scope=\"row\">{content}</th>");
            } else {
                let _ = write!(body, "<td{}>{content}</td>", class(column.kind));
            }
        }
        body += "</tr>\n";
    }
    let note =
        if table.note.is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>", prose(&table.note)) };
    let file = text(&table.label.replace(':', "-"));
    format!(
        "<figure class=\"table\" id=\"{id}-{}\"><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{id}: {}\">\
         <table><caption><span class=\"said\"><b>{}</b> <code>{}</code> <a class=\"files\" download=\"{file}.csv\" \
         href=\"data:text/csv;base64,{}\">csv</a></span></caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\
         {note}{how}</figure>\n",
        plain(&table.label),
        text(&table.label),
        text(&table.title),
        text(&table.label),
        STANDARD.encode(table.csv()),
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
