//! Cases of the part `kernels` with matrices in their file format: all formats, and rows of floats after them.

use anyhow::Result;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::kernel_cases::{tracked, untracked};
use super::kernels::{Case, Way, noise};
use switchyard::ops::stored::{Format, StoredMatrix};
use switchyard::ops::{self, FrozenMatrix, Targets};

pub(super) fn all() -> Vec<Case> {
    let cases = [products(), rows(), heads()].into_iter().flatten();
    cases.map(|case| Case { there: false, ..case }).collect()
}

/// Two formats in one matrix: added rows are floats.
fn with_added(format: Format, n: usize, k: usize) -> StoredMatrix {
    let more: Vec<f32> = (0..2 * k).map(|i| i as f32 / 900.0 - 0.3).collect();
    StoredMatrix::drawn(format, n, k).with_rows(&more).unwrap_or_else(|e| unreachable!("whole rows: {e}"))
}

/// The same matrix on a device.
fn frozen(stored: &StoredMatrix, device: &Device) -> FrozenMatrix {
    let there = FrozenMatrix::new(stored.clone(), &device.clone().inner());
    there.unwrap_or_else(|e| unreachable!("asked before, for kernels: {e}"))
}

/// The matrix as floats, `[N, K]`.
fn floats(stored: &StoredMatrix, device: &Device) -> Tensor<2> {
    let shape = [stored.rows(), stored.width()];
    Tensor::from_data(TensorData::new(stored.widened_range(0..shape[0]), shape), &device.clone().inner())
}

/// `x Wᵀ` of m rows.
fn forth(name: &str, w: StoredMatrix, m: usize) -> Case {
    let [n, k] = [w.rows(), w.width()];
    tracked("linear_stored", format!("{m} rows with {name}"), vec![noise([1, 1, m, k], 21, 1.0)], move |x, way| {
        let (device, flat) = (x[0].device(), x[0].clone().reshape([1, m, k]));
        let y = match way {
            Way::Fused | Way::Halves => ops::linear_stored(flat, &frozen(&w, &device)),
            Way::Composed => flat.matmul(floats(&w, &device).transpose().unsqueeze()),
        };
        y.reshape([1, 1, m, n])
    })
}

/// `y W` of m rows.
fn back(name: &str, w: StoredMatrix, m: usize) -> Case {
    let [n, k] = [w.rows(), w.width()];
    tracked("linear_stored_back", format!("{m} rows with {name}"), vec![noise([1, 1, m, n], 22, 1.0)], move |y, way| {
        let (device, flat) = (y[0].device(), y[0].clone().reshape([1, m, n]));
        let x = match way {
            Way::Fused | Way::Halves => ops::linear_stored_back(flat, &frozen(&w, &device)),
            Way::Composed => flat.matmul(floats(&w, &device).unsqueeze()),
        };
        x.reshape([1, 1, m, k])
    })
}

fn products() -> Vec<Case> {
    let mut out = vec![];
    for format in Format::ALL {
        // Rows of x: for decoding one group of a cube, several, one with a remainder; and more, for products of floats.
        let shapes = [[1, 256, 67], [3, 512, 5], [13, 256, 70], [1, 96, 9], [40, 256, 33], [2, 40, 9], [3, 7, 66]];
        for [m, k, n] in shapes.into_iter().filter(|[_, k, _]| k % format.block_len() == 0) {
            let (name, w) = (format!("{format:?} [{n}, {k}] and two rows of floats"), with_added(format, n, k));
            out.extend([forth(&name, w.clone(), m), back(&name, w, m)]);
        }
    }
    // More bytes than a software driver supports in one piece.
    let large = StoredMatrix::drawn(Format::F32, 8300, 4096);
    out.extend([1, 40].map(|m| Case { gradients: false, ..forth("F32 [8300, 4096]", large.clone(), m) }));
    out
}

/// Rows by number, from the host and from the device, and contiguous rows.
fn rows() -> Vec<Case> {
    let case = |format: Format| {
        let (k, w) = (512, with_added(format, 11, 512));
        let name = format!("{format:?} [11, {k}] and two rows of floats");
        let named = [3, 12, 0, 10, 11, 3];
        untracked("rows_stored", name, vec![noise([1, 1, 1, 1], 24, 1.0)], move |x, way| {
            let device = x[0].device();
            let ids: Vec<i64> = named.iter().map(|&row| row as i64).collect();
            let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [named.len()]), &device);
            let rows = match way {
                Way::Fused | Way::Halves => {
                    let w = frozen(&w, &device);
                    let there = if w.is_on_device() { w.select_on_device(ids) } else { w.select(&named, &device) };
                    let all = [w.select(&named, &device), there, Ok(w.range(2..12, &device))].into_iter();
                    all.collect::<Result<_>>().unwrap_or_else(|e| unreachable!("rows that are there: {e}"))
                }
                Way::Composed => {
                    let all = floats(&w, &device);
                    let picked = all.clone().select(0, ids);
                    vec![picked.clone(), picked, all.narrow(0, 2, 10)]
                }
            };
            Tensor::cat(rows, 0).reshape([1, 1, 22, k])
        })
    };
    Format::ALL.into_iter().map(case).collect()
}

/// A loss from a head whose last rows are trained.
fn heads() -> Vec<Case> {
    let [n, d, held, more] = [5, 256, 300, 3];
    let case = |format: Format| {
        let w = StoredMatrix::drawn(format, held, d);
        let inputs = vec![noise([1, 1, n, d], 25, 0.1), noise([1, 1, more, d], 26, 0.5)];
        tracked(
            "head_loss_stored",
            format!("{format:?} [{held}, {d}], {more} rows of floats"),
            inputs,
            move |x, way| {
                let targets = Targets::new(vec![301, 0, 299, 302, 7]);
                let (hidden, learnt) = (x[0].clone().reshape([n, d]), x[1].clone().reshape([more, d]));
                let device = x[0].device();
                let (loss, hits) = match way {
                    Way::Fused | Way::Halves => ops::head_loss_stored(hidden, learnt, &frozen(&w, &device), targets),
                    Way::Composed => {
                        let head = Tensor::cat(vec![floats(&w, &device), learnt], 0).transpose();
                        ops::loss_of_logits(hidden.matmul(head), targets)
                    }
                };
                Tensor::cat(vec![loss, hits], 0).reshape([1, 1, 2, n])
            },
        )
    };
    [Format::Q8_0, Format::Q4_K].map(case).into_iter().collect()
}
