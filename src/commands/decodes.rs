//! `probe --shard i/n`: decodes one part of the problems in every way that the experiments read, and writes the responses.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::chosen::Chosen;
use super::places::{Place, prepare};
use super::print;
use super::results::setup;
use crate::experiments::{Experiment, Files, Settings, accuracy};
use crate::latent::Switching;
use crate::schema::{DecodeRow, Named};
use crate::store::command;
use crate::study::{Study, decodes};

/// Decodes each study's own problems.
///
/// # Errors
/// A named experiment that reads no responses, before any work; as the decoder's; a disk that cannot be written.
pub(crate) fn run(studies: &[Study], experiments: &[&Experiment], chosen: &Chosen, settings: &Settings) -> Result<()> {
    for experiment in experiments.iter().filter(|experiment| chosen.names(experiment)) {
        ensure!(
            experiment.reads_responses(),
            "--shard: `{}` decodes nothing that shards could share; one process runs it, without --shard",
            experiment.name
        );
    }
    let mut all = vec![];
    for study in studies {
        let mut ways = vec![(Switching::Free, study.subject.recipe.evaluation.k_min)];
        if experiments.iter().any(|experiment| experiment.name == "accuracy") {
            ways.extend(accuracy::ways(study, &settings.accuracy));
        }
        let names: Vec<Value> = ways.iter().map(|&(rule, k_min)| json!([rule, k_min])).collect();
        all.push((study, ways, setup(study, &study.subject.origin()?, json!({ "decodes": names }))));
    }
    let places: Vec<Place> = (all.iter())
        .map(|(study, _, setup)| {
            let name = format!("{}-{}", DecodeRow::NAME, study.subject.short_name());
            Place { folder: chosen.folder(study), name, setup: setup.clone() }
        })
        .collect();
    prepare(&places, chosen)?;
    for (study, ways, setup) in all {
        let checkpoint = study.subject.short_name().to_owned();
        let files = Files {
            folder: chosen.folder(study),
            checkpoint,
            setup,
            command: command("probe"),
            threads: study.threads,
            resume: chosen.resume,
            shard: study.shard,
            started: Instant::now(),
        };
        let said = if files.done(DecodeRow::NAME)? {
            "done before\n".to_owned()
        } else {
            let journal = decodes::decode(study, &ways, files.journal(DecodeRow::NAME)?)?;
            let rows = files.finish(DecodeRow::NAME, journal, DecodeRow::key, false)?;
            format!("{} responses\n", rows.len())
        };
        print(&format!("\n## {}-{}\n\n{said}\n{}\n", DecodeRow::NAME, files.checkpoint, files.folder.display()))?;
    }
    Ok(())
}
