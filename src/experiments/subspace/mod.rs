//! Distributed alignment search (Geiger et al. 2024) at latent steps: how many dimensions of a latent carry the value?
//!
//! 1. At one layer and latent step, replace the state of a block, within the span of r orthonormal columns, by that of another problem's
//!    block: `h + R Rᵀ (h′ − h)`.
//! 2. Try the `whole` state at every place, and choose the place with the most predicted answers among the training pairs.
//! 3. There, learn the columns on pairs of one half of the problems, so that the answer becomes the one that arithmetic predicts (as in
//!    `known_value`). Start from the directions in which the mean states of different values differ: if a state is read through a
//!    threshold, a random start has almost no gradient.
//! 4. Judge on pairs of the other half, with values of the training pairs (`seen`) and with values that no training pair has (`unseen`).
//!    As a second test, `erased` sets the component in the span to its training mean: if it carries the value, the correct answer is lost.
//! 5. Placebos: random columns (`random`), columns learnt from permuted predictions (`shuffled`), and, at the same place, another
//!    variable: the step's first operand.
//!
//! Misleads: `shuffled` starts from means too, of states assigned to values at random; if states differ in few dimensions it moves some
//! answers (`tests/subspace.rs` prints how many): it is the rank's null, not chance. A weak rank may not have converged: see `fitted`, the
//! share of its own training pairs that it moves. Text after the block is fixed to the normal run's, and only the answer's first token is
//! judged. The rank at which the value moves is an upper bound of what the model needs. Gradient descent may find a direction that leads
//! to the answer and that natural states do not use: success on unseen values speaks against that, and failure there may only mean that
//! each value has its own direction.

mod pairs;
#[cfg(test)]
mod pyvene;
mod rotation;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use rand::seq::SliceRandom;

use super::markdown::{or_dash, table_of, titled};
use super::{About, Journal, check_of, layers_named, steps_named};
use crate::latent::Controller;
use crate::model::HookPoint;
use crate::nth::Nth;
use crate::random::keyed;
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::{BelowOne, Count, Each, Positive};
use crate::schema::{
    Donors, Rotation, RowFile as _, SubspaceDirectionRow, SubspaceRow, Variable, adjust, beyond_chance, stream_name,
};
use crate::stats::{MeanVector, by_problem};
use crate::study::Study;
use crate::study::arithmetic::{Arithmetic, of_study};
use crate::study::block_values::by_chance;
use crate::study::circuits::interchange::{GivenState, Interchange, Within};
use crate::study::circuits::patch::Node;
use pairs::{ExchangePair, Exchanges, Pairs, States, Target, states, targets};
use rotation::{At, Columns, Lessons};

pub const ABOUT: About = About::asking(
    "how many dimensions of a latent carry the value: learnt subspaces exchanged between problems, by rank, with placebos",
)
.on_request();

settings! {
    pub struct Config {
        /// 0 is the input of the first block, l the stream after the l-th; empty: all.
        pub layers: Vec<usize> = vec![],
        /// Latent steps; empty: all that the blocks have.
        pub steps: Vec<Nth> = vec![],
        /// Dimensions of the learnt subspaces.
        pub ranks: Vec<usize> = vec![1, 2, 4, 8] => Each(&Count(1, MOST_ROWS)),
        /// Pairs to learn from, at most.
        pub pairs: usize = 128,
        /// Pairs of each kind to be judged on, at most.
        pub judged: usize = 100,
        /// Share of the values that no training pair has.
        pub unseen: f64 = 0.25 => BelowOne,
        /// Updates of the columns.
        pub updates: usize = 120,
        /// Pairs of one update.
        pub batch: usize = 32,
        /// Radians by which a column turns in the first update, on average.
        pub learning_rate: f64 = 0.03 => Positive,
        /// Random subspaces of each rank.
        pub draws: usize = 3 => Count(1, MOST_ROWS),
    }
}

