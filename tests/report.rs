//! From rows to tables, figures, verdicts and the page: byte for byte on the committed rows, and on made-up, missing, broken and
//! hostile rows.

use std::path::Path;

use crate::common::save_rows;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use switchyard::method::Recipe;
use switchyard::schema::{
    AccuracyRow, AttentionRow, DirectLogitRow, ExitRow, FateRow, HeadPatchRow, InterventionRow, LensRow, OutcomeRow,
    PatchRow, PhaseChangeRow, PositionRow, ProbeRow, ResponseRow, RowFile, TeacherForcedRow, WindowRow,
};
use switchyard::stats::Flips;
use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::paper::Paper;
use switchyard_programs::report::render::{default_folders, report, report_as};
use switchyard_programs::report::tables::{Cell, Formats, Table};
use switchyard_programs::report::verdicts::{self, Verdict, shown_p};
use switchyard_programs::report::{compare, exhibits, paper_tables};

/// The row with the columns that identify it, unless it has its own.
fn identified(row: &Value) -> Value {
    let mut row = row.clone();
    for (key, value) in
        [("checkpoint", json!("toy/x")), ("dataset", json!("toy")), ("n", json!(50)), ("seed", json!(0))]
    {
        row.as_object_mut().unwrap().entry(key).or_insert(value);
    }
    row
}

fn write(folder: &Path, name: &str, rows: &[Value]) {
    save_rows(folder, name, &rows.iter().map(identified).collect::<Vec<_>>());
}

/// Through the experiment's row struct, so that a missing field is an error.
pub fn save<R: RowFile + Serialize>(folder: &Path, checkpoint: &str, rows: &[Value]) {
    save_as::<R>(folder, &format!("{}-{checkpoint}", R::NAME), rows);
}

fn save_as<R: Serialize + DeserializeOwned>(folder: &Path, name: &str, rows: &[Value]) {
    let typed = |row| serde_json::to_value(serde_json::from_value::<R>(identified(row)).unwrap()).unwrap();
    write(folder, name, &rows.iter().map(typed).collect::<Vec<_>>());
}

/// An estimate over fifty problems.
fn change(lost: i32, gained: i32) -> Value {
    let (value, half) = (f64::from(gained - lost) / 50.0, f64::from(lost + gained).sqrt() / 25.0);
    json!({"value": value, "low": value - half, "high": value + half, "n": 50})
}

fn about(value: f64) -> Value {
    json!({"value": value, "low": value - 0.01, "high": value + 0.01, "n": 50})
}

