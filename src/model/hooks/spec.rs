//! What a user writes to name hooks: `blocks.*.hook_resid_post@latent[1,3]`, the third step of the first block of latents.
//! Layers, positions and text tokens count from 0, as in TransformerLens; blocks of latents and their steps from 1.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};

use super::aliases;
use super::point::{HookPoint, PointKind};
use crate::model::config::ModelConfig;
use crate::model::span::Step;
use crate::nth::Nth;

/// Which positions of a row a hook sees: indices, from 0. An index of `None` is written `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    All,
    Prompt,
    Text(Option<usize>),
    Latent {
        block: Option<usize>,
        step: Option<usize>,
    },
    /// A true position of the row.
    Position(usize),
}

impl Select {
    pub(crate) fn admits(&self, position: usize, step: Step) -> bool {
        let is = |wanted: Option<usize>, have: usize| wanted.is_none_or(|w| w == have);
        match (self, step) {
            (Select::All, _) | (Select::Prompt, Step::Prompt) => true,
            (Select::Text(t), Step::Text(have)) => is(*t, have),
            (Select::Latent { block, step }, Step::Latent { block: b, step: s }) => is(*block, b) && is(*step, s),
            (Select::Position(p), _) => *p == position,
            _ => false,
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
    /// The points meant in a model with `layers` blocks.
    ///
    /// # Errors
    /// A pattern that names nothing.
    pub fn resolve(&self, layers: usize) -> Result<Vec<HookPoint>> {
        HookPoint::resolve(&self.pattern, layers)
    }

    /// The same of those that a model of these settings has.
    ///
    /// # Errors
    /// A pattern that names nothing, or only what models of other families have.
    pub fn resolve_in(&self, config: &ModelConfig) -> Result<Vec<HookPoint>> {
        let mut points = self.resolve(config.num_hidden_layers)?;
        if aliases::is_elsewhere(&self.pattern, config.family.norm_place()) {
            bail!(
                "hook `{}` is before a norm that a {} model has behind its parts, and has no name here: `hook_attn_out` and `hook_mlp_out` \
                 are what is added to the stream",
                self.pattern,
                config.family.model_type()
            );
        }
        // Without a gate, what goes up is what is activated.
        let theirs = self.pattern.ends_with("mlp.in.hook_out") && !config.family.is_gated();
        points.iter_mut().filter(|_| theirs).for_each(|point| point.kind = PointKind::MlpPre);
        points.retain(|point| point.is_in(config));
        if points.is_empty() {
            bail!("unknown hook `{}`: a {} model has none of that name", self.pattern, config.family.model_type());
        }
        Ok(points)
    }
}

impl FromStr for HookSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (pattern, select) = match text.trim().split_once('@') {
            Some((pattern, select)) => (pattern, parse_select(text, select)?),
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
        let star = |n: &Option<usize>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
        let nth = |n: &Option<usize>| n.map_or_else(|| "*".to_owned(), |n| Nth::of(n).to_string());
        f.write_str(&self.pattern)?;
        match &self.select {
            Select::All => Ok(()),
            Select::Prompt => f.write_str("@prompt"),
            Select::Text(t) => write!(f, "@text[{}]", star(t)),
            Select::Latent { block, step } => write!(f, "@latent[{},{}]", nth(block), nth(step)),
            Select::Position(p) => write!(f, "@pos[{p}]"),
        }
    }
}

/// Splits a comma-separated list, leaving the commas inside brackets alone.
///
/// # Errors
/// An element that does not parse.
pub(crate) fn parse_specs(list: &str) -> Result<Vec<HookSpec>> {
    let mut depth = 0_usize;
    let parts = list.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(HookSpec::from_str).collect()
}

fn parse_select(whole: &str, text: &str) -> Result<Select> {
    let (name, args) = match text.split_once('[') {
        Some((name, rest)) => match rest.strip_suffix(']') {
            Some(inside) => (name, inside.split(',').map(str::trim).collect()),
            None => bail!("hook `{whole}`: missing `]`"),
        },
        None => (text, vec![]),
    };
    let index = |arg: Option<&&str>| -> Result<Option<usize>> {
        match arg {
            None | Some(&"*") => Ok(None),
            Some(n) => match n.parse() {
                Ok(n) => Ok(Some(n)),
                Err(_) => bail!("hook `{whole}`: `{n}` is not an index; write a number or `*`"),
            },
        }
    };
    let nth = |arg: Option<&&str>| -> Result<Option<usize>> {
        let named = arg.filter(|n| **n != "*").map(|n| n.parse::<Nth>());
        let named =
            named.transpose().with_context(|| format!("hook `{whole}`: write latent[block,step], or `*` for one"))?;
        Ok(named.map(Nth::index))
    };
    match (name, args.len()) {
        ("prompt", 0) => Ok(Select::Prompt),
        ("text", 0 | 1) => Ok(Select::Text(index(args.first())?)),
        ("latent", 0 | 2) => Ok(Select::Latent { block: nth(args.first())?, step: nth(args.get(1))? }),
        ("pos", 1) => match index(args.first())? {
            Some(p) => Ok(Select::Position(p)),
            None => Ok(Select::All),
        },
        _ => bail!("hook `{whole}`: after `@` write prompt, text[t], latent[block,step] or pos[p]"),
    }
}