impl Config {
    /// The requested layers.
    fn check(&self, study: &Study) -> Result<Vec<usize>> {
        check_of("subspace", self, Self::RANGES)?;
        let layers = layers_named("subspace", &self.layers, study.model.layers.len())?;
        let width = study.model.config().hidden_size;
        let fits = self.ranks.iter().all(|rank| (1..=width).contains(rank));
        ensure!(fits && !self.ranks.is_empty(), "subspace.ranks must be from 1 to {width}, found {:?}", self.ranks);
        Ok(layers)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExchangePlace {
    layer: usize,
    /// An index, from 0.
    step: usize,
}

/// Sequences computed up to one latent step.
struct PreparedPairs<'a> {
    step: usize,
    interchange: Interchange<'a>,
    /// By target: its batch row there; `None` if its block lacks the step.
    rows: Vec<Option<usize>>,
}

/// Shared state of the experiment.
struct Search<'a> {
    study: &'a Study,
    config: &'a Config,
    targets: &'a [Target],
    states: States,
    masked: Vec<u32>,
}

#[derive(Clone, Copy)]
struct SubspaceJob<'p> {
    variable: Variable,
    pairs: &'p Pairs,
    place: ExchangePlace,
    rotation: Rotation,
    rank: usize,
}

/// Writes the rows, and the columns of every subspace.
pub fn run(study: &Study, config: &Config, journal: &mut Journal) -> Result<String> {
    config.check(study)?;
    let (rows, directions) = rows_by(study, config, &*of_study(study)?)?;
    let said = journal.tell(&rows, table)?;
    if !directions.is_empty() {
        journal.write(SubspaceDirectionRow::NAME, &directions, false)?;
    }
    Ok(said)
}

/// One row per subspace and kind of donors, and one per column of a subspace. The caller's arithmetic predicts the answers.
pub fn rows_by(
    study: &Study,
    config: &Config,
    arithmetic: &dyn Arithmetic,
) -> Result<(Vec<SubspaceRow>, Vec<SubspaceDirectionRow>)> {
    let layers = config.check(study)?;
    let targets = targets(study)?;
    let needs = |there, what: &str| study.require(there, || format!("subspace needs {what}; use more problems"));
    let groups = study.corpus.groups();
    let found = targets.iter().map(|target| groups[target.held.problem]).collect::<BTreeSet<_>>().len();
    needs(
        found >= 4,
        &format!("four groups of problems with right answers that follow from one block alone, found {found}"),
    )?;
    let points: Vec<HookPoint> = layers.iter().map(|&layer| Node::Resid(layer).point()).collect();
    let states = states(study, &targets, &points)?;
    let masked = study.mask_in_text(study.reasoning.blocks.model_opens());
    let search = Search { study, config, targets: &targets, states, masked };
    let ready = search.ready()?;
    let most = [config.pairs, config.judged];
    let of = |variable| Exchanges { study, targets: &targets, arithmetic, variable }.pairs(most, config.unseen);
    let (value, operand) = (of(Variable::Value)?, of(Variable::Operand)?);
    let enough = |pairs: &Pairs| pairs.train.len() > 1 && pairs.seen.len() > 1;
    needs(enough(&value), "two pairs whose answer another value would change")?;
    let places: Vec<ExchangePlace> =
        ready.iter().flat_map(|r| layers.iter().map(|&layer| ExchangePlace { layer, step: r.step })).collect();
    let whole = |variable, pairs, &place: &ExchangePlace| {
        let rank = study.model.config().hidden_size;
        SubspaceJob { variable, pairs, place, rotation: Rotation::Whole, rank }
    };
    let mut jobs: Vec<SubspaceJob> = places.iter().map(|place| whole(Variable::Value, &value, place)).collect();
    let mut measured = search.all(&jobs, &ready)?;
    let best = measured.iter().enumerate().max_by(|(i, a), (j, b)| a.fits.cmp(&b.fits).then(j.cmp(i)));
    let place = best.map(|(i, _)| jobs[i].place).context("no place to exchange states at")?;
    let mut more: Vec<SubspaceJob> = vec![];
    let learnt = |variable, pairs, rotation| {
        let ranks = config.ranks.iter().filter(|rank| **rank < study.model.config().hidden_size);
        ranks.map(move |&rank| SubspaceJob { variable, pairs, place, rotation, rank }).collect::<Vec<_>>()
    };
    for rotation in [Rotation::Trained, Rotation::Random, Rotation::Shuffled] {
        more.extend(learnt(Variable::Value, &value, rotation));
    }
    if enough(&operand) {
        more.extend(places.iter().map(|place| whole(Variable::Operand, &operand, place)));
        more.extend(learnt(Variable::Operand, &operand, Rotation::Trained));
    }
    measured.extend(search.all(&more, &ready)?);
    jobs.extend(more);
    let (mut rows, mut directions) = (vec![], vec![]);
    for (job, measured) in jobs.iter().zip(&measured) {
        directions.extend(search.directions(job, measured));
        rows.extend(search.row(job, measured, Donors::Seen)?);
        rows.extend(search.row(job, measured, Donors::Unseen)?);
    }
    adjust(rows.iter_mut().map(|row: &mut SubspaceRow| &mut row.p_holm))?;
    Ok((rows, directions))
}

