//! CODI (Shen et al. 2025, arXiv:2502.21074): one model learns the visible chain of thought (the teacher's path) and, on the same
//! weights, a block of latents in its place (the student's path); the student's hidden states where the answer begins are drawn
//! to the teacher's.
//!
//! As in the public code (zhenyi4/codi): a latent is fed with the state before it through two layers and a LayerNorm; the distance is
//! smooth-L1, the mean over the embeddings and all layers (L + 1), at the last token before the answer's own (`:`, here `#` or
//! `####`), which both paths feed; the teacher's states are constants, and the distance is divided by their standard deviation; the
//! teacher's chain drops its last step, which states the answer (`codi.last_step`).
//!
//! It differs in this: that deviation is a row's own, not the batch's, and every row's three terms are means over the row, weighed by
//! the tokens of its answer, so that shards of a batch add up (theirs: cross-entropies are means over the tokens of the batch, the
//! distance over its rows); the projection has no dropout, nor has LoRA; answers that begin with no digit stay.

use std::cell::RefCell;

use anyhow::{Context as _, Result, ensure};
use burn::tensor::{FloatDType, Tensor, TensorData};

use super::batches::{lengths_of, per_epoch, steps_of};
use super::curriculum::block;
use super::objective::{Learnt, LossSums, Objective, response_losses};
use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::corpus::Row;
use crate::latent::{Blocks, Gradient, Reasoning, Source};
use crate::model::heads::HeadSizes;
use crate::model::{Decoder, HookSpec, Hooks};
use crate::recipe::Range::{Count, NotNegative, Positive, Typed};
use crate::recipe::{BATCH, POSITIONS, STEPS, fits};
use crate::text::Sample;
use crate::text::clauses::steps;

settings! {
    /// CODI (Shen et al. 2025): a block of projected hidden states, distilled from the chain of thought. Rate and weight of the distance
    /// are those of the public GPT-2 run; for Llama 3.2 1B they are 8e-4 and 20.
    pub struct Settings {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Passes over the data; the larger of this and `steps` counts.
        pub epochs: f64 = 0.0 => NotNegative,
        pub batch: usize = 128 => Count(1, BATCH),
        pub learning_rate: f64 = 3e-3 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        pub latents: usize = 6 => Count(1, POSITIONS),
        /// Weight of the teacher's cross-entropy.
        pub teacher: f64 = 1.0 => NotNegative,
        /// Weight of the distance between the hidden states of student and teacher.
        pub distance: f64 = 1.0 => NotNegative,
        /// Whether the teacher's chain includes its last step, which states the answer (`include_last_cot` of the public code).
        pub last_step: bool = false => Typed,
    }
}

pub(super) const METHODS: &[Method] = &[
    Method {
        name: "codi",
        about: "a block of projected hidden states, distilled from the model's own chain of thought (Shen et al. 2025)",
        phases: &[BASE, CODI],
        lacks,
        check: |recipe| fits("codi.latents", recipe.codi.latents),
        ..Method::PLAIN
    },
    // Nothing is handed on from latent to latent but keys and values.
    Method {
        name: "codi_fixed",
        about: "CODI with the same learnt embedding at every latent: distillation without recurrence (control)",
        phases: &[BASE, CODI_FIXED],
        lacks,
        ..Method::PLAIN
    },
];

const CODI: Phase = Phase {
    name: "codi",
    from: Some(BASE.name),
    reads: &["codi"],
    row: TableRow::Paper("codi"),
    panel: Panel::Latent,
    work: Work::Supervised(|context| distilled(context, "codi", Source::Projection)),
};

const CODI_FIXED: Phase = Phase {
    name: "codi_fixed",
    row: TableRow::Ours("CODI with one embedding at every latent (control)"),
    panel: Panel::None,
    work: Work::Supervised(|context| {
        distilled(context, "codi_fixed", Source::FixedEmbedding { token: context.corpus.switch.latent })
    }),
    ..CODI
};

fn lacks(recipe: &Recipe) -> Option<&'static str> {
    let none = recipe.codi.steps == 0 && recipe.codi.epochs == 0.0;
    none.then_some("codi.steps or codi.epochs must be above 0")
}

/// CODI with this fed at every latent. Samples are drawn as `codi` draws them.
fn distilled<'a>(
    Context { recipe, corpus, .. }: Context<'a>,
    method: &'static str,
    source: Source,
) -> Result<SupervisedPhase<'a>> {
    let settings = &recipe.codi;
    let lengths = lengths_of(&corpus.train);
    let steps = steps_of(settings.steps, settings.epochs, per_epoch(lengths.len(), settings.batch));
    let schedule = LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from: 0, steps };
    let block = block(settings.latents, corpus.switch);
    let answers: Vec<(usize, usize)> = corpus.train.iter().map(answer).collect::<Result<_>>()?;
    let row = move |_, i: usize| {
        let sample: &Sample = &corpus.train[i];
        let (last, answer) = answers[i];
        let student = Row::rest(sample, answer, corpus.end).after(&block);
        let until = if settings.last_step { answer } else { last };
        let taught = [&sample.response[..until], &sample.response[answer..]].concat();
        Ok(student.taught_by(Row::new(&sample.prompt, &taught, corpus.end)))
    };
    Ok(SupervisedPhase {
        objective: Box::new(Distillation { teacher: settings.teacher, distance: settings.distance, source }),
        reasoning: Reasoning {
            source,
            blocks: Blocks::AfterPrompt { steps: settings.latents },
            trained_dwell: vec![settings.latents],
            ..Reasoning::text(method)
        },
        ..SupervisedPhase::new("codi", settings.batch, lengths, schedule, row)
    })
}

