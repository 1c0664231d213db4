//! A table as Markdown, CSV and LaTeX. Knows text formats, not the meaning of numbers.

use super::letters;
use super::tables::{Cell, ColumnKind, Table};
use switchyard::stats::unsigned_zero;
use switchyard::store::no_formula;

/// Printed columns: headings and rows of plain text before escaping, and whether each is right-aligned.
struct PrintedTable {
    headings: Vec<(String, bool)>,
    rows: Vec<Vec<String>>,
}

/// Puts n next to every estimate, or once at the end of a row if all its estimates share it.
fn printed(table: &Table) -> PrintedTable {
    let shared: Vec<Option<usize>> = table.rows().iter().map(|row| common_n(row)).collect();
    let measured = table.columns.iter().filter(|c| matches!(c.kind, ColumnKind::Measured(_))).count();
    let once = measured > 1 && shared.iter().all(Option::is_some);
    let mut headings = Vec::new();
    for column in &table.columns {
        let interval = if matches!(column.kind, ColumnKind::Measured(_)) { " [95 %]" } else { "" };
        headings.push((format!("{}{interval}", column.name), column.kind != ColumnKind::Text));
        if matches!(column.kind, ColumnKind::Measured(_)) && !once {
            headings.push(("n".to_string(), true));
        }
    }
    if once {
        headings.push(("n".to_string(), true));
    }
    let row = |(cells, n): (&Vec<Cell>, &Option<usize>)| {
        let mut out = Vec::new();
        for (cell, column) in cells.iter().zip(&table.columns) {
            out.push(shown(cell, column.kind));
            if matches!(column.kind, ColumnKind::Measured(_)) && !once {
                out.push(if let Cell::Measured(e) = cell { e.n.to_string() } else { String::new() });
            }
        }
        if once {
            out.push(n.filter(|&n| n > 0).map_or(String::new(), |n| n.to_string()));
        }
        out
    };
    PrintedTable { headings, rows: table.rows().iter().zip(&shared).map(row).collect() }
}

/// The common n of a row's estimates (0 if there are none), or `None` if they differ.
fn common_n(row: &[Cell]) -> Option<usize> {
    let mut ns = row.iter().filter_map(|cell| if let Cell::Measured(e) = cell { Some(e.n) } else { None });
    let first = ns.next().unwrap_or(0);
    ns.all(|n| n == first).then_some(first)
}

fn shown(cell: &Cell, kind: ColumnKind) -> String {
    let digits = if let ColumnKind::Published(d) | ColumnKind::Measured(d) = kind { d } else { 3 };
    match cell {
        Cell::Text(text) => text.clone(),
        Cell::Count(count) => count.to_string(),
        Cell::Published(value) => number(*value, digits),
        Cell::Measured(e) => {
            format!("{} [{}, {}]", number(e.value, digits), number(e.low, digits), number(e.high, digits))
        }
        Cell::Missing(reason) if reason.is_empty() => "–".to_string(),
        Cell::Missing(reason) => reason.clone(),
    }
}

/// Fixed decimals; scientific notation if a nonzero number would round to zero.
pub(super) fn number(value: f64, digits: usize) -> String {
    if value.abs() >= 1e12 || value != 0.0 && value.abs() < 0.5 * 10f64.powi(-(digits as i32)) {
        format!("{value:.1e}")
    } else {
        unsigned_zero(format!("{value:.digits$}"))
    }
}

/// Escapes text for Markdown: a tag such as `<swi>` would be read as HTML, a bar would end a cell, a backslash would vanish.
pub(super) fn safe(s: &str) -> String {
    outside_code(s, |part| part.replace('\\', "\\\\").replace('&', "&amp;").replace('<', "&lt;"))
}

/// [`safe`] for a cell of records, in which an asterisk is not emphasis.
fn safe_cell(s: &str) -> String {
    let plain = |part: &str| part.replace('\\', "\\\\").replace('&', "&amp;").replace('<', "&lt;").replace('*', "\\*");
    outside_code(s, plain)
}

/// Applies `escape` outside of `` `code` ``, in which Markdown reads no entities and no backslashes. A backtick without a second one is text.
fn outside_code(s: &str, escape: impl Fn(&str) -> String) -> String {
    let line = letters::sanitize(s).replace('\n', " ");
    let parts: Vec<&str> = line.split('`').collect();
    let is_code = |at: usize| at % 2 == 1 && at + 1 < parts.len();
    let escaped =
        parts.iter().enumerate().map(|(at, part)| if is_code(at) { (*part).to_owned() } else { escape(part) });
    escaped.collect::<Vec<String>>().join("`").replace('|', "\\|")
}

