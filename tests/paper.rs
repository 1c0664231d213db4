//! The paper's numbers in `fixtures/paper_tables.toml` against the LaTeX they were read from.
//!
//! We cannot distribute the LaTeX: without it (`SWITCHYARD_PAPER`, or `shared/paper/switch.tex` next to the repository) the tests
//! that need it print so and check only the labels.

use std::path::PathBuf;

use crate::common::says;
use switchyard_programs::report::paper::{Paper, Unit};

/// Every table and figure label of the paper, sorted.
fn expected_labels() -> Vec<String> {
    let figures = "calibration calibration-full injection intervention layer-probe overview pareto per-subject swi-window token-cdf \
        token-dist";
    let tables = "appendix-sweep exit gen-analysis intervention main per-subject probe sft-vs-rl swi-window tf";
    let named = |kind: &'static str, names: &'static str| names.split(' ').map(move |name| format!("{kind}:{name}"));
    named("fig", figures).chain(named("tab", tables)).collect()
}

fn latex() -> Option<String> {
    let root = std::env::current_dir().expect("the package's folder");
    let named = std::env::var_os("SWITCHYARD_PAPER").map(PathBuf::from);
    let beside = root.ancestors().skip(1).map(|up| up.join("shared/paper/switch.tex"));
    let path = named.into_iter().chain(beside).find(|p| p.exists());
    if path.is_none() {
        eprintln!("skipped: the paper's LaTeX is not here; set SWITCHYARD_PAPER to check the numbers against it");
    }
    path.map(|p| std::fs::read_to_string(p).unwrap())
}

/// `\label{tab:…}` and `\label{fig:…}` in order of appearance, with their offset in the text.
fn labels(latex: &str) -> Vec<(String, usize)> {
    let at = latex.match_indices("\\label{").map(|(i, _)| (i, &latex[i + 7..]));
    at.map(|(i, rest)| (rest[..rest.find('}').unwrap()].to_string(), i))
        .filter(|(label, _)| label.starts_with("tab:") || label.starts_with("fig:"))
        .collect()
}

#[test]
fn every_label_of_the_paper_is_listed() {
    let paper = Paper::embedded().unwrap();
    let mut ours: Vec<&str> = paper.tables.iter().chain(&paper.figures).map(|b| b.label.as_str()).collect();
    ours.sort_unstable();
    assert_eq!(ours, expected_labels());
    assert_eq!(paper.tables.len(), 10);
    assert_eq!(paper.figures.iter().filter(|f| !f.diagram).count(), 9);
    if let Some(latex) = latex() {
        let mut theirs: Vec<String> = labels(&latex).into_iter().map(|(label, _)| label).collect();
        theirs.sort_unstable();
        assert_eq!(theirs, expected_labels());
    }
    for table in &paper.tables {
        assert!(!table.rows.is_empty() && !table.columns.is_empty(), "{} is empty", table.label);
    }
    for figure in paper.figures.iter().filter(|f| !f.diagram) {
        assert!(!figure.words.is_empty(), "{} says nothing", figure.label);
    }
}

#[test]
fn every_number_of_every_table_equals_the_papers() {
    let paper = Paper::embedded().unwrap();
    let Some(latex) = latex() else { return };
    let mut checked = 0;
    for (label, at) in labels(&latex).into_iter().filter(|(label, _)| label.starts_with("tab:")) {
        let start = latex[..at].rfind("\\begin{tabular}").unwrap();
        let end = latex[start..].find("\\end{tabular}").unwrap() + start;
        let theirs = numbers(&latex[start..end]);
        let block = paper.block(&label).unwrap();
        let ours: Vec<f64> = block.rows.iter().flat_map(|r| r.values.clone()).collect();
        assert_eq!(ours, theirs, "{label}");
        checked += ours.len();
    }
    assert_eq!(checked, 156);
}

/// The numeric cells of a tabular by row, without the first column (names).
fn numbers(tabular: &str) -> Vec<f64> {
    let body = tabular.replace("\\,", "").replace("{,}", "").replace("\\!", "").replace("\\ ", " ");
    let rows = body.split("\\\\").map(|row| row.split('&').skip(1));
    rows.flatten().filter_map(number).collect()
}

