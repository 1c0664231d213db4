//! Each layer's next-token prediction at each latent step: the logit lens (nostalgebraist 2020) and the tuned lens (Belrose et al. 2023).
//! In rows layer 0 is the embedding, layer l the output of `blocks.{l-1}`; the last is the model's own distribution.
//!
//! A lens reads an early layer in the last layer's coordinates. If the logit lens shows nothing, the layer may represent the answer in
//! another basis: the tuned lens learns an affine map per layer that undoes the change of basis, trained by KL to the model's own
//! distribution at *text* positions of *other problems* (cross-fitted by group, so that every number here is of unseen problems). KL and
//! top-1 agreement with the last layer show how far either can be trusted: rows without a step are unseen text, the training domain of
//! the tuned lens; latents are outside it for both.
//!
//! The greedy traces are replayed and reduced wave by wave; activations are freed after their wave, except the sample of text positions
//! that trains the tuned lens. If fewer than two problems switch, switching is forced (`switching` = forced).

mod reading;
mod residuals;
mod translators;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use rand::SeedableRng;
use rand::seq::index::sample;
use rand_chacha::ChaCha8Rng;

use super::markdown::{or_dash, table_of};
use super::{About, check_of, layers_named};
use crate::latent::{Sequence, Switching, Trace};
use crate::model::Step;
use crate::model::hooks::Place;
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::{Count, Positive};
use crate::schema::{Lens, LensRow, Opening, stream_name};
use crate::stats::grouped_kfold;
use crate::study::block_values::blocks;
use crate::study::{DoesNotApply, Study};
use reading::{Grid, Key};
use residuals::{BATCH, PositionSample, walk};
use translators::{Translators, train};

pub const ABOUT: About = About::asking("what each layer would say next at each latent step: logit lens and tuned lens")
    .of_responses()
    .of_switching();

settings! {
    pub struct Config {
        /// Layers to read, 0 to the number of blocks; empty: all. The last is always read.
        pub layers: Vec<usize> = vec![],
        /// Tokens of `top`.
        pub top: usize = 5,
        /// Text positions of each problem that the tuned lens learns from or is examined on.
        pub text_positions: usize = 8 => Count(1, MOST_ROWS),
        /// Number of folds of the problems: each is read with translators trained on the others.
        pub folds: usize = 2 => Count(2, MOST_ROWS),
        /// Optimiser steps of the translators; 0 for no tuned lens.
        pub steps: usize = 300,
        /// Positions of one optimiser step.
        pub batch: usize = 256,
        /// Adam's, decaying linearly to 0.
        pub learning_rate: f64 = 2e-3 => Positive,
    }
}

impl Config {
    /// The layers, sorted.
    fn check(&self, blocks: usize) -> Result<Vec<usize>> {
        check_of("logit_lens", self, Self::RANGES)?;
        let layers: BTreeSet<usize> = layers_named("logit_lens", &self.layers, blocks)?.into_iter().collect();
        Ok(layers.into_iter().filter(|layer| *layer < blocks).chain([blocks]).collect())
    }
}

/// One row per lens, step and layer.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<LensRow>> {
    let layers = config.check(study.model.config().num_hidden_layers)?;
    let free = study.decoded()?.1;
    // An interval needs two problems.
    if free.iter().filter(|trace| trace.switched()).count() > 1 {
        return grid(study, config, &layers, free)?.rows(study, config.top, Opening::Free);
    }
    let (_, forced) = study.decode(Switching::Forced, study.recipe.evaluation.k_min)?;
    grid(study, config, &layers, &forced)?.rows(study, config.top, Opening::Forced)
}

/// Every reading of these traces, reduced.
fn grid(study: &Study, config: &Config, layers: &[usize], traces: &[Trace]) -> Result<Grid> {
    let switch = &study.corpus.switch;
    let sequences: Vec<Sequence> = traces.iter().map(|trace| trace.sequence(switch)).collect::<Result<_>>()?;
    let groups = study.corpus.groups();
    let found = groups[..traces.len()].iter().collect::<BTreeSet<_>>().len();
    let few = || format!("{found} groups of problems cannot fill {} folds", config.folds);
    ensure!(found >= config.folds, DoesNotApply::because(few()));

    let text: BTreeSet<(usize, usize)> =
        sequences.iter().flat_map(|s| text_places(s, config, study.seed, switch.swi)).collect();
    let text = PositionSample::collect(study, layers, &sequences, &text)?;
    let switched: Vec<bool> = traces.iter().map(Trace::switched).collect();
    let splits = grouped_kfold(&groups[..traces.len()], &switched, config.folds, study.seed)?;
    let mut fold_of = vec![0; traces.len()];
    let mut tuned: Vec<Option<Translators>> = vec![];
    for (fold, split) in splits.iter().enumerate() {
        split.test.iter().for_each(|&problem| fold_of[problem] = fold);
        let seen: Vec<usize> = (0..text.problems.len()).filter(|&i| split.train.contains(&text.problems[i])).collect();
        ensure!(!seen.is_empty(), "no text position to train the tuned lens on: every response is empty");
        tuned.push(if config.steps == 0 { None } else { Some(train(study, config, &text, &seen, fold)?) });
    }

    let lens_of = |problem: usize| tuned[fold_of[problem]].as_ref();
    let mut grid = Grid::new(layers.to_vec());
    text.each(|problems, own, states| {
        let keys: Vec<Key> = problems.iter().map(|&problem| Key { problem, step: None, own: None }).collect();
        grid.read(&study.model, switch.swi_end, &keys, own, states, &lens_of)
    })?;
    let values = own_values(study, traces)?;
    let latent: Vec<Sequence> = sequences.into_iter().filter(|s| s.latents() > 0).collect();
    // Batches of a fixed size: rounding depends on it.
    let batches: Vec<&[Sequence]> = latent.chunks(BATCH).collect();
    let grids = study.each("batches", &batches, |batch| {
        let mut grid = Grid::new(layers.to_vec());
        let wanted = |place: &Place| matches!(place.step, Step::Latent { .. });
        walk(study, layers, batch, &wanted, &mut |places, own, states| {
            let value = |p: &Place| match p.step {
                Step::Latent { block, .. } => values.get(&(p.row, block)).copied(),
                _ => None,
            };
            let keys: Vec<Key> =
                places.iter().map(|p| Key { problem: p.row, step: p.step.nth(), own: value(p) }).collect();
            grid.read(&study.model, switch.swi_end, &keys, own, states, &lens_of)
        })?;
        Ok(grid)
    })?;
    grids.into_iter().for_each(|part| grid.merge(part));
    Ok(grid)
}

