//! What is done to latent inputs and what it does to answers: one [`Observation`] a problem, one [`InterventionRow`] a mode.

mod steps;
pub mod summary;

use serde::{Deserialize, Serialize};

use super::Identity;
use super::verdict::{Baseline, loss};
use crate::stats::Estimate;

pub use steps::Steps;

/// The unchanged run.
pub const NORMAL: &str = "normal";
/// The unchanged run in batches of another size, from its prompts: greedy decoding must not notice.
pub const NULL_BATCH: &str = "null_batch";
/// Two sampled runs with other seeds: how much answers move when nothing is done. Draw 0 is what draw 1 is compared with.
pub const NULL_SEED: &str = "null_seed";
/// What the answers' own noise is measured with.
pub const NULLS: [&str; 2] = [NULL_BATCH, NULL_SEED];

/// A mode at a dose, as users write it: `rotate:30`.
pub fn dosed(mode: &str, dose: Option<f64>) -> String {
    dose.map_or_else(|| mode.to_owned(), |dose| format!("{mode}:{dose}"))
}

names! {
    /// What happens to the latents of a block after a replaced one.
    #[derive(Default)]
    pub enum Later {
        /// They follow from it.
        #[default]
        Recompute = "recompute",
        /// Their inputs are those of the normal run (same problem, block and step), so that only attention to the replaced
        /// position, and the text after it, can carry the change. Where the normal run's block was shorter they follow from it.
        Frozen = "frozen",
    }

    /// How far a replaced latent input reaches. A latent position passes on two things: its keys and values (later positions
    /// attend to them) and its output (the next latent's input, and the logits that decide whether to leave the block).
    #[derive(Default)]
    pub enum At {
        /// Both are those of the replaced input.
        #[default]
        Both = "both",
        /// The output is that of the replaced input; the cache keeps the keys and values of the input as it was.
        Embedding = "embedding",
        /// The cache holds the keys and values of the replaced input; the output is that of the input as it was.
        Kv = "kv",
    }

    /// Origin of the normal run's blocks.
    #[derive(Default)]
    pub enum BlockOrigin {
        /// The model opens them.
        #[default]
        Own = "own",
        /// Problems that open none are made to open one where p(`<swi>`) was highest, in the normal run too: what is compared
        /// is then how such a block works, not whether it would be opened.
        Forced = "forced",
    }
}

/// What became of one problem in one draw of one cell. A cell is a mode at one dose, on one choice of steps, acting at one
/// place. (`cell`, `draw`, `problem`) is the key: files of several machines, cut by problem, are merged by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    #[serde(flatten)]
    pub identity: Identity,
    /// First digits of the SHA-256 of the checkpoint's weights.
    pub weights: String,
    /// What the model computed in.
    pub dtype: String,
    /// From 0, in the order of the command; *normal* is 0.
    pub cell: usize,
    pub mode: String,
    pub dose: Option<f64>,
    /// `all`, a step, or `k..`.
    pub steps: Steps,
    pub later: Later,
    pub at: At,
    /// Whether the model opened its blocks itself.
    pub blocks: BlockOrigin,
    /// Of `hook_intervention`: the hook point whose values are replaced; absent where it is the latent input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    /// With `hook`: its heads (`all`, `0`, `0+3`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<String>,
    /// With `hook`: `latent` (`steps` says which), `prompt`, `text`, `text[t]` or `pos[p]` (`steps` then says nothing).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    pub draw: usize,
    pub problem: usize,
    pub correct: bool,
    /// Share of the run's problems that a guess gets right ([`Corpus::guess`](crate::corpus::Corpus::guess)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guess: Option<f64>,
    /// The extracted answer.
    pub answer: Option<String>,
    /// Lead of the gold answer's first token over the best other one, in nats, where the response gives its answer.
    pub margin: Option<f64>,
    pub switched: bool,
    pub latent_calls: usize,
    /// The same tokens and log-probabilities as the normal run, bit for bit.
    pub identical: bool,
    /// Whether the problem was decoded anew; the others open no block to act on, and are as in the normal run.
    pub forked: bool,
    /// Latent inputs replaced.
    pub firings: usize,
    /// Σ ‖new − old‖ over them.
    pub moved: f64,
    /// Of `known_value`: the answer that arithmetic predicts; absent where nothing was exchanged.
    pub predicted: Option<String>,
    /// Of `known_value`: the share of donors that could have been drawn which predict the answer given.
    pub chance: Option<f64>,
    /// Of `known_value`: the answer if the donor's block holds the first operand of its step; absent where that predicts no
    /// change, or what `predicted` says.
    pub operand_predicted: Option<String>,
    /// As `chance`, for `operand_predicted`.
    pub operand_chance: Option<f64>,
}

impl Observation {
    /// The file of a run without `all` among its steps.
    pub(crate) const STEPS: &'static str = "observations_steps";
    /// The file of interventions at hook points.
    pub const HOOKS: &'static str = "hook_observations";
}

measured!(Observation, (usize, usize, usize), |o| (o.cell, o.draw, o.problem), (None, o.problem));

