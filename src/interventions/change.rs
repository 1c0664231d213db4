//! A change: where (hook points, heads, positions) and what (an intervention, or the values of a file), with its arithmetic. One
//! grammar for every command: `blocks.2.attn.hook_z[head=0,3]@latent[*,2]=resample`.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use rand::RngCore;

use super::heads::Heads;
use super::values::Values;
use super::{About, Acts, Firings, Intervention, LatentPlace, all};
use crate::guard::{MOST_FILE, read_bytes};
use crate::model::hooks::{Place, Site, outside_brackets};
use crate::model::{Activation, HookPoint, HookSpec, Hooks, ModelConfig, PointKind, Select};
use crate::names::meant;
use crate::random::keyed;

/// Where a change acts; what its text leaves open is `None`: all heads, every position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Of hook points, TransformerLens' names: `blocks.*.attn.hook_z`.
    pub pattern: String,
    pub heads: Option<Heads>,
    pub region: Option<Select>,
}

impl FromStr for Target {
    type Err = Error;

    /// `blocks.2.attn.hook_z[head=0,3]@latent[*,2]`.
    fn from_str(text: &str) -> Result<Self> {
        let (points, region) = match text.trim().split_once('@') {
            Some((points, region)) => (points, Some(region.parse().with_context(|| format!("hook `{text}`"))?)),
            None => (text.trim(), None),
        };
        let (pattern, heads) = match points.split_once('[') {
            Some((pattern, rest)) => {
                let heads = rest.strip_suffix(']').and_then(|rest| rest.strip_prefix("head="));
                let heads = heads.with_context(|| format!("hook `{text}`: heads are written [head=0,3]"))?;
                (pattern, Some(heads.replace(',', "+").parse()?))
            }
            None => (points, None),
        };
        ensure!(!pattern.is_empty(), "empty hook name in `{text}`: write for example `blocks.*.hook_resid_post`");
        Ok(Self { pattern: pattern.to_owned(), heads, region })
    }
}

/// Cuts `SPEC=CHANGE` where the change begins: at the first `=` outside brackets.
pub fn split(text: &str) -> (&str, Option<&str>) {
    text.split_once(outside_brackets('=')).map_or((text, None), |(spec, change)| (spec, Some(change)))
}

/// What is put in place of the values at one place.
#[derive(Clone)]
pub enum What {
    Made {
        about: &'static About,
        dose: Option<f64>,
    },
    /// What a file has for the place is added, or put there; by hook point.
    File {
        adds: bool,
        values: Vec<(HookPoint, Values)>,
    },
}

impl What {
    /// `add:FILE` or `swap:FILE` for these points; `None` of another change.
    ///
    /// # Errors
    /// A file that cannot be read, or whose values do not fit a point.
    pub fn of_file(change: &str, points: &[HookPoint], config: &ModelConfig) -> Result<Option<Self>> {
        let Some((name @ ("add" | "swap"), file)) = change.split_once(':') else { return Ok(None) };
        let axes = |point: &HookPoint| {
            point.kind.tail(config).with_context(|| {
                format!(
                    "`{point}`: its last axis counts keys, which differ from run to run; only zero and scale are for it"
                )
            })
        };
        let axes: Vec<Vec<usize>> = points.iter().map(axes).collect::<Result<_>>()?;
        let file = Path::new(file);
        let bytes = read_bytes(file, MOST_FILE).with_context(|| format!("{}: cannot read", file.display()))?;
        let of = |(point, axes): (&HookPoint, &Vec<usize>)| {
            Ok((*point, Values::new(file, &bytes, &point.to_string(), axes)?))
        };
        let values = points.iter().zip(&axes).map(of).collect::<Result<_>>()?;
        Ok(Some(Self::File { adds: name == "add", values }))
    }

