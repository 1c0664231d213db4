//! Inputs of estimates before a run: free memory of a device, and its time for one matrix product.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::{Device, FloatDType, Tensor};

use super::{is_cpu, name};
use crate::ops;

/// Environment variable with the usable memory in GB (10^9 bytes), instead of the free memory.
pub const MEMORY: &str = "SWITCHYARD_MEMORY_GB";

/// Usable bytes of a device: those of [`MEMORY`], else its free memory; `None` if unknown.
///
/// # Errors
/// A value of [`MEMORY`] that is not a number above 0.
pub fn free_memory(device: &Device) -> Result<Option<u64>> {
    let Some(text) = std::env::var(MEMORY).ok().filter(|text| !text.trim().is_empty()) else {
        return Ok(if is_cpu(device) { ops::free_memory() } else { free_on_gpu(device) });
    };
    let named = text.trim().parse::<f64>().ok().filter(|gigabytes| *gigabytes > 0.0);
    let named = named.with_context(|| format!("{MEMORY}={text}: expected gigabytes, a number above 0 such as 24"))?;
    Ok(Some((named * 1e9) as u64))
}

fn free_on_gpu(device: &Device) -> Option<u64> {
    let number = name(&device.clone().inner()).rsplit(':').next()?.parse::<usize>().ok()?;
    let asked = ["--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", &number.to_string()];
    let output = Command::new("nvidia-smi").args(asked).output().ok().filter(|output| output.status.success())?;
    let mebibytes: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().ok()?;
    Some(mebibytes << 20)
}

/// Seconds of one product of `rows` × `width` and `width` × `width`, per weight: a lower bound for a forward of that many rows, per weight.
///
/// # Errors
/// A device that cannot compute it.
pub fn seconds_per_weight(rows: usize, width: usize, dtype: FloatDType, device: &Device) -> Result<f64> {
    const ENOUGH: f64 = 0.03;
    let device = device.clone().inner();
    let of = |rows: usize| Tensor::<2>::ones([rows, width], &device).cast(dtype);
    let (x, weights) = (of(rows), of(width));
    let product = |times: usize| -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..times {
            drop(ops::matmul(x.clone(), weights.clone()));
        }
        device.sync().context("timing a product")?;
        Ok(begun.elapsed().as_secs_f64())
    };
    product(1)?;
    let (mut times, mut seconds) = (1, product(1)?);
    while seconds < ENOUGH && times < 1 << 20 {
        times *= 4;
        seconds = product(times)?;
    }
    Ok(seconds / (times * width * width) as f64)
}

/// Bytes in readable units.
pub fn gigabytes(bytes: u64) -> String {
    if bytes < 100_000_000 { format!("{:.1} MB", bytes as f64 / 1e6) } else { format!("{:.1} GB", bytes as f64 / 1e9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_takes_time_and_bytes_are_rounded() {
        let seconds =
            seconds_per_weight(4, 64, FloatDType::F32, &crate::machine::Machine::default().device).expect("a product");
        assert!(seconds > 0.0 && seconds < 1e-3, "{seconds}");
        assert_eq!([gigabytes(16_400_000_000), gigabytes(2_000_000)], ["16.4 GB", "2.0 MB"]);
    }
}
