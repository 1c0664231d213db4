//! Where a change acts beside its hook points, as users write it: heads, latent steps, other positions. Knows names and counts.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::Steps;
use super::change::gather;
use crate::model::hooks::Place;
use crate::model::{HookPoint, ModelConfig, Select, Step};
use crate::nth::Nth;

/// Heads that are replaced together: `all` (also of a point without heads), `2`, or `0+3`. They count from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Heads(Vec<usize>);

impl Heads {
    /// Of the places where the values of each head lie, those of these heads.
    pub(crate) fn of(&self, all: Vec<Range<usize>>) -> Vec<Range<usize>> {
        if self.0.is_empty() { all } else { self.0.iter().filter_map(|&head| all.get(head).cloned()).collect() }
    }
}

impl Heads {
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

/// Positions that are not latent, and single positions of the row: `prompt`, `text`, `text[t]`, `pos[p]` or `p`. Both count from
/// 0: t the response's visible tokens, p the row's positions, prompt and latents included. A negative p counts from the end of what
/// is known when the run begins: of the prompt, or of a whole known row; -1 is its last position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Positions {
    Prompt,
    Text(Option<usize>),
    Row(isize),
}

impl FromStr for Positions {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let inside = |name: &str| text.strip_prefix(name)?.strip_prefix('[')?.strip_suffix(']');
        let row = inside("pos").unwrap_or(text).parse().ok();
        match (text, inside("text").and_then(|t| t.parse().ok()), row) {
            ("prompt", ..) => Ok(Self::Prompt),
            ("text", ..) => Ok(Self::Text(None)),
            (_, Some(t), _) => Ok(Self::Text(Some(t))),
            (_, _, Some(p)) => Ok(Self::Row(p)),
            _ => bail!(
                "`{text}` names no positions: write prompt, text, text[t] (the t-th token of the response, from 0), pos[p] (a position \
                 of the row, from 0; pos[-1] is the last of the prompt) or latent[block,step] (both from 1)"
            ),
        }
    }
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt => f.write_str("prompt"),
            Self::Text(None) => f.write_str("text"),
            Self::Text(Some(t)) => write!(f, "text[{t}]"),
            Self::Row(p) => write!(f, "pos[{p}]"),
        }
    }
}

macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                text.parse()
            }
        }
    )*};
}

as_text!(Heads, Positions);

/// One choice of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Every position.
    All,
    /// Latent steps, of one block or of all.
    Latents {
        block: Option<usize>,
        steps: Steps,
    },
    Other(Positions),
}

impl FromStr for Region {
    type Err = Error;

    /// What stands behind `@`: `latent[*,2..]`, `prompt`, `text[3]`, `pos[-1]`.
    fn from_str(text: &str) -> Result<Self> {
        let Some(latent) = text.strip_prefix("latent") else { return text.parse().map(Region::Other) };
        if latent.is_empty() {
            return Ok(Region::Latents { block: None, steps: Steps::All });
        }
        let wrong = || {
            format!(
                "`{text}`: write latent[block,step], or `*` for one; both count from 1, and `2..` is from the second on"
            )
        };
        let inside =
            latent.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).and_then(|all| all.split_once(','));
        let (block, steps) = inside.with_context(wrong)?;
        let block = match block.trim() {
            "*" => None,
            block => Some(block.parse::<Nth>().with_context(wrong)?.index()),
        };
        let steps = match steps.trim() {
            "*" => Steps::All,
            steps => steps.parse().with_context(wrong)?,
        };
        Ok(Region::Latents { block, steps })
    }
}

impl Region {
    /// Block and step as which interventions know the place; `None` where nothing is done. Outside latents there is one block:
    /// its steps are the tokens of the response, or the positions of the prompt; of a single position step 0. `end`: positions of
    /// the row that are known when the run begins.
    pub fn key(self, at: &Place, end: usize) -> Option<(usize, usize)> {
        match (self, at.step) {
            (Region::All, _) => Some((0, at.position)),
            (Region::Latents { block: wanted, steps }, Step::Latent { block, step }) => {
                (wanted.is_none_or(|wanted| wanted == block) && steps.admits(step)).then_some((block, step))
            }
            (Region::Other(Positions::Prompt), Step::Prompt) => Some((0, at.position)),
            (Region::Other(Positions::Text(only)), Step::Text(t)) => only.is_none_or(|o| o == t).then_some((0, t)),
            (Region::Other(Positions::Row(p)), _) => (position(p, end) == Some(at.position)).then_some((0, 0)),
            _ => None,
        }
    }

