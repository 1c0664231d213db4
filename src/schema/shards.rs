//! Rows that shards exchange before any table is made: decoded responses, and the normal run with its latent states.

use serde::{Deserialize, Serialize};

use super::{BlockOrigin, Identity};

/// One problem's response under one way of decoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeRow {
    #[serde(flatten)]
    pub identity: Identity,
    /// The rule of switching and `K_min`: `free:4`.
    pub decode: String,
    pub problem: usize,
    /// Every position, as JSON.
    pub trace: String,
}

measured!(DecodeRow, (String, usize), |row| (row.decode.clone(), row.problem), (None, row.problem));

/// One problem of the normal run that interventions fork.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormalRunRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub blocks: BlockOrigin,
    pub problem: usize,
    pub correct: bool,
    pub answer: Option<String>,
    pub margin: Option<f64>,
    /// Whether its response opens no block of the model's own.
    pub ended: bool,
    /// The visible position at which it was made to open one.
    pub force_at: Option<usize>,
    /// Every position, as JSON.
    pub trace: String,
    /// The latent inputs, `[[block, step, hex digits of its f32 values, lowest byte first], ...]` as JSON.
    pub states: String,
}

measured!(NormalRunRow, usize, |row| row.problem, (None, row.problem));
