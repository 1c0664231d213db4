//! Records the observations of a run as they arrive. Each is written once, also across a stop and a resume.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};

use super::block_values::{Plan, by_chance};
use crate::interventions::Firings;
use crate::machine::Compute;
use crate::schema::{Identity, Measurement, Observation};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::sweep::{Sweep, SweepOutcome};

/// (cell, draw, problem).
pub type Key = (usize, usize, usize);

/// Outcome of a problem, whether it was decoded again, and what was replaced.
type Seen<'o> = (Key, &'o SweepOutcome, bool, Firings);

/// Digits of the weights' hash in an observation.
const DIGITS: usize = 16;

/// One cell: the fields that its observations share, and its number of draws.
pub(crate) struct RecordTemplate {
    pub says: Observation,
    pub draws: usize,
}

/// An observation with only the fields that a whole run shares.
pub(crate) fn blank(study: &Study, sweep: &Sweep, weights: &str) -> Observation {
    Observation {
        identity: study.identity(sweep.normal.len()),
        weights: weights.chars().take(DIGITS).collect(),
        dtype: Compute::new(&study.model).name().to_owned(),
        blocks: sweep.blocks,
        guess: Some(study.corpus.guess()),
        ..Observation::default()
    }
}

/// Destination of observations. Threads may share it.
pub(crate) struct StudyRecord<'a> {
    cells: Vec<RecordTemplate>,
    plans: &'a [Plan],
    /// Problems that this process observes.
    problems: usize,
    written: Mutex<(&'a mut Measurements<Observation>, BTreeSet<Key>)>,
}

impl<'a> StudyRecord<'a> {
    /// Continues after the records in `rows`.
    pub fn new(
        cells: Vec<RecordTemplate>,
        problems: usize,
        plans: &'a [Plan],
        rows: &'a mut Measurements<Observation>,
    ) -> Result<Self> {
        let record = Self { cells, plans, problems, written: Mutex::new((rows, BTreeSet::new())) };
        let mut written = record.lock();
        let (rows, keys) = &mut *written;
        for there in rows.rows() {
            let checkpoint = &there.identity.checkpoint;
            if let Some(difference) = record.differs(there) {
                anyhow::bail!(
                    "{checkpoint}: the stopped run's observations are of {difference}; resume with its settings, or start over without \
                    --resume"
                );
            }
            ensure!(keys.insert(there.key()), "{checkpoint}: the same observation occurs twice: {there:?}");
        }
        drop(written);
        Ok(record)
    }

    fn lock(&self) -> MutexGuard<'_, (&'a mut Measurements<Observation>, BTreeSet<Key>)> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first difference between an observation and this run: `seed 3, this run has seed 0`.
    fn differs(&self, there: &Observation) -> Option<String> {
        let Some(cell) = self.cells.get(there.cell).filter(|cell| there.draw < cell.draws) else {
            return Some(format!("draw {} of `{}`, which this run does not have", there.draw, there.mode));
        };
        let ours = &cell.says;
        let parts = |o: &Observation| {
            let Identity { checkpoint, dataset, n, seed } = &o.identity;
            [
                ("checkpoint", checkpoint.clone()),
                ("weights", o.weights.clone()),
                ("dtype", o.dtype.clone()),
                ("dataset", dataset.clone()),
                ("problems", n.to_string()),
                ("seed", seed.to_string()),
                ("mode", o.mode.clone()),
                ("dose", format!("{:?}", o.dose)),
                ("steps", o.steps.to_string()),
                ("later", o.later.to_string()),
                ("at", o.at.to_string()),
                ("blocks", format!("{:?}", o.blocks)),
                ("hook", format!("{:?}", o.hook)),
                ("heads", format!("{:?}", o.heads)),
                ("place", format!("{:?}", o.place)),
            ]
        };
        let mut pairs = parts(there).into_iter().zip(parts(ours));
        let ((name, theirs), (_, ours)) = pairs.find(|(a, b)| a != b)?;
        Some(format!("{name} {theirs}, this run has {name} {ours}"))
    }

    pub fn holds(&self, key: Key) -> bool {
        self.lock().1.contains(&key)
    }

    /// Whether a cell is complete: every problem of every draw.
    pub(crate) fn holds_all(&self, cell: usize) -> bool {
        let there = self.lock().1.range((cell, 0, 0)..(cell + 1, 0, 0)).count();
        there == self.cells[cell].draws * self.problems
    }

    /// Writes new observations; they are on disk when this returns.
    pub fn add<'o>(&self, seen: impl Iterator<Item = Seen<'o>>) -> Result<()> {
        let mut written = self.lock();
        let (rows, keys) = &mut *written;
        rows.push(seen.filter(|seen| keys.insert(seen.0)).map(|seen| self.observation(seen)).collect())
    }

    fn observation(&self, ((cell, draw, problem), outcome, forked, firings): Seen) -> Observation {
        let about = self.cells[cell].says.clone();
        let known = about.mode == crate::schema::KnownValueRow::MODE;
        let exchange = self.plans.get(draw).and_then(|plan| plan.get(&problem)).filter(|_| known);
        let by_operand = exchange.and_then(|e| e.by_operand.as_ref());
        let SweepOutcome { correct, answer, margin, switched, latent_calls, identical } = outcome.clone();
        Observation {
            cell,
            draw,
            problem,
            correct,
            margin,
            switched,
            latent_calls,
            identical,
            forked,
            firings: firings.count,
            moved: firings.moved,
            predicted: exchange.map(|e| e.by_value.answer.clone()),
            chance: exchange.map(|e| by_chance(&e.by_value.drawable, answer.as_ref())),
            operand_predicted: by_operand.map(|p| p.answer.clone()),
            operand_chance: by_operand.map(|p| by_chance(&p.drawable, answer.as_ref())),
            answer,
            ..about
        }
    }
}
