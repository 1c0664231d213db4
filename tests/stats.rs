//! The statistics against SciPy, scikit-learn and statsmodels (`fixtures/stats`, made by its `make.py`), and on simulated data.

use crate::common::says;
use ndarray::{Array2, s};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use switchyard::stats::probe::{GroupedProtocol, PaperProtocol, ProbeData, ValueProtocol};
use switchyard::stats::*;

fn fixture(name: &str) -> Value {
    let path = format!("fixtures/stats/{name}.json");
    serde_json::from_str(&std::fs::read_to_string(&path).expect(&path)).expect(&path)
}

fn list(v: &Value) -> &Vec<Value> {
    v.as_array().filter(|list| !list.is_empty()).expect("a list of something")
}

fn num(v: &Value) -> f64 {
    v.as_f64().expect("a number")
}

fn nums(v: &Value) -> Vec<f64> {
    list(v).iter().map(num).collect()
}

fn counts(v: &Value) -> Vec<usize> {
    nums(v).into_iter().map(|x| x as usize).collect()
}

fn bools(v: &Value) -> Vec<bool> {
    list(v).iter().map(|b| b.as_bool().expect("a bool")).collect()
}

fn matrix(v: &Value) -> Array2<f64> {
    let rows: Vec<Vec<f64>> = list(v).iter().map(nums).collect();
    Array2::from_shape_fn((rows.len(), rows[0].len()), |(i, j)| rows[i][j])
}

#[track_caller]
fn close(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance, "got {got}, want {want} within {tolerance}");
}

#[track_caller]
fn all_close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).for_each(|(got, want)| close(*got, *want, tolerance));
}

fn flat(x: &Array2<f64>) -> Vec<f64> {
    x.iter().copied().collect()
}

#[test]
fn distribution_functions_agree_with_scipy() {
    let q = &fixture("tests")["quantiles"];
    for row in list(&q["normal"]) {
        close(special::normal_quantile(num(&row[0])), num(&row[1]), 1e-9);
    }
    for row in list(&q["normal_cdf"]) {
        close(special::normal_cdf(num(&row[0])), num(&row[1]), 1e-14);
    }
    for row in list(&q["t"]) {
        let want = num(&row[2]);
        close(special::t_quantile(num(&row[0]), num(&row[1])), want, 1e-9 * want.abs().max(1.0));
    }
    for row in list(&q["ln_gamma"]) {
        let want = num(&row[1]);
        close(special::ln_gamma(num(&row[0])), want, 1e-13 * want.abs().max(10.0));
    }
    for row in list(&q["binomial_half"]) {
        let (k, n) = (num(&row[0]) as usize, num(&row[1]) as usize);
        close(special::binomial_half_cdf(k, n), num(&row[2]), 1e-10);
    }
}

#[test]
fn wilson_agrees_with_statsmodels() {
    for case in list(&fixture("tests")["wilson"]) {
        let (k, n) = (num(&case["k"]) as usize, num(&case["n"]) as usize);
        let got = wilson(k, n, num(&case["level"])).unwrap();
        close(got.low, num(&case["low"]), 1e-12);
        close(got.high, num(&case["high"]), 1e-12);
        assert!(got.covers(got.value) && got.n == n);
    }
}

#[test]
fn mcnemar_agrees_with_statsmodels_and_counts_flips() {
    for case in list(&fixture("tests")["mcnemar"]) {
        let cell = |name: &str| num(&case[name]) as usize;
        let table = Flips {
            both_right: cell("both_right"),
            lost: cell("lost"),
            gained: cell("gained"),
            both_wrong: cell("both_wrong"),
        };
        close(table.p_value(), num(&case["p"]), 1e-10);
    }
    let before = [true, true, true, false, false];
    let after = [true, false, false, true, false];
    let table = Flips::count(&before, &after).unwrap();
    assert_eq!(table, Flips { both_right: 1, lost: 2, gained: 1, both_wrong: 1 });
    close(table.difference(), -0.2, 1e-15);
}

