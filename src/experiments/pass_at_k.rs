//! pass@k: the ability of a model in several tries. Each problem is sampled many times at a temperature.
//!
//! `pass_at_k` is the probability that one of k answers is correct, an unbiased estimate from all samples: 1 − C(n−c, k) / C(n, k) with c
//! correct ones of n (Chen et al. 2021). `majority` counts as correct if the most frequent answer of the first k samples is. Compared
//! between phases they show whether training added ability or made one of many answers more likely: a model that only became more certain
//! gains at k = 1 and not, or loses, at large k (Yue et al. 2025).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::markdown::table_of;
use super::{About, check_of};
use crate::evaluation::requests;
use crate::latent::{DecodeSettings, Request, Sampling, Trace, decode};
use crate::model::Hooks;
use crate::recipe::Range::Positive;
use crate::schema::PassRow;
use crate::stats::{Bootstrap, Estimate, LEVEL, accuracy, wilson};
use crate::study::Study;
use crate::study::answers::graded;

pub const ABOUT: About =
    About::asking("pass@k: correct in one of k samples, majority of k, distinct answers (sampled, not greedy)")
        .on_request()
        .of_text_alone();

settings! {
    pub struct Config {
        /// Answers drawn of each problem.
        pub samples: usize = 16,
        /// Of the draws.
        pub temperature: f64 = 1.0 => Positive,
    }
}

/// The samples of one problem, in order.
pub(super) struct Draws {
    right: Vec<bool>,
    pub answers: Vec<Option<String>>,
    switched: usize,
}

/// One row per power of two up to the number of samples, and one for all of them.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<PassRow>> {
    let &Config { samples, temperature } = config;
    check_of("pass_at_k", config, Config::RANGES)?;
    let draws = drawn(study, config)?;
    let powers = std::iter::successors(Some(1), |k| Some(2 * k)).take_while(|k| *k < samples);
    let row = |k: usize| {
        let of_problems = |value: &dyn Fn(&Draws) -> f64| draws.iter().map(value).collect::<Vec<f64>>();
        let right = |of: &Draws| of.right.iter().filter(|right| **right).count();
        Ok(PassRow {
            identity: study.identity(draws.len()),
            k,
            samples,
            temperature,
            pass_at_k: mean(study.seed, &of_problems(&|of| pass(samples, right(of), k)))?,
            majority: accuracy(&draws.iter().map(|of| of.majority(k)).collect::<Vec<_>>())?,
            distinct: Bootstrap::seeded(study.seed).mean(&of_problems(&|of| of.distinct(k) as f64))?,
            switch_rate: mean(study.seed, &of_problems(&|of| of.switched as f64 / samples as f64))?,
        })
    };
    powers.chain([samples]).map(row).collect()
}

/// 1 − C(n−c, k) / C(n, k) with c correct ones of n.
fn pass(n: usize, right: usize, k: usize) -> f64 {
    let missed: f64 = (0..k).map(|i| (n - right).saturating_sub(i) as f64 / (n - i) as f64).product();
    1.0 - missed
}

/// Mean of numbers in [0, 1] per problem; Wilson's interval if all are 0, or all 1.
pub(super) fn mean(seed: u64, values: &[f64]) -> Result<Estimate> {
    let whole = values.iter().filter(|x| **x == 1.0).count();
    if whole == values.len() || values.iter().all(|x| *x == 0.0) {
        return wilson(whole, values.len(), LEVEL);
    }
    Ok(Bootstrap::seeded(seed).mean(values)?.share())
}

impl Draws {
    /// Whether the most frequent answer of the first `k` is correct; ties go to the earliest.
    fn majority(&self, k: usize) -> bool {
        let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (at, answer) in self.answers[..k].iter().enumerate() {
            let Some(answer) = answer else { continue };
            counts.entry(answer).or_insert((0, at)).0 += 1;
        }
        let most = counts.values().max_by_key(|(count, at)| (*count, std::cmp::Reverse(*at)));
        most.is_some_and(|(_, at)| self.right[*at])
    }

    /// Distinct answers among the first `k`.
    fn distinct(&self, k: usize) -> usize {
        self.answers[..k].iter().flatten().collect::<BTreeSet<_>>().len()
    }
}

