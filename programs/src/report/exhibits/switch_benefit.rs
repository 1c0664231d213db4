//! The benefit of a block: every problem with a block and without; also as cells (`ours:benefit/chosen/benefit`).

use super::Exhibit;
use switchyard::schema::{RowFile, SwitchBenefitRow};

const SOURCES: &[&str] = &[SwitchBenefitRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:switch-benefit",
        SOURCES,
        "Every problem with a block and without: benefit of switching, independent of the model's choice",
        SwitchBenefitRow: group, with_block, without_block, guess, benefit, better, worse, p_value, p_holm,
    ),
    Exhibit {
        cell: |cells, row, _| {
            let rows = cells.folder.rows::<SwitchBenefitRow>(&cells.folder.grpo);
            rows.iter().find(|r| r.group == row).map(|r| r.benefit)
        },
        ..Exhibit::new("ours:benefit", SOURCES)
    },
];
