//! The rows of an intervention experiment for a terminal.

use crate::experiments::markdown::table_of;
use crate::schema::{InterventionRow, KnownValueRow, NORMAL, Summary, never};
use crate::stats::by_problem::cell;

/// Markdown, one row a mode.
pub fn table(Summary { rows, known }: &Summary) -> String {
    let columns = "mode | where | later, at | draws | accuracy [95 %] | change | answer changed | diagnostic accuracy | \
                   lost / gained | p (Holm) | verdict | lead of gold (nats) | firings | mean ‖Δ‖";
    let mut out = table_of(columns, rows, |r| {
        let InterventionRow { mode, later, at, draws, accuracy, accuracy_change, answer_changed, .. } = r;
        let InterventionRow { lost, gained, p_holm, firings, mean_change, .. } = r;
        let dose = r.dose.map(|d| format!(":{d}")).unwrap_or_default();
        let (place, verdict) = (r.acts_at(), r.verdict());
        let (diagnostic, lead) = (cell(r.diagnostic_accuracy, 3), cell(r.logit_diff, 2));
        format!(
            "{mode}{dose} | {place} | {later}, {at} | {draws} | {accuracy:.3} | {accuracy_change:.3} | {answer_changed:.3} | \
             {diagnostic} | {lost} / {gained} | {p_holm:.1e} | {verdict} | {lead} | {firings} | {mean_change:.2}"
        )
    });
    for r in known {
        let KnownValueRow { steps, later, at, holds, hit_rate, chance, above_chance, kept, .. } = r;
        let said = match (r.follows(), r.avoids()) {
            (true, _) => "follows",
            (false, true) => "becomes, less often than by chance,",
            (false, false) => "is not seen to follow",
        };
        out += &format!(
            "\nknown_value ({steps}, {later}, {at}; if blocks hold the {holds}): the answer became the predicted one in \
             {hit_rate:.3}; chance {chance:.3}; above it {above_chance:.3}; it stayed in {kept:.3}: it {said} that\n"
        );
    }
    let n = rows.iter().filter(|r| r.mode != NORMAL).map(|r| r.identity.n).min();
    out + &n.and_then(never).unwrap_or_default()
}