    /// Refuses what says nothing at a point.
    ///
    /// # Errors
    /// Why.
    pub fn makes_sense(&self, point: HookPoint) -> Result<()> {
        let Self::Made { about, dose } = self else { return Ok(()) };
        let (name, kind) = (about.name, point.kind);
        let scale = matches!(kind, PointKind::Ln1Scale | PointKind::Ln2Scale | PointKind::LnFinalScale);
        ensure!(!(scale && (name == "zero" || *dose == Some(0.0))), "{name} at `{point}`: the stream is divided by it");
        // Its columns are the slots of a cache: another row's are other positions.
        let own = ["zero", "scale", "self_patch"].contains(&name);
        ensure!(own || !kind.is_attention(), "{name} at `{point}`: a row's keys have its own length; zero or scale it");
        Ok(())
    }
}

/// One change of one run, read and checked: `SPEC=zero|scale:2|random_norm|rotate:30|add:FILE|swap:FILE`.
pub struct Change {
    /// As the user wrote it.
    pub text: String,
    pub target: Target,
    pub what: What,
}

impl Change {
    /// Reads a change of a run that has no other runs to take values from, files included.
    ///
    /// # Errors
    /// A hook or head that the model has not, a change that is none or needs other runs, a file whose values do not fit.
    pub fn read(text: &str, config: &ModelConfig) -> Result<Self> {
        let (target, change) = split(text);
        let change = change.context("write HOOK=CHANGE, for example 'blocks.3.hook_resid_post@latent[*,2]=zero'")?;
        let target: Target = target.parse()?;
        let points = HookSpec::all(&target.pattern).resolve_in(config)?;
        let what = match What::of_file(change, &points, config)? {
            Some(what) => what,
            None => alone(change)?,
        };
        for &point in &points {
            target.heads.iter().try_for_each(|heads| heads.exist(point, config))?;
            what.makes_sense(point)?;
        }
        Ok(Self { text: text.to_owned(), target, what })
    }

    /// As a hook, for a row of which `end` positions are known.
    ///
    /// # Errors
    /// A position before the row's first.
    pub fn spec(&self, end: usize) -> Result<HookSpec> {
        let select = self.target.region.unwrap_or(Select::All).at(end)?;
        Ok(HookSpec { pattern: self.target.pattern.clone(), select })
    }
}

/// A change that takes nothing from other runs.
fn alone(change: &str) -> Result<What> {
    let (name, dose) = change.split_once(':').map_or((change, None), |(name, dose)| (name, Some(dose)));
    let names = || all().filter(|about| about.acts == Acts::Alone).map(|about| about.name).chain(["add", "swap"]);
    let about = all().find(|about| about.name == name);
    if let Some(about) = about.filter(|about| about.acts != Acts::Alone) {
        bail!("`{}` takes values of other problems, and there is one run here: `intervene --hook` runs it", about.name);
    }
    let Some(about) = about.filter(|about| about.doses.is_empty() == dose.is_none()) else {
        let near = if names().any(|known| known == name) { String::new() } else { meant(name, names()) };
        let plain = all().filter(|about| about.acts == Acts::Alone && about.doses.is_empty());
        let known = plain.map(|about| about.name).collect::<Vec<_>>().join(", ");
        bail!("no change `{change}`{near}; write {known}, scale:NUMBER, rotate:DEGREES, add:FILE or swap:FILE")
    };
    let number = |dose: &str| -> Result<f64> {
        let number: f64 = dose.parse().with_context(|| format!("`{dose}` is not a number"))?;
        ensure!(number.is_finite(), "{name}:{dose}: not a finite number");
        Ok(number)
    };
    Ok(What::Made { about, dose: dose.map(number).transpose()? })
}

/// Where the new values come from.
pub enum With<'a> {
    Intervention(Box<dyn Intervention + 'a>),
    /// Made for each place from a number of its own: at two points or positions of one run it draws differently.
    Everywhere(Box<dyn Fn(u64) -> Box<dyn Intervention + 'a> + 'a>),
    File {
        adds: bool,
        values: &'a [(HookPoint, Values)],
    },
}

/// A change at work on the rows of a batch, counted row by row.
pub struct ActiveChange<'a> {
    heads: Heads,
    region: Select,
    with: With<'a>,
    /// The problem of each row: randomness and donors belong to it.
    problems: Vec<usize>,
    /// Positions of each row that are known when the run begins.
    ends: Vec<usize>,
    firings: RefCell<Vec<Firings>>,
}

