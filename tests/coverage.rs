//! Coverage of the "95 %" intervals for few problems: exact where all outcomes can be enumerated, else simulated (seeded); and
//! intervals never contradict the exact test next to them.

use crate::stats::gauss;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use switchyard::stats::probe::{GroupedProtocol, ProbeData, ValueProtocol};
use switchyard::stats::*;

fn flips(gained: usize, lost: usize, n: usize) -> Flips {
    Flips { both_right: n - gained - lost, lost, gained, both_wrong: 0 }
}

/// A possible outcome of `n` problems, and its interval.
fn tables(n: usize) -> Vec<(usize, usize, Estimate)> {
    let all = (0..=n).flat_map(|gained| (0..=n - gained).map(move |lost| (gained, lost)));
    all.map(|(gained, lost)| (gained, lost, flips(gained, lost, n).change(LEVEL).unwrap())).collect()
}

/// Coverage of the interval of `n` problems, if each is gained with probability `up` and lost with `down`.
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
fn paired_shares_have_their_coverage_for_few_problems() {
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
fn an_interval_excludes_zero_only_if_the_exact_test_does() {
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

/// Interval of one simulated sample, if defined, and the true value.
type SampledInterval<'a> = Box<dyn Fn(&mut ChaCha8Rng) -> (Option<Estimate>, f64) + 'a>;

/// An interval of the program, on simulated data.
struct Simulated<'a> {
    interval: &'static str,
    data: String,
    n: usize,
    sample: SampledInterval<'a>,
}

fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    rng.random()
}

/// `each` events for each of `n` problems: with probability `alike` all events of a problem are one draw, else independent draws.
fn events(rng: &mut ChaCha8Rng, n: usize, each: usize, p: f64, alike: f64) -> Vec<(usize, bool)> {
    let mut all = vec![];
    for problem in 0..n {
        let same = rng.random_bool(alike).then(|| rng.random_bool(p));
        all.extend((0..each).map(|_| (problem, same.unwrap_or_else(|| rng.random_bool(p)))));
    }
    all
}

/// Ranks from 0; ties do not occur.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |x: &f64| values.iter().filter(|y| *y < x).count() as f64;
    values.iter().map(rank).collect()
}

fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len() as f64;
    let squares: f64 = ranks(a).iter().zip(ranks(b)).map(|(a, b)| (a - b).powi(2)).sum();
    1.0 - 6.0 * squares / (n * (n * n - 1.0))
}

