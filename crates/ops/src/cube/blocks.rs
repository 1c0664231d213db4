//! Kernels that read rows in their file format, in words of 32 bits: the layouts of [`Format`], four values at a time. All blocks and rows
//! begin at an even byte. A GPU may flush floats below 1.2e-38 to zero.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use crate::stored::Format;

/// Values that are read together: they share a word and a scale.
pub(super) const FOUR: usize = 4;

/// Units that share a row of the matrix in a product.
pub(super) const LANES: usize = 32;

/// Padding words after the last row, so that vector reads stay inside the buffer.
pub(super) const SPARE: usize = 4;

type Four = Vector<f32, Const<FOUR>>;

/// The 8 bits at a byte.
#[cube]
fn byte(words: &Tensor<u32>, at: usize) -> u32 {
    (words[at / 4] >> (u32::cast_from(at % 4) * 8)) & 0xff
}

/// The 16 bits at an even byte.
#[cube]
fn pair(words: &Tensor<u32>, at: usize) -> u32 {
    (words[at / 4] >> (u32::cast_from(at % 4) * 8)) & 0xffff
}

/// Two adjacent f16, aligned to a word.
#[cube]
fn two_halves(words: &Tensor<u32>, at: usize) -> (f32, f32) {
    let both = words[at / 4];
    (half_of(both & 0xffff), half_of(both >> 16))
}

/// The 32 bits at an even byte; if all blocks are whole words, `words[at / 4]` is one load less.
#[cube]
fn word(words: &Tensor<u32>, at: usize) -> u32 {
    let mut out = words[at / 4];
    if at % 4 == 2 {
        out = (out >> 16) | (words[at / 4 + 1] << 16);
    }
    out
}

/// A finite f16 from its bits. With exponent 0 it is computed as a multiple of 2⁻²⁴: its bits as a float would be denormal, which GPUs
/// flush to zero.
#[cube]
fn half_of(bits: u32) -> f32 {
    let (exponent, mantissa) = ((bits >> 10) & 0x1f, bits & 0x3ff);
    let size = select(
        exponent == 0,
        f32::cast_from(mantissa) * 5.960_464_5e-8,
        f32::reinterpret(((exponent + 112) << 23) | (mantissa << 13)),
    );
    select(bits & 0x8000 == 0, size, -size)
}

#[cube]
fn half(words: &Tensor<u32>, at: usize) -> f32 {
    half_of(pair(words, at))
}

/// A signed byte as a float.
#[cube]
fn signed(bits: u32) -> f32 {
    f32::cast_from(bits ^ 0x80) - 128.0
}

/// `(quant − less) · scale + offset` of four quants: four bits of each byte of `low` from bit `shift` on, and above them the two lowest of
/// the same byte of `high`.
#[cube]
fn scaled(low: u32, shift: u32, high: u32, less: f32, scale: f32, offset: f32) -> Four {
    let mut out = Four::empty();
    #[unroll]
    for j in 0..FOUR {
        let by = comptime!(8 * j as u32);
        let quant = ((low >> (shift + by)) & 15) | (((high >> by) & 3) << 4);
        out.insert(j, (f32::cast_from(quant) - less) * scale + offset);
    }
    out
}

/// The fifth bits of four values, from bit `first` on, each as the lowest bit of a byte.
#[cube]
fn spread(bits: u32, first: u32) -> u32 {
    let some = bits >> first;
    (some & 1) | ((some & 2) << 7) | ((some & 4) << 14) | ((some & 8) << 21)
}

/// Scale and offset of a piece of `Q4_K` and `Q5_K`, whose block begins at a byte.
#[cube]
fn scale_and_offset(words: &Tensor<u32>, block: usize, piece: usize) -> (f32, f32) {
    let packed = block + 4;
    let mut scale = byte(words, packed + piece % 4) & 63;
    let mut offset = byte(words, packed + 4 + piece % 4) & 63;
    if piece >= 4 {
        let low = byte(words, packed + 4 + piece);
        scale = (low & 15) | ((byte(words, packed + piece - 4) >> 6) << 4);
        offset = (low >> 4) | ((byte(words, packed + piece) >> 6) << 4);
    }
    let (of_scales, of_offsets) = two_halves(words, block);
    (of_scales * f32::cast_from(scale), -(of_offsets * f32::cast_from(offset)))
}

