//! Tables of ours that the paper lacks. Knows which rows and columns each shows; an experiment without an entry here is shown
//! with all its columns.

use anyhow::Result;

use super::folder::Folder;
use super::generic::{Of, table};
use super::tables::Table;
use super::{dependence, seeds, versus};
use crate::schema::{
    AccuracyRow, AttentionRow, AttributionRow, CalibrationRow, Component, DirectLogitRow, EdgeRow, HeadPatchRow,
    InterventionRow, KnownValueRow, LensRow, METRICS, NORMAL, Named, OutcomeRow, PatchRow, PatternRow, PhaseChangeRow,
    PhaseRow, PositionRow, ProbeRow, Protocol, Steps, SwitchBenefitRow, SwitchProblemRow, TeacherForcedRow,
    TokenLensRow, columns,
};

/// Rows that are drawn, or shown token by token, and are too many for a table.
const NO_TABLE: &[&str] = &[
    METRICS,
    PositionRow::NAME,
    OutcomeRow::NAME,
    SwitchProblemRow::NAME,
    LensRow::NAME,
    PatternRow::NAME,
    TokenLensRow::NAME,
    PatchRow::NAME,
    DirectLogitRow::NAME,
    AttentionRow::NAME,
    HeadPatchRow::NAME,
    AttributionRow::NAME,
    EdgeRow::NAME,
];

const LADDER: &[&str] = columns!(InterventionRow:
    mode, dose, steps, later, at, draws, accuracy, accuracy_change, answer_changed, diagnostic_accuracy, wrong_to_right,
    logit_diff_change, lost, gained, p_holm, firings, mean_change);

/// The tables so far, and the names of the rows that they show.
struct Tables<'a> {
    folder: &'a Folder,
    tables: Vec<Table>,
    done: Vec<&'static str>,
}

/// Every table of ours that the folder has rows for.
///
/// # Errors
/// None that rows can cause.
pub fn tables(folder: &Folder) -> Result<Vec<Table>> {
    let mut all = Tables { folder, tables: vec![], done: NO_TABLE.to_vec() };
    if folder.beside_paper() {
        // They stand in the table beside the paper's and need no second one.
        all.done.push(TeacherForcedRow::NAME);
    }
    interventions(&mut all)?;
    all.add(
        "tab:switch-benefit",
        "Every problem with a block and without: what switching is worth, free of the model's own choice",
        |_: &SwitchBenefitRow| true,
        columns!(SwitchBenefitRow: group, with_block, without_block, benefit, better, worse, p_value),
    )?;
    all.add(
        "tab:probe-grouped",
        "Probes for the next <swi>, split by problem, with controls (balanced accuracy; last layer = 1)",
        |row: &ProbeRow| row.is_switch() && row.protocol == Protocol::Grouped,
        columns!(ProbeRow: features, layer, from_last, balanced_accuracy, auroc, selectivity, chance),
    )?;
    all.add(
        "tab:probe-values",
        "Probes for the task's intermediate values at each latent step",
        |row: &ProbeRow| row.value().is_some(),
        columns!(ProbeRow: target, protocol, features, layer, from_last, balanced_accuracy, selectivity, chance),
    )?;
    all.add(
        "tab:phases",
        "What Switch-GRPO changes at the same positions (paired, second minus first)",
        |_: &PhaseChangeRow| true,
        columns!(PhaseChangeRow: event, positions, d_p_swi, d_entropy, d_margin, d_rank),
    )?;
    all.add(
        "tab:switching",
        "Accuracy by group, under forced and suppressed switching, and by K_min",
        |_: &AccuracyRow| true,
        columns!(AccuracyRow:
            group, accuracy, latent_accuracy, switch_rate, blocks, latent_calls, visible_tokens, truncated, difference,
            p_holm),
    )?;
    all.add(
        "tab:training",
        "Held-out accuracy after each phase of training",
        |_: &PhaseRow| true,
        columns!(PhaseRow:
            phase, source, accuracy, latent_accuracy, text_only_accuracy, switch_rate, visible_tokens, latent_calls,
            forward_passes, train_steps, train_positions, truncated),
    )?;
    all.tables.extend(versus::table(folder)?);
    all.tables.extend(seeds::table(folder)?);
    all.tables.extend(dependence::table(folder)?);
    calibration(&mut all)?;
    all.add_from(
        &[HeadPatchRow::PAIRS],
        "tab:pair-patching",
        "Pairs of one's own: heads and MLPs whose output carries the answer (Holm), by position",
        |row: &HeadPatchRow| row.matters() && row.component != Component::Resid,
        columns!(HeadPatchRow: form, mode, component, layer, head, place, effect, p_holm),
    )?;
    all.others()?;
    Ok(all.tables)
}

