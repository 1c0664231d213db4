//! A third-party experiment: how many latent steps a block has.

use anyhow::{Context, Result};

use super::{About, Journal};
use crate::latent::trace::PositionRole;
use crate::schema::Identity;
use crate::stats::Estimate;
use crate::stats::by_problem::mean;
use crate::study::Study;

/// Question of the experiment.
pub const ABOUT: About = About::asking("latent steps per problem");

settings! {
    pub struct Config {
        /// Maximum number of counted steps; 0: no maximum.
        pub most: usize = 0,
    }
}

rows! {
    /// The one row: a mean over problems with its interval.
    pub struct BlockLengthRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub latent_steps: Option<Estimate> => "latent steps": "of a problem",
    }
}

/// Decodes the problems and counts latent steps.
pub fn run(study: &Study, config: &Config, journal: &mut Journal) -> Result<String> {
    let (_, traces) = study.decoded()?;
    let steps = |i: usize| traces[i].positions.iter().filter(|p| p.kind == PositionRole::Latent).count();
    let steps = |i: usize| if config.most > 0 { steps(i).min(config.most) } else { steps(i) } as f64;
    let latent_steps = mean(study.seed, (0..traces.len()).map(|i| (i, steps(i))))?;
    let row = BlockLengthRow { identity: study.identity(traces.len()), latent_steps: latent_steps.clone() };
    journal.save("block_length", &[row])?;
    Ok(format!("{} latent steps a problem\n", latent_steps.context("no problems")?.value))
}
