//! The engine of changes: every command, session, page and experiment that replaces values in a model uses it.
//!
//! 1. [`Change`] is parsed from text, and checked against a model: points, heads, file ([`ModelChange`], `change.rs`).
//! 2. [`ModelChange::prepare`] makes the intervention of each point, once, from the run's data ([`Material`]).
//! 3. [`Hooks::change`] adds one hook at these points. At each position of each sequence that the region selects:
//!    1. compute the block and step by which interventions address the position;
//!    2. read the old values of the selected heads;
//!    3. compute the new values, or none: the position is not changed;
//!    4. mask attention scores again that the mask hides; require a positive divisor of the stream;
//!    5. write the new values; [`ChangeLog`] counts the firing with ‖new − old‖.
//! 4. [`Changes::run`] reports the effect of each change; one that never fired is an error.
//!
//! Does not know which problems are decoded, how often, or their answers.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use rand::RngCore;
use serde::Serialize;

use super::call::{FunctionCall, client};
use super::change::{Change, InterventionSpec, ModelChange};
use super::heads::Heads;
use super::{Draw, LatentPlace, Material};
use crate::latent::Request;
use crate::model::hooks::{Place, Site};
use crate::model::{Activation, HookPoint, HookSpec, Hooks, ModelConfig, PointKind, Select};
use crate::random::keyed;

/// One position of one sequence at which a change acts.
pub struct ChangePlace<'p> {
    pub point: HookPoint,
    pub place: &'p Place,
    /// The position as interventions know it.
    pub known: LatentPlace,
}

/// New values for the old ones of the selected heads, concatenated; `None` leaves the position unchanged.
type NewValues<'a> = Box<dyn Fn(&ChangePlace, &[f32]) -> Result<Option<Vec<f32>>> + Send + Sync + 'a>;

/// A change with its interventions constructed.
pub struct PreparedChange<'a> {
    name: String,
    points: Vec<HookPoint>,
    heads: Heads,
    region: Select,
    new_values: NewValues<'a>,
}

/// How often an intervention fired and how far it moved the values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Firings {
    pub count: usize,
    /// Σ ‖new − old‖.
    pub moved: f64,
}

/// The sequences of a run, with counts of the changes to each.
pub struct ChangeLog {
    /// Problem, and number of known positions at the start: the prompt, or a whole known sequence.
    sequences: Vec<(usize, usize)>,
    counts: Mutex<FiringCounts>,
}

#[derive(Default)]
struct FiringCounts {
    /// By sequence.
    firings: Vec<Firings>,
    /// Sequences and blocks with at least one replacement.
    blocks: BTreeSet<(usize, usize)>,
}

impl ChangeLog {
    /// `sequences` in the order of their numbers: problem (key of random draws and donors), and known positions at the start.
    pub fn new(sequences: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let sequences = Vec::from_iter(sequences);
        let counts = FiringCounts { firings: vec![Firings::default(); sequences.len()], blocks: BTreeSet::new() };
        Self { sequences, counts: Mutex::new(counts) }
    }

    /// Counters for the requests of a decode, numbered in their order.
    pub fn from_requests(requests: &[Request]) -> Self {
        Self::new(requests.iter().map(|request| (request.problem, request.prompt.len())))
    }

    /// A position as interventions address it; `None` if the region does not select it.
    pub(super) fn place(&self, place: &Place, region: Select) -> Option<LatentPlace> {
        let (problem, known) = self.sequences.get(place.row).copied().unwrap_or((place.row, 0));
        let (block, step) = region.key(place, known)?;
        Some(LatentPlace { problem, block, step })
    }

    pub fn firings(&self) -> Vec<Firings> {
        self.counts().firings.clone()
    }

    /// Whether something was replaced in a block of a sequence.
    pub(crate) fn has_changed(&self, sequence: usize, block: usize) -> bool {
        self.counts().blocks.contains(&(sequence, block))
    }

    fn counts(&self) -> MutexGuard<'_, FiringCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, sequence: usize, block: usize, old: &[f32], new: &[f32]) {
        let mut counts = self.counts();
        counts.blocks.insert((sequence, block));
        if let Some(firings) = counts.firings.get_mut(sequence) {
            firings.count += 1;
            firings.moved += old.iter().zip(new).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
        }
    }
}

