//! The mean of vectors of one length. Knows numbers only.

/// Mean of vectors, summed in f64 in the order of the calls.
#[derive(Clone, Debug, Default)]
pub struct MeanVector {
    sum: Vec<f64>,
    /// Number of vectors.
    pub n: usize,
}

impl MeanVector {
    pub fn add<'x>(&mut self, x: impl IntoIterator<Item = &'x f32, IntoIter: ExactSizeIterator>) {
        let x = x.into_iter();
        self.sum.resize(x.len(), 0.0);
        self.sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(*x));
        self.n += 1;
    }

    pub fn mean(&self) -> impl Iterator<Item = f64> {
        self.sum.iter().map(|x| x / self.n as f64)
    }

    pub fn mean_f32(&self) -> Vec<f32> {
        self.mean().map(|x| x as f32).collect()
    }
}
