//! Accuracy by group, under forced and suppressed switching, and by K_min; also as cells (`ours:sweep/k_min:0/blocks`).

use super::Exhibit;
use switchyard::schema::{AccuracyRow, RowFile};

const SOURCES: &[&str] = &[AccuracyRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:switching",
        SOURCES,
        "Accuracy by group, under forced and suppressed switching, and by K_min",
        AccuracyRow:
            group, accuracy, latent_accuracy, switch_rate, blocks, latent_calls, visible_tokens, truncated,
            difference, p_holm,
    ),
    Exhibit {
        cell: |cells, row, column| {
            let row = cells.folder.rows::<AccuracyRow>(cells.sft).iter().find(|r| r.group == row)?;
            if column == "blocks" { row.blocks } else { row.latent_calls }
        },
        ..Exhibit::new("ours:sweep", SOURCES)
    },
];
