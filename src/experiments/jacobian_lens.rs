//! Does a latent already predict the answer? The Jacobian lens (Gurnee et al. 2026; TransformerLens 4.3 has it for text) reads an early
//! state by its effect on the end, not by similarity.
//!
//! 1. Run the held-out solutions with their latents, and split the problems into halves.
//! 2. For each half, average the Jacobian of the deciding position's final state with respect to the states of the last block's steps,
//!    through the recurrence: `J = E[∂h_final / ∂h]`.
//! 3. Map each state with the other half's J, then apply final norm and head.
//! 4. Compare with the logit lens of the same state, and with `others`: the state of another problem with the same J, which shows what J
//!    predicts by itself. `split_error` is the difference of the two halves' Jacobians.
//!
//! Misleads: a mean Jacobian is linear, and problems whose latents act in opposite directions cancel in it; a low share does not show
//! that a state is not used. Use patching for causal effects.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::markdown::{or_dash, table_of};
use super::{About, check_of, layers_named};
use crate::latent::{Sequence, sampling};
use crate::model::HookPoint;
use crate::nth::Nth;
use crate::parallel;
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::Count;
use crate::schema::{Form, JacobianLensRow, Transport, stream_name};
use crate::stats::MeanVector;
use crate::stats::by_problem::{mean, share};
use crate::study::Study;
use crate::study::circuits::jacobian::{Passage, jacobians};
use crate::study::circuits::patch::Node;
use crate::study::circuits::{SolutionForms, solution_forms};
use crate::study::readout::log_probs;
use crate::study::staging::logits::logits_at;

pub const ABOUT: About = About::asking(
    "whether each latent of the last block already predicts the answer: Jacobian lens through the recurrence, logit lens, null",
)
.on_request();

settings! {
    pub struct Config {
        /// Maximum number of problems with a tagged span.
        pub problems: usize = 100 => Count(4, MOST_ROWS),
        /// Layers to read, 0 to the number of blocks; empty: all.
        pub layers: Vec<usize> = vec![],
        /// Dimensions of the final state per backward pass: the number of copies of a sequence in memory.
        pub together: usize = 32,
    }
}

impl Config {
    fn layers(&self, blocks: usize) -> Result<Vec<usize>> {
        check_of("jacobian_lens", self, Self::RANGES)?;
        layers_named("jacobian_lens", &self.layers, blocks)
    }
}

/// Layer and latent step.
type Cell = (usize, usize);

#[derive(Default)]
struct CellFit {
    /// The mean Jacobians of both halves, `[D, D]`.
    halves: [MeanVector; 2],
    /// Problem, its state.
    states: Vec<(usize, Vec<f32>)>,
}

/// A problem: its sequence, its last block's latents and the position that decides its answer.
struct LensProblem<'a> {
    row: &'a Sequence,
    /// Half: parity of its group's index.
    half: usize,
    latents: Vec<usize>,
    answer: usize,
}

/// One row per reading, step and layer.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<JacobianLensRow>> {
    let layers = config.layers(study.model.config().num_hidden_layers)?;
    let solutions = solution_forms(study, config.problems)?;
    let (groups, mut numbers) = (study.corpus.groups(), BTreeMap::new());
    let mut read: Vec<LensProblem> = solutions.iter().filter_map(of_problem).collect();
    for one in &mut read {
        let next = numbers.len();
        one.half = *numbers.entry(groups[one.row.row]).or_insert(next) % 2;
    }
    let few = || format!("{} problems have a block before the answer, four are needed", read.len());
    study.require(read.len() >= 4, few)?;
    let fitted = fit(study, config, &layers, &read)?;
    let said = predicted_tokens(study, &read)?;
    let rows = fitted.iter().map(|(&cell, fit)| of_cell(study, cell, fit, (&read, &said)));
    Ok(rows.collect::<Result<Vec<_>>>()?.concat())
}

fn of_problem(solution: &SolutionForms) -> Option<LensProblem<'_>> {
    let answer = solution.answer_decided(Form::Latents)?;
    let latents: Vec<usize> = solution.blocks.last()?.latents.clone().collect();
    (!latents.is_empty()).then_some(LensProblem { row: &solution.latents, half: 0, latents, answer })
}

/// Jacobians and states of every problem.
fn fit(study: &Study, config: &Config, layers: &[usize], read: &[LensProblem]) -> Result<BTreeMap<Cell, CellFit>> {
    let points: Vec<HookPoint> = layers.iter().map(|&layer| Node::Resid(layer).point()).collect();
    let counted = study.counted("problems passed", read.len());
    let mut out: BTreeMap<Cell, CellFit> = BTreeMap::new();
    let numbered: Vec<(usize, &LensProblem)> = read.iter().enumerate().collect();
    // Sums are added in the order of the problems, in chunks to bound memory.
    for some in numbered.chunks(study.threads.max(1)) {
        let passed = parallel::each(some, study.threads, |(_, one)| {
            let from: Vec<Vec<usize>> = one.latents.iter().map(|&p| vec![p]).collect();
            let passage = Passage { row: one.row, from: &from, to: &[one.answer] };
            let passed = jacobians(&study.model, &study.reasoning.source, passage, &points, config.together)?;
            counted.add_one();
            Ok(passed)
        })?;
        for (&(number, LensProblem { latents, half, .. }), passed) in some.iter().zip(passed) {
            for (&layer, point) in layers.iter().zip(&points) {
                for (step, &position) in latents.iter().enumerate() {
                    let jacobian = passed.jacobians.get(&(*point, step)).context("a Jacobian is missing")?;
                    let finite = jacobian.iter().all(|x| x.is_finite());
                    ensure!(finite, "the Jacobian of layer {layer} at latent {} is not finite", step + 1);
                    let state = passed.values.get(&(*point, position)).context("a state is missing")?;
                    let cell = out.entry((layer, step)).or_default();
                    cell.halves[*half].add(jacobian);
                    cell.states.push((number, state.clone()));
                }
            }
        }
    }
    Ok(out)
}

