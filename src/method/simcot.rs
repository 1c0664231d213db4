//! SIM-CoT (Wei et al. 2025, arXiv:2509.20317): Coconut with supervision of every thought. An auxiliary decoder reads the inputs of a
//! thought's c latents and must write the step of the chain that they stand for; its gradient goes through the latents into the model.
//! It is dropped after training, so that decoding is Coconut's.
//!
//! As in the public code (InternLM/SIM-CoT, `Coconut/coconut.py`, mode `coconutgpt_same_word_embedding`, `explain_mode` v1_aug,
//! `training_method` full): the decoder has the model's shape and is trained whole beside it; it reads the c inputs and then the step
//! through the model's embedding, at positions from 1, and learns the step and the token that ends a response; thought t stands for
//! step t, the last of `max_stage` thoughts for all steps that are left, and a thought without a step for the text behind the block;
//! the loss of a thought is a sum over its tokens, of a row the mean over its thoughts, and is added to the cross-entropy.
//!
//! It differs in this: the decoder begins as the checkpoint that the phase starts from (theirs: as the pretrained model), and the phase
//! starts from `base` (theirs: from a run that has all its latents; `coconut.all_latents` does that within the phase); a row's loss is
//! weighed by its learnt tokens, so that shards add up (theirs: cross-entropy over the tokens of the batch, the decoder's over its
//! rows); a step is the text between two clauses (theirs: from `<<` to `>>`, joined by line breaks). Their variants with a prompt,
//! a projection, and on CODI are left out.

use anyhow::{Context as _, Result, ensure};
use burn::tensor::{Int, Tensor, TensorData};

use super::Method;
use super::coconut::{curriculum, no_stages, step_ends};
use super::codi::{counts, like};
use super::objective::{Learnt, LossSums, Objective, padded, response_losses};
use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::text_cot::BASE;
use crate::corpus::{Corpus, Row, Slot};
use crate::latent::{Gradient, Source};
use crate::model::heads::HeadSizes;
use crate::model::{Decoder, Hooks, Span};
use crate::ops::Targets;
use crate::recipe::Range::NotNegative;
use crate::text::Sample;

settings! {
    /// SIM-CoT (Wei et al. 2025): Coconut with an auxiliary decoder that spells out the latents. All else is as `coconut` says; the authors
    /// have `coconut.all_latents` on.
    pub struct Settings {
        /// Weight of the decoder's loss.
        pub weight: f64 = 1.0 => NotNegative,
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "simcot",
    about: "Coconut whose latents an auxiliary decoder spells out in training, step by step (Wei et al. 2025)",
    phases: &[BASE, SIMCOT],
    lacks: no_stages,
    ..Method::PLAIN
}];

pub(super) const SIMCOT: Phase = Phase {
    name: "simcot",
    from: Some(BASE.name),
    reads: &["simcot", "coconut"],
    row: TableRow::Ours("Coconut whose latents an auxiliary decoder spells out (SIM-CoT)"),
    panel: Panel::Latent,
    work: Work::Supervised(simcot),
};

fn simcot(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let Context { recipe, corpus, .. } = context;
    let settings = &recipe.coconut;
    let plain = curriculum(context, "simcot", settings.clone(), Source::HiddenState)?;
    let chains: Vec<Vec<usize>> = corpus.train.iter().map(step_ends).collect::<Result<_>>()?;
    let rows = plain.row;
    let row = move |step: usize, i: usize| {
        let row = rows(step, i)?;
        let slots = thoughts(&row, &corpus.train[i], &chains[i], (settings.c, settings.all_latents), corpus);
        Ok(Row { slots, ..row })
    };
    let objective = ThoughtLoss { weight: recipe.simcot.weight, gradient: settings.gradient };
    Ok(SupervisedPhase { row: Box::new(row), objective: Box::new(objective), ..plain })
}

