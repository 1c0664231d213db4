//! Every hook point of every layer, in every way of computing it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::recorder::{Call, Recordings, by_position, padded, pieces, ragged, record};
use super::reference::{Deviation, References, read, rows};
use super::{Fixtures, ParityComparison};
use crate::model::Decoder;

/// The bound of the parity requirement, relative to the largest reference value.
const BOUND: f64 = 1e-5;

/// A tiny model's hook points, hidden states and logits: rows alone, cached, padded, batched.
pub fn hooks(fixtures: &Fixtures, name: &str) -> Result<Vec<ParityComparison>> {
    let model = fixtures.tiny(name, &fixtures.device)?;
    compare_hooks(&model, &read(&fixtures.path(&format!("tiny/{name}/reference.safetensors")))?, name)
}

/// Compares the hooks of any model that should have these reference values.
pub fn compare_hooks(model: &Decoder, references: &References, name: &str) -> Result<Vec<ParityComparison>> {
    let rows = rows(references)?;
    let alone = |cuts: &dyn Fn(usize) -> Vec<usize>| {
        joined(model, (0..rows.len()).map(|r| pieces(&rows, r, &cuts(rows[r].len()))).collect())
    };
    let ways: [(&str, Recordings); 7] = [
        ("alone", alone(&|n| vec![0, n])?),
        ("cached token by token", alone(&|n| (0..=n).collect())?),
        ("cached in pieces", alone(&|n| vec![0, 3, 4, n])?),
        ("right-padded", record(model, &[padded(&rows, false)])?),
        ("left-padded", record(model, &[padded(&rows, true)])?),
        ("batched and cached", record(model, &ragged(&rows, &[4, 9, 1]))?),
        ("batched, one row done at once", record(model, &ragged(&rows, &[2, 3, 5]))?),
    ];
    let one = |(how, found): &(&str, Recordings)| {
        let what = format!("{name}: every hook point, {how}");
        Ok(ParityComparison::new(what, BOUND, compare(found, references).with_context(|| format!("{name}, {how}"))?))
    };
    ways.iter().map(one).collect()
}

fn joined(model: &Decoder, runs: Vec<Vec<Call>>) -> Result<Recordings> {
    let mut all = Recordings::new();
    for calls in runs {
        all.extend(record(model, &calls)?);
    }
    Ok(all)
}

fn compare(recorded: &Recordings, references: &References) -> Result<Vec<Deviation>> {
    let mut out = vec![];
    for (key, tensor) in references {
        let Some((row, point)) = key.split_once('.').filter(|(_, point)| *point != "ids") else { continue };
        let row: usize = row.trim_start_matches("row").parse().with_context(|| format!("`{key}`"))?;
        let expected = by_position(tensor, point.ends_with("hook_pattern") || point.ends_with("hook_attn_scores"));
        let found =
            recorded.get(&(point.to_owned(), row)).with_context(|| format!("`{point}` of row {row} is missing"))?;
        ensure!(found.len() == expected.len(), "`{point}`, row {row}: {} positions", found.len());
        let flat = |values: &BTreeMap<usize, Vec<f32>>| values.values().flatten().copied().collect::<Vec<_>>();
        out.push(Deviation::relative(&flat(found), &flat(&expected)).at(key));
    }
    ensure!(out.len() == recorded.len(), "{} of {} points were compared", out.len(), recorded.len());
    Ok(out)
}
