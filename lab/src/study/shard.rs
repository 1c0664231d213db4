//! Which part of the problems one process of several works on. Knows numbers; nothing of schedulers or files.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};

/// Written `2/3`: the second of three. Units of work (batches of problems, pairs) are dealt out one by one: unit u goes to
/// shard u mod n + 1. Every unit is computed as one process would compute it, so its numbers are the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    /// From 1.
    pub number: usize,
    pub of: usize,
}

impl Shard {
    /// # Errors
    /// A number that is not from 1 to `of`.
    pub fn new(number: usize, of: usize) -> Result<Self> {
        ensure!((1..=of).contains(&number), "there is no shard {number}/{of}: shards count from 1/{of} to {of}/{of}");
        Ok(Self { number, of })
    }

    /// Whether a unit of work (from 0) is its own.
    pub fn has(self, unit: usize) -> bool {
        unit % self.of + 1 == self.number
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || format!("`{text}` names no shard: write i/n, for example 2/3 for the second of three");
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
