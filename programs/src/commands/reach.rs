//! Hooks recorded over known rows: the position of `pos[-1]`, and whether a hook can fire at all.

use anyhow::{Result, bail};

use super::hooks::Edits;
use switchyard::latent::Sequence;
use switchyard::model::hooks::{RecordedTensor, parse_specs};
use switchyard::model::{HookPoint, HookSpec, PointKind, Select, Step};

/// Hooks to record, and how their places were written.
pub(crate) struct HookRequest {
    pub specs: Vec<HookSpec>,
    /// `pos[4]` as it was written: `pos[-1]`.
    written: Vec<(String, String)>,
}

impl HookRequest {
    /// Reads a list. `pos[-1]` counts from the end of rows that are all as long.
    ///
    /// # Errors
    /// What is not a list of hooks, a position before the first, and rows of several lengths with such a position.
    pub fn read(list: &str, rows: &[Sequence]) -> Result<Self> {
        let (mut specs, mut written) = (if list.is_empty() { vec![] } else { parse_specs(list)? }, vec![]);
        for spec in specs.iter_mut().filter(|spec| matches!(spec.select, Select::Position(..0))) {
            let (own, length) = (spec.select, rows.first().map_or(0, |row| row.ids.len()));
            if let Some(other) = rows.iter().map(|row| row.ids.len()).find(|other| *other != length) {
                bail!(
                    "`{own}` is another position in rows of {length} and of {other} tokens: use rows of one length at a time"
                );
            }
            spec.select = own.at(length)?;
            written.push((spec.select.to_string(), own.to_string()));
        }
        Ok(Self { specs, written })
    }

    /// The tensors under the names that were requested.
    pub fn named(&self, recorded: &mut [RecordedTensor]) {
        for tensor in recorded {
            for (counted, own) in &self.written {
                if let Some(name) = tensor.name.strip_suffix(counted.as_str()) {
                    tensor.name = format!("{name}{own}");
                }
            }
        }
    }
}

/// Refuses hooks that would fire at no position of these rows.
///
/// # Errors
/// The first such spec.
pub(crate) fn check(recorded: &[HookSpec], edits: &Edits, layers: usize, sequences: &[Sequence]) -> Result<()> {
    let longest = sequences.iter().map(|row| row.ids.len()).max().unwrap_or_default();
    for spec in recorded.iter().chain(&edits.specs(longest)?) {
        let points = spec.resolve(layers)?;
        let fires = |(position, step): (usize, &Step)| {
            spec.select.admits(position, *step) && points.iter().any(|point| reaches(*point, *step))
        };
        if !sequences.iter().any(|sequence| sequence.steps.iter().enumerate().any(fires)) {
            bail!("hook `{spec}` would never fire: no position of these rows reaches it");
        }
    }
    Ok(())
}

/// Whether a known row's position passes the point at all.
fn reaches(point: HookPoint, step: Step) -> bool {
    match point.kind {
        PointKind::LatentSource | PointKind::LatentInjected => matches!(step, Step::Latent { .. }),
        // Boundaries exist while decoding only.
        PointKind::BoundaryLogits => false,
        _ => true,
    }
}
