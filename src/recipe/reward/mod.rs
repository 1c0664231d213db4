//! The reward of a GRPO rollout (the paper's appendix, "Reward components"): a weighted sum of terms.
//!
//! To add a term: a file here with a constant `TERM`, and its name and key in the list below. Its weight is then `grpo.reward.KEY`
//! of a recipe, checked and listed with the others, and its mean the column `reward_KEY` of a run's steps.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::ranges::POSITIONS;
use super::ranges::Range::{self, Count, Finite, Positive, Typed};
use crate::latent::Trace;
use crate::latent::trace::PositionRole;

/// Inputs of a term.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub trace: &'a Trace,
    pub correct: bool,
    /// Every `<swi>` is closed by a `</swi>` before the next. A response without tags is well formed.
    pub well_formed: bool,
    pub used: bool,
}

impl<'a> Facts<'a> {
    pub fn new(trace: &'a Trace, correct: bool) -> Self {
        Self { trace, correct, well_formed: well_formed(trace), used: trace.switched() }
    }
}

fn well_formed(trace: &Trace) -> bool {
    let mut open = false;
    for position in &trace.positions {
        match position.kind {
            PositionRole::Swi if open => return false,
            PositionRole::Swi => open = true,
            PositionRole::SwiEndSampled | PositionRole::SwiEndForced if !open => return false,
            PositionRole::SwiEndSampled | PositionRole::SwiEndForced => open = false,
            PositionRole::Text | PositionRole::Latent => {}
        }
    }
    !open
}

/// One term of the reward.
pub struct RewardTerm {
    /// Default weight.
    pub weight: f64,
    /// Its unweighted value.
    pub value: fn(Facts, &Reward) -> f64,
}

macro_rules! terms {
    ($($term:ident: $key:literal),* $(,)?) => {
        $(mod $term;)*

        /// The terms by their keys, in the order of columns.
        pub const TERMS: &[(&str, RewardTerm)] = &[$(($key, $term::TERM)),*];

        settings! {
            /// Weights of the terms, and what else they depend on.
            pub struct Reward {
                $(#[serde(rename = $key)] pub $term: f64 = $term::TERM.weight,)*
                pub use_form: UseReward = UseReward::Signed,
                /// Visible tokens up to which `brevity` pays in full.
                pub t_lo: usize = 800,
                /// Visible tokens from which it pays nothing.
                pub t_hi: usize = 2000,
                /// Instead of `t_lo` and `t_hi`: both as multiples of the visible tokens that the checkpoint which GRPO starts from needs
                /// on average, so that the term can differ between answers whatever their length.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub lengths: Option<[f64; 2]> = None,
                /// Grade rollouts strictly ([`Grading::strict`](crate::grade::Grading)): evaluation grades as math-verify does, which
                /// pays for some wrong answers.
                pub strict: bool = true,
            }
        }

        impl Reward {
            pub(super) const RANGES: &'static [(&'static str, Range)] = &[
                $(($key, Finite),)*
                ("use_form", Typed),
                ("t_lo", Count(0, POSITIONS)),
                ("t_hi", Count(1, POSITIONS)),
                ("lengths[]", Positive),
                ("strict", Typed),
            ];

            fn weights(&self) -> [f64; TERMS.len()] {
                [$(self.$term),*]
            }
        }
    };
}

terms! {
    correct: "correct", format: "format", usage: "use", brevity: "brevity", switched: "switched",
}

/// How the term of use pays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UseReward {
    /// `r_corr · 1[well formed] · 1[used]` (the paper's formula).
    #[default]
    Signed,
    /// `1[correct] · 1[well formed] · 1[used]` (the paper's prose).
    Gated,
}

/// The unweighted terms of a rollout, in the order of [`TERMS`], and their weighted sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    pub each: [f64; TERMS.len()],
    pub total: f64,
}

impl Reward {
    /// The reward of a rollout, term by term.
    pub fn of(&self, facts: Facts) -> Terms {
        let mut terms = Terms::default();
        for (i, ((_, term), weight)) in TERMS.iter().zip(self.weights()).enumerate() {
            terms.each[i] = (term.value)(facts, self);
            terms.total += weight * terms.each[i];
        }
        terms
    }

