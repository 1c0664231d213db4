//! The film of a training run: the effect of each latent step at every checkpoint, and its change points.
//!
//! Change point of one step and one quantity, estimated at T checkpoints, in their order:
//! 1. For each of the T − 1 ways to cut the series: means before and after, and their difference in standard errors, z. The standard error
//!    of a mean is the mean of its standard errors: all checkpoints are measured on the same problems, so a mean of several may be no more
//!    certain than one. A standard error is a quarter of the 95 % interval's width, at least 1 / (2n).
//! 2. The cut with the largest |z|. Its two-sided p-value is multiplied by T − 1 (Bonferroni over the cuts).
//! 3. Holm over all steps and quantities of the run: a run without any change has a false alarm in at most 5 % of cases.
//!
//! The variance of a mean is at most that of step 1, for any correlation of checkpoints, and a positive correlation of the two means
//! lowers the variance of their difference: the test is conservative. A slow drift also gives a small p; the cut is then inside the drift.

use anyhow::Result;

use super::verdict::{NEITHER, adjust};
use super::{Identity, MARGIN};
use crate::nth::Nth;
use crate::stats::special::normal_cdf;
use crate::stats::{Estimate, FEWEST, LEVEL};

names! {
    /// Quantity measured for a latent step at every checkpoint.
    pub enum FilmQuantity {
        /// Accuracy lost when the step's latent is another problem's.
        Effect = "effect",
        /// Answers that follow an exchanged value, beyond chance.
        Follows = "follows",
        /// Accuracy of a linear probe for the clause's value, beyond the commonest value.
        Readout = "readout",
    }
}

rows! {
    /// One latent step at one checkpoint of a run.
    pub struct FilmRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub frame: Nth => "checkpoint from 1": "place in the order of training among the checkpoints of the run",
        pub step: Nth => "latent step from 1": "of each block",
        pub accuracy: Estimate => "share": "answers that are right, unchanged",
        pub effect: Estimate => "share": "accuracy lost when this step's latent is another problem's",
        pub follows: Option<Estimate> => "share": "answers that follow the value of another problem's latent at this step, beyond chance",
        pub readout: Option<Estimate> => "share":
            "accuracy of a linear probe for the clause's value at the last layer, beyond the commonest value",
    }
}

impl FilmRow {
    fn quantity(&self, quantity: FilmQuantity) -> Option<Estimate> {
        match quantity {
            FilmQuantity::Effect => Some(self.effect),
            FilmQuantity::Follows => self.follows,
            FilmQuantity::Readout => self.readout,
        }
    }
}

/// The most likely change of one quantity of one step over training.
#[derive(Clone, Debug, PartialEq)]
pub struct FilmChange {
    pub step: Nth,
    pub quantity: FilmQuantity,
    pub checkpoints: usize,
    /// The first checkpoint after the change, counted in the order of training.
    pub from: Nth,
    /// Means.
    pub before: Estimate,
    pub after: Estimate,
    /// Corrected for the cuts, and by Holm over the run.
    pub p_holm: f64,
    /// p-value that the smaller mean is equivalent to 0 within [`MARGIN`] (TOST), Holm-adjusted over the run.
    pub p_nothing: f64,
}

impl FilmChange {
    /// `dies` or `born`: the mean after or before the change is equivalent to 0 within [`MARGIN`] (TOST); else `falls`, `rises`, or none.
    pub fn verdict(&self) -> &'static str {
        let nothing = self.p_nothing <= 1.0 - LEVEL;
        match self.before.value < self.after.value {
            _ if self.p_holm > 1.0 - LEVEL || self.before.n < FEWEST => NEITHER,
            true if nothing => "born",
            true => "rises",
            false if nothing => "dies",
            false => "falls",
        }
    }
}

