//! A frozen matrix on the model's device: on the host, or the same bytes on a GPU.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

#[cfg(all(feature = "gpu", not(feature = "fusion")))]
use super::cube::DeviceMatrix;
use super::stored::{Inputs, StoredMatrix};
use super::{fused, like_parts};

/// `[rows, width]`, as its file stores it.
#[derive(Clone, Debug)]
pub enum FrozenMatrix {
    Host(Arc<StoredMatrix>),
    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    Device(Arc<DeviceMatrix>),
}

/// Rows that are widened at a time if all are read.
const TOGETHER: usize = 1024;

impl FrozenMatrix {
    /// Copies a matrix to the model's device.
    ///
    /// # Errors
    /// A GPU that does not support it; a build without kernels for it.
    pub fn new(stored: StoredMatrix, device: &Device) -> Result<Self> {
        if super::is_cpu(device) {
            return Ok(Self::Host(Arc::new(stored)));
        }
        ensure!(stored.inputs() == Inputs::Exact, "inputs are rounded on the CPU only");
        #[cfg(all(feature = "gpu", not(feature = "fusion")))]
        return Ok(Self::Device(Arc::new(DeviceMatrix::new(stored, device)?)));
        #[cfg(not(all(feature = "gpu", not(feature = "fusion"))))]
        anyhow::bail!("{device:?}: this build supports weights in their file format on the CPU only")
    }

    pub fn rows(&self) -> usize {
        match self {
            Self::Host(stored) => stored.rows(),
            #[cfg(all(feature = "gpu", not(feature = "fusion")))]
            Self::Device(packed) => packed.rows(),
        }
    }

    pub fn width(&self) -> usize {
        match self {
            Self::Host(stored) => stored.width(),
            #[cfg(all(feature = "gpu", not(feature = "fusion")))]
            Self::Device(packed) => packed.width(),
        }
    }

    /// How inputs are rounded before the product.
    pub fn inputs(&self) -> Inputs {
        match self {
            Self::Host(stored) => stored.inputs(),
            #[cfg(all(feature = "gpu", not(feature = "fusion")))]
            Self::Device(_) => Inputs::Exact,
        }
    }

    /// x `[B, L, width]`, rounded as before the product. Values of 8 bits have no gradient.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn rounded(&self, x: Tensor<3>) -> Result<Tensor<3>> {
        Ok(match self.inputs() {
            Inputs::Exact => x,
            Inputs::Bf16 => x.cast(FloatDType::BF16).cast(FloatDType::F32),
            Inputs::Q8 => {
                let (shape, device) = (x.dims(), x.device());
                let values = x.try_into_vec_as::<f32>().map_err(|e| anyhow!("rounding inputs: {e:?}"))?;
                Tensor::from_data(TensorData::new(fused::rounded_to_q8(&values, shape[2]), shape), &device)
            }
        })
    }

    #[must_use]
    pub fn cut(self, rows: usize) -> Self {
        match self {
            Self::Host(stored) => Self::Host(Arc::new(Arc::unwrap_or_clone(stored).cut(rows))),
            #[cfg(all(feature = "gpu", not(feature = "fusion")))]
            Self::Device(packed) => Self::Device(Arc::new(Arc::unwrap_or_clone(packed).cut(rows))),
        }
    }

    pub fn with_rows(self, more: &[f32]) -> Result<Self> {
        match self {
            Self::Host(stored) => Ok(Self::Host(Arc::new(Arc::unwrap_or_clone(stored).with_rows(more)?))),
            #[cfg(all(feature = "gpu", not(feature = "fusion")))]
            Self::Device(packed) => Ok(Self::Device(Arc::new(Arc::unwrap_or_clone(packed).with_rows(more)?))),
        }
    }

    /// Consecutive rows as floats, `[n, width]`.
    pub fn range(&self, rows: Range<usize>, device: &Device) -> Tensor<2> {
        match self {
            Self::Host(stored) => {
                let shape = [rows.len(), stored.width()];
                Tensor::from_data(TensorData::new(stored.widened_range(rows), shape), device)
            }
            #[cfg(all(feature = "gpu", not(feature = "fusion")))]
            Self::Device(packed) => on(packed.range(rows), device),
        }
    }

    /// The rows named, as floats, `[n, width]`.
    pub fn select(&self, rows: &[usize], device: &Device) -> Result<Tensor<2>> {
        if let Some(row) = rows.iter().find(|row| **row >= self.rows()) {
            anyhow::bail!("row {row} of a matrix of {} rows", self.rows());
        }
        match self {
            Self::Host(stored) => {
                let shape = [rows.len(), stored.width()];
                Ok(Tensor::from_data(TensorData::new(stored.widened(rows)?, shape), device))
            }
            #[cfg(all(feature = "gpu", not(feature = "fusion")))]
            Self::Device(packed) => {
                let ids: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
                let ids = Tensor::from_data(TensorData::new(ids, [rows.len()]), (device, burn::tensor::DType::U32));
                Ok(on(packed.select(ids)?, device))
            }
        }
    }

    /// Rows by their numbers on the device, all below the number of rows.
    pub fn select_on_device(&self, rows: Tensor<1, Int>) -> Result<Tensor<2>> {
        match self {
            Self::Host(_) => anyhow::bail!("rows of a matrix on the host by numbers on a device: {:?}", rows.device()),
            #[cfg(all(feature = "gpu", not(feature = "fusion")))]
            Self::Device(packed) => packed.select(rows),
        }
    }

    /// Whether [`Self::select_on_device`] works.
    pub fn is_on_device(&self) -> bool {
        !matches!(self, Self::Host(_))
    }

    /// Standard deviation of all its values.
    pub fn spread(&self) -> f32 {
        let (n, mut sum, mut squares) = (self.rows() as f64 * self.width() as f64, 0.0, 0.0);
        for rows in like_parts(self.rows(), TOGETHER) {
            match self {
                Self::Host(stored) => {
                    for x in stored.widened_range(rows) {
                        let x = f64::from(x);
                        (sum, squares) = (sum + x, squares + x * x);
                    }
                }
                #[cfg(all(feature = "gpu", not(feature = "fusion")))]
                Self::Device(packed) => {
                    let x = packed.range(rows);
                    sum += f64::from(x.clone().sum().into_scalar::<f32>());
                    squares += f64::from(x.square().sum().into_scalar::<f32>());
                }
            }
        }
        ((squares - sum * sum / n) / (n - 1.0)).max(0.0).sqrt() as f32
    }

    /// The matrix on the host.
    ///
    /// # Panics
    /// The matrix is on a GPU. As in Burn, there is then no product with x on the CPU.
    pub(super) fn host(&self) -> &StoredMatrix {
        match self {
            Self::Host(stored) => stored,
            #[cfg(all(feature = "gpu", not(feature = "fusion")))]
            Self::Device(_) => panic!("a product of x on the CPU with a matrix on a GPU"),
        }
    }

    /// The matrix on a GPU.
    ///
    /// # Panics
    /// The matrix on the host.
    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    pub(super) fn on_device(&self) -> &DeviceMatrix {
        match self {
            Self::Host(_) => panic!("a product of x on a GPU with a matrix on the host"),
            Self::Device(packed) => packed,
        }
    }
}

/// A kernel's output as a tensor on the model's device.
#[cfg(all(feature = "gpu", not(feature = "fusion")))]
fn on(x: Tensor<2>, device: &Device) -> Tensor<2> {
    if device.is_autodiff() { x.autodiff() } else { x }
}
