//! Coconut (Hao et al. 2024): one block of latents between question and answer; stage k replaces the first k steps of the
//! chain of thought by c·k latents, each fed with the hidden state before it.
//!
//! As in the public code (facebookresearch/coconut): the markers and the latents are not learnt, the optimiser forgets its state at
//! each pass over the data (`coconut.reset`), the stages are laid out by passes (three a stage, those of GSM8K from stage 1 on, where
//! `coconut.stages` names none), and after `max_stage` a last stage drops the text that is left. c counts latents a *step* (the
//! paper's appendix says "per text token"; Coconut's own code and text say per step).
//!
//! It differs in this: stage 0 is text without a block (theirs has both markers with nothing between them); a pass leaves out its odd
//! rest; of their checkpoints the one of best validation accuracy is not sought. `coconut.cosine` is ours, as in SWITCH's phase 2.
//! `coconut.mixing` is not in their code either: their authors say that data of other stages were mixed in (issue 29), and the only
//! rule there is `uniform_prob` (`coconut.smoothing`).
//!
//! Three controls are the paper's: pause as thought, without thought, without curriculum.

use anyhow::{Context as _, Result, bail};
use rand::Rng;

use super::batches::{lengths_of, per_epoch, sample_rng};
use super::curriculum::block;
use super::objective::{CrossEntropy, LossSums, Objective, losses_at, targets};
use super::phase::{Context, Export, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use super::stages::{Reset, Stages};
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::corpus::{Corpus, Row};
use crate::latent::{Blocks, Gradient, Reasoning, Source};
use crate::model::{Decoder, Hooks};
use crate::recipe::Range::{Count, NotNegative, Positive, Share, Tables, Typed};
use crate::recipe::{BATCH, POSITIONS, STEPS, Stage, fits};
use crate::text::Sample;
use crate::text::clauses::steps;

settings! {
    /// Coconut (Hao et al. 2024): stage k replaces the first k steps of the chain by c·k latents.
    pub struct Settings {
        pub batch: usize = 32 => Count(1, BATCH),
        pub learning_rate: f64 = 1e-4 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        /// Latents a step.
        pub c: usize = 2 => Count(1, POSITIONS),
        /// Steps that latents are added for. Of a later stage all text of the chain is gone, with as many latents as of this one.
        pub max_stage: usize = 3 => Count(1, POSITIONS),
        /// All latents are there from the first stage on, and only text goes stage by stage; otherwise they come as it goes.
        pub all_latents: bool = false => Typed,
        /// Probability that a sample's stage is drawn uniformly instead, from no step gone to all of its own (`uniform_prob` of the
        /// public code).
        pub smoothing: f64 = 0.0 => Share,
        /// Probability that a sample's stage is one before the present one instead, stage i in proportion to i + 1 (ours).
        pub mixing: f64 = 0.0 => Share,
        pub reset: Reset = Reset::Epoch => Typed,
        /// The learning rate falls as a cosine in the last stage (ours); otherwise it is constant.
        pub cosine: bool = false => Typed,
        pub gradient: Gradient = Gradient::Through => Typed,
        /// `coconut_pause` feeds all pauses of a row in one pass; otherwise one by one, in as many passes as Coconut has.
        pub one_pass: bool = true => Typed,
        /// Passes over the data of each stage up to `max_stage`, where `stages` names none.
        pub stage_epochs: f64 = 3.0 => Positive,
        /// Epochs of all stages together, if `stages` is empty; those left after `max_stage` go to the stage without text.
        pub epochs: f64 = 22.0 => NotNegative,
        pub stages: Vec<Stage> = vec![] => Tables(Stage::RANGES),
    }
}

impl Settings {
    /// The stages as `stages` names them, or laid out by epochs.
    pub(crate) fn schedule(&self) -> Vec<Stage> {
        if !self.stages.is_empty() {
            return self.stages.clone();
        }
        let stage = |k, epochs| Stage { k, steps: 0, epochs, c: None };
        let mut left = self.epochs;
        let mut all = vec![];
        for k in 1..=self.max_stage {
            let epochs = self.stage_epochs.min(left);
            left -= epochs;
            all.push(stage(k, epochs));
        }
        all.push(stage(self.max_stage + 1, left));
        all.retain(|stage| stage.epochs > 0.0);
        all
    }
}

pub(super) const METHODS: &[Method] = &[
    Method {
        name: "coconut",
        about: "one block of hidden states after the question, for more and more steps (Hao et al. 2024)",
        phases: &[BASE, COCONUT],
        lacks: no_stages,
        check,
        ..Method::PLAIN
    },
    Method {
        name: "coconut_pause",
        about: "Coconut's curriculum with the same learnt embedding at every latent: pause as thought (control)",
        phases: &[BASE, variant("coconut_pause", "Coconut with one embedding at every latent (control)", pause)],
        lacks: no_stages,
        ..Method::PLAIN
    },
    Method {
        name: "coconut_no_thought",
        about: "Coconut's curriculum without latents: steps go and nothing takes their place (control)",
        phases: &[BASE, variant("coconut_no_thought", "Coconut's curriculum without latents (control)", no_thought)],
        lacks: no_stages,
        ..Method::PLAIN
    },
    Method {
        name: "coconut_no_curriculum",
        about: "Coconut's last stage alone, for as many steps as all its stages (control)",
        phases: &[BASE, variant("coconut_no_curriculum", "Coconut's last stage alone (control)", no_curriculum)],
        lacks: no_stages,
        ..Method::PLAIN
    },
];

const COCONUT: Phase = Phase {
    name: "coconut",
    from: Some(BASE.name),
    reads: &["coconut"],
    row: TableRow::Paper("coconut"),
    panel: Panel::Latent,
    work: Work::Supervised(|context| {
        curriculum(context, "coconut", context.recipe.coconut.clone(), Source::HiddenState)
    }),
};

const fn variant(
    name: &'static str,
    caption: &'static str,
    declare: for<'a> fn(Context<'a>) -> Result<SupervisedPhase<'a>>,
) -> Phase {
    Phase { name, row: TableRow::Ours(caption), panel: Panel::None, work: Work::Supervised(declare), ..COCONUT }
}

