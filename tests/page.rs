//! The page: its cards match the rows, and it needs no other file.

use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};
use switchyard::schema::{KnownValueRow, OutcomeRow, PositionRow, TeacherForcedRow};
use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::render::report;

use crate::report::{save, toy};

/// The page of one folder of rows.
fn page(folder: Folder) -> String {
    let temp = tempfile::tempdir().expect("a folder");
    let page = temp.path().join("index.html");
    report(&[folder], &page).expect("a page");
    std::fs::read_to_string(page).expect("a page")
}

fn open(rows: &Path) -> Folder {
    Folder::open(rows).expect("rows")
}

/// The page of made-up rows.
fn made_up() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| {
        let rows = tempfile::tempdir().expect("a folder");
        toy(rows.path());
        page(open(rows.path()))
    })
}

fn share(value: f64, n: usize) -> Value {
    json!({"value": value, "low": value - 0.05, "high": value + 0.05, "n": n})
}

#[test]
fn a_card_matches_its_row() {
    let card = |hits: f64, n: usize| {
        let rows = tempfile::tempdir().expect("a folder");
        let row = json!({"steps": "all", "later": "recompute", "at": "both", "draws": 1, "hit_rate": share(hits, n),
            "chance": share(0.2, n), "above_chance": share(hits - 0.2, n), "kept": share(0.1, n), "firings": 9});
        save::<KnownValueRow>(rows.path(), "sft", &[row]);
        page(open(rows.path()))
    };
    let follows = card(0.8, 50);
    assert!(follows.contains("The answer follows the value in the latents"), "the verdict of the row");
    assert!(
        follows.contains("<b class=\"number\">0.800</b> <small>[0.750, 0.850] <i>n</i> = 50</small>"),
        "the number"
    );
    assert!(follows.contains("<title>predicted answer 0.800"), "the bars, to be heard");
    let not = card(0.21, 50);
    assert!(
        not.contains("No sign that the answer follows the latents") && !not.contains("The answer follows the value")
    );
    assert!(card(0.8, 8).contains("Too few problems to decide."));
}

#[test]
fn a_trace_shows_what_the_lens_reads_with_prompt_and_gold_answer() {
    let html = made_up();
    let first = html.find("class=\"problem\"").expect("a trace");
    assert!(first < html.find("class=\"part\"").expect("a folded part"), "the trace is not folded");
    let (open, rest) = html.split_at(html.find("<i class=\"p\"").expect("a latent step"));
    assert!(open.ends_with("swi</b>"), "the chip begins with <swi>");
    assert_eq!(
        rest[..rest.find("</i>").expect("its end")].rsplit('>').next(),
        Some("&lt;b&gt;"),
        "what the lens reads"
    );
    assert!(html.contains("Gold answer <b>1</b>, the model’s <b>none</b>"));
    assert!(html.contains("&lt;script&gt;alert(&#39;x&#39;)"), "the prompt, as text");
}

#[test]
fn the_page_needs_no_other_file_and_is_accessible() {
    let html = made_up();
    for href in html.split("href=\"").skip(1) {
        assert!(href.starts_with('#') || href.starts_with("data:"), "a link out of the page: {}", &href[..60]);
    }
    assert!(!html.contains(" src="), "something is loaded");
    for anchor in html.split("href=\"#").skip(1) {
        let id = &anchor[..anchor.find('"').expect("its end")];
        assert!(html.contains(&format!("id=\"{id}\"")), "no place #{id}");
    }
    let (images, tables) = (html.matches("<svg").count(), html.matches("<table").count());
    assert!(images > 20 && tables > 20, "{images} images, {tables} tables");
    let svgs = html.split("<svg").skip(1);
    let named =
        svgs.filter(|svg| svg.contains("role=\"img\"") && svg.contains("<title>") && !svg.contains("<title></title>"));
    assert_eq!(named.count(), images, "an image without a role and a title");
    assert_eq!(html.matches("<caption>").count(), tables, "a table without a caption");
}

