//! Where a change acts beside its hook points, as users write it: heads; and what interventions know positions as. Knows names and counts.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::Steps;
use super::change::gather;
use crate::model::hooks::Place;
use crate::model::{HookPoint, ModelConfig, Select, Step};

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

impl Select {
    /// Block and step as which interventions know the place; `None` where nothing is done. Outside latents there is one block:
    /// its steps are the tokens of the response, or the positions of the prompt; of a single position step 0. `end`: positions of
    /// the row that are known when the run begins.
    pub(crate) fn key(self, at: &Place, end: usize) -> Option<(usize, usize)> {
        self.at(end).ok().filter(|select| select.admits(at.position, at.step))?;
        Some(match (self, at.step) {
            (Select::Latent { .. }, Step::Latent { block, step }) => (block, step),
            (Select::Text(_), Step::Text(t)) => (0, t),
            (Select::Position(_), _) => (0, 0),
            _ => (0, at.position),
        })
    }

    /// The positions whose values its interventions are made of: a donor's first step says that it is one.
    pub(crate) fn recorded(self) -> Self {
        match self {
            Select::Latent { .. } => Select::LATENTS,
            Select::Text(_) => Select::Text(None),
            other => other,
        }
    }

    pub(crate) fn steps(self) -> Steps {
        if let Select::Latent { steps, .. } = self { steps } else { Steps::All }
    }

    /// As rows name it.
    pub(crate) fn place(self) -> String {
        match self {
            Select::All => "all".into(),
            Select::Latent { block: None, .. } => "latent".into(),
            Select::Latent { block, .. } => Select::Latent { block, steps: Steps::All }.to_string(),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_positions_are_read_as_they_are_written() {
        for text in ["all", "2", "0+3"] {
            assert_eq!(text.parse::<Heads>().expect("heads").to_string(), text);
        }
        for text in ["prompt", "text", "text[4]", "pos[7]", "pos[-1]", "pos[*]", "latent[*,2..]", "latent[3,*]"] {
            assert_eq!(text.parse::<Select>().expect("positions").to_string(), text);
        }
        assert_eq!("7".parse::<Select>().expect("a position"), Select::Position(7));
        for text in ["", "-1", "1+1", "a", "0,3"] {
            assert!(text.parse::<Heads>().is_err(), "{text}");
        }
        for text in ["", "latent[", "latent[1]", "text[", "text[a]", "--1", "promt"] {
            assert!(text.parse::<Select>().is_err_and(|e| e.to_string().contains(&format!("`{text}`"))), "{text}");
        }
    }

    #[test]
    fn a_region_is_steps_of_blocks_or_positions_from_either_end() {
        let at = |position, step| Place { batch: 0, index: 0, row: 0, position, step };
        let latent = |block, step| at(9, Step::Latent { block, step });
        let region = |text: &str| text.parse::<Select>().expect("a region");
        assert_eq!(region("latent[*,2..]").key(&latent(3, 2), 5), Some((3, 2)));
        assert_eq!(region("latent[*,2..]").key(&latent(3, 0), 5), None);
        assert_eq!(region("latent[2,1]").key(&latent(1, 0), 5), Some((1, 0)));
        assert_eq!(region("latent[2,1]").key(&latent(0, 0), 5), None);
        assert_eq!(region("pos[-1]").key(&at(4, Step::Prompt), 5), Some((0, 0)));
        assert_eq!(region("pos[-1]").key(&at(5, Step::Text(0)), 5), None);
        assert_eq!(region("pos[-2]").at(5).expect("a position"), Select::Position(3));
        assert!(region("pos[-6]").at(5).is_err_and(|e| e.to_string().contains("before the first of 5")));
        for (text, says) in [("latent[0,1]", "from 1"), ("latent[1", "latent[block,step]"), ("latent[1,x]", "from 1")] {
            let error = format!("{:#}", text.parse::<Select>().expect_err(text));
            assert!(error.contains(says), "{error}");
        }
    }
}