fn check(recipe: &Recipe) -> Result<()> {
    let Settings { c, max_stage, stages, .. } = &recipe.coconut;
    fits("coconut.c x coconut.max_stage", c.saturating_mul(*max_stage))?;
    if let Some(i) = stages.iter().position(|stage| stage.c.is_some()) {
        bail!("coconut.stages[{i}].c: only latent.stages may set c; set coconut.c, the latents per step of all stages");
    }
    Stage::check("coconut", stages)
}

pub(super) fn no_stages(recipe: &Recipe) -> Option<&'static str> {
    let none = recipe.coconut.schedule().is_empty();
    none.then_some("coconut.stages must not be empty, or coconut.epochs above 0")
}

/// Pause as thought: the embedding of `<latent>` at every latent. As much computation, and nothing handed on from latent to latent but
/// keys and values. The pauses are always learnt, whatever `coconut.gradient`.
///
/// A position's input does not depend on a state here, so that all pauses of a row can be fed in one pass (`coconut.one_pass`), or in
/// as many as Coconut has. In a causal decoder the two are one function.
fn pause(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let settings = Settings { gradient: Gradient::Through, ..context.recipe.coconut.clone() };
    let source = Source::FixedEmbedding { token: context.corpus.switch.latent };
    let one_pass = settings.one_pass;
    let what = curriculum(context, "coconut_pause", settings, source)?;
    Ok(if one_pass { SupervisedPhase { objective: Box::new(OnePass { source }), ..what } } else { what })
}

/// Without thought: c = 0. Steps of the chain go stage by stage, and nothing takes their place.
fn no_thought(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let settings = Settings { c: 0, ..context.recipe.coconut.clone() };
    curriculum(context, "coconut_no_thought", settings, Source::HiddenState)
}

/// Without curriculum: the last stage alone, for as many steps as all stages have. No row is of another stage, whatever
/// `coconut.smoothing` and `coconut.mixing`.
fn no_curriculum(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let theirs = &context.recipe.coconut;
    let stages = Stages::new(&theirs.schedule(), per_epoch(context.corpus.train.len(), theirs.batch));
    let last = stages.last().map(|last| Stage { steps: stages.steps(), epochs: 0.0, ..last.clone() });
    let stages = last.into_iter().collect();
    let settings = Settings { stages, smoothing: 0.0, mixing: 0.0, ..theirs.clone() };
    curriculum(context, "coconut_no_curriculum", settings, Source::HiddenState)
}

/// The curriculum under these settings, with this fed at every latent. Samples and stages are drawn as `coconut` draws them.
pub(super) fn curriculum<'a>(
    Context { recipe, corpus, .. }: Context<'a>,
    method: &'static str,
    settings: Settings,
    source: Source,
) -> Result<SupervisedPhase<'a>> {
    let lengths = lengths_of(&corpus.train);
    let stages = Stages::new(&settings.schedule(), per_epoch(lengths.len(), settings.batch));
    let (steps, last) = (stages.steps(), stages.last().map_or(0, |stage| stage.k));
    let chains: Vec<Vec<usize>> = corpus.train.iter().map(step_ends).collect::<Result<_>>()?;
    let reasoning = |k| reasoning(&settings, k, method, source);
    let export = |(after, stage): (usize, &Stage)| Export::stage(after, stage, reasoning(stage.k));
    let exports = stages.ends().map(export).collect();
    let resets = stages.resets(settings.reset);
    let cosine_from = if settings.cosine { stages.last_from() } else { steps };
    let (reasoning, drawn) = (reasoning(last), settings.clone());
    let schedule = LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from, steps };
    let row = move |step: usize, i: usize| {
        let mut rng = sample_rng(recipe.seed, "coconut", step, i);
        let scheduled = stages.at(step).map_or(0, |stage| stage.k);
        let k = stage_of(&mut rng, scheduled, chains[i].len(), &drawn);
        Ok(row_at(corpus, &corpus.train[i], &chains[i], k, &drawn))
    };
    Ok(SupervisedPhase {
        objective: Box::new(CrossEntropy { source, gradient: settings.gradient }),
        reasoning,
        exports,
        resets,
        ..SupervisedPhase::new("coconut", settings.batch, lengths, schedule, row)
    })
}

