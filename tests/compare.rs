//! `report compare` on the committed rows: each cell equals the row that it names.

use std::path::Path;

use crate::common::save_rows;
use serde_json::{Value, json};
use switchyard::schema::{AccuracyRow, ExitGroup, ExitRow, InterventionRow, KnownValueRow, ProbeRow, Steps};
use switchyard_programs::report::compare;
use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::tables::{Cell, Table};

fn micro() -> Folder {
    Folder::open(&Path::new(switchyard::store::CHECKOUT).join("reports/micro")).expect("committed rows")
}

/// The cell of this organism and column.
fn cell<'a>(table: &'a Table, organism: &str, column: &str) -> &'a Cell {
    let at = table.columns.iter().position(|c| c.name == column).expect("a column");
    let row = table.rows().iter().find(|row| row[0] == Cell::Text(organism.to_owned())).expect("a row");
    &row[at]
}

#[test]
fn each_cell_equals_its_row() {
    let folder = micro();
    let table = compare::table(std::slice::from_ref(&folder)).expect("a table");
    let names: Vec<&Cell> = table.rows().iter().map(|row| &row[0]).collect();
    let interventions = "sft grpo_start grpo fixed_embedding pause coconut codi colar swireasoning soft_thinking";
    let accuracies = "grpo_step20 grpo_step40 grpo_step60";
    let expected = interventions.split(' ').chain(accuracies.split(' '));
    let expected: Vec<Cell> = expected.map(|name| Cell::Text(format!("micro/{name}"))).collect();
    assert_eq!(names, expected.iter().collect::<Vec<_>>());
    for checkpoint in ["sft", "grpo"] {
        let organism = format!("micro/{checkpoint}");
        let accuracies = folder.rows::<AccuracyRow>(checkpoint);
        let all = accuracies.iter().find(|row| row.group == "all").expect("all problems");
        assert_eq!(cell(&table, &organism, "accuracy"), &Cell::Measured(all.accuracy));
        assert_eq!(cell(&table, &organism, "switch rate"), &Cell::Measured(all.switch_rate));
        let rows = folder.rows::<InterventionRow>(checkpoint);
        let mode = |mode: &str, steps| rows.iter().find(|row| row.mode == mode && row.steps == steps).expect("a mode");
        for name in ["zero", "random_norm", "resample", "mean", "embedding_argmax"] {
            let left = mode(name, Steps::All).diagnostic_accuracy.expect("problems that switched and were right");
            assert_eq!(cell(&table, &organism, name), &Cell::Measured(left), "{name}");
        }
        // One token per latent. The ratio is not exact if the text of other problems changed too.
        let Cell::Text(latents) = cell(&table, &organism, "latents a token") else { panic!("{organism} has none") };
        let (ratio, block) = latents.split_once(' ').expect("two numbers");
        assert!((ratio.parse::<f64>().expect("a number") - 1.0).abs() < 0.05 && block == "(5.0 a block)", "{latents}");
        // No other single latent costs more than the decisive one.
        let Cell::Text(step) = cell(&table, &organism, "decisive step") else { panic!("{organism} has none") };
        let step: usize = step.strip_suffix(" of 5").expect("five steps").parse().expect("a number");
        let cost = |k: usize| mode("resample", Steps::Only(k)).accuracy_change.value;
        assert!((0..5).all(|k| cost(step - 1) <= cost(k)), "{organism}: {step}");
        // No other latent carries more than the named one.
        let Cell::Text(held) = cell(&table, &organism, "one latent carries") else { panic!("{organism}: none") };
        let known = folder.rows::<KnownValueRow>(checkpoint);
        let single = known.iter().filter(|row| row.steps != Steps::All);
        let best = single.max_by(|a, b| a.above_chance.value.total_cmp(&b.above_chance.value)).expect("single steps");
        let (Steps::Only(at), holds) = (best.steps, best.holds) else { panic!("several steps") };
        assert_eq!(held, &format!("{holds}, {} of 5", at + 1));
        assert_eq!(cell(&table, &organism, "followed there"), &Cell::Measured(best.above_chance));
        let exits = folder.rows::<ExitRow>(checkpoint);
        let last = exits.iter().filter(|row| row.group == ExitGroup::All).max_by_key(|row| row.step).expect("a step");
        assert_eq!(cell(&table, &organism, "p(</swi>) last step"), &Cell::Measured(last.p_exit));
        let Cell::Measured(peak) = cell(&table, &organism, "value probe") else { panic!("{organism} has no probe") };
        let own = |row: &&ProbeRow| row.target.starts_with("value:s_j@");
        let best = folder.rows::<ProbeRow>(checkpoint).iter().filter(own).map(|row| row.score().value);
        assert_eq!(peak.value, best.fold(0.0, f64::max));
    }
}

