//! Results of a check, as text for a terminal and as Markdown. Knows comparisons only.

use anyhow::Result;

use super::PartResult;
use switchyard::parity::ParityComparison;
use switchyard::parity::reference::Deviation;
use switchyard::store::{command, commit};
use switchyard::text::now;

/// Cells of a comparison or of an error: part, what, values, largest error, bound, verdict.
fn rows(done: &[PartResult]) -> Vec<[String; 6]> {
    let mut out = vec![];
    for PartResult { part, result, .. } in done {
        let row = |what: String, [values, off, bound]: [String; 3], passes: bool| {
            [(*part).to_owned(), what, values, off, bound, if passes { "pass" } else { "FAIL" }.to_owned()]
        };
        match result {
            Ok(all) => out.extend(all.iter().map(|compared| {
                let ParityComparison { what, found: Deviation { off, values, at }, bound } = compared;
                let passes = compared.passes();
                let what = if passes || at.is_empty() { what.clone() } else { format!("{what}, worst at {at}") };
                row(what, [values.to_string(), format!("{off:.1e}"), format!("{bound:.0e}")], passes)
            })),
            Err(error) => {
                let words = format!("{part}: {error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
                out.push(row(words, Default::default(), false));
            }
        }
    }
    out
}

/// One aligned line per row, and the number of those that pass.
pub(super) fn plain(device: &str, done: &[PartResult]) -> String {
    let head = ["", device, "values", "off", "bound", ""].map(str::to_owned);
    let rows = rows(done);
    // An error has no values, and may be long.
    let compared = rows.iter().filter(|row| !row[2].is_empty());
    let width = compared.chain([&head]).map(|row| row[1].len()).max().unwrap_or_default();
    let mut out = String::new();
    for [_, what, values, off, bound, verdict] in [&head].into_iter().chain(&rows) {
        let line = format!("{what:width$}  {off:>8}  {bound:>8}  {values:>9}  {verdict}");
        out += &format!("{}\n", line.trim_end());
    }
    let passed = rows.iter().filter(|row| row[5] == "pass").count();
    out + &format!("{passed} of {} pass\n", rows.len())
}

/// The table, with machine and time. All random numbers of a check have seed 0.
pub(super) fn markdown(device: &str, threads: usize, done: &[PartResult]) -> Result<String> {
    let mut out = format!(
        "# Device check: {device}\n\n`{}`, commit {}, {}, {}{threads} threads, seed 0.\n\n\
         Largest error: of reference values relative to the largest of them; of rows the largest difference, relative to the \
         largest number of the column where that is above 1. Words, counts and tokens must be the same.\n\n\
         | part | comparison | values | largest error | bound | |\n| --- | --- | ---: | ---: | ---: | --- |\n",
        command("probe"),
        commit(),
        now("%F")?,
        if cfg!(feature = "fusion") { "with fusion, " } else { "" },
    );
    for row in rows(done) {
        out += &format!("| {} |\n", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    let times: Vec<String> = done.iter().map(|done| format!("{} {:.0} s", done.part, done.seconds)).collect();
    Ok(out + &format!("\nIt took: {}.\n", times.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(off: f64, values: usize) -> ParityComparison {
        ParityComparison::new("x", 1e-5, [Deviation { off, values, at: String::new() }])
    }

    #[test]
    fn nothing_compared_and_no_number_are_failures() {
        assert!(one(1e-5, 3).passes());
        assert!(!one(1.1e-5, 3).passes() && !one(0.0, 0).passes() && !one(f64::INFINITY, 3).passes());
        assert!(!one(f64::NAN, 3).passes());
        let done = |result| PartResult { part: "reference", seconds: 1.0, result };
        assert!(!done(Ok(vec![])).passes() && !done(Ok(vec![one(1e-6, 3), one(1.0, 3)])).passes());
        assert!(!done(Err(anyhow::anyhow!("lost"))).passes() && done(Ok(vec![one(1e-6, 3)])).passes());
        assert!(plain("cpu", &[done(Ok(vec![one(1e-6, 3), one(1.0, 3)]))]).contains("1 of 2 pass"));
    }

    #[test]
    fn the_table_says_what_failed_and_why() {
        let done = [
            PartResult { part: "reference", seconds: 1.0, result: Ok(vec![one(1e-6, 3), one(2.0, 3)]) },
            PartResult { part: "memory", seconds: 2.0, result: Err(anyhow::anyhow!("a | b")) },
        ];
        let table = markdown("wgpu:0, llvmpipe, Vulkan", 1, &done).expect("a date");
        assert!(table.contains("| reference | x | 3 | 1.0e-6 | 1e-5 | pass |"), "{table}");
        assert!(
            table.contains("| 2.0e0 | 1e-5 | FAIL |") && table.contains("| memory | memory: a \\| b |  |  |  | FAIL |"),
            "{table}"
        );
    }
}
