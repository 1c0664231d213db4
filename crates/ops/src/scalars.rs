//! Reading numbers from a device.

use burn::tensor::{Tensor, Transaction};

/// The concatenated values of some tensors, in one read: on a GPU each read is a synchronisation.
///
/// # Panics
/// The device cannot be read.
pub fn scalars(of: impl IntoIterator<Item = Tensor<1>>) -> Vec<f64> {
    let all = of.into_iter().fold(Transaction::default(), |all, x| all.register(x.without_autodiff()));
    all.execute().iter().flat_map(|data| data.iter::<f64>().collect::<Vec<_>>()).collect()
}
