//! Mean states of each value, and the direction from one to another. Knows blocks and what they hold.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::trials::Cell;
use crate::latent::{Sequence, Trace};
use crate::model::HookPoint;
use crate::stats::MeanVector;
use crate::study::Study;
use crate::study::block_values::BlockValue;
use crate::study::staging::capture::at_latents;

/// The mean state of each value at each point and latent step.
pub struct Directions {
    means: BTreeMap<(HookPoint, usize, i64), Vec<f64>>,
    /// Values that have a mean at some cell.
    pub values: BTreeSet<i64>,
}

impl Directions {
    /// From blocks of a normal run; a mean rests on `least` blocks or more.
    pub fn of(study: &Study, traces: &[Trace], blocks: &[BlockValue], cells: &[Cell], least: usize) -> Result<Self> {
        let points: Vec<HookPoint> = cells.iter().map(Cell::point).collect::<BTreeSet<_>>().into_iter().collect();
        let steps: BTreeSet<usize> = cells.iter().map(|c| c.step).collect();
        let problems: BTreeSet<usize> = blocks.iter().map(|h| h.problem).collect();
        let rows = traces.iter().filter(|t| problems.contains(&t.problem)).map(|t| t.sequence(&study.corpus.switch));
        let rows: Vec<Sequence> = rows.collect::<Result<_>>()?;
        let (what, states) = at_latents(study, &rows, &points, |problem, block, step| {
            let held = blocks.iter().find(|h| (h.problem, h.block) == (problem, block) && steps.contains(&step))?;
            Some((step, held.value))
        })?;
        let mut sums: BTreeMap<(HookPoint, usize, i64), MeanVector> = BTreeMap::new();
        for (point, states) in points.iter().zip(&states) {
            for (&(step, value), state) in what.iter().zip(states.rows()) {
                sums.entry((*point, step, value)).or_default().add(state.iter());
            }
        }
        sums.retain(|_, sum| sum.n >= least);
        let values = sums.keys().map(|(_, _, value)| *value).collect();
        Ok(Self { means: sums.into_iter().map(|(at, sum)| (at, sum.mean().collect())).collect(), values })
    }

    /// From one value's mean to another's; `None` where one of them is not known.
    pub fn between(&self, cell: &Cell, from: i64, to: i64) -> Option<Vec<f64>> {
        let mean = |value| self.means.get(&(cell.point(), cell.step, value));
        Some(mean(to)?.iter().zip(mean(from)?).map(|(to, from)| to - from).collect())
    }
}