/// The token that the model answers with, by problem.
fn predicted_tokens(study: &Study, read: &[LensProblem]) -> Result<Vec<usize>> {
    let rows: Vec<Sequence> = read.iter().map(|one| one.row.clone()).collect();
    let answers: BTreeMap<usize, usize> = read.iter().map(|one| (one.row.row, one.answer)).collect();
    let most_probable =
        |_: &Sequence, _: usize, logits: &[f32]| sampling::argmax(&sampling::log_softmax(logits, 1.0, &[])) as usize;
    Ok(logits_at(study, &rows, |row| vec![answers[&row.row]], most_probable)?.concat())
}

/// The three readings of a cell; none if a half has fewer than two problems.
fn of_cell(
    study: &Study,
    (layer, step): Cell,
    fit: &CellFit,
    (read, said): (&[LensProblem], &[usize]),
) -> Result<Vec<JacobianLensRow>> {
    let CellFit { halves, states } = fit;
    if halves.iter().any(|half| half.n < 2) {
        return Ok(vec![]);
    }
    let means = halves.each_ref().map(|half| half.mean().collect());
    let split_error = split_error(&means);
    let mut rows = vec![];
    for lens in [Transport::Jacobian, Transport::Logit, Transport::Others] {
        let (mut right, mut logprobs) = (vec![], vec![]);
        for half in 0..2 {
            let mine: Vec<&(usize, Vec<f32>)> =
                states.iter().filter(|(number, _)| read[*number].half == half).collect();
            // The next problem's state of the same half; the last one uses the first's.
            let shift = usize::from(lens == Transport::Others);
            let given = (0..mine.len()).map(|i| &mine[(i + shift) % mine.len()].1);
            let carried: Vec<f32> = match lens {
                Transport::Logit => given.flatten().copied().collect(),
                Transport::Jacobian | Transport::Others => given.flat_map(|h| times(&means[1 - half], h)).collect(),
            };
            for ((number, _), lp) in mine.iter().zip(log_probs(&study.model, carried)?) {
                right.push((*number, sampling::argmax(&lp) as usize == said[*number]));
                logprobs.push((*number, lp[said[*number]]));
            }
        }
        let (Some(says_answer), Some(logprob)) = (share(study.seed, &right)?, mean(study.seed, logprobs)?) else {
            continue;
        };
        rows.push(JacobianLensRow {
            identity: study.identity(says_answer.n),
            lens,
            step: Nth::new(step),
            layer,
            says_answer,
            logprob,
            split_error: (lens != Transport::Logit).then_some(split_error),
        });
    }
    Ok(rows)
}

/// `[D, D] · [D]`
fn times(matrix: &[f64], h: &[f32]) -> Vec<f32> {
    let dot = |row: &[f64]| row.iter().zip(h).map(|(a, &b)| a * f64::from(b)).sum::<f64>() as f32;
    matrix.chunks(h.len()).map(dot).collect()
}

/// `‖J₁ − J₂‖ / ‖(J₁ + J₂)/2‖`; 0 if both are zero.
fn split_error([a, b]: &[Vec<f64>; 2]) -> f64 {
    let norm = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(&a, &b)| f(a, b).powi(2)).sum::<f64>().sqrt();
    let whole = norm(&|a, b| (a + b) / 2.0);
    if whole == 0.0 { norm(&|a, b| a - b) } else { norm(&|a, b| a - b) / whole }
}

/// Markdown: the answer's share, by layer and step.
pub fn table(rows: &[JacobianLensRow]) -> String {
    let columns = "latent step | layer | Jacobian lens predicts the answer | logit lens | another problem's state | halves differ by";
    let of = |row: &JacobianLensRow, lens| {
        let same = |r: &&JacobianLensRow| (r.step, r.layer, r.lens) == (row.step, row.layer, lens);
        or_dash(rows.iter().find(same).map(|r| format!("{:.3}", r.says_answer)))
    };
    table_of(columns, rows.iter().filter(|r| r.lens == Transport::Jacobian), |row| {
        let (logit, others) = (of(row, Transport::Logit), of(row, Transport::Others));
        let error = or_dash(row.split_error.map(|e| format!("{e:.2}")));
        format!("{} | {} | {:.3} | {logit} | {others} | {error}", row.step, stream_name(row.layer), row.says_answer)
    })
}
