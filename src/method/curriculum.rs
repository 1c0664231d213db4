//! How a response looks at stage k of a curriculum: SWITCH's phase 2 (method §4), and the one block of the methods that think
//! before they answer. Knows ids, not tensors.

use std::ops::Range;

use crate::latent::SwitchIds;
use crate::recipe::{Latent, Schedule, Suffix};

/// Latents of a span at stage `k`: `c · min(k, |S|, K_max)` (the paper's Eq. 2).
pub fn latents(span: &Range<usize>, k: usize, settings: &Latent) -> usize {
    settings.c * replaced(span, k, settings)
}

/// Text tokens that latents stand for at stage `k`.
fn replaced(span: &Range<usize>, k: usize, settings: &Latent) -> usize {
    k.min(span.len()).min(settings.k_max)
}

/// One block of `latents` steps between its markers; without latents there is none.
pub fn block(latents: usize, ids: SwitchIds) -> Vec<u32> {
    if latents == 0 {
        return vec![];
    }
    [vec![ids.swi], vec![ids.latent; latents], vec![ids.swi_end]].concat()
}

/// A response at stage `k`. `keep_text[m]` leaves span m as tagged text. Spans are in order and do not overlap.
pub(crate) fn staged(
    response: &[u32],
    spans: &[Range<usize>],
    keep_text: &[bool],
    k: usize,
    settings: &Latent,
    ids: SwitchIds,
) -> Vec<u32> {
    let mut out = Vec::with_capacity(response.len() + 2 * spans.len());
    let mut written = 0;
    for (m, span) in spans.iter().enumerate() {
        let k = match settings.schedule {
            Schedule::Parallel => k,
            Schedule::Sequential if m < k => settings.k_max,
            Schedule::Sequential => 0,
        };
        let k = if keep_text.get(m).copied().unwrap_or(false) { 0 } else { k };
        let n = replaced(span, k, settings);
        out.extend_from_slice(&response[written..span.start]);
        out.push(ids.swi);
        out.extend(std::iter::repeat_n(ids.latent, latents(span, k, settings)));
        if n == 0 || settings.suffix == Suffix::KeepSuffix {
            out.extend_from_slice(&response[span.start + n..span.end]);
        }
        out.push(ids.swi_end);
        written = span.end;
    }
    out.extend_from_slice(&response[written..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: SwitchIds = SwitchIds { swi: 90, swi_end: 91, latent: 92 };

    fn settings(schedule: Schedule, suffix: Suffix, c: usize) -> Latent {
        Latent { schedule, suffix, c, k_max: 3, ..Latent::default() }
    }

    #[test]
    fn stages_by_hand() {
        let response = [1, 2, 3, 4, 5, 6, 7, 8];
        let spans = [1..4, 5..7];
        let run = |k, s: &Latent| staged(&response, &spans, &[], k, s, IDS);
        let keep = settings(Schedule::Parallel, Suffix::KeepSuffix, 2);
        assert_eq!(run(0, &keep), [1, 90, 2, 3, 4, 91, 5, 90, 6, 7, 91, 8]);
        assert_eq!(run(1, &keep), [1, 90, 92, 92, 3, 4, 91, 5, 90, 92, 92, 7, 91, 8]);
        assert_eq!(run(9, &keep), [1, 90, 92, 92, 92, 92, 92, 92, 91, 5, 90, 92, 92, 92, 92, 91, 8]);
        let drop = settings(Schedule::Parallel, Suffix::Drop, 1);
        assert_eq!(run(1, &drop), [1, 90, 92, 91, 5, 90, 92, 91, 8]);
        // Both readings meet at the last stage.
        assert_eq!(run(3, &drop), run(3, &settings(Schedule::Parallel, Suffix::KeepSuffix, 1)));
        let sequential = settings(Schedule::Sequential, Suffix::KeepSuffix, 1);
        assert_eq!(run(1, &sequential), [1, 90, 92, 92, 92, 91, 5, 90, 6, 7, 91, 8]);
        assert_eq!(staged(&response, &spans, &[false, true], 3, &drop, IDS)[7..], [90, 6, 7, 91, 8]);
    }
}
