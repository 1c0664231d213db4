//! What a later phase changed: the same teacher-forced positions on two checkpoints of one run.
//!
//! Both read the same staged solutions (same annotator, same threshold), so every position is its own control: differences are second −
//! first, intervals resample problems. The paper compares the two columns of tab:tf by eye.

use anyhow::{Context, Result, ensure};

use super::About;
pub use super::NoSettings as Config;
use super::markdown::table_of;
use crate::schema::PhaseChangeRow;
use crate::stats::Bootstrap;
use crate::study::Study;
use crate::study::staging::{Reading, classes, places};

pub const ABOUT: About =
    About::asking("what a later phase of a run changed at the same positions (needs two phases)").of_grpo_start();

/// One row per class of positions.
pub fn rows(first: &Study, second: &Study) -> Result<Vec<PhaseChangeRow>> {
    let (staged, a, b) = (second.staged()?, &first.name, &second.name);
    let same = first.staged()?.sequences == staged.sequences;
    ensure!(same, "{a} and {b} have different sequences: their problems, tags or tokens differ");
    let (before, after) = (first.readings()?, second.readings()?);
    let all = places(staged, second.seed);
    let mut rows = vec![];
    for (event, positions, problems) in classes(&all) {
        let change = |value: fn(&Reading) -> f64| {
            let (before, after) = (staged.at(before, &positions, value), staged.at(after, &positions, value));
            let paired = Bootstrap::seeded(second.seed).clustered_paired(&before, &after, &problems);
            paired.with_context(|| format!("{event:?}"))
        };
        rows.push(PhaseChangeRow {
            identity: second.identity(staged.sequences.len()),
            against: first.name.clone(),
            event,
            positions: positions.len(),
            d_p_swi: change(|r| r.p_swi)?,
            d_entropy: change(|r| r.entropy)?,
            d_margin: change(|r| r.margin)?,
            d_rank: change(|r| r.rank)?,
        });
    }
    Ok(rows)
}

pub fn table(rows: &[PhaseChangeRow]) -> String {
    table_of("event | positions | Δ p(swi) | Δ H (nats) | Δ margin | Δ rank | p(swi)", rows, |r| {
        let (PhaseChangeRow { event, positions, d_p_swi, d_entropy, d_margin, d_rank, .. }, verdict) = (r, r.verdict());
        format!("{event:?} | {positions} | {d_p_swi:.4} | {d_entropy:.3} | {d_margin:.2} | {d_rank:.2} | {verdict}")
    })
}
