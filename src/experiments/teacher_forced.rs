//! Teacher-forced switch statistics (tab:tf): how sharply does the model place `<swi>`?
//!
//! Held-out solutions are tagged and fed as in the last stage of the curriculum ([`crate::study::staging`]). At each position the
//! next-token distribution gives H, p(`<swi>`), the rank of `<swi>` and its log-margin to the best other token. The paper compares
//! annotated with random positions; a model that had only learned "after this token" would pass, so the classes here include positions
//! after the same token.

use anyhow::{Context, Result};

use super::About;
pub use super::NoSettings as Config;
use super::markdown::table_of;
use crate::schema::TeacherForcedRow;
use crate::stats::{Bootstrap, Estimate};
use crate::study::Study;
use crate::study::staging::{Reading, classes, places};

pub const ABOUT: About =
    About::asking("how sharply the model places <swi> (tab:tf)").of_grpo_start().of_switching().at_first();

/// One row per class of positions. A class with positions in fewer than two problems has no interval and no row.
pub fn rows(study: &Study, _config: &Config) -> Result<Vec<TeacherForcedRow>> {
    let (staged, readings) = (study.staged()?, study.readings()?);
    let all = places(staged, study.seed);
    let mut rows = vec![];
    for (event, of, problems) in classes(&all) {
        let mean = |value: fn(&Reading) -> f64| -> Result<Estimate> {
            let values = staged.at(readings, &of, value);
            Bootstrap::seeded(study.seed).clustered_mean(&values, &problems).with_context(|| format!("{event:?}"))
        };
        rows.push(TeacherForcedRow {
            identity: study.identity(staged.sequences.len()),
            event,
            positions: of.len(),
            entropy: mean(|r| r.entropy)?,
            p_swi: mean(|r| r.p_swi)?,
            rank: mean(|r| r.rank)?,
            margin: mean(|r| r.margin)?,
        });
    }
    Ok(rows)
}

pub fn table(rows: &[TeacherForcedRow]) -> String {
    table_of("event | positions | H (nats) | p(swi) | rank | margin", rows, |r| {
        let TeacherForcedRow { event, positions, entropy, p_swi, rank, margin, .. } = r;
        format!("{event:?} | {positions} | {entropy:.3} | {p_swi:.4} | {rank:.2} | {margin:.2}")
    })
}
