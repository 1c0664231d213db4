//! A PNG file from RGB pixels (PNG specification, 3rd edition). Knows no shapes.
//!
//! Implemented here because plotters encodes only to a path, and files that are written atomically need the bytes in memory.

use std::io::Write;

use anyhow::{Result, ensure};
use flate2::{Compression, Crc, write::ZlibEncoder};

/// Encodes `rgb` (8 bits, rows from the top) at `width` × `height`.
pub(super) fn encode(rgb: &[u8], width: usize, height: usize) -> Result<Vec<u8>> {
    ensure!(rgb.len() == 3 * width * height, "{} bytes for {width} × {height} RGB pixels", rgb.len());
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    for (y, row) in rgb.chunks(3 * width).enumerate() {
        // Filter "up" against the row above: flat areas and vertical lines become zeros.
        packed.write_all(&[if y == 0 { 0 } else { 2 }])?;
        let above = if y == 0 { None } else { Some(&rgb[3 * width * (y - 1)..]) };
        let line: Vec<u8> = row.iter().enumerate().map(|(i, &v)| v.wrapping_sub(above.map_or(0, |a| a[i]))).collect();
        packed.write_all(&line)?;
    }
    let mut header = Vec::new();
    header.extend((width as u32).to_be_bytes());
    header.extend((height as u32).to_be_bytes());
    header.extend([8, 2, 0, 0, 0]); // 8 bits, RGB, deflate, adaptive filters, not interlaced
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut file, b"IHDR", &header);
    chunk(&mut file, b"IDAT", &packed.finish()?);
    chunk(&mut file, b"IEND", &[]);
    Ok(file)
}

fn chunk(file: &mut Vec<u8>, kind: &[u8; 4], body: &[u8]) {
    file.extend((body.len() as u32).to_be_bytes());
    file.extend(kind);
    file.extend(body);
    let mut crc = Crc::new();
    crc.update(kind);
    crc.update(body);
    file.extend(crc.sum().to_be_bytes());
}

/// Halves both sides by averaging 2 × 2 pixels.
pub(super) fn halve(rgb: &[u8], width: usize, height: usize) -> Vec<u8> {
    let (w, h) = (width / 2, height / 2);
    let mut out = Vec::with_capacity(3 * w * h);
    for y in 0..h {
        for x in 0..w {
            for c in 0..3 {
                let at = |dx: usize, dy: usize| u32::from(rgb[3 * ((2 * y + dy) * width + 2 * x + dx) + c]);
                out.push(((at(0, 0) + at(1, 0) + at(0, 1) + at(1, 1) + 2) / 4) as u8);
            }
        }
    }
    out
}
