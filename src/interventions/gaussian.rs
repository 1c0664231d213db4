//! A draw from the normal distribution with the mean and covariance of the states of the same step.

use super::mean::per_step;
use super::{Acts, Bank, Intervention, InterventionAbout, LatentPlace};
use crate::random::{keyed, normal};

pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("gaussian", Acts::OnRun, |m, d| Box::new(gaussian(m.bank, d.seed))).random()];

/// The sample covariance needs no matrix: with centred states c₁ … cₙ and independent standard normal z₁ … zₙ,
/// `mean + Σ zᵢ cᵢ / √(n − 1)` has exactly that covariance, also with fewer states than dimensions. Misleads: states lie in clusters (one
/// per value, say), and a normal cloud fills the space between them: such a vector may be read as more than any state is (its false
/// alarms in `reports/calibration`).
fn gaussian(bank: &Bank, seed: u64) -> impl Intervention {
    let of_step = |step| bank.states_at_step(step).map(|(_, _, h)| h).collect();
    let (means, states): (_, Vec<Vec<&[f32]>>) = (per_step(bank), (0..bank.steps()).map(of_step).collect());
    move |at: &LatentPlace, _: &[f32]| {
        let states = states.get(at.step).filter(|s| s.len() > 1)?;
        let mean: Vec<f64> = means[at.step].as_ref()?.iter().copied().map(f64::from).collect();
        let mut rng = keyed(at.key(seed));
        let width = ((states.len() - 1) as f64).sqrt();
        let mut out = mean.clone();
        for state in states {
            let z = normal(&mut rng) / width;
            out.iter_mut().zip(*state).zip(&mean).for_each(|((o, x), m)| *o += z * (f64::from(*x) - m));
        }
        Some(out.into_iter().map(|x| x as f32).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_moments_of_the_bank() {
        let mut bank = Bank::default();
        // Two coordinates that move together, and a constant one.
        for i in 0..50_usize {
            let x = i as f32 / 10.0;
            bank.insert((i, 0, 0), vec![x, 2.0 * x + (i % 3) as f32, 7.0]);
        }
        let draws: Vec<Vec<f32>> = (0..4000)
            .map(|seed| {
                let at = LatentPlace { problem: 0, block: 0, step: 0 };
                gaussian(&bank, seed).input(&at, &[0.0; 3]).expect("a draw")
            })
            .collect();
        let moments = |rows: &[Vec<f32>]| {
            let n = rows.len() as f64;
            let mean = |k: usize| rows.iter().map(|r| f64::from(r[k])).sum::<f64>() / n;
            let (a, b) = (mean(0), mean(1));
            let cov = rows.iter().map(|r| (f64::from(r[0]) - a) * (f64::from(r[1]) - b)).sum::<f64>() / (n - 1.0);
            (a, b, mean(2), cov)
        };
        let held: Vec<Vec<f32>> = bank.states_at_step(0).map(|(_, _, h)| h.to_vec()).collect();
        let (want, have) = (moments(&held), moments(&draws));
        assert!((want.0 - have.0).abs() < 0.1 && (want.1 - have.1).abs() < 0.2, "{want:?} {have:?}");
        assert!((have.2 - 7.0).abs() < 1e-4);
        assert!((want.3 / have.3 - 1.0).abs() < 0.1, "{want:?} {have:?}");
    }
}