    /// Key and weight of every term with a nonzero weight.
    pub(crate) fn weighted(&self) -> impl Iterator<Item = (&'static str, f64)> {
        TERMS.iter().map(|(key, _)| *key).zip(self.weights()).filter(|(_, weight)| *weight != 0.0)
    }

    /// Sets `t_lo` and `t_hi` in tokens, if `lengths` has them as multiples of this mean.
    #[must_use]
    pub(crate) fn scaled(&self, mean_tokens: f64) -> Self {
        let Some([lo, hi]) = self.lengths else { return self.clone() };
        let t_lo = (lo * mean_tokens).round() as usize;
        Self { t_lo, t_hi: ((hi * mean_tokens).round() as usize).max(t_lo + 1), ..self.clone() }
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.weights().iter().any(|weight| *weight != 0.0),
            "grpo.reward: every weight is 0, so that no rollout would be better than another"
        );
        if let Some([lo, hi]) = self.lengths {
            ensure!(lo < hi, "grpo.reward.lengths must ascend, found [{lo}, {hi}]");
            ensure!(
                self.brevity != 0.0,
                "grpo.reward.lengths belongs to the term `brevity`, whose weight is 0: set grpo.reward.brevity, or leave it out"
            );
        }
        let Self { t_lo, t_hi, .. } = self;
        ensure!(t_lo < t_hi, "grpo.reward.t_lo must be below grpo.reward.t_hi, found {t_lo} and {t_hi}");
        Ok(())
    }
}

fn sign(yes: bool) -> f64 {
    if yes { 1.0 } else { -1.0 }
}

fn one(yes: bool) -> f64 {
    if yes { 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latent::End;
    use crate::latent::trace::Position;

    /// A response of 15 visible tokens.
    fn trace(well_formed: bool, used: bool) -> Trace {
        let tags: &[PositionRole] = match (well_formed, used) {
            (true, true) => &[PositionRole::Swi, PositionRole::Latent, PositionRole::SwiEndSampled],
            (true, false) => &[],
            (false, true) => &[PositionRole::Swi, PositionRole::Latent],
            (false, false) => &[PositionRole::SwiEndForced],
        };
        let visible = tags.iter().filter(|kind| **kind != PositionRole::Latent).count();
        let kinds = std::iter::repeat_n(&PositionRole::Text, 15 - visible).chain(tags);
        let position = |kind: &PositionRole| Position::bare(0, *kind, None);
        Trace { problem: 0, rollout: 0, prompt: vec![], positions: kinds.map(position).collect(), end: End::Stop }
    }

    #[test]
    fn all_eight_combinations_by_hand() {
        let weights = Reward { brevity: 0.1, t_lo: 10, t_hi: 20, ..Reward::default() };
        let gated = Reward { use_form: UseReward::Gated, ..weights.clone() };
        // correct, well formed, used → signed total, gated total; 15 visible tokens: brevity ½ where it pays.
        let table = [
            (true, true, true, 1.0 + 0.1 + 0.1 + 0.05, 1.0 + 0.1 + 0.1 + 0.05),
            (true, true, false, 1.0 + 0.1, 1.0 + 0.1),
            (true, false, true, 1.0 - 0.1 + 0.05, 1.0 - 0.1 + 0.05),
            (true, false, false, 1.0 - 0.1, 1.0 - 0.1),
            (false, true, true, -1.0 + 0.1 - 0.1, -1.0 + 0.1),
            (false, true, false, -1.0 + 0.1, -1.0 + 0.1),
            (false, false, true, -1.0 - 0.1, -1.0 - 0.1),
            (false, false, false, -1.0 - 0.1, -1.0 - 0.1),
        ];
        for (correct, well_formed, used, signed, by_gate) in table {
            let trace = trace(well_formed, used);
            let facts = Facts::new(&trace, correct);
            assert_eq!((facts.well_formed, facts.used, trace.visible_tokens()), (well_formed, used, 15));
            assert!((weights.of(facts).total - signed).abs() < 1e-12, "{facts:?}");
            assert!((gated.of(facts).total - by_gate).abs() < 1e-12, "{facts:?} gated");
        }
    }
}