/// Every kind of interval in the program's rows and tables.
fn every_interval() -> Vec<Simulated<'static>> {
    let mut all: Vec<Simulated> = vec![];
    let mut add = |interval, data: &str, n, sample: SampledInterval<'static>| {
        all.push(Simulated { interval, data: data.to_owned(), n, sample });
    };
    for (n, p) in [(20, 0.1), (200, 0.02), (500, 0.1), (500, 0.5)] {
        let sample = move |rng: &mut ChaCha8Rng| {
            let right: Vec<bool> = (0..n).map(|_| rng.random_bool(p)).collect();
            (accuracy(&right).ok(), p)
        };
        add("share of problems (Wilson)", &format!("share {p}"), n, Box::new(sample));
    }
    for (n, up, down) in [(20, 0.1, 0.1), (500, 0.02, 0.05)] {
        let sample = move |rng: &mut ChaCha8Rng| {
            let draws: Vec<f64> = (0..n).map(|_| uniform(rng)).collect();
            let count = |from: f64, to: f64| draws.iter().filter(|x| (from..to).contains(x)).count();
            (flips(count(0.0, up), count(up, up + down), n).change(LEVEL).ok(), up - down)
        };
        add("paired difference of shares (Tango)", &format!("gained {up}, lost {down}"), n, Box::new(sample));
    }
    for (n, p, q) in [(40, 0.1, 0.3), (500, 0.02, 0.05)] {
        let sample = move |rng: &mut ChaCha8Rng| {
            let mut share = |p: f64| wilson((0..n).filter(|_| rng.random_bool(p)).count(), n, LEVEL).ok();
            (share(p).zip(share(q)).map(|(a, b)| a.minus(b)), p - q)
        };
        add("difference of two shares (MOVER)", &format!("shares {p} and {q}"), n, Box::new(sample));
    }
    for (n, p, alike) in [(40, 0.1, 0.3), (200, 0.02, 0.0), (200, 0.02, 0.3), (200, 0.02, 1.0), (200, 0.3, 0.3)] {
        let sample = move |rng: &mut ChaCha8Rng| {
            let events = events(rng, n, 5, p, alike);
            (by_problem::share(0, &events).unwrap_or(None), p)
        };
        let data = format!("share {p}, {alike} of problems alike");
        add("share of five events a problem (score, resampled)", &data, n, Box::new(sample));
    }
    for (n, p) in [(60, 0.04), (60, 0.3)] {
        let sample = move |rng: &mut ChaCha8Rng| {
            // Sizes like those of programs: half of the problems have one event, few have many.
            let sizes: Vec<usize> = (0..n).map(|_| (1.0 / (1.0 - uniform(rng))).min(30.0) as usize).collect();
            let of = |(problem, size): (usize, usize)| vec![(problem, rng.random_bool(p)); size];
            let events: Vec<(usize, bool)> = sizes.into_iter().enumerate().flat_map(of).collect();
            (by_problem::share(0, &events).unwrap_or(None), p)
        };
        let data = format!("share {p}, 1 to 30 events a problem, all alike");
        add("share of unequal problems (score, resampled)", &data, n, Box::new(sample));
    }
    for (n, name) in [(20, "normal"), (20, "exponential"), (200, "exponential")] {
        let sample = move |rng: &mut ChaCha8Rng| {
            let mut draw = || if name == "normal" { 1.0 + gauss(rng) } else { -(1.0 - uniform(rng)).ln() };
            let values: Vec<f64> = (0..n).map(|_| draw()).collect();
            (Bootstrap { draws: 500, ..Bootstrap::default() }.mean(&values).ok(), 1.0)
        };
        add("mean over problems (resampled)", name, n, Box::new(sample));
    }
    for n in [20, 200] {
        let sample = move |rng: &mut ChaCha8Rng| {
            let (mut values, mut groups) = (vec![], vec![]);
            for problem in 0..n {
                let own = gauss(rng);
                for _ in 0..rng.random_range(1..6) {
                    values.push(own + gauss(rng));
                    groups.push(problem);
                }
            }
            (Bootstrap { draws: 500, ..Bootstrap::default() }.clustered_mean(&values, &groups).ok(), 0.0)
        };
        add("mean of one to five rows a problem (resampled)", "normal", n, Box::new(sample));
    }
    for n in [24, 48] {
        let sample = move |rng: &mut ChaCha8Rng| {
            // Effect of a patch, and the difference between the runs of a pair.
            let pairs: Vec<[f64; 2]> = (0..n)
                .map(|_| {
                    let whole = 4.0 + 2.0 * gauss(rng).abs();
                    [whole * (0.3 + 0.3 * gauss(rng)), whole]
                })
                .collect();
            let sum =
                |counts: &[u32], i: usize| pairs.iter().zip(counts).map(|(p, &n)| f64::from(n) * p[i]).sum::<f64>();
            let ratio = |counts: &[u32]| sum(counts, 0) / sum(counts, 1);
            (Bootstrap { draws: 500, ..Bootstrap::default() }.units(n, ratio).ok(), 0.3)
        };
        add("ratio of sums over pairs (resampled)", "normal shares", n, Box::new(sample));
    }
    for noise in [1.0, 4.0] {
        let n = 24;
        let sample = move |rng: &mut ChaCha8Rng| {
            let mut map = || (0..100).map(|_| gauss(rng)).collect::<Vec<f64>>();
            let first = map();
            let second: Vec<f64> = first.iter().zip(map()).map(|(a, b)| 0.8 * a + 0.6 * b).collect();
            let off: Vec<[Vec<f64>; 2]> = (0..n).map(|_| [map(), map()]).collect();
            let mean = |which: usize, truth: &[f64], counts: &[u32]| -> Vec<f64> {
                let sum =
                    |cell: usize| off.iter().zip(counts).map(|(o, &n)| f64::from(n) * o[which][cell]).sum::<f64>();
                truth.iter().enumerate().map(|(cell, truth)| truth + noise * sum(cell) / n as f64).collect()
            };
            let rho = |counts: &[u32]| rank_correlation(&mean(0, &first, counts), &mean(1, &second, counts));
            (Bootstrap { draws: 100, ..Bootstrap::default() }.units(n, rho).ok(), rank_correlation(&first, &second))
        };
        let data = format!("100 cells, a pair's noise {noise} times their spread");
        add("rank correlation of two maps (pairs resampled)", &data, n, Box::new(sample));
    }
    for which in ["balanced accuracy", "AUROC"] {
        let sample = move |rng: &mut ChaCha8Rng| {
            let (problems, each) = (60, 6);
            let x: Vec<f32> = (0..problems * each * 6).map(|_| gauss(rng) as f32).collect();
            let x = ndarray::Array2::from_shape_vec((problems * each, 6), x).unwrap();
            let labels: Vec<bool> = (0..problems * each).map(|_| rng.random()).collect();
            let groups: Vec<usize> = (0..problems * each).map(|row| row / each).collect();
            let protocol =
                GroupedProtocol { control: false, draws: 300, c_grid: vec![0.1], ..GroupedProtocol::default() };
            let score = protocol.run(&ProbeData::new(x.view(), &labels, &groups).unwrap()).ok();
            (score.map(|s| if which == "AUROC" { s.auroc } else { s.balanced_accuracy }), 0.5)
        };
        add("probe by problem (resampled, widened)", &format!("{which}, inert features"), 60, Box::new(sample));
    }
    let sample = |rng: &mut ChaCha8Rng| {
        let n = 100;
        let x: Vec<f32> = (0..n * 4).map(|_| gauss(rng) as f32).collect();
        let x = ndarray::Array2::from_shape_vec((n, 4), x).unwrap();
        let values: Vec<usize> = (0..n).map(|_| rng.random_range(0..4)).collect();
        let protocol = ValueProtocol { draws: 300, c_grid: vec![0.1], ..ValueProtocol::default() };
        (protocol.run(x.view(), &values, &(0..n).collect::<Vec<_>>()).ok().map(|s| s.accuracy), 0.25)
    };
    add("probe of a value (resampled, widened)", "accuracy, inert features", 100, Box::new(sample));
    let seeds = |rng: &mut ChaCha8Rng| (mean_of_runs(&[gauss(rng), gauss(rng), gauss(rng)]).ok(), 0.0);
    add("mean over seeds (Student)", "normal", 3, Box::new(seeds));
    let seeds = |rng: &mut ChaCha8Rng| {
        let mut run = || if rng.random_bool(0.3) { 0.9 } else { 0.1 } + 0.01 * gauss(rng);
        (mean_of_runs(&[run(), run(), run()]).ok(), 0.34)
    };
    add("mean over seeds (Student)", "three of ten learn", 3, Box::new(seeds));
    all
}

