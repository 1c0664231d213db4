//! Responses that shards decoded, as records for the process that makes the tables. Knows traces and records; no experiment.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::Study;
use crate::evaluation::requests;
use crate::latent::{Request, Switching, Trace};
use crate::schema::DecodeRow;
use crate::store::{Measurements, json};

/// Traces by the name of the decoding, in the order of the problems.
pub type Decodes = BTreeMap<String, Vec<Trace>>;

/// A decoding's name in records: `{switching}:{k_min}`.
pub(crate) fn decode_name(switching: Switching, k_min: usize) -> String {
    format!("{switching}:{k_min}")
}

/// Decodes this process's problems with each of these settings, skipping what `rows` already has.
pub(crate) fn decode(study: &Study, ways: &[(Switching, usize)], rows: &mut Measurements<DecodeRow>) -> Result<()> {
    let identity = study.identity(study.corpus.test.len());
    let requests = requests(&study.corpus)?;
    let expected = |request: &Request| ((None, request.problem), ways.len());
    study.measure(rows, &identity, (&requests, study.batch_size()), expected, |batch| {
        let mut new = vec![];
        for &way in ways {
            for trace in study.decode_only(&study.model, way, &[batch], &|_| Ok(()))? {
                let (identity, decode, problem) = (identity.clone(), decode_name(way.0, way.1), trace.problem);
                new.push(DecodeRow { identity, decode, problem, trace: serde_json::to_string(&trace)? });
            }
        }
        Ok(new)
    })
}

/// Restores the traces of all `problems` from records, by decoding.
pub fn restore(rows: &[DecodeRow], problems: usize) -> Result<Decodes> {
    let mut ways: BTreeMap<&str, BTreeMap<usize, &DecodeRow>> = BTreeMap::new();
    for row in rows {
        let before = ways.entry(&row.decode).or_default().insert(row.problem, row);
        ensure!(before.is_none(), "decode {}: problem {} occurs twice", row.decode, row.problem);
    }
    let mut decodes = Decodes::new();
    for (way, rows) in ways {
        let missing = (0..problems).find(|problem| !rows.contains_key(problem));
        let (n, why) = (rows.len(), missing.map_or("more than there are".into(), |p| format!("without problem {p}")));
        ensure!(missing.is_none() && n == problems, "decode {way}: {n} of {problems} problems, {why}");
        let traces: Result<Vec<Trace>> = rows.into_values().map(|row| json::from_str(&row.trace)).collect();
        decodes.insert(way.to_owned(), traces?);
    }
    Ok(decodes)
}
