//! Where an intervention at a hook point acts, as users write it: heads, latent steps, other positions. Knows names and counts.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::interventions::Steps;
use crate::model::Step;
use crate::model::hooks::Place;

/// Heads that are replaced together: `all` (also of a point without heads), `2`, or `0+3`. They count from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Heads(Vec<usize>);

impl Heads {
    /// The heads by name; none where all are meant.
    pub fn named(&self) -> &[usize] {
        &self.0
    }

    /// Of the places where the values of each head lie, those of these heads.
    pub(crate) fn of(&self, all: Vec<Range<usize>>) -> Vec<Range<usize>> {
        if self.0.is_empty() { all } else { self.0.iter().filter_map(|&head| all.get(head).cloned()).collect() }
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
/// 0: t the response's visible tokens, p the row's positions, prompt and latents included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Positions {
    Prompt,
    Text(Option<usize>),
    Row(usize),
}

impl FromStr for Positions {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let inside = |name: &str| text.strip_prefix(name)?.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
        match (text, inside("text"), inside("pos").or_else(|| text.parse().ok())) {
            ("prompt", ..) => Ok(Self::Prompt),
            ("text", ..) => Ok(Self::Text(None)),
            (_, Some(t), _) => Ok(Self::Text(Some(t))),
            (_, _, Some(p)) => Ok(Self::Row(p)),
            _ => bail!(
                "`{text}` names no positions: write prompt, text, text[t] (the t-th token of the response, from 0) or pos[p] (a \
                 position of the row, from 0); latent steps stand in --steps"
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
pub(crate) enum Region {
    Latents(Steps),
    Other(Positions),
}

impl Region {
    /// Block and step as which interventions know the place; `None` where nothing is done. Outside latents there is one block:
    /// its steps are the tokens of the response, or the positions of the prompt; of a single position step 0.
    pub fn key(self, at: &Place) -> Option<(usize, usize)> {
        match (self, at.step) {
            (Region::Latents(steps), Step::Latent { block, step }) => steps.admits(step).then_some((block, step)),
            (Region::Other(Positions::Prompt), Step::Prompt) => Some((0, at.position)),
            (Region::Other(Positions::Text(only)), Step::Text(t)) => only.is_none_or(|o| o == t).then_some((0, t)),
            (Region::Other(Positions::Row(p)), _) => (p == at.position).then_some((0, 0)),
            _ => None,
        }
    }

    /// The positions whose values its interventions are made of: a donor's first step says that it is one.
    pub(crate) fn recorded(self) -> Self {
        match self {
            Region::Latents(_) => Region::Latents(Steps::All),
            Region::Other(Positions::Text(_)) => Region::Other(Positions::Text(None)),
            other => other,
        }
    }

    pub(crate) fn steps(self) -> Steps {
        if let Region::Latents(steps) = self { steps } else { Steps::All }
    }

    /// As rows name it.
    pub(crate) fn place(self) -> String {
        match self {
            Region::Latents(_) => "latent".into(),
            Region::Other(positions) => positions.to_string(),
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
        for text in ["prompt", "text", "text[4]", "pos[7]"] {
            assert_eq!(text.parse::<Positions>().expect("positions").to_string(), text);
        }
        assert_eq!("7".parse::<Positions>().expect("a position"), Positions::Row(7));
        for text in ["", "-1", "1+1", "a", "0,3"] {
            assert!(text.parse::<Heads>().is_err(), "{text}");
        }
        for text in ["", "latent", "text[", "text[a]", "-1", "promt"] {
            assert!(text.parse::<Positions>().is_err_and(|e| e.to_string().contains(&format!("`{text}`"))), "{text}");
        }
    }
}
