//! What is done to latent inputs and what it does to answers: one [`Observation`] a problem, one [`InterventionRow`] a mode.

mod steps;
pub mod summary;

use super::verdict::{Baseline, NEITHER, loss};
use super::{Identity, MARGIN};
use crate::stats::{Estimate, Flips, LEVEL};

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

rows! {
    /// What became of one problem in one draw of one cell. A cell is a mode at one dose, on one choice of steps, acting at one
    /// place. (`cell`, `draw`, `problem`) is the key: files of several machines, cut by problem, are merged by it.
    #[derive(Default)]
    pub struct Observation {
        #[serde(flatten)]
        pub identity: Identity,
        pub weights: String => "hash": "first digits of the SHA-256 of the weights",
        pub dtype: String => "name": "float type of the computation",
        /// From 0, in the order of the command; *normal* is 0.
        pub cell: usize => "index from 0": "mode at one dose and one choice of steps, in the order asked",
        pub mode: String => InterventionRow,
        pub dose: Option<f64> => InterventionRow,
        pub steps: Steps => InterventionRow,
        pub later: Later => InterventionRow,
        pub at: At => InterventionRow,
        pub blocks: BlockOrigin => InterventionRow,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub hook: Option<String> => InterventionRow,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub heads: Option<String> => InterventionRow,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub place: Option<String> => InterventionRow,
        pub draw: usize => "index from 0": "the draw of a random mode",
        pub problem: usize => OutcomeRow,
        pub correct: bool => OutcomeRow,
        /// Share of the run's problems that a guess gets right ([`Corpus::guess`](crate::corpus::Corpus::guess)).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub guess: Option<f64> => EarlyStopRow,
        pub answer: Option<String> => OutcomeRow,
        pub margin: Option<f64> => "nats": "lead of the gold answer's first token over the best other one",
        pub switched: bool => OutcomeRow,
        pub latent_calls: usize => AccuracyRow,
        pub identical: bool => "true or false": "the same tokens and log-probabilities as the normal run, bit for bit",
        /// Whether the problem was decoded anew; the others open no block to act on, and are as in the normal run.
        pub forked: bool => "true or false": "whether the problem was decoded anew",
        pub firings: usize => InterventionRow,
        pub moved: f64 => "norm": "sum of the lengths of new minus old input",
        /// Of `known_value`: the answer that arithmetic predicts; absent where nothing was exchanged.
        pub predicted: Option<String> => "text": "the answer that arithmetic predicts from the exchanged value",
        /// Of `known_value`: the share of donors that could have been drawn which predict the answer given.
        pub chance: Option<f64> => KnownValueRow,
        /// Of `known_value`: the answer if the donor's block holds the first operand of its step; absent where that predicts no
        /// change, or what `predicted` says.
        pub operand_predicted: Option<String> => "text":
            "the answer if the donor's block holds its step's first operand, if that is another one",
        pub operand_chance: Option<f64> => "share":
            "donors that could have been drawn which predict the answer given, by their first operand",
    }
}

impl Observation {
    /// The file of a run without `all` among its steps.
    pub(crate) const STEPS: &'static str = "observations_steps";
    /// The file of interventions at hook points.
    pub const HOOKS: &'static str = "hook_observations";
}

measured!(Observation, (usize, usize, usize), |o| (o.cell, o.draw, o.problem), (None, o.problem));

