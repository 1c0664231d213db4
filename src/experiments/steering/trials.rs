//! Mean states of each value, and steered problems, one cell at a time, decoded to their answers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use burn::tensor::{Tensor, TensorData};
use rand::Rng;

use crate::interventions::{drawn_like, norm};
use crate::latent::{Branch, Fork, Prefix, Request, Sequence, Start, Switching, Trace};
use crate::model::hooks::Site;
use crate::model::{Activation, HookPoint, HookSpec, Hooks, Select, Step};
use crate::nth::Nth;
use crate::random::keyed;
use crate::schema::{Identity, SteeringTrialRow};
use crate::stats::MeanVector;
use crate::study::Study;
use crate::study::answers::outcome;
use crate::study::arithmetic::Arithmetic;
use crate::study::block_values::{BlockValue, Prediction, by_chance};
use crate::study::circuits::patch::Node;
use crate::study::staging::capture::at_latents;
use crate::study::sweep::{Sweep, fork};

/// Place and kind of an action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    pub layer: usize,
    /// An index, from 0.
    pub step: usize,
    /// Dose of the added direction; `None`: the component along it is removed.
    pub dose: Option<f64>,
}

impl Cell {
    pub fn point(&self) -> HookPoint {
        Node::Resid(self.layer).point()
    }
}

/// The mean state of each value at each point and latent step.
pub struct SteeringDirections {
    means: BTreeMap<(HookPoint, usize, i64), Vec<f64>>,
    /// Values with a mean at some cell.
    pub values: BTreeSet<i64>,
}

impl SteeringDirections {
    /// From blocks of a normal run; a mean needs at least `least` blocks.
    pub fn new(study: &Study, traces: &[Trace], blocks: &[BlockValue], cells: &[Cell], least: usize) -> Result<Self> {
        let points: Vec<HookPoint> = cells.iter().map(Cell::point).collect::<BTreeSet<_>>().into_iter().collect();
        let steps: BTreeSet<usize> = cells.iter().map(|c| c.step).collect();
        let problems: BTreeSet<usize> = blocks.iter().map(|h| h.problem).collect();
        let rows = traces.iter().filter(|t| problems.contains(&t.problem)).map(|t| t.sequence(&study.corpus.switch));
        let rows: Vec<Sequence> = rows.collect::<Result<_>>()?;
        let (what, states) = at_latents(study, &rows, &points, |problem, block, step| {
            let held = blocks.iter().find(|h| (h.problem, h.block) == (problem, block) && steps.contains(&step))?;
            Some((step, held.value))
        })?;
        let mut sums: BTreeMap<(HookPoint, usize, i64), MeanVector> = BTreeMap::new();
        for (point, states) in points.iter().zip(&states) {
            for (&(step, value), state) in what.iter().zip(states.rows()) {
                sums.entry((*point, step, value)).or_default().add(state.iter());
            }
        }
        sums.retain(|_, sum| sum.n >= least);
        let values = sums.keys().map(|(_, _, value)| *value).collect();
        Ok(Self { means: sums.into_iter().map(|(at, sum)| (at, sum.mean().collect())).collect(), values })
    }

    /// From one value's mean to another's; `None` if either is unknown.
    pub fn between(&self, cell: &Cell, from: i64, to: i64) -> Option<Vec<f64>> {
        let mean = |value| self.means.get(&(cell.point(), cell.step, value));
        Some(mean(to)?.iter().zip(mean(from)?).map(|(to, from)| to - from).collect())
    }
}

/// A problem to steer to another value.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub held: BlockValue,
    pub to: i64,
    /// The predicted answer, among all values that could be drawn.
    predicted: Prediction,
}