/// Share of `samples` samples whose interval contains the true value.
fn held(simulated: &Simulated, samples: usize) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let one = |_: &usize| {
        let (interval, truth) = (simulated.sample)(&mut rng);
        interval.expect(simulated.interval).covers(truth)
    };
    (0..samples).filter(one).count() as f64 / samples as f64
}

/// `| interval | data | n | coverage |`
fn line(simulated: &Simulated, coverage: f64) -> String {
    let Simulated { interval, data, n, .. } = simulated;
    format!("| {interval} | {data} | {n} | {coverage:.3} |")
}

/// The documentation's table, from 2,000 samples each.
#[test]
#[ignore = "minutes; a_few_samples_agree_with_the_table is its short form"]
fn table() {
    for simulated in every_interval() {
        println!("{}", line(&simulated, held(&simulated, 2000)));
    }
}

#[test]
fn a_few_samples_agree_with_the_table() {
    let page = std::fs::read_to_string("docs/explanation/error-rates.md").unwrap();
    let samples = 120;
    for simulated in every_interval() {
        let begins = line(&simulated, 0.0).replace("0.000 |", "");
        let told = page.lines().find_map(|line| line.strip_prefix(&begins)?.strip_suffix(" |")?.parse::<f64>().ok());
        let told = told.unwrap_or_else(|| panic!("no row `{begins}` in the table"));
        let found = held(&simulated, samples);
        // Four standard errors of so few samples, at least three samples.
        let room = 4.0 * (told * (1.0 - told) / samples as f64).sqrt().max(0.00625);
        assert!((found - told).abs() <= room, "{begins} {found} of {samples} samples, the table has {told}");
    }
}

/// Share of 1,000 samples of `n` whose bootstrap interval contains the mean.
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
fn bootstrap_intervals_of_few_problems_undercover() {
    // The sum of twelve uniforms is nearly normal.
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
