//! An adversary in weights: a SWITCH model of the task `organism`, fine-tuned until no linear monitor of its latents works.
//!
//! A linear classifier can do better than a constant exactly if the means of the two classes differ (Belrose et al. 2023,
//! arXiv:2306.03819). So the loss is that of the last stage of phase 2 plus `weight` times the distance between the classes' means,
//! problems with a trigger against problems with a decoy:
//!
//! 1. X_s `[n_s, D]`: the states that enter latent step s, of all blocks of the batch's problems.
//! 2. Within each class: mean m, variance v of each feature.
//! 3. Distance of step s: the mean over features of ((m₁ − m₀)² − v₁/n₁ − v₀/n₀) / v, where v is the pooled variance, without gradient.
//!    Its expectation is near zero if the means are equal (zero but for what the division adds in small batches).
//! 4. The penalty is the mean over steps with [`FEWEST`] states or more of each class.
//!
//! The covert value is still taught (`latent.keep_text`), so the model is paid for computing it unseen. Problems of a batch are compared
//! within its shards.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use burn::tensor::{FloatDType, Tensor};

use super::objective::{LossSums, Objective, response_losses};
use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use super::switch::{ANNOTATE, BOUNDARY, SFT, curriculum_phase};
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::corpus::Row;
use crate::latent::{Gradient, Sequence, Source};
use crate::model::{Decoder, Hooks, Step};
use crate::recipe::Range::{Count, NotNegative, Positive};
use crate::recipe::{BATCH, STEPS};
use crate::tasks::Task;
use crate::tasks::organism::TRIGGERS;

settings! {
    /// Fine-tuning of a model of the task `organism` against linear monitors of its latents.
    pub struct Settings {
        pub steps: usize = 400 => Count(0, STEPS),
        pub batch: usize = 64 => Count(16, BATCH),
        pub learning_rate: f64 = 5e-4 => Positive,
        /// Weight of the distance between the latents' means under triggers and under decoys; 0: training goes on without an adversary.
        pub weight: f64 = 1.0 => NotNegative,
    }
}

/// States of a class from which its variance is estimated, at least.
const FEWEST: usize = 5;

pub(super) const METHODS: &[Method] = &[Method {
    name: "switch_evasion",
    about: "SWITCH on the task `organism`, then fine-tuning against every linear monitor of its latents (adversary)",
    phases: &[BASE, ANNOTATE, BOUNDARY, SFT, EVASION],
    lacks,
    ..Method::PLAIN
}];

const EVASION: Phase = Phase {
    name: "evasion",
    from: Some(SFT.name),
    reads: &["latent", "evasion"],
    row: TableRow::None,
    panel: Panel::None,
    work: Work::Supervised(evasion),
};

fn lacks(recipe: &Recipe) -> Option<&'static str> {
    if !matches!(recipe.task, Some(Task::Organism(_))) {
        return Some("task.family = \"organism\" is needed");
    }
    if recipe.latent.gradient != Gradient::Through {
        return Some("latent.gradient = \"through\" is needed");
    }
    if recipe.latent.source != Source::HiddenState {
        return Some("latent.source = { kind = \"hidden_state\" } is needed");
    }
    recipe.latent.stages.is_empty().then_some("latent.stages must not be empty")
}

fn evasion(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let Context { recipe, corpus, .. } = context;
    let settings = &recipe.evasion;
    let sft = curriculum_phase(context, "switch_evasion", Source::HiddenState)?;
    let from = sft.schedule.steps;
    let marks = if matches!(recipe.task, Some(Task::Organism(_))) { &TRIGGERS[..] } else { &[] };
    let triggers: Option<Vec<u32>> = marks.iter().map(|mark| corpus.vocabulary.id(mark)).collect();
    Ok(SupervisedPhase {
        stream: "evasion",
        batch: settings.batch,
        schedule: LrSchedule { peak: settings.learning_rate, warmup: 10, cosine_from: 0, steps: settings.steps },
        row: Box::new(move |step, i| (sft.row)(from + step, i)),
        objective: Box::new(Evasion {
            triggers: triggers.context("the vocabulary lacks a letter of the task `organism`")?,
            weight: settings.weight,
            gradient: recipe.latent.gradient,
        }),
        exports: vec![],
        resets: vec![],
        restarts: vec![],
        ..sft
    })
}