/// The largest effect of a single step is not significant, a smaller one is; rows of other settings are not compared.
#[test]
fn a_single_step_is_named_only_with_evidence() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let about = |value: f64, half: f64| json!({"value": value, "low": value - half, "high": value + half, "n": 100});
    let save = |name: &str, rows: &[Value]| {
        let whole = |row: &Value| {
            let mut whole =
                json!({"checkpoint": "x/sft", "dataset": "x", "n": 100, "seed": 0, "draws": 1, "firings": 9});
            whole.as_object_mut().expect("an object").extend(row.as_object().expect("an object").clone());
            whole
        };
        save_rows(temp.path(), name, &rows.iter().map(whole).collect::<Vec<_>>());
    };
    let resampled = |steps: &str, later: &str, change: f64, half: f64, p: f64| {
        json!({"mode": "resample", "dose": null, "steps": steps, "later": later, "at": "both", "blocks": "own",
            "accuracy": about(0.5, 0.1), "accuracy_change": about(change, half), "answer_changed": about(0.3, 0.1),
            "lost": 0, "gained": 0, "p_value": p, "p_holm": p, "mean_change": 1.0})
    };
    let both = |later: &str| [resampled("1", later, -0.3, 0.4, 0.2), resampled("2", later, -0.25, 0.1, 1e-6)];
    save("latent_intervention-sft", &[both("recompute"), both("frozen")].concat());
    let exchanged = |steps: &str, above: f64, half: f64| {
        json!({"steps": steps, "later": "recompute", "at": "both", "hit_rate": about(0.4, 0.1), "chance": about(0.1, 0.1),
            "above_chance": about(above, half), "kept": about(0.1, 0.1)})
    };
    save("known_value-sft", &[exchanged("1", 0.3, 0.35), exchanged("2", 0.25, 0.1)]);
    let folder = Folder::open(temp.path()).expect("rows");
    let table = compare::table(std::slice::from_ref(&folder)).expect("a table");
    let organism = format!("{}/sft", folder.name);
    assert_eq!(cell(&table, &organism, "decisive step"), &Cell::Text("2 of 2".into()));
    assert_eq!(cell(&table, &organism, "one latent carries"), &Cell::Text("value, 2 of 2".into()));
}

#[test]
fn folders_without_rows_are_an_error() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let rows = Path::new(switchyard::store::CHECKOUT).join("reports/micro/summary.parquet");
    std::fs::copy(rows, temp.path().join("summary.parquet")).expect("a copy");
    let folder = Folder::open(temp.path()).expect("rows");
    let text = compare::table(&[folder]).expect_err("nothing to compare").to_string();
    assert!(text.contains("no rows") && text.contains(&temp.path().display().to_string()), "{text}");
}

#[test]
fn missing_rows_are_named() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    for name in ["accuracy-sft.parquet", "latent_intervention-grpo.parquet"] {
        std::fs::copy(Path::new("reports/micro").join(name), temp.path().join(name)).expect("a copy");
    }
    std::fs::write(temp.path().join("known_value-sft.parquet"), "no").expect("a file");
    let table = compare::table(&[Folder::open(temp.path()).expect("rows")]).expect("a table");
    for part in [
        "no `accuracy` rows of grpo",
        "no `latent_intervention` rows of sft",
        "no `known_value` rows of grpo, sft",
        "known_value-sft.parquet: not a whole",
    ] {
        assert!(table.note.contains(part), "{part}: {}", table.note);
    }
    assert!(!table.note.contains("no `accuracy` rows of sft"), "{}", table.note);
}
