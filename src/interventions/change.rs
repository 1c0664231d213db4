//! The text of a change to a model: where (hook points, heads, positions) and what (an intervention, or values of a file).
//! `blocks.2.attn.hook_z[head=0,3]@latent[*,2]=resample` is one line in every language and command. Knows text, and the facts of hook
//! points and interventions; `engine.rs` executes changes.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use super::call::client;
use super::heads::Heads;
use super::values::Values;
use super::{Acts, InterventionAbout, all};
use crate::model::hooks::outside_brackets;
use crate::model::{HookPoint, HookSpec, ModelConfig, Select};
use crate::names::suggest;

/// A parsed change. `None` for parts that the text omits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Change {
    text: String,
    /// Names hook points: `blocks.*.attn.hook_z`.
    pub pattern: String,
    pub heads: Option<Heads>,
    pub region: Option<Select>,
    pub intervention: Option<InterventionSpec>,
}

/// The replacement of values.
#[derive(Clone, PartialEq)]
pub enum InterventionSpec {
    /// `zero`, `scale:0.5`.
    Named { about: &'static InterventionAbout, dose: Option<f64> },
    /// `add:FILE`, `swap:FILE`.
    File { adds: bool, path: PathBuf },
    /// `call:N`: function N of a session's client.
    Call(usize),
}

impl FromStr for Change {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // One message: command lines and recipes show only the first of an error chain.
        Self::read(text.trim()).map_err(|error| anyhow!("{error:#}"))
    }
}

impl Change {
    fn read(text: &str) -> Result<Self> {
        let (spec, intervention) = match text.split_once(outside_brackets('=')) {
            Some((spec, intervention)) => (spec, Some(intervention.parse()?)),
            None => (text, None),
        };
        let (points, region) = match spec.split_once('@') {
            Some((points, region)) => (points, Some(region.parse().with_context(|| format!("hook `{spec}`"))?)),
            None => (spec, None),
        };
        let (pattern, heads) = match points.split_once('[') {
            Some((pattern, rest)) => {
                let heads = rest.strip_suffix(']').and_then(|rest| rest.strip_prefix("head="));
                let heads = heads.with_context(|| format!("hook `{spec}`: heads are written [head=0,3]"))?;
                (pattern, Some(heads.replace(',', "+").parse()?))
            }
            None => (points, None),
        };
        ensure!(!pattern.is_empty(), "empty hook name in `{text}`: write for example `blocks.*.hook_resid_post`");
        Ok(Self { text: text.to_owned(), pattern: pattern.to_owned(), heads, region, intervention })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Change);

impl FromStr for InterventionSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, argument) = text.split_once(':').map_or((text, None), |(name, argument)| (name, Some(argument)));
        if let ("add" | "swap", Some(file)) = (name, argument.filter(|file| !file.is_empty())) {
            return Ok(Self::File { adds: name == "add", path: file.into() });
        }
        if let ("call", Some(Ok(function))) = (name, argument.map(str::parse)) {
            return Ok(Self::Call(function));
        }
        let Some(about) = all().find(|about| about.name == name) else {
            let form = |about: &InterventionAbout| {
                format!("{}{}", about.name, if about.doses.is_empty() { "" } else { ":NUMBER" })
            };
            let known = all().map(form).collect::<Vec<_>>().join(", ");
            bail!(
                "unknown intervention `{text}`{}; write {known}, add:FILE or swap:FILE",
                suggest(name, all().map(|about| about.name))
            )
        };
        let number = |dose: &str| -> Result<f64> {
            let number: f64 = dose.parse().with_context(|| format!("{text}: `{dose}` is not a number"))?;
            ensure!(number.is_finite(), "{text}: not a finite number");
            Ok(number)
        };
        ensure!(argument.is_none() || !about.doses.is_empty(), "{text}: {name} has no dose");
        Ok(Self::Named { about, dose: argument.map(number).transpose()? })
    }
}

impl fmt::Display for InterventionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named { about, dose: None } => f.write_str(about.name),
            Self::Named { about, dose: Some(dose) } => write!(f, "{}:{dose}", about.name),
            Self::File { adds, path } => write!(f, "{}:{}", if *adds { "add" } else { "swap" }, path.display()),
            Self::Call(function) => write!(f, "call:{function}"),
        }
    }
}

