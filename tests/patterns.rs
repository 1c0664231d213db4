//! The prompt explorer: attention patterns of a hand-built model with a known reading head, the lens at every token, and both on the
//! page.

use std::collections::BTreeMap;
use std::path::Path;

use switchyard::experiments::{patterns, positions, token_lens};
use switchyard::schema::{PatternRow, PositionKind, RowFile, TokenLensRow};
use switchyard::store::read;
use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::render::report;

use crate::common::circuit_models::{READER, study};
use crate::common::known::{Purpose, micro};
use crate::common::programs::{done, program};
use crate::common::save_rows;

fn reader() -> Vec<PatternRow> {
    patterns::rows(&study(Purpose::Working, 8, 0), &patterns::Config { problems: 8 }).expect("rows")
}

/// Whether a row's problem has latents.
fn switched(rows: &[PatternRow], problem: usize) -> bool {
    rows.iter().any(|r| r.problem == problem && r.kind == Some(PositionKind::Latent))
}

/// Positions of `#` and of the last latent in a problem that switches.
fn read_out(rows: &[PatternRow], problem: usize) -> (usize, usize) {
    let own = || rows.iter().filter(|r| r.problem == problem);
    let answer = own().filter(|r| r.token.trim() == "#").map(|r| r.position).max().expect("a #");
    let latents = own().filter(|r| r.kind == Some(PositionKind::Latent)).map(|r| r.position);
    (answer, latents.max().expect("latents"))
}

#[test]
fn the_reading_head_points_at_the_latent_that_it_reads() {
    let rows = reader();
    let mut seen = 0;
    for problem in 0..8 {
        if !switched(&rows, problem) {
            continue;
        }
        let (answer, last) = read_out(&rows, problem);
        let at = |(layer, head): (usize, usize)| {
            let own = |r: &&PatternRow| (r.problem, r.layer, r.head, r.position) == (problem, layer, head, answer);
            rows.iter().find(own).expect("a row")
        };
        let weights = &at(READER).weights;
        let most = (0..weights.len()).max_by(|a, b| weights[*a].total_cmp(&weights[*b])).expect("keys");
        assert_eq!(most, last, "problem {problem}: {weights:?}");
        assert!(weights[last] > 0.9, "problem {problem}: {}", weights[last]);
        seen += 1;
    }
    assert!(seen > 1, "{seen} problems with latents");
}