/// One block of each problem and a value for it, in random order.
pub fn targets(study: &Study, held: &[BlockValue], values: &BTreeSet<i64>, by: &dyn Arithmetic) -> Vec<Target> {
    let mut found: Vec<(u64, Target)> = vec![];
    for own in held.chunk_by(|a, b| a.problem == b.problem) {
        let problem = own[0].problem;
        let mut rng = keyed([study.seed, 0, problem as u64, 0]);
        let held = own[rng.random_range(0..own.len())];
        let gold = &study.corpus.test[problem].answer;
        let (mut pool, mut drawable): (Vec<(i64, String)>, BTreeMap<String, usize>) = (vec![], BTreeMap::new());
        for &value in values.iter().filter(|value| **value != held.value) {
            // A value with the same answer could not be told from no effect.
            let answer = by.answer_if(problem, held.step, value).filter(|answer| answer != gold);
            let Some(answer) = answer else { continue };
            *drawable.entry(answer.clone()).or_default() += 1;
            pool.push((value, answer));
        }
        if values.contains(&held.value) && !pool.is_empty() {
            let (to, answer) = pool.swap_remove(rng.random_range(0..pool.len()));
            found.push((rng.random(), Target { held, to, predicted: Prediction { answer, drawable } }));
        }
    }
    found.sort_by_key(|(order, target)| (*order, target.held.problem));
    found.into_iter().map(|(_, target)| target).collect()
}

pub struct Trials<'a> {
    pub study: &'a Study,
    pub identity: &'a Identity,
    pub sweep: &'a Sweep<'a>,
    pub cells: &'a [Cell],
    pub directions: &'a SteeringDirections,
}

/// One steered decode.
struct Arm<'a> {
    /// Index of the target in the batch.
    target: usize,
    block: usize,
    cell: &'a Cell,
    /// Before scaling by the dose.
    direction: Vec<f64>,
    /// The direction of the values: its component in the state sets the amount that `project_out` removes.
    along: Vec<f64>,
}

