//! Which heads a change acts on, as users write them. Knows names and counts.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::change::gather;
use crate::model::{HookPoint, ModelConfig};

/// Heads that are replaced together: `all` (also of a point without heads), `2`, or `0+3`. They count from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Heads(Vec<usize>);

impl Heads {
    /// Of the places where the values of each head lie, those of these heads.
    pub(crate) fn of(&self, all: Vec<Range<usize>>) -> Vec<Range<usize>> {
        if self.0.is_empty() { all } else { self.0.iter().filter_map(|&head| all.get(head).cloned()).collect() }
    }

    /// Refuses heads that a point has not.
    ///
    /// # Errors
    /// How many it has.
    pub(crate) fn exist(&self, point: HookPoint, config: &ModelConfig) -> Result<()> {
        let Some(&last) = self.0.last() else { return Ok(()) };
        match point.kind.heads(config) {
            None => bail!("heads {self}: `{point}` has no heads; did you mean `blocks.*.attn.hook_z`?"),
            Some(n) if last >= n => {
                bail!("heads {self}: `{point}` has {n} heads, 0 to {}: there is no head {last}", n - 1)
            }
            Some(_) => Ok(()),
        }
    }

    /// Their values, of those of all `heads` side by side.
    pub(crate) fn part(&self, all: &[f32], heads: usize) -> Vec<f32> {
        let width = all.len() / heads.max(1);
        let ranges = self.of((0..heads).map(|head| head * width..(head + 1) * width).collect());
        gather(all, &ranges)
    }
}

impl FromStr for Heads {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "all" {
            return Ok(Self::default());
        }
        let wrong =
            || format!("`{text}` names no heads: write `all`, a head (they count from 0), or `0+3` for two at once");
        let mut heads: Vec<usize> =
            text.split('+').map(|head| head.parse().with_context(wrong)).collect::<Result<_>>()?;
        heads.sort_unstable();
        ensure!(heads.windows(2).all(|two| two[0] != two[1]), "`{text}` names a head twice");
        Ok(Self(heads))
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(if named.is_empty() { "all" } else { "" })?;
        f.write_str(&named.join("+"))
    }
}

as_text!(Heads);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written() {
        for text in ["all", "2", "0+3"] {
            assert_eq!(text.parse::<Heads>().expect("heads").to_string(), text);
        }
        for text in ["", "-1", "1+1", "a", "0,3"] {
            assert!(text.parse::<Heads>().is_err(), "{text}");
        }
    }
}
