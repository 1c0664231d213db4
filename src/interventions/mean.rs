//! The mean state over all problems: per step, or over all steps.

use super::{Acts, Bank, Intervention, InterventionAbout, LatentPlace};

pub(super) const ABOUT: &[InterventionAbout] = &[
    InterventionAbout::new("mean", Acts::OnRun, |m, _| Box::new(mean_per_step(per_step(m.bank)))).positive_at(|_| true),
    InterventionAbout::new("mean_global", Acts::OnRun, |m, _| Box::new(mean_per_step(mean_of_all(m.bank))))
        .positive_at(|_| true),
];

/// A mean state for each step; `None` if no block has the step.
pub(super) type Means = Vec<Option<Vec<f32>>>;

/// Removes what is specific to a problem and preserves what states of a step share. Misleads: a mean of states need not be a state; its
/// norm is smaller.
fn mean_per_step(means: Means) -> impl Intervention {
    move |at: &LatentPlace, _: &[f32]| means.get(at.step)?.clone()
}

pub(super) fn per_step(bank: &Bank) -> Means {
    (0..bank.steps()).map(|step| mean(bank.states_at_step(step))).collect()
}

/// The same mean at every step: also removes what is specific to a step.
fn mean_of_all(bank: &Bank) -> Means {
    vec![mean((0..bank.steps()).flat_map(|step| bank.states_at_step(step))); bank.steps()]
}

fn mean<'b>(states: impl Iterator<Item = (usize, usize, &'b [f32])>) -> Option<Vec<f32>> {
    let (mut sum, mut n) = (vec![0.0_f64; 0], 0_usize);
    for (_, _, h) in states {
        sum.resize(h.len(), 0.0);
        sum.iter_mut().zip(h).for_each(|(s, x)| *s += f64::from(*x));
        n += 1;
    }
    (n > 0).then(|| sum.into_iter().map(|s| (s / n as f64) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mean_a_step_or_one_for_all() {
        let mut bank = Bank::default();
        for (at, state) in [((0, 0, 0), [1.0, 2.0]), ((1, 0, 0), [3.0, 2.0]), ((0, 0, 1), [5.0, 8.0])] {
            bank.insert(at, state.to_vec());
        }
        assert_eq!(per_step(&bank), [Some(vec![2.0, 2.0]), Some(vec![5.0, 8.0])]);
        assert_eq!(mean_of_all(&bank), [Some(vec![3.0, 4.0]), Some(vec![3.0, 4.0])]);
    }
}
