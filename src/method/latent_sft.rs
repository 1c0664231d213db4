//! Latent-SFT (Deng et al. 2026, arXiv:2510.15522): latents that are superpositions of the vocabulary, `z = Σ q_v E[v]` over the k most
//! probable tokens. What they must be is made from the explicit chain, in two stages of one phase:
//!
//! 1. *Chain.* An encoder of the model's shape reads the question and the chain, with a token that compresses behind every r tokens. It sees
//!    all text before it and no other such token; its state, on the embedding table, says q. The model reads the question and all z, and
//!    must say `</swi>` and the answer; and of each z alone it must say the r tokens of the chain that come next.
//! 2. *Superpositions.* The encoder stays as it is. The model is fed its z, with Gumbel noise on q, and learns the answer by
//!    cross-entropy and each noisy q by `KL(q ‖ p)` at the position before it.
//!
//! The encoder is dropped after training. Then the model feeds the superposition of its own k most probable tokens until `</swi>` is the
//! most probable one.
//!
//! As in the public code (DJC-GO-SOLO/Latent-SFT): positions (of latents as if the chain were not there; of the r tokens behind a latent
//! counted on from it), the last latent may stand for fewer tokens, the table is a constant of the first stage, the chain's cross-entropy is a
//! mean over all its tokens, noise is clamped to [−1.5, 3] and drawn anew, a hundred times at most, where `</swi>` would weigh most in a
//! latent, the divergence is a mean over a problem's latents, both losses have weight 1, decoding is without noise.
//!
//! It differs in this:
//! - The first stage trains encoder and model together (theirs: the encoder, then the model, then both, each from the best checkpoint).
//! - q of the second stage is computed as it is needed, which gives the same values (theirs: once, to files).
//! - The compressing token is `<latent>` (theirs: a new one); `<swi>` and `</swi>` are their `<think>` and `</think>`.
//! - The divergence is a mean over a row's latents, weighed by its learnt tokens, so that shards add up (theirs: over latents, then rows).
//! - All weights are trained where the recipe has no `[lora]`, embeddings too (theirs: LoRA of rank 64 on all projections, embeddings
//!   frozen); encoder and model have one rate and one warm-up, and the optimiser forgets between the stages (theirs: four runs).
//! - One latent is fed in any case, and at `latent_sft.limit` the block is closed (theirs: a limit of all tokens).
//! - AdamW in f32, without dropout (theirs: bf16, dropout .1 in the factors).

use anyhow::{Context as _, Result};
use burn::module::Module;
use burn::tensor::{FloatDType, Int, Tensor, TensorData, activation::softmax};
use rand::Rng;

use super::Method;
use super::batches::{lengths_of, sample_rng};
use super::codi::like;
use super::colar::{Short, chain, row_at};
use super::objective::{LossSums, Objective, padded, response_loss, targets};
use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use super::text_cot::BASE;
use crate::corpus::{Row, Slot};
use crate::latent::{Blocks, Gradient, Reasoning, Source, gumbel};
use crate::model::heads::HeadSizes;
use crate::model::{Decoder, Hooks, KvCache, Span, Step};
use crate::ops::{self, Targets, wide::log_softmax};
use crate::random::keyed;
use crate::recipe::Range::{Count, NotNegative, Positive, Typed};
use crate::recipe::{BATCH, POSITIONS, STEPS, fits};