/// One mode at one dose on one choice of steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterventionRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub mode: String,
    pub dose: Option<f64>,
    /// `all`, a step, or `k..`.
    pub steps: Steps,
    pub later: Later,
    pub at: At,
    /// Whether the model opened its blocks itself.
    pub blocks: BlockOrigin,
    /// As in [`Observation`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    pub draws: usize,
    /// Problems × draws; intervals resample problems.
    pub accuracy: Estimate,
    /// Minus normal's, paired.
    pub accuracy_change: Estimate,
    /// Share of answers that differ from normal's.
    pub answer_changed: Estimate,
    /// Share of problems that a guess gets right.
    #[serde(default)]
    pub guess: Option<f64>,
    /// Normal's accuracy on the problems that are changed (of normal itself: those where it switched).
    #[serde(default)]
    pub before: Option<Estimate>,
    /// On the problems where normal switched and was right.
    pub diagnostic_accuracy: Option<Estimate>,
    /// How many of these are expected to be right by luck, if every problem with a wrong answer was guessed at.
    #[serde(default)]
    pub diagnostic_by_luck: Option<f64>,
    /// Share of normal's wrong answers that are right.
    pub wrong_to_right: Option<Estimate>,
    /// Right under normal, wrong in most draws; a tie counts for neither.
    pub lost: usize,
    pub gained: usize,
    /// Against normal, all problems: exact McNemar; of several draws its like, the exact sign-flip test of their sums.
    pub p_value: f64,
    /// The p-value, Holm-adjusted over the interventions of this run.
    pub p_holm: f64,
    /// Lead of the gold answer, in nats.
    pub logit_diff: Option<Estimate>,
    /// Minus normal's, on problems where both give an answer.
    pub logit_diff_change: Option<Estimate>,
    /// Latent inputs replaced.
    pub firings: usize,
    /// Mean ‖new − old‖ of a firing.
    pub mean_change: f64,
}

impl InterventionRow {
    /// The file of a run without `all` among its steps.
    pub const STEPS: &'static str = "latent_intervention_steps";
    /// The file of interventions at hook points.
    pub const HOOKS: &'static str = "hook_intervention";

    /// Where it acts: latent steps, with the hook point, its heads and other positions where they are named.
    pub fn acts_at(&self) -> String {
        let Some(hook) = &self.hook else { return self.steps.to_string() };
        let heads = self.heads.as_deref().filter(|heads| *heads != "all");
        let heads = heads.map_or_else(String::new, |heads| format!(" head {heads}"));
        match self.place.as_deref() {
            None | Some("latent") => format!("{hook}{heads}, latent {}", self.steps),
            Some(place) => format!("{hook}{heads}, {place}"),
        }
    }

    /// The verdict that answers are right less often than in the normal run: the exact test, corrected for the interventions
    /// that ran with it.
    pub fn lowers(&self) -> bool {
        self.verdict() == "lower"
    }

    /// The verdict that more are.
    pub fn raises(&self) -> bool {
        self.verdict() == "higher"
    }

    /// `lower`, `higher`, that neither is seen, or that there was nothing to lose: accuracy against the unchanged model.
    pub fn verdict(&self) -> &'static str {
        loss(self.identity.n, self.accuracy_change.value, self.p_holm, ["lower", "higher"], self.baseline())
    }

    /// That the unchanged model, on the problems that are changed, is not above a guess: its accuracy and the guess.
    pub fn at_chance(&self) -> Option<(Estimate, f64)> {
        self.baseline().and_then(Baseline::at_chance)
    }

    fn baseline(&self) -> Option<Baseline> {
        match self.before {
            Some(before) => Baseline::new(before, self.guess),
            None => Baseline::undo(self.accuracy, self.accuracy_change, self.guess),
        }
    }

    /// Whether it intervenes as the paper does: on all steps, at full dose, on what enters the stream.
    pub fn is_plain(&self) -> bool {
        self.steps == Steps::All
            && self.dose.is_none_or(|dose| dose == 1.0)
            && matches!(self.at, At::Both | At::Embedding)
            && self.later == Later::Recompute
    }
}

names! {
    /// Assumed content of an exchanged block, for predictions.
    #[derive(Default)]
    pub enum Holds {
        /// The result of its step.
        #[default]
        Value = "value",
        /// The first operand of its step: the operation is done after the block.
        Operand = "operand",
    }
}

/// How often the answer followed the exchanged value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownValueRow {
    /// `n` counts problems with a block that could be exchanged.
    #[serde(flatten)]
    pub identity: Identity,
    pub steps: Steps,
    pub later: Later,
    pub at: At,
    /// What the prediction takes the block to hold. By the operand only exchanges count for which it predicts another answer
    /// than the value does.
    #[serde(default)]
    pub holds: Holds,
    pub draws: usize,
    /// Share of exchanges after which the answer is the predicted one.
    pub hit_rate: Estimate,
    /// The hit rate if the donor's value did not matter: each answer against those of all donors that could have
    /// been drawn.
    pub chance: Estimate,
    /// Hit rate minus chance, paired.
    pub above_chance: Estimate,
    /// Share of exchanges after which the answer is still the gold one.
    pub kept: Estimate,
    pub firings: usize,
}

impl KnownValueRow {
    /// The file of a run without `all` among its steps.
    pub const STEPS: &'static str = "known_value_steps";

    /// Of these rows the one of all steps, graded by the value.
    pub fn main(rows: &[Self]) -> Option<&Self> {
        Self::of_all_steps(rows, Holds::Value)
    }

    pub fn of_all_steps(rows: &[Self], holds: Holds) -> Option<&Self> {
        rows.iter().find(|row| row.steps == Steps::All && row.holds == holds)
    }

    /// The verdict that answers follow the assumed content of the block.
    pub fn follows(&self) -> bool {
        self.above_chance.is_above(0.0)
    }

    /// The verdict that they follow it less often than by chance.
    pub fn avoids(&self) -> bool {
        self.above_chance.scaled(-1.0).is_above(0.0)
    }

    /// As in an observation's `mode`.
    pub(crate) const MODE: &'static str = "known_value";
}
