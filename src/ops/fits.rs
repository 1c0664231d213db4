//! What a device has no place for, refused before any work.

use burn::tensor::{DType, Device};

use super::attention::FEW;
use super::fused;

/// A tensor that a device has no place for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} takes {bytes} bytes, and the device has at most {most} in one piece")]
pub struct TooLarge {
    what: String,
    bytes: u64,
    most: u64,
}

/// Asks before it is too late: beyond its largest buffer a GPU computes on without an error, and what comes out is wrong (Mesa's
/// software driver, 128 MiB).
///
/// # Errors
/// So many bytes, where the device has no place for them in one piece.
pub fn ensure_fits(what: impl FnOnce() -> String, bytes: u64, device: &Device) -> Result<(), TooLarge> {
    match fused::largest_buffer(device) {
        Some(most) if bytes > most => Err(TooLarge { what: what(), bytes, most }),
        _ => Ok(()),
    }
}

/// The same of attention's scores `[B, H, L, T]`. On the CPU they are never in memory.
///
/// # Errors
/// Scores that the device has no place for.
pub fn ensure_scores_fit([b, h, l, t]: [usize; 4], dtype: DType, device: &Device) -> Result<(), TooLarge> {
    if l <= FEW {
        return Ok(());
    }
    let what =
        || format!("attention of {l} positions to {t} in {b} rows (take shorter prompts, or fewer rows at a time)");
    ensure_fits(what, [b, h, l, t, dtype.size()].iter().map(|&n| n as u64).product(), device)
}
