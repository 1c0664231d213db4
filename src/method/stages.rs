//! The stages of a curriculum, laid out over the steps of a phase.

use serde::{Deserialize, Serialize};

use super::batches::steps_of;
use crate::recipe::Stage;

/// When an optimiser forgets its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reset {
    Never,
    /// Where a stage begins.
    Stage,
    /// Where a stage begins, and after each pass over the data in it.
    #[default]
    Epoch,
}

/// Which stage each step trains. Neighbours that train the same are one stage.
#[derive(Clone, Debug)]
pub struct Stages {
    stages: Vec<Stage>,
    /// The first step after each of them.
    ends: Vec<usize>,
    /// Steps of one pass over the data.
    per_epoch: usize,
}

impl Stages {
    /// `per_epoch` steps are one pass over the data.
    pub fn new(stages: &[Stage], per_epoch: usize) -> Self {
        let mut all = Self { stages: vec![], ends: vec![], per_epoch };
        for stage in stages {
            let end = all.steps() + steps_of(stage.steps, stage.epochs, per_epoch);
            match (all.stages.last(), all.ends.last_mut()) {
                (Some(before), Some(last)) if (before.k, before.c) == (stage.k, stage.c) => *last = end,
                _ => {
                    all.stages.push(stage.clone());
                    all.ends.push(end);
                }
            }
        }
        all
    }

    pub fn steps(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The stage of a step; of steps beyond the end, the last.
    pub fn at(&self, step: usize) -> Option<&Stage> {
        self.stages.get(self.ends.partition_point(|&end| end <= step)).or(self.last())
    }

    pub fn last(&self) -> Option<&Stage> {
        self.stages.last()
    }

    /// Steps before which an optimiser forgets its state: the first of every stage but the first, or of every pass over the data within
    /// a stage too.
    pub fn resets(&self, reset: Reset) -> Vec<usize> {
        let passes = match reset {
            Reset::Never => return vec![],
            Reset::Stage => false,
            Reset::Epoch => true,
        };
        let mut from = 0;
        let mut all = vec![];
        for &end in &self.ends {
            let within = if passes { self.per_epoch } else { end - from };
            all.extend((from..end).step_by(within.max(1)));
            from = end;
        }
        all.retain(|&step| step > 0);
        all
    }

    /// The first step of the last stage.
    pub fn last_from(&self) -> usize {
        self.ends.len().checked_sub(2).map_or(0, |before| self.ends[before])
    }

    /// `(steps done, stage)` at the end of every stage before the last.
    pub fn ends(&self) -> impl Iterator<Item = (usize, &Stage)> {
        let before = self.stages.len().saturating_sub(1);
        self.ends.iter().copied().zip(&self.stages).take(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_laid_out_in_order() {
        let stage = |k, steps, epochs| Stage { k, steps, epochs, c: None };
        let stages = Stages::new(&[stage(1, 2, 0.0), stage(1, 1, 0.0), stage(3, 0, 0.5)], 5);
        let k_at = |step| stages.at(step).map(|stage| stage.k);
        assert_eq!((0..stages.steps()).filter_map(k_at).collect::<Vec<_>>(), [1, 1, 1, 3, 3, 3]);
        let ends: Vec<_> = stages.ends().map(|(after, stage)| (after, stage.k)).collect();
        assert_eq!((stages.last().map(|s| s.k), stages.last_from(), ends), (Some(3), 3, vec![(3, 1)]));
        assert_eq!([Reset::Never, Reset::Stage].map(|reset| stages.resets(reset)), [vec![], vec![3]]);
        let passes = Stages::new(&[stage(1, 0, 2.0), stage(2, 7, 0.0)], 5);
        assert_eq!([Reset::Stage, Reset::Epoch].map(|reset| passes.resets(reset)), [vec![10], vec![5, 10, 15]]);
        let none = Stages::new(&[], 5);
        assert_eq!(
            (none.steps(), none.last(), none.at(0), none.last_from(), none.ends().count()),
            (0, None, None, 0, 0)
        );
    }

    #[test]
    fn the_same_text_in_fewer_latents_is_another_stage() {
        let stage = |c| Stage { k: 5, steps: 2, epochs: 0.0, c };
        let stages = Stages::new(&[stage(None), stage(Some(0.4)), stage(Some(0.2))], 5);
        let ends: Vec<_> = stages.ends().map(|(after, stage)| (after, stage.c)).collect();
        assert_eq!((ends, stages.last_from()), (vec![(2, None), (4, Some(0.4))], 4));
        assert_eq!([1, 2, 5].map(|step| stages.at(step).and_then(|stage| stage.c)), [None, Some(0.4), Some(0.2)]);
    }
}
