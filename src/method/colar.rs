//! CoLaR (Tan et al. 2025): a compressed chain of thought. Each slot of r tokens becomes one latent, whose input is the sum of their
//! embeddings over √r; a separate head predicts the next slot from the state before it. This is not hidden-state recurrence, although
//! the paper's table classifies it so: the input is a predicted point in embedding space (a draw in the public code, the mean here).
//!
//! As in the public code (xiaomi-research/colar):
//! - If r does not divide the chain, the last slot is shorter (`colar.short`).
//! - The language-model head learns one random token of each slot, and after the last slot the end of thinking (`###`, here `</swi>`),
//!   whose embedding the latent head learns there too (`colar.closing`).
//! - Target slots are constants, divided by the standard deviation of the embeddings. The latent head's loss is the mean squared error.
//! - The learning rate is constant, and entropy has weight 0.
//!
//! Differences:
//! - The squared error is its expectation over draws, `(μ − e)² + σ²`. Its mean is over a sequence's slots, weighted by the learnt tokens
//!   (theirs: over the slots of the batch).
//! - The start of thinking (`###`, here `<swi>`) is not learnt, as it is always inserted; the token that ends thinking is sampled as
//!   `[evaluation]` does (theirs: at temperature 1).
//! - r is drawn per sample, not per batch, and is not in the prompt (their "thinking speed"): a small vocabulary lacks the words.
//!   Give `factors` one value to fix r.
//! - `colar.cosine` and the entropy reward are ours.

use std::f64::consts::{E, PI};

use anyhow::{Context as _, Result, ensure};
use burn::tensor::{FloatDType, Tensor, TensorData};
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::batches::{lengths_of, per_epoch, sample_rng, steps_of};
use super::codi::{counts, like};
use super::curriculum::block;
use super::objective::{Learnt, LossSums, Objective, Target, losses_at, targets};
use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::corpus::{Corpus, Row, Slot};
use crate::latent::source::LatentSource;
use crate::latent::{Blocks, Gradient, Reasoning, Source};
use crate::model::heads::HeadSizes;
use crate::model::{Decoder, Hooks, Span, Step};
use crate::ops;
use crate::recipe::Range::{Count, Each, NotNegative, Positive, Typed};
use crate::recipe::{BATCH, POSITIONS, STEPS, WIDTH, fits};
use crate::text::Sample;

settings! {
    /// CoLaR (Tan et al. 2025): a chain of thought in compressed slots, which a separate head predicts.
    pub struct Settings {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Passes over the data; the larger of this and `steps` counts.
        pub epochs: f64 = 0.0 => NotNegative,
        pub batch: usize = 256 => Count(1, BATCH),
        pub learning_rate: f64 = 1e-4 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        /// Tokens per slot: r is drawn from these for each sample and step.
        pub factors: Vec<usize> = vec![1, 2, 3, 4, 5] => Each(&Count(1, POSITIONS)),
        /// Hidden width of the latent head.
        pub width: usize = 2048 => Count(1, WIDTH),
        /// Weight of the latent head's loss.
        pub slots: f64 = 1.0 => NotNegative,
        /// Reward per nat of the latent head's entropy.
        pub entropy: f64 = 0.0 => NotNegative,
        /// Which slot is shorter if r does not divide the chain.
        pub short: Short = Short::Last => Typed,
        /// After the last slot the latent head learns the embedding of `</swi>`.
        pub closing: bool = true => Typed,
        /// The learning rate falls as a cosine (ours); otherwise it is constant.
        pub cosine: bool = false => Typed,
        /// Maximum latents of a block.
        pub limit: usize = 64 => Count(1, POSITIONS),
    }
}

/// An end of a chain of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Short {
    First,
    #[default]
    Last,
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "colar",
    about: "compressed slots of tokens that a separate head predicts; not hidden-state recurrence (Tan et al. 2025)",
    phases: &[BASE, COLAR],
    lacks: |recipe| {
        (recipe.colar.steps == 0 && recipe.colar.epochs == 0.0).then_some("colar.steps or colar.epochs must be above 0")
    },
    check,
    ..Method::PLAIN
}];

pub(super) const COLAR: Phase = Phase {
    name: "colar",
    from: Some(BASE.name),
    reads: &["colar"],
    row: TableRow::Paper("colar"),
    panel: Panel::Latent,
    work: Work::Supervised(colar),
};