/// For each problem and block of a step with a known value: the tokens that the value begins with.
fn own_values(study: &Study, traces: &[Trace]) -> Result<BTreeMap<(usize, usize), [u32; 2]>> {
    let corpus = &study.corpus;
    let mut values = BTreeMap::new();
    for trace in traces {
        let problem = &corpus.test[trace.problem];
        for (block, step) in blocks(trace, problem, &corpus.vocabulary)? {
            let Some(value) = problem.steps[step].value.number() else { continue };
            let value = value.to_string();
            let begins = |text: &str| -> Result<Option<u32>> {
                let Some(first) = corpus.vocabulary.encode(text)?.first().copied() else { return Ok(None) };
                let said = corpus.vocabulary.decode(&[first])?;
                Ok(Some(first).filter(|_| !said.trim().is_empty() && value.starts_with(said.trim())))
            };
            let (alone, inside) = (begins(&value)?, begins(&format!(" {value}"))?);
            let both = alone.or(inside).zip(inside.or(alone));
            values.extend(both.map(|(a, b)| ((trace.problem, block), [a, b])));
        }
    }
    Ok(values)
}

/// A problem's text positions in the sample: response positions whose next token was decoded in text mode.
fn text_places(sequence: &Sequence, config: &Config, seed: u64, swi: u32) -> Vec<(usize, usize)> {
    // A latent always follows `<swi>`; nothing follows the last position.
    let is_text = |p: &usize| matches!(sequence.steps[*p], Step::Text(_)) && sequence.ids[*p] != swi;
    let candidates: Vec<usize> = (0..sequence.ids.len() - 1).filter(is_text).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(sequence.row as u64);
    let chosen = sample(&mut rng, candidates.len(), config.text_positions.min(candidates.len()));
    chosen.into_iter().map(|i| (sequence.row, candidates[i])).collect()
}

/// Markdown: how far each lens can be trusted on unseen text, and the last layer's predictions at latent steps.
pub fn table(rows: &[LensRow]) -> String {
    let forced = rows.iter().any(|r| r.switching == Opening::Forced);
    let first = if forced {
        "The model switched on fewer than two problems: <swi> was forced at the first position of each.\n\n"
    } else {
        ""
    };
    let text = |lens| rows.iter().filter(move |r| r.step.is_none() && r.lens == lens);
    let columns =
        "layer, unseen text | logit lens: KL to the last layer | top-1 agreement | tuned lens: KL | agreement";
    let unseen = table_of(columns, text(Lens::Logit), |LensRow { layer, kl, agreement, .. }| {
        let tuned = text(Lens::Tuned).find(|r| r.layer == *layer);
        let tuned =
            [|r: &LensRow| r.kl, |r: &LensRow| r.agreement].map(|of| or_dash(tuned.map(|r| format!("{:.3}", of(r)))));
        format!("{} | {kl:.3} | {agreement:.3} | {} | {}", stream_name(*layer), tuned[0], tuned[1])
    });
    let last = rows.iter().map(|r| r.layer).max();
    let steps = rows.iter().filter(|r| Some(r.layer) == last && r.lens == Lens::Logit && r.step.is_some());
    let columns = "latent step, last layer | p(`</swi>`) | says `</swi>` | rank of `</swi>` | H (nats) | top";
    let latents = table_of(columns, steps, |r| {
        let top: Vec<(String, f64)> = serde_json::from_str(&r.top).unwrap_or_default();
        let top: Vec<String> = top.iter().map(|(token, p)| format!("`{}` {p:.2}", token.trim())).collect();
        let top = top.join(", ").replace('|', "\\|");
        let (LensRow { p_exit, exit_rank, entropy, .. }, says) = (r, if r.says_exit() { "yes" } else { "—" });
        format!("{} | {p_exit:.3} | {says} | {exit_rank:.1} | {entropy:.3} | {top}", or_dash(r.step))
    });
    format!("{first}{unseen}\n{latents}")
}