#[test]
fn weights_cover_earlier_positions_and_sum_to_one() {
    let study = micro("sft", 6);
    let micro = patterns::rows(&study, &patterns::Config::default()).expect("rows");
    let problems: std::collections::BTreeSet<usize> = micro.iter().map(|r| r.problem).collect();
    assert_eq!(problems.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    for row in micro.iter().chain(&reader()) {
        assert_eq!(row.weights.len(), row.position + 1);
        let sum: f64 = row.weights.iter().sum();
        assert!((sum - 1.0).abs() < 1e-5, "L{}H{} at {}: {sum}", row.layer, row.head, row.position);
        assert!(row.weights.iter().all(|w| (0.0..=1.0).contains(w)));
    }
}

#[test]
fn the_last_layer_of_the_lens_is_the_model() {
    let study = micro("sft", 6);
    let lens = token_lens::rows(&study, &token_lens::Config::default()).expect("rows");
    let layers = study.model.config().num_hidden_layers;
    let last: BTreeMap<(usize, usize), &TokenLensRow> =
        lens.iter().filter(|r| r.layer == layers).map(|r| ((r.problem, r.position), r)).collect();
    let first = |top: &str| -> (String, f64) {
        serde_json::from_str::<Vec<(String, f64)>>(top).expect("pairs").into_iter().next().expect("a token")
    };
    let written = positions::rows(&study, &positions::Config { problems: 3, top: 3 }).expect("rows");
    let prompt = |problem| last.values().filter(|r| r.problem == problem && r.kind.is_none()).count();
    let (mut latents, mut texts) = (0, 0);
    for row in &written {
        let at = prompt(row.problem) + row.index;
        let here = last[&(row.problem, at)];
        assert_eq!((here.kind, &here.token), (Some(row.kind), &row.token));
        if let Some(said) = &row.lens {
            let (ours, theirs) = (first(&here.top), first(said));
            assert!(ours.0 == theirs.0 && (ours.1 - theirs.1).abs() < 1e-4, "{ours:?}, {theirs:?}");
            latents += 1;
        }
        if row.kind == PositionKind::Text {
            // Greedy: each token is the previous position's prediction, with its probability.
            let (word, p) = first(&last[&(row.problem, at - 1)].top);
            let drawn = row.logprob.expect("a text token is drawn").exp();
            assert!(word.trim() == row.token.trim() && (p - drawn).abs() < 0.01, "{word} {p}, {} {drawn}", row.token);
            texts += 1;
        }
    }
    assert!(latents > 4 && texts > 10, "{latents} latents, {texts} texts");
    assert!(lens.iter().all(|r| r.entropy >= 0.0 && r.entropy <= (study.model.config().vocab_size as f64).ln()));
}

fn write<R: RowFile + serde::Serialize>(folder: &Path, checkpoint: &str, rows: &[R]) {
    save_rows(folder, &format!("{}-{checkpoint}", R::NAME), rows);
}

fn page(rows: &Path) -> String {
    let page = rows.join("page.html");
    report(&[Folder::open(rows).expect("rows")], &page).expect("a page");
    std::fs::read_to_string(page).expect("a page")
}

const PART: &str = "-explorer\"><summary>";

#[test]
fn the_page_draws_each_head_and_shows_the_reading_one_large() {
    let folder = tempfile::tempdir().expect("a folder");
    let study = micro("sft", 6);
    write(folder.path(), "sft", &token_lens::rows(&study, &token_lens::Config { problems: 1, top: 3 }).expect("rows"));
    let html = page(folder.path());
    assert!(html.contains(PART) && !html.contains("class=\"heads\""), "a lens without patterns");
    assert!(
        html.contains("<caption>What each layer would say next</caption>")
            && html.contains("class=\"latent\">latent 1<")
    );

    let rows = reader();
    let problem = (0..8).find(|problem| switched(&rows, *problem)).expect("a problem that switches");
    let own: Vec<PatternRow> = rows.iter().filter(|r| r.problem == problem).cloned().collect();
    let alone = tempfile::tempdir().expect("a folder");
    write(alone.path(), "toy", &own);
    let html = page(alone.path());
    assert!(!html.contains("What each layer would say next<"), "patterns without a lens");
    let heads: std::collections::BTreeSet<(usize, usize)> = own.iter().map(|r| (r.layer, r.head)).collect();
    assert_eq!(html.matches("class=\"head\"").count(), heads.len());
    assert_eq!(html.matches(" checked><svg").count(), 1, "one head is shown large");
    // The pictures do not need the script, and its data equal the rows.
    let (layer, head) = READER;
    let picture =
        html.split(&format!("-{problem}-{layer}-{head}\" class=\"cells\"")).nth(1).expect("the reader's cells");
    let (answer, last) = read_out(&rows, problem);
    assert!(
        picture[..picture.find("</g>").expect("its end")].contains(&format!("M{last} {answer}h1")),
        "the cell that it reads"
    );
    let of_head =
        html.split("data-w=\"").skip(1).find(|rest| rest.contains(&format!("<title>blocks.{layer}, head {head}:")));
    let data: Vec<char> = of_head.expect("its data").split('"').next().expect("text").chars().collect();
    let row = own.iter().find(|r| (r.layer, r.head, r.position) == (layer, head, answer)).expect("a row");
    let shown = data[answer * (answer + 1) / 2 + last];
    assert!(row.weights[last] > 0.62 && u32::from(shown) == 0xC0 + (100.0 * row.weights[last]).round() as u32 - 62);
    let positions = own.iter().map(|r| r.position + 1).max().expect("positions");
    assert_eq!(data.len(), positions * (positions + 1) / 2);
}

#[test]
fn the_explorer_needs_its_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = positions::rows(&micro("sft", 6), &positions::Config::default()).expect("rows");
    write(folder.path(), "sft", &rows);
    assert!(!page(folder.path()).contains(PART));
}

#[test]
fn patterns_run_on_request_and_write_no_csv() {
    let folder = tempfile::tempdir().expect("a folder");
    let probe = |args: &[&str]| done(program("probe").args(args)).0;
    let out = folder.path().display().to_string();
    probe(&["--phase", "sft", "--problems", "4", "--only", "patterns,token_lens", "--out", &out]);
    let rows: Vec<PatternRow> = read(&folder.path().join("patterns-sft.parquet")).expect("rows");
    assert_eq!(rows, patterns::rows(&micro("sft", 4), &patterns::Config::default()).expect("rows"));
    assert!(folder.path().join("token_lens-sft.parquet").is_file());
    assert!(!folder.path().join("patterns-sft.csv").exists() && !folder.path().join("token_lens-sft.csv").exists());
    let listed = probe(&["--list"]);
    for name in ["patterns", "token_lens"] {
        let line = listed.lines().find(|line| line.starts_with(name)).expect("a line");
        assert!(line.contains("only if --only names it"), "{line}");
    }
}
