//! Our probe protocol: nothing about a test problem is seen in training. Knows rows, labels and problems.
//!
//! Every problem is tested once per repeat (k-fold over problems). Inside a fold's training side: negatives (or positives)
//! are thinned to balance, columns standardised, C chosen by an inner k-fold over problems. Test rows are never thinned.
//! Intervals resample problems with the fitted probes fixed; they are then widened for the training sets that
//! the folds share (Nadeau & Bengio 2003): variance times `1 + k/(k − 1)`, 2.25 at k = 5. Without it, features that carry
//! nothing were called readable or anti-readable in 13 % of 400 simulated data sets at the 5 % level (standard deviation over
//! data sets 0.0325, resampled standard error 0.0264); with it, in fewer than 5 %. It errs on the wide side.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::{Bootstrap, Estimate, Groups, Logistic, Split, Standardiser, balanced_accuracy, grouped_kfold};
use super::pooled::{Fold, PooledSums};
use super::score::{Control, GroupedScore};
use super::{ProbeData, TooFew, balance, permuted_within, pick, widened};

/// Mean gradient at which a fit stops. Scikit-learn's 1e-4 leaves the weights of a large C half way.
const TOLERANCE: f64 = 1e-6;

/// Mean gradient at which a fit stops that only serves to choose C.
const LOOSE: f64 = 1e-4;

protocol! {
    /// Settings of our protocol.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct GroupedProtocol {
        /// Folds over problems: 5 makes each split 80:20.
        pub folds: usize,
        /// Repeats with new folds. The number of splits is `folds · repeats`.
        pub repeats: usize,
        /// Folds of the inner choice of C.
        pub inner_folds: usize,
        /// Candidates for C on standardised columns, in scikit-learn's meaning. Ties go to the smallest.
        pub c_grid: Vec<f64>,
        /// Share of positives where the probe would be used; not set: the share in the data.
        pub prevalence: Option<f64>,
        /// Whether to fit the control labels too (doubles the time).
        pub control: bool,
        /// Bootstrap draws over problems.
        pub draws: usize,
        /// Seed of splits, balancing, control labels and draws.
        pub seed: u64,
    }
}

impl Default for GroupedProtocol {
    fn default() -> Self {
        Self {
            folds: 5,
            repeats: 1,
            inner_folds: 3,
            c_grid: vec![1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0],
            prevalence: None,
            control: true,
            draws: 1000,
            seed: 0,
        }
    }
}

impl GroupedProtocol {
    /// Runs the whole protocol on `data`.
    pub fn run<F: Copy + Into<f64> + Sync>(&self, data: &ProbeData<'_, F>) -> Result<GroupedScore> {
        self.check(data)?;
        let groups = Groups::new(data.groups)?;
        let folds = self.out_of_fold(data, data.labels).context("probe")?;
        let pooled = PooledSums::new(&folds, data.labels, &groups);
        let bootstrap = self.bootstrap();
        let estimate =
            |f: &(dyn Fn(&[u32]) -> f64 + Sync)| bootstrap.units(groups.len(), f).map(|e| widened(e, self.folds, 0.0));
        let share = |f: &(dyn Fn(&[u32]) -> f64 + Sync)| estimate(f).and_then(Estimate::of_ends);
        let positives = data.labels.iter().filter(|&&l| l).count();
        let prevalence = self.prevalence.unwrap_or(positives as f64 / data.labels.len() as f64);
        let control = if self.control {
            let labels = permuted_within(data.labels, &groups, self.seed);
            let moved = labels.iter().zip(data.labels).filter(|(a, b)| a != b).count() as f64 / labels.len() as f64;
            let folds = self.out_of_fold(data, &labels).context("probe on control labels")?;
            let control = PooledSums::new(&folds, &labels, &groups);
            let score = |times: &[u32]| control.rates(times).balanced_accuracy();
            let gap = |times: &[u32]| pooled.rates(times).balanced_accuracy() - score(times);
            Some(Control {
                balanced_accuracy: share(&score)?,
                selectivity: widened(bootstrap.units(groups.len(), gap)?, self.folds, -1.0),
                moved,
            })
        } else {
            None
        };
        Ok(GroupedScore {
            balanced_accuracy: share(&|times| pooled.rates(times).balanced_accuracy())?,
            auroc: share(&|times| pooled.auroc(times))?,
            prevalence,
            accuracy_at_prevalence: share(&|times| pooled.rates(times).accuracy_at(prevalence))?,
            precision_at_prevalence: estimate(&|times| pooled.rates(times).precision_at(prevalence)).ok(),
            control,
            rows: data.labels.len(),
            positives,
            c: folds.iter().map(|f| f.c).collect(),
            converged: folds.iter().filter(|f| f.converged).count(),
        })
    }

