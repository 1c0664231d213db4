//! `probe`: look into a model. Parses, calls, prints.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use switchyard::commands::{
    activations::Activations, adapter::AdapterArgs, bench::Bench, calibrate::Calibrate, check::Check, completions,
    exit, experiments::Experiments, generate::Generate, random_weights::RandomWeights,
};

/// Keeps the memory of one step for the next: pages given back to the system are paid for again (benches/PROFILE.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Look into models: run the observational experiments, continue a prompt, write activations to a file.
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  probe                                     every experiment on fixtures/micro\n  \
                  probe runs/micro --only teacher_forced    one experiment on a run of `train`\n  \
                  probe SmolLM2.gguf --data gsm8k/test.jsonl --problems 50\n  \
                  probe generate runs/micro --phase sft --prompt '<bos> a = 5 ; ? a :'\n  \
                  probe calibrate                           how often are the verdicts themselves right?"
)]
struct Probe {
    #[command(flatten)]
    experiments: Experiments,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    Activations(Activations),
    Adapter(AdapterArgs),
    Bench(Bench),
    Calibrate(Calibrate),
    Check(Check),
    Generate(Generate),
    RandomWeights(RandomWeights),
}

fn main() -> ExitCode {
    let probe = completions::parse::<Probe>();
    exit(match probe.what {
        None => probe.experiments.run(),
        Some(What::Activations(activations)) => activations.run(),
        Some(What::Adapter(adapter)) => adapter.run(),
        Some(What::Bench(bench)) => bench.run(),
        Some(What::Calibrate(calibrate)) => calibrate.run(),
        Some(What::Check(check)) => check.run(),
        Some(What::Generate(generate)) => generate.run(),
        Some(What::RandomWeights(random)) => random.run(),
    })
}
