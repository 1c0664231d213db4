//! `r_corr`: 1 for the right answer, −1 for another.

use super::{Term, sign};

pub(super) const TERM: Term = Term { weight: 1.0, value: |facts, _| sign(facts.correct) };
