//! Matrix products on NVIDIA GPUs with tensor cores (since Ampere), with a selection of Burn's kernels.
//!
//! Burn's autotune tries all its kernels for every shape and uses the fastest. For f32 most of them round both factors to TF32 (10 of 23
//! mantissa bits): errors of about 1e-3, which depend on the kernel that won. PyTorch does not do that by default. Here only kernels
//! without rounding compete, unless [`rounds_to_tf32`].
//!
//! For bf16 and f16 there is no autotune. On an H100 a first product waited 38 s until Burn's twenty kernels were compiled. Of five that
//! were timed over 32 shapes one was the fastest in 25, and within a twelfth of it in five (`reports/gpu/h100`). It is used wherever memory
//! is aligned, so that every run uses the same kernel.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType, Scalar, Slice};
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};
use burn_cubecl::cubecl::tune::{LocalTuner, Tunable, TunableSet, TuneGroup, local_tuner};
use burn_cubecl::kernel::matmul::init_matmul_output;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice, CubeTuneId};
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems, MatmulKind};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy;
use cubek::matmul::multi_level::components::tile::TileMatmulKind;
use cubek::matmul::multi_level::routines::TileSizeSelection::{MaxTileSize, MinTileSize};
use cubek::matmul::multi_level::routines::batch::double_buffering::DoubleBufferingArgs;
use cubek::matmul::multi_level::routines::batch::double_unit::DoubleUnitSelectionArgs;
use cubek::matmul::multi_level::routines::batch::simple_unit::SimpleUnitSelectionArgs;
use cubek::matmul::routine::BlueprintStrategy::Inferred;
use cubek::matmul::tune_key::MatmulAutotuneKey;
use cubek::std::InputBinding;

use super::{element, wgmma};
use crate::rounds_to_tf32;

/// Whether Burn's f32 products may use fewer bits although they must not.
fn rounds_products(device: &CubeDevice) -> bool {
    has_tf32(device) && !rounds_to_tf32()
}

/// Whether kernels for products of this type are chosen here, and not by Burn.
pub(crate) fn chooses_products(device: &CubeDevice, dtype: DType) -> bool {
    match dtype {
        DType::F32 => rounds_products(device),
        DType::F16 | DType::BF16 => has_tf32(device),
        _ => false,
    }
}

pub(crate) fn has_tf32(device: &CubeDevice) -> bool {
    device.client().properties().supports_type(ElemType::Float(FloatKind::TF32))
}

/// Maximum length of a chain of additions: over a vocabulary of 151,672 a single chain had an error of 9e-5. Memory alignment is finer, so
/// that a part of a large matrix is a view without a copy.
const CHAIN: usize = 1 << 14;

/// `a b`: `[.., M, K]`, `[.., K, N]` → `[.., M, N]`.
pub(crate) fn matmul(a: CubeTensor, b: CubeTensor) -> CubeTensor {
    let (rank, depth) = (a.rank(), a.shape()[a.rank() - 1]);
    if a.dtype == DType::F32 && depth > CHAIN {
        let some = |x: &CubeTensor, axis: usize, part: &Range<usize>| {
            let slices: Vec<Slice> =
                (0..rank).map(|i| if i == axis { part.clone().into() } else { Slice::full() }).collect();
            CubeBackend::float_slice(x.clone(), &slices)
        };
        let parts = (0..depth).step_by(CHAIN).map(|from| from..(from + CHAIN).min(depth));
        let products = parts.map(|part| matmul(some(&a, rank - 1, &part), some(&b, rank - 2, &part)));
        return products
            .reduce(CubeBackend::float_add)
            .unwrap_or_else(|| unreachable!("a depth above {CHAIN} has parts"));
    }
    if !chooses_products(&a.device, a.dtype) {
        return CubeBackend::float_matmul(a, b);
    }
    let (left, right) = (a.shape(), b.shape());
    // One matrix for the whole batch: one product with more rows, which reads it once. The matrix stays a view.
    if right[..rank - 2].iter().all(|&n| n == 1) && left[..rank - 2].iter().any(|&n| n > 1) {
        let (mut shape, mut rows) = (left.clone(), left.clone());
        shape[rank - 1] = right[rank - 1];
        for axis in 0..rank - 2 {
            rows[rank - 2] *= left[axis];
            rows[axis] = 1;
        }
        return CubeBackend::float_reshape(computed(CubeBackend::float_reshape(a, rows), b), shape);
    }
    computed(a, b)
}

/// `y + scale · a b`, in the memory of y if it has no other owner and the Hopper kernel supports the product.
pub(crate) fn matmul_onto(y: CubeTensor, a: CubeTensor, b: CubeTensor, scale: f64) -> CubeTensor {
    let free = y.can_mut() && y.is_nonoverlapping();
    if free && is_half(&a) && is_aligned(&a) && is_aligned(&b) && wgmma::multiply(&a, &b, &y, scale as f32, true) {
        return y;
    }
    CubeBackend::float_add(y, CubeBackend::float_mul_scalar(matmul(a, b), Scalar::Float(scale)))
}

/// `scale · a b`.
pub(crate) fn scaled_matmul(a: CubeTensor, b: CubeTensor, scale: f64) -> CubeTensor {
    if is_half(&a) && is_aligned(&a) && is_aligned(&b) {
        let out = init_matmul_output(&a, &b, a.dtype);
        if wgmma::multiply(&a, &b, &out, scale as f32, false) {
            return out;
        }
    }
    CubeBackend::float_mul_scalar(matmul(a, b), Scalar::Float(scale))
}

