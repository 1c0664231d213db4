//! Which latent steps of a block an intervention acts on.

use std::fmt;
use std::str::FromStr;

use anyhow::{Error, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::nth::Nth;

/// Written `all`, `2` (the second step only), `2..` (from the second on) or `2..4` (the second to the fourth); stored as indices from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Steps {
    #[default]
    All,
    Only(usize),
    From(usize),
    /// First and last step.
    Between(usize, usize),
}

impl Steps {
    pub(crate) fn admits(self, step: usize) -> bool {
        match self {
            Steps::All => true,
            Steps::Only(k) => step == k,
            Steps::From(k) => step >= k,
            Steps::Between(first, last) => (first..=last).contains(&step),
        }
    }

    /// Index of its first step.
    pub fn first(self) -> usize {
        match self {
            Steps::All => 0,
            Steps::Only(k) | Steps::From(k) | Steps::Between(k, _) => k,
        }
    }

    /// # Errors
    /// A named step beyond the longest block of `most` latent steps (0: not known).
    pub(crate) fn ensure_within(self, most: usize) -> Result<()> {
        let last = if let Steps::Between(_, last) = self { last } else { self.first() };
        ensure!(
            most == 0 || last < most,
            "step {} does not exist: a block has at most {most} latent steps",
            Nth::new(last)
        );
        Ok(())
    }
}

impl FromStr for Steps {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            format!("`{text}` is not a range of latent steps: write `all`, `2`, `2..` or `2..4` (they count from 1)")
        };
        let index = |nth: &str| nth.parse::<Nth>().map(Nth::index).map_err(|_| anyhow!(wrong()));
        Ok(match text.split_once("..") {
            _ if text == "all" => Steps::All,
            None => Steps::Only(index(text)?),
            Some((first, "")) => Steps::From(index(first)?),
            Some((first, last)) => {
                let (first, last) = (index(first)?, index(last)?);
                ensure!(first <= last, wrong());
                Steps::Between(first, last)
            }
        })
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Steps::All => f.write_str("all"),
            Steps::Only(k) => Nth::new(*k).fmt(f),
            Steps::From(k) => write!(f, "{}..", Nth::new(*k)),
            Steps::Between(first, last) => write!(f, "{}..{}", Nth::new(*first), Nth::new(*last)),
        }
    }
}

as_text!(Steps);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_are_written() {
        for text in ["all", "1", "3", "2..", "2..4", "3..3"] {
            assert_eq!(text.parse::<Steps>().expect("steps").to_string(), text);
        }
        assert!("2..".parse::<Steps>().is_ok_and(|s| !s.admits(0) && s.admits(1) && s.admits(5) && s.first() == 1));
        let admitted =
            |steps: &str| (0..9).filter(|&i| steps.parse::<Steps>().is_ok_and(|s| s.admits(i))).collect::<Vec<_>>();
        assert_eq!((admitted("2..4"), admitted("3..3")), (vec![1, 2, 3], vec![2]));
        let within = |steps: &str| steps.parse::<Steps>().is_ok_and(|steps| steps.ensure_within(5).is_ok());
        assert!(["all", "5", "5..", "2..5"].into_iter().all(within) && !["6", "6..", "2..6"].into_iter().any(within));
        for text in ["", "..2", "-1", "0", "0..", "a", "4..2", "1..x", "0..2"] {
            let error = text.parse::<Steps>().expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("from 1"), "{error}");
        }
    }
}
