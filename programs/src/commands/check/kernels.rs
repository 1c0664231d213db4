//! Every operation with a GPU kernel: values and gradients compared with the CPU's single passes and with the composition of Burn's
//! operations. Odd sizes, one row, rows of a vocabulary's size, views, rows that see nothing.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use rand::{Rng, SeedableRng};

use super::kernel_cases;
use switchyard::machine::Machine;
use switchyard::ops;
use switchyard::parity::ParityComparison;
use switchyard::parity::reference::{Deviation, values};
use switchyard::progress::say;

const F32: FloatDType = FloatDType::F32;

/// Bound for values: f32 sums in another order (the CPU sums a vocabulary in sixteen partial sums), and a driver's exponential.
const VALUES: f64 = 1e-5;

/// Bound for gradients, which are differences of such sums.
const GRADIENTS: f64 = 2e-5;

/// Bounds for values and gradients in 16 bits, with rounded inputs: slightly more than the rounding of an output.
pub(super) const HALVES: [(FloatDType, &str, f64); 2] =
    [(FloatDType::F16, "f16", 1e-3), (FloatDType::BF16, "bf16", 8e-3)];

/// Below this, f16 has fewer digits.
const SMALL: f32 = 1e-4;

/// Sums of more values are compared with Burn's operations on the CPU. On lavapipe, Burn 0.22.1's softmax of 151,672 values had an error of
/// 0.27 of the largest, and the gradient of a weight that 70,000 rows share one of 0.21, where the kernels and the CPU agreed to 6e-6.
pub(super) const MANY: usize = 65_535;

/// Implementation of an operation: the crate's own on a device, or the composition of Burn's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Fused,
    Composed,
    /// As `Fused`, for inputs of 16 bits.
    Halves,
}

type Operation = Box<dyn Fn(&[Tensor<4>], Way) -> Tensor<4>>;

/// One operation on inputs of one shape.
pub(super) struct Case {
    pub operation: &'static str,
    pub shape: String,
    pub inputs: Vec<TensorData>,
    /// Whether gradients of the inputs are compared; decoding and the optimiser have none.
    pub gradients: bool,
    /// Whether Burn's operations run on the device; otherwise on the CPU. A device tunes each shape of a matrix product first, which on a
    /// software driver takes longer than everything else here; and some of Burn's own sums of very many values were wrong there (see
    /// [`MANY`]).
    pub there: bool,
    /// Minimum scale of relative differences: for gradients whose terms cancel.
    pub floor: f32,
    pub run: Operation,
}

/// Pseudo-random numbers of about the given size.
pub(super) fn noise(shape: [usize; 4], seed: u64, size: f32) -> TensorData {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let n: usize = shape.iter().product();
    TensorData::new((0..n).map(|_| (rng.random::<f32>() - 0.5) * 2.0 * size).collect::<Vec<_>>(), shape)
}

impl Case {
    /// Whether the kernels support it in 16 bits. Cases that first need matrix products are skipped.
    fn runs_in_halves(&self) -> bool {
        match self.operation {
            "rms_norm" | "swiglu" | "rotate" | "softmax" | "append_heads" | "add_rms_norm" => true,
            "attend" => !self.there,
            _ => false,
        }
    }

    /// The comparison on inputs rounded to a type.
    fn rounded(self, dtype: FloatDType) -> Self {
        let round = |x: TensorData| x.convert_dtype(dtype.into()).convert_dtype(DType::F32);
        Self { inputs: self.inputs.into_iter().map(round).collect(), ..self }
    }
}