fn is_half(x: &CubeTensor) -> bool {
    matches!(x.dtype, DType::BF16 | DType::F16)
}

type Product = (CubeTensor, CubeTensor, CubeTensor);

type Candidates = TunableSet<MatmulAutotuneKey, Product, ()>;

fn computed(a: CubeTensor, b: CubeTensor) -> CubeTensor {
    static TUNER: LocalTuner<MatmulAutotuneKey, CubeTuneId> = local_tuner!();
    let out = init_matmul_output(&a, &b, a.dtype);
    if a.shape().num_elements() == 0 || b.shape().num_elements() == 0 {
        return CubeBackend::float_zeros(out.shape(), &out.device, FloatDType::from(out.dtype));
    }
    if a.dtype != DType::F32 {
        of_halves(&(a, b, out.clone()));
        return out;
    }
    let (id, client) = (CubeTuneId::new(&a.client, &a.device), a.client.clone());
    let candidates = TUNER.init(&id, of_f32);
    TUNER.execute(&id, &client, candidates, (a, b, out.clone()));
    out
}

/// Kernels without tensor cores. The first supports every shape.
fn of_f32() -> Candidates {
    let fresh = |_: &MatmulAutotuneKey, (a, b, out): &Product| (a.clone(), b.clone(), out.copy());
    let is_vector = |key: &MatmulAutotuneKey| matches!(key.analysis.kind, MatmulKind::MatVec | MatmulKind::VecMat);
    let last = TuneGroup::new("last", |_: &MatmulAutotuneKey| 0);
    let matrices = TuneGroup::new("matrices", |_: &MatmulAutotuneKey| 1);
    let vectors = TuneGroup::new("vectors", move |key| if is_vector(key) { 2 } else { -1 });
    let all = [
        (Strategy::Naive, &last),
        (Strategy::SimpleUnit(Inferred(SimpleUnitSelectionArgs { tile_size: MaxTileSize })), &matrices),
        (Strategy::SimpleUnit(Inferred(SimpleUnitSelectionArgs { tile_size: MinTileSize })), &matrices),
        (Strategy::DoubleUnit(Inferred(DoubleUnitSelectionArgs { tile_size: MaxTileSize })), &matrices),
        (Strategy::SimpleVecMat(Inferred(().into())), &vectors),
        (Strategy::GemvUnitPerpendicular(Inferred(Default::default())), &vectors),
    ];
    all.into_iter().fold(TunableSet::new(key, fresh), |set, (strategy, group)| {
        let name = strategy.to_string();
        set.with(Tunable::new(&name, move |product| launch(&strategy, product)).group(group, |_| 0))
    })
}

/// Uses the first kernel that supports the product: on tensor cores with TMA copies (NVIDIA, since Hopper), on tensor cores with its own
/// copies, and without tensor cores for other types or shapes.
fn of_halves(product: &Product) {
    let (a, b, out) = product;
    let tile_matmul = TileMatmulKind::Mma;
    let by_tma = Strategy::SpecializedTmaMma(Inferred(().into()));
    let aligned = is_aligned(a) && is_aligned(b);
    if aligned && wgmma::multiply(a, b, out, 1.0, false) {
        return;
    }
    let all = [
        (aligned && batches(a) == batches(b)).then_some(by_tma),
        Some(Strategy::DoubleCyclicMma(Inferred(DoubleBufferingArgs { specialized: false, tile_matmul }))),
        Some(Strategy::SimpleUnit(Inferred(SimpleUnitSelectionArgs { tile_size: MaxTileSize }))),
        Some(Strategy::Naive),
    ];
    let taken = all.into_iter().flatten().any(|strategy| launch(&strategy, product.clone()).is_ok());
    assert!(taken, "the plainest kernel takes every product");
}

fn batches(x: &CubeTensor) -> Vec<usize> {
    x.shape()[..x.rank() - 2].to_vec()
}

/// Whether every row of a tensor, and every matrix of a batch, is contiguous and aligned to sixteen bytes.
fn is_aligned(x: &CubeTensor) -> bool {
    let whole = 16 / x.dtype.size();
    let (shape, strides) = (x.shape(), x.meta.strides());
    let apart = (0..x.rank()).all(|axis| match (shape[axis], strides[axis]) {
        (1, _) => true,
        (_, 1) => axis + 2 >= x.rank(),
        (_, stride) => stride > 0 && stride.is_multiple_of(whole),
    });
    let in_line = strides[x.rank() - 2..].contains(&1);
    apart && in_line && x.handle.offset_start.unwrap_or(0).is_multiple_of(16)
}

fn key((a, b, out): &Product) -> MatmulAutotuneKey {
    let (left, right, element) = (&a.meta, &b.meta, element(out));
    MatmulAutotuneKey::generate(
        &out.client,
        left.shape(),
        right.shape(),
        left.strides(),
        right.strides(),
        left.tiling,
        right.tiling,
        element,
        element,
        element,
        None,
        None,
    )
}

fn launch(strategy: &Strategy, (a, b, out): Product) -> Result<(), String> {
    let element = element(&out);
    let mut elems = MatmulElems::from_globals(&MatmulGlobalElems { lhs: element, rhs: element, out: element });
    let client = out.client.clone();
    let [a, b] = [a, b].map(|x| InputBinding::new(x.binding(), element));
    launch_ref(&strategy.clone().into(), &client, a, b, out.binding(), &mut elems).map_err(|e| format!("{e:?}"))
}
