//! Every estimate with an interval in README.md, docs/results.md and the README of a report equals a committed row or table, to
//! the digits shown and with the n after it. Estimates without committed rows are between `<!-- no rows -->` and
//! `<!-- /no rows -->`, where the text names their command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use switchyard::store::read_flat;

/// Value, low and high.
type Triple = [f64; 3];

/// The n right after an interval: ` n=47` or ` (n = 1,319`.
fn denominator(behind: &str) -> Option<usize> {
    let start = behind.trim_start_matches([' ', ',', '(']);
    let number = start.strip_prefix("n=").or_else(|| start.strip_prefix("n = "))?;
    let digits = number.chars().take_while(|c| c.is_ascii_digit() || *c == ',').filter(char::is_ascii_digit);
    digits.collect::<String>().parse().ok()
}

/// Every `.942 [.911, .969]` in a text, with decimals of each number and its n, if any.
fn written(text: &str) -> Vec<(String, Triple, [usize; 3], Option<usize>)> {
    let text = text.replace('−', "-");
    let mut found = vec![];
    for (at, _) in text.match_indices(" [") {
        let Some(end) = text[at..].find(']').map(|end| at + end) else { continue };
        let value = text[..at].rsplit(|c: char| c.is_whitespace() || "(|*>".contains(c)).next().unwrap_or_default();
        let parts: Vec<&str> = text[at + 2..end].split(", ").collect();
        let [low, high] = parts[..] else { continue };
        let number = |part: &str| part.contains('.').then(|| part.parse().ok()).flatten();
        let decimals = |part: &str| part.split('.').nth(1).map_or(0, str::len);
        if let [Some(a), Some(b), Some(c)] = [value, low, high].map(number) {
            let words = format!("{value}{}", &text[at..=end]);
            found.push((words, [a, b, c], [value, low, high].map(decimals), denominator(&text[end + 1..])));
        }
    }
    found
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        if entry.path().is_dir() { files(&entry.path(), found) } else { found.push(entry.path()) }
    }
}

fn is_readme(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "README.md")
}

/// All estimates of the committed rows and tables, by value in thousandths.
fn committed() -> BTreeMap<i64, Vec<(Triple, Option<usize>)>> {
    let mut paths = vec![];
    files(Path::new("reports"), &mut paths);
    let mut all: Vec<(Triple, Option<usize>)> = vec![];
    // Raw rows are not committed: any found are local.
    let raw = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ["observations", "hook_observations", "patched_"].iter().any(|start| name.starts_with(start))
    };
    for path in paths.into_iter().filter(|path| !raw(path) && !is_readme(path)) {
        if path.extension().is_some_and(|e| e == "md") {
            let text = std::fs::read_to_string(&path).expect("a table");
            all.extend(written(&text).into_iter().map(|(_, triple, _, n)| (triple, n)));
        } else if path.extension().is_some_and(|e| e == "parquet") {
            for row in read_flat(&path).expect("rows") {
                for (column, value) in row.iter().filter(|(column, _)| column.ends_with(".value")) {
                    let stem = column.trim_end_matches("value");
                    let end = |end: &str| row.get(&format!("{stem}{end}")).and_then(serde_json::Value::as_f64);
                    if let (Some(value), Some(low), Some(high)) = (value.as_f64(), end("low"), end("high")) {
                        let n = row.get(&format!("{stem}n")).and_then(serde_json::Value::as_u64);
                        all.push(([value, low, high], n.map(|n| n as usize)));
                    }
                }
            }
        }
    }
    let mut by_value = BTreeMap::<i64, Vec<(Triple, Option<usize>)>>::new();
    all.into_iter().for_each(|of| by_value.entry((of.0[0] * 1000.0).round() as i64).or_default().push(of));
    by_value
}

/// The text without the parts marked `no rows`.
fn with_rows(text: &str) -> String {
    let mut rest = text;
    let mut out = String::new();
    while let Some((before, after)) = rest.split_once("<!-- no rows -->") {
        out += before;
        rest = after.split_once("<!-- /no rows -->").expect("<!-- /no rows -->").1;
    }
    out + rest
}

#[test]
fn every_interval_of_the_docs_is_in_the_committed_rows() {
    let committed = committed();
    let mut wrong = vec![];
    let (mut seen, mut counted) = (0, 0);
    let mut texts = vec![];
    files(Path::new("reports"), &mut texts);
    texts.retain(|path| is_readme(path));
    texts.extend(["README.md", "docs/results.md", "docs/studies/rl-keeps-latents.md"].map(PathBuf::from));
    for path in texts {
        let file = path.display();
        let text = with_rows(&std::fs::read_to_string(&path).expect("a text"));
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (words, triple, decimals, n) in written(&text) {
            let near = |(found, of): &(Triple, Option<usize>)| {
                let close = |i: usize| (found[i] - triple[i]).abs() <= 0.5 * 0.1_f64.powi(decimals[i] as i32) + 1e-9;
                (0..3).all(close) && (n.is_none() || *of == n)
            };
            let at = (triple[0] * 1000.0).round() as i64;
            (seen, counted) = (seen + 1, counted + usize::from(n.is_some()));
            if !committed.range(at - 6..=at + 6).any(|(_, triples)| triples.iter().any(near)) {
                wrong.push(format!("{file}: {words}, n = {n:?}"));
            }
        }
    }
    assert!(seen > 100 && counted > 20, "{seen} estimates, {counted} with their n: the test is vacuous");
    assert!(wrong.is_empty(), "not in the committed rows: {wrong:#?}");
}

/// Sizes of the circuits, and numbers of possible edges.
#[test]
fn sizes_of_circuits_match_the_rows() {
    let text = std::fs::read_to_string("docs/results.md").expect("the results");
    let rows = read_flat(Path::new("reports/micro/circuits-sft.parquet")).expect("rows");
    let grouped = |n: u64| if n < 1000 { n.to_string() } else { format!("{},{:03}", n / 1000, n % 1000) };
    let found: Vec<_> = rows.iter().filter(|row| row["circuit"] == "found").collect();
    assert_eq!(found.len(), 2, "one with latents, one of text");
    for row in found {
        let [edges, of] = ["edges", "of"].map(|column| grouped(row[column].as_u64().expect("a count")));
        let said = [format!("{edges} of the {of} edges"), format!("{edges} of {of}")];
        assert!(said.iter().any(|words| text.contains(words)), "docs/results.md does not say {said:?}");
    }
}
