//! Markdown tables of experiments' results. Knows text only.

/// A table with these `columns` (`group | accuracy`); `line` returns the cells of a row (`wrong | 0.250`).
pub(crate) fn table_of<R>(columns: &str, rows: impl IntoIterator<Item = R>, line: impl Fn(R) -> String) -> String {
    let rule = "| --- ".repeat(columns.split(" | ").count());
    let lines: String = rows.into_iter().map(|row| format!("| {} |\n", line(row))).collect();
    format!("| {columns} |\n{rule}|\n{lines}")
}

/// A row with one cell per step: `layer | step 1 | step 2`.
pub(crate) fn by_step(first: String, steps: usize, cell: impl Fn(usize) -> String) -> String {
    (1..=steps).fold(first, |row, step| row + " | " + &cell(step))
}

pub(crate) fn titled(title: &str, table: &str) -> String {
    format!("{title}\n\n{table}")
}

/// `—` for `None`.
pub(crate) fn or_dash(said: Option<impl ToString>) -> String {
    said.map_or_else(|| "—".into(), |said| said.to_string())
}

/// The `n` largest of some rows, the largest first.
pub(crate) fn largest<'r, R>(rows: impl Iterator<Item = &'r R>, n: usize, size: fn(&R) -> f64) -> Vec<&'r R> {
    let mut rows: Vec<&R> = rows.collect();
    rows.sort_by(|a, b| size(b).total_cmp(&size(a)));
    rows.truncate(n);
    rows
}
