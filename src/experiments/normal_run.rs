//! The normal run alone: every problem's response, outcome and latent states, for shards of `intervene`.
//!
//! A shard of `intervene` decodes the normal run of all problems, because donors, means and plans need all of them, and intervenes on its
//! own share. With many shards that is most of their work. Instead, 1. each shard makes the normal run of its own problems (this file),
//! 2. `report merge` joins them, 3. `--decoded` of a second round of shards names that folder.

use std::collections::BTreeSet;

use anyhow::Result;

pub use super::NoSettings as Config;
use super::{About, Files, Journal, Unfit};
use crate::schema::{NormalRunRow, RowFile};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::sweep::normal_rows;

pub const ABOUT: About =
    About::asking("the normal run with its latent states, which later shards read (--decoded)").on_request();

pub(crate) const FILES: &[Files] = &[(NormalRunRow::NAME, NormalRunRow::NAME)];

/// Runs on every checkpoint.
pub fn unfit(_study: &Study, _config: &Config) -> Result<Unfit> {
    Ok(None)
}

/// Decodes this process's problems normally.
pub fn measure(study: &Study, _config: &Config, rows: &mut Measurements<NormalRunRow>) -> Result<()> {
    study.say("the normal run");
    let there: BTreeSet<usize> = rows.rows().iter().map(|row| row.problem).collect();
    rows.push(normal_rows(study)?.into_iter().filter(|row| !there.contains(&row.problem)).collect())
}

pub(crate) fn conclude(_config: &Config, rows: Measurements<NormalRunRow>, journal: &mut Journal) -> Result<String> {
    let rows = journal.finish(rows, false)?;
    Ok(format!("the normal run of {} problems\n", rows.len()))
}