settings! {
    /// Latent-SFT (Deng et al. 2026): the chain of thought as superpositions of the vocabulary. The authors train each of two stages for
    /// tens of passes over the data, at 1e-4 and 3e-4 with LoRA.
    pub struct Settings {
        /// Steps of the first stage: an encoder learns to compress the chain, and the model to read the latents.
        pub chain_steps: usize = 0 => Count(0, STEPS),
        /// Steps of the second stage, in which the model learns to write superpositions itself.
        pub steps: usize = 0 => Count(0, STEPS),
        pub batch: usize = 512 => Count(1, BATCH),
        pub learning_rate: f64 = 3e-4 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        /// The learning rate falls as a cosine in the second stage; otherwise it is constant.
        pub cosine: bool = true => Typed,
        /// Tokens of the chain per latent (`compression_rate` of the public code).
        pub compression: usize = 2 => Count(1, POSITIONS),
        /// Tokens of a superposition (`topk_interpolation` of the public code).
        pub top_k: usize = 10 => Count(1, POSITIONS),
        /// Scale of the Gumbel noise on the superpositions that are learnt; 0 is none.
        pub noise: f64 = 1.0 => NotNegative,
        /// Weight of the divergence from them.
        pub kl: f64 = 1.0 => NotNegative,
        /// Latents at most.
        pub limit: usize = 64 => Count(1, POSITIONS),
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "latent_sft",
    about: "superpositions of the vocabulary, learnt from the compressed chain (Deng et al. 2026)",
    phases: &[BASE, LATENT_SFT],
    lacks: |recipe| (recipe.latent_sft.steps == 0).then_some("latent_sft.steps must be at least 1"),
    check: |recipe| fits("latent_sft.limit", recipe.latent_sft.limit),
    ..Method::PLAIN
}];

pub(super) const LATENT_SFT: Phase = Phase {
    name: "latent_sft",
    from: Some(BASE.name),
    reads: &["latent_sft"],
    row: TableRow::Ours("superpositions of the vocabulary (Latent-SFT)"),
    panel: Panel::Latent,
    work: Work::Supervised(latent_sft),
};

fn latent_sft(Context { recipe, corpus, .. }: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let settings = &recipe.latent_sft;
    let steps = settings.chain_steps + settings.steps;
    let chains: Vec<usize> = corpus.train.iter().map(chain).collect::<Result<_>>()?;
    let row = move |step: usize, i: usize| {
        let mut rng = sample_rng(recipe.seed, "latent_sft", step, i);
        let row = row_at(corpus, &corpus.train[i], chains[i], (settings.compression, Short::Last), &mut rng);
        Ok(Row { noise: (step >= settings.chain_steps).then(|| rng.random()), ..row })
    };
    let source = Source::VocabularyMixture { top_k: settings.top_k, top_p: 1.0, temperature: 1.0 };
    let cosine_from = if settings.cosine { settings.chain_steps } else { steps };
    let schedule = LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from, steps };
    Ok(SupervisedPhase {
        objective: Box::new(Superpositions {
            source,
            top_k: settings.top_k,
            noise: settings.noise,
            kl: settings.kl,
            end: corpus.switch.swi_end,
        }),
        reasoning: Reasoning {
            source,
            blocks: Blocks::Thinking { limit: settings.limit },
            ..Reasoning::text("latent_sft")
        },
        resets: vec![settings.chain_steps],
        ..SupervisedPhase::new("latent_sft", settings.batch, lengths_of(&corpus.train), schedule, row)
    })
}

/// The losses of both stages; that of rows without noise is the first's.
struct Superpositions {
    source: Source,
    top_k: usize,
    noise: f64,
    kl: f64,
    end: u32,
}

fn is_chain(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.noise.is_none())
}

impl Objective for Superpositions {
    fn tokens(&self, rows: &[Row], latent: u32) -> usize {
        let said = |row: &Row| row.slots.iter().skip(1).map(|slot| slot.tokens.len()).sum::<usize>();
        let chains = if is_chain(rows) { rows.iter().map(said).sum() } else { 0 };
        targets(rows, latent).len() + chains
    }

    fn sums(&self, model: &Decoder, rows: &[Row], latent: u32) -> Result<LossSums> {
        let rows = Rows::new(rows, latent);
        if rows.latents.is_empty() {
            return response_loss(model, rows.rows, latent, &self.source, Gradient::Through);
        }
        if is_chain(rows.rows) { self.chain(model, &rows) } else { self.superposed(model, &rows) }
    }

    fn heads(&self, _width: usize) -> HeadSizes {
        HeadSizes { auxiliary: true, ..HeadSizes::default() }
    }
}

