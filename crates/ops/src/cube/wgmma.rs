//! Matrix products in 16 bits on NVIDIA's Hopper GPUs (compute capability 9.0), by `wgmma`, the only instruction that reaches the peak of
//! their tensor cores. CubeCL 0.11 does not have it; it is written as PTX here, for builds with NVRTC (`cuda-cpp`).
//!
//! A cube computes a tile of [`ROWS`] × `wide` of the product:
//! 1. One unit copies K tiles of both factors into shared memory by TMA, up to [`STAGES`] tiles of [`DEPTH`] ahead.
//! 2. Two groups of 128 units multiply 64 rows each, with sums in registers.
//!
//! Layouts and descriptors: PTX ISA 8.7, *Asynchronous Warpgroup Level Matrix Instructions*.

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl::zspace::metadata::Metadata;
use cubecl::zspace::{shape, strides};

use super::{addresses, element};

/// Rows of the product that a cube computes.
const ROWS: usize = 128;

/// K tile: 128 bytes, the widest swizzle pattern of TMA and `wgmma`.
const DEPTH: usize = 64;

/// Elements of K per instruction.
const TERMS: usize = 16;

/// Pipeline stages: K tiles in shared memory at the same time.
const STAGES: usize = 4;

/// Units that issue an instruction together.
const GROUP: usize = 128;

/// Units of a cube: two groups that multiply, and the warp of the unit that copies.
const UNITS: usize = 2 * GROUP + 32;

/// Operand layout: K-major or MN-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OperandLayout {
    by_terms: bool,
}

impl OperandLayout {
    /// A descriptor without its address: rows of 128 bytes, eight of which form a pattern of 1,024 bytes; for an MN-major operand the next 64
    /// values are a whole tile further.
    fn descriptor(self) -> u64 {
        let (pattern, next) = (1024 >> 4, (DEPTH * 128) as u64 >> 4);
        let next = if self.by_terms { 1 } else { next };
        1 << 62 | pattern << 32 | next << 16
    }

    /// Distance between the addresses of two instructions, in units of sixteen bytes.
    fn step(self) -> usize {
        let bytes = if self.by_terms { TERMS * 2 } else { TERMS * 128 };
        bytes >> 4
    }
}

/// The registers of the sums, by name: inline PTX has no read-write operands.
fn sums(wide: usize) -> String {
    (0..wide / 2).map(|i| format!("switchyard_sum{i}")).collect::<Vec<_>>().join(", ")
}

fn declaration(wide: usize) -> String {
    let zeros: String = (0..wide / 2).map(|i| format!("mov.f32 switchyard_sum{i}, 0f00000000; ")).collect();
    format!(".reg .f32 switchyard_sum<{}>; {zeros}", wide / 2)
}

/// The instructions that multiply one K tile: `first` and `second` are descriptors.
fn instructions(wide: usize, kind: &str, a: OperandLayout, b: OperandLayout) -> String {
    let across = |of: OperandLayout| u8::from(!of.by_terms);
    let sums = sums(wide);
    let each = (0..DEPTH / TERMS).map(|i| {
        format!(
            "add.u64 x, first, {}; add.u64 y, second, {}; \
             wgmma.mma_async.sync.aligned.m64n{wide}k16.f32.{kind}.{kind} {{{sums}}}, x, y, p, 1, 1, {}, {}; ",
            i * a.step(),
            i * b.step(),
            across(a),
            across(b),
        )
    });
    each.collect()
}

/// Copies a K tile of a factor: `tile` of its rows (or columns) from `first` on, elements of K from `term` on.
#[cube]
fn copy<F: Float>(
    full: &Shared<Barrier>,
    factor: &TensorMap<F, Tiled>,
    stage: &mut Shared<[F]>,
    #[comptime] at: usize,
    outer: i32,
    inner: i32,
    first: i32,
    term: i32,
    #[comptime] tile: usize,
    #[comptime] by_terms: bool,
) {
    if comptime!(by_terms) {
        full.tma_load_4d(factor, &mut stage[at..comptime!(at + tile * DEPTH)], outer, inner, first, term);
    } else {
        #[unroll]
        for part in 0..comptime!(tile / DEPTH) {
            let at = comptime!(at + part * DEPTH * DEPTH);
            let first = first + comptime!((part * DEPTH) as i32);
            full.tma_load_4d(factor, &mut stage[at..comptime!(at + DEPTH * DEPTH)], outer, inner, term, first);
        }
    }
}

