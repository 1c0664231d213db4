//! The window around an annotated `<swi>` (tab:swi-window, fig:swi-window): is the switch a spike or a region?
//!
//! Offset 0 is the position whose next token is `<swi>`, offset 1 that of `<swi>` itself. The sequences are the staged solutions, so
//! positive offsets run through the latents and out of the block. Inside a block p(`<swi>`) is of the full softmax; the decoder cannot
//! draw it there. Positions of the prompt (except its last) are not counted, nor is a neighbour that is itself an annotated boundary: its
//! spike belongs to its own window.

use anyhow::{Context, Result};

use super::markdown::table_of;
use super::{About, check_of};
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::Count;
use crate::schema::WindowRow;
use crate::stats::Estimate;
use crate::stats::by_problem::mean;
use crate::study::Study;
use crate::study::staging::Reading;

pub const ABOUT: About =
    About::asking("whether <swi> is a spike or a region (tab:swi-window)").of_grpo_start().of_switching();

settings! {
    pub struct Config {
        /// Offsets −radius..=radius; the paper's 8.
        pub radius: usize = 8 => Count(1, MOST_ROWS),
    }
}

/// One row per offset that at least two problems have.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<WindowRow>> {
    check_of("switch_window", config, Config::RANGES)?;
    let (staged, readings) = (study.staged()?, study.readings()?);
    let radius = config.radius as i64;
    let mut rows = vec![];
    for offset in -radius..=radius {
        // Problem, whether the position is in a block, and its reading.
        let mut seen: Vec<(usize, bool, &Reading)> = vec![];
        for (problem, solution) in staged.solutions.iter().enumerate() {
            let reached = solution.boundaries.iter().map(|&b| b as i64 + offset);
            for position in reached.filter_map(|p| usize::try_from(p).ok()) {
                let within = position + 1 >= solution.prompt && position < staged.sequences[problem].ids.len();
                if !within || (offset != 0 && solution.boundaries.contains(&position)) {
                    continue;
                }
                let reading = staged.reading(readings, problem, position);
                seen.push((problem, solution.in_block(position), reading));
            }
        }
        let over = |value: fn(&Reading) -> f64| {
            mean(study.seed, seen.iter().map(|s| (s.0, value(s.2)))).with_context(|| format!("offset {offset}"))
        };
        let (Some(p_swi), Some(entropy)) = (over(|r| r.p_swi)?, over(|r| r.entropy)?) else { continue };
        rows.push(WindowRow {
            identity: study.identity(staged.sequences.len()),
            offset,
            positions: seen.len(),
            in_block: seen.iter().filter(|s| s.1).count(),
            p_swi,
            entropy,
        });
    }
    Ok(rows)
}

pub fn table(rows: &[WindowRow]) -> String {
    let tag = rows.iter().find(|r| r.offset == 0);
    table_of("offset | positions | in a block | p(swi) | H (nats) | below offset 0", rows, |r| {
        let WindowRow { offset, positions, in_block, entropy, .. } = r;
        let below = if tag.is_some_and(|tag| tag.is_sharper(r)) { "yes" } else { "—" };
        let Estimate { value, low, high, n } = r.p_swi;
        let p_swi = format!("{value:.2e} [{low:.2e}, {high:.2e}] n={n}");
        format!("{offset:+} | {positions} | {in_block} | {p_swi} | {entropy:.3} | {below}")
    })
}