/// The change point of every series with at least two checkpoints; rows in any order.
pub fn film_changes(rows: &[&FilmRow]) -> Result<Vec<FilmChange>> {
    let mut steps: Vec<Nth> = rows.iter().map(|row| row.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let mut changes = vec![];
    for (step, quantity) in steps.into_iter().flat_map(|step| FilmQuantity::ALL.map(|quantity| (step, quantity))) {
        let of_step = rows.iter().filter(|row| row.step == step);
        let mut series: Vec<(Nth, Estimate)> =
            of_step.filter_map(|row| Some((row.frame, row.quantity(quantity)?))).collect();
        series.sort_by_key(|(frame, _)| *frame);
        changes.extend(change(step, quantity, &series));
    }
    adjust(changes.iter_mut().map(|change| &mut change.p_holm))?;
    adjust(changes.iter_mut().map(|change| &mut change.p_nothing))?;
    Ok(changes)
}

/// Half-width of a normal 95 % interval, in standard errors.
const HALF: f64 = 1.959_963_984_540_054;

fn variance(of: &Estimate) -> f64 {
    ((of.high - of.low) / (2.0 * HALF)).max(0.5 / of.n.max(1) as f64).powi(2)
}

/// Mean with the mean standard error, and the smallest n.
fn mean(part: &[(Nth, Estimate)]) -> Estimate {
    let of = |f: &dyn Fn(&Estimate) -> f64| part.iter().map(|(_, e)| f(e)).sum::<f64>() / part.len() as f64;
    let (value, half) = (of(&|e| e.value), HALF * of(&|e| variance(e).sqrt()));
    let n = part.iter().map(|(_, e)| e.n).min().unwrap_or(0);
    Estimate { value, low: value - half, high: value + half, n }
}

fn change(step: Nth, quantity: FilmQuantity, series: &[(Nth, Estimate)]) -> Option<FilmChange> {
    let cuts = (1..series.len()).map(|cut| {
        let (before, after) = (mean(&series[..cut]), mean(&series[cut..]));
        let z = (after.value - before.value).abs() / (variance(&before) + variance(&after)).sqrt();
        (cut, before, after, z)
    });
    let (cut, before, after, z) = cuts.max_by(|a, b| a.3.total_cmp(&b.3))?;
    let p_holm = (2.0 * normal_cdf(-z) * (series.len() - 1) as f64).min(1.0);
    let p_nothing = if before.value < after.value { before } else { after }.p_equivalent(MARGIN);
    Some(FilmChange {
        step,
        quantity,
        checkpoints: series.len(),
        from: series[cut].0,
        before,
        after,
        p_holm,
        p_nothing,
    })
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::stats::Flips;

    const N: usize = 300;
    const STEPS: usize = 5;

    /// A run of so many checkpoints: of `N` problems the share `lost(step, frame)` turns wrong, and .02 turns right.
    fn simulate(seed: u64, frames: usize, lost: impl Fn(usize, usize) -> f64) -> Vec<FilmRow> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut rows = vec![];
        for (frame, step) in (0..frames).flat_map(|frame| (0..STEPS).map(move |step| (frame, step))) {
            let (mut flips, share) = (Flips::default(), lost(step, frame));
            for _ in 0..N {
                let u: f64 = rng.random();
                match u {
                    u if u < share => flips.lost += 1,
                    u if u < share + 0.02 => flips.gained += 1,
                    _ => flips.both_right += 1,
                }
            }
            rows.push(row(seed, frame, step, flips.change(LEVEL).expect("a change").scaled(-1.0)));
        }
        rows
    }

    fn row(seed: u64, frame: usize, step: usize, effect: Estimate) -> FilmRow {
        let identity = Identity { checkpoint: "x".into(), dataset: "x".into(), n: N, seed };
        let (frame, step) = (Nth::new(frame), Nth::new(step));
        FilmRow { identity, frame, step, accuracy: effect, effect, follows: None, readout: None }
    }

    /// A run without a change whose errors go over from one checkpoint to the next with this correlation.
    fn drifting(seed: u64, frames: usize, correlation: f64) -> Vec<FilmRow> {
        const ERROR: f64 = 0.02;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut normal = || {
            let [u, v]: [f64; 2] = [rng.random(), rng.random()];
            (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
        };
        let mut rows = vec![];
        for step in 0..STEPS {
            let mut error = normal();
            for frame in 0..frames {
                let value = 0.2 + ERROR * error;
                let effect = Estimate { value, low: value - HALF * ERROR, high: value + HALF * ERROR, n: N };
                rows.push(row(seed, frame, step, effect));
                error = correlation * error + (1.0 - correlation * correlation).sqrt() * normal();
            }
        }
        rows
    }

    fn found(rows: &[FilmRow]) -> Vec<FilmChange> {
        let all = film_changes(&rows.iter().collect::<Vec<_>>()).expect("changes");
        all.into_iter().filter(|change| change.verdict() != NEITHER).collect()
    }

    #[test]
    fn a_hundred_runs_without_a_change_give_at_most_five_false_alarms() {
        for (frames, lost) in [(3, [0.3; STEPS]), (8, [0.0, 0.02, 0.1, 0.3, 0.6])] {
            let alarms =
                (0..100).filter(|seed| !found(&simulate(*seed, frames, |step, _| lost[step])).is_empty()).count();
            assert!(alarms <= 5, "{alarms} of 100 runs of {frames} checkpoints");
        }
        for (frames, correlation) in [(8, 0.3), (16, 0.6), (16, 0.8)] {
            let alarms = (0..100).filter(|seed| !found(&drifting(*seed, frames, correlation)).is_empty()).count();
            assert!(alarms <= 5, "{alarms} of 100 runs of {frames} checkpoints, correlation {correlation}");
        }
    }

    #[test]
    fn a_latent_that_dies_is_found_within_two_checkpoints() {
        // The third step loses its effect at the fifth checkpoint; the film ends with the sixth.
        let dies = |step, frame| if step == 2 && frame >= 4 { 0.02 } else { 0.2 };
        let right = |seed| match found(&simulate(seed, 6, dies)).as_slice() {
            [only] => (only.step.index(), only.verdict()) == (2, "dies") && only.from.index().abs_diff(4) <= 1,
            _ => false,
        };
        let runs = (0..100).filter(|seed| right(*seed)).count();
        assert!(runs >= 90, "{runs} of 100 runs");
        assert!(found(&simulate(0, 4, dies)).is_empty(), "before it dies");
        let born = found(&simulate(0, 6, |step, frame| if step == 1 && frame < 3 { 0.02 } else { 0.3 }));
        assert_eq!(born.iter().map(FilmChange::verdict).collect::<Vec<_>>(), ["born"]);
    }

    #[test]
    fn one_checkpoint_has_no_change_and_order_of_rows_is_of_no_account() {
        let mut rows = simulate(1, 6, |step, frame| if step == 0 && frame > 2 { 0.5 } else { 0.1 });
        assert!(found(&rows[..STEPS]).is_empty());
        let before = found(&rows);
        rows.reverse();
        assert_eq!(before, found(&rows));
        // By hand: means .1 and .4 with standard errors .01 each, z = .3 / √2 / .01 = 21.2.
        let at = |frame, value: f64| {
            (Nth::new(frame), Estimate { value, low: value - HALF * 0.01, high: value + HALF * 0.01, n: N })
        };
        let of = change(Nth::new(0), FilmQuantity::Effect, &[at(0, 0.1), at(1, 0.1), at(2, 0.4)]).expect("a change");
        assert!((of.from.index(), of.before.n) == (2, N) && (of.before.value - 0.1).abs() < 1e-12, "{of:?}");
        assert!((variance(&of.before) - 0.01f64.powi(2)).abs() < 1e-12 && of.p_holm < 1e-60);
    }
}