/// The address of shared memory as an integer.
#[allow(
    unsafe_code,
    reason = "CubeCL calls a pointer to a slice unsafe: it is not followed here, only its address is taken"
)]
#[cube]
fn address<F: Float>(stage: &Shared<[F]>) -> u32 {
    let pointer = unsafe { stage.as_ptr_unchecked() };
    let out: u32;
    gpu_asm!(
        "{{ .reg .u64 wide; cvta.to.shared.u64 wide, {pointer}; cvt.u32.u64 {out}, wide; }}",
        pointer = in(_) pointer, out = out(_) out, options(nomem),
    );
    out
}

#[cube]
fn sum_of(#[comptime] index: usize) -> f32 {
    let out: f32;
    gpu_asm!("mov.f32 {out}, switchyard_sum{index};", out = out(_) out);
    out
}

/// `a b`, `[outer, inner, M, K]` and `[outer, inner, K, N]`. Elements out of bounds are loaded as zeros, and not written. A factor with one
/// matrix for a batch axis has stride 0 there. Multiplied by `scale`, and added to the output if `onto`.
#[cube(launch, address_type = "dynamic")]
fn product<F: Float, N: Size>(
    a: &TensorMap<F, Tiled>,
    b: &TensorMap<F, Tiled>,
    out: &mut Tensor<Vector<F, N>>,
    rows: usize,
    columns: usize,
    parts: usize,
    inners: usize,
    outer_step: usize,
    inner_step: usize,
    pitch: usize,
    a_outer: usize,
    a_inner: usize,
    b_outer: usize,
    b_inner: usize,
    scale: f32,
    #[comptime] onto: bool,
    #[comptime] wide: usize,
    #[comptime] a_layout: OperandLayout,
    #[comptime] b_layout: OperandLayout,
    #[comptime] kind: String,
    #[define(F)] _element: ElemType,
) {
    let down = rows.div_ceil(ROWS);
    let across = columns.div_ceil(wide);
    let batch = CUBE_POS / (down * across);
    let place = CUBE_POS % (down * across);
    let (outer, inner) = (batch / inners, batch % inners);
    let (top, left) = (place % down * ROWS, place / down * wide);

    let a_size = comptime!(ROWS * DEPTH);
    let b_size = comptime!(wide * DEPTH);
    let mut a_stages = Shared::<[F]>::new_aligned_slice(comptime!(STAGES * a_size), 1024usize);
    let mut b_stages = Shared::<[F]>::new_aligned_slice(comptime!(STAGES * b_size), 1024usize);
    let mut full = Sequence::<Shared<Barrier>>::new();
    let mut empty = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..STAGES {
        full.push(Barrier::shared_uninit());
        empty.push(Barrier::shared_uninit());
    }
    if UNIT_POS == 0 {
        #[unroll]
        for stage in 0..STAGES {
            full[stage].init_manual(1u32);
            // One unit of every multiplying warp arrives at this barrier.
            empty[stage].init_manual(comptime!((2 * GROUP / 32) as u32));
        }
        sync_async_proxy_shared();
    }
    sync_cube();

    let unit = UNIT_POS as usize;
    let rounds = parts.div_ceil(STAGES);
    if unit >= comptime!(2 * GROUP) {
        if unit == comptime!(2 * GROUP) {
            for round in 0..rounds {
                #[unroll]
                for stage in 0..STAGES {
                    let part = round * STAGES + stage;
                    if part < parts {
                        empty[stage].wait_parity((round as u32 & 1) ^ 1);
                        full[stage].arrive_and_expect_tx(1u32, comptime!(((a_size + b_size) * 2) as u32));
                        let term = (part * DEPTH) as i32;
                        copy::<F>(
                            &full[stage],
                            a,
                            &mut a_stages,
                            comptime!(stage * a_size),
                            (outer * a_outer) as i32,
                            (inner * a_inner) as i32,
                            top as i32,
                            term,
                            ROWS,
                            comptime!(a_layout.by_terms),
                        );
                        copy::<F>(
                            &full[stage],
                            b,
                            &mut b_stages,
                            comptime!(stage * b_size),
                            (outer * b_outer) as i32,
                            (inner * b_inner) as i32,
                            left as i32,
                            term,
                            wide,
                            comptime!(b_layout.by_terms),
                        );
                    }
                }
            }
        }
    } else {
        let group = unit / GROUP;
        let lane = unit % 32;
        // Sixty-four rows of the left operand, in either layout.
        let a_address = address::<F>(&a_stages) + (group * comptime!(a_size)) as u32;
        let b_address = address::<F>(&b_stages);
        let declaration = comptime!(declaration(wide));
        gpu_asm!("{declaration}");
        let instructions = comptime!(instructions(wide, &kind, a_layout, b_layout));
        for round in 0..rounds {
            #[unroll]
            for stage in 0..STAGES {
                let part = round * STAGES + stage;
                if part < parts {
                    full[stage].wait_parity(round as u32 & 1);
                    let first = u64::cast_from((a_address + comptime!((stage * a_size * 2) as u32)) >> 4)
                        | comptime!(a_layout.descriptor());
                    let second = u64::cast_from((b_address + comptime!((stage * b_size * 2) as u32)) >> 4)
                        | comptime!(b_layout.descriptor());
                    gpu_asm!(
                        "{{ .reg .b64 first, second, x, y; .reg .pred p; mov.b64 first, {a}; mov.b64 second, {b}; setp.eq.b64 p, 0, 0; \
                         wgmma.fence.sync.aligned; {instructions} \
                         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1; }}",
                        a = in(_) first, b = in(_) second,
                    );
                    // All products but the newest tile's have finished.
                    if part > 0 && lane == 0 {
                        empty[comptime!((stage + STAGES - 1) % STAGES)].arrive();
                    }
                }
            }
        }
        gpu_asm!("wgmma.wait_group.sync.aligned 0;");

        // A unit has two of each eight columns, in one row and in the eighth row after it.
        let row = top + group * 64 + unit % GROUP / 32 * 16 + lane / 4;
        let column = left + lane % 4 * 2;
        #[unroll]
        for block in 0..comptime!(wide / 8) {
            let column = column + comptime!(block * 8);
            #[unroll]
            for half in 0..2usize {
                let row = row + comptime!(half * 8);
                if row < rows && column < columns {
                    let to = outer * outer_step + inner * inner_step + row * pitch + column / 2;
                    let mut first = sum_of(comptime!(block * 4 + half * 2)) * scale;
                    let mut second = sum_of(comptime!(block * 4 + half * 2 + 1)) * scale;
                    if onto {
                        let before = out[to];
                        first += f32::cast_from(before.extract(0usize));
                        second += f32::cast_from(before.extract(1usize));
                    }
                    let mut pair = Vector::<F, N>::empty();
                    pair.insert(0usize, F::cast_from(first));
                    pair.insert(1usize, F::cast_from(second));
                    out[to] = pair;
                }
            }
        }
    }
}