/// The values of a case and the gradients of its inputs under a fixed weighting of its outputs.
fn computed(case: &Case, device: &Device, dtype: FloatDType, way: Way) -> Result<(Vec<f32>, Vec<f32>)> {
    let device = if case.gradients { device.clone().autodiff() } else { device.clone() };
    let on_device = |data: &TensorData| {
        Tensor::<4>::from_data(data.clone().convert_dtype(dtype.into()), (&device, DType::from(dtype)))
    };
    let inputs: Vec<Tensor<4>> = case.inputs.iter().map(on_device).collect();
    if !case.gradients {
        return Ok((values(&(case.run)(&inputs, way))?, vec![]));
    }
    let inputs: Vec<Tensor<4>> = inputs.into_iter().map(Tensor::require_grad).collect();
    let out = (case.run)(&inputs, way);
    let weights = on_device(&noise(out.dims(), 99, 1.0));
    let grads = (out.clone() * weights).sum().backward();
    let mut gradients = vec![];
    for input in &inputs {
        match input.grad(&grads) {
            Some(gradient) => gradients.extend(values(&gradient)?),
            None => anyhow::bail!("{} {}: an input without a gradient", case.operation, case.shape),
        }
    }
    Ok((values(&out.without_autodiff())?, gradients))
}

/// All cases of `kernel_cases`: one line per operation, compared quantity and reference.
pub(super) fn against_the_cpu_and_the_composition(device: &Device) -> Result<Vec<ParityComparison>> {
    let some = Tensor::<1>::zeros([1], device);
    // Without the kernels, the composition would be compared with itself. If Burn fuses, there is no alternative.
    ensure!(cfg!(feature = "fusion") || ops::is_fused(&some), "this build has no kernels for the device");
    let cpu = Machine::default().device;
    let mut found: BTreeMap<(&str, &str, &str), Deviation> = BTreeMap::new();
    for case in kernel_cases::all() {
        let ours = computed(&case, device, F32, Way::Fused)?;
        let place = if case.there { device } else { &cpu };
        for (whom, other, way) in [("the CPU", &cpu, Way::Fused), ("Burn's operations", place, Way::Composed)] {
            let theirs = computed(&case, other, F32, way)?;
            let mut note = |what, ours: &[f32], theirs: &[f32], floor| {
                let deviation = Deviation::above(floor, ours, theirs).at(&case.shape);
                let (operation, shape, off) = (case.operation, &case.shape, deviation.off);
                say(&format!("check: {operation} {shape}: {what} against {whom}: off by {off:.1e}"));
                found.entry((operation, what, whom)).or_default().merge(deviation);
            };
            note("values", &ours.0, &theirs.0, f32::MIN_POSITIVE);
            if case.gradients {
                note("gradients", &ours.1, &theirs.1, case.floor);
            }
        }
    }
    let compared = |((operation, what, whom), found): ((&str, &str, &str), Deviation)| {
        let bound = if what == "values" { VALUES } else { GRADIENTS };
        ParityComparison::new(format!("{operation}: {what} against {whom}"), bound, [found])
    };
    let mut all: Vec<ParityComparison> = found.into_iter().map(compared).collect();
    for (dtype, name, bound) in HALVES {
        if device.supports_dtype(dtype) {
            let cases = kernel_cases::all().into_iter().filter(Case::runs_in_halves).collect();
            all.extend(in_one_type(cases, device, &cpu, dtype, name, bound)?);
        }
    }
    Ok(all)
}

/// Operations in one type, mostly of 16 bits, compared with the CPU in f32 on the same inputs.
pub(super) fn in_one_type(
    cases: Vec<Case>,
    device: &Device,
    cpu: &Device,
    dtype: FloatDType,
    name: &str,
    bound: f64,
) -> Result<Vec<ParityComparison>> {
    let mut found: BTreeMap<&str, Deviation> = BTreeMap::new();
    for case in cases {
        let case = case.rounded(dtype);
        let (ours, theirs) = (computed(&case, device, dtype, Way::Halves)?, computed(&case, cpu, F32, Way::Halves)?);
        let mut deviation = Deviation::above(SMALL, &ours.0, &theirs.0);
        deviation.merge(Deviation::above(case.floor.max(SMALL), &ours.1, &theirs.1));
        say(&format!("check: {} {} in {name}: off by {:.1e}", case.operation, case.shape, deviation.off));
        found.entry(case.operation).or_default().merge(deviation.at(&case.shape));
    }
    let compared = |(operation, found): (&str, Deviation)| {
        let what = format!("{operation} in {name}: values and gradients against the CPU in f32");
        ParityComparison::new(what, bound, [found])
    };
    Ok(found.into_iter().map(compared).collect())
}