struct JudgedExchange {
    problem: usize,
    hit: bool,
    kept: bool,
    /// Whether the answer is still the gold one with the component set to the training states' mean.
    erased: bool,
    chance: f64,
}

struct SubspaceEffect {
    trained_on: usize,
    /// Training pairs with the trained answer, and their number; draws pooled.
    fits: usize,
    of: usize,
    seen: Vec<JudgedExchange>,
    unseen: Vec<JudgedExchange>,
    /// By draw; empty for whole states.
    columns: Vec<Columns>,
}

impl<'a> Search<'a> {
    /// The sequences before each requested latent step.
    fn ready(&self) -> Result<Vec<PreparedPairs<'a>>> {
        let longest = (0..).take_while(|&step| self.targets.iter().any(|t| t.at(step).is_some())).count();
        let ready = |step: usize| {
            let (mut places, mut rows) = (vec![], vec![]);
            for target in self.targets {
                let at = target.at(step);
                rows.push(at.map(|_| places.len()));
                places.extend(at.map(|at| (&target.row, at)));
            }
            Ok(PreparedPairs { step, interchange: Interchange::new(self.study, &places)?, rows })
        };
        steps_named("subspace", &self.config.steps, longest)?.into_iter().map(ready).collect()
    }

    fn all(&self, jobs: &[SubspaceJob], ready: &[PreparedPairs]) -> Result<Vec<SubspaceEffect>> {
        self.study.each("subspaces measured", jobs, |job| {
            let ready = ready.iter().find(|r| r.step == job.place.step).context("a step without rows")?;
            self.measure(job, ready)
        })
    }

    /// The pairs that have a place, with the donor state of each.
    fn with_donor_states<'p>(
        &'p self,
        pairs: &'p [ExchangePair],
        ready: &PreparedPairs,
        point: HookPoint,
    ) -> (Vec<&'p ExchangePair>, Vec<GivenState<'p>>) {
        let state = |pair: &ExchangePair| self.states.get(&(point, ready.step, pair.donor)).map(Vec::as_slice);
        pairs.iter().filter_map(|pair| Some((pair, (ready.rows[pair.target]?, state(pair)?)))).unzip()
    }

    fn measure(&self, job: &SubspaceJob, ready: &PreparedPairs) -> Result<SubspaceEffect> {
        let (point, model) = (Node::Resid(job.place.layer).point(), &self.study.model);
        let (pairs, given) = self.with_donor_states(&job.pairs.train, ready, point);
        let mut lessons: Vec<(u32, i64)> = pairs.iter().map(|pair| (pair.says, pair.holds)).collect();
        let mut out = SubspaceEffect { trained_on: 0, fits: 0, of: 0, seen: vec![], unseen: vec![], columns: vec![] };
        if given.is_empty() {
            return Ok(out);
        }
        let mut mean = MeanVector::default();
        given.iter().for_each(|(_, state)| mean.add(*state));
        let mean = mean.mean_f32();
        let draws = if job.rotation == Rotation::Random { self.config.draws } else { 1 };
        for draw in 0..draws {
            let mut rng = keyed([self.study.seed, 2 + job.rotation as u64, job.rank as u64, draw as u64]);
            if job.rotation == Rotation::Shuffled {
                lessons.shuffle(&mut rng);
            }
            let (says, holds): (Vec<u32>, Vec<i64>) = lessons.iter().copied().unzip();
            let within = match job.rotation {
                Rotation::Whole => None,
                Rotation::Random => Some(Columns::random(model.config().hidden_size, job.rank, &mut rng)?),
                Rotation::Trained | Rotation::Shuffled => {
                    let at = At { model, interchange: &ready.interchange, point, masked: &self.masked };
                    let lessons = Lessons { given: &given, says: &says, holds: &holds };
                    out.trained_on = given.len();
                    Some(Columns::learnt(at, lessons, job.rank, self.config, &mut rng)?)
                }
            };
            let span = within.as_ref().map(|columns| columns.tensor(model));
            out.columns.extend(within);
            let said = ready.interchange.predict(point, &given, &span, &self.masked)?;
            out.fits += said.iter().zip(&says).filter(|(said, says)| said == says).count();
            out.of += said.len();
            out.seen.extend(self.judged(&job.pairs.seen, (ready, point), &span, &mean)?);
            out.unseen.extend(self.judged(&job.pairs.unseen, (ready, point), &span, &mean)?);
        }
        Ok(out)
    }

    fn judged(
        &self,
        pairs: &[ExchangePair],
        (ready, point): (&PreparedPairs, HookPoint),
        within: &Within,
        mean: &[f32],
    ) -> Result<Vec<JudgedExchange>> {
        let (pairs, given) = self.with_donor_states(pairs, ready, point);
        let says = |given: &[GivenState]| ready.interchange.predict(point, given, within, &self.masked);
        // A sequence without the component gives the same answer for every donor.
        let rows: Vec<usize> = given.iter().map(|(row, _)| *row).collect::<BTreeSet<_>>().into_iter().collect();
        let erasing: Vec<GivenState> = rows.iter().map(|&row| (row, mean)).collect();
        let without: BTreeMap<usize, u32> = rows.into_iter().zip(says(&erasing)?).collect();
        let event = |((pair, (row, _)), said): ((&&ExchangePair, &GivenState), u32)| {
            let Target { held, gold, .. } = &self.targets[pair.target];
            let (hit, kept, erased) = (said == pair.says, said == *gold, without[row] == *gold);
            JudgedExchange { problem: held.problem, hit, kept, erased, chance: by_chance(&pair.drawable, Some(&said)) }
        };
        Ok(pairs.iter().zip(&given).zip(says(&given)?).map(event).collect())
    }

    fn directions(&self, job: &SubspaceJob, measured: &SubspaceEffect) -> Vec<SubspaceDirectionRow> {
        let row = |draw, (column, direction): (usize, Vec<f64>)| SubspaceDirectionRow {
            identity: self.study.identity(self.study.corpus.test.len()),
            variable: job.variable,
            layer: job.place.layer,
            step: Nth::new(job.place.step),
            rotation: job.rotation,
            rank: job.rank,
            draw,
            column,
            direction,
        };
        let of =
            |(draw, columns): (usize, &Columns)| columns.each().enumerate().map(|c| row(draw, c)).collect::<Vec<_>>();
        measured.columns.iter().enumerate().flat_map(of).collect()
    }

    /// `None` for a single problem, which has no interval.
    fn row(&self, job: &SubspaceJob, measured: &SubspaceEffect, donors: Donors) -> Result<Option<SubspaceRow>> {
        let events = if donors == Donors::Seen { &measured.seen } else { &measured.unseen };
        let seed = self.study.seed;
        let share = |pick: fn(&JudgedExchange) -> bool| {
            by_problem::share(seed, &events.iter().map(|e| (e.problem, pick(e))).collect::<Vec<_>>())
        };
        let hits: Vec<(usize, bool, f64)> = events.iter().map(|e| (e.problem, e.hit, e.chance)).collect();
        let (Some([hit_rate, chance, above_chance]), Some(kept), Some(erased)) =
            (beyond_chance(seed, &hits)?, share(|e| e.kept)?, share(|e| e.erased)?)
        else {
            return Ok(None);
        };
        Ok(Some(SubspaceRow {
            identity: self.study.identity(hit_rate.n),
            variable: job.variable,
            layer: job.place.layer,
            step: Nth::new(job.place.step),
            rotation: job.rotation,
            rank: job.rank,
            donors,
            trained_on: measured.trained_on,
            fitted: (measured.of > 0).then(|| measured.fits as f64 / measured.of as f64),
            hit_rate,
            chance,
            above_chance,
            kept,
            erased,
            p_holm: (2.0 * above_chance.p_above(0.0)).min(1.0),
        }))
    }
}