/// One small file of rows for each experiment.
pub fn toy(folder: &Path) {
    for (checkpoint, peak) in [("sft", 0.85), ("grpo", 0.5)] {
        let events = [("swi_start", peak, 1.2), ("same_token", 0.1, 5.0), ("other", 0.001, 30.0)];
        let rows: Vec<Value> = events
            .map(|(event, p, rank)| json!({"event": event, "positions": 90, "entropy": about(1.0 - peak), "p_swi": about(p), "rank": about(rank), "margin": about(4.0 * peak)}))
            .to_vec();
        save::<TeacherForcedRow>(folder, checkpoint, &rows);
        let rows: Vec<Value> = (-8..=8)
            .map(|o| {
                let p = if o == 0 { peak } else { 1e-5 };
                json!({"offset": o, "positions": 40, "in_block": 0, "p_swi": {"value": p, "low": p * 0.9, "high": p * 1.1, "n": 50}, "entropy": about(0.4)})
            })
            .collect();
        save::<WindowRow>(folder, checkpoint, &rows);
        let mut rows = vec![];
        for (layer, score) in [(1, 0.52), (2, 0.6), (3, 0.8), (4, 0.93)] {
            for (protocol, features) in [("paper", "resid_post"), ("grouped", "resid_post"), ("grouped", "shuffled")] {
                rows.push(json!({"target": "switch", "protocol": protocol, "layer": layer, "from_last": 5 - layer, "features": features,
                    "rows": 90, "positives": 45, "accuracy": about(score), "balanced_accuracy": about(score), "auroc": null, "selectivity": null, "chance": 0.5}));
            }
            rows.push(json!({"target": format!("value:s_j@{layer}"), "protocol": "grouped", "layer": layer, "from_last": 5 - layer, "features": "resid_post",
                "rows": 90, "positives": 45, "accuracy": null, "balanced_accuracy": about(score), "auroc": null, "selectivity": about(0.1), "chance": 0.14}));
        }
        save::<ProbeRow>(folder, checkpoint, &rows);
        let groups = ["all", "correct", "wrong"];
        let steps = groups.iter().flat_map(|g| {
            (1..=5)
                .map(move |s| json!({"group": g, "step": s, "blocks": 40, "p_exit": about(0.3), "exits": about(0.2)}))
        });
        save::<ExitRow>(folder, checkpoint, &steps.collect::<Vec<_>>());
        let lens = ["logit", "tuned"].iter().flat_map(|l| {
            (1..=5).flat_map(move |step| {
                (0..=4).map(move |layer| {
                    json!({"switching": "free", "lens": l, "step": step, "layer": layer, "positions": 40, "entropy": about(f64::from(layer) / 2.0), "p_exit": about(0.2),
                        "exit_rank": about(3.0), "top": "[[\"</swi>\", 0.5], [\"=\", 0.2]]", "kl": about(0.1), "agreement": about(0.9)})
                })
            })
        });
        save::<LensRow>(folder, checkpoint, &lens.collect::<Vec<_>>());
        let traces = groups.map(|g| {
            json!({"group": g, "switch_rate": about(0.6), "blocks": about(1.5), "latent_calls": about(7.0),
            "visible_tokens": about(20.0), "entropy": about(0.6), "p_swi": about(0.7), "first_swi": about(0.3), "truncated": about(0.02)})
        });
        save::<ResponseRow>(folder, checkpoint, &traces);
        let names =
            ["all", "switched", "text_only", "forced", "level:1", "level:2", "subject:mix", "k_min:0", "k_min:4"];
        let accuracy = names.map(|g| {
            json!({"group": g, "k_min": 4, "k_cap": 5, "accuracy": about(0.8), "switch_rate": about(0.6), "latent_calls": about(7.0),
            "visible_tokens": about(20.0), "truncated": about(0.02)})
        });
        save::<AccuracyRow>(folder, checkpoint, &accuracy);
        let outcomes: Vec<Value> = (0..50)
            .map(|i| json!({"problem": i, "id": "x", "gold": "1", "blocks": i % 3, "correct": i % 4 != 0, "switched": i % 3 != 0, "visible_tokens": 15 + i % 9, "latent_calls": 5 * (i % 3),
                "truncated": false, "level": 1 + i % 3, "subject": if i % 2 == 0 { "Algebra" } else { "mix" }}))
            .collect();
        save::<OutcomeRow>(folder, checkpoint, &outcomes);
        let position = |i: i64, kind: &str, token: &str| {
            json!({"problem": 0, "index": i, "kind": kind, "id": 7, "token": token, "logprob": -0.1, "entropy": 0.4,
            "p_swi": 0.01, "p_exit": if kind == "latent" { json!(0.9) } else { Value::Null },
            "lens": if kind == "latent" { json!("[[\"<b>\", 0.5]]") } else { Value::Null }, "correct": true,
            "prompt": if i == 0 { json!("<script>alert('x')</script> & \"quotes\"") } else { Value::Null }})
        };
        let kinds = [
            ("text", "</script>"),
            ("swi", "<swi>"),
            ("latent", "<latent>"),
            ("latent", "<latent>"),
            ("swi_end_forced", "</swi>"),
            ("text", "\n"),
        ];
        let positions: Vec<Value> =
            kinds.iter().enumerate().map(|(i, (kind, token))| position(i as i64, kind, token)).collect();
        save::<PositionRow>(folder, checkpoint, &positions);
        let modes = [
            ("normal", 1.0, 0, 0),
            ("zero", 0.3, 20, 1),
            ("random_norm", 0.9, 3, 2),
            ("skip", 0.8, 5, 4),
            ("resample", 0.2, 22, 0),
        ];
        let mut rows = vec![];
        for (mode, diagnostic, lost, gained) in modes {
            for steps in ["all", "1", "2"] {
                rows.push(json!({"mode": mode, "steps": steps, "dose": null, "later": "recompute", "at": "both", "blocks": "own", "draws": 1, "accuracy": about(0.5), "accuracy_change": change(lost, gained), "answer_changed": about(0.3), "diagnostic_accuracy": about(diagnostic),
                    "lost": lost, "gained": gained, "p_value": 1.0, "p_holm": 1.0, "firings": 9, "mean_change": 1.5}));
            }
        }
        rows.extend([0.5, 2.0].map(|dose| {
            json!({"mode": "scale", "steps": "all", "dose": dose, "later": "recompute", "at": "both", "blocks": "own", "draws": 1, "accuracy": about(0.5), "accuracy_change": about(0.0), "answer_changed": about(0.3),
            "lost": 1, "gained": 1, "p_value": 1.0, "p_holm": 1.0, "firings": 9, "mean_change": dose})
        }));
        save::<InterventionRow>(folder, checkpoint, &rows);
        let patching = ["step", "position"].iter().flat_map(|axis| {
            (0..4).flat_map(move |layer| {
                (0..5).map(move |index| json!({"axis": axis, "layer": layer, "index": index, "effect": about(0.1)}))
            })
        });
        save::<PatchRow>(folder, checkpoint, &patching.collect::<Vec<_>>());
    }
    let change = |event: &str| json!({"against": "toy/y", "event": event, "positions": 90, "d_p_swi": about(-0.3), "d_entropy": about(0.2), "d_margin": about(-2.0), "d_rank": about(0.3)});
    save::<PhaseChangeRow>(folder, "sft-grpo", &[change("swi_start"), change("other")]);
    let steps: Vec<Value> = (0..60)
        .map(|i| json!({"step": i, "reward": 0.1 + f64::from(i) / 100.0, "switch_rate": 0.8 - f64::from(i) / 200.0, "latent_calls": 9.0 - f64::from(i % 7), "visible_tokens": 20.0 + f64::from(i % 5)}))
        .collect();
    write(folder, "metrics-grpo", &steps);
    // An unknown experiment.
    write(
        folder,
        "brand_new-sft",
        &[json!({"thing": "a", "score": about(0.4)}), json!({"thing": "b", "score": about(0.6)})],
    );
}

#[test]
fn committed_tables_match_the_committed_rows() {
    let (paper, mut compared) = (Paper::embedded().unwrap(), vec![]);
    // The second has no checkpoint with one of the paper's roles: it shows only the table that compares methods.
    for name in ["reports/micro", "reports/micro-rivals", "reports/smollm2-chains"] {
        let folder = Folder::open(Path::new(name)).unwrap();
        assert_eq!(folder.unreadable, Vec::<String>::new());
        let tables = paper_tables::tables(&paper, &folder).unwrap().into_iter().map(|b| b.table);
        for table in tables.chain(exhibits::tables(&folder).unwrap()) {
            let file = Path::new(name).join("tables").join(table.label.replace(':', "-")).with_extension("md");
            let there = std::fs::read_to_string(&file)
                .unwrap_or_else(|e| panic!("{}: {e}; run `report {name}` and commit", file.display()));
            assert!(there == table.markdown(), "{} does not match its rows; run `report {name}`", file.display());
            compared.push(table.label);
        }
    }
    // The last has known values of single steps alone.
    assert!(compared.len() >= 60 && compared.iter().any(|label| label == "tab:known-value-steps"), "{compared:?}");
}

/// A table of ours by its label.
fn own(folder: &Path, label: &str) -> Option<Table> {
    let tables = exhibits::tables(&Folder::open(folder).unwrap()).unwrap();
    tables.into_iter().find(|table| table.label == label)
}

#[test]
fn checkpoints_are_compared_problem_by_problem() {
    let outcomes = |of: &dyn Fn(usize) -> (bool, bool)| -> Vec<Value> {
        let row = |problem| {
            let (correct, switched) = of(problem);
            json!({"problem": problem, "id": format!("p{problem}"), "level": 1, "subject": "x", "correct": correct, "switched": switched,
                "blocks": 0, "visible_tokens": 3, "latent_calls": 0, "truncated": false, "gold": "1", "answer": "1"})
        };
        (0..30).map(row).collect()
    };
    let rows = tempfile::tempdir().unwrap();
    save::<OutcomeRow>(rows.path(), "sft", &outcomes(&|i| (i < 24, i < 20)));
    assert!(own(rows.path(), "tab:versus").is_none(), "a single checkpoint has no comparison");
    save::<OutcomeRow>(rows.path(), "no_cot", &outcomes(&|i| (i % 10 == 0 || i == 25, false)));
    let table = own(rows.path(), "tab:versus").expect("two checkpoints");
    let counts: Vec<_> = table.rows().iter().map(|row| (row[2].clone(), row[6].clone(), row[7].clone())).collect();
    let of = |problems: &str, better, worse| (Cell::Text(problems.into()), Cell::Count(better), Cell::Count(worse));
    // Right in no_cot: 0, 10, 20, 25. Of 24 right ones 21 are gained, 1 (25) is lost; among the 20 switched, 18 are gained.
    assert_eq!(counts, [of("all", 21, 1), of("where it switches", 18, 0)]);
    let Cell::Measured(difference) = table.rows()[0][5] else { panic!("no estimate") };
    assert!((difference.value - 20.0 / 30.0).abs() < 1e-12 && difference.n == 30, "{difference:?}");
}

