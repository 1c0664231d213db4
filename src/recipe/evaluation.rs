//! Held-out evaluation, and the intervals of checkpoints.

use super::check::MOST_ROWS;
use super::ranges::Range::{Count, Typed};
use super::ranges::{BATCH, POSITIONS, STEPS};

settings! {
    /// Held-out evaluation after each phase: greedy.
    pub struct Evaluation {
        pub problems: usize = 500 => Count(1, MOST_ROWS),
        pub k_min: usize = 4 => Count(0, POSITIONS),
        pub k_cap: usize = 16 => Count(1, POSITIONS),
        pub max_new_tokens: usize = 256 => Count(1, POSITIONS),
        /// Problems that decode together; fewer where their keys and values do not fit into memory.
        pub batch: usize = 100 => Count(1, BATCH),
        /// Evaluate each stage of a curriculum too.
        pub stages: bool = true => Typed,
        /// Evaluate phases with blocks a second time with blocks suppressed.
        pub text_only: bool = true => Typed,
    }
}

settings! {
    /// What a run leaves behind, and how often it can be resumed from.
    pub struct CheckpointEvery {
        /// Optimiser steps.
        pub every: usize = 100 => Count(1, STEPS),
        /// Where LoRA factors are trained: write whole models, not adapters over the pretrained one.
        pub whole: bool = false => Typed,
    }
}
