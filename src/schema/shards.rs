//! Rows that shards exchange before any table is made: decoded responses, and the normal run with its latent states.

use super::{BlockOrigin, Identity};

rows! {
    /// One problem's response under one way of decoding.
    pub struct DecodeRow {
        #[serde(flatten)]
        pub identity: Identity,
        /// The rule of switching and `K_min`: `free:4`.
        pub decode: String => "name": "rule of switching and K_min",
        pub problem: usize => OutcomeRow,
        pub trace: String => "JSON": "every position of the response",
    }
}

measured!(DecodeRow, (String, usize), |row| (row.decode.clone(), row.problem), (None, row.problem));

rows! {
    /// One problem of the normal run that interventions fork.
    pub struct NormalRunRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub blocks: BlockOrigin => InterventionRow,
        pub problem: usize => OutcomeRow,
        pub correct: bool => OutcomeRow,
        pub answer: Option<String> => OutcomeRow,
        pub margin: Option<f64> => TeacherForcedRow,
        pub ended: bool => "true or false": "the response opens no block of the model's own",
        pub force_at: Option<usize> => "index from 0": "visible token at which a block was forced open",
        pub trace: String => DecodeRow,
        /// The latent inputs, `[[block, step, hex digits of its f32 values, lowest byte first], ...]` as JSON.
        pub states: String => "JSON": "latent inputs: block, step, bytes of the values",
    }
}

measured!(NormalRunRow, usize, |row| row.problem, (None, row.problem));