fn check(recipe: &Recipe) -> Result<()> {
    ensure!(!recipe.colar.factors.is_empty(), "colar.factors is empty: give tokens per slot, for example [1, 2, 3]");
    fits("colar.limit", recipe.colar.limit)
}

fn colar(Context { recipe, corpus, .. }: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let settings = &recipe.colar;
    let lengths = lengths_of(&corpus.train);
    let steps = steps_of(settings.steps, settings.epochs, per_epoch(lengths.len(), settings.batch));
    let cosine_from = if settings.cosine { 0 } else { steps };
    let schedule = LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from, steps };
    let chains: Vec<usize> = corpus.train.iter().map(chain).collect::<Result<_>>()?;
    let row = move |step: usize, i: usize| {
        let mut rng = sample_rng(recipe.seed, "colar", step, i);
        let factor = settings.factors[rng.random_range(0..settings.factors.len())];
        Ok(row_at(corpus, &corpus.train[i], chains[i], (factor, settings.short), &mut rng))
    };
    Ok(SupervisedPhase {
        objective: Box::new(Slots {
            width: settings.width,
            slots: settings.slots,
            entropy: settings.entropy,
            closing: settings.closing,
        }),
        reasoning: Reasoning {
            source: Source::LatentHead,
            blocks: Blocks::Thinking { limit: settings.limit },
            ..Reasoning::text("colar")
        },
        ..SupervisedPhase::new("colar", settings.batch, lengths, schedule, row)
    })
}

/// Number of tokens of the chain of thought: those before the final answer.
pub(super) fn chain(sample: &Sample) -> Result<usize> {
    Ok(sample.required_answer("its chain cannot be compressed")?.start)
}

/// `<swi>`, a latent for each `factor` tokens of the chain, `</swi>`, answer; the loss begins at `</swi>`.
pub(super) fn row_at(
    corpus: &Corpus,
    sample: &Sample,
    chain: usize,
    (factor, short): (usize, Short),
    rng: &mut impl Rng,
) -> Row {
    let first = if short == Short::First { chain % factor } else { 0 };
    let (first, rest) = sample.response[..chain].split_at(first);
    let groups = std::iter::once(first).filter(|group| !group.is_empty()).chain(rest.chunks(factor));
    let slots: Vec<Slot> = groups
        .map(|tokens| Slot { tokens: tokens.to_vec(), label: tokens[rng.random_range(0..tokens.len())] })
        .collect();
    let answer = Row::rest(sample, chain, corpus.end);
    let block = block(slots.len(), corpus.switch);
    let learnt = usize::from(!block.is_empty());
    let row = answer.after(&block);
    Row { prompt: row.prompt - learnt, slots, ..row }
}

/// Cross-entropy of the text and of one token per slot, plus `slots` times the latent head's loss, weighted by learnt tokens.
struct Slots {
    width: usize,
    slots: f64,
    entropy: f64,
    closing: bool,
}

impl Objective for Slots {
    fn tokens(&self, rows: &[Row], latent: u32) -> usize {
        learnt(rows, latent, self.closing).0.len()
    }

    fn sums(&self, model: &Decoder, rows: &[Row], latent: u32) -> Result<LossSums> {
        let (learnt, before) = learnt(rows, latent, self.closing);
        let fed = Gold { rows };
        let losses = losses_at(model, rows, Some(latent), &fed, Gradient::Through, learnt, &mut Hooks::none())?;
        let mut loss = losses.losses.clone().sum();
        if !before.is_empty() {
            loss = loss + self.head_loss(model, rows, &losses, &before)?.mul_scalar(self.slots);
        }
        Ok(LossSums { loss, correct: losses.correct })
    }

    fn heads(&self, _width: usize) -> HeadSizes {
        HeadSizes { latent: Some(self.width), ..HeadSizes::default() }
    }
}