#[test]
fn paired_shares_agree_with_tangos_interval_and_mcnemars_test() {
    let mut stretched = 0;
    for case in list(&fixture("paired")["shares"]) {
        let count = |name: &str| num(&case[name]) as usize;
        let (gained, lost, n, level) = (count("gained"), count("lost"), count("n"), num(&case["level"]));
        let table = Flips { both_right: n - gained - lost, lost, gained, both_wrong: 0 };
        let (got, low, high) = (table.change(level).unwrap(), num(&case["low"]), num(&case["high"]));
        // An end beyond 0 that the exact test does not exclude is set to 0.
        let open = table.p_value() > 1.0 - level;
        let want = (if open { low.min(0.0) } else { low }, if open { high.max(0.0) } else { high });
        stretched += usize::from(want != (low, high));
        close(got.low, want.0, 1e-6);
        close(got.high, want.1, 1e-6);
        assert!(got.covers(got.value) && got.n == n);
    }
    assert!(stretched > 0, "no case where the two tests differ");
}

#[test]
fn equivalence_of_paired_shares_agrees_with_scipy() {
    for case in list(&fixture("paired")["same"]) {
        let count = |name: &str| num(&case[name]) as usize;
        let (gained, lost) = (count("gained"), count("lost"));
        let table = Flips { both_right: count("n") - gained - lost, lost, gained, both_wrong: 0 };
        close(table.p_equivalent(num(&case["margin"])), num(&case["p"]), 1e-6);
    }
    // For a mean: 0.01 with an arm of 0.03 at 500 units is (0.05 - 0.01) / 0.03 · 1.9647 = 2.6196 standard errors inside 0.05.
    let mean = Estimate { value: 0.01, low: -0.02, high: 0.04, n: 500 };
    close(mean.p_equivalent(0.05), 0.004533, 1e-5);
    assert!(mean.p_equivalent(0.01) >= 0.5 && mean.scaled(-1.0).p_equivalent(0.05) == mean.p_equivalent(0.05));
}

#[test]
fn the_sign_flip_test_goes_through_all_signs() {
    for case in list(&fixture("paired")["sign_flip"]) {
        let differences: Vec<i64> = nums(&case["differences"]).into_iter().map(|d| d as i64).collect();
        close(sign_flip(&differences), num(&case["p"]), 1e-12);
    }
    // One draw per problem: McNemar's test.
    let table = Flips { both_right: 9, lost: 3, gained: 11, both_wrong: 4 };
    let ones: Vec<i64> = [vec![-1; 3], vec![1; 11], vec![0; 13]].concat();
    close(sign_flip(&ones), table.p_value(), 1e-12);
    assert_eq!(sign_flip(&[]), 1.0);
}

#[test]
fn holm_agrees_with_statsmodels() {
    for case in list(&fixture("tests")["holm"]) {
        all_close(&holm(&nums(&case["p"])).unwrap(), &nums(&case["adjusted"]), 1e-12);
    }
}

#[test]
fn bootstrap_agrees_with_scipy_within_monte_carlo_error() {
    let f = fixture("bootstrap");
    let plain = Bootstrap { draws: 40_000, expand: false, ..Bootstrap::default() };
    let check = |got: Estimate, case: &Value| {
        close(got.value, num(&case["value"]), 1e-12);
        let (low, high) = (num(&case["low"]), num(&case["high"]));
        // The standard error of a 2.5 % percentile from 40,000 draws is some 0.7 % of the interval's width.
        close(got.low, low, 0.03 * (high - low));
        close(got.high, high, 0.03 * (high - low));
    };
    check(plain.mean(&nums(&f["mean"]["x"])).unwrap(), &f["mean"]);
    let (before, after) = (nums(&f["paired"]["before"]), nums(&f["paired"]["after"]));
    check(plain.paired(&before, &after).unwrap(), &f["paired"]);
    let (values, groups) = (nums(&f["clustered"]["values"]), counts(&f["clustered"]["groups"]));
    check(plain.clustered_mean(&values, &groups).unwrap(), &f["clustered"]);
    let by_rows =
        plain.clustered_rows(&groups, |rows| rows.iter().map(|&r| values[r]).sum::<f64>() / rows.len() as f64).unwrap();
    check(by_rows, &f["clustered"]);
    assert_eq!(by_rows.n, 30, "n counts clusters, not rows");
    // Treating rows as independent must differ: the data are 30 clusters, not about 140 rows.
    let rows = plain.mean(&values).unwrap();
    assert!(rows.high - rows.low < 0.75 * (by_rows.high - by_rows.low));
}