impl Superpositions {
    /// The first stage: cross-entropy of `</swi>` and the answer, and of the tokens that follow each latent but the last.
    fn chain(&self, model: &Decoder, rows: &Rows) -> Result<LossSums> {
        let soft = superpositions(model, rows, self.top_k)?;
        let (mut states, cache) = rows.run(model, soft.inputs(model.embed_rows(&soft.tokens)?.detach()))?;
        let (mut places, mut said) = rows.learnt();
        // The text of each latent is a separate sequence; its last token has no target.
        let width = rows.rows.iter().flat_map(|row| &row.slots).map(|slot| slot.tokens.len() - 1).max().unwrap_or(0);
        let (mut of, mut behind, mut ids, mut positions) = (vec![], vec![], vec![], vec![]);
        for &(row, at, number) in &rows.latents {
            let Some(next) = rows.rows[row].slots.get(number + 1).map(|slot| &slot.tokens) else { continue };
            let begin = states.dims()[0] + of.len() * width;
            places.extend(std::iter::once(rows.place(row, at)).chain((1..next.len()).map(|i| begin + i - 1)));
            said.extend(next);
            of.push(row);
            behind.push(at);
            ids.push((0..width).map(|i| if i + 1 < next.len() { next[i] } else { 0 }).collect::<Vec<u32>>());
            positions.push((at + 1..at + next.len()).collect::<Vec<_>>());
        }
        if width > 0 && !of.is_empty() {
            let mut cache = cache.keep_seeing(&of, |i, position| position == behind[i]);
            let x = model.embed(&ids)?;
            let more = model.hidden(x, &span(&positions, width), &mut cache, &mut Hooks::none())?;
            let [n, _, d] = more.dims();
            states = Tensor::cat(vec![states, more.reshape([n * width, d])], 0);
        }
        let (losses, hits) = model.token_losses(select(&states, &places), Targets::new(said))?;
        Ok(LossSums { loss: losses.sum(), correct: hits.sum() })
    }

    /// The second stage: cross-entropy of `</swi>` and the answer, and per row `kl · (the mean divergence of a latent)`, weighed by the
    /// row's learnt tokens.
    fn superposed(&self, model: &Decoder, rows: &Rows) -> Result<LossSums> {
        let soft = self.noisy(superpositions(&model.valid(), rows, self.top_k)?, rows, model)?;
        let (states, _) = rows.run(model, soft.inputs(model.embed_rows(&soft.tokens)?))?;
        let (places, said) = rows.learnt();
        let (losses, hits) = model.token_losses(select(&states, &places), Targets::new(said))?;
        let before: Vec<usize> = rows.latents.iter().map(|&(row, at, _)| rows.place(row, at) - 1).collect();
        let logits = model.unembed(select(&states, &before).unsqueeze_dim(0)).squeeze_dim::<2>(0);
        let each = soft.divergence(log_softmax(logits.cast(FloatDType::F32)));
        let share = |&(row, ..): &(usize, usize, usize)| {
            let learnt = places.iter().filter(|&&place| place / rows.width == row).count();
            learnt as f32 / rows.rows[row].slots.len() as f32
        };
        let shares = like(&each, rows.latents.iter().map(share).collect());
        let loss = losses.sum() + (each * shares).sum().mul_scalar(self.kl);
        Ok(LossSums { loss, correct: hits.sum() })
    }

