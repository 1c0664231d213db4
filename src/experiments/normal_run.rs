//! The normal run alone: every problem's response, outcome and latent states, for shards that intervene.
//!
//! A shard of `intervene` decodes the normal run of all problems, because donors, means and plans are made of all of them, and
//! intervenes on its own. With many shards that is most of their work. Instead each shard first makes the normal run of its own
//! problems (this), `report merge` puts them together, and `--decoded` of the second round of shards names that folder.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{Files, Fit};
use crate::schema::{Named, NormalRunRow};
use crate::store::FlatRow;
use crate::study::Causal;
use crate::study::sweep::normal_rows;

/// What it asks.
pub const ABOUT: &str = "the normal run with its latent states, which later shards read (--decoded)";

/// No settings: the decode is the evaluation's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The files that its shards write.
pub(crate) const SHARDS: &[&str] = &[NormalRunRow::NAME];

/// Runs on every checkpoint.
///
/// # Errors
/// None.
pub fn fits(_causal: &Causal, _config: &Config) -> Result<Fit> {
    Ok(Fit::Yes)
}

/// Decodes the process' own problems normally and writes them.
///
/// # Errors
/// As the decoder's; a disk that cannot be written.
pub fn run(causal: &Causal, _config: &Config, files: &Files) -> Result<String> {
    if files.done(NormalRunRow::NAME)? {
        return Ok("done before\n".into());
    }
    causal.say("the normal run");
    let mut journal = files.anew::<NormalRunRow>(NormalRunRow::NAME)?;
    journal.push(normal_rows(causal)?)?;
    let rows = files.finish(NormalRunRow::NAME, journal, |row| row.problem, false)?;
    Ok(format!("the normal run of {} problems\n", rows.len()))
}

/// Puts the problems of all shards together.
///
/// # Errors
/// Rows of another kind; a disk that cannot be written.
pub(crate) fn merge(_config: &Config, files: &Files, name: &str, rows: &[FlatRow]) -> Result<String> {
    let rows = files.finish(name, files.gathered::<NormalRunRow>(name, rows)?, |row| row.problem, false)?;
    Ok(format!("the normal run of {} problems\n", rows.len()))
}
