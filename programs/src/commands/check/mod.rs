//! `probe check`: the reference values of `fixtures/`, computed again on a device; and whole programs on it against the CPU.

mod halves;
mod kernel_cases;
mod kernels;
mod memory;
mod parts;
mod products;
mod rows;
mod stored;
mod stored_cases;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;

use super::committed::fixture_path;
use super::device::MachineArgs;
use super::print;
use parts::{PARTS, Part, Setting};
use switchyard::machine::{self, Compute, Machine};
use switchyard::parity::{Fixtures, ParityComparison};
use switchyard::progress::say;
use switchyard::store::write_atomic;

/// Check a device: recompute the committed reference values of PyTorch on it, and print the errors.
///
/// Forward at every hook point, gradients, latents, decoding, a supervised step and a Switch-GRPO step. With --part also whole programs, on
/// the CPU and on the device: training with one and two workers, Switch-GRPO, `intervene`, every experiment of `probe` and its verdicts, a
/// rollout that exceeds the memory. Exit code 2 if a difference exceeds its bound. Bounds are for f32: a GPU that multiplies in tf32
/// needs --loosen 100.
#[derive(Args, Debug)]
pub struct Check {
    /// The repository's folder of reference values
    #[arg(long, value_name = "DIR", default_value = "fixtures")]
    fixtures: PathBuf,
    /// Multiply every bound by this
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    loosen: f64,
    /// Parts: reference, kernels (ours, compared with the CPU and Burn's operations), products (matrix products) and halves (whole models) in
    /// bf16 and f16 if the device supports them, stored (models with matrices in their file format), training, grpo, intervene, probe, verdicts
    /// (of the results of intervene and probe), memory; or `all`
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "reference")]
    part: Vec<String>,
    /// Held-out problems of intervene and probe; fewer than 100 are too few for some experiments
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..))]
    problems: u32,
    /// Refuse a GPU whose name does not contain this, before any work
    #[arg(long, value_name = "TEXT")]
    adapter: Option<String>,
    /// Also write the table to this file, after each part
    #[arg(long, value_name = "FILE.md")]
    out: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
}

struct PartResult {
    part: &'static str,
    seconds: f64,
    result: Result<Vec<ParityComparison>>,
}

impl PartResult {
    fn passes(&self) -> bool {
        self.result.as_ref().is_ok_and(|all| !all.is_empty() && all.iter().all(ParityComparison::passes))
    }
}

impl Check {
    pub fn run(&self) -> Result<()> {
        ensure!(self.loosen.is_finite() && self.loosen > 0.0, "--loosen must be above 0, found {}", self.loosen);
        ensure!(
            matches!(self.machine.dtype(), None | Some(Compute::F32 | Compute::Tf32)),
            "the reference values are f32: omit --dtype, or use tf32 with --loosen (the part `halves` has 16 bits)"
        );
        let parts = self.parts()?;
        self.machine.compute(|machine| self.run_on(machine, &parts))
    }

    /// The requested parts, in their order.
    fn parts(&self) -> Result<Vec<&'static Part>> {
        let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        for name in self.part.iter().filter(|name| *name != "all") {
            ensure!(names.contains(&name.as_str()), "--part: no part `{name}`; there are {}, all", names.join(", "));
        }
        let asked = |part: &&Part| self.part.iter().any(|name| name == part.name || name == "all");
        Ok(PARTS.iter().filter(asked).collect())
    }

    fn run_on(&self, machine: &Machine, parts: &[&'static Part]) -> Result<()> {
        let device = machine::described(&machine.device);
        if let Some(wanted) = &self.adapter {
            ensure!(device.contains(wanted.as_str()), "--adapter {wanted}: the device is {device}");
        }
        let folder = tempfile::tempdir().context("a folder for runs and rows")?;
        let setting = Setting {
            fixtures: Fixtures::new(fixture_path(&self.fixtures), machine.device.clone()),
            problems: self.problems as usize,
            folder: folder.path().to_owned(),
        };
        let mut done = vec![];
        for part in parts {
            let started = Instant::now();
            // A part that panics fails; the others still run.
            let result = catch_unwind(AssertUnwindSafe(|| (part.run)(&setting)));
            let mut result = result.unwrap_or_else(|_| Err(anyhow!("it panicked (see above)")));
            if let Ok(all) = &mut result {
                all.iter_mut().for_each(|compared| compared.bound *= self.loosen);
            }
            done.push(PartResult { part: part.name, seconds: started.elapsed().as_secs_f64(), result });
            say(&format!("check: {} done in {:.0} s", part.name, started.elapsed().as_secs_f64()));
            if let Some(out) = &self.out {
                write_atomic(out, table::markdown(&device, machine.threads, &done)?.as_bytes())?;
            }
        }
        print(&table::plain(&device, &done))?;
        let failed = done.iter().filter(|done| !done.passes()).map(|done| done.part).collect::<Vec<_>>();
        ensure!(failed.is_empty(), "differences beyond their bounds, or errors, in: {}", failed.join(", "));
        Ok(())
    }
}
