//! Reduces residual states to records: each distribution is computed once and reduced to five numbers and its most probable tokens.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use burn::tensor::Tensor;

use super::translators::Translators;
use crate::latent::sampling;
use crate::model::Decoder;
use crate::model::hooks::rows_of;
use crate::nth::Nth;
use crate::schema::{Lens, LensRow, Opening};
use crate::stats::Estimate;
use crate::stats::by_problem::{mean, share};
use crate::study::Study;
use crate::study::readout::{LOGITS_HELD, logits};
use crate::study::shown::largest;

/// Most probable tokens of a distribution that count in the means of `top`. Others bias a mean down by at most the 64th's probability.
pub(crate) const KEPT: usize = 64;

/// 2⁶⁴.
const UNIT: f64 = 18_446_744_073_709_551_616.0;

/// Place of a state.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub problem: usize,
    /// Latent step; `None` at text.
    pub step: Option<Nth>,
    /// Tokens that the value of the block's step begins with, if known.
    pub own: Own,
}

/// Without and with a space before it; equal if both forms agree.
pub(super) type Own = Option<[u32; 2]>;

#[derive(Default)]
struct LensCell {
    /// By problem: entropy, p(exit), rank of exit, KL.
    values: Vec<(usize, [f64; 4])>,
    /// Whether the last layer predicts the same token, by problem.
    agree: Vec<(usize, bool)>,
    /// Whether the most probable token begins the value of the block's step, by problem.
    own: Vec<(usize, bool)>,
    /// Sum of probabilities by token, in units of 2⁻⁶⁴: integer sums do not depend on the order of threads.
    mass: BTreeMap<u32, u128>,
}

/// All readings by step, lens and layer.
pub(crate) struct Grid {
    layers: Vec<usize>,
    cells: BTreeMap<(Lens, Option<Nth>, usize), LensCell>,
}

impl Grid {
    pub fn new(layers: Vec<usize>) -> Self {
        Self { layers, cells: BTreeMap::new() }
    }

    /// Reads states at every layer. `own` is the input of the model's head, `[n, D]`; `states` are the layers', `[n, D]` each; `tuned`
    /// returns the translators that were not trained on a problem.
    pub fn read<'t>(
        &mut self,
        model: &Decoder,
        exit: u32,
        keys: &[Key],
        own: Tensor<2>,
        states: &[Tensor<2>],
        tuned: &dyn Fn(usize) -> Option<&'t Translators>,
    ) -> Result<()> {
        let all: Vec<usize> = (0..keys.len()).collect();
        for chunk in all.chunks((LOGITS_HELD / model.config().vocab_size).max(1)) {
            let own = logits(model, rows_of(&own, chunk))?;
            let own: Vec<Vec<f64>> = own.iter().map(|row| sampling::log_softmax(row, 1.0, &[])).collect();
            for (i, state) in states.iter().enumerate() {
                let layer = self.layers[i];
                let state = rows_of(state, chunk);
                for (at, row) in logits(model, model.norm.apply(state.clone()))?.iter().enumerate() {
                    self.add(Lens::Logit, layer, keys[chunk[at]], row, &own[at], exit);
                }
                // One call per set of translators: problems of one fold share theirs.
                let mut rest: Vec<usize> = (0..chunk.len()).collect();
                while let Some(lens) = rest.first().and_then(|&at| tuned(keys[chunk[at]].problem)) {
                    let same = |at: &usize| tuned(keys[chunk[*at]].problem).is_some_and(|t| std::ptr::eq(t, lens));
                    let (mine, others): (Vec<usize>, Vec<usize>) = rest.into_iter().partition(same);
                    let moved = model.norm.apply(lens.translate(i, rows_of(&state, &mine)));
                    for (&at, row) in mine.iter().zip(&logits(model, moved)?) {
                        self.add(Lens::Tuned, layer, keys[chunk[at]], row, &own[at], exit);
                    }
                    rest = others;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, lens: Lens, layer: usize, key: Key, logits: &[f32], own: &[f64], exit: u32) {
        let lp = sampling::log_softmax(logits, 1.0, &[]);
        let at_exit = lp[exit as usize];
        let rank = 1 + lp.iter().filter(|p| **p > at_exit).count();
        // Rounding can make the sum of equal distributions slightly negative.
        let kl: f64 = own.iter().zip(&lp).map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0);
        let top = sampling::argmax(&lp);
        let cell = self.cells.entry((lens, key.step, layer)).or_default();
        cell.agree.push((key.problem, sampling::argmax(own) == top));
        cell.own.extend(key.own.map(|own| (key.problem, own.contains(&top))));
        cell.values.push((key.problem, [sampling::entropy(&lp), at_exit.exp(), rank as f64, kl]));
        for token in most_probable(&lp, KEPT) {
            *cell.mass.entry(token).or_default() += (lp[token as usize].exp() * UNIT) as u128;
        }
    }

    /// Merges the readings of other problems.
    pub(crate) fn merge(&mut self, other: Self) {
        for (key, cell) in other.cells {
            let mine = self.cells.entry(key).or_default();
            mine.values.extend(cell.values);
            mine.agree.extend(cell.agree);
            mine.own.extend(cell.own);
            cell.mass.into_iter().for_each(|(token, p)| *mine.mass.entry(token).or_default() += p);
        }
    }

    /// The rows. A step that fewer than two problems reached has no interval and no row.
    pub fn rows(&self, study: &Study, top: usize, switching: Opening) -> Result<Vec<LensRow>> {
        let mut rows = vec![];
        for (&(lens, step, layer), cell) in &self.cells {
            let over = |k: usize| -> Result<Option<Estimate>> {
                let values = cell.values.iter().map(|(problem, values)| (*problem, values[k]));
                mean(study.seed, values).with_context(|| format!("{} lens, {step:?}, layer {layer}", lens.name()))
            };
            let (Some(entropy), Some(p_exit), Some(exit_rank), Some(kl), Some(agreement)) =
                (over(0)?, over(1)?, over(2)?, over(3)?, share(study.seed, &cell.agree)?)
            else {
                continue;
            };
            let mass = cell.mass.iter().map(|(&token, &sum)| (token, sum as f64 / UNIT));
            rows.push(LensRow {
                identity: study.identity(entropy.n),
                switching,
                lens,
                step,
                layer,
                positions: cell.values.len(),
                entropy,
                p_exit,
                exit_rank,
                top: largest(&study.corpus.vocabulary, mass, top, |sum| sum / cell.values.len() as f64)?,
                kl,
                agreement,
                own_value: share(study.seed, &cell.own)?,
            });
        }
        let any = rows.iter().any(|r| r.step.is_some());
        study.require(any, || "fewer than two problems have a latent step".into())?;
        Ok(rows)
    }
}

/// The `count` most probable tokens, in no order.
fn most_probable(log_probs: &[f64], count: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..log_probs.len() as u32).collect();
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, |&a, &b| log_probs[b as usize].total_cmp(&log_probs[a as usize]));
        tokens.truncate(count);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::most_probable;

    #[test]
    fn the_most_probable_are_kept() {
        let log_probs = [-3.0, -0.5, -9.0, -1.0, -2.0];
        let mut kept = most_probable(&log_probs, 3);
        kept.sort_unstable();
        assert_eq!(kept, [1, 3, 4]);
        assert_eq!(most_probable(&log_probs, 9).len(), 5);
    }
}
