//! Whether answers depend on the content of latents: checkpoints of all methods under the same interventions, one row each. Measures
//! nothing.

use anyhow::Result;

use super::Exhibit;
use crate::report::cells::intervention_row;
use crate::report::folder::Folder;
use crate::report::tables::{Cell, ColumnKind, Table};
use switchyard::schema::{AT_CHANCE, InterventionRow, KnownValueRow, MARGIN, NORMAL, RowFile};
use switchyard::stats::{Estimate, LEVEL};

pub(super) const EXHIBITS: &[Exhibit] =
    &[Exhibit { table, ..Exhibit::new("tab:dependence", &[InterventionRow::NAME]) }];

/// Replacements of the latents at all steps: the row's changes of accuracy.
const MODES: [&str; 5] = ["zero", "random_norm", "resample", "mean", "skip"];

const READING: &str = "Change of accuracy when all latents of a problem are replaced (paired, all problems). \
    resample: latents of other problems, as likely as its own and different in content only; it decides the verdict. \
    `yes`: fewer right answers (exact test, Holm-corrected over the run's interventions). `no`: the whole interval \
    is within 0.05 of no change. `for the worse`: more right answers with other latents. `nothing to lose`: on the \
    changed problems the unchanged model is no better than a guess. `undecided`: none of these. `changed`: answers \
    that differ under resample, right or wrong. Skip: no latents. Known value: answers that arithmetic predicts from \
    a donor's value, beyond chance.";

/// The table, if the folder has interventions of at least two checkpoints.
fn table(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    let resampled = |checkpoint: &&str| intervention_row(folder, checkpoint, "resample").is_some();
    let checkpoints: Vec<&str> = folder.checkpoints_with::<InterventionRow>().into_iter().filter(resampled).collect();
    if checkpoints.len() < 2 {
        return Ok(None);
    }
    let mut table = Table::new(exhibit.label, "Does the answer depend on the content of the latents?", headings());
    table.note = READING.to_owned();
    for checkpoint in checkpoints {
        table.push(cells(folder, checkpoint))?;
    }
    Ok(Some(table))
}

fn headings() -> impl Iterator<Item = (&'static str, ColumnKind)> {
    use ColumnKind::{Measured, Text};
    let modes = MODES.map(|mode| (mode, Measured(3)));
    let columns = [("checkpoint", Text), ("latents", Text), ("content matters", Text), ("accuracy", Measured(3))];
    columns.into_iter().chain(modes).chain([("changed", Measured(3)), ("known value", Measured(3))])
}

fn cells(folder: &Folder, checkpoint: &str) -> Vec<Cell> {
    let source = folder.phases().iter().find(|row| row.phase == checkpoint).map(|row| row.source.clone());
    let of = |mode: &str| intervention_row(folder, checkpoint, mode);
    let mut cells = vec![
        Cell::Text(checkpoint.to_owned()),
        source.map_or_else(Cell::nothing, |source| Cell::Text(source.replace('_', " "))),
        of("resample").map_or_else(Cell::nothing, |row| Cell::Text(verdict(row).to_owned())),
        Cell::measured(of(NORMAL).map(|row| row.accuracy)),
    ];
    cells.extend(MODES.map(|mode| Cell::measured(of(mode).map(|row| row.accuracy_change))));
    cells.push(Cell::measured(of("resample").map(|row| row.answer_changed)));
    let known = KnownValueRow::main(folder.rows(checkpoint));
    cells.push(Cell::measured(known.map(|row| row.above_chance)));
    cells
}

/// `yes`, `for the worse`, `nothing to lose`, `no` or `undecided`, from the rows under `resample`.
fn verdict(resample: &InterventionRow) -> &'static str {
    let Estimate { low, high, .. } = resample.accuracy_change;
    if resample.lowers() {
        "yes"
    } else if resample.raises() {
        "for the worse"
    } else if resample.verdict() == AT_CHANCE {
        "nothing to lose"
    } else if -MARGIN < low && high < MARGIN && resample.p_holm > 1.0 - LEVEL {
        "no"
    } else {
        "undecided"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets only the fields that the verdict reads.
    fn resampled(change: [f64; 3], p_holm: f64, n: usize) -> InterventionRow {
        let [low, value, high] = change;
        let row = serde_json::json!({
            "checkpoint": "x", "dataset": "x", "n": n, "seed": 0, "mode": "resample", "dose": null, "steps": "all",
            "later": "recompute", "at": "both", "blocks": "own", "draws": 1,
            "accuracy": {"value": 0.5, "low": 0.4, "high": 0.6, "n": n},
            "accuracy_change": {"value": value, "low": low, "high": high, "n": n},
            "answer_changed": {"value": 0.5, "low": 0.4, "high": 0.6, "n": n},
            "diagnostic_accuracy": null, "wrong_to_right": null, "lost": 0, "gained": 0, "p_value": p_holm,
            "p_holm": p_holm, "logit_diff": null, "logit_diff_change": null, "firings": 1, "mean_change": 1.0
        });
        serde_json::from_value(row).expect("a row")
    }

    #[test]
    fn the_verdict_says_no_more_than_the_interval() {
        for (change, p, n, said) in [
            ([-0.4, -0.3, -0.2], 1e-9, 500, "yes"),
            ([-0.03, -0.01, 0.02], 0.4, 500, "no"),
            ([-0.06, -0.02, 0.02], 0.2, 500, "undecided"),
            // An improvement means misleading content, not an absence of change.
            ([0.01, 0.02, 0.03], 0.001, 500, "for the worse"),
            // Too few problems for any verdict of an effect.
            ([-0.9, -0.8, -0.7], 1e-3, 4, "undecided"),
        ] {
            assert_eq!(verdict(&resampled(change, p, n)), said, "{change:?}, p {p}, n {n}");
        }
    }
}
