//! Responses that shards decoded, to be read by one process that makes the tables. Knows traces and rows; no experiment.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::Study;
use crate::evaluation::requests;
use crate::latent::{Request, Switching, Trace};
use crate::schema::DecodeRow;
use crate::store::{Measurements, json};

/// By the name of the way of decoding, in the order of the problems.
pub type Decodes = BTreeMap<String, Vec<Trace>>;

/// A way of decoding, as rows name it.
pub(crate) fn named(switching: Switching, k_min: usize) -> String {
    format!("{switching}:{k_min}")
}

/// Decodes the study's own problems in each of these ways, so far as they are not there yet.
pub(crate) fn decode(study: &Study, ways: &[(Switching, usize)], rows: &mut Measurements<DecodeRow>) -> Result<()> {
    let identity = study.identity(study.corpus.test.len());
    let requests = requests(&study.corpus)?;
    let expected = |request: &Request| ((None, request.problem), ways.len());
    study.measure(rows, &identity, (&requests, study.together()), expected, |batch| {
        let mut new = vec![];
        for &way in ways {
            for trace in study.decode_only(&study.model, way, &[batch], &|_| Ok(()))? {
                let (identity, decode, problem) = (identity.clone(), named(way.0, way.1), trace.problem);
                new.push(DecodeRow { identity, decode, problem, trace: serde_json::to_string(&trace)? });
            }
        }
        Ok(new)
    })
}

/// The traces of rows: each way with all `problems` of them.
///
/// # Errors
/// A way that lacks a problem or has one twice; a trace that is none.
pub fn restore(rows: &[DecodeRow], problems: usize) -> Result<Decodes> {
    let mut ways: BTreeMap<&str, BTreeMap<usize, &DecodeRow>> = BTreeMap::new();
    for row in rows {
        let before = ways.entry(&row.decode).or_default().insert(row.problem, row);
        ensure!(before.is_none(), "decode {}: problem {} is there twice", row.decode, row.problem);
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