#[test]
fn a_checkpoint_is_averaged_over_its_runs() {
    let table = own(Path::new("reports/micro"), "tab:seeds").expect("three seeds");
    let sft = table.rows().iter().find(|row| row[0] == Cell::Text("sft".into())).expect("in every run");
    // SciPy's interval of .928, .912 and .892, as in `mean_of_runs`.
    let Cell::Measured(accuracy) = sft[1] else { panic!("{sft:?}") };
    assert!((accuracy.value - 0.910_667).abs() < 1e-5 && (accuracy.low - 0.865_860).abs() < 1e-5, "{accuracy:?}");
    assert_eq!((accuracy.n, &sft[2]), (3, &Cell::Text("0.892, 0.928".into())));
    // `summary-sequential` is another way of training with seed 0, not another seed.
    assert!(table.rows().iter().all(|row| matches!(&row[1], Cell::Measured(e) if e.n == 3)));
}

#[test]
fn everything_is_drawn_from_rows_of_the_contract() {
    let reports = tempfile::tempdir().unwrap();
    let path = reports.path().join("toy");
    toy(&path);
    let page = reports.path().join("index.html");
    let done = report(&[Folder::open(&path).unwrap()], &page).unwrap();
    for figure in "fig-swi-window fig-layer-probe fig-intervention fig-calibration fig-calibration-full fig-pareto \
        fig-token-dist fig-token-cdf fig-per-subject fig-value-probe fig-intervention-all \
        fig-intervention-steps fig-intervention-dose fig-exit fig-lens-sft fig-lens-grpo fig-patching-sft \
        fig-patching-grpo"
        .split(' ')
    {
        let file = |ending: &str| path.join("figures").join(figure).with_extension(ending);
        assert!(file("svg").is_file() && !file("png").exists(), "{figure}");
    }
    for table in "tab-intervention-ladder tab-intervention-steps tab-intervention-dose tab-probe-grouped \
        tab-probe-values tab-phases tab-switching tab-brand-new claims"
        .split(' ')
    {
        assert!(path.join("tables").join(table).with_extension("md").is_file(), "{table}");
    }
    assert!(!done.summary.contains("no rows for"), "{}", done.summary);
    let read = |table: &str| std::fs::read_to_string(path.join("tables").join(table)).unwrap();
    assert!(
        read("tab-swi-window.md").contains("| After SFT | 0.0130 | 1.0e-5 [9.0e-6, 1.1e-5] | 0.847 | 0.850 "),
        "{}",
        read("tab-swi-window.md")
    );
    // Four layers for seven offsets: each layer appears once, at the offset of the same depth.
    let ours =
        ["0.520 [0.510, 0.530]", "0.600 [0.590, 0.610]", "–", "0.800 [0.790, 0.810]", "–", "–", "0.930 [0.920, 0.940]"];
    let theirs = ["-24 | 0.533", "-20 | 0.572", "-16 | 0.579", "-12 | 0.684", "-8 | 0.746", "-4 | 0.795", "-1 | 0.919"];
    for (theirs, ours) in theirs.iter().zip(ours) {
        let probe = read("tab-probe.md");
        assert!(probe.contains(&format!("| {theirs} | {ours} |")), "{theirs} | {ours}: {probe}");
    }
    assert!(read("tab-gen-analysis.md").contains("correct, with <swi>".replace('<', "&lt;").as_str()));
    let html = std::fs::read_to_string(page).unwrap();
    // The page escapes text of the rows.
    assert!(
        !html.contains("<script>alert")
            && html.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;quotes&quot;")
    );
    assert_eq!(html.matches("<script>").count(), 1);
    assert_eq!(html.matches("</script>").count(), 1);
    for outside in ["http://", "https://", "//cdn", "@import"] {
        let found = html.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xlink", "");
        assert!(!found.contains(outside), "the page reaches out: {outside}");
    }
    for part in
        ["class=\"svg heat\"", "class=\"chip\"", "value=\"tuned\"", "tab:phases", "p(&lt;/swi&gt;) 0.900", "<svg"]
    {
        assert!(html.contains(part), "no {part}");
    }
    // The steps have no accuracy.
    assert!(html.contains("Not tested for hacking") && !html.contains("No hacking is seen"));
}

