//! Interventions on latent inputs and their effect on answers: one [`Observation`] per problem, one [`InterventionRow`] per mode.

mod steps;
pub mod summary;

use super::verdict::{Baseline, NEITHER, loss};
use super::{Identity, MARGIN};
use crate::stats::{Estimate, Flips, LEVEL};

pub use steps::Steps;

/// The unchanged run.
pub const NORMAL: &str = "normal";
/// The unchanged run with another batch size: greedy decoding must give the same answers.
pub const NULL_BATCH: &str = "null_batch";
/// Two sampled runs with different seeds: how much answers vary without an intervention. Draw 1 is compared with draw 0.
pub const NULL_SEED: &str = "null_seed";
/// Modes that measure the answers' own noise.
pub const NULLS: [&str; 2] = [NULL_BATCH, NULL_SEED];

/// A mode with its dose, as users write it: `rotate:30`.
pub fn dosed(mode: &str, dose: Option<f64>) -> String {
    dose.map_or_else(|| mode.to_owned(), |dose| format!("{mode}:{dose}"))
}

names! {
    /// How the latents of a block after a replaced one are computed.
    #[derive(Default)]
    pub enum Later {
        /// Recomputed from it.
        #[default]
        Recompute = "recompute",
        /// Their inputs are those of the normal run (same problem, block and step), so that only attention to the replaced position, and
        /// the text after it, can carry the change. Steps beyond the normal run's block are recomputed.
        Frozen = "frozen",
    }

    /// How far a replaced latent input reaches. A latent position passes on two things: its keys and values (later positions
    /// attend to them) and its output (the next latent's input, and the logits that decide whether to leave the block).
    #[derive(Default)]
    pub enum At {
        /// Both are those of the replaced input.
        #[default]
        Both = "both",
        /// The output is that of the replaced input; the cache has the keys and values of the original input.
        Embedding = "embedding",
        /// The cache has the keys and values of the replaced input; the output is that of the original input.
        Kv = "kv",
    }

    /// Origin of the normal run's blocks.
    #[derive(Default)]
    pub enum BlockOrigin {
        /// The model opens them.
        #[default]
        Own = "own",
        /// Problems without one are forced to open one where p(`<swi>`) was highest, in the normal run too.
        Forced = "forced",
    }
}