/// Markdown: the effect of the whole state at each place, then of each subspace by rank.
pub fn table(rows: &[SubspaceRow]) -> String {
    let columns = "variable | layer | step | subspace | rank | donors' values | hit rate | chance | still gold | on training pairs | \
                   right when erased";
    let table = table_of(columns, rows, |r| {
        let SubspaceRow { variable, layer, step, rotation, rank, donors, hit_rate, .. } = r;
        let (star, fitted) =
            (if r.carries() { " *" } else { "" }, or_dash(r.fitted.map(|share| format!("{share:.2}"))));
        let [chance, kept, erased] = [r.chance, r.kept, r.erased].map(|share| format!("{:.2}", share.value));
        format!(
            "{variable:?} | {} | {step} | {rotation:?} | {rank} | {donors:?} | {hit_rate:.2}{star} | {chance} | {kept} | \
             {fitted} | {erased}",
            stream_name(*layer)
        )
    });
    let said = match SubspaceRow::dimensions(rows, Variable::Value, MOST_OF_IT) {
        Some(rank) => format!(
            "\nThe value: {rank} dimensions have at least {MOST_OF_IT} of the whole state's effect, for values of the training pairs.{}\n",
            elsewhere(rows, rank)
        ),
        None => format!("\nNo learnt subspace has {MOST_OF_IT} of the whole state's effect on the value.\n"),
    };
    let title = "Share of exchanges after which the answer is the predicted one [95 %]; `*`: above chance (Holm over all rows).";
    titled(title, &table) + &said + &unlearnt(rows)
}

