//! Units of work (pairs of problems, steered problems) that give records. Each is measured once: a resumed run measures only missing
//! units, and each of several processes measures its own ([`Shard`]). Knows records, not their meaning.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Error, Result, ensure};

use super::Study;
use crate::schema::{Identity, Measurement, ResampledUnit};
use crate::store::Measurements;

/// Written `2/3`: the second of three. Unit u (a decode batch, a pair) goes to shard u mod n + 1. Its numbers have the same bits as
/// in a single process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    /// Number of the shard, from 1.
    pub number: usize,
    pub of: usize,
}

impl Shard {
    pub fn new(number: usize, of: usize) -> Result<Self> {
        ensure!((1..=of).contains(&number), "no shard {number}/{of}: shards count from 1/{of} to {of}/{of}");
        Ok(Self { number, of })
    }

    /// Whether this shard computes unit number `unit`, from 0.
    pub fn has(self, unit: usize) -> bool {
        unit % self.of + 1 == self.number
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || format!("`{text}` is not a shard: write i/n, for example 2/3 for the second of three");
        let (number, of) = text.split_once('/').with_context(wrong)?;
        let parse = |part: &str| part.trim().parse::<usize>().with_context(wrong);
        Self::new(parse(number)?, parse(of)?)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// The records that `measure` adds, sorted by key; nothing is written.
pub(crate) fn measure_in_memory<R: Measurement>(
    measure: impl FnOnce(&mut Measurements<R>) -> Result<()>,
) -> Result<Vec<R>> {
    let mut rows = Measurements::in_memory();
    measure(&mut rows)?;
    rows.sorted(R::key)
}

impl Study {
    /// Checks that the records of a form, left by a stopped run, have this run's identity.
    pub(crate) fn check_identity<R: Measurement>(
        &self,
        rows: &[R],
        form: &ResampledUnit,
        identity: &Identity,
    ) -> Result<()> {
        let other = rows.iter().find(|row| row.unit().0 == form.0 && row.identity() != identity);
        ensure!(
            other.is_none(),
            "the stopped run's records have {:?}, this run has {identity:?}; start over without --resume",
            other.map(Measurement::identity)
        );
        Ok(())
    }

    /// Measures this process's share of the `units` that `rows` lacks. `work` gets fixed groups of `at_once` units, so that the numbers
    /// do not depend on how the work was divided. `expected` returns a unit's key and its number of records. Records are on disk as soon
    /// as `work` returns them.
    pub(crate) fn measure<R: Measurement, U: Sync>(
        &self,
        rows: &mut Measurements<R>,
        identity: &Identity,
        (units, at_once): (&[U], usize),
        expected: impl Fn(&U) -> (ResampledUnit, usize),
        work: impl Fn(&[U]) -> Result<Vec<R>> + Sync,
    ) -> Result<()> {
        if let Some(first) = units.first() {
            self.check_identity(rows.rows(), &expected(first).0, identity)?;
        }
        let known: BTreeSet<R::Key> = rows.rows().iter().map(Measurement::key).collect();
        let mut there: BTreeMap<ResampledUnit, usize> = BTreeMap::new();
        rows.rows().iter().for_each(|row| *there.entry(row.unit()).or_default() += 1);
        let lacks = |unit: &U| {
            let (unit, rows) = expected(unit);
            there.get(&unit).copied().unwrap_or_default() < rows
        };
        let is_missing = |(number, group): &(usize, &[U])| self.computes_unit(*number) && group.iter().any(lacks);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_belongs_to_one_shard() {
        let shards: Vec<Shard> = (1..=3).map(|number| Shard::new(number, 3).expect("a shard")).collect();
        for unit in 0..20 {
            assert_eq!(shards.iter().filter(|shard| shard.has(unit)).count(), 1);
        }
        assert!(shards[1].has(1) && shards[1].has(4));
    }

    #[test]
    fn what_is_no_shard_is_refused() {
        assert_eq!("2/3".parse::<Shard>().expect("a shard"), Shard { number: 2, of: 3 });
        for (text, needle) in
            [("0/3", "no shard 0/3"), ("4/3", "no shard 4/3"), ("3", "i/n"), ("a/3", "i/n"), ("1/0", "1/0")]
        {
            let said = format!("{:#}", text.parse::<Shard>().expect_err("refused"));
            assert!(said.contains(needle), "{said}");
        }
    }
}
