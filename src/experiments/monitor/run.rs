//! Decodes all held-out problems once and records their latents as fed, edited or not. Knows decodes and hooks; nothing of monitors.

use anyhow::{Context, Result, ensure};
use ndarray::Array2;

use super::fit::Push;
use crate::evaluation::requests;
use crate::interventions::latents;
use crate::latent::{Request, Trace, decode};
use crate::model::{Hooks, Step};
use crate::progress::go_on;
use crate::study::Study;
use crate::study::answers::graded;

/// Results of the problems, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct RunOutput {
    pub right: Vec<bool>,
    pub answers: Vec<Option<String>>,
    /// Visible tokens of each response.
    pub text: Vec<Vec<u32>>,
    /// By block and step: the state that entered the latent's slot `[D]`.
    pub latents: Vec<Vec<Vec<Vec<f32>>>>,
    /// Problem, and relative length of a latent's change.
    pub change: Vec<(usize, f64)>,
}

/// Decodes greedily; `pushes[s]` changes every latent at step `s` of its block before it is fed.
pub(super) fn run(study: &Study, pushes: &[Push]) -> Result<RunOutput> {
    let (all, settings) = (requests(&study.corpus)?, study.settings());
    let batches: Vec<&[Request]> = all.chunks(study.batch_size()).collect();
    let (spec, layers) = (latents(), study.model.layers.len());
    let ran = study.each("batches decoded", &batches, |batch| {
        let from = batch.first().map_or(0, |request| request.problem);
        let mut ran = RunOutput { latents: vec![vec![]; batch.len()], ..RunOutput::default() };
        let RunOutput { latents, change, .. } = &mut ran;
        let mut hooks = Hooks::none();
        hooks.edit(&spec, layers, |site, state| {
            let place = site.places.first().context("a place")?;
            let Step::Latent { block, step } = place.step else { return Ok(()) };
            if let Some(push) = pushes.get(step) {
                change.push((place.row, push.apply(state)));
            }
            let blocks = &mut latents[place.row - from];
            blocks.resize_with(blocks.len().max(block + 1), Vec::new);
            ensure!(blocks[block].len() == step, "latent step {step} of block {block} came out of order");
            blocks[block].push(state.to_vec());
            Ok(())
        })?;
        let traces = decode(study.decoding(&settings), batch, 1, &mut hooks)?;
        drop(hooks);
        ran.text = traces.iter().map(Trace::text).collect();
        (ran.right, ran.answers) = graded(&study.corpus, traces)?;
        Ok(ran)
    })?;
    go_on()?;
    let mut whole = RunOutput::default();
    for RunOutput { right, answers, text, latents, change } in ran {
        whole.right.extend(right);
        whole.answers.extend(answers);
        whole.text.extend(text);
        whole.latents.extend(latents);
        whole.change.extend(change);
    }
    Ok(whole)
}

impl RunOutput {
    /// Latents of the longest block.
    pub fn steps(&self) -> usize {
        self.latents.iter().flatten().map(Vec::len).max().unwrap_or(0)
    }

    /// Each problem's mean state at each of `steps`, over its blocks, concatenated `[problems, steps · d]`; and whether it has all of them.
    pub fn means(&self, steps: usize, d: usize) -> Result<(Array2<f64>, Vec<bool>)> {
        let mut x = Array2::zeros((self.latents.len(), steps * d));
        let mut there = vec![true; self.latents.len()];
        for (problem, blocks) in self.latents.iter().enumerate() {
            for step in 0..steps {
                let states: Vec<&Vec<f32>> = blocks.iter().filter_map(|block| block.get(step)).collect();
                there[problem] &= !states.is_empty();
                for state in &states {
                    ensure!(state.len() == d, "a latent of width {}, expected {d}", state.len());
                    for (i, value) in state.iter().enumerate() {
                        x[[problem, step * d + i]] += f64::from(*value) / states.len() as f64;
                    }
                }
            }
        }
        Ok((x, there))
    }
}