    /// The superpositions of one model as constants of another, with noise.
    fn noisy(&self, soft: Superposed, rows: &Rows, model: &Decoder) -> Result<Superposed> {
        let dims = soft.weights.dims();
        let mut weights = soft.weights.try_into_vec_as::<f32>().context("reading superpositions")?;
        let mut from = 0;
        for row in rows.rows {
            let own = from..from + row.slots.len() * dims[1];
            let mut rng = keyed([row.noise.unwrap_or_default(), 0, 0, 0]);
            let plain = weights[own.clone()].to_vec();
            for _ in 0..ATTEMPTS {
                let noisy: Vec<f32> = plain.chunks(dims[1]).flat_map(|q| perturbed(q, self.noise, &mut rng)).collect();
                weights[own.clone()].copy_from_slice(&noisy);
                let heaviest = |q: &[f32]| (0..q.len()).max_by(|&a, &b| q[a].total_cmp(&q[b])).unwrap_or_default();
                let mut tops = noisy.chunks(dims[1]).enumerate().map(|(i, q)| own.start + i * dims[1] + heaviest(q));
                if self.noise == 0.0 || tops.all(|top| soft.tokens[top] != self.end as usize) {
                    break;
                }
            }
            from = own.end;
        }
        Ok(Superposed { weights: Tensor::from_data(TensorData::new(weights, dims), &model.device()), ..soft })
    }
}

/// Draws of noise in which `</swi>` weighs most in a latent, before one is taken all the same.
const ATTEMPTS: usize = 100;

/// `softmax(log q + ε)`.
fn perturbed(q: &[f32], scale: f64, rng: &mut impl Rng) -> Vec<f32> {
    let weights: Vec<f64> = q.iter().map(|q| (f64::from(*q) + 1e-10) * gumbel::clamped(scale, rng).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| (weight / total) as f32).collect()
}

/// Of each of M latents its k tokens and what each weighs.
struct Superposed {
    /// `[M · k]`
    tokens: Vec<usize>,
    /// `[M, k]`
    weights: Tensor<2>,
}

impl Superposed {
    /// What is fed, `[M, D]`, of the embeddings of the tokens, `[M · k, D]`.
    fn inputs(&self, embeddings: Tensor<2>) -> Tensor<2> {
        let ([m, k], [_, d]) = (self.weights.dims(), embeddings.dims());
        let weights = self.weights.clone().cast(embeddings.dtype()).reshape([m, 1, k]);
        ops::matmul(weights, embeddings.reshape([m, k, d])).squeeze_dim::<2>(1)
    }

    /// `KL(q ‖ p)` of each latent, `[M]`, of log-probabilities `[M, V]`.
    fn divergence(&self, log_probs: Tensor<2>) -> Tensor<1> {
        let ids: Vec<i64> = self.tokens.iter().map(|&token| token as i64).collect();
        let ids = TensorData::new(ids, self.weights.dims());
        let log_p = log_probs.clone().gather(1, Tensor::<2, Int>::from_data(ids, &log_probs.device()));
        let q = self.weights.clone();
        (q.clone() * (q.clamp_min(1e-12).log() - log_p)).sum_dim(1).squeeze_dim(1)
    }
}

/// Rows as they are fed, in one pass: all inputs are known.
struct Rows<'a> {
    rows: &'a [Row],
    latent: u32,
    width: usize,
    /// `(row, position, its number in the row)`, in order.
    latents: Vec<(usize, usize, usize)>,
}

impl<'a> Rows<'a> {
    fn new(rows: &'a [Row], latent: u32) -> Self {
        let of_row = |(b, row): (usize, &'a Row)| {
            let places = (0..row.ids.len()).filter(move |&at| row.ids[at] == latent);
            places.enumerate().map(move |(number, at)| (b, at, number))
        };
        let latents = rows.iter().enumerate().flat_map(of_row).collect();
        Self { rows, latent, width: rows.iter().map(|row| row.ids.len()).max().unwrap_or(0), latents }
    }

    /// Index of a position among the states of all sequences.
    fn place(&self, row: usize, at: usize) -> usize {
        row * self.width + at
    }

    /// The tokens of the latents, and the positions of the states that predict them.
    fn learnt(&self) -> (Vec<usize>, Vec<u32>) {
        targets(self.rows, self.latent).into_iter().map(|(row, at, id)| (self.place(row, at), id)).unzip()
    }

