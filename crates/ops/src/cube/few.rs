//! Products of few rows with float matrices, as in decoding. They are bound by memory bandwidth: the matrix is read once for all rows,
//! sixteen bytes per unit at a time, by all multiprocessors, and matrices with the same input share one launch.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, cubecl};
use cubecl::ir::{ElemType, VectorSize};
use cubecl::prelude::*;

use super::matmul::matmul;
use super::{UNITS, addresses, cubes, dim, element, made_like, rows_of, units};

/// Maximum rows of x per cube.
const TOGETHER: usize = 8;

/// Units that share a row of an output-major matrix.
const LANES: usize = 32;

/// Cubes that fill a device; with fewer, a cube computes fewer columns.
const BUSY: usize = 256;

/// Rows `first ..` of x times one group of columns, `x W` with W `[K, N]`: a group is `lanes` vectors of columns, and the units of one
/// vector split the sum over K. Widths, depths and pitches are counted in vectors.
#[cube]
fn columns<F: Float, N: Size>(
    x: &Tensor<Vector<F, N>>,
    w: &Tensor<Vector<F, N>>,
    out: &mut Tensor<Vector<F, N>>,
    shared: &mut Shared<[Vector<f32, N>]>,
    group: usize,
    first: usize,
    rows: usize,
    depth: usize,
    width: usize,
    x_pitch: usize,
    pitch: usize,
    out_pitch: usize,
    #[comptime] of: usize,
    #[comptime] lanes: usize,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    let column = group * lanes + unit % lanes;
    let slice = unit / lanes;
    let slices = comptime!(units / lanes);
    let wide = N::value();

    let mut sums = Array::<Vector<f32, N>>::new(of);
    #[unroll]
    for r in 0..of {
        sums[r] = Vector::zeroed();
    }
    if column < width {
        let mut i = slice;
        while i < depth {
            let mut factors = Array::<Vector<f32, N>>::new(of);
            #[unroll]
            for r in 0..of {
                // A surplus row repeats the last one, and is not written.
                factors[r] = Vector::cast_from(x[min(first + r, rows - 1) * x_pitch + i]);
            }
            #[unroll]
            for j in 0..wide {
                let values = Vector::<f32, N>::cast_from(w[(i * wide + j) * pitch + column]);
                #[unroll]
                for r in 0..of {
                    sums[r] += values * Vector::new(factors[r].extract(j));
                }
            }
            i += slices;
        }
    }

    #[unroll]
    for r in 0..of {
        shared[unit] = sums[r];
        sync_cube();
        let mut reach = comptime!(slices / 2).runtime();
        while reach > 0 {
            if slice < reach {
                let other = shared[unit + reach * lanes];
                shared[unit] += other;
            }
            sync_cube();
            reach /= 2;
        }
        if slice == 0 && column < width && first + r < rows {
            out[(first + r) * out_pitch + column] = Vector::cast_from(shared[unit]);
        }
        // The next row's sums overwrite these.
        sync_cube();
    }
}