#[test]
fn bootstrap_depends_on_the_seed_alone() {
    let x: Vec<f64> = (0..50).map(|i| f64::from(i * i % 17)).collect();
    let run = |threads: usize, seed| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| Bootstrap::seeded(seed).mean(&x).unwrap())
    };
    assert_eq!(run(1, 7), run(4, 7));
    assert_ne!(run(1, 7), run(1, 8));
}

#[test]
fn classification_scores_agree_with_scikit_learn() {
    for case in list(&fixture("classification")["cases"]) {
        let (labels, scores) = (bools(&case["labels"]), nums(&case["scores"]));
        let predicted: Vec<bool> = scores.iter().map(|&s| s > num(&case["threshold"])).collect();
        let rates = Rates::new(&labels, &predicted).unwrap();
        close(rates.tpr, num(&case["tpr"]), 1e-12);
        close(rates.tnr, num(&case["tnr"]), 1e-12);
        close(balanced_accuracy(&labels, &predicted).unwrap(), num(&case["balanced_accuracy"]), 1e-12);
        close(auroc(&labels, &scores).unwrap(), num(&case["auroc"]), 1e-12);
        let right: Vec<bool> = labels.iter().zip(&predicted).map(|(l, p)| l == p).collect();
        close(accuracy(&right).unwrap().value, num(&case["accuracy"]), 1e-12);
        // At the data's prevalence the formula equals the plain accuracy.
        let prevalence = labels.iter().filter(|&&l| l).count() as f64 / labels.len() as f64;
        close(rates.accuracy_at(prevalence), num(&case["accuracy"]), 1e-12);
    }
    close(Rates { tpr: 0.9, tnr: 0.9 }.precision_at(0.01), 0.009 / 0.108, 1e-12);
}

#[test]
fn standardiser_agrees_with_scikit_learn() {
    let f = &fixture("classification")["scaler"];
    let x = matrix(&f["x"]);
    let scaler = Standardiser::fit(x.slice(s![..num(&f["train_rows"]) as usize, ..])).unwrap();
    all_close(&scaler.scale.to_vec(), &nums(&f["scale"]), 1e-12);
    all_close(&flat(&scaler.apply(x.view())), &flat(&matrix(&f["applied"])), 1e-10);
}

#[test]
fn splits_have_scikit_learns_sizes_and_keep_groups_whole() {
    let f = &fixture("classification")["splits"];
    let groups = counts(&f["groups"]);
    let distinct = |rows: &[usize]| {
        let mut ids: Vec<usize> = rows.iter().map(|&r| groups[r]).collect();
        ids.dedup();
        ids
    };
    let whole = |split: &Split| {
        assert_eq!(split.train.len() + split.test.len(), groups.len());
        assert!(distinct(&split.test).iter().all(|g| !distinct(&split.train).contains(g)));
    };
    let split = grouped_holdout(&groups, 0.2, 5).unwrap();
    whole(&split);
    assert_eq!(distinct(&split.test).len() as f64, num(&f["group_test_groups"]));
    assert_ne!(split, grouped_holdout(&groups, 0.2, 6).unwrap());
    assert_eq!(holdout(num(&f["row_n"]) as usize, 0.2, 0).unwrap().test.len() as f64, num(&f["row_test"]));
    // Three groups contain the positives: with three folds each fold has exactly one.
    let labels: Vec<bool> = groups.iter().map(|&g| g < 3).collect();
    for split in grouped_kfold(&groups, &labels, 3, 1).unwrap() {
        whole(&split);
        assert_eq!(distinct(&split.test).iter().filter(|&&g| g < 3).count(), 1);
    }
    let folds = grouped_kfold(&groups, &labels, 5, 1).unwrap();
    let mut sizes: Vec<f64> = folds.iter().map(|s| distinct(&s.test).len() as f64).collect();
    sizes.sort_by(f64::total_cmp);
    assert_eq!(sizes, nums(&f["fold_groups"]));
    let mut tested: Vec<usize> = folds.into_iter().flat_map(|s| s.test).collect();
    tested.sort_unstable();
    assert_eq!(tested, (0..groups.len()).collect::<Vec<_>>(), "every row is tested once");
}

