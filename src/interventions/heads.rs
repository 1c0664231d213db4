//! Which heads a change acts on, as users write them. Knows names and counts.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::engine::gather;
use crate::model::{HookPoint, ModelConfig};

/// Heads, counted from 0, that are replaced together: `all` (also of a point without heads), `2`, `0+3`. `each`: one row per head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Heads {
    /// Empty: all of them.
    named: Vec<usize>,
    each: bool,
}

impl Heads {
    /// The ranges of these heads among those of all heads.
    pub(crate) fn ranges(&self, all: Vec<Range<usize>>) -> Vec<Range<usize>> {
        match self.named.as_slice() {
            [] => all,
            named => named.iter().filter_map(|&head| all.get(head).cloned()).collect(),
        }
    }

    /// The sets of heads to change in turn: with `each`, every head of the point.
    pub(crate) fn split(&self, point: HookPoint, config: &ModelConfig) -> Result<Vec<Self>> {
        if !self.each {
            return Ok(vec![self.clone()]);
        }
        let Some(n) = point.kind.heads(config) else { bail!("heads each: `{point}` has no heads") };
        Ok((0..n).map(|head| Self { named: vec![head], each: false }).collect())
    }

    /// Checks that a point has these heads.
    pub(crate) fn ensure_exist(&self, point: HookPoint, config: &ModelConfig) -> Result<()> {
        ensure!(
            !self.each,
            "heads each is for intervene --hook, which has a row for every head; name heads here, or all"
        );
        let Some(&last) = self.named.last() else { return Ok(()) };
        match point.kind.heads(config) {
            None => bail!("heads {self}: `{point}` has no heads; did you mean `blocks.*.attn.hook_z`?"),
            Some(n) if last >= n => {
                bail!("heads {self}: `{point}` has {n} heads, 0 to {}: no head {last}", n - 1)
            }
            Some(_) => Ok(()),
        }
    }

    /// The values of these heads, from those of all `heads` concatenated.
    pub(crate) fn select_values(&self, all: &[f32], heads: usize) -> Vec<f32> {
        let width = all.len() / heads.max(1);
        let ranges = self.ranges((0..heads).map(|head| head * width..(head + 1) * width).collect());
        gather(all, &ranges)
    }
}

impl FromStr for Heads {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let "all" | "each" = text {
            return Ok(Self { named: vec![], each: text == "each" });
        }
        let wrong = || {
            format!(
                "`{text}` names no heads: write `all`, `each`, a head (they count from 0), or `0+3` for two at once"
            )
        };
        let mut heads: Vec<usize> =
            text.split('+').map(|head| head.parse().with_context(wrong)).collect::<Result<_>>()?;
        heads.sort_unstable();
        ensure!(heads.windows(2).all(|two| two[0] != two[1]), "`{text}` names a head twice");
        Ok(Self { named: heads, each: false })
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.each, self.named.as_slice()) {
            (true, _) => f.write_str("each"),
            (false, []) => f.write_str("all"),
            (false, named) => f.write_str(&named.iter().map(usize::to_string).collect::<Vec<_>>().join("+")),
        }
    }
}

as_text!(Heads);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written() {
        for text in ["all", "each", "2", "0+3"] {
            assert_eq!(text.parse::<Heads>().expect("heads").to_string(), text);
        }
        for text in ["", "-1", "1+1", "a", "0,3"] {
            assert!(text.parse::<Heads>().is_err(), "{text}");
        }
    }
}