impl Table {
    /// A GitHub table: `0.872 [0.840, 0.898]`, n in its own column.
    pub fn markdown(&self) -> String {
        let PrintedTable { headings, rows } = printed(self);
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut out = format!("**{}** (`{}`)\n\n", safe(&self.title), self.label);
        out += &line(headings.iter().map(|(name, _)| safe(name)).collect());
        out += &line(headings.iter().map(|(_, right)| if *right { "---:" } else { "---" }.to_string()).collect());
        for row in rows {
            out += &line(row.iter().map(|cell| safe_cell(cell)).collect());
        }
        if !self.note.is_empty() {
            out += &format!("\n{}\n", safe(&self.note));
        }
        out
    }

    /// RFC 4180 with value, low, high and n of each estimate in separate columns, unrounded.
    pub fn csv(&self) -> String {
        let quoted = |s: &str| {
            let s = no_formula(s);
            if s.contains([',', '"', '\n', '\r']) { format!("\"{}\"", s.replace('"', "\"\"")) } else { s.into_owned() }
        };
        let mut head = Vec::new();
        for column in &self.columns {
            head.push(quoted(&column.name));
            if matches!(column.kind, ColumnKind::Measured(_)) {
                head.extend(["low", "high", "n"].map(|part| quoted(&format!("{} {part}", column.name))));
            }
        }
        let mut out = head.join(",") + "\n";
        for row in self.rows() {
            let mut fields = Vec::new();
            for (cell, column) in row.iter().zip(&self.columns) {
                match cell {
                    Cell::Measured(e) => {
                        fields.extend([e.value, e.low, e.high].map(|v| v.to_string()));
                        fields.push(e.n.to_string());
                    }
                    Cell::Published(value) => fields.push(value.to_string()),
                    Cell::Count(count) => fields.push(count.to_string()),
                    Cell::Text(text) | Cell::Missing(text) => {
                        fields.push(quoted(text));
                        if matches!(column.kind, ColumnKind::Measured(_)) {
                            fields.extend([String::new(), String::new(), String::new()]);
                        }
                    }
                }
            }
            out += &(fields.join(",") + "\n");
        }
        out
    }

    /// A `table` environment with booktabs rules, label and caption.
    pub fn latex(&self) -> String {
        let PrintedTable { headings, rows } = printed(self);
        // After `\\`, a bracket would be read as a length, and an asterisk would vanish.
        let line = |cells: Vec<String>| {
            let line = cells.join(" & ") + " \\\\\n";
            if line.starts_with(['[', '*']) { format!("{{}}{line}") } else { line }
        };
        let align: String = headings.iter().map(|(_, right)| if *right { 'r' } else { 'l' }).collect();
        let mut out = format!("\\begin{{table}}[t]\n\\centering\n\\small\n\\begin{{tabular}}{{{align}}}\n\\toprule\n");
        out += &line(headings.iter().map(|(name, _)| tex(name)).collect());
        out += "\\midrule\n";
        for row in rows {
            out += &line(row.iter().map(|cell| tex(cell)).collect());
        }
        let note = if self.note.is_empty() { String::new() } else { format!(" {}", tex(&self.note)) };
        let caption = format!("\\caption{{{}.{note}}}\n\\label{{{}}}\n", tex(&self.title), self.label);
        out + "\\bottomrule\n\\end{tabular}\n" + &caption + "\\end{table}\n"
    }
}

/// Escapes LaTeX commands and characters that pdfLaTeX does not know. `-` before a digit becomes a minus, `` `code` `` typewriter text.
fn tex(text: &str) -> String {
    let text = letters::sanitize(text);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut code = false;
    while let Some(c) = chars.next() {
        match c {
            '`' if code => {
                out.push('}');
                code = false;
            }
            '`' if chars.clone().any(|next| next == '`') => {
                out += "\\texttt{";
                code = true;
            }
            // An empty line would end a paragraph, which a cell and a caption do not allow.
            '\n' => out.push(' '),
            '|' => out += "\\textbar{}",
            '−' => out += "$-$",
            '≥' => out += "$\\geq$",
            '≤' => out += "$\\leq$",
            '≈' => out += "$\\approx$",
            '→' => out += "$\\rightarrow$",
            'Δ' => out += "$\\Delta$",
            '‖' => out += "$\\Vert$",
            '\u{fffd}' => out.push('?'),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => out.extend(['\\', c]),
            '\\' => out += "\\textbackslash{}",
            '~' => out += "\\textasciitilde{}",
            '^' => out += "\\textasciicircum{}",
            '<' => out += "\\textless{}",
            '>' => out += "\\textgreater{}",
            '–' => out += "--",
            '-' if chars.peek().is_some_and(char::is_ascii_digit) && !out.ends_with(char::is_alphanumeric) => {
                out += "$-$"
            }
            other => out.push(other),
        }
    }
    out
}