/// Effect of a rank's trained subspace for values that no training pair has: a code of the trained values alone has none.
fn elsewhere(rows: &[SubspaceRow], rank: usize) -> String {
    let of = |rotation, rank: Option<usize>| {
        let asked = (Variable::Value, rotation, Donors::Unseen);
        let mine = rows.iter().filter(|r| (r.variable, r.rotation, r.donors) == asked);
        mine.filter(|r| rank.is_none_or(|rank| r.rank == rank)).map(|r| r.hit_rate.value).reduce(f64::max)
    };
    match (of(Rotation::Trained, Some(rank)), of(Rotation::Whole, None)) {
        (Some(part), Some(whole)) => {
            format!(" For other values the answer is the predicted one in {part:.2} (whole state: {whole:.2}).")
        }
        _ => String::new(),
    }
}

/// A note if a search did not fit its own training pairs while the whole state does.
fn unlearnt(rows: &[SubspaceRow]) -> String {
    let most = |rotation| {
        let of = rows.iter().filter(|r| r.variable == Variable::Value && r.rotation == rotation);
        of.filter_map(|r| r.fitted).fold(0.0, f64::max)
    };
    let (learnt, whole) = (most(Rotation::Trained), most(Rotation::Whole));
    if learnt >= MOST_OF_IT * whole {
        return String::new();
    }
    format!(
        "The best learnt subspace moves {learnt:.2} of its own training pairs, the whole state {whole:.2}: more dimensions are needed, or \
        training has not converged, and no rank is ruled out (`subspace.ranks`, `subspace.updates`, `subspace.learning_rate`).\n"
    )
}

/// Share of the whole state's effect at which a subspace counts as sufficient.
const MOST_OF_IT: f64 = 0.9;
