//! What a user asks to be recorded of known rows: where `pos[-1]` stands, and whether hooks can be reached at all.

use anyhow::{Context, Result, bail, ensure};

use crate::latent::Sequence;
use crate::model::hooks::{Recorded, parse_specs};
use crate::model::{HookPoint, HookSpec, PointKind, Step};

/// Hooks to record, and how their places were written.
pub(crate) struct Wanted {
    pub specs: Vec<HookSpec>,
    /// `pos[4]` as it was written: `pos[-1]`.
    written: Vec<(String, String)>,
}

impl Wanted {
    /// Reads a list. `pos[-1]` counts from the end of rows that are all as long.
    ///
    /// # Errors
    /// What is no list of hooks, a position before the first, and rows of several lengths with such a position.
    pub fn read(list: &str, rows: &[Sequence]) -> Result<Self> {
        let (mut list, mut written) = (list.to_owned(), vec![]);
        while let Some(at) = list.find("pos[-") {
            let end =
                list[at..].find(']').map(|end| at + end + 1).with_context(|| format!("hook `{list}`: missing `]`"))?;
            let own = list[at..end].to_owned();
            let back: usize = own[5..own.len() - 1].parse().with_context(|| format!("`{own}`: write a number"))?;
            let length = rows.first().map_or(0, |row| row.ids.len());
            let other = rows.iter().map(|row| row.ids.len()).find(|other| *other != length);
            if let Some(other) = other {
                bail!(
                    "`{own}` is another position in rows of {length} and of {other} tokens: ask for rows of one length at a time"
                );
            }
            ensure!((1..=length).contains(&back), "`{own}`: the rows have {length} tokens");
            let counted = format!("pos[{}]", length - back);
            list.replace_range(at..end, &counted);
            written.push((counted, own));
        }
        let specs = if list.is_empty() { vec![] } else { parse_specs(&list)? };
        Ok(Self { specs, written })
    }

    /// The tensors under the names that were asked for.
    pub fn named(&self, recorded: &mut [Recorded]) {
        for tensor in recorded {
            for (counted, own) in &self.written {
                if let Some(name) = tensor.name.strip_suffix(counted.as_str()) {
                    tensor.name = format!("{name}{own}");
                }
            }
        }
    }
}

/// Refuses what no position of these rows would reach.
///
/// # Errors
/// The first such spec.
pub(crate) fn check<'s>(
    specs: impl IntoIterator<Item = &'s HookSpec>,
    layers: usize,
    sequences: &[Sequence],
) -> Result<()> {
    for spec in specs {
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
        // Only a decoder stands at a boundary.
        PointKind::BoundaryLogits => false,
        _ => true,
    }
}
