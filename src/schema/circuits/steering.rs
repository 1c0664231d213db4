//! Steering: what an added or removed direction does to answers, by layer × latent step.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::nth::Nth;
use crate::schema::{Identity, Named};
use crate::stats::{Bootstrap, Estimate, FEWEST, Flips, LEVEL, accuracy, holm};

/// What is done with the direction from the mean state of the own value to that of another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steered {
    /// So many times the difference is added.
    Add(f64),
    /// The state's part along it is taken out.
    ProjectOut,
}

impl Steered {
    /// As it stands in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Steered::Add(_) => "add",
            Steered::ProjectOut => "project_out",
        }
    }
}

/// What became of one problem, steered at one cell: with the direction of the values, and with a random one.
#[derive(Clone, Debug, PartialEq)]
pub struct SteeringTrial {
    pub problem: usize,
    pub layer: usize,
    pub step: Nth,
    pub steered: Steered,
    /// Whether the answer is the one that arithmetic predicts from the other value.
    pub hit: [bool; 2],
    /// Whether it is still the gold one.
    pub kept: [bool; 2],
    /// How often the first answer would be a hit, had the value nothing to do with it.
    pub chance: f64,
    /// Length of what was added or taken out, over that of the state.
    pub length: [f64; 2],
}

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
    /// The same had the value nothing to do with it, as in `known_value`.
    pub chance: Estimate,
    pub above_chance: Estimate,
    /// The same share with a random direction of the same length.
    pub random_hit_rate: Estimate,
    /// The difference of the two, paired.
    pub above_random: Estimate,
    /// Share of the problems whose answer is still the gold one, and the same with the random direction.
    pub kept: Estimate,
    pub random_kept: Estimate,
    /// Mean length of what was added or taken out, over that of the state; the random direction's.
    pub length: f64,
    pub random_length: f64,
    /// Exact McNemar test of the direction against the random one (of `add`, hits; of `project_out`, answers that are still
    /// gold), Holm over all cells.
    pub p_holm: f64,
}

impl Named for SteeringRow {
    const NAME: &'static str = "steering";
}

impl SteeringRow {
    /// The verdict that the answer follows the direction: more often than with a random one, and above chance.
    pub fn follows(&self) -> bool {
        self.action == Steered::Add(1.0).name()
            && self.identity.n >= FEWEST
            && self.p_holm <= 1.0 - LEVEL
            && self.above_random.value > 0.0
            && self.hit_rate.low > self.chance.high
    }
}

/// One row a cell, in the order of layer, step and action; a cell of a single problem is left out.
///
/// # Errors
/// As the bootstrap's.
pub(crate) fn steerings(identity: &Identity, trials: &[SteeringTrial]) -> Result<Vec<SteeringRow>> {
    // Doses in their order, the projection last.
    let rank = |steered: Steered| match steered {
        Steered::Add(dose) => (0, dose.to_bits()),
        Steered::ProjectOut => (1, 0),
    };
    let mut cells: BTreeMap<_, Vec<&SteeringTrial>> = BTreeMap::new();
    trials.iter().for_each(|t| cells.entry((t.layer, t.step, rank(t.steered))).or_default().push(t));
    let (mut rows, mut p) = (vec![], vec![]);
    for trials in cells.into_values().filter(|trials| trials.len() > 1) {
        let (row, p_value) = cell(identity, &trials)?;
        rows.push(row);
        p.push(p_value);
    }
    if !rows.is_empty() {
        rows.iter_mut().zip(holm(&p)?).for_each(|(row, p)| row.p_holm = p);
    }
    Ok(rows)
}

fn cell(identity: &Identity, trials: &[&SteeringTrial]) -> Result<(SteeringRow, f64)> {
    let of = |pick: &dyn Fn(&SteeringTrial) -> bool| -> Vec<bool> { trials.iter().map(|t| pick(t)).collect() };
    let mean = |which: usize| trials.iter().map(|t| t.length[which]).sum::<f64>() / trials.len() as f64;
    let (hit, random_hit) = (of(&|t| t.hit[0]), of(&|t| t.hit[1]));
    let (kept, random_kept) = (of(&|t| t.kept[0]), of(&|t| t.kept[1]));
    let chance: Vec<f64> = trials.iter().map(|t| t.chance).collect();
    let hits: Vec<f64> = hit.iter().map(|&hit| f64::from(u8::from(hit))).collect();
    let bootstrap = Bootstrap::seeded(identity.seed);
    let against_random = Flips::count(&random_hit, &hit)?;
    let (dose, p_value) = match trials[0].steered {
        Steered::Add(dose) => (Some(dose), against_random.p_value()),
        Steered::ProjectOut => (None, Flips::count(&random_kept, &kept)?.p_value()),
    };
    let row = SteeringRow {
        identity: Identity { n: trials.len(), ..identity.clone() },
        layer: trials[0].layer,
        step: trials[0].step,
        action: trials[0].steered.name().into(),
        dose,
        hit_rate: accuracy(&hit)?,
        chance: bootstrap.mean(&chance)?,
        above_chance: bootstrap.paired(&chance, &hits)?,
        random_hit_rate: accuracy(&random_hit)?,
        above_random: against_random.change(LEVEL)?,
        kept: accuracy(&kept)?,
        random_kept: accuracy(&random_kept)?,
        length: mean(0),
        random_length: mean(1),
        p_holm: p_value,
    };
    Ok((row, p_value))
}
