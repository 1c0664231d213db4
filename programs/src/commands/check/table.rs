//! Results of a check, as text for a terminal and as Markdown. Knows comparisons only.

use std::time::{SystemTime, UNIX_EPOCH};

use super::PartResult;
use switchyard::parity::ParityComparison;
use switchyard::store::{command, commit};

fn verdict(passes: bool) -> &'static str {
    if passes { "pass" } else { "FAIL" }
}

/// A line a comparison, and a line about all.
pub(super) fn plain(device: &str, done: &[PartResult]) -> String {
    let all: Vec<&ParityComparison> = done.iter().filter_map(|done| done.result.as_ref().ok()).flatten().collect();
    let width = all.iter().map(|compared| compared.what.len()).max().unwrap_or(0).max(device.len());
    let mut out = format!("{:width$}  {:>8}  {:>8}  {:>9}\n", device, "off", "bound", "values");
    for ParityComparison { what, off, bound, values } in all.iter().copied() {
        let verdict = verdict(*off <= *bound && *values > 0);
        out += &format!("{what:width$}  {off:8.1e}  {bound:8.1e}  {values:>9}  {verdict}\n");
    }
    for done in done {
        if let Err(error) = &done.result {
            out += &format!("{}: FAIL: {error:#}\n", done.part);
        }
    }
    let passed = all.iter().filter(|compared| compared.passes()).count();
    out + &format!("{passed} of {} pass\n", all.len())
}

/// The table, with machine and time. All random numbers of a check have seed 0.
pub(super) fn markdown(device: &str, threads: usize, done: &[PartResult]) -> String {
    let mut out = format!(
        "# Device check: {device}\n\n`{}`, commit {}, {}, {}{threads} threads, seed 0.\n\n\
         Largest error: of reference values relative to the largest of them; of rows the largest difference, relative to the \
         largest number of the column where that is above 1. Words, counts and tokens must be the same.\n\n\
         | part | comparison | values | largest error | bound | |\n| --- | --- | ---: | ---: | ---: | --- |\n",
        command("probe"),
        commit(),
        date(SystemTime::now()),
        if cfg!(feature = "fusion") { "with fusion, " } else { "" },
    );
    for PartResult { part, result, .. } in done {
        match result {
            Ok(all) => {
                for compared in all {
                    let ParityComparison { what, off, bound, values } = compared;
                    let verdict = verdict(compared.passes());
                    out += &format!("| {part} | {what} | {values} | {off:.1e} | {bound:.0e} | {verdict} |\n");
                }
            }
            Err(error) => {
                let said = format!("{error:#}").replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ");
                out += &format!("| {part} | {said} | | | | FAIL |\n");
            }
        }
    }
    let times: Vec<String> = done.iter().map(|done| format!("{} {:.0} s", done.part, done.seconds)).collect();
    out + &format!("\nIt took: {}.\n", times.join(", "))
}

/// `2026-11-22` in UTC (the days of a calendar by Howard Hinnant's `civil_from_days`).
fn date(now: SystemTime) -> String {
    let days = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400) + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * from_march + 2) / 5 + 1, (from_march + 2) % 12 + 1);
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + u64::from(month <= 2))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn one(off: f64, values: usize) -> ParityComparison {
        ParityComparison { what: "x".into(), off, bound: 1e-5, values }
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
        let table = markdown("wgpu:0, llvmpipe, Vulkan", 1, &done);
        assert!(table.contains("| reference | x | 3 | 1.0e-6 | 1e-5 | pass |"), "{table}");
        assert!(
            table.contains("| 2.0e0 | 1e-5 | FAIL |") && table.contains("| memory | a \\| b | | | | FAIL |"),
            "{table}"
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, expected) in
            [(0, "1970-01-01"), (11_016, "2000-02-29"), (11_017, "2000-03-01"), (20_779, "2026-11-22")]
        {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(days * 86_400 + 5)), expected);
        }
    }
}
