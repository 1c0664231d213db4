//! Which latent steps of a block an intervention acts on.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result};
use serde::{Deserialize, Serialize};

use crate::nth::Nth;

/// Written `all`, `2` (the second step only) or `2..` (from the second on); stored as indices from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Steps {
    #[default]
    All,
    Only(usize),
    From(usize),
}

impl Steps {
    pub(crate) fn admits(self, step: usize) -> bool {
        match self {
            Steps::All => true,
            Steps::Only(k) => step == k,
            Steps::From(k) => step >= k,
        }
    }

    /// Index of its first step.
    pub fn first(self) -> usize {
        match self {
            Steps::All => 0,
            Steps::Only(k) | Steps::From(k) => k,
        }
    }
}

impl FromStr for Steps {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || format!("`{text}` names no latent steps: write `all`, a step (they count from 1), or `2..`");
        let index = |nth: &str| nth.parse::<Nth>().map(Nth::index).with_context(wrong);
        match (text, text.strip_suffix("..")) {
            ("all", _) => Ok(Steps::All),
            (_, Some(from)) => Ok(Steps::From(index(from)?)),
            _ => Ok(Steps::Only(index(text)?)),
        }
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Steps::All => f.write_str("all"),
            Steps::Only(k) => Nth::new(*k).fmt(f),
            Steps::From(k) => write!(f, "{}..", Nth::new(*k)),
        }
    }
}

as_text!(Steps);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_are_written() {
        for text in ["all", "1", "3", "2.."] {
            assert_eq!(text.parse::<Steps>().expect("steps").to_string(), text);
        }
        assert!("2..".parse::<Steps>().is_ok_and(|s| !s.admits(0) && s.admits(1) && s.admits(5) && s.first() == 1));
        for text in ["", "..2", "-1", "0", "0..", "a", "1..2"] {
            let error = text.parse::<Steps>().expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("from 1"), "{error}");
        }
    }
}
