//! Which of several values can be read from hidden states? Our protocol for labels with more than two classes, e.g. the intermediate
//! result s_j at a latent step of a generated problem. Knows features, values and problems.
//!
//! Split by problem, standardised on train, C chosen inside train, interval over problems widened as in `grouped`. Classes are
//! not balanced; compare with [`ValueScore::majority`] and with the control: values shuffled over all rows, the same C.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use ndarray::{Array2, ArrayView2};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::{Bootstrap, Estimate, Groups, LEVEL, Softmax, Split, Standardiser, distinct, grouped_kfold, wilson};
use super::{TooFew, check, pick, rows_in_f64};

/// Groups and contexts of the rows. A probe is never fitted on the group or the context of a row that it predicts.
#[derive(Clone, Copy, Debug)]
pub struct RowGroups<'a> {
    /// Folds are dealt over these.
    pub groups: &'a [usize],
    /// Training rows that share one of these with a row of the fold are left out. Equal to `groups` if rows have nothing else
    /// in common.
    pub contexts: &'a [usize],
}

/// Mean gradient at which a fit stops.
const TOLERANCE: f64 = 1e-5;

/// Mean gradient at which a fit stops that only serves to choose C.
const LOOSE: f64 = 1e-4;

protocol! {
    /// Settings, as in [`GroupedProtocol`](super::GroupedProtocol).
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ValueProtocol {
        /// Folds over problems.
        pub folds: usize,
        /// Folds of the inner choice of C.
        pub inner_folds: usize,
        /// Candidates for C on standardised columns, in scikit-learn's meaning. Ties go to the smallest.
        pub c_grid: Vec<f64>,
        /// Bootstrap draws over problems.
        pub draws: usize,
        /// Seed of splits, shuffled values and draws.
        pub seed: u64,
    }
}

impl Default for ValueProtocol {
    fn default() -> Self {
        Self { folds: 5, inner_folds: 3, c_grid: vec![1e-2, 1e-1, 1.0, 10.0, 100.0], draws: 1000, seed: 0 }
    }
}

/// Accuracy and information of a probe for values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueScore {
    /// Share of rows whose value is predicted, by probes that never saw their problem; `n` counts problems.
    pub accuracy: Estimate,
    /// Mean over values of the share of their rows that are predicted; chance is one in `classes`.
    pub balanced_accuracy: Estimate,
    /// The accuracy with values shuffled over all rows.
    pub control: Estimate,
    /// The balanced accuracy with values shuffled.
    pub control_balanced: Estimate,
    /// Accuracy minus the control's, resampled together.
    pub selectivity: Estimate,
    /// Usable information (Xu et al. 2020): mean over rows of `log₂ p(value | features) − log₂ p(value)`, both fitted where the
    /// row's problem is not. Below 0 if the probe is overconfident.
    pub bits: Estimate,
    /// Bits with values shuffled.
    pub control_bits: Estimate,
    /// Share of the most frequent value: the score of a constant prediction.
    pub majority: f64,
    pub classes: usize,
    pub rows: usize,
    /// The C chosen in each split.
    pub c: Vec<f64>,
}

impl ValueProtocol {
    /// Runs the protocol on `features` [rows, D], one value and one problem per row.
    pub fn run<F: Copy + Into<f64> + Sync>(
        &self,
        features: ArrayView2<'_, F>,
        values: &[usize],
        groups: &[usize],
    ) -> Result<ValueScore> {
        check(features, values.len(), groups.len())?;
        ensure!(!self.c_grid.is_empty(), "probe setting c_grid is empty");
        ensure!(self.folds >= 5, "{} splits; the protocol needs 5 or more", self.folds);
        let mut frequent = std::collections::BTreeMap::new();
        values.iter().for_each(|v| *frequent.entry(v).or_insert(0usize) += 1);
        several(values)?;
        self.bootstrap().check()?;
        let scored = |graded: &[ProbeGrade]| -> (Vec<f64>, Vec<f64>) {
            graded.iter().map(|graded| (f64::from(u8::from(graded.right)), graded.bits)).unzip()
        };
        let rows = RowGroups { groups, contexts: groups };
        let (read, c) = self.out_of_fold(features, values, rows, None).context("value probe")?;
        let (right, bits) = scored(&read);
        let mut shuffled = values.to_vec();
        shuffled.shuffle(&mut ChaCha8Rng::seed_from_u64(self.seed));
        let control = self.out_of_fold(features, &shuffled, rows, Some(&c));
        let (by_chance, chance_bits) = scored(&control.context("value probe on control labels")?.0);
        let information = |bits: &[f64]| -> Result<Estimate> {
            Ok(super::unbounded(self.bootstrap().clustered_mean(bits, groups)?, self.folds))
        };
        let gap = self.bootstrap().clustered_paired(&by_chance, &right, groups)?;
        Ok(ValueScore {
            accuracy: self.share(&right, groups)?,
            balanced_accuracy: self.balanced(&right, values, groups)?,
            control: self.share(&by_chance, groups)?,
            control_balanced: self.balanced(&by_chance, &shuffled, groups)?,
            selectivity: super::widened(gap, self.folds, -1.0),
            bits: information(&bits)?,
            control_bits: information(&chance_bits)?,
            majority: frequent.values().copied().max().unwrap_or(0) as f64 / values.len() as f64,
            classes: frequent.len(),
            rows: values.len(),
            c,
        })
    }

