//! Circuits on the page: the drawing matches its rows, and each cell of the head map shows its patch. Uses a hand-built model with a
//! known circuit, and made-up rows.

use std::path::Path;

use serde_json::{Value, json};
use switchyard::schema::{AttributionRow, CircuitRow, EdgeRow, HeadPatchRow, RowFile};
use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::render::report;

use crate::common::circuit_models::one_step_circuit;
use crate::common::save_rows;
use crate::report::save;

/// The page of a folder of rows, and the drawing of its circuit, if any.
fn drawn(rows: &Path) -> (String, Option<String>) {
    let page = rows.join("page.html");
    report(&[Folder::open(rows).expect("rows")], &page).expect("a page");
    let html = std::fs::read_to_string(page).expect("a page");
    (html, std::fs::read_to_string(rows.join("figures/fig-circuit-sft.svg")).ok())
}

/// Lines in the colours of edges.
fn edges_in(svg: &str) -> usize {
    ["#0072B2", "#D55E00"].iter().map(|colour| svg.matches(&format!("stroke=\"{colour}\"")).count()).sum()
}

/// The first number after a text.
fn number_after(html: &str, text: &str) -> usize {
    let rest = html.split(text).nth(1).unwrap_or_else(|| panic!("no '{text}' on the page"));
    rest.split(|c: char| !c.is_ascii_digit())
        .find(|part| !part.is_empty())
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

#[test]
fn the_known_circuit_is_drawn() {
    let (edges, circuits) = one_step_circuit();
    let rows = tempfile::tempdir().expect("a folder");
    save_rows(rows.path(), &format!("{}-sft", EdgeRow::NAME), edges);
    save_rows(rows.path(), &format!("{}-sft", CircuitRow::NAME), circuits);
    let (html, svg) = drawn(rows.path());
    let svg = svg.expect("a drawing");
    let found = edges.iter().filter(|e| e.in_circuit).count();
    assert!(found <= 40, "{found} edges");
    assert_eq!(edges_in(&svg), found);
    assert_eq!(number_after(&html, "Latents: drawn are the "), found);
    for edge in ["input → L0H0.v at source", "L2H0 → logits at readout", " → L2H0.v at latent[1]"] {
        assert!(svg.contains(edge), "no edge '{edge}'");
    }
    assert!(!svg.contains("L3H0"), "the decoy is drawn");
    // Nodes by name, in their rows and columns.
    for said in ["\nin\n", "\nH0\n", "\nv0\n", "\nout\n", "\nreadout\n", "\nblocks.2 heads\n"] {
        assert!(svg.contains(said), "no {said:?}");
    }
    let row = circuits.iter().find(|c| c.circuit.name() == "found").expect("a row");
    assert!(
        html.contains(&format!("brings {:.2} of the difference", row.effect)),
        "the faithfulness with its interval"
    );
}

fn share(value: f64) -> Value {
    json!({"value": value, "low": value - 0.05, "high": value + 0.05, "n": 24})
}

/// Fifty edges of the circuit, scores 50, 49, … 1 hundredths, every tenth negative; and one edge outside the circuit.
fn many_edges() -> Vec<Value> {
    let edge = |i: usize| {
        let score = (50 - i) as f64 / if i % 10 == 9 { -100.0 } else { 100.0 };
        let (sender, receiver) =
            [("input", "MLP 0"), ("L0H1", "L1H0.k"), ("MLP 1", "latent"), ("L1H1", "L2H1.q")][i % 4];
        json!({"form": "latents", "sender": sender, "receiver": receiver, "place": format!("latent[{}]", 1 + i % 5), "back": i % 2,
            "score": share(score), "rank": i + 1, "in_circuit": i < 50, "needed": null})
    };
    (0..51).map(edge).collect()
}

#[test]
fn the_strongest_edges_are_drawn_and_the_caption_counts_them() {
    let rows = tempfile::tempdir().expect("a folder");
    save::<EdgeRow>(rows.path(), "sft", &many_edges());
    let of = |circuit: &str, edges: usize, effect: f64| {
        json!({"form": "latents", "circuit": circuit, "edges": edges, "of": 900, "circuits": 1, "effect": share(effect),
            "extreme": null, "needed": null})
    };
    save::<CircuitRow>(rows.path(), "sft", &[of("found", 50, 0.81), of("random", 50, 0.02), of("all", 900, 1.0)]);
    let (html, svg) = drawn(rows.path());
    let svg = svg.expect("a drawing");
    assert_eq!(edges_in(&svg), 40);
    assert_eq!(svg.matches("stroke=\"#D55E00\"").count(), 4, "those that work against the answer");
    // Σ 50…11 of Σ 50…1 = 1220 of 1275.
    for part in ["the 40 strongest", "50 edges (of 900", "96 %", "0.81 [0.76, 0.86] n=24", "0.02 [-0.03, 0.07] n=24"] {
        assert!(html.contains(part), "no {part}");
    }
    assert!(svg.contains("<title>Latents: after SFT</title>") && svg.contains("latent[2], 1 back"));
    assert!(!html.contains("Text: drawn"), "a form without rows");
}

#[test]
fn a_folder_without_a_circuit_has_no_drawing() {
    let rows = tempfile::tempdir().expect("a folder");
    let mut edges = many_edges();
    edges.iter_mut().for_each(|edge| edge["in_circuit"] = false.into());
    save::<EdgeRow>(rows.path(), "sft", &edges);
    let (html, svg) = drawn(rows.path());
    assert!(svg.is_none() && !html.contains("fig:circuit"));
}

fn patched(mode: &str, layer: usize, head: Option<usize>, place: &str, effect: f64, p: f64) -> Value {
    json!({"form": "latents", "mode": mode, "component": if head.is_some() { "head" } else { "mlp" }, "layer": layer, "head": head,
        "place": place, "back": 0, "effect": share(effect), "p_holm": p})
}

fn predicted(layer: usize, head: Option<usize>, place: &str, effect: f64) -> Value {
    json!({"form": "latents", "gradient": "corrupt", "component": if head.is_some() { "head" } else { "mlp" }, "layer": layer,
        "head": head, "place": place, "back": 0, "effect": share(effect), "p_holm": 0.01, "exact": null})
}

/// The part of the page.
fn heads(html: &str) -> Option<&str> {
    let from = html.find("-heads\"><summary>")?;
    Some(&html[from..from + html[from..].find("<details class=\"part\"").unwrap_or(html.len() - from)])
}

#[test]
fn each_cell_of_the_map_shows_patch_and_gradient() {
    let rows = tempfile::tempdir().expect("a folder");
    let maps = [
        patched("denoise", 1, Some(0), "latent[2]", 0.41, 0.001),
        patched("noise", 1, Some(0), "latent[2]", 0.39, 0.002),
        patched("denoise", 0, None, "latent[10]", -0.12, 1.0),
        patched("denoise", 0, Some(1), "swi", 0.001, 1.0),
    ];
    save::<HeadPatchRow>(rows.path(), "sft", &maps);
    let (html, _) = drawn(rows.path());
    let part = heads(&html).expect("the part");
    assert!(part.contains("title=\"L1H0 · denoise 0.410 [0.360, 0.460], Holm p = 0.001 · noise 0.390"), "{part}");
    assert!(part.contains("class=\"p sure\"") && part.contains(">.41</td>") && part.contains(">·</td>"));
    assert!(part.contains("class=\"p away\"") && part.contains(">−.12</td>"));
    assert!(!part.contains("by gradient"), "an estimate without rows");
    let at = |place: &str| part.find(&format!("<caption>{place}</caption>")).expect("a grid a place");
    assert!(at("swi") < at("latent[2]") && at("latent[2]") < at("latent[10]"));

    let more = [predicted(1, Some(0), "latent[2]", 0.37), predicted(2, Some(3), "latent[2]", 0.2)];
    save::<AttributionRow>(rows.path(), "sft", &more);
    let (html, _) = drawn(rows.path());
    let part = heads(&html).expect("the part");
    assert!(part.contains("Holm p = 0.002 · by gradient: corrupt 0.370 [0.320, 0.420] · n=24"), "both of one cell");
    assert!(part.contains("class=\"p sure only\""), "a cell that was predicted only");
}

#[test]
fn the_map_needs_its_rows() {
    let rows = tempfile::tempdir().expect("a folder");
    save::<EdgeRow>(rows.path(), "sft", &many_edges());
    assert!(heads(&drawn(rows.path()).0).is_none());
    save::<AttributionRow>(rows.path(), "grpo", &[predicted(0, Some(0), "latent[1]", 0.2)]);
    assert!(heads(&drawn(rows.path()).0).is_some(), "a checkpoint with predictions alone");
}
