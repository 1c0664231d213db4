//! The rows of an intervention experiment for a terminal.

use crate::experiments::markdown::heads;
use crate::schema::{NORMAL, Summary, never};
use crate::stats::by_problem::cell;

/// Markdown, one row a mode.
pub fn table(Summary { rows, known }: &Summary) -> String {
    let mut out = heads(
        "mode | where | later, at | draws | accuracy [95 %] | change | answer changed | diagnostic accuracy | \
         lost / gained | p (Holm) | verdict | lead of gold (nats) | firings | mean ‖Δ‖",
    );
    for r in rows {
        let dose = r.dose.map(|d| format!(":{d}")).unwrap_or_default();
        out += &format!(
            "| {}{dose} | {} | {}, {} | {} | {:.3} | {:.3} | {:.3} | {} | {} / {} | {:.1e} | {} | {} | {} | {:.2} |\n",
            r.mode,
            r.acts_at(),
            r.later,
            r.at,
            r.draws,
            r.accuracy,
            r.accuracy_change,
            r.answer_changed,
            cell(r.diagnostic_accuracy, 3),
            r.lost,
            r.gained,
            r.p_holm,
            r.verdict(),
            cell(r.logit_diff, 2),
            r.firings,
            r.mean_change
        );
    }
    for r in known {
        out += &format!(
            "\nknown_value ({}, {}, {}; if blocks hold the {}): the answer became the predicted one in {:.3}; chance {:.3}; above \
             it {:.3}; it stayed in {:.3}: it {} that\n",
            r.steps,
            r.later,
            r.at,
            r.holds,
            r.hit_rate,
            r.chance,
            r.above_chance,
            r.kept,
            if r.follows() {
                "follows"
            } else if r.avoids() {
                "becomes, less often than by chance,"
            } else {
                "is not seen to follow"
            }
        );
    }
    let n = rows.iter().filter(|r| r.mode != NORMAL).map(|r| r.identity.n).min();
    out + &n.and_then(never).unwrap_or_default()
}