    /// The value predicted for each row by a probe that never saw its group nor its context; `features` and `values` as in [`Self::run`].
    ///
    /// # Errors
    /// [`TooFew`] groups, training rows or values; features that are not finite.
    pub fn predictions<F: Copy + Into<f64> + Sync>(
        &self,
        features: ArrayView2<'_, F>,
        values: &[usize],
        rows: RowGroups<'_>,
    ) -> Result<Vec<usize>> {
        check(features, values.len(), rows.groups.len())?;
        ensure!(!self.c_grid.is_empty(), "probe setting c_grid is empty");
        several(values)?;
        let (read, _) = self.out_of_fold(features, values, rows, None).context("value probe")?;
        Ok(read.iter().map(|graded| graded.predicted).collect())
    }

    fn bootstrap(&self) -> Bootstrap {
        Bootstrap { draws: self.draws, ..Bootstrap::seeded(self.seed) }
    }

    /// Share of ones, problems resampled, widened for shared training sets.
    fn share(&self, right: &[f64], groups: &[usize]) -> Result<Estimate> {
        match constant(right, groups)? {
            Some(estimate) => Ok(estimate),
            None => Ok(super::widened(self.bootstrap().clustered_mean(right, groups)?, self.folds, 0.0)),
        }
    }

    /// Mean of the values' recalls, over those among the drawn problems.
    fn balanced(&self, right: &[f64], values: &[usize], groups: &[usize]) -> Result<Estimate> {
        if let Some(estimate) = constant(right, groups)? {
            return Ok(estimate);
        }
        let groups = Groups::new(groups)?;
        let seen = distinct(values);
        // Per group and value: rows predicted, rows.
        let mut counts = vec![vec![[0.0; 2]; seen.len()]; groups.len()];
        for (row, value) in values.iter().enumerate() {
            let [hits, all] = &mut counts[groups.of_row[row]][seen.partition_point(|s| s < value)];
            *hits += right[row];
            *all += 1.0;
        }
        let recalls = |times: &[u32]| {
            let mut sums = vec![[0.0; 2]; seen.len()];
            for (counts, &times) in counts.iter().zip(times) {
                for (sum, count) in sums.iter_mut().zip(counts) {
                    (0..2).for_each(|i| sum[i] += f64::from(times) * count[i]);
                }
            }
            let recalls: Vec<f64> = sums.iter().filter(|s| s[1] > 0.0).map(|s| s[0] / s[1]).collect();
            recalls.iter().sum::<f64>() / recalls.len() as f64
        };
        Ok(super::widened(self.bootstrap().units(groups.len(), recalls)?, self.folds, 0.0))
    }

    /// The prediction of each row by the probe of its fold, and the C of each fold, `given` or chosen inside it.
    fn out_of_fold<F: Copy + Into<f64> + Sync>(
        &self,
        features: ArrayView2<'_, F>,
        values: &[usize],
        of: RowGroups<'_>,
        given: Option<&[f64]>,
    ) -> Result<(Vec<ProbeGrade>, Vec<f64>)> {
        let splits = self.splits(of, values, self.folds)?;
        let fold = |(i, split): (usize, &Split)| {
            let c = match given {
                Some(given) => given[i],
                None => self.choose_c(features, values, of, &split.train)?,
            };
            Ok((fit_and_grade(features, values, &split.train, &split.test, &[c])?.remove(0), c))
        };
        let folds: Vec<(Vec<ProbeGrade>, f64)> = splits.par_iter().enumerate().map(fold).collect::<Result<_>>()?;
        let mut rows = vec![ProbeGrade::default(); values.len()];
        for (split, (graded, _)) in splits.iter().zip(&folds) {
            split.test.iter().zip(graded).for_each(|(&row, graded)| rows[row] = *graded);
        }
        Ok((rows, folds.into_iter().map(|f| f.1).collect()))
    }

