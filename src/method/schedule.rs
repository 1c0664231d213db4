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
}