    fn bootstrap(&self) -> Bootstrap {
        Bootstrap { draws: self.draws, ..Bootstrap::seeded(self.seed) }
    }

    fn check<F>(&self, data: &ProbeData<'_, F>) -> Result<()> {
        ensure!(!self.c_grid.is_empty(), "probe setting c_grid is empty");
        ensure!(self.repeats > 0, "probe setting repeats is 0");
        ensure!(self.folds * self.repeats >= 5, "{} splits; the protocol needs 5 or more", self.folds * self.repeats);
        if let Some(p) = self.prevalence {
            ensure!(p > 0.0 && p < 1.0, "probe setting prevalence must lie between 0 and 1, got {p}");
        }
        for (class, name) in [(true, "positive"), (false, "negative")] {
            let of_class = data.groups.iter().zip(data.labels).filter(|(_, label)| **label == class);
            let (n, fewest) = (of_class.map(|(group, _)| group).collect::<BTreeSet<_>>().len(), 2 * self.folds);
            ensure!(
                n >= fewest,
                TooFew(format!(
                    "{name} rows come from {n} groups; {} folds by group need at least {fewest}",
                    self.folds
                ))
            );
        }
        self.bootstrap().check()
    }

    /// The log-odds of every row from a probe that never saw its problem; one entry per split.
    fn out_of_fold<F: Copy + Into<f64> + Sync>(&self, data: &ProbeData<'_, F>, labels: &[bool]) -> Result<Vec<Fold>> {
        let mut splits = Vec::new();
        for repeat in 0..self.repeats {
            splits.extend(grouped_kfold(data.groups, labels, self.folds, self.seed.wrapping_add(repeat as u64))?);
        }
        splits
            .par_iter()
            .enumerate()
            .map(|(i, s)| self.fold(data, labels, s).with_context(|| format!("split {i}")))
            .collect()
    }

    fn fold<F: Copy + Into<f64> + Sync>(
        &self,
        data: &ProbeData<'_, F>,
        labels: &[bool],
        split: &Split,
    ) -> Result<Fold> {
        let c = self.choose_c(data, labels, &split.train)?;
        let (scores, converged) = self.fit_and_score(data, labels, &split.train, &split.test, &[c])?.remove(0);
        Ok(Fold { rows: split.test.clone(), scores, c, converged })
    }

    /// The C of the best mean balanced accuracy over an inner k-fold by problem.
    fn choose_c<F: Copy + Into<f64> + Sync>(
        &self,
        data: &ProbeData<'_, F>,
        labels: &[bool],
        train: &[usize],
    ) -> Result<f64> {
        let mut grid = self.c_grid.clone();
        grid.sort_by(f64::total_cmp);
        if grid.len() == 1 {
            return Ok(grid[0]);
        }
        let inner = grouped_kfold(&pick(data.groups, train), &pick(labels, train), self.inner_folds, self.seed)?;
        let mut total = vec![0.0; grid.len()];
        for split in inner {
            let (fit, held) = (pick(train, &split.train), pick(train, &split.test));
            let truth = pick(labels, &held);
            for (sum, (scores, _)) in total.iter_mut().zip(self.fit_and_score(data, labels, &fit, &held, &grid)?) {
                let predicted: Vec<bool> = scores.iter().map(|&z| z > 0.0).collect();
                *sum += balanced_accuracy(&truth, &predicted).context("inner fold")?;
            }
        }
        // Ties go to the smallest.
        let best = (0..grid.len()).rev().max_by(|&a, &b| total[a].total_cmp(&total[b])).unwrap_or(0);
        Ok(grid[best])
    }

    /// For each C: log-odds of `test` from a probe fitted on the balanced, standardised `train`, and whether it converged.
    fn fit_and_score<F: Copy + Into<f64> + Sync>(
        &self,
        data: &ProbeData<'_, F>,
        labels: &[bool],
        train: &[usize],
        test: &[usize],
        grid: &[f64],
    ) -> Result<Vec<(Vec<f64>, bool)>> {
        let train = balance(train, labels, self.seed);
        let raw = data.rows(&train);
        let scaler = Standardiser::fit(raw.view())?;
        let (x, y) = (scaler.apply(raw.view()), pick(labels, &train));
        let held = scaler.apply(data.rows(test).view());
        let tolerance = if grid.len() > 1 { LOOSE } else { TOLERANCE };
        let models = Logistic::path(x.view(), &y, grid, tolerance)?;
        Ok(models.iter().map(|m| (m.scores(held.view()).to_vec(), m.converged)).collect())
    }
}