/// Rows of heads and MLPs: the largest values are in a table, all of them in a heat map.
#[test]
fn heads_and_mlps_have_tables_and_heat_maps() {
    let reports = tempfile::tempdir().unwrap();
    let path = reports.path().join("toy");
    let direct = |component: &str, layer: Option<usize>, head: Option<usize>, lead: f64| {
        json!({"form": "latents", "target": "answer", "step": null, "component": component, "layer": layer, "head": head, "part": "own",
            "positions": 50, "logit": about(2.0), "lead": about(lead), "top": null})
    };
    let mut rows = vec![direct("total", None, None, 4.0), direct("embed", None, None, 0.0)];
    for layer in 0..5 {
        rows.extend((0..4).map(|head| direct("head", Some(layer), Some(head), 0.1 * (layer + head) as f64)));
        rows.push(direct("mlp", Some(layer), None, -1.0 - layer as f64));
    }
    save::<DirectLogitRow>(&path, "sft", &rows);
    let attention = |layer: usize, head: usize, to: &str, mass: f64| {
        let back = to.starts_with("latent").then_some(0);
        json!({"form": "latents", "layer": layer, "head": head, "from": "answer", "to": to, "back": back, "queries": 50,
            "mass": about(mass), "direct": about(0.3)})
    };
    let rows: Vec<Value> = [(0, 0, 0.3), (0, 1, 0.1), (1, 0, 0.2), (1, 1, 0.4)]
        .into_iter()
        .flat_map(|(layer, head, mass)| {
            [("latent[1]", mass), ("latent[2]", 0.5 * mass), ("prompt", 1.0 - 1.5 * mass)]
                .map(|(to, mass)| attention(layer, head, to, mass))
        })
        .collect();
    save::<AttentionRow>(&path, "sft", &rows);
    let pairs = |component: &str, head: Option<usize>, place: &str, effect: f64| {
        json!({"form": "latents", "mode": "denoise", "component": component, "layer": 1, "head": head, "place": place,
            "back": null, "effect": about(effect), "p_holm": 0.3})
    };
    let rows = [
        pairs("resid", None, "source", 1.0),
        pairs("head", Some(2), "readout", 0.2),
        pairs("mlp", None, "source", -0.5),
    ];
    save_as::<HeadPatchRow>(&path, "pair_patching-sft", &rows);
    report(&[Folder::open(&path).unwrap()], &reports.path().join("index.html")).unwrap();
    let read = |file: &str| std::fs::read_to_string(path.join(file)).unwrap();
    let lines = |file: &str| -> Vec<String> {
        let text = read(file);
        text.lines().filter(|line| line.starts_with("| sft |")).map(str::to_owned).collect()
    };

    let direct = lines("tables/tab-direct-logit.md");
    assert!(
        direct.len() == 20 && direct[0].starts_with("| sft | MLP 4 | -5.000 [-5.010, -4.990] | 2.000 "),
        "{direct:?}"
    );
    assert!(direct[0].ends_with("| 50 |") && direct[5].contains("L4H3"), "{direct:?}");
    let note = read("tables/tab-direct-logit.md");
    assert!(note.contains("whole lead 4.000") && note.contains(" 6 more in direct_logit-sft.parquet."), "{note}");
    let svg = read("figures/fig-direct-logit.svg");
    assert!(svg.contains("MLP") && svg.contains("blocks.4"), "{svg}");

    let attention = lines("tables/tab-attention.md");
    assert!(
        attention.len() == 8 && attention[0].starts_with("| sft | blocks.1 | 1 | latent[1] | 0.400 "),
        "{attention:?}"
    );
    let svg = read("figures/fig-attention.svg");
    assert!(svg.contains("\n0.60\n") && svg.contains("\n0.15\n"), "both latent steps of a head: {svg}");

    let pairs = lines("tables/tab-pair-patching.md");
    assert!(pairs.len() == 2 && pairs[0].contains("| source | blocks.1 | mlp | -0.500 "), "{pairs:?}");
    assert!(pairs[1].contains("| readout | blocks.1 | head 2 | 0.200 "), "{pairs:?}");
    assert!(read("figures/fig-pair-patching-sft.svg").contains("effect (share)"));
}

/// A folder with interventions on `n` problems, of which *skip* loses and gains some.
fn skipping(folder: &Path, n: usize, lost: usize, gained: usize) {
    let share = |value: f64| json!({"value": value, "low": value - 0.05, "high": value + 0.05, "n": n});
    let row = |mode: &str, lost: usize, gained: usize| {
        json!({"mode": mode, "steps": "all", "dose": null, "later": "recompute", "at": "both", "blocks": "own", "draws": 1,
            "accuracy": share(0.5), "accuracy_change": share(0.0), "answer_changed": share(0.3), "lost": lost, "gained": gained,
            "p_value": 1.0, "p_holm": 1.0, "firings": 9, "mean_change": 1.5, "n": n})
    };
    save::<InterventionRow>(folder, "sft", &[row("normal", 0, 0), row("skip", lost, gained)]);
}

/// Verdict, p and tests of a claim on a folder's rows.
fn verdict(folder: &Path, id: &str) -> (Verdict, Option<f64>, String) {
    let (paper, folder) = (Paper::embedded().unwrap(), Folder::open(folder).unwrap());
    let tested = verdicts::test(&paper, &folder, |_| None);
    let found = tested.iter().find(|t| t.claim.id == id).unwrap();
    (found.verdict, found.p, found.tests.join("; "))
}

#[test]
fn few_problems_have_no_verdict() {
    let reports = tempfile::tempdir().unwrap();
    // Eight problems without a flip: a bootstrap of the difference has no width, and once gave "not reproduced".
    skipping(reports.path(), 8, 0, 0);
    let (of_eight, p, test) = verdict(reports.path(), "latent-step-needed");
    assert!(of_eight == Verdict::NotTestable && p.is_none() && test.contains("n = 8: a verdict needs 20"), "{test}");
    skipping(reports.path(), 500, 0, 0);
    assert_eq!(verdict(reports.path(), "latent-step-needed").0, Verdict::Undecided);
}

