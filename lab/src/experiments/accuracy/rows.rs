//! From one decode of the problems to rows: groups of it, and the whole of it against another.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::evaluation::{Outcome, Scores};
use crate::latent::Trace;
use crate::schema::AccuracyRow;
use crate::stats::by_problem::{mean, share as share_of};
use crate::stats::{Estimate, Flips, LEVEL, wilson};
use crate::study::Study;

/// One problem under one way of decoding.
pub struct Case<'a> {
    outcome: &'a Outcome,
    trace: &'a Trace,
}

/// All problems under one way of decoding.
pub(crate) struct DecodeOutcomes<'a> {
    study: &'a Study,
    k_min: usize,
    pub cases: Vec<Case<'a>>,
}

impl<'a> DecodeOutcomes<'a> {
    /// The evaluation's own way.
    pub fn free(study: &'a Study) -> Result<Self> {
        let (scores, traces) = study.decoded()?;
        Ok(Self::of(study, study.recipe.evaluation.k_min, scores, traces))
    }

    pub fn of(study: &'a Study, k_min: usize, scores: &'a Scores, traces: &'a [Trace]) -> Self {
        let cases = scores.outcomes.iter().zip(traces).map(|(outcome, trace)| Case { outcome, trace });
        Self { study, k_min, cases: cases.collect() }
    }

    /// All problems, by the model's own choice, by level and by subject.
    pub fn groups(&self) -> Result<Vec<AccuracyRow>> {
        let levels: BTreeSet<u8> = self.cases.iter().filter_map(|c| c.outcome.level).collect();
        let subjects: BTreeSet<&String> = self.cases.iter().filter_map(|c| c.outcome.subject.as_ref()).collect();
        let of = |name: String, belongs: &dyn Fn(&Outcome) -> bool| {
            (name, self.cases.iter().filter(|c| belongs(c.outcome)).collect::<Vec<&Case>>())
        };
        let mut groups = vec![of("all".into(), &|_| true)];
        groups.extend([of("switched".into(), &|o| o.switched), of("not_switched".into(), &|o| !o.switched)]);
        groups.extend(levels.iter().map(|level| of(format!("level:{level}"), &|o| o.level == Some(*level))));
        groups.extend(subjects.iter().map(|s| of(format!("subject:{s}"), &|o| o.subject.as_ref() == Some(*s))));
        groups.iter().filter(|(_, cases)| !cases.is_empty()).map(|(name, cases)| self.row(name, cases)).collect()
    }

    /// The whole of it, compared with `free` on the same problems.
    pub fn against(&self, name: &str, free: &DecodeOutcomes) -> Result<AccuracyRow> {
        let (before, after) = (free.correct(), self.correct());
        let flips = Flips::count(&before, &after)?;
        let difference = Some(flips.change(LEVEL)?);
        let row = self.row(name, &self.cases.iter().collect::<Vec<_>>())?;
        let (lost, gained) = (Some(flips.lost), Some(flips.gained));
        Ok(AccuracyRow { difference, lost, gained, p_value: Some(flips.p_value()), ..row })
    }

    /// Whether any problem has a block.
    pub fn switched(&self) -> bool {
        self.cases.iter().any(|c| c.outcome.switched)
    }

    fn correct(&self) -> Vec<bool> {
        self.cases.iter().map(|c| c.outcome.correct).collect()
    }

    /// One group, without a comparison.
    pub fn row(&self, group: &str, cases: &[&Case]) -> Result<AccuracyRow> {
        let share = |of: &dyn Fn(&Case) -> bool| wilson(cases.iter().filter(|c| of(c)).count(), cases.len(), LEVEL);
        let accuracy_where = |switched: bool| -> Result<Option<Estimate>> {
            let some: Vec<_> = cases.iter().filter(|c| c.outcome.switched == switched).collect();
            let right = some.iter().filter(|c| c.outcome.correct).count();
            if some.is_empty() { Ok(None) } else { wilson(right, some.len(), LEVEL).map(Some) }
        };
        let seed = self.study.seed;
        let mean_of = |of: &dyn Fn(&Case) -> usize| {
            mean(seed, cases.iter().map(|c| (c.outcome.problem, of(c) as f64))).with_context(|| group.to_owned())
        };
        // Of every block, whether the cap ended it.
        let forced =
            |c: &&Case| c.trace.blocks().iter().map(|block| (c.outcome.problem, block.forced)).collect::<Vec<_>>();
        let exits: Vec<(usize, bool)> = cases.iter().flat_map(forced).collect();
        Ok(AccuracyRow {
            identity: self.study.identity(cases.len()),
            group: group.to_owned(),
            k_min: self.k_min,
            k_cap: self.study.recipe.evaluation.k_cap.max(self.k_min),
            accuracy: share(&|c| c.outcome.correct)?,
            latent_accuracy: accuracy_where(true)?,
            text_accuracy: accuracy_where(false)?,
            switch_rate: share(&|c| c.outcome.switched)?,
            blocks: mean_of(&|c| c.trace.blocks().len())?,
            latent_calls: mean_of(&|c| c.outcome.latent_calls)?,
            visible_tokens: mean_of(&|c| c.outcome.visible_tokens)?,
            truncated: share(&|c| c.outcome.truncated)?,
            forced_exits: share_of(seed, &exits)?,
            difference: None,
            lost: None,
            gained: None,
            p_value: None,
            p_holm: None,
        })
    }
}
