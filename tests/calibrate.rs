//! The workbench's verdicts on models whose truth is known: a small part of `probe calibrate`, and what it makes of rows.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use switchyard::calibration::Settings;
use switchyard::machine::Machine;
use switchyard::report::folder::Folder;
use switchyard::report::render::report;
use switchyard::schema::{CalibrationDrawRow, CalibrationRow, Identity, calibrated};

fn rows(only: &[&str], n: &[usize], draws: usize) -> Vec<CalibrationDrawRow> {
    let only = only.iter().map(|name| (*name).to_owned()).collect();
    let settings = Settings { draws, seed: 1, only, n: n.to_vec() };
    let Machine { device, threads, .. } = Machine::default();
    settings.run(&settings.jobs().expect("jobs"), &device, threads).expect("rows")
}

#[test]
fn verdicts_are_right_where_the_truth_is_known() {
    let mut seen = rows(&[], &[100, 24], 1);
    let kinds: BTreeSet<&str> = seen.iter().map(|row| row.kind.as_str()).collect();
    let tests: BTreeSet<&str> = seen.iter().map(|row| row.test.as_str()).collect();
    assert!(kinds.len() >= 8 && tests.len() > 20, "{kinds:?} {tests:?}");
    // What is known not to be seen, and effects that 100 problems may be too few for.
    seen.retain(|row| row.blind.is_empty() && row.kind != "share");
    let wrong: Vec<_> = seen.iter().filter(|row| !row.right).collect();
    println!("{} of {} verdicts are wrong", wrong.len(), seen.len());
    assert!(seen.len() > 100 && wrong.len() * 20 <= seen.len(), "{wrong:#?}");
}

/// The same seed gives the same rows, whatever else is asked for.
#[test]
fn a_draw_is_its_own() {
    let all = rows(&["exit"], &[20, 50], 2);
    let one = rows(&["exit_probability"], &[50], 1);
    assert!(!one.is_empty() && one.iter().all(|row| all.contains(row)), "{one:#?}\n{all:#?}");
}

fn draw(n: usize, draw: usize, truth: bool, verdict: bool) -> CalibrationDrawRow {
    let hand = CalibrationRow::CHECKPOINT.to_owned();
    CalibrationDrawRow {
        identity: Identity { checkpoint: hand.clone(), dataset: hand, n, seed: 0 },
        kind: "share".into(),
        draw,
        test: "latent_intervention/zero".into(),
        default_n: n == 200,
        blind: String::new(),
        truth,
        verdict,
        right: truth == verdict,
    }
}

#[test]
fn power_and_false_alarms_are_counted_apart_and_by_n() {
    // 6, 9 and 10 of 10 found; one of 5 false alarms everywhere.
    let found = |(n, hits): (usize, usize)| (0..10).map(move |i| draw(n, i, true, i < hits));
    let mut draws: Vec<_> = [(50, 6), (100, 9), (200, 10)].into_iter().flat_map(found).collect();
    draws.extend([50, 100, 200].into_iter().flat_map(|n| (10..15).map(move |i| draw(n, i, false, i == 10))));
    let rows = calibrated(&draws).expect("rows");
    assert_eq!(rows.len(), 6, "three sizes, over all kinds and of one");
    let of: Vec<_> = rows.iter().filter(|row| row.kind == CalibrationRow::ALL).collect();
    let value = |row: &CalibrationRow| (row.problems, row.power.expect("power").value);
    assert_eq!(of.iter().map(|row| value(row)).collect::<Vec<_>>(), [(50, 0.6), (100, 0.9), (200, 1.0)]);
    assert!(of.iter().all(|row| row.false_alarms.is_some_and(|e| e.value == 0.2 && e.n == 5)));
    assert!(of.iter().all(|row| row.n_for_80 == Some(100)));
    assert_eq!((of[2].right.n, of[2].right.value, of[2].default_n), (15, 14.0 / 15.0, true));
}

/// The command's rows are read by `report`, and named beside the claims that rest on a calibrated test.
#[test]
fn the_command_writes_what_the_report_cites() {
    let reports = tempfile::tempdir().expect("a folder");
    let out = reports.path().join("calibration");
    let probe = |more: &[&str]| {
        let done =
            Command::new(env!("CARGO_BIN_EXE_probe")).arg("calibrate").args(more).arg("--out").arg(&out).output();
        done.expect("a program")
    };
    let done = probe(&["--draws", "2", "--n", "50", "--only", "latent_intervention,unread"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let micro = reports.path().join("micro");
    std::fs::create_dir(&micro).expect("a folder");
    for file in std::fs::read_dir(Path::new(".").join("reports/micro")).expect("the committed rows").flatten() {
        if file.path().extension().is_some_and(|e| e == "parquet") {
            std::fs::copy(file.path(), micro.join(file.file_name())).expect("a copy");
        }
    }
    let folders = [out.clone(), micro.clone()].map(|path| Folder::open(&path).expect("rows"));
    report(&folders, &reports.path().join("index.html")).expect("a report");
    let text = |path: &Path| std::fs::read_to_string(path).expect("a table");
    let table = text(&out.join("tables/tab-calibration-power.md"));
    assert!(table.contains("latent_intervention/zero") && !out.join("tables/claims.md").exists(), "{table}");
    let claims = text(&micro.join("tables/claims.md"));
    assert!(claims.contains("(reports/calibration: latent_intervention/skip)"), "{claims}");
    let wrong = probe(&["--only", "nothing"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--list"));
}