#[test]
fn a_verdict_agrees_with_its_test() {
    let reports = tempfile::tempdir().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    // 7 lost and 16 gained of 500: a bootstrap gives [0, .036], McNemar p = .093.
    for (n, lost, gained) in [
        (500, 7, 16),
        (500, 3, 29),
        (500, 29, 3),
        (20, 0, 5),
        (20, 0, 6),
        (20, 6, 0),
        (40, 1, 8),
        (40, 8, 1),
        (500, 43, 26),
    ] {
        skipping(reports.path(), n, lost, gained);
        let (verdict, p, test) = verdict(reports.path(), "latent-step-needed");
        let exact = Flips { both_right: n - lost - gained, lost, gained, both_wrong: 0 }.p_value();
        // These rows decide only one claim: no correction for multiple tests.
        assert!((p.unwrap() - exact).abs() < 1e-12, "{lost} lost, {gained} gained: {p:?}, exact {exact}");
        let expected = match (exact <= 0.05, lost > gained) {
            (false, _) => Verdict::Undecided,
            (true, true) => Verdict::Reproduced,
            (true, false) => Verdict::NotReproduced,
        };
        assert_eq!(verdict, expected, "{test}");
        assert!(test.contains(&format!("McNemar {}", shown_p(exact))), "{test}");
        seen.insert(verdict.words());
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[test]
fn verdicts_of_the_committed_rows_are_corrected_for_their_number() {
    let committed = Path::new(".").join("reports/micro");
    let (paper, folder) = (Paper::embedded().unwrap(), Folder::open(&committed).unwrap());
    let tested = verdicts::test(&paper, &folder, |_| None);
    let with_p: Vec<_> = tested.iter().filter_map(|t| Some((t, t.p?))).collect();
    assert!(with_p.len() > 20, "{} verdicts", with_p.len());
    for (t, p) in &with_p {
        let decided = matches!(t.verdict, Verdict::Reproduced | Verdict::NotReproduced);
        assert_eq!(decided, *p <= 0.05, "{}: {:?}, p = {p}", t.claim.id, t.verdict);
        assert!(!t.tests.is_empty() && !t.on.is_empty(), "{}", t.claim.id);
    }
    // Rows for these claims exist, but `micro` does not decide when a block ends, and its few words have no rank of a thousand.
    for (id, property) in [
        ("exit-ready-at-once", "K_min = 5 and K_cap = 5"),
        ("single-transition", "K_min = 5 and K_cap = 5"),
        ("lens-exit-top-1", "K_min = 5 and K_cap = 5"),
        ("k-min-zero-collapses", "K_min = 5 and K_cap = 5"),
        ("swi-contrast-rank", "the words of its task alone"),
        ("brevity-tradeoff", "paid every right answer with a block in full"),
        ("headline-gap", "needs rows of MATH-500, and these are of chains"),
    ] {
        let of: Vec<_> = tested.iter().filter(|t| t.claim.id == id).collect();
        assert!(of.iter().all(|t| t.verdict == Verdict::NotTestable && t.tests[0].contains(property)), "{id}: {of:?}");
    }
    // With a pretrained model's vocabulary the same claim is decided.
    let smollm2 = Folder::open(&Path::new(".").join("reports/smollm2-chains")).unwrap();
    let tested_there = verdicts::test(&paper, &smollm2, |_| None);
    let rank = tested_there.iter().find(|t| t.claim.id == "swi-contrast-rank").unwrap();
    assert!(rank.tests.iter().any(|test| test.contains("testable: the vocabulary")) && rank.p.is_some(), "{rank:?}");
    // A folder without rows of the checkpoint after SFT has the vocabulary of its other checkpoints.
    let of_other = verdict(&Path::new(".").join("reports/micro-bptt"), "swi-contrast-rank");
    assert!(of_other.0 == Verdict::NotTestable && of_other.2.contains("the words of its task alone"), "{of_other:?}");
    // MATH-500 and GSM8K correspond to one of our columns.
    let tests = |id: &str| tested.iter().filter(|t| t.claim.id == id).map(|t| t.tests.len()).collect::<Vec<_>>();
    assert!(tests("rl-trainable").iter().all(|n| *n <= 2), "{:?}", tests("rl-trainable"));
}

/// The rows of a run folder are in `reports`, with a manifest of their own.
#[test]
fn the_manifest_of_a_runs_rows_is_read() {
    let run = tempfile::tempdir().unwrap();
    let rows = run.path().join("reports");
    std::fs::create_dir(&rows).unwrap();
    for name in ["manifest.json", "teacher_forced-sft.parquet", "teacher_forced-grpo.parquet"] {
        std::fs::copy(Path::new("reports/micro").join(name), rows.join(name)).unwrap();
    }
    std::fs::write(run.path().join("manifest.json"), "{\"threads\": 2}").unwrap();
    let (of_run, _, test) = verdict(run.path(), "swi-contrast-rank");
    assert!(of_run == Verdict::NotTestable && test.contains("the words of its task alone"), "{test}");
    assert_eq!(Folder::open(run.path()).unwrap().manifest.unwrap()["threads"], 2);
}

#[test]
fn schedules_are_compared_with_one_seed_and_their_steps_are_shown() {
    let reports = tempfile::tempdir().unwrap();
    let phase = |seed: u64, steps: u64| {
        json!({"phase": "sft", "source": "hidden_state", "seed": seed, "accuracy": about(0.5), "switch_rate": about(0.5),
            "truncated": about(0.0), "train_steps": steps})
    };
    write(reports.path(), "summary", &[phase(0, 60)]);
    write(reports.path(), "summary-sequential", &[phase(0, 50)]);
    write(reports.path(), "summary-one-shot", &[phase(7, 60)]);
    let table = own(reports.path(), "tab:schedule").expect("two schedules");
    assert_eq!(table.rows().len(), 2);
    assert!(table.note.contains("of the same seed; optimiser steps: 60, 50;"), "{}", table.note);
}

/// One seed has no interval over seeds.
#[test]
fn the_first_seed_of_a_study_has_a_report() {
    let reports = tempfile::tempdir().unwrap();
    let mut rows = vec![];
    for replay in FateRow::MODES {
        for (budget, step) in
            FateRow::BUDGETS.into_iter().flat_map(|budget| [0, FateRow::STEPS].map(|step| (budget, step)))
        {
            let row = json!({"replay": replay, "budget": budget, "from_step": FateRow::FROM_STEP, "seed": 0, "of": FateRow::STEPS,
                "step": step, "equal": step > 0, "n": 500, "accuracy": 0.5, "switch_rate": 0.5, "with_block": null,
                "without_block": 0.5, "kl": 0.1});
            rows.push(row);
        }
    }
    save_rows(reports.path(), FateRow::NAME, &rows);
    let table = own(reports.path(), "tab:rl-fate-tests").expect("hypotheses");
    assert!(
        table.rows().iter().all(|row| row[4..] == [const { Cell::Text(String::new()) }; 3]),
        "{}",
        table.markdown()
    );
}

#[test]
fn a_note_counts_what_the_rows_count() {
    let rows = tempfile::tempdir().unwrap();
    let row = json!({"n": 24, "form": "latents", "gradient": "clean", "mode": "noise", "cells": 9, "rank_correlation": about(0.4),
        "mean_miss": 0.1, "worst_miss": 0.2, "worst_cell": "L0H0 at source", "worst_predicted": 0.1, "worst_exact": 0.3});
    write(rows.path(), "attribution_agreement-sft", &[row]);
    write(rows.path(), "brand_new-sft", &[json!({"thing": "a", "score": about(0.4)})]);
    let note = |label: &str| own(rows.path(), label).expect("a table").note;
    assert!(note("tab:attribution-agreement").contains("; 24 pairs;"), "{}", note("tab:attribution-agreement"));
    assert!(note("tab:brand-new").contains("; 50 problems;"), "{}", note("tab:brand-new"));
}

#[test]
fn verdicts_of_the_committed_rows_do_not_overclaim() {
    let committed = Path::new(".").join("reports/micro");
    let said = |id: &str| verdict(&committed, id);
    // 5 gained and 1 lost among the 47 problems on which both switch: each checkpoint switches on its own problems.
    let (latent, _, test) = said("rl-latent-accuracy-same-run");
    assert!(latent == Verdict::Undecided && test.contains("of the 47 problems on which both switch"), "{test}");
    let (_, _, test) = said("rl-doubles-latent-accuracy");
    assert!(test.contains("whole problems resampled"), "{test}");
    // Methods at chance are not baselines, and sums of embeddings are not a hidden-state recurrence.
    let (rivals, p, test) = said("beats-latent-baselines");
    assert!(rivals == Verdict::NotTestable && p.is_none(), "{test}");
    assert!(test.matches("a method that learnt nothing is no rival").count() == 2 && !test.contains("colar"), "{test}");
    // "About 100" has two sides.
    assert_eq!(said("swi-neighbour-contrast").0, Verdict::NotReproduced);
    // The test finds an effect in every model without one.
    let (specific, _, test) = said("specific-hidden-state");
    assert!(specific == Verdict::NotTestable && test.contains("raises a false alarm in 1.00"), "{test}");
    // The parts of the gain add up to the whole.
    let (_, _, test) = said("rl-trainable");
    let parts = test.split(" (gained").nth(1).and_then(|rest| rest.split("exact McNemar").next()).expect("the flips");
    let sum = |sign: char| -> usize {
        let numbers = parts.split(sign).skip(1);
        numbers.map(|rest| rest.split(' ').next().and_then(|n| n.parse::<usize>().ok()).expect("a count")).sum()
    };
    assert_eq!((sum('+'), sum('−')), (97, 9), "{parts}");
}

#[test]
fn the_start_of_grpo_is_named_by_its_method() {
    let phases = switchyard::method::phases(&Recipe::resolve("micro", &[]).unwrap()).unwrap();
    let folder = Folder::open(&Path::new(".").join("reports/micro")).unwrap();
    assert!(phases.iter().any(|phase| phase.name == folder.start), "no phase {}", folder.start);
}

#[test]
fn claims_about_rl_compare_with_its_start() {
    let reports = tempfile::tempdir().unwrap();
    let accuracy = |group: &str, share: f64| {
        json!({"group": group, "k_min": 4, "k_cap": 5, "accuracy": about(share), "switch_rate": about(0.6), "latent_calls": about(7.0),
            "visible_tokens": about(20.0), "truncated": about(0.02)})
    };
    let outcome = |i: usize, right: usize| {
        json!({"problem": i, "id": "x", "gold": "1", "blocks": 1, "correct": i < right, "switched": true, "visible_tokens": 15, "latent_calls": 5,
            "truncated": false, "level": 1, "subject": "mix"})
    };
    for (checkpoint, right) in [("sft", 45), ("grpo", 35)] {
        let share = right as f64 / 50.0;
        save::<AccuracyRow>(reports.path(), checkpoint, &[accuracy("all", share), accuracy("switched", share)]);
        save::<OutcomeRow>(reports.path(), checkpoint, &(0..50).map(|i| outcome(i, right)).collect::<Vec<_>>());
    }
    let table = |reports: &Path| {
        let (paper, folder) = (Paper::embedded().unwrap(), Folder::open(reports).unwrap());
        let tables = paper_tables::tables(&paper, &folder).unwrap();
        tables.into_iter().map(|b| b.table).find(|t| t.label == "tab:sft-vs-rl").unwrap().markdown()
    };
    let (before, _, test) = verdict(reports.path(), "rl-trainable");
    assert!(before == Verdict::NotReproduced && test.contains("no rows of `grpo_start`"), "{test}");
    assert!(table(reports.path()).contains("no rows of `grpo_start`"), "{}", table(reports.path()));
    save::<AccuracyRow>(reports.path(), "grpo_start", &[accuracy("all", 0.2), accuracy("switched", 0.2)]);
    save::<OutcomeRow>(reports.path(), "grpo_start", &(0..50).map(|i| outcome(i, 10)).collect::<Vec<_>>());
    let (after, _, test) = verdict(reports.path(), "rl-trainable");
    assert!(after == Verdict::Reproduced && test.contains("gained 25, lost 0"), "{test}");
    let (_, _, test) = verdict(reports.path(), "rl-latent-accuracy");
    assert!(test.contains("gained 25, lost 0 of the 50 problems on which both switch"), "{test}");
    let table = table(reports.path());
    assert!(
        table.contains("| After SFT (curriculum) | 66.7 | 20.0") && table.contains("ours: finished Switch-SFT"),
        "{table}"
    );
    // Other problems under the same numbers are not pairs.
    let mut others: Vec<Value> = (0..50).map(|i| outcome(i, 35)).collect();
    others.iter_mut().for_each(|row| row["id"] = "y".into());
    save::<OutcomeRow>(reports.path(), "grpo", &others);
    let (_, _, test) = verdict(reports.path(), "rl-trainable");
    assert!(!test.contains("gained") && test.contains("from the two intervals"), "{test}");
}

#[test]
fn verdicts_follow_the_intervals() {
    let reports = tempfile::tempdir().unwrap();
    toy(reports.path());
    let (paper, folder) = (Paper::embedded().unwrap(), Folder::open(reports.path()).unwrap());
    let tested = verdicts::test(&paper, &folder, |_| Some("the command".into()));
    let of = |id: &str| {
        let found = tested.iter().find(|t| t.claim.id == id).unwrap();
        (found.verdict, found.tests.join("; "))
    };
    assert_eq!(of("swi-localised").0, Verdict::Reproduced);
    assert_eq!(of("zero-collapses").0, Verdict::Reproduced);
    assert_eq!(of("exit-ready-at-once").0, Verdict::NotReproduced);
    // Skip costs .2, twice random-norm's .1, but the intervals are wider than the tolerance of .01.
    assert_eq!(of("skip-costs-twice-random-norm").0, Verdict::Undecided);
    // Paired: lost 5, gained 4.
    let (verdict, test) = of("latent-step-needed");
    assert!(verdict == Verdict::Undecided && test.contains("gained 4, lost 5, exact McNemar p = 1.000"), "{test}");
    let (verdict, test) = of("headline-gap");
    assert!(verdict == Verdict::NotTestable && test.contains("on Qwen3-8B: `the command`"), "{test}");
    let (verdict, test) = of("brevity-tradeoff");
    assert!(
        verdict == Verdict::NotTestable
            && test == "fig:pareto: the rows of `accuracy` give no number for brevity (not run, or too few problems)",
        "{test}"
    );
}

/// Two data sets in one folder: each has its columns, and claims compare numbers of one data set.
#[test]
fn rows_of_two_data_sets_fill_their_columns() {
    let reports = tempfile::tempdir().unwrap();
    let of = |accuracy: f64, dataset: &str| {
        let phase = |phase: &str, steps: u64, accuracy: f64| {
            json!({"phase": phase, "source": "hidden_state", "dataset": dataset, "accuracy": about(accuracy), "switch_rate": about(0.5),
                   "latent_accuracy": null, "text_only_accuracy": null, "visible_tokens": about(20.0), "latent_calls": null,
                   "forward_passes": null, "truncated": about(0.0), "train_steps": steps, "train_positions": null})
        };
        [phase("base", 0, accuracy), phase("sft", 5, accuracy), phase("grpo", 9, accuracy + 0.1)]
    };
    write(reports.path(), "summary", &of(0.5, "MATH-500"));
    write(reports.path(), "summary-gsm8k", &of(0.7, "gsm8k-test"));
    let (paper, folder) = (Paper::embedded().unwrap(), Folder::open(reports.path()).unwrap().with_paper(true));
    let tables = paper_tables::tables(&paper, &folder).unwrap();
    let main = tables.iter().find(|t| t.table.label == "tab:main").unwrap().table.markdown();
    let row = main.lines().find(|line| line.contains("after Switch-GRPO")).unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    assert!(cells[3].starts_with("60.0") && cells[7].starts_with("80.0"), "{row}");
    assert!(main.contains("Text-CoT (SFT) (ours: base, untrained)"), "{main}");
    let tested = verdicts::test(&paper, &folder, |_| None);
    let trainable = tested.iter().find(|t| t.claim.id == "rl-trainable").unwrap();
    assert!(trainable.tests.iter().any(|t| t.starts_with("switch_grpo acc 80") || t.contains("80.0")), "{trainable:?}");
}

#[test]
fn missing_and_broken_files_give_warnings() {
    let reports = tempfile::tempdir().unwrap();
    let path = reports.path().join("one");
    // Rows of another version: a field is missing.
    write(&path, "teacher_forced-sft", &[json!({"event": "swi_start", "p_swi": null})]);
    write(&path, "brand_new-sft", &[json!({"thing": "a", "score": about(0.4)})]);
    std::fs::write(path.join("switch_window-sft.parquet"), "no").unwrap();
    std::fs::write(path.join("manifest.json"), "{").unwrap();
    assert_eq!(default_folders(reports.path()).unwrap(), std::slice::from_ref(&path));
    // Paper tables without rows are omitted unless requested.
    report(&[Folder::open(&path).unwrap()], &reports.path().join("index.html")).unwrap();
    assert!(!path.join("tables/tab-tf.md").exists());
    let done = report(&[Folder::open(&path).unwrap().with_paper(true)], &reports.path().join("index.html")).unwrap();
    assert!(done.summary.contains("switch_window-sft.parquet: not a whole Parquet file"), "{}", done.summary);
    assert!(done.summary.contains("manifest.json: EOF"), "{}", done.summary);
    assert!(done.summary.contains("teacher_forced-sft.parquet: records of another version: row 0"), "{}", done.summary);
    assert!(done.summary.contains("make them again with the command in manifest.json"), "{}", done.summary);
    let table = std::fs::read_to_string(path.join("tables/tab-tf.md")).unwrap();
    assert!(table.contains("No rows of ours: needs `teacher_forced`."), "{table}");
    let empty = tempfile::tempdir().unwrap();
    let says = |path: &Path| format!("{:#}", Folder::open(path).err().unwrap());
    assert!(says(empty.path()).contains("holds no rows (*.parquet)"));
    assert!(says(&empty.path().join("x")).contains("not a folder"));
    assert!(default_folders(empty.path()).unwrap_err().to_string().contains("run `probe` first"));
}

/// A copy of a folder's rows with every `every`-th float replaced; `None` means NaN and the infinities.
fn changed(from: &Path, to: &Path, every: usize, new: Option<f64>) {
    fn change(value: &mut Value, count: &mut usize, every: usize, new: Option<f64>) {
        match value {
            Value::Number(x) if x.is_f64() => {
                *count += 1;
                if count.is_multiple_of(every) {
                    *value = json!(new);
                }
            }
            Value::Object(fields) => fields.values_mut().for_each(|field| change(field, count, every, new)),
            _ => {}
        }
    }
    let mut count = 0;
    for file in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|e| e == "parquet") {
            let mut rows: Vec<Value> = switchyard::store::read(&file).unwrap();
            rows.iter_mut().for_each(|row| change(row, &mut count, every, new));
            write(to, file.file_stem().unwrap().to_str().unwrap(), &rows);
        }
    }
}