#[test]
fn paper_protocol_equals_scikit_learn() {
    let mut features = Array2::zeros((0, 0));
    for case in list(&fixture("probe")["cases"]) {
        if !case["features"].is_null() {
            features = matrix(&case["features"]).mapv(|v| v as f32);
        }
        let labels = bools(&case["labels"]);
        let split = Split { train: counts(&case["train"]), test: counts(&case["test"]) };
        let groups: Vec<usize> = (0..labels.len()).collect();
        let data = ProbeData::new(features.view(), &labels, &groups).unwrap();
        let protocol = PaperProtocol { c: num(&case["c"]), ..PaperProtocol::default() };
        let got = protocol.score(&data, &split).unwrap();
        let name = format!("{} C={}", case["name"], case["c"]);
        assert!(got.converged, "{name} did not converge");
        // The bound is 0.5 points. Half a point of 60–80 test rows is less than one row, so the predictions are equal.
        assert!((got.accuracy.value - num(&case["accuracy"])).abs() <= 0.005, "{name}: {got:?}");
        assert!((got.train_accuracy - num(&case["train_accuracy"])).abs() <= 0.005, "{name}: {got:?}");
        // Stricter: the same log-odds for every row.
        let wide = features.mapv(f64::from);
        let rows = |r: &[usize]| wide.select(ndarray::Axis(0), r);
        let y: Vec<bool> = split.train.iter().map(|&r| labels[r]).collect();
        let model = Logistic::fit(rows(&split.train).view(), &y, protocol.c).unwrap();
        let scores = nums(&case["scores"]);
        assert_eq!(scores.len(), split.test.len());
        for (z, want) in model.scores(rows(&split.test).view()).iter().zip(scores) {
            assert!((z - want).abs() < 2e-3 * want.abs().max(1.0), "{name}: log-odds {z}, scikit-learn {want}");
        }
    }
}

/// Standard normal by Box–Muller.
pub fn gauss(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// `problems` of `each` rows in D = 6: column 0 contains label × `signal`; all columns contain the problem's offset × `identity`.
/// Labels are fair coins within a problem, biased by problem when `identity` > 0.
fn simulate(
    problems: usize,
    each: usize,
    signal: f64,
    identity: f64,
    seed: u64,
) -> (Array2<f32>, Vec<bool>, Vec<usize>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut x, mut labels, mut groups) = (Vec::new(), Vec::new(), Vec::new());
    for problem in 0..problems {
        let own: Vec<f64> = (0..6).map(|_| identity * gauss(&mut rng)).collect();
        let bias = if identity == 0.0 { 0.5 } else { [0.1, 0.9][rng.random_range(0..2)] };
        for _ in 0..each {
            let label = rng.random_bool(bias);
            let sign = if label { 1.0 } else { -1.0 };
            x.extend((0..6).map(|j| (own[j] + gauss(&mut rng) + if j == 0 { signal * sign } else { 0.0 }) as f32));
            labels.push(label);
            groups.push(problem);
        }
    }
    (Array2::from_shape_vec((labels.len(), 6), x).unwrap(), labels, groups)
}