/// TMA descriptor of a factor, read in place; either of its last two axes is contiguous.
struct Factor {
    map: TensorMapArg<Tiled>,
    layout: OperandLayout,
    /// 0 for a batch axis with a single matrix.
    counts: [usize; 2],
}

/// Shape and strides of a tensor with four axes, the first two of which are batch axes.
fn of_four(x: &CubeTensor) -> Option<([usize; 4], [usize; 4])> {
    let (shape, strides, rank) = (x.shape(), x.meta.strides(), x.rank());
    let more = rank.saturating_sub(4);
    if shape[..more].iter().any(|&n| n > 1) {
        return None;
    }
    let axis = |axis: usize| (axis + rank).checked_sub(4).map_or((1, 0), |own| (shape[own], strides[own]));
    Some((std::array::from_fn(|i| axis(i).0), std::array::from_fn(|i| axis(i).1)))
}

/// `terms` is the K axis, 2 or 3; `tile` is the cube's size along the other.
fn factor(x: &CubeTensor, terms: usize, tile: usize) -> Option<Factor> {
    let (shape, strides) = of_four(x)?;
    let whole = |axis: usize| shape[axis] == 1 || strides[axis].is_multiple_of(16 / x.dtype.size());
    let in_line = [3, 2].into_iter().find(|&axis| strides[axis] == 1 && whole(5 - axis))?;
    let other = 5 - in_line;
    // The stride of an axis of length 1 is not used, but must be a multiple of sixteen bytes.
    let step = |axis: usize| if shape[axis] == 1 { 8 * shape[in_line] } else { strides[axis] };
    let mut argument = x.clone();
    *argument.meta = Metadata::new(
        shape![shape[0], shape[1], shape[other], shape[in_line]],
        strides![step(0), step(1), step(other), 1],
    );
    let layout = OperandLayout { by_terms: in_line == terms };
    let tile_size = if layout.by_terms { shape![1, 1, tile, DEPTH] } else { shape![1, 1, DEPTH, DEPTH] };
    let map = TensorMapArg::new(TiledArgs { tile_size }, argument.into_tensor_arg(), element(x))
        .with_swizzle(TensorMapSwizzle::B128);
    Some(Factor { map, layout, counts: [0, 1].map(|axis| usize::from(shape[axis] > 1)) })
}