/// `\textbf{72.6}`, `$+3.48$`, `$1.3\times10^{-2}$` and the like.
fn number(cell: &str) -> Option<f64> {
    let plain = cell.replace("\\textbf", "").replace("\\mathbf", "").replace("\\times", "x");
    let plain: String = plain.chars().filter(|c| !"{}$ \n".contains(*c)).collect();
    match plain.split_once("x10^") {
        // Parsed from text, so that 1.3e-2 is the nearest double and not a product.
        Some((m, e)) => format!("{m}e{e}").parse().ok(),
        None => plain.parse().ok(),
    }
}

#[test]
fn figures_quote_numbers_the_text_states() {
    let paper = Paper::embedded().unwrap();
    let Some(latex) = latex() else { return };
    let text = latex.replace("\\,", "").replace("{,}", "").replace(['$', '\\'], "");
    for quote in [
        "from sim!1.5 to sim!1 and visible-token usage contracts from sim!2900 to sim!1900",
        "72.6% at 1919 tokens with 18.4% truncation",
        "69.0% MATH-500 accuracy at 1276 average visible tokens with 0% max-length truncation",
        "from sim!1 to sim!13",
        "(entropy 0.717 vs. 0.608, p(swi)!=!0.669 vs. 0.763)",
    ] {
        let words = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&text).contains(quote), "the paper no longer says: {quote}");
    }
    for (cell, value) in [
        ("fig:calibration/latent_calls/start", 1.5),
        ("fig:calibration/tokens/end", 1900.0),
        ("fig:pareto/default/truncated", 18.4),
        ("fig:pareto/brevity/tokens", 1276.0),
        ("fig:calibration-full/latent_calls/late", 13.0),
        ("sec:appendix-gen/wrong/entropy", 0.717),
        ("sec:appendix-gen/correct/p_swi", 0.763),
    ] {
        assert_eq!(paper.cell(cell).unwrap(), value, "{cell}");
    }
}

#[test]
fn claims_are_comparisons_on_cells_that_exist() {
    let paper = Paper::embedded().unwrap(); // parsing checks each claim on the paper's numbers
    let claim = |id: &str| paper.claims.iter().find(|c| c.id == id).expect(id);
    assert!(paper.claims.len() >= 30);
    assert_eq!(claim("skip-costs-twice-random-norm").holds_in_paper, Some(true));
    assert_eq!(claim("swi-contrast-p").holds_in_paper, Some(false), "847/3 is not four orders of magnitude");
    // A claim is checked on the given numbers: with skip at −0.10 it costs no more than noise.
    let skip_harmless = |cell: &str| match cell {
        "tab:intervention/skip/diag_delta" => Ok(-0.10),
        other => paper.cell(other),
    };
    assert_eq!(claim("skip-costs-twice-random-norm").check(skip_harmless).unwrap(), Some(false));
    assert_eq!(claim("single-transition").check(|c| paper.cell(c)).unwrap(), None);
    assert_eq!(paper.block("tab:main").unwrap().columns[0].unit, Unit::Percent);
}

#[test]
fn mistakes_in_the_file_are_named() {
    let good = include_str!("../fixtures/paper_tables.toml");
    let says = |from: &str, to: &str, what: &str| says(Paper::parse(&good.replace(from, to)), what);
    says("[11.3, 14, 28.4, 12]", "[11.3, 14, 28.4]", "tab:main/no_cot: 3 values for 4 columns");
    says("label = \"tab:tf\"", "label = \"tab:main\"", "'tab:main' occurs twice");
    says("right = \"tab:main/codi/gsm8k_acc\"", "right = \"tab:main/codi/acc\"", "tab:main has no column 'acc'");
    says("rests_on = [\"tab:exit\"]", "rests_on = [\"tab:exits\"]", "'tab:exits', which does not exist");
    // A number that changes the outcome of a claim is an error.
    says("[1.0000, 1.0000, 0.9951, 0.9999]", "[0.1, 1.0000, 0.9951, 0.9999]", "exit-ready-at-once");
    says("needs = [\"math500\"]", "needs = [\"math501\"]", "math501");
}