impl Trials<'_> {
    /// Number of cells that a target's block has.
    pub fn reached(&self, target: &Target) -> usize {
        self.cells.iter().filter(|cell| self.direction(target, cell).is_some()).count()
    }

    /// Every cell of some targets, each with its number, with both directions.
    pub fn of_targets(&self, numbered: &[(usize, Target)]) -> Result<Vec<SteeringTrialRow>> {
        let targets: Vec<&Target> = numbered.iter().map(|(_, target)| target).collect();
        let study = self.study;
        let settings = study.settings();
        let decoding = study.decoding(&settings);
        let requests: Vec<Request> = targets.iter().map(|t| self.sweep.requests[t.held.problem].clone()).collect();
        let force_at: Vec<Option<usize>> = targets.iter().map(|t| self.sweep.force_at[t.held.problem]).collect();
        let prefix = Prefix::new(decoding, &requests, &vec![None; requests.len()], &force_at)?;
        let arms = self.arms(&targets);
        // The two directions of a cell are adjacent.
        let mut trials = vec![];
        for arms in arms.chunks((self.sweep.rows_at_once / 2).max(1) * 2) {
            let lengths = RefCell::new(vec![None; arms.len()]);
            let mut hooks = Hooks::none();
            for point in arms.iter().map(|arm| arm.cell.point()).collect::<BTreeSet<_>>() {
                let spec = HookSpec { pattern: point.to_string(), select: Select::LATENTS };
                let lengths = &lengths;
                hooks.replace(&spec, study.model.layers.len(), move |site, value| {
                    steered(site, value, arms, &mut lengths.borrow_mut())
                })?;
            }
            let of = |(id, Arm { target, .. }): (usize, &Arm)| {
                fork(*target, id, &requests[*target], Switching::Free, force_at[*target])
            };
            let forks: Vec<Fork> = arms.iter().enumerate().map(of).collect();
            let done = prefix.fork(decoding, Start::Switch, &forks, &mut Branch::whole(&mut hooks))?;
            drop(hooks);
            let lengths = lengths.into_inner();
            let outcomes =
                done.iter().map(|decoded| outcome(&study.corpus, decoded, None)).collect::<Result<Vec<_>>>()?;
            for ((arms, outcomes), lengths) in
                arms.chunks_exact(2).zip(outcomes.chunks_exact(2)).zip(lengths.chunks_exact(2))
            {
                let (target, cell) = (targets[arms[0].target], arms[0].cell);
                let (problem, at) = (target.held.problem, Step::Latent { block: arms[0].block, step: cell.step });
                let unmet = || format!("steering never reached {at} of problem {problem}");
                let hit = |which: usize| outcomes[which].answer.as_ref() == Some(&target.predicted.answer);
                trials.push(SteeringTrialRow {
                    identity: self.identity.clone(),
                    target: numbered[arms[0].target].0,
                    problem,
                    layer: cell.layer,
                    step: Nth::new(cell.step),
                    dose: cell.dose,
                    hit: hit(0),
                    random_hit: hit(1),
                    kept: outcomes[0].correct,
                    random_kept: outcomes[1].correct,
                    chance: by_chance(&target.predicted.drawable, outcomes[0].answer.as_ref()),
                    length: lengths[0].with_context(unmet)?,
                    random_length: lengths[1].with_context(unmet)?,
                });
            }
        }
        Ok(trials)
    }

    /// From the target's value to the other one; `None` if its block lacks the cell, or a value has no mean there.
    fn direction(&self, target: &Target, cell: &Cell) -> Option<Vec<f64>> {
        let BlockValue { problem, block, value, .. } = target.held;
        // The sweep's bank has the input states of every latent of the normal run.
        let reached = self.sweep.bank.get(problem, block, cell.step).is_some();
        self.directions.between(cell, value, target.to).filter(|_| reached)
    }

    /// Every cell that a target's block has, with the direction of the values and a random one.
    fn arms(&self, targets: &[&Target]) -> Vec<Arm<'_>> {
        let mut arms = vec![];
        for (number, target) in targets.iter().enumerate() {
            let BlockValue { problem, block, .. } = target.held;
            for (c, cell) in self.cells.iter().enumerate() {
                let Some(direction) = self.direction(target, cell) else { continue };
                let mut rng = keyed([self.study.seed, 1, problem as u64, c as u64]);
                let random = drawn_like(&direction, &mut rng);
                for moved in [direction.clone(), random] {
                    arms.push(Arm { target: number, block, cell, direction: moved, along: direction.clone() });
                }
            }
        }
        arms
    }
}

/// Moves the states of the arms at this site; `lengths` receives the relative lengths of the moves.
fn steered(site: &Site, value: Activation, arms: &[Arm], lengths: &mut [Option<f64>]) -> Result<Activation> {
    let here = |arm: &Arm, at: Step| {
        arm.cell.point() == site.point && at == Step::Latent { block: arm.block, step: arm.cell.step }
    };
    let mine: Vec<_> = site.places.iter().filter(|place| here(&arms[place.row], place.step)).collect();
    if mine.is_empty() {
        return Ok(value);
    }
    let old = value.three()?;
    let [b, l, d] = old.dims();
    let mut by = vec![0.0_f32; b * l * d];
    let states = Activation::Rank3(old.clone()).to_vec()?;
    for place in mine {
        let (arm, from) = (&arms[place.row], (place.batch * l + place.index) * d);
        let state: Vec<f64> = states[from..from + d].iter().map(|&x| f64::from(x)).collect();
        let along: f64 = state.iter().zip(&arm.along).map(|(x, d)| x * d).sum();
        let factor = match arm.cell.dose {
            Some(dose) => dose,
            None => -along / norm(&arm.along).powi(2).max(1e-30),
        };
        by[from..from + d].iter_mut().zip(&arm.direction).for_each(|(by, d)| *by = (factor * d) as f32);
        lengths[place.row] = Some(factor.abs() * norm(&arm.direction) / norm(&state).max(1e-30));
    }
    let by = Tensor::<3>::from_data(TensorData::new(by, [b, l, d]), (&old.device(), old.dtype()));
    Ok(Activation::Rank3(old + by))
}