impl fmt::Debug for InterventionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Change {
    /// The hook points of a model that the text names.
    pub fn points(&self, config: &ModelConfig) -> Result<Vec<HookPoint>> {
        HookSpec::all(&self.pattern).resolve_in(config)
    }

    /// The region at these points; by default every position (of points at latents only: every latent step).
    pub(crate) fn region_at(&self, points: &[HookPoint]) -> Select {
        let latents = points.iter().all(|point| point.kind.is_latent());
        self.region.unwrap_or(if latents { Select::LATENTS } else { Select::All })
    }

    /// Checks a change for a run without other runs as a source of values. Reads its file.
    ///
    /// # Errors
    /// As [`ModelChange::new`]; no intervention; one that needs other runs; a missing dose.
    pub fn resolve(&self, config: &ModelConfig) -> Result<ModelChange> {
        let points = self.points(config)?;
        let intervention = self.intervention.clone();
        let intervention =
            intervention.context("write HOOK=CHANGE, for example 'blocks.3.hook_resid_post@latent[*,2]=zero'")?;
        if let InterventionSpec::Named { about, dose } = &intervention {
            let name = about.name;
            match about.acts {
                Acts::Alone => ensure!(dose.is_some() || about.doses.is_empty(), "{name}: write {name}:NUMBER"),
                Acts::OnRun => {
                    bail!("`{name}` needs values of other problems, but there is one run here: use `intervene --hook`")
                }
                Acts::OnLatents => bail!("`{name}` acts on latent inputs only: `intervene --modes {name}` runs it"),
            }
        }
        let place = (self.heads.clone().unwrap_or_default(), self.region_at(&points));
        ModelChange::new(config, (self.text.clone(), points), place, intervention)
    }
}

/// A change checked against a model, with the values of its file.
#[derive(Clone, Debug)]
pub struct ModelChange {
    /// For messages.
    pub(super) name: String,
    pub points: Vec<HookPoint>,
    pub heads: Heads,
    pub region: Select,
    pub intervention: InterventionSpec,
    /// Values of a file, with their hook point and its number of heads.
    pub(super) values: Vec<(HookPoint, usize, Values)>,
    /// For a call: the shape of each point's value at one place, without the first axis.
    pub(super) shapes: Vec<(HookPoint, Vec<usize>)>,
}

impl ModelChange {
    /// # Errors
    /// Heads that a point lacks, an intervention that is not defined there, a file that cannot be read or does not fit.
    pub fn new(
        config: &ModelConfig,
        (name, points): (String, Vec<HookPoint>),
        (heads, region): (Heads, Select),
        intervention: InterventionSpec,
    ) -> Result<Self> {
        points.iter().try_for_each(|&point| heads.ensure_exist(point, config))?;
        let mut shapes = vec![];
        let values = match &intervention {
            InterventionSpec::Named { about, dose } => {
                points.iter().try_for_each(|&point| about.fits(point, *dose))?;
                vec![]
            }
            InterventionSpec::File { path, .. } => Values::by_point(path, &points, config)?,
            InterventionSpec::Call(_) => {
                client()?;
                for &point in &points {
                    shapes.push((point, Values::axes(point, config)?.split_off(1)));
                }
                vec![]
            }
        };
        Ok(Self { name, points, heads, region, intervention, values, shapes })
    }
}

impl InterventionAbout {
    /// Checks that an intervention is defined at a hook point.
    fn fits(&self, point: HookPoint, dose: Option<f64>) -> Result<()> {
        let name = self.name;
        ensure!(
            self.value_wise || !point.kind.is_attention(),
            "{name} at `{point}`: the number of keys differs between sequences; only {} are defined there",
            all().filter(|about| about.value_wise).map(|about| about.name).collect::<Vec<_>>().join(", ")
        );
        ensure!(
            !point.kind.is_scale() || (self.positive)(dose.unwrap_or(1.0)),
            "{name} at `{point}`: the stream is divided by this value, and {name} may return one that is not above 0"
        );
        Ok(())
    }
}
