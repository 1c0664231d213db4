//! Steering: what an added or removed direction does to answers, by layer × latent step.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::nth::Nth;
use crate::schema::Identity;
use crate::schema::verdict::adjust;
use crate::stats::{Bootstrap, Estimate, FEWEST, Flips, LEVEL, accuracy};

/// Outcome of one problem, steered at one cell: with the direction from the mean state of the own value to that of another,
/// and with a random one of the same length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteeringTrialRow {
    /// `n` counts the problems that are steered.
    #[serde(flatten)]
    pub identity: Identity,
    /// Which of them, in the order in which they were drawn.
    pub target: usize,
    pub problem: usize,
    pub layer: usize,
    pub step: Nth,
    /// Factor of the added direction; absent: the state's component along it is removed.
    pub dose: Option<f64>,
    /// Whether the answer is the one that arithmetic predicts from the other value; the random direction's.
    pub hit: bool,
    pub random_hit: bool,
    /// Whether it is still the gold one.
    pub kept: bool,
    pub random_kept: bool,
    /// How often the first answer would be a hit, had the value nothing to do with it.
    pub chance: f64,
    /// Norm of the change over that of the state.
    pub length: f64,
    pub random_length: f64,
}

/// Doses in their order (all are above 0), the projection last.
fn rank(dose: Option<f64>) -> (bool, u64) {
    (dose.is_none(), dose.map_or(0, f64::to_bits))
}

measured!(
    SteeringTrialRow,
    (usize, usize, Nth, (bool, u64)),
    |row| (row.target, row.layer, row.step, rank(row.dose)),
    (None, row.target),
    // A block may reach none of the steps.
    const EVERY_UNIT: bool = false;
);

/// One cell; intervals of shares are Wilson's, of `above_chance` a bootstrap over problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteeringRow {
    /// `n` counts problems.
    #[serde(flatten)]
    pub identity: Identity,
    /// 0 is the input of the first block, l the stream after the l-th.
    pub layer: usize,
    /// Latent step.
    pub step: Nth,
    /// `add` or `project_out`.
    pub action: String,
    /// Of `add`: how many times the difference of the means.
    pub dose: Option<f64>,
    /// Share of the problems whose answer became the predicted one.
    pub hit_rate: Estimate,
    /// The hit rate had the value nothing to do with it, as in `known_value`.
    pub chance: Estimate,
    pub above_chance: Estimate,
    /// The same share with a random direction of the same length.
    pub random_hit_rate: Estimate,
    /// The difference of the two, paired.
    pub above_random: Estimate,
    /// Share of the problems whose answer is still the gold one, and the same with the random direction.
    pub kept: Estimate,
    pub random_kept: Estimate,
    /// Mean norm of the change over that of the state; the random direction's.
    pub length: f64,
    pub random_length: f64,
    /// Exact McNemar test of the direction against the random one (of `add`, hits; of `project_out`, answers that are still
    /// gold), Holm over all cells.
    pub p_holm: f64,
}

impl SteeringRow {
    /// The verdict that the answer follows the direction: more often than with a random one, and above chance.
    pub fn follows(&self) -> bool {
        self.action == ADD
            && self.identity.n >= FEWEST
            && self.p_holm <= 1.0 - LEVEL
            && self.above_random.value > 0.0
            && self.hit_rate.low > self.chance.high
    }
}

/// Names of the steering operations in rows.
const ADD: &str = "add";
const PROJECT_OUT: &str = "project_out";

/// One row a cell, in the order of layer, step and action; a cell of a single problem is left out.
pub(crate) fn steerings(trials: &[SteeringTrialRow]) -> Result<Vec<SteeringRow>> {
    let mut cells: BTreeMap<_, Vec<&SteeringTrialRow>> = BTreeMap::new();
    trials.iter().for_each(|t| cells.entry((t.layer, t.step, rank(t.dose))).or_default().push(t));
    let cells = cells.into_values().filter(|trials| trials.len() > 1);
    let mut rows = cells.map(|trials| cell(&trials)).collect::<Result<Vec<_>>>()?;
    adjust(rows.iter_mut().map(|row| &mut row.p_holm))?;
    Ok(rows)
}

/// Its p-value is not adjusted yet.
fn cell(trials: &[&SteeringTrialRow]) -> Result<SteeringRow> {
    type Trial = SteeringTrialRow;
    let of = |pick: fn(&Trial) -> bool| -> Vec<bool> { trials.iter().map(|t| pick(t)).collect() };
    let mean = |pick: fn(&Trial) -> f64| trials.iter().map(|t| pick(t)).sum::<f64>() / trials.len() as f64;
    let (hit, random_hit) = (of(|t| t.hit), of(|t| t.random_hit));
    let (kept, random_kept) = (of(|t| t.kept), of(|t| t.random_kept));
    let chance: Vec<f64> = trials.iter().map(|t| t.chance).collect();
    let hits: Vec<f64> = hit.iter().map(|&hit| f64::from(u8::from(hit))).collect();
    let Trial { identity, layer, step, dose, .. } = trials[0];
    let bootstrap = Bootstrap::seeded(identity.seed);
    let against_random = Flips::count(&random_hit, &hit)?;
    let (action, p_value) = match dose {
        Some(_) => (ADD, against_random.p_value()),
        None => (PROJECT_OUT, Flips::count(&random_kept, &kept)?.p_value()),
    };
    Ok(SteeringRow {
        identity: Identity { n: trials.len(), ..identity.clone() },
        layer: *layer,
        step: *step,
        action: action.into(),
        dose: *dose,
        hit_rate: accuracy(&hit)?,
        chance: bootstrap.mean(&chance)?,
        above_chance: bootstrap.paired(&chance, &hits)?,
        random_hit_rate: accuracy(&random_hit)?,
        above_random: against_random.change(LEVEL)?,
        kept: accuracy(&kept)?,
        random_kept: accuracy(&random_kept)?,
        length: mean(|t| t.length),
        random_length: mean(|t| t.random_length),
        p_holm: p_value,
    })
}
