//! The text that names hooks: `blocks.*.hook_resid_post@latent[1,3]`, the third step of the first block of latents. Layers, positions and
//! text tokens count from 0, as in TransformerLens; blocks of latents and their steps from 1.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::point::{HookPoint, PointKind};
use super::{Place, aliases};
use crate::model::config::ModelConfig;
use crate::model::span::Step;
use crate::nth::Nth;
use crate::schema::Steps;

/// Selected positions of a sequence: indices, from 0. An index of `None` is written `*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Select {
    All,
    Prompt,
    /// Visible tokens of the response.
    Text(Option<usize>),
    Latent {
        block: Option<usize>,
        steps: Steps,
    },
    /// A true position of the sequence, prompt and latents included. A negative one counts from the end of the known part at the start of the
    /// run: the prompt, or a whole known sequence; -1 is its last position.
    Position(isize),
}

impl Select {
    /// Every latent step.
    pub const LATENTS: Self = Self::Latent { block: None, steps: Steps::All };

    pub fn admits(&self, position: usize, step: Step) -> bool {
        let is = |wanted: Option<usize>, have: usize| wanted.is_none_or(|w| w == have);
        match (self, step) {
            (Select::All, _) | (Select::Prompt, Step::Prompt) => true,
            (Select::Text(t), Step::Text(have)) => is(*t, have),
            (Select::Latent { block, steps }, Step::Latent { block: b, step: s }) => is(*block, b) && steps.admits(s),
            (Select::Position(p), _) => usize::try_from(*p) == Ok(position),
            _ => false,
        }
    }

    /// For a sequence with `end` known positions at the start: converts negative positions.
    ///
    /// # Errors
    /// A position before the first.
    pub fn at(self, end: usize) -> Result<Self> {
        let Select::Position(p @ ..0) = self else { return Ok(self) };
        let from_start = end.checked_add_signed(p).and_then(|p| isize::try_from(p).ok()).map(Select::Position);
        from_start.with_context(|| format!("{self} is before the first of {end} positions"))
    }

    /// Block and step by which interventions address the place; `None` if it is not selected. Outside latents there is one block: its steps
    /// are the tokens of the response, or the positions of the prompt; a single position has step 0. `end`: positions of the sequence that
    /// are known at the start.
    pub(crate) fn key(self, at: &Place, end: usize) -> Option<(usize, usize)> {
        self.at(end).ok().filter(|select| select.admits(at.position, at.step))?;
        Some(match (self, at.step) {
            (Select::Latent { .. }, Step::Latent { block, step }) => (block, step),
            (Select::Text(_), Step::Text(t)) => (0, t),
            (Select::Position(_), _) => (0, 0),
            _ => (0, at.position),
        })
    }

    /// The positions whose values the interventions need, including a donor's first step, which shows that it is a donor.
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

as_text!(Select);

impl FromStr for Select {
    type Err = Error;

    /// Parses the text after `@`: `prompt`, `text[3]`, `latent[*,2..]`, `pos[-1]`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            format!(
                "`{text}` does not select positions: write prompt, text, text[t] or pos[p] (from 0; pos[-1] is the prompt's last), or \
                 latent[block,step] (both from 1; steps also as `2..` or `2..4`), with `*` for any"
            )
        };
        let (name, inside) = match text.trim().split_once('[') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(']').with_context(wrong)?.trim())),
            None => (text.trim(), None),
        };
        Ok(match (name, inside) {
            ("prompt", None) => Select::Prompt,
            ("text", None | Some("*")) => Select::Text(None),
            ("text", Some(t)) => Select::Text(Some(t.parse().with_context(wrong)?)),
            ("latent", None) => Select::LATENTS,
            ("latent", Some(both)) => {
                let (block, steps) = both.split_once(',').with_context(wrong)?;
                let named = |text: &str| Some(text.trim().to_owned()).filter(|text| text != "*");
                let block = named(block).map(|block| block.parse::<Nth>()).transpose().with_context(wrong)?;
                let steps = named(steps).map(|steps| steps.parse::<Steps>()).transpose().with_context(wrong)?;
                Select::Latent { block: block.map(Nth::index), steps: steps.unwrap_or(Steps::All) }
            }
            ("pos", Some("*")) => Select::All,
            ("pos", Some(p)) | (p, None) => Select::Position(p.parse().with_context(wrong)?),
            _ => bail!(wrong()),
        })
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_star = |text: Option<String>| text.unwrap_or_else(|| "*".to_owned());
        match *self {
            Select::All => f.write_str("pos[*]"),
            Select::Prompt => f.write_str("prompt"),
            Select::Text(None) => f.write_str("text"),
            Select::Text(Some(t)) => write!(f, "text[{t}]"),
            Select::Latent { block, steps } => {
                let block = block.map(|block| Nth::new(block).to_string());
                let steps = Some(steps.to_string()).filter(|_| steps != Steps::All);
                write!(f, "latent[{},{}]", or_star(block), or_star(steps))
            }
            Select::Position(p) => write!(f, "pos[{p}]"),
        }
    }
}