#[test]
fn grouped_protocol_finds_a_known_signal() {
    let (x, labels, groups) = simulate(80, 10, 1.0, 0.0, 1);
    let data = ProbeData::new(x.view(), &labels, &groups).unwrap();
    let protocol = GroupedProtocol { prevalence: Some(0.05), ..GroupedProtocol::default() };
    let got = protocol.run(&data).unwrap();
    // Two unit normals two apart: the best probe has accuracy Φ(1) = 0.841 and AUROC Φ(√2) = 0.921.
    close(got.balanced_accuracy.value, 0.841, 0.03);
    close(got.auroc.value, 0.921, 0.02);
    assert!(got.balanced_accuracy.covers(0.841) && got.auroc.covers(0.921), "{got:?}");
    assert_eq!((got.balanced_accuracy.n, got.rows, got.c.len(), got.converged), (80, 800, 5, 5));
    let control = got.control.unwrap();
    // Ten fair coins per problem give an uneven share of positives, so a permuted label still agrees with the true one more often
    // than not, and the probe scores that much above chance: the control must show this.
    let by_problem = (1.0 - control.moved) * 0.841 + control.moved * 0.159;
    assert!(control.balanced_accuracy.covers(by_problem), "{control:?}");
    assert!(control.selectivity.low > 0.15, "{control:?}");
    assert!((0.4..0.5).contains(&control.moved));
    // One positive in twenty: precision falls to Φ(1)·.05 / (Φ(1)·.05 + .159·.95) ≈ .22 at the same accuracy.
    close(got.precision_at_prevalence.unwrap().value, 0.218, 0.05);
    close(got.accuracy_at_prevalence.value, 0.841, 0.03);
    // The same seed gives the same result to the last bit, f64 features the same as f32.
    let wide = x.mapv(f64::from);
    assert_eq!(got, protocol.run(&ProbeData::new(wide.view(), &labels, &groups).unwrap()).unwrap());
}

#[test]
fn splits_by_row_overestimate_and_splits_by_problem_do_not() {
    // No label signal: only the problem's identity, with its share of positives; enough columns to separate 12 problems. Split by row
    // the probe scores well; split by problem it cannot.
    let (x, labels, groups) = simulate(12, 60, 0.0, 6.0, 4);
    let data = ProbeData::new(x.view(), &labels, &groups).unwrap();
    let paper = PaperProtocol::default().run(&data).unwrap();
    let ours = GroupedProtocol { folds: 5, ..GroupedProtocol::default() }.run(&data).unwrap();
    assert!(paper.accuracy.low > 0.6, "{paper:?}");
    assert!(ours.balanced_accuracy.low < 0.5 && ours.balanced_accuracy.value < 0.55, "{ours:?}");
}

#[test]
fn a_perfect_probe_has_an_interval_with_a_width() {
    let (x, labels, groups) = simulate(40, 4, 20.0, 0.0, 2);
    let score = GroupedProtocol::default().run(&ProbeData::new(x.view(), &labels, &groups).unwrap()).unwrap();
    for e in [score.balanced_accuracy, score.accuracy_at_prevalence, score.auroc] {
        assert_eq!((e.value, e.high, e.n), (1.0, 1.0, 40));
        assert!(e.low > 0.9 && e.low < 1.0 && e.is_above(0.5), "{e}");
    }
}

#[test]
fn inert_features_have_at_most_the_nominal_false_alarms() {
    let trials = 200;
    let alarms = (0..trials)
        .filter(|&seed| {
            let (x, labels, groups) = simulate(60, 6, 0.0, 0.0, 1000 + seed);
            let data = ProbeData::new(x.view(), &labels, &groups).unwrap();
            let protocol = GroupedProtocol { control: false, draws: 300, seed, ..GroupedProtocol::default() };
            !protocol.run(&data).unwrap().balanced_accuracy.covers(0.5)
        })
        .count();
    // At most 5 % at the 5 % level, on either side of chance.
    assert!(alarms <= 10, "{alarms} of {trials} inert data sets were called readable");
}

#[test]
fn multinomial_probe_equals_scikit_learn() {
    let f = fixture("values");
    let (x, values) = (matrix(&f["features"]), counts(&f["values"]));
    let (train, test) = x.view().split_at(ndarray::Axis(0), num(&f["train_rows"]) as usize);
    for case in list(&f["cases"]) {
        let model = Softmax::fit(train, &values[..train.nrows()], num(&case["c"])).unwrap();
        assert_eq!(model.predict(test), counts(&case["predicted"]));
        all_close(&flat(&model.probabilities(test)), &flat(&matrix(&case["probabilities"])), 1e-3);
    }
}

