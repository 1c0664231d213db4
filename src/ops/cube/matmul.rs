//! Products of f32 that are computed in f32.
//!
//! Burn tries several kernels for every shape and keeps the fastest. For f32, on NVIDIA's GPUs since Ampere, most of them round both
//! factors to TF32 (10 bits of mantissa of 23): results would be off by some 1e-3, and by whichever kernel was fastest on that day.
//! PyTorch does not do that unless asked. Here the same kernels compete, without those that round, unless [`rounds_to_tf32`].

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType, Shape, Slice};
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};
use burn_cubecl::cubecl::tune::{LocalTuner, Tunable, TunableSet, TuneGroup, local_tuner};
use burn_cubecl::kernel::matmul::init_matmul_output;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice, CubeTuneId};
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems, MatmulKind};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy;
use cubek::matmul::multi_level::routines::TileSizeSelection::{MaxTileSize, MinTileSize};
use cubek::matmul::multi_level::routines::batch::double_unit::DoubleUnitSelectionArgs;
use cubek::matmul::multi_level::routines::batch::simple_unit::SimpleUnitSelectionArgs;
use cubek::matmul::routine::BlueprintStrategy::Inferred;
use cubek::matmul::tune_key::MatmulAutotuneKey;
use cubek::std::InputBinding;

use crate::ops::rounds_to_tf32;

const F32: ElemType = ElemType::Float(FloatKind::F32);

/// Whether Burn's products of f32 may be computed in fewer bits, and must not be.
pub(in crate::ops) fn rounds_products(device: &CubeDevice) -> bool {
    has_tf32(device) && !rounds_to_tf32()
}

pub(in crate::ops) fn has_tf32(device: &CubeDevice) -> bool {
    device.client().properties().supports_type(ElemType::Float(FloatKind::TF32))
}

/// Products that are added one after the other, at most: over a vocabulary of 151,672 a single chain was off by 9e-5. Memory is aligned
/// to fewer values, so that a part of a large matrix is a view of it and no copy.
const CHAIN: usize = 1 << 14;

/// `a b`: `[.., M, K]`, `[.., K, N]` → `[.., M, N]`.
pub(in crate::ops) fn matmul(a: CubeTensor, b: CubeTensor) -> CubeTensor {
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
    if a.dtype != DType::F32 || !rounds_products(&a.device) {
        return CubeBackend::float_matmul(a, b);
    }
    let (left, right) = (a.shape(), b.shape());
    // One matrix for all of a batch: one product with more rows, which reads it once.
    if right[..rank - 2].iter().all(|&n| n == 1) && left[..rank - 2].iter().any(|&n| n > 1) {
        let mut shape = left.clone();
        shape[rank - 1] = right[rank - 1];
        let rows = left[..rank - 1].iter().product();
        let a = CubeBackend::float_reshape(a, Shape::new([rows, depth]));
        let b = CubeBackend::float_reshape(b, Shape::new([depth, right[rank - 1]]));
        return CubeBackend::float_reshape(tuned(a, b), shape);
    }
    tuned(a, b)
}

type Product = (CubeTensor, CubeTensor, CubeTensor);

fn tuned(a: CubeTensor, b: CubeTensor) -> CubeTensor {
    static TUNER: LocalTuner<MatmulAutotuneKey, CubeTuneId> = local_tuner!();
    let out = init_matmul_output(&a, &b, a.dtype);
    if a.shape().num_elements() == 0 || b.shape().num_elements() == 0 {
        return CubeBackend::float_zeros(out.shape(), &out.device, FloatDType::F32);
    }
    let (id, client) = (CubeTuneId::new(&a.client, &a.device), a.client.clone());
    let candidates = TUNER.init(&id, candidates);
    TUNER.execute(&id, &client, candidates, (a, b, out.clone()));
    out
}

/// The kernels of Burn's own choice for f32 that need no tensor cores.
fn candidates() -> TunableSet<MatmulAutotuneKey, Product, ()> {
    let is_vector = |key: &MatmulAutotuneKey| matches!(key.analysis.kind, MatmulKind::MatVec | MatmulKind::VecMat);
    let vectors = TuneGroup::new("vectors", move |key| if is_vector(key) { 1 } else { -1 });
    let matrices = TuneGroup::new("matrices", |_: &MatmulAutotuneKey| 0);
    let fresh = |_: &MatmulAutotuneKey, (a, b, out): &Product| (a.clone(), b.clone(), out.copy());
    // The first is what is left where no other can take a shape.
    let general = [
        Strategy::Naive,
        Strategy::SimpleUnit(Inferred(SimpleUnitSelectionArgs { tile_size: MaxTileSize })),
        Strategy::SimpleUnit(Inferred(SimpleUnitSelectionArgs { tile_size: MinTileSize })),
        Strategy::DoubleUnit(Inferred(DoubleUnitSelectionArgs { tile_size: MaxTileSize })),
        Strategy::DoubleUnit(Inferred(DoubleUnitSelectionArgs { tile_size: MinTileSize })),
        Strategy::Gemm(Inferred(Default::default())),
    ];
    let for_vectors = [
        Strategy::DoubleVecMat(Inferred(().into())),
        Strategy::SimpleVecMat(Inferred(().into())),
        Strategy::GemvUnitPerpendicular(Inferred(Default::default())),
    ];
    let all = general.map(|strategy| (strategy, &matrices)).into_iter().chain(for_vectors.map(|s| (s, &vectors)));
    all.fold(TunableSet::new(key, fresh), |set, (strategy, group)| {
        let name = strategy.to_string();
        set.with(Tunable::new(&name, move |product| launch(&strategy, product)).group(group, |_| 0))
    })
}

fn key((a, b, out): &Product) -> MatmulAutotuneKey {
    let (left, right) = (&a.meta, &b.meta);
    MatmulAutotuneKey::generate(
        &out.client,
        left.shape(),
        right.shape(),
        left.strides(),
        right.strides(),
        left.tiling,
        right.tiling,
        F32,
        F32,
        F32,
        None,
        None,
    )
}

fn launch(strategy: &Strategy, (a, b, out): Product) -> Result<(), String> {
    let mut elems = MatmulElems::from_globals(&MatmulGlobalElems { lhs: F32, rhs: F32, out: F32 });
    let client = out.client.clone();
    let [a, b] = [a, b].map(|x| InputBinding::new(x.binding(), F32));
    launch_ref(&strategy.clone().into(), &client, a, b, out.binding(), &mut elems).map_err(|e| format!("{e:?}"))
}