pub(super) fn drawn(study: &Study, config: &Config) -> Result<Vec<Draws>> {
    let sampling = Sampling { temperature: config.temperature, seed: study.seed, ..Sampling::default() };
    sampling.check()?;
    study.require(study.corpus.test.len() > 1, || "samples of one problem have no interval: use two or more".into())?;
    let settings = DecodeSettings { sampling, ..study.settings() };
    let batches = batches(&requests(&study.corpus)?, config.samples, study.batch_size());
    let traces = study.each("batches sampled", &batches, |(batch, samples)| {
        decode(study.decoding(&settings), batch, *samples, &mut Hooks::none())
    })?;
    let all: Vec<Trace> = traces.concat();
    let of_problem = |traces: &[Trace]| {
        let switched = traces.iter().filter(|trace| trace.switched()).count();
        let (right, answers) = graded(&study.corpus, traces.to_vec())?;
        Ok(Draws { right, answers, switched })
    };
    all.chunks(config.samples).map(of_problem).collect()
}

/// Batches of at most `most` rows, each with its number of samples per request: whole problems, or a part of one problem's samples.
fn batches(requests: &[Request], samples: usize, most: usize) -> Vec<(Vec<Request>, usize)> {
    let mut batches = vec![];
    for some in requests.chunks((most / samples).max(1)) {
        for from in (0..samples).step_by(most) {
            let part = some.iter().map(|request| Request { rollout: request.rollout + from, ..request.clone() });
            batches.push((part.collect(), most.min(samples - from)));
        }
    }
    batches
}

pub fn table(rows: &[PassRow]) -> String {
    table_of("k | correct in one of k [95 %] | majority of k | distinct answers | samples that switch", rows, |r| {
        let PassRow { k, samples, pass_at_k, majority, distinct, switch_rate, .. } = r;
        format!("{k} of {samples} | {pass_at_k:.3} | {majority:.3} | {distinct:.2} | {switch_rate:.3}")
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::machine::Machine;
    use crate::study::{DoesNotApply, ProblemChoice};

    #[test]
    fn one_problem_does_not_apply() {
        let asked = ProblemChoice { problems: Some(1), ..ProblemChoice::default() };
        let study = Study::open_run(Path::new("fixtures/micro"), "sft", &asked, &Machine::default()).expect("micro");
        let why = rows(&study, &Config::default()).expect_err("one problem");
        assert!(why.is::<DoesNotApply>(), "{why:#}");
    }

    /// By counting every choice of k of n.
    fn counted(right: &[bool], k: usize) -> f64 {
        let (mut all, mut hit) = (0, 0);
        for choice in 0u32..1 << right.len() {
            if choice.count_ones() as usize == k {
                all += 1;
                hit += u32::from(right.iter().enumerate().any(|(i, right)| *right && choice >> i & 1 == 1));
            }
        }
        f64::from(hit) / f64::from(all)
    }

    #[test]
    fn pass_at_k_is_the_share_of_all_choices() {
        for c in 0..=7 {
            let right: Vec<bool> = (0..7).map(|i| i < c).collect();
            for k in 1..=7 {
                assert!((pass(7, c, k) - counted(&right, k)).abs() < 1e-12, "{c} of 7, k {k}");
            }
        }
    }

    #[test]
    fn no_batch_has_more_rows_than_its_maximum() {
        let requests = Request::all(vec![vec![0]; 5]);
        for (samples, most) in [(1, 2), (2, 5), (4, 4), (16, 5), (7, 1)] {
            let batches = batches(&requests, samples, most);
            assert!(batches.iter().all(|(some, each)| some.len() * each <= most), "{samples} samples, {most} rows");
            let drawn = batches.iter().flat_map(|(some, each)| {
                some.iter().flat_map(move |request| (0..*each).map(move |i| (request.problem, request.rollout + i)))
            });
            let all = (0..requests.len()).flat_map(|problem| (0..samples).map(move |rollout| (problem, rollout)));
            assert_eq!(drawn.collect::<Vec<_>>(), all.collect::<Vec<_>>(), "in the order of problems and samples");
        }
    }

    #[test]
    fn the_majority_is_of_the_first_k() {
        let answers = ["3", "4", "4", "3", "3"].map(|answer| Some(answer.to_owned()));
        let draws = Draws { right: vec![true, false, false, true, true], answers: answers.into(), switched: 0 };
        assert_eq!([1, 2, 3, 4, 5].map(|k| draws.majority(k)), [true, true, false, true, true]);
        assert_eq!([1, 2, 5].map(|k| draws.distinct(k)), [1, 2, 2]);
    }
}
