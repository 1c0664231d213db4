//! Hooks on known sequences: the position of `pos[-1]`, and whether a hook can fire.

use anyhow::{Context, Result, bail};

use super::tensors::FromEnd;
use switchyard::latent::Sequence;
use switchyard::model::hooks::{RecordedTensor, parse_specs};
use switchyard::model::{HookPoint, HookSpec, ModelConfig, PointKind, Select, Step};

/// Hooks to record, and how their places were written.
pub(crate) struct HookRequest {
    /// Specs without positions that count from the end.
    pub specs: Vec<HookSpec>,
    /// The requested specs, each with its position in every row if it counts from the end.
    asked: Vec<(HookSpec, Option<Vec<Select>>)>,
}

impl HookRequest {
    /// Parses a list. `pos[-1]` is the last position of each sequence.
    pub fn read(list: &str, rows: &[Sequence]) -> Result<Self> {
        let (mut specs, mut asked): (Vec<HookSpec>, _) = (vec![], vec![]);
        for spec in if list.is_empty() { vec![] } else { parse_specs(list)? } {
            let at = match spec.select {
                Select::Position(..0) => {
                    let at = rows.iter().enumerate().map(|(row, sequence)| {
                        spec.select.at(sequence.ids.len()).with_context(|| format!("row {row}"))
                    });
                    Some(at.collect::<Result<Vec<_>>>()?)
                }
                _ => None,
            };
            let mut selects = at.clone().unwrap_or_else(|| vec![spec.select]);
            selects.sort_by_key(|select| select.to_string());
            selects.dedup();
            specs.extend(selects.into_iter().map(|select| HookSpec { select, ..spec.clone() }));
            asked.push((spec, at));
        }
        Ok(Self { specs, asked })
    }

    /// Converts the recording to the requested tensors; returns the position in each row for specs that count from the end.
    pub fn named(&self, recorded: &mut Vec<RecordedTensor>, config: &ModelConfig) -> Result<FromEnd> {
        let mut from_end = FromEnd::new();
        if self.asked.iter().all(|(_, at)| at.is_none()) {
            return Ok(from_end);
        }
        let mut out: Vec<RecordedTensor> = vec![];
        for (spec, at) in &self.asked {
            for point in HookSpec::all(&spec.pattern).resolve_in(config)? {
                let name = |select| HookSpec { pattern: point.to_string(), select }.to_string();
                let found = |select| recorded.iter().find(|tensor| tensor.name == name(select));
                let own = name(spec.select);
                if out.iter().any(|tensor| tensor.name == own) {
                    continue;
                }
                match at {
                    None => out.extend(found(spec.select).cloned()),
                    Some(at) => {
                        let parts: Option<Vec<&RecordedTensor>> = at.iter().map(|select| found(*select)).collect();
                        let Some(parts) = parts else { continue };
                        from_end.insert(own.clone(), parts.iter().map(|part| part.positions[0]).collect());
                        out.extend(joined(own, &parts));
                    }
                }
            }
        }
        out.extend(recorded.iter().filter(|tensor| tensor.name == LOGITS).cloned());
        *recorded = out;
        Ok(from_end)
    }
}

const LOGITS: &str = "logits";

/// A tensor whose row n is row n of the n-th part.
fn joined(name: String, parts: &[&RecordedTensor]) -> Option<RecordedTensor> {
    let first = *parts.first()?;
    let width = first.data.len() / parts.len();
    let data = parts.iter().enumerate().flat_map(|(row, part)| part.data[row * width..(row + 1) * width].to_vec());
    Some(RecordedTensor { name, data: data.collect(), ..first.clone() })
}

/// Checks that every hook can fire at some position of these sequences.
pub(crate) fn check(specs: &[HookSpec], layers: usize, sequences: &[Sequence]) -> Result<()> {
    for spec in specs {
        let points = spec.resolve(layers)?;
        let fires = |(position, step): (usize, &Step)| {
            spec.select.admits(position, *step) && points.iter().any(|point| reaches(*point, *step))
        };
        if !sequences.iter().any(|sequence| sequence.steps.iter().enumerate().any(fires)) {
            bail!(
                "hook `{spec}` would never fire: no position of these rows reaches it (a text has latent steps where `<latent>` is written; \
                 a generation has those that the model takes: `probe generate --record`)"
            );
        }
    }
    Ok(())
}

/// Whether a known sequence's position passes through the point.
fn reaches(point: HookPoint, step: Step) -> bool {
    // Only a decoder passes a boundary.
    point.kind != PointKind::BoundaryLogits && (!point.kind.is_latent() || matches!(step, Step::Latent { .. }))
}
