//! How often the "95 %" intervals hold the truth when problems are few: exactly where all outcomes can be gone through,
//! simulated (seeded) elsewhere; and that an interval never says otherwise than the exact test beside it.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use switchyard::stats::*;

fn flips(gained: usize, lost: usize, n: usize) -> Flips {
    Flips { both_right: n - gained - lost, lost, gained, both_wrong: 0 }
}

/// A table of `n` problems that can come out, and its interval.
fn tables(n: usize) -> Vec<(usize, usize, Estimate)> {
    let all = (0..=n).flat_map(|gained| (0..=n - gained).map(move |lost| (gained, lost)));
    all.map(|(gained, lost)| (gained, lost, flips(gained, lost, n).change(LEVEL).unwrap())).collect()
}

/// Chance that the interval of `n` problems holds the true difference, where each is gained with probability `up` and lost
/// with `down`.
fn coverage(n: usize, tables: &[(usize, usize, Estimate)], up: f64, down: f64) -> f64 {
    let ln = |k: usize| special::ln_gamma(k as f64 + 1.0);
    let chance = |&(gained, lost, _): &(usize, usize, Estimate)| {
        let same = n - gained - lost;
        let ways = ln(n) - ln(gained) - ln(lost) - ln(same);
        let powers = gained as f64 * up.ln() + lost as f64 * down.ln() + same as f64 * (1.0 - up - down).ln();
        (ways + powers).exp()
    };
    tables.iter().filter(|(.., interval)| interval.covers(up - down)).map(chance).sum()
}

#[test]
fn paired_shares_hold_what_they_promise_at_few_problems() {
    let mut worst = vec![];
    for n in [8, 20, 50] {
        let rates = [0.02, 0.05, 0.1, 0.2, 0.3, 0.45];
        let tables = tables(n);
        let all: Vec<f64> = rates.iter().flat_map(|&up| rates.map(|down| coverage(n, &tables, up, down))).collect();
        let (least, mean) = (all.iter().copied().fold(1.0, f64::min), all.iter().sum::<f64>() / all.len() as f64);
        println!("n = {n}: least {least:.3}, mean {mean:.3} of {} pairs of rates", all.len());
        assert!(mean >= 0.95, "n = {n}: mean coverage {mean}");
        worst.push(least);
    }
    assert!(worst.iter().all(|least| *least >= 0.92), "{worst:?}");
}

#[test]
fn an_interval_excludes_no_difference_only_where_the_exact_test_does() {
    let mut decided = 0;
    for n in [6, 9, 20, 33, 60] {
        for gained in 0..=n {
            for lost in 0..=n - gained {
                let table = flips(gained, lost, n);
                let change = table.change(LEVEL).unwrap();
                let rejects = table.p_value() <= 1.0 - LEVEL;
                assert_eq!(!change.covers(0.0), rejects, "{gained} gained, {lost} lost of {n}: {change}");
                assert!(change.low <= change.value && change.value <= change.high && change.low < change.high);
                decided += usize::from(rejects);
            }
        }
    }
    assert!(decided > 500, "{decided} tables decide something");
}

/// Share of 1,000 samples of `n` whose bootstrap interval holds the mean.
fn bootstrap_coverage(n: usize, mean: f64, draw: impl Fn(&mut ChaCha8Rng) -> f64) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let samples = 1000;
    let held = (0..samples).filter(|_| {
        let values: Vec<f64> = (0..n).map(|_| draw(&mut rng)).collect();
        Bootstrap { draws: 500, ..Bootstrap::default() }.mean(&values).unwrap().covers(mean)
    });
    held.count() as f64 / samples as f64
}

#[test]
fn a_mean_of_few_problems_is_not_known_as_well_as_its_interval_says() {
    // Twelve uniforms: near enough to normal.
    let normal = |rng: &mut ChaCha8Rng| (0..12).map(|_| rng.random::<f64>()).sum::<f64>();
    let exponential = |rng: &mut ChaCha8Rng| -(1.0 - rng.random::<f64>()).ln();
    let at = |n: usize| (bootstrap_coverage(n, 6.0, normal), bootstrap_coverage(n, 1.0, exponential));
    let few = [2, 3, 4].map(at);
    let enough = at(FEWEST);
    println!("normal, exponential: n = 2, 3, 4: {few:?}; n = {FEWEST}: {enough:?}");
    assert!(few[0].0 < 0.6 && few[0].1 < 0.6, "two problems look certain: {few:?}");
    assert!(few[2].0 < 0.92 && few[2].1 < 0.88, "{few:?}");
    // Standard error of a share of 1,000: .007 at .95, .009 at .915.
    assert!(enough.0 > 0.93 && enough.1 > 0.89, "{enough:?}");
}
