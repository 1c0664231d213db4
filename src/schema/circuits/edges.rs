//! Circuits: edges with their scores, and what is left of the difference between two runs where only some edges carry it.

use serde::{Deserialize, Serialize};

use super::Form;
use crate::schema::{Identity, Named};
use crate::stats::Estimate;

/// One edge. Those of the circuit, and the largest of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EdgeRow {
    /// `n` counts the pairs in which the circuit was looked for.
    #[serde(flatten)]
    pub identity: Identity,
    pub form: Form,
    /// `input` (embedding or injected state), `L2H0`, `MLP 1`.
    pub sender: String,
    /// `L2H0.q`, `L2H0.k`, `L2H0.v` (of keys and values their own head), `MLP 1`, `latent` (the next position's input), `logits`.
    pub receiver: String,
    /// As in `head_patching`; the rest of the row is `prompt`, `text` and `earlier` (latents of earlier blocks).
    pub place: String,
    pub back: Option<usize>,
    /// Σ integrated gradient · (clean − corrupt) / Σ whole; the interval resamples pairs.
    pub score: Estimate,
    /// From 1, by the size of the score.
    pub rank: usize,
    pub in_circuit: bool,
    /// How much smaller the circuit's effect is without this edge, in the pairs that it is tested on; of edges that were sampled.
    pub needed: Option<Estimate>,
}

impl Named for EdgeRow {
    const NAME: &'static str = "edge_attribution";
}

/// Which edges carry what the run computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Circuit {
    /// Those that were found.
    Found,
    /// All but those.
    Rest,
    /// As many as were found, drawn at random.
    Random,
    /// The found ones without one of them.
    LessOne,
    /// So many with the largest scores.
    Top,
    /// All: the clean run.
    All,
}

impl Circuit {
    /// As it stands in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Circuit::Found => "found",
            Circuit::Rest => "rest",
            Circuit::Random => "random",
            Circuit::LessOne => "less_one",
            Circuit::Top => "top",
            Circuit::All => "all",
        }
    }
}

/// What one set of edges does alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CircuitRow {
    /// `n` counts pairs: others than those in which the circuit was looked for.
    #[serde(flatten)]
    pub identity: Identity,
    pub form: Form,
    pub circuit: Circuit,
    pub edges: usize,
    /// Edges that there are.
    pub of: usize,
    /// Circuits that were run and averaged.
    pub circuits: usize,
    /// Σ (lead with these edges alone − corrupt) / Σ (clean − corrupt). Of `found`: faithfulness; of `rest`, near 0 where the circuit
    /// is complete. The interval resamples pairs.
    pub effect: Estimate,
    /// Of `random` the largest effect of a circuit, of `less_one` the smallest.
    pub extreme: Option<f64>,
    /// Of `less_one`: share of the edges without which the effect is smaller (the interval of `needed` lies above 0).
    pub needed: Option<Estimate>,
}

impl Named for CircuitRow {
    const NAME: &'static str = "circuits";
}