#[test]
fn value_protocol_reads_only_existing_values() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let problems = 150;
    let values: Vec<usize> = (0..problems).map(|_| rng.random_range(0..5)).collect();
    let groups: Vec<usize> = (0..problems).collect();
    let mut features = |signal: f64| {
        let noise: Vec<f32> = (0..problems * 8).map(|_| gauss(&mut rng) as f32).collect();
        let mut x = Array2::from_shape_vec((problems, 8), noise).unwrap();
        values.iter().enumerate().for_each(|(row, &v)| x[[row, v]] += signal as f32);
        x
    };
    let held = ValueProtocol::default().run(features(4.0).view(), &values, &groups).unwrap();
    assert!(held.accuracy.low > 0.8 && held.classes == 5 && held.rows == 150, "{held:?}");
    assert!(held.control.covers(0.2) && held.control.high < 0.5, "{held:?}");
    // Five about equally frequent values have 2.32 bits: the probe uses most of them, and none if values are shuffled.
    assert!(held.bits.low > 1.2 && held.bits.high < 2.6 && held.bits.n == 150, "{held:?}");
    assert!(held.control_bits.value < 0.1, "{held:?}");
    let inert = ValueProtocol::default().run(features(0.0).view(), &values, &groups).unwrap();
    assert!(inert.accuracy.covers(0.2) && inert.accuracy.n == 150, "{inert:?}");
    assert!(inert.bits.value < 0.1, "{inert:?}");
    assert!((0.2..0.3).contains(&inert.majority));
    let one = ValueProtocol::default().run(features(0.0).view(), &[3; 150], &groups);
    assert!(one.unwrap_err().to_string().contains("all 150 values are 3"));
    let few = ValueProtocol::default().run(features(0.0).view(), &values, &[0; 150]);
    assert!(format!("{:#}", few.unwrap_err()).contains("5 folds by group need at least 10 groups"));
}

#[test]
fn errors_name_their_cause() {
    says(wilson(0, 0, 0.95), "n = 0");
    says(wilson(3, 2, 0.95), "3 successes among 2");
    says(accuracy(&[]), "n = 0");
    says(Flips::count(&[true], &[]), "1 before, 0 after");
    says(holm(&[0.1, 1.5]), "number 1 is 1.5");
    says(holm(&[f64::NAN]), "NaN");
    says(Bootstrap::default().mean(&[1.0, f64::NAN]), "number 1 is NaN");
    says(Bootstrap::default().mean(&[1.0]), "at least two independent units");
    says(Bootstrap::default().mean(&[]), "no rows");
    says(Bootstrap::default().clustered_mean(&[1.0, 2.0], &[1]), "2 values but 1 group ids");
    says(auroc(&[true, true], &[0.1, 0.2]), "single class: all 2");
    says(auroc(&[true, false], &[0.1, f64::NAN]), "score number 1 is NaN");
    says(balanced_accuracy(&[false], &[true]), "single class: none of the 1");
    says(grouped_holdout(&[4, 4, 4], 0.2, 0), "1 groups leave none for training");
    // A statistic that is undefined in many draws gives an error, not an interval.
    says(Bootstrap::default().units(5, |t| if t[0] > 0 { 1.0 } else { f64::NAN }), "undefined in");
    let (x, labels, groups) = simulate(20, 4, 1.0, 0.0, 0);
    says(ProbeData::new(x.slice(s![..0, ..]), &[], &[]), "empty (0 × 6)");
    says(ProbeData::new(x.view(), &labels[1..], &groups), "80 feature rows but 79 labels");
    says(ProbeData::new(x.view(), &[true; 80], &groups), "single class: all 80");
    let mut broken = x.clone();
    broken[[3, 2]] = f32::NAN;
    says(ProbeData::new(broken.view(), &labels, &groups), "row 3, column 2 is NaN");
    let rare: Vec<bool> = groups.iter().map(|&g| g == 0).collect();
    let data = ProbeData::new(x.view(), &rare, &groups).unwrap();
    says(GroupedProtocol::default().run(&data), "positive rows come from 1 groups");
    let data = ProbeData::new(x.view(), &labels, &groups).unwrap();
    says(GroupedProtocol { folds: 3, ..Default::default() }.run(&data), "needs 5 or more");
}
