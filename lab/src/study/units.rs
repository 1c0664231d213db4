//! Units of work (pairs of problems, problems that are steered) that give rows, measured once each: what a run that was stopped has
//! measured is not measured again, and of several processes each measures its own. Knows rows; not what they say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};

use super::Study;
use crate::schema::{Identity, Measurement, Unit};
use crate::store::Measurements;

/// The rows that `measure` adds, in the order of their keys; nothing is written.
///
/// # Errors
/// As [`Measurements::sorted`], and those of `measure`.
pub(crate) fn in_memory<R: Measurement>(measure: impl FnOnce(&mut Measurements<R>) -> Result<()>) -> Result<Vec<R>> {
    let mut rows = Measurements::in_memory();
    measure(&mut rows)?;
    rows.sorted(R::key)
}

impl Study {
    /// Refuses rows of a form that another run left.
    ///
    /// # Errors
    /// The first such row, by whose it is.
    pub(crate) fn goes_on<R: Measurement>(&self, rows: &[R], form: &Unit, identity: &Identity) -> Result<()> {
        let other = rows.iter().find(|row| row.unit().0 == form.0 && row.identity() != identity);
        ensure!(
            other.is_none(),
            "the rows of the run that was stopped are of {:?}, this run is of {identity:?}; start over without --resume",
            other.map(Measurement::identity)
        );
        Ok(())
    }

    /// Measures this process' own of `units`, so far as `rows` lacks them. `at_once` of them, always the same ones, are handed to
    /// `work` together, so that every number is the same however the work was divided; `expected` says what a unit is, and how many
    /// rows it gives. Rows are on disk as soon as `work` returns them.
    ///
    /// # Errors
    /// Rows of another run, those of `work`, and a stop by the user.
    pub(crate) fn measure<R: Measurement, U: Sync>(
        &self,
        rows: &mut Measurements<R>,
        identity: &Identity,
        (units, at_once): (&[U], usize),
        expected: impl Fn(&U) -> (Unit, usize),
        work: impl Fn(&[U]) -> Result<Vec<R>> + Sync,
    ) -> Result<()> {
        if let Some(first) = units.first() {
            self.goes_on(rows.rows(), &expected(first).0, identity)?;
        }
        let known: BTreeSet<R::Key> = rows.rows().iter().map(Measurement::key).collect();
        let mut there: BTreeMap<Unit, usize> = BTreeMap::new();
        rows.rows().iter().for_each(|row| *there.entry(row.unit()).or_default() += 1);
        let lacks = |unit: &U| {
            let (unit, rows) = expected(unit);
            there.get(&unit).copied().unwrap_or_default() < rows
        };
        let is_missing = |(number, group): &(usize, &[U])| self.has(*number) && group.iter().any(lacks);
        let groups = units.chunks(at_once.max(1)).enumerate().filter(is_missing);
        let missing: Vec<&[U]> = groups.map(|(_, group)| group).collect();
        let rows = Mutex::new(rows);
        self.each("units", &missing, |group| {
            let new = work(group)?.into_iter().filter(|row| !known.contains(&row.key())).collect();
            rows.lock().unwrap_or_else(PoisonError::into_inner).push(new)
        })?;
        Ok(())
    }
}
