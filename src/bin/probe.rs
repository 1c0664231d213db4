//! `probe`: look into a model. Parses, calls, prints.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use switchyard::commands::{activations::Activations, exit, generate::Generate, teacher_forced::TeacherForced};

/// Look into a model: continue a prompt, or write its activations to a file.
#[derive(Parser)]
#[command(version)]
struct Probe {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Activations(Activations),
    Generate(Generate),
    TeacherForced(TeacherForced),
}

fn main() -> ExitCode {
    exit(match Probe::parse().what {
        What::Activations(activations) => activations.run(),
        What::Generate(generate) => generate.run(),
        What::TeacherForced(experiment) => experiment.run(),
    })
}