    /// The rows with these inputs `[M, D]` at their latents: states `[B · L, D]`, keys and values.
    fn run(&self, model: &Decoder, latents: Tensor<2>) -> Result<(Tensor<2>, KvCache)> {
        let (b, d, all) = (self.rows.len(), model.config().hidden_size, self.rows.len() * self.width);
        let ids: Vec<Vec<u32>> = self.rows.iter().map(|row| row.ids.clone()).collect();
        let mut from: Vec<usize> = (0..all).collect();
        self.latents.iter().enumerate().for_each(|(i, &(row, at, _))| from[self.place(row, at)] = all + i);
        let text = model.embed(&padded(&ids))?.reshape([all, d]);
        let x = select(&Tensor::cat(vec![text, latents], 0), &from);
        let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
        let (span, mut cache) = (Span::prompts(&lengths, false), model.cache(b));
        let states = model.hidden(x.reshape([b, self.width, d]), &span, &mut cache, &mut Hooks::none())?;
        Ok((states.reshape([all, d]), cache))
    }
}

fn select(x: &Tensor<2>, places: &[usize]) -> Tensor<2> {
    let data: Vec<i64> = places.iter().map(|&place| place as i64).collect();
    x.clone().select(0, Tensor::<1, Int>::from_data(TensorData::new(data, [places.len()]), &x.device()))
}

/// Positions of rows as a span of this width, filled up on the right.
fn span(positions: &[Vec<usize>], width: usize) -> Span {
    let filled = |row: &Vec<usize>| (0..width).map(|i| row.get(i).copied().unwrap_or_default()).collect();
    let steps = |row: &Vec<usize>| (0..width).map(|i| (i < row.len()).then_some(Step::Prompt)).collect();
    Span {
        rows: (0..positions.len()).collect(),
        positions: positions.iter().map(filled).collect(),
        steps: positions.iter().map(steps).collect(),
    }
}

/// What the encoder makes of the chains, the latents of all rows after each other. The table that it says them on is a constant.
fn superpositions(model: &Decoder, rows: &Rows, top_k: usize) -> Result<Superposed> {
    let encoder = model.heads.auxiliary.first().context("Latent-SFT learns with an encoder, and the model has none")?;
    let (n, k) = (rows.latents.len(), top_k.min(model.config().vocab_size));
    // Per sample its text, with position ids left free for the compressing tokens. Each of these is a separate sequence.
    let (mut texts, mut places, mut of, mut compress) = (vec![], vec![], vec![], vec![]);
    for (b, row) in rows.rows.iter().enumerate() {
        let first = rows.latents.iter().find(|place| place.0 == b).map_or(row.ids.len(), |place| place.1);
        let (mut ids, mut at) = (row.ids[..first].to_vec(), (0..first).collect::<Vec<_>>());
        for Slot { tokens, .. } in &row.slots {
            let from = compress.last().filter(|_| ids.len() > first).map_or(first, |last: &Vec<usize>| last[0] + 1);
            ids.extend(tokens);
            at.extend(from..from + tokens.len());
            compress.push(vec![from + tokens.len()]);
            of.push(b);
        }
        texts.push(ids);
        places.push(at);
    }
    let texts = padded(&texts);
    let mut cache = encoder.cache(texts.len());
    encoder.hidden(encoder.embed(&texts)?, &span(&places, texts[0].len()), &mut cache, &mut Hooks::none())?;
    let mut cache = cache.keep_seeing(&of, |i, position| position < compress[i][0]);
    let x = encoder.embed(&vec![vec![rows.latent]; n])?;
    let states = encoder.hidden(x, &span(&compress, 1), &mut cache, &mut Hooks::none())?;
    let logits = model.onto_embeddings(states).cast(FloatDType::F32).squeeze_dim::<2>(1);
    let (_, index) = logits.clone().topk_with_indices(k, 1);
    let tokens = index.clone().reshape([n * k]).try_into_vec_as::<i64>().context("reading the largest logits")?;
    let tokens = tokens.into_iter().map(|token| token as usize).collect();
    Ok(Superposed { tokens, weights: softmax(logits.gather(1, index), 1) })
}
