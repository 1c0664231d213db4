//! `probe --shard i/n`: decodes one shard of the problems in every decoding that the experiments read. `probe --decoded` makes all tables
//! from its records; users do not call it by name.

use anyhow::{Context, Result};
use serde_json::json;

use super::{About, Experiment, Files, Journal, Run, Settings, accuracy};
use crate::latent::Switching;
use crate::schema::{DecodeRow, RowFile};
use crate::store::Measurements;
use crate::study::{Study, decodes};

const FILES: &[Files] = &[(DecodeRow::NAME, DecodeRow::NAME)];

/// Its settings, in the journal's setup, are the decodings of [`ways`].
pub const DECODES: Experiment = Experiment {
    name: DecodeRow::NAME,
    about: About::asking("decoded responses, from which other processes make tables").on_request(),
    run: Run::One(|study, _, journal| {
        let ways = serde_json::from_value::<Vec<_>>(journal.setup["settings"]["decodes"].clone());
        let ways = ways.context("the decodings")?;
        journal.measured(|rows| decodes::decode(study, &ways, rows), conclude)
    }),
    files: FILES,
    unfit: |_, _| Ok(None),
    settings: |_| json!(null),
    described: &[],
    merge: |journal, rows| journal.merged(rows, conclude),
};

/// The decodings that experiments read, as the settings of [`DECODES`].
pub fn ways(study: &Study, experiments: &[&Experiment], settings: &Settings) -> serde_json::Value {
    let mut ways = vec![(Switching::Free, study.recipe.evaluation.k_min)];
    if experiments.iter().any(|experiment| experiment.name == "accuracy") {
        ways.extend(accuracy::ways(study, &settings.accuracy));
    }
    json!({ "decodes": ways })
}

fn conclude(rows: Measurements<DecodeRow>, journal: &mut Journal) -> Result<String> {
    let rows = journal.finish(rows, false)?;
    Ok(format!("{} responses; `probe --decoded {}` makes the tables\n", rows.len(), journal.folder.display()))
}
