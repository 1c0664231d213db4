//! The stages of a curriculum, laid out over the steps of a phase.

use crate::recipe::Stage;

/// Which stage each step trains.
#[derive(Clone, Debug)]
pub struct Stages(Vec<usize>);

impl Stages {
    /// `per_epoch` steps are one pass over the data.
    pub fn new(stages: &[Stage], per_epoch: usize) -> Self {
        let steps = |stage: &Stage| stage.steps.max((stage.epochs * per_epoch as f64).ceil() as usize);
        Self(stages.iter().flat_map(|stage| std::iter::repeat_n(stage.k, steps(stage))).collect())
    }

    pub fn steps(&self) -> usize {
        self.0.len()
    }

    /// The stage of a step.
    pub fn at(&self, step: usize) -> usize {
        self.0[step]
    }

    /// The last stage; 0 without one.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(0)
    }

    /// The first step of the last stage.
    pub fn last_from(&self) -> usize {
        self.0.iter().rposition(|&k| k != self.last()).map_or(0, |i| i + 1)
    }

    /// `(steps done, stage)` at the end of every stage before the last.
    pub fn ends(&self) -> impl Iterator<Item = (usize, usize)> {
        (1..self.steps()).filter(|&i| self.0[i] != self.0[i - 1]).map(|i| (i, self.0[i - 1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_laid_out_in_order() {
        let stage = |k, steps, epochs| Stage { k, steps, epochs };
        let stages = Stages::new(&[stage(1, 2, 0.0), stage(1, 1, 0.0), stage(3, 0, 0.5)], 5);
        assert_eq!((0..stages.steps()).map(|step| stages.at(step)).collect::<Vec<_>>(), [1, 1, 1, 3, 3, 3]);
        assert_eq!((stages.last(), stages.last_from(), stages.ends().collect::<Vec<_>>()), (3, 3, vec![(3, 1)]));
        let none = Stages::new(&[], 5);
        assert_eq!((none.steps(), none.last(), none.last_from(), none.ends().count()), (0, 0, 0, 0));
    }
}
