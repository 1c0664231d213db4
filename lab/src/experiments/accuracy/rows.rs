//! From one decode of the problems to rows: groups of it, and the whole of it against another.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::evaluation::{Outcome, Scores};
use crate::latent::Trace;
use crate::schema::AccuracyRow;
use crate::stats::by_problem::{mean, share as share_of};
use crate::stats::{Flips, LEVEL, accuracy};
use crate::study::Study;

/// One problem under one way of decoding.
type Case<'a> = (&'a Outcome, &'a Trace);

/// All problems under one way of decoding.
pub(crate) struct DecodeOutcomes<'a> {
    study: &'a Study,
    k_min: usize,
    cases: Vec<Case<'a>>,
}

impl<'a> DecodeOutcomes<'a> {
    /// The evaluation's own way.
    pub fn free(study: &'a Study) -> Result<Self> {
        let (scores, traces) = study.decoded()?;
        Ok(Self::of(study, study.recipe.evaluation.k_min, scores, traces))
    }

    pub fn of(study: &'a Study, k_min: usize, scores: &'a Scores, traces: &'a [Trace]) -> Self {
        Self { study, k_min, cases: scores.outcomes.iter().zip(traces).collect() }
    }

    /// All problems, by the model's own choice, by level and by subject.
    pub fn groups(&self) -> Result<Vec<AccuracyRow>> {
        let levels: BTreeSet<u8> = self.cases.iter().filter_map(|(o, _)| o.level).collect();
        let subjects: BTreeSet<&String> = self.cases.iter().filter_map(|(o, _)| o.subject.as_ref()).collect();
        let of = |name: String, belongs: &dyn Fn(&Outcome) -> bool| {
            (name, self.cases.iter().filter(|(o, _)| belongs(o)).copied().collect::<Vec<Case>>())
        };
        let mut groups = vec![of("all".into(), &|_| true)];
        groups.extend([of("switched".into(), &|o| o.switched), of("not_switched".into(), &|o| !o.switched)]);
        groups.extend(levels.iter().map(|level| of(format!("level:{level}"), &|o| o.level == Some(*level))));
        groups.extend(subjects.iter().map(|s| of(format!("subject:{s}"), &|o| o.subject.as_ref() == Some(*s))));
        groups.iter().filter(|(_, cases)| !cases.is_empty()).map(|(name, cases)| self.row(name, cases)).collect()
    }

    /// The whole of it, compared with `free` on the same problems.
    pub fn against(&self, name: &str, free: &DecodeOutcomes) -> Result<AccuracyRow> {
        let flips = Flips::count(&free.correct(), &self.correct())?;
        let (difference, lost, gained) = (Some(flips.change(LEVEL)?), Some(flips.lost), Some(flips.gained));
        Ok(AccuracyRow { difference, lost, gained, p_value: Some(flips.p_value()), ..self.whole(name)? })
    }

    /// The whole of it, without a comparison.
    pub fn whole(&self, name: &str) -> Result<AccuracyRow> {
        self.row(name, &self.cases)
    }

    /// Whether any problem has a block.
    pub fn switched(&self) -> bool {
        self.cases.iter().any(|(o, _)| o.switched)
    }

    fn correct(&self) -> Vec<bool> {
        self.cases.iter().map(|(o, _)| o.correct).collect()
    }

    fn row(&self, group: &str, cases: &[Case]) -> Result<AccuracyRow> {
        let share = |of: fn(&Outcome) -> bool| accuracy(&cases.iter().map(|(o, _)| of(o)).collect::<Vec<_>>());
        let accuracy_where = |switched: bool| {
            let some = cases.iter().filter(|(o, _)| o.switched == switched).map(|(o, _)| o.correct);
            Some(some.collect::<Vec<_>>()).filter(|some| !some.is_empty()).map(|some| accuracy(&some)).transpose()
        };
        let seed = self.study.seed;
        let mean_of = |of: fn(&Case) -> usize| {
            mean(seed, cases.iter().map(|case| (case.0.problem, of(case) as f64))).with_context(|| group.to_owned())
        };
        // Of every block, whether the cap ended it.
        let forced = |(o, t): &Case| t.blocks().iter().map(|block| (o.problem, block.forced)).collect::<Vec<_>>();
        let exits: Vec<(usize, bool)> = cases.iter().flat_map(forced).collect();
        Ok(AccuracyRow {
            identity: self.study.identity(cases.len()),
            group: group.to_owned(),
            k_min: self.k_min,
            k_cap: self.study.recipe.evaluation.k_cap.max(self.k_min),
            accuracy: share(|o| o.correct)?,
            latent_accuracy: accuracy_where(true)?,
            text_accuracy: accuracy_where(false)?,
            switch_rate: share(|o| o.switched)?,
            blocks: mean_of(|(_, t)| t.blocks().len())?,
            latent_calls: mean_of(|(o, _)| o.latent_calls)?,
            visible_tokens: mean_of(|(o, _)| o.visible_tokens)?,
            truncated: share(|o| o.truncated)?,
            forced_exits: share_of(seed, &exits)?,
            difference: None,
            lost: None,
            gained: None,
            p_value: None,
            p_holm: None,
        })
    }
}