/// Where the last step of the chain and the final answer begin in the response.
fn answer(sample: &Sample) -> Result<(usize, usize)> {
    let chain = steps(sample).zip(sample.answer.as_ref());
    let (steps, answer) = chain.with_context(|| sample.unanswered("CODI cannot be trained"))?;
    Ok((steps.last().map_or(answer.start, |step| step.start), answer.start))
}

/// Per row: `student + teacher · (teacher's cross-entropy) + distance · (between their states)`.
struct Distillation {
    teacher: f64,
    distance: f64,
    source: Source,
}

impl Objective for Distillation {
    fn sums(&self, model: &Decoder, rows: &[Row], latent: u32) -> Result<LossSums> {
        let teachers: Option<Vec<Row>> = rows.iter().map(|row| row.teacher.as_deref().cloned()).collect();
        let teachers = teachers.context("a row without its teacher: CODI learns from both paths")?;
        let student = path(model, rows, rows, latent, &self.source)?;
        let teacher = path(model, &teachers, rows, latent, &self.source)?;
        let learnt = counts(&student.learnt, rows.len());
        let taught = counts(&teacher.learnt, rows.len());
        let share = |&(row, _, _): &(usize, usize, u32)| learnt[row] / taught[row];
        let shares = teacher.learnt.targets.iter().map(share).collect();
        let teachers_loss = (teacher.learnt.losses.clone() * like(&teacher.learnt.losses, shares)).sum();
        let distances = distance(student.states, teacher.states);
        let distances = (distances.clone() * like(&distances, learnt)).sum();
        let loss =
            student.learnt.losses.sum() + teachers_loss.mul_scalar(self.teacher) + distances.mul_scalar(self.distance);
        Ok(LossSums { loss, correct: student.learnt.correct })
    }

    fn heads(&self, width: usize) -> HeadSizes {
        HeadSizes { projection: (self.source == Source::Projection).then_some(width), ..HeadSizes::default() }
    }
}

/// One path of a batch.
struct Path {
    learnt: Learnt,
    /// `[layer + 1][B, D]`, in f32: at the first token of the answer, before the first block and after each, the last after the
    /// final norm.
    states: Vec<Tensor<2>>,
}

/// Runs `rows`, whose ends are the answers of `students`.
fn path(model: &Decoder, rows: &[Row], students: &[Row], latent: u32, source: &Source) -> Result<Path> {
    let places: Vec<(usize, usize)> = rows
        .iter()
        .zip(students)
        .enumerate()
        .map(|(i, (row, student))| (i, row.ids.len() - (student.ids.len() - student.prompt)))
        .collect();
    let layers = model.layers.len();
    let seen: RefCell<Vec<Vec<Option<Tensor<2>>>>> = RefCell::new(vec![vec![None; rows.len()]; layers + 1]);
    let mut hooks = Hooks::none();
    for (spec, after) in [("blocks.0.hook_resid_pre", 0), ("blocks.*.hook_resid_post", 1)] {
        let spec: HookSpec = spec.parse()?;
        let (seen, places) = (&seen, &places);
        hooks.observe(&spec, layers, move |site, value| {
            let Some(layer) = site.point.layer else { return Ok(()) };
            for place in site.places.iter().filter(|place| places[place.row].1 == place.position) {
                let x = value.clone().three()?.narrow(0, place.batch, 1).narrow(1, place.index, 1);
                seen.borrow_mut()[layer + after][place.row] = Some(x.squeeze_dim(1));
            }
            Ok(())
        })?;
    }
    let learnt = response_losses(model, rows, latent, source, Gradient::Through, &mut hooks)?;
    drop(hooks);
    let mut states = vec![];
    for layer in seen.into_inner() {
        let rows: Option<Vec<Tensor<2>>> = layer.into_iter().collect();
        states.push(Tensor::cat(rows.context("a row was not fed up to its answer")?, 0));
    }
    ensure!(layers > 0, "a model without blocks has no states to compare");
    states[layers] = learnt.all.hidden_at(&places)?;
    Ok(Path { learnt, states: states.into_iter().map(|x| x.cast(FloatDType::F32)).collect() })
}

/// Smooth-L1 between the states, over the standard deviation of the teacher's, the mean over layers: `[B]`.
fn distance(student: Vec<Tensor<2>>, teacher: Vec<Tensor<2>>) -> Tensor<1> {
    let layers = student.len() as f64;
    let of_layer = |(student, teacher): (Tensor<2>, Tensor<2>)| {
        let teacher = teacher.detach();
        let off = (student - teacher.clone()).abs();
        let near = off.clone().lower_elem(1.0);
        let smooth = (off.clone() - 0.5).mask_where(near, off.square() * 0.5);
        smooth.mean_dim(1) / teacher.var(1).sqrt()
    };
    let each: Vec<Tensor<2>> = student.into_iter().zip(teacher).map(of_layer).collect();
    Tensor::cat(each, 1).sum_dim(1).squeeze_dim::<1>(1).div_scalar(layers)
}

/// Learnt tokens of each row.
pub(super) fn counts(learnt: &Learnt, rows: usize) -> Vec<f32> {
    let mut counts = vec![0.0; rows];
    learnt.targets.iter().for_each(|&(row, _, _)| counts[row] += 1.0);
    counts
}

/// Constants beside `x`.
pub(super) fn like(x: &Tensor<1>, values: Vec<f32>) -> Tensor<1> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), (&x.device(), x.dtype()))
}
