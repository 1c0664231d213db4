//! The learning rate of a phase.

/// Linear warm-up, then constant, or cosine from `cosine_from` to the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrSchedule {
    pub peak: f64,
    pub warmup: usize,
    /// First step of the cosine decay to zero; `steps` for none.
    pub cosine_from: usize,
    pub steps: usize,
}

impl LrSchedule {
    /// At a step counted from 0.
    pub fn at(&self, step: usize) -> f64 {
        let warm = if step < self.warmup { (step + 1) as f64 / self.warmup as f64 } else { 1.0 };
        if step < self.cosine_from || self.cosine_from >= self.steps {
            return self.peak * warm;
        }
        let share = (step - self.cosine_from) as f64 / (self.steps - self.cosine_from) as f64;
        self.peak * warm * 0.5 * (1.0 + (std::f64::consts::PI * share).cos())
    }

    /// At a step of a phase whose schedule begins anew before each of the steps `restarts`, ascending: every part warms up and decays
    /// over its own steps. Without restarts, [`Self::at`].
    pub fn restarted(&self, restarts: &[usize], step: usize) -> f64 {
        if restarts.is_empty() {
            return self.at(step);
        }
        let next = restarts.partition_point(|&restart| restart <= step);
        let from = next.checked_sub(1).map_or(0, |last| restarts[last]);
        let to = restarts.get(next).copied().unwrap_or(self.steps);
        Self { cosine_from: 0, steps: to - from, ..*self }.at(step - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_warms_up_holds_and_falls() {
        let s = LrSchedule { peak: 2.0, warmup: 4, cosine_from: 10, steps: 20 };
        assert!((s.at(0) - 0.5).abs() < 1e-12 && (s.at(3) - 2.0).abs() < 1e-12 && (s.at(9) - 2.0).abs() < 1e-12);
        assert!((s.at(15) - 1.0).abs() < 1e-12);
        assert!(s.at(19) < 0.06);
        let flat = LrSchedule { cosine_from: 20, ..s };
        assert!((flat.at(19) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_restarted_schedule_warms_up_and_falls_in_every_part() {
        let s = LrSchedule { peak: 2.0, warmup: 2, cosine_from: 10, steps: 20 };
        let first = LrSchedule { cosine_from: 0, steps: 8, ..s };
        let second = LrSchedule { cosine_from: 0, steps: 12, ..s };
        for step in 0..20 {
            let expected = if step < 8 { first.at(step) } else { second.at(step - 8) };
            assert_eq!(s.restarted(&[8], step), expected, "{step}");
            assert_eq!(s.restarted(&[], step), s.at(step), "{step}");
        }
        assert!(s.restarted(&[8], 7) < 0.1 && s.restarted(&[8], 9) > 1.9);
    }
}
