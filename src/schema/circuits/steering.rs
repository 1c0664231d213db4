//! Steering: the effect of an added or removed direction on answers, by layer × latent step.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::nth::Nth;
use crate::schema::Identity;
use crate::schema::verdict::adjust;
use crate::stats::{Bootstrap, Estimate, FEWEST, Flips, LEVEL, accuracy};

rows! {
    /// One problem steered at one cell, along the direction between two values' mean states and along a random one of the same length.
    pub struct SteeringTrialRow {
        /// `n` counts the steered problems.
        #[serde(flatten)]
        pub identity: Identity,
        pub target: usize => "index from 0": "the steered problem, in the order of the draw",
        pub problem: usize => OutcomeRow,
        pub layer: usize => LensRow,
        pub step: Nth => LensRow,
        /// Factor of the added direction; absent: the state's component along it is removed.
        pub dose: Option<f64> => InterventionRow,
        pub hit: bool => "true or false": "whether the answer is the one that arithmetic predicts from the other value",
        pub random_hit: bool => "true or false": "the same with a random direction of the same length",
        pub kept: bool => "true or false": "whether the answer is still the gold one",
        pub random_kept: bool => "true or false": "the same with the random direction",
        pub chance: f64 => KnownValueRow,
        pub length: f64 => "share": "length of what was added or removed, of the state's own length",
        pub random_length: f64 => SteeringRow,
    }
}

/// Sort key: doses in order (all are above 0), then the projection.
fn rank(dose: Option<f64>) -> (bool, u64) {
    (dose.is_none(), dose.map_or(0, f64::to_bits))
}

measured!(
    SteeringTrialRow,
    (usize, usize, Nth, (bool, u64)),
    |row| (row.target, row.layer, row.step, rank(row.dose)),
    (None, row.target),
    // A block may have none of the steps.
    const EVERY_UNIT: bool = false;
);

rows! {
    /// One cell; intervals of shares are Wilson's, of `above_chance` a bootstrap over problems.
    pub struct SteeringRow {
        /// `n` counts problems.
        #[serde(flatten)]
        pub identity: Identity,
        pub layer: usize => LensRow,
        pub step: Nth => LensRow,
        pub action: String => "name": "add: along the direction between two values; project_out: the part along it is removed",
        pub dose: Option<f64> => "factor": "how many times the difference of the two means is added",
        pub hit_rate: Estimate => "share": "steered problems whose answer is the one that arithmetic predicts from the other value",
        pub chance: Estimate => KnownValueRow,
        pub above_chance: Estimate => KnownValueRow,
        pub random_hit_rate: Estimate => "share": "the same with a random direction of the same length",
        pub above_random: Estimate => "share": "the difference of the two, paired",
        pub kept: Estimate => "share": "steered problems whose answer is still the gold one",
        pub random_kept: Estimate => "share": "the same with the random direction",
        pub length: f64 => "share": "mean length of what was added or removed, of the state's own length",
        pub random_length: f64 => "share": "the same of the random direction",
        /// Exact McNemar test against the random direction (of hits; for `project_out` of right answers), Holm-adjusted over all cells.
        pub p_holm: f64 => AccuracyRow,
    }
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

/// One row per cell with at least two problems, in the order of layer, step and action.
pub(crate) fn steerings(trials: &[SteeringTrialRow]) -> Result<Vec<SteeringRow>> {
    let mut cells: BTreeMap<_, Vec<&SteeringTrialRow>> = BTreeMap::new();
    trials.iter().for_each(|t| cells.entry((t.layer, t.step, rank(t.dose))).or_default().push(t));
    let cells = cells.into_values().filter(|trials| trials.len() > 1);
    let mut rows = cells.map(|trials| cell(&trials)).collect::<Result<Vec<_>>>()?;
    adjust(rows.iter_mut().map(|row| &mut row.p_holm))?;
    Ok(rows)
}

/// The row of a cell; its p-value is not adjusted yet.
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
