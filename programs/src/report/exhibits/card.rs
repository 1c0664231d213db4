//! The certificate: each question about a model's latents with its answer, and the error rate of that answer on models with a known
//! mechanism. Measures nothing.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Drawing, Exhibit};
use crate::report::figures::{Axis, BarChart, BarSeries, Figure};
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::Paper;
use crate::report::render_table::number;
use crate::report::tables::{Cell, ColumnKind, Table};
use switchyard::schema::{CalibrationRow, CardAnswer, CardQuestion, CardRow, RowFile, SerialDepthRow};

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { covers: true, table, ..Exhibit::new("tab:card", &[CardRow::NAME, SerialDepthRow::NAME]) },
    Exhibit { draw, ..Exhibit::new("fig:card", &[CardRow::NAME]) },
];

const READING: &str = "All tests of a checkpoint are one family (Holm). *yes*: the adjusted p-value is at most .05. *no*: \
    the opposite effect is as significant, or two one-sided tests (TOST, a second family) reject effects as large as \
    the margin, .05 unless `card.margin` is set. On known models: power and false alarms of the answer in `probe \
    calibrate --only card`, at the n nearest to the row's: of *no* in a line answered no, otherwise of *yes*. Training seeds are not compared.";

fn table(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    use ColumnKind::{Measured, Text};
    let columns = [
        ("checkpoint", Text),
        ("question", Text),
        ("answer", Text),
        ("effect", Measured(3)),
        ("p (Holm)", Text),
        ("p (equivalence)", Text),
        ("effect is", Text),
        ("on known models: power, false alarms", Text),
    ];
    let mut table = Table::new(exhibit.label, "What do the latents do? One answer to each question", columns);
    table.note = READING.to_owned();
    for (checkpoint, row) in folder.all::<SerialDepthRow>() {
        table.note += &format!(" {checkpoint}: {}", row.line().trim_start_matches("- ").trim_end());
    }
    for (checkpoint, row) in folder.all::<CardRow>() {
        table.push(cells(folder, checkpoint, row))?;
    }
    Ok((!table.rows().is_empty()).then_some(table))
}

fn cells(folder: &Folder, checkpoint: &str, row: &CardRow) -> Vec<Cell> {
    vec![
        Cell::Text(checkpoint.to_owned()),
        Cell::Text(row.question.text().to_owned()),
        Cell::Text(row.answer.name().to_owned()),
        Cell::measured(row.number),
        p_value(row.p_holm),
        p_value(row.p_same),
        Cell::Text(row.explanation()),
        Cell::Text(error_rates(&folder.calibration, row)),
    ]
}

/// One panel per checkpoint: the effect behind each answer, in the colour of the answer.
fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let answered: Vec<&CardRow> =
            folder.rows(checkpoint).iter().filter(|row: &&CardRow| row.number.is_some()).collect();
        let series = CardAnswer::ALL.iter().map(|answer| BarSeries {
            name: answer.name().to_owned(),
            values: answered.iter().map(|row| row.number.filter(|_| row.answer == *answer).and_then(sound)).collect(),
            paper: vec![],
        });
        Figure::bars(BarChart {
            title: format!("What do the latents do? {}", called(checkpoint)),
            y: Axis::new("effect"),
            categories: answered.iter().map(|row| row.question.name().to_owned()).collect(),
            series: series.collect(),
        })
    };
    let panels = folder.checkpoints_with::<CardRow>().into_iter().filter_map(panel).collect();
    let note = "The effect behind each answer (tab:card), in the colour of the answer. Bars: 95 % intervals. Questions \
                not asked are left out.";
    exhibit.drawing("Certificate (ours)", 2, panels, note)
}

fn p_value(p: Option<f64>) -> Cell {
    p.map_or_else(Cell::nothing, |p| Cell::Text(number(p, 3)))
}

/// Power and false alarms of the answer's test, at the calibrated n nearest to the row's.
fn error_rates(calibration: &[CalibrationRow], row: &CardRow) -> String {
    let test = row.question.test(row.answer);
    let of_test = calibration.iter().filter(|known| known.test == test && known.kind == CalibrationRow::ALL);
    let Some(known) = of_test.min_by_key(|known| known.problems.abs_diff(row.identity.n)) else {
        return "not calibrated".to_owned();
    };
    let rate = |name: &str, rate: Option<switchyard::stats::Estimate>| Some(format!("{name} {:.2}", rate?));
    let rates = [rate("power", known.power), rate("false alarms", known.false_alarms)];
    rates.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Cards side by side: one row per checkpoint, one column per question; `None` if no folder has one.
pub(in crate::report) fn side_by_side(folders: &[Folder]) -> Result<Option<Table>> {
    let names = std::iter::once("checkpoint").chain(CardQuestion::ALL.iter().map(|question| question.name()));
    let columns = names.map(|name| (name, ColumnKind::Text));
    let mut table = Table::new("tab:cards", "Certificates side by side", columns);
    for folder in folders {
        for checkpoint in folder.checkpoints_with::<CardRow>() {
            let rows = folder.rows::<CardRow>(checkpoint);
            let answer = |question: &CardQuestion| {
                let row = rows.iter().find(|row| row.question == *question);
                row.map_or_else(Cell::nothing, |row| Cell::Text(row.answer.name().to_owned()))
            };
            let name = Cell::Text(format!("{}/{checkpoint}", folder.name));
            table.push(std::iter::once(name).chain(CardQuestion::ALL.iter().map(answer)).collect())?;
        }
    }
    Ok((!table.rows().is_empty()).then_some(table))
}

/// The cards of a folder as JSON, one per checkpoint: file name and content. `schema` changes with the meaning of a field.
pub(in crate::report) fn cards(folder: &Folder) -> Vec<(String, Value)> {
    let card = |checkpoint: &str| {
        let rows = folder.rows::<CardRow>(checkpoint);
        let lines = rows.iter().map(|row| {
            json!({
                "id": row.question, "question": row.question.text(), "answer": row.answer, "effect": row.number,
                "effect_is": row.explanation(), "p_holm": row.p_holm, "margin": row.margin, "p_same": row.p_same, "on_known_models": error_rates(&folder.calibration, row),
            })
        });
        let who = rows.first().map(|row| &row.identity);
        let card = json!({
            "schema": 1, "checkpoint": who.map(|who| &who.checkpoint), "dataset": who.map(|who| &who.dataset),
            "seed": who.map(|who| who.seed), "lines": lines.collect::<Vec<_>>(),
            "serial_depth": folder.rows::<SerialDepthRow>(checkpoint),
        });
        (format!("card-{checkpoint}"), card)
    };
    folder.checkpoints_with::<CardRow>().into_iter().map(card).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p_value_of_one_is_no_power_of_ten() {
        let shown = |p: f64| if let Cell::Text(text) = p_value(Some(p)) { text } else { String::new() };
        assert_eq!([1.0, 0.68, 0.0333, 2e-88].map(shown), ["1.000", "0.680", "0.033", "2.0e-88"]);
    }

    #[test]
    fn every_question_of_the_card_is_calibrated() {
        let rows = Folder::calibration_of_this_program().expect("rows");
        let tests = CardQuestion::ALL.into_iter().flat_map(|q| [CardAnswer::Yes, CardAnswer::No].map(|a| q.test(a)));
        for test in tests {
            let found = rows.iter().any(|row| row.test == test && row.kind == CalibrationRow::ALL);
            assert!(found, "{test} is not in reports/calibration: probe calibrate --only card --add");
        }
    }
}