    /// The same as a hook's selection, for a row of which `end` positions are known; of steps from one on, the first.
    ///
    /// # Errors
    /// A position before the row's first.
    pub fn select(self, end: usize) -> Result<Select> {
        Ok(match self {
            Region::All => Select::All,
            Region::Latents { block, steps: Steps::All } => Select::Latent { block, step: None },
            Region::Latents { block, steps } => Select::Latent { block, step: Some(steps.first()) },
            Region::Other(Positions::Prompt) => Select::Prompt,
            Region::Other(Positions::Text(t)) => Select::Text(t),
            Region::Other(Positions::Row(p)) => {
                let at = position(p, end);
                Select::Position(at.with_context(|| format!("pos[{p}] stands before the first of {end} positions"))?)
            }
        })
    }

    /// The positions whose values its interventions are made of: a donor's first step says that it is one.
    pub(crate) fn recorded(self) -> Self {
        match self {
            Region::Latents { .. } => Region::Latents { block: None, steps: Steps::All },
            Region::Other(Positions::Text(_)) => Region::Other(Positions::Text(None)),
            other => other,
        }
    }

    pub(crate) fn steps(self) -> Steps {
        if let Region::Latents { steps, .. } = self { steps } else { Steps::All }
    }

    /// As rows name it.
    pub(crate) fn place(self) -> String {
        match self {
            Region::All => "all".into(),
            Region::Latents { block: None, .. } => "latent".into(),
            Region::Latents { block: Some(block), .. } => format!("latent[{},*]", Nth::of(block)),
            Region::Other(positions) => positions.to_string(),
        }
    }
}

/// A position from 0.
fn position(p: isize, end: usize) -> Option<usize> {
    if p < 0 { end.checked_sub(p.unsigned_abs()) } else { usize::try_from(p).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_positions_are_read_as_they_are_written() {
        for text in ["all", "2", "0+3"] {
            assert_eq!(text.parse::<Heads>().expect("heads").to_string(), text);
        }
        for text in ["prompt", "text", "text[4]", "pos[7]", "pos[-1]"] {
            assert_eq!(text.parse::<Positions>().expect("positions").to_string(), text);
        }
        assert_eq!("7".parse::<Positions>().expect("a position"), Positions::Row(7));
        for text in ["", "-1", "1+1", "a", "0,3"] {
            assert!(text.parse::<Heads>().is_err(), "{text}");
        }
        for text in ["", "latent", "text[", "text[a]", "--1", "promt"] {
            assert!(text.parse::<Positions>().is_err_and(|e| e.to_string().contains(&format!("`{text}`"))), "{text}");
        }
    }

    #[test]
    fn a_region_is_steps_of_blocks_or_positions_from_either_end() {
        let at = |position, step| Place { batch: 0, index: 0, row: 0, position, step };
        let latent = |block, step| at(9, Step::Latent { block, step });
        let region = |text: &str| text.parse::<Region>().expect("a region");
        assert_eq!(region("latent[*,2..]").key(&latent(3, 2), 5), Some((3, 2)));
        assert_eq!(region("latent[*,2..]").key(&latent(3, 0), 5), None);
        assert_eq!(region("latent[2,1]").key(&latent(1, 0), 5), Some((1, 0)));
        assert_eq!(region("latent[2,1]").key(&latent(0, 0), 5), None);
        assert_eq!(region("pos[-1]").key(&at(4, Step::Prompt), 5), Some((0, 0)));
        assert_eq!(region("pos[-1]").key(&at(5, Step::Text(0)), 5), None);
        assert_eq!(region("pos[-2]").select(5).expect("a position"), Select::Position(3));
        assert!(region("pos[-6]").select(5).is_err_and(|e| e.to_string().contains("before the first of 5")));
        for (text, says) in [("latent[0,1]", "from 1"), ("latent[1", "latent[block,step]"), ("latent[1,x]", "from 1")] {
            let error = format!("{:#}", text.parse::<Region>().expect_err(text));
            assert!(error.contains(says), "{error}");
        }
    }
}
