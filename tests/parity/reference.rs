//! Reads fixtures and compares with them through the library's comparison; panics on an error.

use std::path::PathBuf;

use burn::tensor::{Device, Tensor};
use switchyard::model::Decoder;
use switchyard::model::checkpoint::{HostTensor, ModelFiles};
pub use switchyard::parity::TINY;
pub use switchyard::parity::reference::References;
use switchyard::parity::reference::{self, Deviation};
use switchyard::parity::{Fixtures, ParityComparison};

pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(".").join("fixtures").join(path)
}

/// All reference values, on the CPU backend.
pub fn fixtures() -> Fixtures {
    Fixtures::new(fixture(""), Device::flex())
}

/// Asserts that every comparison is within its bound.
#[track_caller]
pub fn assert_all(compared: anyhow::Result<Vec<ParityComparison>>) {
    let compared = compared.expect("reference values");
    assert!(!compared.is_empty());
    for one in &compared {
        println!("{}: {:.1e}", one.what, one.found.off);
        assert!(one.passes(), "{one:?}");
    }
}

pub fn read(path: &str) -> References {
    reference::read(&fixture(path)).expect("reference values")
}

/// The rows of ids of a tiny model.
pub fn rows(references: &References) -> Vec<Vec<u32>> {
    reference::rows(references).expect("rows of ids")
}

pub fn tiny(name: &str, device: &Device) -> Decoder {
    let checkpoint = ModelFiles::open_folder(fixture(&format!("tiny/{name}"))).expect("the fixture opens");
    Decoder::load(&checkpoint, device).expect("the fixture loads")
}

pub fn values<const R: usize>(x: &Tensor<R>) -> Vec<f32> {
    reference::values(x).expect("values on the host")
}

/// max |ours − reference| ÷ max |reference|.
#[track_caller]
pub fn relative(ours: &[f32], theirs: &[f32], what: &str) -> f32 {
    let off = Deviation::relative(ours, theirs).off;
    assert!(off.is_finite(), "{what}: a value is missing or not finite");
    off as f32
}

/// Compares every gradient of `ours` with `prefix.grad.*`. Returns the largest difference.
#[track_caller]
pub fn compare_gradients(ours: &[(String, HostTensor)], references: &References, prefix: &str, bound: f32) -> f32 {
    let all = reference::gradients(ours, references, prefix).expect("the same gradients");
    let worst = all.iter().map(|found| found.off as f32).fold(0.0, f32::max);
    assert!(!all.is_empty() && worst <= bound, "{prefix}: off by {worst:e}");
    worst
}