#[test]
fn everything_except_the_findings_is_folded() {
    let html = made_up();
    assert_eq!(html.matches("<section class=\"card\">").count(), 2 * 3, "three cards for each of two checkpoints");
    assert_eq!(html.matches("<details class=\"checkpoint\"").count(), 2);
    assert_eq!(html.matches("<details class=\"checkpoint\" name=\"f0-").count(), 2, "one of them is open at a time");
    let parts: Vec<&str> = html.split("<details class=\"part\"").skip(1).collect();
    assert!(parts.len() >= 7, "{} parts", parts.len());
    assert!(parts.iter().all(|part| !part[..part.find('>').expect("a tag")].contains(" open")), "an open part");
}

#[test]
fn another_model_is_shown_without_the_paper_unless_requested() {
    let rows = tempfile::tempdir().expect("a folder");
    let row = |event: &str, p: f64| json!({"event": event, "positions": 50, "entropy": share(0.5, 50), "p_swi": share(p, 50), "rank": share(3.0, 50), "margin": share(-1.0, 50)});
    save::<TeacherForcedRow>(rows.path(), "my-model", &[row("swi_start", 0.3), row("random", 0.1)]);
    let table = rows.path().join("tables/tab-tf.md");
    let asked = page(open(rows.path()).with_paper(true));
    assert!(asked.contains("The paper’s claims") && asked.contains("The paper’s tables") && table.is_file());
    let own = page(open(rows.path()));
    assert!(!own.contains("The paper’s") && !own.contains("paper, SFT"), "the paper is shown without a request");
    assert!(!table.exists() && !rows.path().join("tables/claims.md").exists(), "files for the paper remain");
    assert!(own.contains("is more likely where the model was taught to switch"), "the finding is there without it");
    assert!(own.contains("tab:teacher-forced"), "the rows of a table of the paper's have one of their own");
}

#[test]
fn the_bar_of_a_cards_number_is_highlighted() {
    let html = made_up();
    let card = html.split("<section class=\"card\">").skip(1).find(|card| {
        let title = card.split("</h3>").next().expect("a title");
        ["latents are replaced", "its own latents"].iter().any(|words| title.contains(words))
    });
    let card = card.expect("a card of interventions");
    for any in html.split("<section class=\"card\">").skip(1) {
        assert_eq!(any.matches("class=\"bar own\"").count(), 1, "{any}");
    }
    let name = |bar: &str| bar.rsplit("<text").next().expect("a name").split('>').nth(1).expect("text").to_owned();
    let own = card.split("<rect class=\"bar own\"").next().expect("the bars before it");
    assert!(name(own).starts_with("another problem"), "{}", name(own));
}

#[test]
fn text_of_rows_cannot_inject_html() {
    let rows = tempfile::tempdir().expect("a folder");
    toy(rows.path());
    let token = |index: usize, token: &str| {
        json!({"problem": 0, "index": index, "kind": "text", "id": 7, "token": token, "logprob": -0.1, "entropy": 0.4, "p_swi": 0.01,
            "p_exit": null, "lens": null, "correct": true, "prompt": "x\u{2067}y"})
    };
    save::<PositionRow>(rows.path(), "sft", &[token(0, "a\u{202e}b\u{2066}c\u{200f}"), token(1, "d")]);
    let outcome = |problem: usize| {
        json!({"problem": problem, "id": "x", "gold": "1\u{202b}", "blocks": 1, "correct": true, "switched": true, "visible_tokens": 15,
            "latent_calls": 5, "truncated": false, "level": 1, "subject": format!("s{}\u{202d}", problem % 2)})
    };
    save::<OutcomeRow>(rows.path(), "sft", &(0..40).map(outcome).collect::<Vec<_>>());
    let html = page(open(rows.path()));
    assert!(html.contains("s0\u{fffd}"), "in a figure");
    let turns =
        |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert_eq!(html.chars().find(|c| turns(*c)), None);
    assert!(html.contains("a\u{fffd}b\u{fffd}c\u{fffd}"), "no replacement characters");
}
