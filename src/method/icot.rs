//! iCoT, stepwise internalisation (Deng et al. 2024): the chain of thought is removed token by token from the left, until only the
//! answer is left, so that the model has to internalise the removed steps.
//!
//! As in the public code (da03/Internalize_CoT_Step_by_Step): after every `steps per epoch / remove_per_epoch` steps one more token
//! is scheduled to go, each sample loses o more with p(o) ∝ e^{−λo}, and the optimiser forgets its state whenever the schedule moves
//! while there is text left (`icot.reset`; their commands have it on). The tokens that follow keep no gap: their positions move up.
//! Their steps are many: 1500 between two tokens of GSM8K, where a schedule of a few dozen never lets Adam's second moment settle.
//!
//! It differs in this: text is left while the longest chain of the corpus has a token, theirs while one of the last batch has; steps of
//! a pass leave out its odd rest. `icot.cosine` is ours, as in SWITCH's phase 2.

use anyhow::Result;
use rand::Rng;

use super::Method;
use super::batches::{lengths_of, per_epoch, sample_rng, steps_of};
use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use super::text_cot::BASE;
use crate::corpus::Row;
use crate::recipe::Range::{Count, NotNegative, Positive, PositiveOrInfinite, Typed};
use crate::recipe::{BATCH, POSITIONS, STEPS};
use crate::text::Sample;

settings! {
    /// Stepwise internalisation (Deng et al. 2024): the leftmost tokens of the chain go, more and more of them.
    pub struct Settings {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Passes over the data; the larger of this and `steps` counts.
        pub epochs: f64 = 0.0 => NotNegative,
        pub batch: usize = 32 => Count(1, BATCH),
        pub learning_rate: f64 = 5e-5 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        /// Tokens that are removed in each pass over the data, one after the other; 0 removes none.
        pub remove_per_epoch: f64 = 8.0 => NotNegative,
        /// The whole chain goes at once when this many tokens are gone; 0: tokens go one by one to the end.
        pub remove_all_from: usize = 0 => Count(0, POSITIONS),
        /// λ of the removal smoothing: a sample loses o more tokens with p(o) ∝ e^{−λo}. `inf` switches smoothing off.
        pub smoothing: f64 = 4.0 => PositiveOrInfinite,
        /// The optimiser forgets its state whenever one more token goes (`--reset_optimizer`).
        pub reset: bool = true => Typed,
        /// The learning rate falls as a cosine once nothing more is scheduled to go (ours); otherwise it is constant.
        pub cosine: bool = false => Typed,
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "icot",
    about: "the chain of thought removed token by token from the left (Deng et al. 2024)",
    phases: &[BASE, ICOT],
    lacks: |recipe| {
        (recipe.icot.steps == 0 && recipe.icot.epochs == 0.0).then_some("icot.steps or icot.epochs must be above 0")
    },
    ..Method::PLAIN
}];

pub(super) const ICOT: Phase = Phase {
    name: "icot",
    from: Some(BASE.name),
    reads: &["icot"],
    row: TableRow::Paper("icot"),
    panel: Panel::Latent,
    work: Work::Supervised(icot),
};

fn icot(Context { recipe, corpus, .. }: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let settings = &recipe.icot;
    let lengths = lengths_of(&corpus.train);
    let per_epoch = per_epoch(lengths.len(), settings.batch);
    let steps = steps_of(settings.steps, settings.epochs, per_epoch);
    // Tokens of each chain of thought: those before the final answer.
    let chain = |sample: &Sample| sample.required_answer("iCoT cannot be trained").map(|answer| answer.start);
    let chains: Vec<usize> = corpus.train.iter().map(chain).collect::<Result<_>>()?;
    let removal = Removal::new(settings, per_epoch, chains.iter().copied().max().unwrap_or(0));
    let moves = removal.moves(steps);
    let cosine_from = if settings.cosine { moves.last().copied().unwrap_or(0) } else { steps };
    let schedule = LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from, steps };
    let row = move |step: usize, i: usize| {
        let offset = offset(settings.smoothing, sample_rng(recipe.seed, "icot", step, i).random());
        Ok(Row::rest(&corpus.train[i], removal.at(step).saturating_add(offset).min(chains[i]), corpus.end))
    };
    Ok(SupervisedPhase {
        resets: if settings.reset { moves } else { vec![] },
        ..SupervisedPhase::new("icot", settings.batch, lengths, schedule, row)
    })
}

/// How many tokens are scheduled to go.
#[derive(Clone, Copy, Debug)]
struct Removal {
    /// Steps after which one more token goes; `None`: never.
    every: Option<usize>,
    /// From this many tokens on, all go.
    all_from: usize,
    /// Tokens of the longest chain.
    longest: usize,
}

impl Removal {
    fn new(settings: &Settings, per_epoch: usize, longest: usize) -> Self {
        let rate = settings.remove_per_epoch;
        let every = (rate > 0.0).then(|| ((per_epoch as f64 / rate).round() as usize).max(1));
        let all_from = if settings.remove_all_from == 0 { usize::MAX } else { settings.remove_all_from };
        Self { every, all_from, longest }
    }

    /// Before the smoothing, at a step from 0.
    fn at(&self, step: usize) -> usize {
        let removed = self.every.map_or(0, |every| step / every);
        if removed >= self.all_from { self.longest } else { removed.min(self.longest) }
    }

    /// The steps at which more goes than before.
    fn moves(&self, steps: usize) -> Vec<usize> {
        (1..steps).filter(|&step| self.at(step) > self.at(step - 1)).collect()
    }
}

/// o with p(o) = (1 − e^{−λ}) e^{−λo}, from a number drawn evenly from [0, 1).
fn offset(lambda: f64, uniform: f64) -> usize {
    (-(1.0 - uniform).ln() / lambda).floor() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_on_schedule() {
        let settings = Settings { remove_per_epoch: 2.0, ..Settings::default() };
        let removal = Removal::new(&settings, 5, 3);
        let at = |removal: &Removal| (0..11).map(|step| removal.at(step)).collect::<Vec<_>>();
        // 5 / 2 steps a token, rounded to 3; at most the longest chain.
        assert_eq!(at(&removal), [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]);
        assert_eq!(removal.moves(30), [3, 6, 9]);
        let all = Removal::new(&Settings { remove_all_from: 2, ..settings.clone() }, 5, 9);
        assert_eq!(at(&all), [0, 0, 0, 1, 1, 1, 9, 9, 9, 9, 9]);
        assert_eq!(all.moves(30), [3, 6]);
        let none = Removal::new(&Settings { remove_per_epoch: 0.0, ..settings }, 5, 9);
        assert_eq!((none.at(1000), none.moves(1000)), (0, vec![]));
    }

    #[test]
    fn offsets_fall_off_as_the_public_code_draws_them() {
        let draws = |lambda| (0..10_000).map(move |i| offset(lambda, f64::from(i) / 10_000.0));
        for (lambda, o) in [(4.0_f64, 0), (4.0, 1), (0.5, 0), (0.5, 3)] {
            let share = draws(lambda).filter(|&drawn| drawn == o).count() as f64 / 10_000.0;
            let expected = (1.0 - (-lambda).exp()) * (-lambda * o as f64).exp();
            assert!((share - expected).abs() < 2e-4, "λ {lambda}, o {o}: {share} against {expected}");
        }
        assert!(draws(f64::INFINITY).all(|o| o == 0), "no smoothing");
    }
}