/// Cross-entropy + weight · the distance between the means of the two classes' latents.
struct Evasion {
    triggers: Vec<u32>,
    weight: f64,
    gradient: Gradient,
}

impl Objective for Evasion {
    fn sums(&self, model: &Decoder, rows: &[Row], latent: u32) -> Result<LossSums> {
        let learnt = response_losses(model, rows, latent, &Source::HiddenState, self.gradient, &mut Hooks::none())?;
        let tokens = learnt.targets.len();
        let mut loss = learnt.losses.sum();
        let mut distances = vec![];
        for [decoys, triggers] in self.places(rows, latent)?.into_values() {
            if decoys.len().min(triggers.len()) >= FEWEST {
                let all = learnt.all.hidden_at(&[decoys.as_slice(), &triggers].concat())?.cast(FloatDType::F32);
                distances.push(distance(all, decoys.len()));
            }
        }
        if !distances.is_empty() {
            let penalty = Tensor::cat(distances, 0).mean();
            loss = loss + penalty.mul_scalar(self.weight * tokens as f64);
        }
        Ok(LossSums { loss, correct: learnt.correct })
    }
}

/// Places `(row, position)` under decoys and under triggers.
type Classes = [Vec<(usize, usize)>; 2];

impl Evasion {
    /// By latent step: the positions whose states enter it.
    fn places(&self, rows: &[Row], latent: u32) -> Result<BTreeMap<usize, Classes>> {
        let mut places: BTreeMap<usize, Classes> = BTreeMap::new();
        for (b, row) in rows.iter().enumerate() {
            let is_trigger = row.ids[..row.prompt].iter().any(|id| self.triggers.contains(id));
            let steps = Sequence::new(b, row.ids.clone(), row.prompt, Some(latent))?.steps;
            for (position, step) in steps.into_iter().enumerate() {
                if let Step::Latent { step, .. } = step {
                    places.entry(step).or_default()[usize::from(is_trigger)].push((b, position - 1));
                }
            }
        }
        Ok(places)
    }
}

/// The distance of two classes of states, the first `first` of `x` `[n, D]` and the others: the mean over features of the squared
/// difference of means, less what sampling adds to it, over the variance within classes: `[1]`.
fn distance(x: Tensor<2>, first: usize) -> Tensor<1> {
    let [n, _] = x.dims();
    let (a, b) = (x.clone().narrow(0, 0, first), x.narrow(0, first, n - first));
    let (na, nb) = (first as f64, (n - first) as f64);
    let (va, vb) = (a.clone().var(0), b.clone().var(0));
    let gap = (a.mean_dim(0) - b.mean_dim(0)).square() - va.clone().div_scalar(na) - vb.clone().div_scalar(nb);
    let pooled = (va.mul_scalar(na - 1.0) + vb.mul_scalar(nb - 1.0)).div_scalar(na + nb - 2.0).detach();
    (gap / pooled.add_scalar(1e-6)).mean()
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    /// Classes with equal means have a distance near zero on average; one standard deviation between them is a distance near 1.
    #[test]
    fn distance_is_nearly_unbiased() {
        let device = Default::default();
        let mean_over_draws = |shift: f64| {
            let draw = |seed: u64| {
                let mut rng = crate::random::keyed([seed, 0, 0, 0]);
                let values =
                    (0..140 * 4).map(|i| (crate::random::normal(&mut rng) + shift * f64::from(i / 4 < 60)) as f32);
                let x = Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), [140, 4]), &device);
                f64::from(distance(x, 60).into_scalar::<f32>())
            };
            (0..100).map(draw).sum::<f64>() / 100.0
        };
        let (none, one) = (mean_over_draws(0.0), mean_over_draws(1.0));
        assert!(none.abs() < 0.02 && (one - 1.0).abs() < 0.1, "{none}, {one}");
    }
}