rows! {
    /// One mode at one dose on one choice of steps.
    pub struct InterventionRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub mode: String => "name": "what was done (zero, random_norm, skip, …)",
        pub dose: Option<f64> => "factor or degrees": "how much of it",
        pub steps: Steps => "latent steps from 1": "at which it was done: all, one, or from one on (`2..`)",
        pub later: Later => "name": "recompute: later latents follow; frozen: they stay those of the normal run",
        pub at: At => "name": "which part of the position is replaced: embedding, kv, or both",
        pub blocks: BlockOrigin => "name": "own: the model opens its blocks; forced: problems without one were made to open one",
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub hook: Option<String> => "name": "hook point whose values are replaced; absent: the input of the latents",
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub heads: Option<String> => "index from 0": "heads of the hook point: all, one, or several (`0+3`)",
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub place: Option<String> => "name": "latent (`steps` says which), prompt, text, `text[t]` or `pos[p]`; t and p from 0",
        pub draws: usize => "count": "draws of a random mode, pooled",
        /// Problems × draws; intervals resample problems.
        pub accuracy: Estimate => AccuracyRow,
        pub accuracy_change: Estimate => PartSwapRow,
        pub answer_changed: Estimate => "share": "answers that differ from the normal run's",
        #[serde(default)]
        pub guess: Option<f64> => EarlyStopRow,
        #[serde(default)]
        pub before: Option<Estimate> => "share":
            "right in the normal run among the problems that are changed (of the normal run: where it switched)",
        pub diagnostic_accuracy: Option<Estimate> => "share": "right among the problems where the normal run switched and was right",
        #[serde(default)]
        pub diagnostic_by_luck: Option<f64> => "count":
            "diagnostic problems expected to be right by luck, if every wrong answer was a guess",
        pub wrong_to_right: Option<Estimate> => "share": "of the normal run's wrong answers that are right",
        pub lost: usize => AccuracyRow,
        pub gained: usize => AccuracyRow,
        /// Against normal, all problems: exact McNemar; of several draws its like, the exact sign-flip test of their sums.
        pub p_value: f64 => AccuracyRow,
        pub p_holm: f64 => AccuracyRow,
        pub logit_diff: Option<Estimate> => "nats": "lead of the gold answer's first token over the best other one",
        /// Minus normal's, on problems where both give an answer.
        pub logit_diff_change: Option<Estimate> => "nats": "the same minus that of the normal run, paired",
        pub firings: usize => "count": "latent inputs that were replaced",
        pub mean_change: f64 => "norm": "mean length of new minus old input, a replacement",
    }
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

    /// p-value of equivalence (TOST): small if the data show that accuracy changes by less than `margin`, in either direction.
    pub fn p_same(&self, margin: f64) -> f64 {
        let (n, lost, gained) = (self.accuracy_change.n, self.lost, self.gained);
        match n.checked_sub(lost + gained).filter(|_| self.draws == 1) {
            Some(both_right) => Flips { both_right, lost, gained, both_wrong: 0 }.p_equivalent(margin),
            None => self.accuracy_change.p_equivalent(margin),
        }
    }

    /// [`Self::verdict`], and where it finds neither: whether accuracy is the same within [`MARGIN`].
    pub fn verdict_or_same(&self) -> &'static str {
        match self.verdict() {
            NEITHER if self.p_same(MARGIN) <= 1.0 - LEVEL => "same within .05",
            word => word,
        }
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

rows! {
    /// How often the answer followed the exchanged value.
    pub struct KnownValueRow {
        /// `n` counts problems with a block that could be exchanged.
        #[serde(flatten)]
        pub identity: Identity,
        pub steps: Steps => InterventionRow,
        pub later: Later => InterventionRow,
        pub at: At => InterventionRow,
        /// What the prediction takes the block to hold. By the operand only exchanges count for which it predicts another answer
        /// than the value does.
        #[serde(default)]
        pub holds: Holds => "name":
            "what the exchanged block is taken to hold: the value of its step, or the first operand (then only exchanges count for \
                which the two predict different answers)",
        pub draws: usize => InterventionRow,
        pub hit_rate: Estimate => "share": "exchanges after which the answer is the predicted one",
        /// The hit rate if the donor's value did not matter: each answer against those of all donors that could have
        /// been drawn.
        pub chance: Estimate => "share": "the same, if the exchanged value did not affect the answer",
        pub above_chance: Estimate => "share": "hit rate minus chance, paired",
        pub kept: Estimate => "share": "exchanges after which the answer is still the gold one",
        pub firings: usize => InterventionRow,
    }
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