#[test]
fn rows_of_any_numbers_have_a_report() {
    let reports = tempfile::tempdir().unwrap();
    let good = reports.path().join("good");
    toy(&good);
    let kinds =
        [(1, Some(1e-320)), (3, Some(1e-320)), (1, Some(0.0)), (3, Some(-3.0)), (3, Some(1e308)), (1, None), (5, None)];
    for (number, (every, new)) in kinds.into_iter().enumerate() {
        let bad = reports.path().join(format!("bad-{number}"));
        changed(&good, &bad, every, new);
        let Ok(folder) = Folder::open(&bad) else { panic!("{every} {new:?}: the folder is lost") };
        let told = folder.unreadable.len();
        let page = reports.path().join(format!("{number}.html"));
        report(&[folder], &page).unwrap_or_else(|why| panic!("{every} {new:?}: {why:#}"));
        assert_eq!(told > 0, new.is_none(), "{every} {new:?}: NaN gives a warning");
    }
}

#[test]
fn one_nan_costs_one_cell_and_gives_a_warning() {
    let reports = tempfile::tempdir().unwrap();
    let mut rows: Vec<Value> = vec![];
    for group in ["all", "level:1", "text_only"] {
        rows.push(json!({"group": group, "k_min": 4, "k_cap": 5, "accuracy": about(0.8), "latent_accuracy": about(0.7), "text_accuracy": null,
            "switch_rate": about(0.6), "blocks": about(1.0), "latent_calls": about(7.0), "visible_tokens": about(20.0),
            "truncated": about(0.02), "forced_exits": null, "difference": null, "lost": null, "gained": null, "p_value": null,
            "p_holm": null}));
    }
    rows[0]["latent_calls"]["value"] = Value::Null;
    rows[1]["accuracy"]["low"] = Value::Null;
    write(reports.path(), "accuracy-sft", &rows);
    let folder = Folder::open(reports.path()).unwrap();
    let kept = folder.rows::<AccuracyRow>("sft");
    assert_eq!(kept.iter().map(|row| row.group.as_str()).collect::<Vec<_>>(), ["all", "text_only"]);
    assert_eq!((kept[0].latent_calls, kept[0].accuracy.value), (None, 0.8), "the rest of its row stays");
    let told = folder.unreadable.join("; ");
    for part in ["accuracy-sft.parquet", "latent_calls of row 0", "accuracy of row 1", "row 1 is left out"] {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn losses_of_zero_are_drawn() {
    let run = tempfile::tempdir().unwrap();
    let steps: Vec<Value> = (0..30).map(|i| json!({"step": i, "loss": 0.0, "token_accuracy": 1.0})).collect();
    write(run.path(), "metrics-sft", &steps);
    let folder = || [Folder::open(run.path()).unwrap()];
    report_as(&folder(), &run.path().join("page.html"), Formats::ALL).unwrap();
    let figure = run.path().join("figures/fig-training");
    assert!(figure.with_extension("png").is_file());
    // A file that is not rewritten would be out of date.
    report(&folder(), &run.path().join("page.html")).unwrap();
    assert!(!figure.with_extension("png").exists());
    let svg = std::fs::read_to_string(figure.with_extension("svg")).unwrap();
    assert!(svg.contains("Training loss") && svg.contains("Training accuracy"), "a panel is missing");
}

#[test]
fn two_concurrent_reports_on_one_folder_succeed() {
    let reports = tempfile::tempdir().unwrap();
    let rows = reports.path().join("rows");
    toy(&rows);
    let one = |page: &str| report(&[Folder::open(&rows).unwrap()], &reports.path().join(page)).map(|_| ());
    std::thread::scope(|scope| {
        let both = ["a.html", "a.html", "b.html"].map(|page| scope.spawn(move || one(page)));
        both.into_iter().for_each(|done| done.join().unwrap().unwrap());
    });
    for room in ["tables", "figures"] {
        let left =
            std::fs::read_dir(rows.join(room)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(left.filter(|name| name.ends_with(".tmp")).count(), 0, "{room}");
    }
}

#[test]
fn a_repeated_folder_is_an_error() {
    let reports = tempfile::tempdir().unwrap();
    toy(reports.path());
    let (one, same) = (Folder::open(reports.path()).unwrap(), Folder::open(&reports.path().join(".")).unwrap());
    let folders = [one, same];
    let compared = compare::table(&folders).map(|_| ());
    for refused in [report(&folders, &reports.path().join("page.html")).map(|_| ()), compared] {
        assert!(format!("{:#}", refused.unwrap_err()).contains("is named twice"));
    }
}

/// As in the paper: accuracy on the left, changed answers on the right, four modes, all and diagnostic problems; here of two checkpoints.
#[test]
fn the_intervention_figure_has_the_papers_panels() {
    let svg = std::fs::read_to_string("reports/micro/figures/fig-intervention.svg").unwrap();
    let panels: Vec<&str> = svg.split("font-weight=\"bold\"").skip(1).collect();
    assert_eq!(panels.len(), 4, "two checkpoints");
    for (number, panel) in panels.iter().enumerate() {
        let axis = ["share of right answers", "share of changed answers"][number % 2];
        let bars = ["normal", "zero", "random norm", "skip"].map(|mode| format!("\n{mode}\n"));
        assert!(panel.contains(axis) && bars.iter().all(|bar| panel.contains(bar)), "{panel}");
        assert!(panel.contains("all (n=") && panel.contains("diagnostic (n="), "{panel}");
        assert!(!panel.contains("resample") && !panel.contains("predicted"), "{panel}");
    }
}

#[test]
fn the_papers_diamonds_are_only_next_to_its_checkpoint() {
    let reports = tempfile::tempdir().unwrap();
    toy(reports.path());
    report(&[Folder::open(reports.path()).unwrap()], &reports.path().join("page.html")).unwrap();
    let drawn = |figure: &str| {
        std::fs::read_to_string(reports.path().join("figures").join(figure).with_extension("svg")).unwrap()
    };
    for figure in ["fig-intervention", "fig-intervention-all"] {
        let svg = drawn(figure);
        let panels: Vec<&str> = svg.split("font-weight=\"bold\"").skip(1).collect();
        let of = |name: &str| panels.iter().filter(|panel| panel.contains(name) && panel.contains("\npaper\n")).count();
        assert_eq!(of("after SFT"), 0, "{figure}");
        assert!(of("Switch-GRPO") + of("GRPO") > 0, "{figure}");
    }
    // Levels of other problems are not MATH's.
    assert!(!drawn("fig-per-subject").contains("\npaper\n"));
    let rows = Folder::open(reports.path()).unwrap().flat(OutcomeRow::NAME, "grpo").to_vec();
    let math: Vec<Value> = rows
        .into_iter()
        .map(|mut row| {
            row.insert("dataset".into(), json!("math500"));
            Value::Object(row)
        })
        .collect();
    std::fs::remove_file(reports.path().join("outcomes-grpo.parquet")).unwrap();
    write(reports.path(), "outcomes-grpo", &math);
    report(&[Folder::open(reports.path()).unwrap()], &reports.path().join("page.html")).unwrap();
    assert_eq!(drawn("fig-per-subject").matches("\npaper\n").count(), 2, "by level and by subject, once each");
    // A missing checkpoint is in no figure.
    assert!(drawn("fig-swi-window").contains("paper, Switch-GRPO") && drawn("fig-layer-probe").contains("paper, SFT"));
    for file in ["switch_window-grpo.parquet", "layer_probe-grpo.parquet"] {
        std::fs::remove_file(reports.path().join(file)).unwrap();
    }
    report(&[Folder::open(reports.path()).unwrap()], &reports.path().join("page.html")).unwrap();
    for figure in ["fig-swi-window", "fig-layer-probe"] {
        assert!(!drawn(figure).contains("paper, Switch-GRPO") && drawn(figure).contains("paper, SFT"), "{figure}");
    }
}
