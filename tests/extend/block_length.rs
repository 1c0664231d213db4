//! A stranger's experiment: how many latent steps a block has.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::latent::trace::PositionRole;
use crate::schema::Identity;
use crate::stats::Estimate;
use crate::stats::by_problem::mean;
use crate::store::RowWriter;
use crate::study::Study;

/// What it asks.
pub const ABOUT: &str = "latent steps per problem";

/// No settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The one row: a mean over problems with its interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockLengthRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub latent_steps: Option<Estimate>,
}

/// Decodes the problems and counts.
pub fn run(study: &Study, _config: &Config, writer: &mut RowWriter) -> Result<String> {
    let (_, traces) = study.decoded()?;
    let steps = |i: usize| traces[i].positions.iter().filter(|p| p.kind == PositionRole::Latent).count() as f64;
    let latent_steps = mean(study.seed, (0..traces.len()).map(|i| (i, steps(i))))?;
    writer.push(&BlockLengthRow { identity: study.identity(traces.len()), latent_steps: latent_steps.clone() })?;
    Ok(format!("{} latent steps a problem\n", latent_steps.context("no problems")?.value))
}