impl ModelChange {
    /// Makes the interventions from a run's material, with a draw for each point.
    pub fn prepare<'a>(&'a self, material: &Material<'a>, draw: impl Fn(HookPoint) -> Draw) -> PreparedChange<'a> {
        let new_values: NewValues<'a> = match &self.intervention {
            InterventionSpec::Named { about, dose } => {
                let one = |&point: &HookPoint| {
                    (point, (about.make)(material, Draw { dose: dose.unwrap_or_default(), ..draw(point) }))
                };
                let made: Vec<_> = self.points.iter().map(one).collect();
                Box::new(move |at, old| {
                    Ok(made
                        .iter()
                        .find(|(point, _)| *point == at.point)
                        .and_then(|(_, made)| made.input(&at.known, old)))
                })
            }
            InterventionSpec::File { adds, .. } => Box::new(|at, old| {
                let given = self.file_value(at)?;
                Ok(Some(if *adds { old.iter().zip(given).map(|(a, b)| a + b).collect() } else { given }))
            }),
            InterventionSpec::Call(function) => Box::new(|at, old| self.call(*function, at, old).map(Some)),
        };
        let Self { name, points, heads, region, .. } = self.clone();
        PreparedChange { name, points, heads, region, new_values }
    }

    /// The client's new value for a position.
    fn call(&self, function: usize, at: &ChangePlace, values: &[f32]) -> Result<Vec<f32>> {
        let inner = self.shapes.iter().find(|(point, _)| *point == at.point).map_or(&[][..], |(_, inner)| inner);
        let shape = [&[values.len() / inner.iter().product::<usize>().max(1)], inner].concat();
        let Place { row, position, step, .. } = *at.place;
        let hook = at.point.to_string();
        client()?(&FunctionCall { function, hook, row, position, step: step.to_string(), shape, values })
    }

    fn file_value(&self, at: &ChangePlace) -> Result<Vec<f32>> {
        let of = self.values.iter().find(|(point, ..)| *point == at.point);
        let (_, heads, values) = of.with_context(|| format!("the file has no values for `{}`", at.point))?;
        let by_position = matches!(self.region, Select::Position(_));
        let given = values.values_at(at.place, by_position).with_context(|| {
            let Place { step, position, .. } = at.place;
            format!("the file has no {step} at position {position}; it has {}", values.places())
        })?;
        Ok(self.heads.select_values(given, *heads))
    }
}

impl<'a> PreparedChange<'a> {
    /// A change of every latent input.
    pub(crate) fn at_latents(
        name: &str,
        new_values: impl Fn(&ChangePlace, &[f32]) -> Result<Option<Vec<f32>>> + Send + Sync + 'a,
    ) -> Self {
        let points = vec![HookPoint::new(PointKind::LatentInjected)];
        let new_values = Box::new(new_values);
        Self { name: name.to_owned(), points, heads: Heads::default(), region: Select::LATENTS, new_values }
    }

    /// Returns the activation with its changed values, and the number of changed positions.
    fn apply(&self, site: &Site, value: Activation, log: &ChangeLog) -> Result<(Activation, usize)> {
        let selected = site
            .places
            .iter()
            .filter_map(|place| Some(ChangePlace { point: site.point, place, known: log.place(place, self.region)? }));
        let selected: Vec<ChangePlace> = selected.collect();
        if selected.is_empty() {
            return Ok((value, 0));
        }
        let (dims, mut data, mut fired) = (value.dims(), value.to_vec()?, 0);
        for at in &selected {
            let ranges = self.heads.ranges(site.point.kind.ranges(&dims, at.place));
            let old = gather(&data, &ranges);
            let Some(mut new) = (self.new_values)(at, &old)? else { continue };
            self.check(site.point, &old, &mut new)?;
            let mut rest = &new[..];
            for range in ranges {
                let (part, later) = rest.split_at(range.len());
                data[range].copy_from_slice(part);
                rest = later;
            }
            log.add(at.place.row, at.known.block, &old, &new);
            fired += 1;
        }
        Ok((value.with_values(data), fired))
    }

    /// Masks hidden scores again, and checks the new values.
    fn check(&self, point: HookPoint, old: &[f32], new: &mut [f32]) -> Result<()> {
        ensure!(new.len() == old.len(), "{}: {} values at `{point}`, expected {}", self.name, new.len(), old.len());
        if point.kind == PointKind::AttnScores {
            let hidden = new.iter_mut().zip(old).filter(|(_, old)| Activation::is_masked(**old));
            hidden.for_each(|(new, old)| *new = *old);
        }
        let wrong = if point.kind.is_scale() { new.iter().find(|new| new.is_nan() || **new <= 0.0) } else { None };
        ensure!(
            wrong.is_none(),
            "{}: {} at `{point}`: the stream is divided by it, put in values above 0",
            self.name,
            wrong.copied().unwrap_or_default()
        );
        Ok(())
    }
}

impl<'h> Hooks<'h> {
    /// Adds a change. `log` has the sequences of the run, and counts the changes to each.
    pub fn change(&mut self, change: &'h PreparedChange<'_>, log: &'h ChangeLog) -> &mut Self {
        self.replace_at(change.name.clone(), change.points.clone(), move |site, value| change.apply(site, value, log))
    }
}