/// How often verdicts are right on models whose truth is known.
fn calibration(all: &mut Tables<'_>) -> Result<()> {
    all.add(
        "tab:calibration",
        "Tests on hand-built models, at the n that the experiment has by default: how often the verdict is right, how often \
         what is there is found (power), and what is not (false alarms)",
        |row: &CalibrationRow| row.kind == CalibrationRow::ALL && row.default_n,
        columns!(CalibrationRow: test, problems, right, power, false_alarms, n_for_80, blind),
    )?;
    all.add(
        "tab:calibration-power",
        "The same tests by n (problems, or pairs of them)",
        |row: &CalibrationRow| row.kind == CalibrationRow::ALL,
        columns!(CalibrationRow: test, problems, power, false_alarms),
    )?;
    all.add(
        "tab:calibration-truths",
        "The same tests by kind of truth (`probe calibrate --list`), at the default n",
        |row: &CalibrationRow| row.kind != CalibrationRow::ALL && row.default_n,
        columns!(CalibrationRow: kind, test, problems, right, power, false_alarms),
    )
}

fn interventions(all: &mut Tables<'_>) -> Result<()> {
    all.add(
        "tab:intervention-ladder",
        "Ladder of interventions on the latent inputs, all steps",
        InterventionRow::is_plain,
        LADDER,
    )?;
    // Rows of single steps lie in a file of their own where a run named no `all`.
    all.add_from(
        &[InterventionRow::NAME, InterventionRow::STEPS],
        "tab:intervention-steps",
        "Interventions at one latent step at a time",
        |row: &InterventionRow| ![NORMAL, "self_patch"].contains(&row.mode.as_str()) && row.steps != Steps::All,
        LADDER,
    )?;
    all.add(
        "tab:intervention-dose",
        "Dose and response: how far, in norm or angle, the latent input is moved",
        |row: &InterventionRow| !row.is_plain() && row.dose.is_some(),
        LADDER,
    )?;
    all.add(
        "tab:intervention-where",
        "Interventions by where they act: embedding or cache, later latents frozen or recomputed",
        |row: &InterventionRow| !row.is_plain() && row.steps == Steps::All && row.dose.is_none(),
        LADDER,
    )?;
    all.add_from(
        &[KnownValueRow::NAME, KnownValueRow::STEPS],
        "tab:known-value",
        "Known-value patching: does the answer follow the arithmetic?",
        |_: &KnownValueRow| true,
        columns!(KnownValueRow: steps, later, at, holds, draws, hit_rate, chance, above_chance, kept, firings),
    )
}

impl<'a> Tables<'a> {
    /// A table of the rows that are kept, with these columns.
    fn add<R: Named>(&mut self, label: &str, title: &str, keep: fn(&R) -> bool, columns: &[&str]) -> Result<()> {
        self.add_from(&[R::NAME], label, title, keep, columns)
    }

    /// The same from several files; a later one counts for checkpoints that the earlier have nothing of.
    fn add_from<R: Named>(
        &mut self,
        files: &[&'static str],
        label: &str,
        title: &str,
        keep: fn(&R) -> bool,
        columns: &[&str],
    ) -> Result<()> {
        self.done.extend(files);
        let mut of: Vec<Of<'_>> = vec![];
        for &file in files {
            for checkpoint in self.folder.checkpoints(file) {
                let rows = self.folder.rows_in::<R>(file, checkpoint).iter().zip(self.folder.flat(file, checkpoint));
                let kept: Vec<_> = rows.filter(|(row, _)| keep(row)).map(|(_, flat)| flat).collect();
                if !kept.is_empty() && !of.iter().any(|(c, _)| c == checkpoint) {
                    of.push((checkpoint.to_owned(), kept));
                }
            }
        }
        self.tables.extend(table(label, title, &of, columns)?);
        Ok(())
    }

    /// Rows that nobody here has heard of, with all their columns.
    fn others(&mut self) -> Result<()> {
        let mut others: Vec<&str> = self.folder.files().map(|(experiment, _, _)| experiment).collect();
        others.dedup();
        for experiment in others.into_iter().filter(|e| !self.done.contains(e)) {
            let checkpoints = self.folder.checkpoints(experiment).into_iter();
            let of: Vec<Of<'_>> = checkpoints
                .map(|c| (c.to_owned(), self.folder.flat(experiment, c).iter().collect::<Vec<_>>()))
                .filter(|(_, rows)| !rows.is_empty())
                .collect();
            let label = format!("tab:{}", experiment.replace('_', "-"));
            self.tables.extend(table(&label, &experiment.replace('_', " "), &of, &[])?);
        }
        Ok(())
    }
}