/// The steps that each thought of a sample replaces: those removed so far, or `all` of them.
fn thoughts(row: &Row, sample: &Sample, ends: &[usize], (c, all): (usize, bool), corpus: &Corpus) -> Vec<Slot> {
    let thoughts = row.ids.iter().filter(|&&id| id == corpus.switch.latent).count() / c;
    let rest = &row.ids[row.prompt..row.ids.len() - 1];
    let until = if all { sample.response.len() } else { sample.response.len() - rest.len() };
    let gone = ends.iter().filter(|&&end| end <= until).count();
    let (mut from, mut slots) = (0, vec![]);
    for t in 0..thoughts {
        let mut tokens = rest;
        if t < gone {
            // The last thought takes the steps that are left.
            let to = ends[if t + 1 == thoughts { gone - 1 } else { t }];
            tokens = &sample.response[from..to];
            from = to;
        }
        slots.push(Slot { tokens: tokens.to_vec(), label: tokens.first().copied().unwrap_or_default() });
    }
    slots
}

/// Cross-entropy of the response, and per row `weight · (the mean loss of a thought)`, weighed by the row's tokens.
struct ThoughtLoss {
    weight: f64,
    gradient: Gradient,
}

impl Objective for ThoughtLoss {
    fn sums(&self, model: &Decoder, rows: &[Row], latent: u32) -> Result<LossSums> {
        let learnt = response_losses(model, rows, latent, &Source::HiddenState, self.gradient, &mut Hooks::none())?;
        let mut loss = learnt.losses.clone().sum();
        if rows.iter().any(|row| !row.slots.is_empty()) {
            loss = loss + spelled(model, rows, &learnt, latent)?.mul_scalar(self.weight);
        }
        Ok(LossSums { loss, correct: learnt.correct })
    }

    fn heads(&self, _width: usize) -> HeadSizes {
        HeadSizes { auxiliary: true, ..HeadSizes::default() }
    }
}

/// Per row the mean over its thoughts of the decoder's loss of a thought, weighed by the row's learnt tokens, summed.
fn spelled(model: &Decoder, rows: &[Row], learnt: &Learnt, latent: u32) -> Result<Tensor<1>> {
    let decoder =
        model.heads.auxiliary.first().context("SIM-CoT learns with an auxiliary decoder, and the model has none")?;
    let of_row = counts(learnt, rows.len());
    // Per thought: positions of the states that feed its latents, its target tokens, and the weight of a token.
    let (mut before, mut said, mut weights) = (vec![], vec![], vec![]);
    for (b, row) in rows.iter().enumerate() {
        let latents = (0..row.ids.len()).filter(|&p| row.ids[p] == latent).map(|p| (b, p - 1));
        before.extend(latents);
        for slot in &row.slots {
            said.push(slot.tokens.iter().chain(row.ids.last()).copied().collect::<Vec<u32>>());
            weights.push(of_row[b] / row.slots.len() as f32);
        }
    }
    let (n, d) = (said.len(), model.config().hidden_size);
    let c = before.len() / n;
    ensure!(c * n == before.len(), "{} latents for {n} thoughts: each has as many", before.len());
    let padded = padded(&said);
    let width = padded[0].len();
    let states = learnt.all.hidden_at(&before)?.reshape([n, c, d]);
    let input = Tensor::cat(vec![states, model.embed(&padded)?], 1);
    let lengths: Vec<usize> = said.iter().map(|ids| c + ids.len()).collect();
    let mut span = Span::prompts(&lengths, false);
    span.positions.iter_mut().flatten().for_each(|position| *position += 1);
    let hidden = decoder.hidden(input, &span, &mut decoder.cache_for_one_call(n), &mut Hooks::none())?;
    let places: Vec<i64> = said
        .iter()
        .enumerate()
        .flat_map(|(i, ids)| (0..ids.len()).map(move |j| (i * (c + width) + c - 1 + j) as i64))
        .collect();
    let shares = said.iter().zip(weights).flat_map(|(ids, weight)| vec![weight; ids.len()]).collect();
    let places = Tensor::<1, Int>::from_data(TensorData::new(places.clone(), [places.len()]), &hidden.device());
    let hidden = hidden.reshape([n * (c + width), d]).select(0, places);
    let (losses, _) = decoder.token_losses(hidden, Targets::new(said.concat()))?;
    Ok((losses.clone() * like(&losses, shares)).sum())
}