/// `x A`, `x B`, `x C` for `count` matrices; a missing second or third is passed as the first and not read.
#[cube(launch, address_type = "dynamic")]
fn products<F: Float, N: Size>(
    x: &Tensor<Vector<F, N>>,
    a: &Tensor<Vector<F, N>>,
    b: &Tensor<Vector<F, N>>,
    c: &Tensor<Vector<F, N>>,
    out_a: &mut Tensor<Vector<F, N>>,
    out_b: &mut Tensor<Vector<F, N>>,
    out_c: &mut Tensor<Vector<F, N>>,
    rows: usize,
    depth: usize,
    x_pitch: usize,
    width_a: usize,
    width_b: usize,
    width_c: usize,
    pitch_a: usize,
    pitch_b: usize,
    pitch_c: usize,
    out_pitch_a: usize,
    out_pitch_b: usize,
    out_pitch_c: usize,
    #[comptime] count: usize,
    #[comptime] of: usize,
    #[comptime] lanes: usize,
    #[comptime] units: usize,
    #[define(F)] _element: ElemType,
) {
    let first_of_b = width_a.div_ceil(lanes);
    let first_of_c = first_of_b + width_b.div_ceil(lanes);
    let across = first_of_c + width_c.div_ceil(lanes);
    let group = CUBE_POS % across;
    let first = CUBE_POS / across * of;
    if first >= rows {
        terminate!();
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(units);
    if group < first_of_b {
        columns(
            x,
            a,
            out_a,
            &mut shared,
            group,
            first,
            rows,
            depth,
            width_a,
            x_pitch,
            pitch_a,
            out_pitch_a,
            of,
            lanes,
            units,
        );
    } else if group < first_of_c {
        if comptime!(count > 1) {
            columns(
                x,
                b,
                out_b,
                &mut shared,
                group - first_of_b,
                first,
                rows,
                depth,
                width_b,
                x_pitch,
                pitch_b,
                out_pitch_b,
                of,
                lanes,
                units,
            );
        }
    } else if comptime!(count > 2) {
        columns(
            x,
            c,
            out_c,
            &mut shared,
            group - first_of_c,
            first,
            rows,
            depth,
            width_c,
            x_pitch,
            pitch_c,
            out_pitch_c,
            of,
            lanes,
            units,
        );
    }
}

/// `out[m, n] = x[m] · table[n]`: [`LANES`] units per row of the table, `of` rows of x per cube.
#[cube(launch, address_type = "dynamic")]
fn products_by_row<F: Float, N: Size>(
    x: &Tensor<Vector<F, N>>,
    table: &Tensor<Vector<F, N>>,
    out: &mut Tensor<F>,
    rows: usize,
    held: usize,
    depth: usize,
    x_pitch: usize,
    pitch: usize,
    out_pitch: usize,
    #[comptime] of: usize,
    #[comptime] units: usize,
    #[define(F)] _element: ElemType,
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

    let mut sums = Array::<Vector<f32, N>>::new(of);
    #[unroll]
    for r in 0..of {
        sums[r] = Vector::zeroed();
    }
    if row < held {
        let mut i = lane;
        while i < depth {
            let values = Vector::<f32, N>::cast_from(table[row * pitch + i]);
            #[unroll]
            for r in 0..of {
                sums[r] += values * Vector::cast_from(x[min(first + r, rows - 1) * x_pitch + i]);
            }
            i += LANES;
        }
    }

    #[unroll]
    for r in 0..of {
        let mut own = 0.0f32;
        #[unroll]
        for j in 0..N::value() {
            own += sums[r].extract(j);
        }
        shared[unit] = own;
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
            out[(first + r) * out_pitch + row] = F::cast_from(shared[unit]);
        }
        // The next row's sums overwrite these.
        sync_cube();
    }
}

/// Vector width of reads, up to sixteen bytes; `None` if a row is not a whole number of vectors.
fn vector(x: &CubeTensor, widths: &[usize]) -> Option<VectorSize> {
    let size = x.dtype.size();
    let most = x.client.io_optimized_vector_sizes(size).filter(|&own| own * size <= 16).max()?;
    (most > 1 && widths.iter().all(|width| width.is_multiple_of(most))).then_some(most)
}

/// A matrix whose rows are aligned to vectors: the original if they are, else a copy.
fn in_rows(x: CubeTensor, vector: usize) -> CubeTensor {
    let (rank, strides) = (x.rank(), x.meta.strides());
    let aligned = x.handle.offset_start.unwrap_or(0).is_multiple_of((vector * x.dtype.size()) as u64);
    let lies = strides[rank - 1] == 1 && strides[rank - 2].is_multiple_of(vector) && aligned;
    if lies { x } else { into_contiguous(x) }
}

/// Vectors from one row of a matrix to the next.
fn pitch(x: &CubeTensor, vector: usize) -> usize {
    x.meta.strides()[x.rank() - 2] / vector
}

/// The rows of a tensor as a contiguous matrix.
pub(super) fn flat(x: CubeTensor) -> CubeTensor {
    let shape = Shape::new(rows_of(&x.shape()));
    reshape(into_contiguous(x), shape)
}

/// Rows of x per cube. Few sizes, because each needs another kernel.
pub(super) fn together(rows: usize) -> usize {
    rows.next_power_of_two().min(TOGETHER)
}

/// A shape with another last axis.
pub(super) fn with_last(mut shape: Shape, n: usize) -> Shape {
    let last = shape.num_dims() - 1;
    shape[last] = n;
    shape
}

