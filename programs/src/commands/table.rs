//! Markdown tables for a terminal: aligned columns within the screen's width. Knows text only.

/// Columns of a terminal that everybody has.
pub(crate) const WIDTH: usize = 80;

/// Most rows of a printed table.
const MOST_ROWS: usize = 20;

/// The text with at most [`MOST_ROWS`] rows of each Markdown table, and the file that has the others.
pub(crate) fn shortened(text: &str, file: &str) -> String {
    let (mut out, mut rows) = (String::new(), 0_usize);
    // A table's first two lines are its heading and rule.
    let left_out = |rows: usize| match rows.saturating_sub(2 + MOST_ROWS) {
        0 => String::new(),
        more => format!("{more} more in {file}\n"),
    };
    for line in text.lines() {
        if line.starts_with("| ") {
            rows += 1;
        } else {
            out += &left_out(std::mem::take(&mut rows));
        }
        if rows <= 2 + MOST_ROWS {
            out += line;
            out.push('\n');
        }
    }
    out + &left_out(rows)
}

/// The text with its tables aligned. A table that is too wide is split into parts, one below the other, each with the columns that identify
/// its rows; a column that is too wide by itself is not aligned.
pub(crate) fn fitted(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut table: Vec<Vec<&str>> = vec![];
    for line in text.lines() {
        match line.strip_prefix("| ").and_then(|rest| rest.strip_suffix(" |")) {
            Some(cells) => table.push(cells.split(" | ").map(str::trim).collect()),
            None => {
                flush(&mut table, width, &mut out);
                out += line;
                out.push('\n');
            }
        }
    }
    flush(&mut table, width, &mut out);
    out
}

fn flush(table: &mut Vec<Vec<&str>>, width: usize, out: &mut String) {
    let rule = |row: &Vec<&str>| row.iter().all(|cell| cell.trim_matches([':', '-']).is_empty() && cell.contains("--"));
    let rows: Vec<Vec<&str>> = table.drain(..).filter(|row| !rule(row)).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<&str>, column: usize| row.get(column).copied().unwrap_or_default().to_owned();
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0))
        .collect();
    let keys = keys(&rows, &widths, width);
    for (number, part) in parts(&widths, keys, width).into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        // Key columns of more than half of the screen and one other column may be a little wider than it.
        let wide_keys = 2 * width_of(&widths, keys) > width && part.len() == 1 + keys;
        let most = if wide_keys { width + width / 4 } else { width };
        let fits = part.iter().map(|&c| widths[c] + 2).sum::<usize>() <= most + 2;
        let line = |fill: &dyn Fn(usize) -> String| part.iter().map(|&c| fill(c)).collect::<Vec<_>>().join("  ");
        for (i, row) in rows.iter().enumerate() {
            let padded = line(&|c| format!("{:<1$}", cell(row, c), if fits { widths[c] } else { 0 }));
            *out += padded.trim_end();
            out.push('\n');
            if i == 0 && fits {
                *out += &line(&|c| "-".repeat(widths[c]));
                out.push('\n');
            }
        }
    }
}

/// Groups of columns, with the first `keys` in every group.
fn parts(widths: &[usize], keys: usize, width: usize) -> Vec<Vec<usize>> {
    let key: Vec<usize> = (0..keys).collect();
    let of_keys = width_of(widths, keys);
    let (mut parts, mut used) = (vec![key.clone()], of_keys);
    for (column, own) in widths.iter().enumerate().skip(keys) {
        if used + own + 2 > width && parts.last().is_some_and(|part| part.len() > keys) {
            parts.push(key.clone());
            used = of_keys;
        }
        if let Some(part) = parts.last_mut() {
            part.push(column);
        }
        used += own + 2;
    }
    parts
}

/// Letters of the first columns.
fn width_of(widths: &[usize], columns: usize) -> usize {
    widths[..columns].iter().map(|own| own + 2).sum::<usize>().saturating_sub(2)
}

/// Number of leading columns that identify rows, within three quarters of the width; at least one.
fn keys(rows: &[Vec<&str>], widths: &[usize], width: usize) -> usize {
    let apart = |k: usize| {
        let mut seen: Vec<&[&str]> = rows.iter().map(|row| &row[..k.min(row.len())]).collect();
        seen.sort_unstable();
        seen.windows(2).all(|pair| pair[0] != pair[1])
    };
    let found = (1..=widths.len()).find(|&k| apart(k)).filter(|&k| 4 * width_of(widths, k) <= 3 * width);
    found.unwrap_or(1).min(widths.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_comes_in_parts_that_fit() {
        let text = "before\n| mode | accuracy | lost |\n| --- | ---: | --- |\n| zero | 0.5 [0.4, 0.6] | 3 |\n| n | – | 4 |\nafter\n";
        assert_eq!(
            fitted(text, 80),
            "before\nmode  accuracy        lost\n----  --------------  ----\nzero  0.5 [0.4, 0.6]  3\nn     –               4\nafter\n"
        );
        let narrow = fitted(text, 22);
        assert!(narrow.lines().all(|line| line.chars().count() <= 22), "{narrow}");
        assert_eq!(narrow.matches("mode").count(), 2, "{narrow}");
        assert!(narrow.contains("mode  lost\n----  ----\nzero  3\n"), "{narrow}");
    }

    #[test]
    fn a_long_table_names_the_file_with_its_other_rows() {
        let table = |rows: usize| format!("| n |\n| --- |\n{}", "| 1 |\n".repeat(rows));
        assert_eq!(shortened(&table(20), "rows.parquet"), table(20));
        assert_eq!(shortened(&(table(23) + "after\n"), "f"), table(20) + "3 more in f\nafter\n");
    }

    #[test]
    fn every_part_tells_its_rows_apart() {
        let row = |at: &str, lost: &str| format!("| zero | {at} | 0.500 [0.400, 0.600] | {lost} |\n");
        let text =
            format!("| mode | at | accuracy | lost |\n| --- | --- | --- | --- |\n{}{}", row("H0", "3"), row("H1", "4"));
        let narrow = fitted(&text, 32);
        for line in ["zero  H0  0.500 [0.400, 0.600]", "zero  H1  0.500 [0.400, 0.600]", "zero  H0  3", "zero  H1  4"] {
            assert!(narrow.lines().any(|shown| shown == line), "{line}: {narrow}");
        }
    }
}
