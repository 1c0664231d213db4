//! Tables directly from records: those that pass a filter, with some columns; and records of unknown kinds, with all columns.

use anyhow::Result;

use super::Exhibit;
use crate::report::folder::Folder;
use crate::report::generic::{Of, table};
use crate::report::tables::Table;
use switchyard::schema::{
    AttributionRow, CalibrationRow, HeadPatchRow, JacobianLensRow, KnownValueRow, PartSwapRow, PassRow, PatternRow,
    PhaseChangeRow, PositionRow, RowFile, SwitchProblemRow, TeacherForcedRow, TokenLensRow,
};

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:known-value",
        &[KnownValueRow::NAME],
        "Known-value patching: does the answer follow the arithmetic?",
        KnownValueRow: steps, later, at, holds, draws, hit_rate, chance, above_chance, kept, firings,
    ),
    rows_table!(
        "tab:known-value-steps",
        &[KnownValueRow::STEPS],
        "Known-value patching at some of the latent steps",
        KnownValueRow: steps, later, at, holds, draws, hit_rate, chance, above_chance, kept, firings,
    ),
    rows_table!(
        "tab:phases",
        &[PhaseChangeRow::NAME],
        "What Switch-GRPO changes at the same positions (paired, second minus first)",
        PhaseChangeRow: event, positions, d_p_swi, d_entropy, d_margin, d_rank,
    ),
    rows_table!(
        "tab:pass-at-k",
        &[PassRow::NAME],
        "How many problems are solved by one of k samples?",
        PassRow: k, samples, pass_at_k, majority, distinct, switch_rate,
    ),
    rows_table!(
        "tab:part-swap",
        &[PartSwapRow::NAME],
        "Which weights carry the change of a later phase? Each part swapped into the other phase",
        PartSwapRow: part, host, weight_change, accuracy, guess, accuracy_change, switch_rate, switch_change, p_holm,
    ),
    rows_table!(
        "tab:jacobian-lens",
        &[JacobianLensRow::NAME],
        "Does a latent of the last block already give the answer? Jacobian through the recurrence, logit lens, null",
        JacobianLensRow: lens, step, layer, says_answer, logprob, split_error,
    ),
    rows_table!(
        "tab:calibration",
        &[CalibrationRow::NAME],
        "Tests on hand-built models, at the experiment's default n: right verdicts, power and false alarms",
        |row: &CalibrationRow| row.kind == CalibrationRow::ALL && row.default_n,
        columns!(CalibrationRow: test, problems, right, power, false_alarms, n_for_80, blind),
    ),
    rows_table!(
        "tab:calibration-power",
        &[CalibrationRow::NAME],
        "The same tests by n (problems, or pairs of them)",
        |row: &CalibrationRow| row.kind == CalibrationRow::ALL,
        columns!(CalibrationRow: test, problems, power, false_alarms),
    ),
    rows_table!(
        "tab:calibration-truths",
        &[CalibrationRow::NAME],
        "The same tests by kind of model (`probe calibrate --list`), at the default n",
        |row: &CalibrationRow| row.kind != CalibrationRow::ALL && row.default_n,
        columns!(CalibrationRow: kind, test, problems, right, power, false_alarms),
    ),
];

/// Records that the page shows token by token or head by head; too many for a table.
const ON_THE_PAGE: &[&str] = &[
    PositionRow::NAME,
    SwitchProblemRow::NAME,
    PatternRow::NAME,
    TokenLensRow::NAME,
    HeadPatchRow::NAME,
    AttributionRow::NAME,
];

impl Exhibit {
    /// A table of the records that pass the filter, with these columns. A later source is used only for checkpoints that earlier ones lack.
    pub(super) fn of_rows<R: RowFile>(
        &self,
        folder: &Folder,
        title: &str,
        keep: fn(&R) -> bool,
        columns: &[&str],
    ) -> Result<Option<Table>> {
        let mut of: Vec<Of<'_>> = vec![];
        for &file in self.sources {
            for checkpoint in folder.checkpoints(file) {
                let rows = folder.rows_in::<R>(file, checkpoint).iter().zip(folder.flat(file, checkpoint));
                let kept: Vec<_> = rows.filter(|(row, _)| keep(row)).map(|(_, flat)| flat).collect();
                if !kept.is_empty() && !of.iter().any(|(c, _)| c == checkpoint) {
                    of.push((checkpoint.to_owned(), kept));
                }
            }
        }
        table(self.label, title, R::NAME, &of, columns)
    }
}

/// Records of unknown kinds.
pub(super) fn unknown_tables(folder: &Folder) -> Result<Vec<Table>> {
    let mut others: Vec<&str> = folder.files().map(|(experiment, _, _)| experiment).collect();
    others.dedup();
    // With the paper shown, they are in its table.
    let beside = |rows: &str| rows == TeacherForcedRow::NAME && folder.beside_paper();
    let mut tables = vec![];
    let covered = |rows: &str| super::all().any(|exhibit| exhibit.covers && exhibit.sources.contains(&rows));
    for experiment in others.into_iter().filter(|e| !(ON_THE_PAGE.contains(e) || covered(e) || beside(e))) {
        let checkpoints = folder.checkpoints(experiment).into_iter();
        let of: Vec<Of<'_>> = checkpoints
            .map(|c| (c.to_owned(), folder.flat(experiment, c).iter().collect::<Vec<_>>()))
            .filter(|(_, rows)| !rows.is_empty())
            .collect();
        let label = format!("tab:{}", experiment.replace('_', "-"));
        tables.extend(table(&label, &experiment.replace('_', " "), experiment, &of, &[])?);
    }
    Ok(tables)
}