    fn choose_c<F: Copy + Into<f64> + Sync>(
        &self,
        features: ArrayView2<'_, F>,
        values: &[usize],
        of: RowGroups<'_>,
        train: &[usize],
    ) -> Result<f64> {
        let mut grid = self.c_grid.clone();
        grid.sort_by(f64::total_cmp);
        if grid.len() == 1 {
            return Ok(grid[0]);
        }
        let (groups, contexts) = (pick(of.groups, train), pick(of.contexts, train));
        let within = RowGroups { groups: &groups, contexts: &contexts };
        let inner = self.splits(within, &pick(values, train), self.inner_folds)?;
        let mut hits = vec![0; grid.len()];
        for split in &inner {
            let (fit, held) = (pick(train, &split.train), pick(train, &split.test));
            for (hits, graded) in hits.iter_mut().zip(fit_and_grade(features, values, &fit, &held, &grid)?) {
                *hits += graded.iter().filter(|graded| graded.right).count();
            }
        }
        // Ties go to the smallest.
        let best = (0..grid.len()).rev().max_by_key(|&i| hits[i]).unwrap_or(0);
        Ok(grid[best])
    }

    fn splits(&self, of: RowGroups<'_>, values: &[usize], k: usize) -> Result<Vec<Split>> {
        let why = || format!("{k} folds by group need at least {} groups", 2 * k);
        ensure!(Groups::new(of.groups)?.len() >= 2 * k, TooFew(why()));
        let mut splits = grouped_kfold(of.groups, &vec![false; of.groups.len()], k, self.seed)?;
        for split in &mut splits {
            let met: HashSet<usize> = split.test.iter().map(|&row| of.contexts[row]).collect();
            split.train.retain(|&row| !met.contains(&of.contexts[row]));
            let why = || "without the groups and contexts of a fold no two values are left to fit on".to_owned();
            ensure!(split.train.iter().any(|&row| values[row] != values[split.train[0]]), TooFew(why()));
        }
        Ok(splits)
    }
}

/// Wilson's interval over problems if all rows are right, or none: a bootstrap then has no width.
fn constant(right: &[f64], groups: &[usize]) -> Result<Option<Estimate>> {
    if right.iter().any(|r| r != &right[0]) {
        return Ok(None);
    }
    let problems = Groups::new(groups)?.len();
    wilson(if right[0] > 0.5 { problems } else { 0 }, problems, LEVEL).map(Some)
}

/// Refuses values that are all the same.
fn several(values: &[usize]) -> Result<()> {
    let why = || format!("single class: all {} values are {}", values.len(), values[0]);
    ensure!(values.iter().any(|v| *v != values[0]), TooFew(why()));
    Ok(())
}

/// The prediction of one row by a probe that never saw its problem.
#[derive(Clone, Copy, Default)]
struct ProbeGrade {
    predicted: usize,
    /// Whether its value is predicted.
    right: bool,
    /// Gain of the probe's probability of the value over its share among the training rows; 0 if none of them has it.
    bits: f64,
}

/// For each C of a grid, sorted upwards: a probe fitted on `train`, at each row of `test`.
fn fit_and_grade<F: Copy + Into<f64>>(
    features: ArrayView2<'_, F>,
    values: &[usize],
    train: &[usize],
    test: &[usize],
    grid: &[f64],
) -> Result<Vec<Vec<ProbeGrade>>> {
    let raw = rows_in_f64(features, train);
    let scaler = Standardiser::fit(raw.view())?;
    let seen = pick(values, train);
    let tolerance = if grid.len() > 1 { LOOSE } else { TOLERANCE };
    let models = Softmax::path(scaler.apply(raw.view()).view(), &seen, grid, tolerance)?;
    let held = scaler.apply(rows_in_f64(features, test).view());
    let classes = distinct(&seen);
    let gained = |probabilities: &Array2<f64>, i: usize, value: usize| {
        let Ok(class) = classes.binary_search(&value) else { return 0.0 };
        let share = seen.iter().filter(|&&other| other == value).count() as f64 / seen.len() as f64;
        // A probability that rounds to 0 costs forty bits.
        probabilities[[i, class]].max(1e-12).log2() - share.log2()
    };
    let graded = |model: &Softmax| {
        let (predicted, probabilities) = (model.predict(held.view()), model.probabilities(held.view()));
        let of = |(i, (&predicted, &row)): (usize, (&usize, &usize))| ProbeGrade {
            predicted,
            right: predicted == values[row],
            bits: gained(&probabilities, i, values[row]),
        };
        predicted.iter().zip(test).enumerate().map(of).collect()
    };
    Ok(models.iter().map(graded).collect())
}