/// A pattern of hook points and the positions at which it acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookSpec {
    pub pattern: String,
    pub select: Select,
}

impl HookSpec {
    /// Every position of the points.
    pub fn all(pattern: impl fmt::Display) -> Self {
        Self { pattern: pattern.to_string(), select: Select::All }
    }

    /// The points in a model with `layers` blocks.
    ///
    /// # Errors
    /// A pattern without matches; a position that counts from the end.
    pub fn resolve(&self, layers: usize) -> Result<Vec<HookPoint>> {
        if let Select::Position(..0) = self.select {
            bail!(
                "hook `{self}` counts from the end of a known text, and there is none here: count its position from 0"
            );
        }
        HookPoint::resolve(&self.pattern, layers)
    }

    /// The points that a model of these settings has.
    ///
    /// # Errors
    /// A pattern without matches in this family.
    pub fn resolve_in(&self, config: &ModelConfig) -> Result<Vec<HookPoint>> {
        let mut points = self.resolve(config.num_hidden_layers)?;
        if aliases::is_elsewhere(&self.pattern, config.family.norm_place) {
            bail!(
                "hook `{}` is before a norm that a {} model has after its attention and MLP, and has no name here: `hook_attn_out` and \
                `hook_mlp_out` are what is added to the stream",
                self.pattern,
                config.family.name()
            );
        }
        // Without a gate, the up projection is the activation's input.
        let theirs = self.pattern.ends_with("mlp.in.hook_out") && !config.family.is_gated;
        points.iter_mut().filter(|_| theirs).for_each(|point| point.kind = PointKind::MlpPre);
        points.retain(|point| point.is_in(config));
        if points.is_empty() {
            bail!("unknown hook `{}`: a {} model has no such point", self.pattern, config.family.name());
        }
        Ok(points)
    }
}

impl FromStr for HookSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (pattern, select) = match text.trim().split_once('@') {
            Some((pattern, select)) => (pattern, select.parse().with_context(|| format!("hook `{text}`"))?),
            None => (text.trim(), Select::All),
        };
        if pattern.is_empty() {
            bail!("empty hook name in `{text}`: write for example `blocks.*.hook_resid_post`");
        }
        Ok(Self { pattern: pattern.to_owned(), select })
    }
}

impl fmt::Display for HookSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.select {
            Select::All => f.write_str(&self.pattern),
            select => write!(f, "{}@{select}", self.pattern),
        }
    }
}

/// A comma-separated list; commas inside brackets belong to a hook.
pub fn parse_specs(list: &str) -> Result<Vec<HookSpec>> {
    let names: Vec<&str> = list.split(outside_brackets(',')).take(MOST_SPECS + 1).collect();
    ensure!(
        names.len() <= MOST_SPECS,
        "a list of more than {MOST_SPECS} hooks: use patterns, as `blocks.*.hook_resid_post`"
    );
    names.into_iter().map(HookSpec::from_str).collect()
}

/// Maximum number of hooks in one list. A pattern counts once.
const MOST_SPECS: usize = 1024;

/// A predicate for a text's characters in turn: whether one is `wanted` and outside brackets.
pub fn outside_brackets(wanted: char) -> impl FnMut(char) -> bool {
    let mut depth = 0_usize;
    move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == wanted && depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_they_are_written() {
        for text in [
            "prompt",
            "text",
            "text[4]",
            "pos[7]",
            "pos[-1]",
            "pos[*]",
            "latent[*,2..]",
            "latent[1,2..4]",
            "latent[3,*]",
        ] {
            assert_eq!(text.parse::<Select>().expect("positions").to_string(), text);
        }
        assert_eq!("7".parse::<Select>().expect("a position"), Select::Position(7));
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