/// Whether device and build support the instruction.
fn is_there(x: &CubeTensor) -> bool {
    cfg!(feature = "cuda-cpp") && x.client.properties().identity.fingerprint == "ptx_sm90"
}

/// `scale · a b` into `out`, or added to it if `onto`. Returns whether this kernel supports it: factors in 16 bits whose rows begin at
/// multiples of sixteen bytes, and an output of whole pairs.
pub(super) fn multiply(a: &CubeTensor, b: &CubeTensor, out: &CubeTensor, scale: f32, onto: bool) -> bool {
    is_there(a) && launch(a, b, out, scale, onto).is_some()
}

fn launch(a: &CubeTensor, b: &CubeTensor, out: &CubeTensor, scale: f32, onto: bool) -> Option<()> {
    let ([outers, inners, rows, columns], steps) = of_four(out)?;
    let depth = a.shape()[a.rank() - 1];
    if columns % 2 + steps[0] % 2 + steps[1] % 2 + steps[2] % 2 > 0 || steps[3] != 1 || depth == 0 {
        return None;
    }
    let client = out.client.clone();
    let down = outers * inners * rows.div_ceil(ROWS);
    let wide = width(&client, down, columns);
    let (a, b) = (factor(a, 3, ROWS)?, factor(b, 2, wide)?);
    // CUDA launches exactly this many cubes.
    product::launch(
        &client,
        super::cubes(&client, down * columns.div_ceil(wide)),
        super::dim(UNITS),
        addresses(&[out]),
        2,
        a.map,
        b.map,
        out.clone().into_tensor_arg(),
        rows,
        columns,
        depth.div_ceil(DEPTH),
        inners,
        steps[0] / 2,
        steps[1] / 2,
        steps[2] / 2,
        a.counts[0],
        a.counts[1],
        b.counts[0],
        b.counts[1],
        scale,
        onto,
        wide,
        a.layout,
        b.layout,
        if out.dtype == DType::BF16 { "bf16" } else { "f16" }.to_string(),
        element(out),
    );
    Some(())
}

/// Columns per cube. A cube is bound by its copies, and the device runs one cube per multiprocessor at a time.
fn width(client: &super::Client, down: usize, columns: usize) -> usize {
    let at_once = client.properties().hardware.num_streaming_multiprocessors.unwrap_or(1).max(1) as usize;
    let time = |wide: &usize| (down * columns.div_ceil(*wide)).div_ceil(at_once) * (ROWS + wide);
    [256, 128, 64].into_iter().min_by_key(time).unwrap_or(64)
}
