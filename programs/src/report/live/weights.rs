//! The weights of a checkpoint as text in a page: 32-bit floats, their bytes in four planes, gzip, base64.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use base64::prelude::{BASE64_STANDARD as STANDARD, Engine};
use flate2::Compression;
use flate2::write::GzEncoder;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use switchyard::guard::{MOST_FILE, read_bytes};

/// Whether every bit is stored.
#[derive(Clone, Copy)]
pub(super) enum Exact {
    Yes,
    /// To 13 bits of mantissa: a relative error of at most 2⁻¹⁴. Needs two thirds of the space.
    Rounded,
}

impl Exact {
    /// Note for the reader.
    pub fn note(self) -> &'static str {
        match self {
            Exact::Yes => "",
            Exact::Rounded => ", rounded to 13 bits of mantissa",
        }
    }

    fn round(self, value: f32) -> f32 {
        const DROPPED: u32 = 23 - 13;
        match self {
            Exact::Rounded if value.is_finite() => {
                f32::from_bits((value.to_bits() + (1 << (DROPPED - 1))) >> DROPPED << DROPPED)
            }
            _ => value,
        }
    }
}

/// Weights in the format of `decoder.js`.
pub(super) struct PageWeights {
    /// `[[name, shape], …]` in the order of the numbers.
    pub index: Value,
    pub base64: String,
}

/// Number of values in a file; an estimate if the file is too long for `most`.
pub(super) fn count(file: &Path, most: usize) -> Result<usize> {
    let long = std::fs::metadata(file).map_or(0, |about| about.len() as usize) / size_of::<f32>();
    if long > 2 * most {
        return Ok(long); // not read: it may be many gigabytes
    }
    let bytes = read(file)?;
    Ok(opened(file, &bytes)?.tensors().iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum())
}

pub(super) fn pack(file: &Path, exact: Exact) -> Result<PageWeights> {
    let bytes = read(file)?;
    let (mut index, mut floats) = (vec![], vec![]);
    for (name, view) in opened(file, &bytes)?.tensors() {
        let values = view.data();
        let wide =
            |of: fn(&[u8]) -> f32, size| values.chunks_exact(size).map(of).map(|x| exact.round(x)).collect::<Vec<_>>();
        floats.extend(match view.dtype() {
            Dtype::F32 => wide(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]), 4),
            Dtype::F16 => wide(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32(), 2),
            Dtype::BF16 => wide(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32(), 2),
            other => bail!("{}: `{name}` has {other:?}, expected floats of 16 or 32 bits", file.display()),
        });
        index.push(json!([name, view.shape()]));
    }
    let planes: Vec<u8> = (0..4).flat_map(|plane| floats.iter().map(move |x| x.to_le_bytes()[plane])).collect();
    Ok(PageWeights { index: index.into(), base64: zipped(&planes)? })
}

/// Gzip in base64.
pub(in crate::report) fn zipped(bytes: &[u8]) -> Result<String> {
    let mut zip = GzEncoder::new(vec![], Compression::best());
    zip.write_all(bytes)?;
    Ok(STANDARD.encode(zip.finish()?))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    read_bytes(file, MOST_FILE).with_context(|| format!("{}: cannot read", file.display()))
}

fn opened<'b>(file: &Path, bytes: &'b [u8]) -> Result<SafeTensors<'b>> {
    SafeTensors::deserialize(bytes).with_context(|| format!("{}: not a safetensors file", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_thirteen_bits_and_what_is_not_finite() {
        for value in [1.0_f32, -0.1, 3.3e-5, 1.5e30] {
            let rounded = Exact::Rounded.round(value);
            assert!(
                rounded.to_bits().trailing_zeros() >= 10 && (rounded / value - 1.0).abs() <= 2_f32.powi(-14),
                "{value}"
            );
            assert_eq!(Exact::Yes.round(value).to_bits(), value.to_bits());
        }
        assert!(Exact::Rounded.round(f32::NAN).is_nan() && Exact::Rounded.round(f32::INFINITY).is_infinite());
    }
}