/// Cross-entropy of the response, `<latent>` fed as any other token.
struct OnePass {
    source: Source,
}

impl Objective for OnePass {
    fn sums(&self, model: &Decoder, rows: &[Row], latent: u32) -> Result<LossSums> {
        let targets = targets(rows, latent);
        let learnt = losses_at(model, rows, None, &self.source, Gradient::Through, targets, &mut Hooks::none())?;
        Ok(LossSums { loss: learnt.losses.sum(), correct: learnt.correct })
    }
}

/// The stage that a sample with a chain of so many steps is learnt at.
fn stage_of(rng: &mut impl Rng, scheduled: usize, steps: usize, settings: &Settings) -> usize {
    if rng.random::<f64>() < settings.smoothing {
        return rng.random_range(0..=steps);
    }
    if settings.mixing > 0.0 && scheduled > 0 && rng.random::<f64>() < settings.mixing {
        // Stage i has i + 1 of scheduled · (scheduled + 1) / 2 parts.
        let mut part = rng.random_range(0..scheduled * (scheduled + 1) / 2);
        return (0..scheduled)
            .find(|&i| {
                let here = part <= i;
                part = part.saturating_sub(i + 1);
                here
            })
            .unwrap_or(0);
    }
    scheduled
}

/// How a checkpoint of stage `k` reasons.
fn reasoning(settings: &Settings, k: usize, method: &str, source: Source) -> Reasoning {
    let steps = latents(settings, k);
    let text = Reasoning::text(method);
    if steps == 0 {
        return text;
    }
    Reasoning { source, blocks: Blocks::AfterPrompt { steps }, trained_dwell: vec![steps], ..text }
}

/// Every sample has as many, however short its chain (`pad_latent_to_max`).
fn latents(settings: &Settings, k: usize) -> usize {
    settings.c * if settings.all_latents { settings.max_stage } else { k.min(settings.max_stage) }
}

/// Where each step of the chain ends in the response.
pub(super) fn step_ends(sample: &Sample) -> Result<Vec<usize>> {
    let steps = steps(sample).with_context(|| sample.unanswered("Coconut cannot be trained"))?;
    Ok(steps.iter().map(|step| step.end).collect())
}

fn row_at(corpus: &Corpus, sample: &Sample, ends: &[usize], k: usize, settings: &Settings) -> Row {
    let gone = if k > settings.max_stage { ends.len() } else { k.min(ends.len()) };
    let from = gone.checked_sub(1).map_or(0, |last| ends[last]);
    Row::rest(sample, from, corpus.end).after(&block(latents(settings, k), corpus.switch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::keyed;

    fn shares(scheduled: usize, settings: &Settings) -> Vec<f64> {
        let mut counts = vec![0.0; 6];
        for i in 0..20_000 {
            counts[stage_of(&mut keyed([7, 0, 0, i]), scheduled, 4, settings)] += 1.0 / 20_000.0;
        }
        counts
    }

    fn near(found: &[f64], expected: &[f64]) {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.015), "{found:?}, not {expected:?}");
    }

    #[test]
    fn stages_are_mixed_in_proportion_and_smoothed_over_a_samples_own_steps() {
        let plain = Settings::default();
        near(&shares(3, &plain), &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let mixed = Settings { mixing: 0.6, ..plain.clone() };
        near(&shares(3, &mixed), &[0.1, 0.2, 0.3, 0.4, 0.0, 0.0]);
        near(&shares(0, &mixed), &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let smooth = Settings { smoothing: 0.5, ..plain };
        near(&shares(3, &smooth), &[0.1, 0.1, 0.1, 0.6, 0.1, 0.0]);
    }

    /// The public run on GSM8K: 25 epochs, three of them for each of the stages 0 to 3, the rest without text.
    #[test]
    fn stages_without_a_name_are_laid_out_by_passes() {
        let all = |settings: Settings| settings.schedule().iter().map(|s| (s.k, s.epochs)).collect::<Vec<_>>();
        assert_eq!(all(Settings::default()), [(1, 3.0), (2, 3.0), (3, 3.0), (4, 13.0)]);
        let short = Settings { epochs: 4.0, ..Settings::default() };
        assert_eq!(all(short), [(1, 3.0), (2, 1.0)]);
        assert!(all(Settings { epochs: 0.0, ..Settings::default() }).is_empty());
    }
}
