//! `probe check`: the reference values of `fixtures/`, computed again on a device.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use super::device::MachineArgs;
use super::print;
use crate::machine::{self, Compute, Machine};
use crate::parity::{Compared, Fixtures};

/// Check a device: compute the committed reference values of PyTorch again on it, and print how far off they are.
///
/// Forward at every hook point, gradients, latents, decoding, a supervised step and a Switch-GRPO step. Ends with code 2 where a
/// difference is beyond its bound. Bounds are for f32: a GPU that multiplies in tf32 needs --loosen 100.
#[derive(Args, Debug)]
pub struct Check {
    /// The repository's folder of reference values
    #[arg(long, value_name = "DIR", default_value = "fixtures")]
    fixtures: PathBuf,
    /// Multiply every bound by this
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    loosen: f64,
    #[command(flatten)]
    machine: MachineArgs,
}

impl Check {
    /// # Errors
    /// Reference values that cannot be read, and differences beyond their bounds.
    pub fn run(&self) -> Result<()> {
        ensure!(self.loosen.is_finite() && self.loosen > 0.0, "--loosen must be above 0, found {}", self.loosen);
        ensure!(self.machine.dtype() != Some(Compute::Bf16), "the reference values are f32: leave --dtype out");
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let fixtures = Fixtures { root: self.fixtures.clone(), device: machine.device.clone() };
        let mut all = fixtures.all()?;
        all.iter_mut().for_each(|compared| compared.bound *= self.loosen);
        print(&table(&machine::name(&machine.device), &all))?;
        let failed = all.iter().filter(|compared| !compared.passes()).count();
        ensure!(failed == 0, "{failed} of {} comparisons are beyond their bounds", all.len());
        Ok(())
    }
}

/// A line a comparison, and a line about all.
fn table(device: &str, all: &[Compared]) -> String {
    let width = all.iter().map(|compared| compared.what.len()).max().unwrap_or(0);
    let mut out = format!("{:width$}  {:>8}  {:>8}  {:>9}\n", device, "off", "bound", "values");
    for compared in all {
        let Compared { what, off, bound, values } = compared;
        let verdict = if compared.passes() { "pass" } else { "FAIL" };
        out += &format!("{what:width$}  {off:8.1e}  {bound:8.1e}  {values:>9}  {verdict}\n");
    }
    let passed = all.iter().filter(|compared| compared.passes()).count();
    out + &format!("{passed} of {} pass\n", all.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_compared_and_no_number_are_failures() {
        let one = |off, values| Compared { what: "x".into(), off, bound: 1e-5, values };
        assert!(one(1e-5, 3).passes());
        assert!(!one(1.1e-5, 3).passes() && !one(0.0, 0).passes() && !one(f64::INFINITY, 3).passes());
        assert!(!one(f64::NAN, 3).passes());
        assert!(table("cpu", &[one(1e-6, 3), one(1.0, 3)]).contains("1 of 2 pass"));
    }
}