rows! {
    /// Outcome of one problem in one draw of one cell. A cell is a mode at one dose, on one choice of steps, at one place. The key is
    /// (`cell`, `draw`, `problem`): shards by problem are merged by it.
    #[derive(Default)]
    pub struct Observation {
        #[serde(flatten)]
        pub identity: Identity,
        pub weights: String => "hash": "first digits of the SHA-256 of the weights",
        pub dtype: String => "name": "float type of the computation",
        /// In the order of the command; *normal* is 0.
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
        /// Accuracy of guessing ([`Corpus::guess`](crate::corpus::Corpus::guess)).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub guess: Option<f64> => EarlyStopRow,
        pub answer: Option<String> => OutcomeRow,
        pub margin: Option<f64> => "nats": "lead of the gold answer's first token over the best other one",
        pub switched: bool => OutcomeRow,
        pub latent_calls: usize => AccuracyRow,
        pub identical: bool => "true or false": "the same tokens and log-probabilities as the normal run, bit for bit",
        /// Whether the problem was decoded again; the others open no block and are copied from the normal run.
        pub forked: bool => "true or false": "whether the problem was decoded anew",
        pub firings: usize => InterventionRow,
        pub moved: f64 => "norm": "sum of the lengths of new minus old input",
        /// For `known_value`; absent if nothing was exchanged.
        pub predicted: Option<String> => "text": "the answer that arithmetic predicts from the exchanged value",
        /// For `known_value`: share of the possible donors that predict the given answer.
        pub chance: Option<f64> => KnownValueRow,
        /// For `known_value`; absent if it predicts no change or the same as `predicted`.
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
        pub steps: Steps => "latent steps from 1": "at which it was done: all, one (`2`), from one on (`2..`), or a range (`2..4`)",
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
        /// Over problems × draws; intervals resample problems.
        pub accuracy: Estimate => AccuracyRow,
        pub accuracy_change: Estimate => PartSwapRow,
        pub answer_changed: Estimate => "share": "answers that differ from the normal run's",
        pub guess: Option<f64> => EarlyStopRow,
        pub before: Option<Estimate> => "share":
            "right in the normal run among the problems that are changed (of the normal run: where it switched)",
        pub diagnostic_accuracy: Option<Estimate> => "share": "right among the problems where the normal run switched and was right",
        pub diagnostic_by_luck: Option<f64> => "count":
            "diagnostic problems expected to be right by luck, if every wrong answer was a guess",
        pub wrong_to_right: Option<Estimate> => "share": "of the normal run's wrong answers that are right",
        pub lost: usize => AccuracyRow,
        pub gained: usize => AccuracyRow,
        /// Against normal, on all problems: exact McNemar test or, with several draws, the exact sign-flip test of their sums.
        pub p_value: f64 => AccuracyRow,
        pub p_holm: f64 => AccuracyRow,
        pub logit_diff: Option<Estimate> => "nats": "lead of the gold answer's first token over the best other one",
        /// Minus normal's, on problems with an answer in both.
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

    /// Where it acts: latent steps and, if named, hook point, heads and other positions.
    pub fn acts_at(&self) -> String {
        let Some(hook) = &self.hook else { return self.steps.to_string() };
        let heads = self.heads.as_deref().filter(|heads| *heads != "all");
        let heads = heads.map_or_else(String::new, |heads| format!(" head {heads}"));
        match self.place.as_deref() {
            None | Some("latent") => format!("{hook}{heads}, latent {}", self.steps),
            Some(place) => format!("{hook}{heads}, {place}"),
        }
    }

    /// The verdict that accuracy is lower than in the normal run: the exact test, Holm-adjusted over the command's interventions.
    pub fn lowers(&self) -> bool {
        self.verdict() == "lower"
    }

    /// The verdict that accuracy is higher.
    pub fn raises(&self) -> bool {
        self.verdict() == "higher"
    }

    /// Accuracy against the unchanged model: `lower`, `higher`, neither, or at chance before.
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

    /// [`Self::verdict`] or, if it finds neither, whether accuracy is the same within [`MARGIN`].
    pub fn verdict_or_same(&self) -> &'static str {
        match self.verdict() {
            NEITHER if self.p_same(MARGIN) <= 1.0 - LEVEL => "same within .05",
            word => word,
        }
    }

    /// Accuracy of the unchanged model on the problems that are changed, and of guessing, if the first is not above the second.
    pub fn at_chance(&self) -> Option<(Estimate, f64)> {
        self.baseline().and_then(Baseline::at_chance)
    }

    fn baseline(&self) -> Option<Baseline> {
        match self.before {
            Some(before) => Baseline::new(before, self.guess),
            None => Baseline::undo(self.accuracy, self.accuracy_change, self.guess),
        }
    }

    /// Whether it intervenes as in the paper: on all steps, at full dose, on the latent inputs.
    pub fn is_plain(&self) -> bool {
        self.steps == Steps::All
            && self.dose.is_none_or(|dose| dose == 1.0)
            && matches!(self.at, At::Both | At::Embedding)
            && self.later == Later::Recompute
    }
}

names! {
    /// The value that an exchanged block is assumed to encode.
    #[derive(Default)]
    pub enum Holds {
        /// The result of its step.
        #[default]
        Value = "value",
        /// The first operand of its step; the operation follows the block.
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
        /// Assumption of the prediction. With `operand`, only exchanges count for which it predicts another answer than `value`.
        #[serde(default)]
        pub holds: Holds => "name":
            "what the exchanged block is taken to hold: the value of its step, or the first operand (then only exchanges count for \
                which the two predict different answers)",
        pub draws: usize => InterventionRow,
        pub hit_rate: Estimate => "share": "exchanges after which the answer is the predicted one",
        /// The hit rate if the donor's value did not matter: each answer is compared with the predictions of all possible donors.
        pub chance: Estimate => "share": "the same, if the exchanged value did not affect the answer",
        pub above_chance: Estimate => "share": "hit rate minus chance, paired",
        pub kept: Estimate => "share": "exchanges after which the answer is still the gold one",
        pub firings: usize => InterventionRow,
    }
}

impl KnownValueRow {
    /// The file of a run without `all` among its steps.
    pub const STEPS: &'static str = "known_value_steps";

    /// The row of all steps, with predictions by the value.
    pub fn main(rows: &[Self]) -> Option<&Self> {
        Self::of_all_steps(rows, Holds::Value)
    }

    pub fn of_all_steps(rows: &[Self], holds: Holds) -> Option<&Self> {
        rows.iter().find(|row| row.steps == Steps::All && row.holds == holds)
    }

    /// The verdict that answers follow the exchanged value more often than by chance.
    pub fn follows(&self) -> bool {
        self.above_chance.is_above(0.0)
    }

    /// The verdict that answers follow it less often than by chance.
    pub fn avoids(&self) -> bool {
        self.above_chance.scaled(-1.0).is_above(0.0)
    }

    /// Its name in an observation's `mode`.
    pub(crate) const MODE: &'static str = "known_value";
}
