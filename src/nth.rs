//! Numbers of latent steps and blocks for users, from 1 as in the paper. Indices in the code count from 0; this is the only place that
//! converts between them.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result};
use serde::{Deserialize, Serialize};

/// Number of a latent step or a block in flags, hooks, rows, tables and figures. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "usize", try_from = "usize")]
pub struct Nth(usize);

impl Nth {
    /// The number of an index from 0.
    pub fn new(index: usize) -> Self {
        Self(index + 1)
    }

    /// The index, from 0.
    pub fn index(self) -> usize {
        self.0 - 1
    }

    /// The number, from 1, for an axis of a figure.
    pub fn shown(self) -> usize {
        self.0
    }
}

impl From<Nth> for usize {
    fn from(nth: Nth) -> Self {
        nth.0
    }
}

impl TryFrom<usize> for Nth {
    type Error = Error;

    fn try_from(shown: usize) -> Result<Self> {
        shown
            .checked_sub(1)
            .map(Self::new)
            .context("`0` names none: latent steps and blocks count from 1, as in the paper")
    }
}

impl FromStr for Nth {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number: usize = text.parse().with_context(|| format!("`{text}` is not a number from 1"))?;
        Self::try_from(number)
    }
}

impl fmt::Display for Nth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_one_and_there_is_no_zeroth() {
        assert_eq!(Nth::new(0).to_string(), "1");
        assert_eq!("3".parse::<Nth>().expect("the third").index(), 2);
        assert_eq!(serde_json::to_string(&Nth::new(4)).expect("a number"), "5");
        assert_eq!(serde_json::from_str::<Nth>("5").expect("the fifth"), Nth::new(4));
        for none in [serde_json::from_str::<Nth>("0").map_err(Error::from), "0".parse(), "-1".parse(), "".parse()] {
            assert!(none.is_err_and(|error| format!("{error:#}").contains("from 1")));
        }
    }
}
