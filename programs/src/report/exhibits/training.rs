//! Held-out accuracy after each phase of training, and the losses of the supervised ones.

use super::Exhibit;
use crate::report::curves::{curve, is_supervised};
use switchyard::schema::{METRICS, PhaseRow, RowFile, StepRow};
use switchyard::store::FlatRow;

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:training",
        &[PhaseRow::NAME],
        "Held-out accuracy after each phase of training",
        PhaseRow:
            phase, source, accuracy, latent_accuracy, text_only_accuracy, switch_rate, visible_tokens, latent_calls,
            forward_passes, train_steps, train_positions, truncated,
    ),
    Exhibit {
        covers: true,
        draw: |exhibit, _, folder| {
            let all = folder.checkpoints(METRICS).into_iter().map(|phase| (phase, folder.flat(METRICS, phase)));
            let phases: Vec<(&str, &[FlatRow])> = all.filter(|(_, rows)| is_supervised(rows)).collect();
            let [loss, accuracy] = columns!(StepRow: loss, token_accuracy);
            // More than four lines cannot be distinguished. A row has the loss and the accuracy of the same phases.
            let panels = phases.chunks(4).flat_map(|group| {
                let loss = curve("Training loss", "loss (nats)", group, loss, true);
                [loss, curve("Training accuracy", "token accuracy", group, accuracy, false)]
            });
            let note = "Rolling means of 20 steps (80 of a phase of 1,000 or more) with ± 1.96 standard errors. Methods have different \
                        targets, so a loss is comparable within its own line only.";
            exhibit.drawing("Supervised training (ours)", 2, panels.flatten().collect(), note)
        },
        ..Exhibit::new("fig:training", &[METRICS])
    },
];
