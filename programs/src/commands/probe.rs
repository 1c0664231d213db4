//! `probe`: look into a model. Without a subcommand it runs the observational experiments.

use anyhow::Result;
use clap::{Parser, Subcommand};

use super::activations::Activations;
use super::adapter::AdapterArgs;
use super::bench::Bench;
use super::calibrate::Calibrate;
use super::card::Card;
use super::check::Check;
use super::experiments::Experiments;
use super::explore::Explore;
use super::film::Film;
use super::generate::Generate;
use super::import::Import;
use super::info::InfoArgs;
use super::lens::{LensArgs, PatternArgs};
use super::random_weights::RandomWeights;
use super::session::Session;
use switchyard::machine::threads;
use switchyard::parallel::on_the_pool;

/// Inspect models: run the observational experiments, continue a prompt, write activations to a file.
#[derive(Parser)]
#[command(
    name = "probe",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  probe                                     a first look at fixtures/micro; --all runs every experiment\n  \
                  probe runs/micro --only teacher_forced    one experiment on a run of `train`\n  \
                  probe SmolLM2.gguf --data gsm8k/test.jsonl --problems 50\n  \
                  probe generate runs/micro --phase sft --prompt '<bos> a = 5 ; ? a :'\n  \
                  probe lens fixtures/micro --phase sft --prompt '<bos> a = 5 ; h = a + 4'\n  \
                  probe card fixtures/micro --phase sft     what do the latents do?\n  \
                  probe info fixtures/micro                 shape, way of reasoning, opaque serial depth\n  \
                  probe calibrate                           how often are the verdicts themselves right?"
)]
pub struct Probe {
    #[command(flatten)]
    experiments: Experiments,
    #[command(subcommand)]
    what: Option<ProbeCommand>,
}

#[derive(Subcommand)]
enum ProbeCommand {
    Activations(Activations),
    Adapter(AdapterArgs),
    Bench(Bench),
    Calibrate(Calibrate),
    Card(Card),
    Check(Check),
    Explore(Explore),
    Film(Film),
    Generate(Generate),
    Import(Import),
    Info(InfoArgs),
    Lens(LensArgs),
    Patterns(PatternArgs),
    RandomWeights(RandomWeights),
    Session(Session),
}

impl Probe {
    pub fn run(self) -> Result<()> {
        match self.what {
            None => self.experiments.run(),
            Some(ProbeCommand::Activations(activations)) => activations.run(),
            Some(ProbeCommand::Adapter(adapter)) => on_the_pool(threads(), || adapter.run())?,
            Some(ProbeCommand::Bench(bench)) => bench.run(),
            Some(ProbeCommand::Calibrate(calibrate)) => calibrate.run(),
            Some(ProbeCommand::Card(card)) => card.run(),
            Some(ProbeCommand::Check(check)) => check.run(),
            Some(ProbeCommand::Explore(explore)) => explore.run(),
            Some(ProbeCommand::Film(film)) => film.run(),
            Some(ProbeCommand::Generate(generate)) => generate.run(),
            Some(ProbeCommand::Import(import)) => import.run(),
            Some(ProbeCommand::Info(info)) => info.run(),
            Some(ProbeCommand::Lens(lens)) => lens.run(),
            Some(ProbeCommand::Patterns(patterns)) => patterns.run(),
            Some(ProbeCommand::RandomWeights(random)) => on_the_pool(threads(), || random.run())?,
            Some(ProbeCommand::Session(session)) => session.run(),
        }
    }
}
