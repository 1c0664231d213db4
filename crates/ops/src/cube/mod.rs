//! The element-wise work of a decoder as CubeCL kernels: one source for CUDA and for every wgpu device.
//!
//! Tensors in, tensors out; losses and the optimiser in f32, the operations of a forward also in bf16 and f16 (all inputs of an operation in
//! one type). Kernels read their inputs by strides, so that views need no copy; they compute in f32, and round their outputs. CubeCL's terms:
//! a *cube* is a thread block, a *unit* a thread. Kernels need 256 units per cube and 8 KB of shared memory, which every GPU has.

#![allow(
    clippy::too_many_arguments,
    reason = "a kernel's arguments are its tensors, its numbers and what it is compiled for"
)]

mod adamw;
mod attend;
mod blocks;
mod few;
mod heads;
mod loss;
mod matmul;
mod norm;
mod rope;
mod rows;
mod softmax;
mod stored;
mod swiglu;
mod wgmma;

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::cubecl::server::CubeCountSelection;
use burn_cubecl::ops::numeric::empty_device_dtype;
use burn_cubecl::tensor::CubeTensor;

pub(super) use adamw::{adamw, sum_of_squares};
pub(super) use attend::attend;
pub(super) use few::{linear, linear_by_row};
pub(super) use heads::{append_heads, first_of};
pub(super) use loss::{cross_entropy, cross_entropy_backward};
pub(super) use matmul::{chooses_products, has_tf32, matmul, matmul_onto, scaled_matmul};
pub(super) use norm::{add_rms_norm, rms_norm, rms_norm_backward};
pub(super) use rope::rotate;
pub(super) use softmax::{softmax, softmax_backward};
pub(super) use stored::DeviceMatrix;
pub(super) use swiglu::{swiglu, swiglu_backward};

/// Maximum units per cube, which every GPU supports.
const UNITS: usize = 256;

/// A power of two of units for this many values, within the device's limit.
fn units(client: &Client, values: usize) -> usize {
    let hardware = &client.properties().hardware;
    let most = UNITS.min(hardware.max_units_per_cube as usize).min(hardware.max_cube_dim.0 as usize).max(1);
    let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
    // Few sizes: each needs another kernel.
    values.next_power_of_two().clamp(32, UNITS).min(most)
}

/// The widest head of decode attention: each unit of a cube computes one value of the output.
pub(super) fn widest_head(device: &CubeDevice) -> usize {
    units(&device.client(), UNITS)
}

/// Maximum bytes of a tensor that a kernel reads or writes.
pub(super) fn largest_buffer(device: &CubeDevice) -> u64 {
    device.client().properties().memory.max_page_size
}

/// A launch of this many cubes, distributed over the device's dimensions; perhaps a few more.
fn cubes(client: &Client, cubes: usize) -> CubeCount {
    // A u32 overflows only beyond the number of values in a device's memory.
    CubeCountSelection::new(client, u32::try_from(cubes).unwrap_or(u32::MAX)).cube_count()
}

fn dim(units: usize) -> CubeDim {
    CubeDim::new_1d(units as u32)
}

/// Rows and values of a row.
fn rows_of(shape: &Shape) -> [usize; 2] {
    let width = shape.iter().last().copied().unwrap_or(1);
    [shape.num_elements() / width.max(1), width]
}

/// An uninitialised tensor of this shape, with device and type of another.
fn made_like(x: &CubeTensor, shape: Shape) -> CubeTensor {
    empty_device_dtype(x.client.clone(), x.device.clone(), shape, x.dtype)
}

/// An uninitialised f32 tensor of this shape, on the device of another.
fn sums_like(x: &CubeTensor, shape: Shape) -> CubeTensor {
    empty_device_dtype(x.client.clone(), x.device.clone(), shape, DType::F32)
}

/// Element type for which a generic kernel is compiled.
fn element(x: &CubeTensor) -> ElemType {
    ElemType::Float(match x.dtype {
        DType::BF16 => FloatKind::BF16,
        DType::F16 => FloatKind::F16,
        _ => FloatKind::F32,
    })
}

/// Output buffer of a kernel, and whether it is the input itself, which needs that the input has no other owner and no broadcast axis.
/// Otherwise a new uninitialised one of its shape.
fn room_for(x: &CubeTensor) -> (CubeTensor, bool) {
    if x.can_mut() && x.is_nonoverlapping() { (x.clone(), true) } else { (made_like(x, x.shape()), false) }
}

/// Address type for the largest of some tensors.
fn addresses(tensors: &[&CubeTensor]) -> AddressType {
    tensors.iter().map(|x| x.required_address_type()).max().unwrap_or_default()
}