impl Slots {
    /// Sum over sequences of their learnt tokens times the mean of `(μ − e)² + σ² − entropy · H` over predicted slots and width.
    fn head_loss(
        &self,
        model: &Decoder,
        rows: &[Row],
        losses: &Learnt,
        predicted: &[PredictedSlot],
    ) -> Result<Tensor<1>> {
        let head = model.heads.latent.as_ref().context("CoLaR needs a latent head, but the model has none")?;
        let tokens: Vec<&[u32]> = predicted.iter().map(|p| p.tokens).collect();
        let before: Vec<(usize, usize)> = predicted.iter().map(|p| p.before).collect();
        let gold = f32s(compressed(model, &tokens)?.detach() / head.scale.val().detach().unsqueeze());
        let (mean, log_std) = head.forward(losses.all.hidden_at(&before)?.unsqueeze_dim(0));
        let (mean, log_std) = (f32s(mean).squeeze_dim::<2>(0), f32s(log_std).squeeze_dim::<2>(0));
        let error = (mean - gold).square() + log_std.clone().mul_scalar(2.0).exp();
        let entropy = log_std + 0.5 * (2.0 * PI * E).ln();
        let each = (error - entropy.mul_scalar(self.entropy)).mean_dim(1).squeeze_dim::<1>(1);
        let (of_row, mut heads) = (counts(losses, rows.len()), vec![0.0; rows.len()]);
        before.iter().for_each(|&(row, _)| heads[row] += 1.0);
        let shares = before.iter().map(|&(row, _)| of_row[row] / heads[row]).collect();
        Ok((each.clone() * like(&each, shares)).sum())
    }
}

fn f32s<const R: usize>(x: Tensor<R>) -> Tensor<R> {
    x.cast(FloatDType::F32)
}

/// A target of the latent head: the next latent's input is the sum of these tokens' embeddings over √n.
struct PredictedSlot<'a> {
    /// `(row, position)` of the state from which it is predicted.
    before: (usize, usize),
    tokens: &'a [u32],
}

/// Targets of the language-model head (text, then one token per slot) and of the latent head (slots and, with `closing`, the token
/// after the last one).
fn learnt(rows: &[Row], latent: u32, closing: bool) -> (Vec<Target>, Vec<PredictedSlot<'_>>) {
    let mut learnt = targets(rows, latent);
    let mut predicted = vec![];
    for (b, row) in rows.iter().enumerate() {
        let places: Vec<usize> = (0..row.ids.len()).filter(|&at| row.ids[at] == latent).collect();
        for (slot, &at) in row.slots.iter().zip(&places) {
            learnt.push((b, at - 1, slot.label));
            predicted.push(PredictedSlot { before: (b, at - 1), tokens: &slot.tokens });
        }
        if let (true, Some(&last)) = (closing, places.last()) {
            predicted.push(PredictedSlot { before: (b, last), tokens: &row.ids[last + 1..last + 2] });
        }
    }
    (learnt, predicted)
}

/// `Σ E[token] / √n` of each slot's n tokens: `[slots, D]`.
fn compressed(model: &Decoder, slots: &[&[u32]]) -> Result<Tensor<2>> {
    let widest = slots.iter().map(|tokens| tokens.len()).max().unwrap_or(0).max(1);
    let (mut ids, mut weights) = (vec![], vec![]);
    for tokens in slots {
        let scale = (tokens.len().max(1) as f32).sqrt().recip();
        ids.push(tokens.iter().copied().chain(std::iter::repeat(0)).take(widest).collect::<Vec<u32>>());
        weights.extend((0..widest).map(|i| if i < tokens.len() { scale } else { 0.0 }));
    }
    let embedded = model.embed(&ids)?;
    let weights = TensorData::new(weights, [slots.len(), 1, widest]);
    let weights = Tensor::<3>::from_data(weights, (&embedded.device(), embedded.dtype()));
    Ok(ops::matmul(weights, embedded).squeeze_dim::<2>(1))
}

/// Feeds the known slots at latent positions, as in training.
struct Gold<'a> {
    rows: &'a [Row],
}

impl LatentSource for Gold<'_> {
    fn inject(&self, _h: Tensor<3>, at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let tokens = |(row, steps): (&usize, &Vec<Option<Step>>)| match steps.first() {
            Some(Some(Step::Latent { step, .. })) => self.rows[*row].slots.get(*step).map_or(&[][..], |s| &s.tokens),
            _ => &[],
        };
        let slots: Vec<&[u32]> = at.rows.iter().zip(&at.steps).map(tokens).collect();
        Ok(compressed(model, &slots)?.unsqueeze_dim(1))
    }

    fn name(&self) -> String {
        "known_slots".into()
    }
}
