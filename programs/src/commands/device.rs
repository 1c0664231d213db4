//! `--device`, `--dtype`, `--threads`, `--list-devices`: the same for every program with a model. Knows clap and [`Machine`].

use anyhow::{Result, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command};

use super::setting;
use switchyard::machine::{self, Compute, Machine};
use switchyard::ops::Cpu;
use switchyard::parallel;

/// Of the options here alone: the heading of a whole group would go on over the options after it.
const HEADING: &str = "Device";

/// Device of the computation.
#[derive(Args, Clone, Debug)]
pub struct MachineArgs {
    /// cpu; cuda[:N] or wgpu[:N] in a build with that feature (wgpu: Vulkan, Metal or DirectX 12). With `cuda` and `wgpu`, the processes that a
    /// launcher starts on one computer use different GPUs
    #[arg(long, help_heading = HEADING, default_value = "cpu")]
    device: String,
    /// Float type of the computation; trained weights stay f32. `tf32` is f32 whose products NVIDIA's GPUs since Ampere round to 10
    /// bits of mantissa, for their tensor cores (PyTorch's `allow_tf32`). `stored` computes in f32 with frozen weights in their file's type
    /// (bf16, f16, GGUF's Q8_0, Q6_K, Q5, Q4) in the computer's or the GPU's memory: for models that are examined, and for the base under
    /// `train`'s LoRA factors. `stored-bf16`, on the CPU and not for `train`, does the same and rounds the inputs of products to bf16, as
    /// PyTorch does in bf16: three digits instead of seven, and on processors with bf16 products long prompts take about half the time.
    /// `stored-q8`, on the CPU and for decoding alone, rounds the inputs of matrices of integers to 8 bits, as llama.cpp does: two digits. By
    /// default stored on the CPU and f32 on a GPU, for `train` the recipe's optimizer.dtype (f32)
    #[arg(long, help_heading = HEADING, value_parser = dtypes())]
    dtype: Option<Compute>,
    /// Worker threads; by default one per core. Training results depend on this number, so a run must be resumed with the same
    #[arg(long, help_heading = HEADING, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// Parses the name of a float type; help and completions list all of them.
fn dtypes() -> impl TypedValueParser<Value = Compute> {
    PossibleValuesParser::new(Compute::ALL.map(Compute::name)).try_map(|name| setting::<Compute>(&name))
}

impl MachineArgs {
    /// The float type, if the user named one.
    pub fn dtype(&self) -> Option<Compute> {
        self.dtype
    }

    /// As [`Self::compute_decoding`], for work that reads or differentiates states: refuses `stored-q8`.
    pub fn compute<R: Send>(&self, work: impl FnOnce(&Machine) -> Result<R> + Send) -> Result<R> {
        ensure!(
            self.dtype() != Some(Compute::StoredQ8),
            "--dtype stored-q8 rounds inputs to 8 bits: for `probe generate`, `probe bench` and experiments that only decode; use stored"
        );
        self.compute_decoding(work)
    }

    /// Runs a program's work on this machine, with equally many threads for tensor operations and workers.
    pub fn compute_decoding<R: Send>(&self, work: impl FnOnce(&Machine) -> Result<R> + Send) -> Result<R> {
        Cpu::chosen()?;
        let device = machine::by_name(&self.device)?;
        let machine = Machine {
            dtype: self.dtype().unwrap_or_else(|| Compute::for_examining(&device)),
            device,
            threads: self.threads.map_or_else(machine::threads, usize::from),
        };
        machine.dtype.begin(&machine.device)?;
        parallel::on_the_pool(machine.threads, || work(&machine))?
    }
}

const LIST: &str = "list_devices";

/// Adds `--list-devices` to programs and subcommands with `--device`.
pub(super) fn with_list(command: Command) -> Command {
    let command = command.mut_subcommands(with_list);
    if !command.get_arguments().any(|arg| arg.get_id() == "device") {
        return command;
    }
    let about = "List the devices of this build and computer, with the float types that they compute in";
    // Exclusive: it needs none of the required arguments.
    let list = Arg::new(LIST).long("list-devices").action(ArgAction::SetTrue).help(about).help_heading(HEADING);
    command.arg(list.exclusive(true))
}

/// Prints the list of devices if requested.
pub(super) fn list(matches: &ArgMatches) -> Option<String> {
    let asked = matches.try_get_one::<bool>(LIST).ok().flatten().is_some_and(|asked| *asked);
    if asked { Some(machine::list()) } else { matches.subcommand().and_then(|(_, inner)| list(inner)) }
}
