//! Helpers of kernels with one cube per row.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

/// Initial value of a maximum. WGSL has no constant for minus infinity.
pub(super) const LOWEST: f32 = -3.4e38;

/// Offset of a row, by the strides of the first `axes` axes. With all axes: offset of a value.
#[cube]
pub(super) fn place<F: Float>(x: &Tensor<F>, number: usize, #[comptime] axes: usize) -> usize {
    let mut rest = number;
    let mut at = 0;
    #[unroll]
    for i in 0..axes {
        let axis = axes - i - 1;
        let size = x.shape(axis);
        at += rest % size * x.stride(axis);
        rest /= size;
    }
    at
}

/// The sum over the units of a cube, whose number is a power of two; every unit gets it. `shared` has one element per unit.
#[cube]
pub(super) fn sum_of_units(own: f32, shared: &mut Shared<[f32]>) -> f32 {
    shared[UNIT_POS as usize] = own;
    sync_cube();
    let mut reach = CUBE_DIM_X / 2;
    while reach > 0 {
        if UNIT_POS < reach {
            let other = shared[(UNIT_POS + reach) as usize];
            shared[UNIT_POS as usize] += other;
        }
        sync_cube();
        reach /= 2;
    }
    let sum = shared[0];
    // No unit may write the next sum before all have read this one.
    sync_cube();
    sum
}

/// The largest value over the units of a cube, as [`sum_of_units`].
#[cube]
pub(super) fn largest_of_units(own: f32, shared: &mut Shared<[f32]>) -> f32 {
    shared[UNIT_POS as usize] = own;
    sync_cube();
    let mut reach = CUBE_DIM_X / 2;
    while reach > 0 {
        if UNIT_POS < reach {
            let other = shared[(UNIT_POS + reach) as usize];
            let held = shared[UNIT_POS as usize];
            shared[UNIT_POS as usize] = max(held, other);
        }
        sync_cube();
        reach /= 2;
    }
    let most = shared[0];
    sync_cube();
    most
}