/// Values `i .. i + 4` of the row that begins at byte `row`; `i` is a multiple of four. Past the last value of a row of floats it reads the
/// following memory.
#[cube]
fn four(words: &Tensor<u32>, row: usize, i: usize, #[comptime] format: Format) -> Four {
    // Formats with blocks of 32 values, and those with blocks of 256: eight pieces of 32.
    let within = i % 32;
    let piece = i / 32 % 8;
    // Two halves of a block are in the same bytes.
    let (nibble, shift) = (within % 16, u32::cast_from(within / 16) * 4);
    let shared = piece / 2 * 32 + within;
    let of_shared = u32::cast_from(piece % 2) * 4;
    match comptime!(format) {
        Format::F32 => {
            let mut out = Four::empty();
            #[unroll]
            for j in 0..FOUR {
                out.insert(j, f32::reinterpret(words[row / 4 + i + j]));
            }
            out
        }
        Format::F16 => {
            let mut out = Four::empty();
            #[unroll]
            for j in 0..FOUR {
                out.insert(j, half(words, row + 2 * (i + j)));
            }
            out
        }
        Format::Bf16 => {
            let mut out = Four::empty();
            #[unroll]
            for j in 0..FOUR {
                out.insert(j, f32::reinterpret(pair(words, row + 2 * (i + j)) << 16));
            }
            out
        }
        Format::Q8_0 => {
            let block = row + i / 32 * 34;
            let scale = half(words, block);
            let quants = word(words, block + 2 + within);
            let mut out = Four::empty();
            #[unroll]
            for j in 0..FOUR {
                let by = comptime!(8 * j as u32);
                out.insert(j, signed((quants >> by) & 0xff) * scale);
            }
            out
        }
        Format::Q4_0 => {
            let block = row + i / 32 * 18;
            scaled(word(words, block + 2 + nibble), shift, 0, 8.0, half(words, block), 0.0)
        }
        Format::Q4_1 => {
            let block = row + i / 32 * 20;
            let (scale, offset) = two_halves(words, block);
            scaled(words[(block + 4 + nibble) / 4], shift, 0, 0.0, scale, offset)
        }
        Format::Q5_0 => {
            let block = row + i / 32 * 22;
            let high = spread(word(words, block + 2), u32::cast_from(within));
            scaled(word(words, block + 6 + nibble), shift, high, 16.0, half(words, block), 0.0)
        }
        Format::Q5_1 => {
            let block = row + i / 32 * 24;
            let high = spread(words[(block + 4) / 4], u32::cast_from(within));
            let (scale, offset) = two_halves(words, block);
            scaled(words[(block + 8 + nibble) / 4], shift, high, 0.0, scale, offset)
        }
        Format::Q4_K => {
            let block = row + i / 256 * 144;
            let (scale, offset) = scale_and_offset(words, block, piece);
            scaled(words[(block + 16 + shared) / 4], of_shared, 0, 0.0, scale, offset)
        }
        Format::Q5_K => {
            let block = row + i / 256 * 176;
            let (scale, offset) = scale_and_offset(words, block, piece);
            let high = (words[(block + 16 + within) / 4] >> u32::cast_from(piece)) & 0x0101_0101;
            scaled(words[(block + 48 + shared) / 4], of_shared, high, 0.0, scale, offset)
        }
        Format::Q6_K => {
            let block = row + i / 256 * 210;
            let (quarter, half_block) = (piece % 4, piece / 4 * 32);
            let low = word(words, block + 2 * half_block + quarter % 2 * 32 + within);
            let high = word(words, block + 128 + half_block + within) >> (u32::cast_from(quarter) * 2);
            let small = signed(byte(words, block + 192 + 2 * piece + within / 16));
            let scale = half(words, block + 208) * small;
            scaled(low, u32::cast_from(quarter / 2) * 4, high, 32.0, scale, 0.0)
        }
    }
}

/// Rows as floats `[rows, width]`, four values per unit: rows `first ..` of the part or, if `ids` are given, those of its rows that `ids`
/// name from `first` on.
#[cube(launch, address_type = "dynamic")]
pub(super) fn widen(
    words: &Tensor<u32>,
    ids: &Tensor<u32>,
    out: &mut Tensor<f32>,
    rows: usize,
    first: usize,
    held: usize,
    width: usize,
    row_bytes: usize,
    #[comptime] named: bool,
    #[comptime] format: Format,
) {
    let across = width.div_ceil(FOUR);
    let row = ABSOLUTE_POS / across;
    if row >= rows {
        terminate!();
    }
    let i = ABSOLUTE_POS % across * FOUR;
    let mut stored = first + row;
    if named {
        let id = usize::cast_from(ids[row * ids.stride(0)]);
        if id < first || id >= first + held {
            terminate!();
        }
        stored = id - first;
    }
    let values = four(words, stored * row_bytes, i, format);
    #[unroll]
    for j in 0..FOUR {
        if i + j < width {
            // On CUDA rows need not be contiguous.
            let to = row * out.stride(0) + i + j;
            out[to] = values.extract(j);
        }
    }
}

/// `out[m, start + n] = x[m] · w[n]`: [`LANES`] units per row of the matrix, `of` rows of x per cube. The width is a multiple of four, and rows
/// of x are contiguous.
#[cube(launch, address_type = "dynamic")]
pub(super) fn few(
    x: &Tensor<Four>,
    words: &Tensor<u32>,
    out: &mut Tensor<f32>,
    rows: usize,
    held: usize,
    start: usize,
    width: usize,
    row_bytes: usize,
    #[comptime] of: usize,
    #[comptime] units: usize,
    #[comptime] format: Format,
) {
    let across = held.div_ceil(comptime!(units / LANES));
    let first = CUBE_POS / across * of;
    if first >= rows {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units);
    let unit = UNIT_POS as usize;
    let lane = unit % LANES;
    let row = CUBE_POS % across * comptime!(units / LANES) + unit / LANES;

    let mut sums = Array::<Four>::new(of);
    #[unroll]
    for r in 0..of {
        sums[r] = Four::zeroed();
    }
    if row < held {
        let across = width / FOUR;
        let mut i = lane;
        while i < across {
            let values = four(words, row * row_bytes, i * FOUR, format);
            #[unroll]
            for r in 0..of {
                // A surplus row repeats the last one, and is not written.
                sums[r] += values * x[min(first + r, rows - 1) * across + i];
            }
            i += LANES;
        }
    }

    #[unroll]
    for r in 0..of {
        let four = sums[r];
        shared[unit] = (four.extract(0usize) + four.extract(1usize)) + (four.extract(2usize) + four.extract(3usize));
        sync_cube();
        let mut reach = comptime!(LANES / 2).runtime();
        while reach > 0 {
            if lane < reach {
                let other = shared[unit + reach];
                shared[unit] += other;
            }
            sync_cube();
            reach /= 2;
        }
        if lane == 0 && row < held && first + r < rows {
            let to = (first + r) * out.stride(0) + start + row;
            out[to] = shared[unit];
        }
        // The next row's sums overwrite these.
        sync_cube();
    }
}