impl<'a> ActiveChange<'a> {
    /// `problems` and `ends` are those of the rows.
    pub fn new((heads, region): (Heads, Select), with: With<'a>, problems: Vec<usize>, ends: Vec<usize>) -> Self {
        let firings = RefCell::new(vec![Firings::default(); problems.len()]);
        Self { heads, region, with, problems, ends, firings }
    }

    /// Adds the hooks that change.
    ///
    /// # Errors
    /// A pattern that names no point.
    pub fn attach<'h>(&'h self, pattern: &str, hooks: &mut Hooks<'h>, layers: usize) -> Result<()> {
        let spec = HookSpec::all(pattern);
        hooks.replace(&spec, layers, move |site, value| self.replace(site, value))?;
        Ok(())
    }

    pub fn firings(&self) -> Vec<Firings> {
        self.firings.borrow().clone()
    }

    fn key(&self, place: &Place) -> Option<(usize, usize)> {
        self.region.key(place, self.ends.get(place.row).copied().unwrap_or_default())
    }

    fn replace(&self, site: &Site, value: Activation) -> Result<Activation> {
        if !site.places.iter().any(|place| self.key(place).is_some()) {
            return Ok(value);
        }
        let (dims, mut data) = (value.dims(), value.to_vec()?);
        for place in site.places {
            let Some(key) = self.key(place) else { continue };
            let all = site.point.kind.ranges(&dims, place);
            let old = gather(&data, &self.heads.of(all.clone()));
            let Some(mut new) = self.new_values(site.point, place, (key, all.len()), &old)? else { continue };
            let (point, now, was) = (site.point, new.len(), old.len());
            ensure!(now == was, "a value of width {now} at `{point}`, expected {was}");
            if site.point.kind == PointKind::AttnScores {
                // What the mask hides stays hidden.
                let hidden = new.iter_mut().zip(&old).filter(|(_, old)| Activation::is_masked(**old));
                hidden.for_each(|(new, old)| *new = *old);
            }
            let mut rest = &new[..];
            for range in self.heads.of(all) {
                let (now, later) = rest.split_at(range.len());
                data[range].copy_from_slice(now);
                rest = later;
            }
            if let Some(firings) = self.firings.borrow_mut().get_mut(place.row) {
                firings.add(&Firings::one(&old, &new));
            }
        }
        Ok(value.with_values(data))
    }

    fn new_values(
        &self,
        point: HookPoint,
        place: &Place,
        (key, heads): ((usize, usize), usize),
        old: &[f32],
    ) -> Result<Option<Vec<f32>>> {
        let problem = self.problems.get(place.row).copied().unwrap_or(place.row);
        let known = LatentPlace { problem, block: key.0, step: key.1 };
        match &self.with {
            With::Intervention(with) => Ok(with.input(&known, old)),
            With::Everywhere(with) => {
                let layer = point.layer.map_or(u64::MAX, |layer| layer as u64);
                let number = keyed([layer, point.kind as u64, place.position as u64, problem as u64]).next_u64();
                Ok(with(number).input(&known, old))
            }
            With::File { adds, values } => {
                let of = values.iter().find(|(of, _)| *of == point).map(|(_, values)| values);
                let of = of.with_context(|| format!("the file has no values for `{point}`"))?;
                let by_position = matches!(self.region, Select::Position(_));
                let given = of.at(place, by_position).with_context(|| {
                    format!("the file has no {} at position {}; it has {}", place.step, place.position, of.places())
                })?;
                let given = self.heads.part(given, heads);
                Ok(Some(if *adds { old.iter().zip(given).map(|(a, b)| a + b).collect() } else { given }))
            }
        }
    }
}

/// The values at some ranges, one behind the other.
pub fn gather(data: &[f32], ranges: &[Range<usize>]) -> Vec<f32> {
    ranges.iter().flat_map(|range| data[range.clone()].iter().copied()).collect()
}
