//! What a device has no place for, refused before any work.

use burn::tensor::{DType, Device};

use super::fused;

/// A tensor that a device has no place for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} needs {bytes} bytes; the device's largest buffer has {most}")]
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

/// Refuses attention that does not fit: its mask `[B, 1, L, T]`, and its scores `[B, H, L, T]` where a hook is to see them. Otherwise these are never
/// in memory as a whole.
///
/// # Errors
/// A mask, or scores, that the device has no place for.
pub fn ensure_attention_fits(
    [b, h, l, t]: [usize; 4],
    seen: bool,
    dtype: DType,
    device: &Device,
) -> Result<(), TooLarge> {
    let what = || {
        let what = if seen { "what a hook sees of attention" } else { "the mask of attention" };
        format!("{what} of {l} positions to {t} in {b} rows (take shorter prompts, or fewer rows at a time)")
    };
    let heads = if seen { h } else { 1 };
    ensure_fits(what, [b, heads, l, t, dtype.size()].iter().map(|&n| n as u64).product(), device)
}