/// `x W` for one to three matrices `[K, N]`, x `[.., K]` of few rows → `[.., N]` each.
pub(crate) fn linear<const C: usize>(x: CubeTensor, weights: [CubeTensor; C]) -> [CubeTensor; C] {
    let depth = weights[0].shape()[0];
    let widths: Vec<usize> = weights.iter().map(|w| w.shape()[1]).collect();
    let rows = rows_of(&x.shape())[0];
    let shapes: Vec<Shape> = widths.iter().map(|&n| with_last(x.shape(), n)).collect();
    let x = flat(x);
    let outs = match vector(&x, &[&widths[..], &[depth]].concat()) {
        Some(vector) if rows > 0 => launch(x, weights.into_iter().collect(), widths.clone(), vector),
        // Rows that are not whole vectors.
        _ => weights.into_iter().map(|w| matmul(x.clone(), w)).collect(),
    };
    let mut outs = outs.into_iter().zip(shapes).map(|(out, shape)| reshape(out, shape));
    std::array::from_fn(|_| outs.next().unwrap_or_else(|| unreachable!("an output for each of {C} matrices")))
}

fn launch(x: CubeTensor, weights: Vec<CubeTensor>, widths: Vec<usize>, vector: VectorSize) -> Vec<CubeTensor> {
    let [rows, depth] = rows_of(&x.shape());
    let client = x.client.clone();
    let x = in_rows(x, vector);
    let weights: Vec<CubeTensor> = weights.into_iter().map(|w| in_rows(w, vector)).collect();
    let outs: Vec<CubeTensor> = widths.iter().map(|&n| made_like(&x, Shape::new([rows, n]))).collect();

    let (units, of) = (units(&client, UNITS), together(rows));
    let groups = |lanes: usize| widths.iter().map(|n| (n / vector).div_ceil(lanes)).sum::<usize>();
    let lanes = [16, 8].into_iter().find(|&lanes| groups(lanes) >= BUSY).unwrap_or(4);
    // The placeholder of a missing matrix has width 0.
    let at = |i: usize| i.min(weights.len() - 1);
    let width = |i: usize| widths.get(i).map_or(0, |n| n / vector);
    let (weight, out) = (|i: usize| weights[at(i)].clone(), |i: usize| outs[at(i)].clone());
    let held: Vec<&CubeTensor> = weights.iter().chain(&outs).chain([&x]).collect();
    products::launch(
        &client,
        cubes(&client, groups(lanes) * rows.div_ceil(of)),
        dim(units),
        addresses(&held),
        vector,
        x.clone().into_tensor_arg(),
        weight(0).into_tensor_arg(),
        weight(1).into_tensor_arg(),
        weight(2).into_tensor_arg(),
        out(0).into_tensor_arg(),
        out(1).into_tensor_arg(),
        out(2).into_tensor_arg(),
        rows,
        depth / vector,
        pitch(&x, vector),
        width(0),
        width(1),
        width(2),
        pitch(&weight(0), vector),
        pitch(&weight(1), vector),
        pitch(&weight(2), vector),
        pitch(&out(0), vector),
        pitch(&out(1), vector),
        pitch(&out(2), vector),
        weights.len(),
        of,
        lanes,
        units,
        element(&x),
    );
    outs
}

/// `x Tᵀ`, x `[.., K]` of few rows, a table `[N, K]` → `[.., N]`.
pub(crate) fn linear_by_row(x: CubeTensor, table: CubeTensor) -> CubeTensor {
    let ([rows, depth], held) = (rows_of(&x.shape()), table.shape()[0]);
    let (shape, x) = (with_last(x.shape(), held), flat(x));
    let Some(vector) = vector(&x, &[depth]).filter(|_| rows > 0) else {
        return reshape(matmul(x, CubeBackend::float_transpose(table)), shape);
    };
    let client = x.client.clone();
    let (x, table) = (in_rows(x, vector), in_rows(table, vector));
    let out = made_like(&x, Shape::new([rows, held]));
    let (units, of) = (units(&client, UNITS).max(LANES), together(rows));
    products_by_row::launch(
        &client,
        cubes(&client, held.div_ceil(units / LANES) * rows.div_ceil(of)),
        dim(units),
        addresses(&[&x, &table, &out]),
        vector,
        x.clone().into_tensor_arg(),
        table.clone().into_tensor_arg(),
        out.clone().into_tensor_arg(),
        rows,
        held,
        depth / vector,
        pitch(&x, vector),
        pitch(&table, vector),
        pitch(&out, 1),
        of,
        units,
        element(&x),
    );
    reshape(out, shape)
}