/// The values in some ranges, concatenated.
pub(super) fn gather(data: &[f32], ranges: &[Range<usize>]) -> Vec<f32> {
    ranges.iter().flat_map(|range| data[range.clone()].iter().copied()).collect()
}

/// The changes of one run, in the order of their application, with their numbers (keys of random draws) and texts.
#[derive(Default)]
pub struct Changes(Vec<(usize, Change, ModelChange)>);

/// Effect of one change.
#[derive(Clone, Debug, Serialize)]
pub struct ChangeReport {
    /// The change as it was written.
    pub hook: String,
    /// Positions that were changed.
    pub fired: usize,
    /// Mean ‖new − old‖ per position.
    pub mean_change: f64,
    /// Firings per sequence, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<usize>>,
}

/// Maximum number of changes of one run. A pattern counts once.
const MOST_CHANGES: usize = 256;

impl Changes {
    /// Parses and checks the changes of one run, including files.
    pub fn read<S: AsRef<str>>(texts: impl IntoIterator<Item = S>, config: &ModelConfig) -> Result<Self> {
        let texts: Vec<S> = texts.into_iter().collect();
        ensure!(
            texts.len() <= MOST_CHANGES,
            "{} changes at hooks, more than {MOST_CHANGES}: use patterns such as `blocks.*.attn.hook_z[head=0,3]`",
            texts.len()
        );
        let one = |(number, text): (usize, S)| {
            let text = text.as_ref();
            let read = text.parse::<Change>().and_then(|change| Ok((number, change.clone(), change.resolve(config)?)));
            read.with_context(|| format!("change `{text}`"))
        };
        texts.into_iter().enumerate().map(one).collect::<Result<_>>().map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that fired in a sequence of a run, by the run's reports.
    #[must_use]
    pub fn fired_in(&self, sequence: usize, reports: &[ChangeReport]) -> Self {
        let fired = |report: &ChangeReport| report.rows.as_ref().is_none_or(|rows| rows[sequence] > 0);
        let here = self.0.iter().zip(reports).filter(|(_, report)| fired(report));
        Self(here.map(|(change, _)| change.clone()).collect())
    }

    /// As hook specs, for sequences with at most `known` known positions at the start.
    pub fn specs(&self, known: usize) -> Result<Vec<HookSpec>> {
        let one = |(_, change, resolved): &(usize, Change, ModelChange)| {
            let select = resolved.region.at(known).with_context(|| format!("change `{change}`"))?;
            Ok(HookSpec { pattern: change.pattern.clone(), select })
        };
        self.0.iter().map(one).collect()
    }

    /// Runs `work` with sequences (problem, known positions) under the changes; returns its result and the effect of each change. `ran`
    /// describes the run, for the error.
    ///
    /// # Errors
    /// A change that never fired; failures of `work`.
    pub fn run<T>(
        &self,
        (sequences, seed): (&[(usize, usize)], u64),
        ran: impl FnOnce(&T) -> String,
        work: impl FnOnce(Hooks<'_>) -> Result<T>,
    ) -> Result<(T, Vec<ChangeReport>)> {
        let prepare = |index: usize| {
            let (number, _, change) = &self.0[index];
            // Two points, and two changes of one point, have different draws.
            let draw = |point: HookPoint| {
                let layer = point.layer.map_or(u64::MAX, |layer| layer as u64);
                let place = keyed([layer, point.kind as u64, *number as u64, 0]).next_u64();
                Draw::keyed(seed ^ place, 0, None)
            };
            let log = ChangeLog::new(sequences.iter().copied());
            (change.prepare(&Material::NONE, draw), log)
        };
        let prepared: Vec<(PreparedChange, ChangeLog)> = (0..self.0.len()).map(prepare).collect();
        let mut hooks = Hooks::none();
        for (change, log) in &prepared {
            hooks.change(change, log);
        }
        let done = work(hooks)?;
        let ran = ran(&done);
        let reports = prepared.iter().map(|(change, log)| log.report(&change.name, &ran)).collect::<Result<_>>()?;
        Ok((done, reports))
    }
}

impl ChangeLog {
    fn report(&self, text: &str, ran: &str) -> Result<ChangeReport> {
        let firings = self.firings();
        let fired: usize = firings.iter().map(|firings| firings.count).sum();
        ensure!(fired > 0, "change `{text}` never fired: {ran}");
        let moved: f64 = firings.iter().map(|firings| firings.moved).sum();
        let rows = (firings.len() > 1).then(|| firings.iter().map(|firings| firings.count).collect());
        Ok(ChangeReport { hook: text.to_owned(), fired, mean_change: moved / fired as f64, rows })
    }
}
