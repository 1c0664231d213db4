//! How a response looks at stage k of a curriculum: SWITCH's phase 2 (method §4), and the one block of the methods that think
//! before they answer. Knows ids, not tensors.

use std::ops::Range;

use crate::latent::SwitchIds;
use crate::recipe::{Latent, Schedule, Stage, Suffix};
use crate::text::spans::latents_for;

/// A point of the curriculum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At {
    /// Tokens of a span that are replaced, at most; under [`Schedule::Sequential`], the spans that are.
    pub k: usize,
    /// Latents for each of them.
    pub c: f64,
}

impl At {
    /// Before the first stage: all blocks hold text.
    pub const TEXT: Self = Self { k: 0, c: 1.0 };

    /// A stage; without one, [`Self::TEXT`].
    pub(crate) fn stage(stage: Option<&Stage>, settings: &Latent) -> Self {
        stage.map_or(Self::TEXT, |stage| Self { k: stage.k, c: stage.c.unwrap_or(settings.c) })
    }

    /// All text that latents may replace is removed, with as many latents as the last stage has.
    pub(crate) fn end(settings: &Latent) -> Self {
        let c = settings.stages.last().and_then(|stage| stage.c).unwrap_or(settings.c);
        Self { k: usize::MAX, c }
    }
}

/// Latents of span `m`: `⌈c · min(k, |S|, K_max)⌉`. The paper's Eq. 2 has a whole c; below 1 a latent replaces several tokens.
pub(super) fn latents(m: usize, span: &Range<usize>, at: At, settings: &Latent) -> usize {
    latents_for(replaced(m, span, at.k, settings), at.c)
}

/// Text tokens of span `m` that latents replace at stage `k`.
fn replaced(m: usize, span: &Range<usize>, k: usize, settings: &Latent) -> usize {
    let k = match settings.schedule {
        Schedule::Parallel => k,
        Schedule::Sequential if m < k => settings.k_max,
        Schedule::Sequential => 0,
    };
    k.min(span.len()).min(settings.k_max)
}

/// One block of `latents` steps between its markers; without latents there is none.
pub fn block(latents: usize, ids: SwitchIds) -> Vec<u32> {
    if latents == 0 {
        return vec![];
    }
    [vec![ids.swi], vec![ids.latent; latents], vec![ids.swi_end]].concat()
}

/// A response's ids at a point of the curriculum, tags put in: encoding tagged text anew may split words at a tag in another way.
/// `keep_text[m]` leaves span m as tagged text. Spans are in order and do not overlap.
pub fn staged(
    response: &[u32],
    spans: &[Range<usize>],
    keep_text: &[bool],
    at: At,
    settings: &Latent,
    ids: SwitchIds,
) -> Vec<u32> {
    let mut out = Vec::with_capacity(response.len() + 2 * spans.len());
    let mut written = 0;
    for (m, span) in spans.iter().enumerate() {
        let k = if keep_text.get(m).copied().unwrap_or(false) { 0 } else { at.k };
        let n = replaced(m, span, k, settings);
        out.extend_from_slice(&response[written..span.start]);
        out.push(ids.swi);
        out.extend(std::iter::repeat_n(ids.latent, latents_for(n, at.c)));
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

    fn settings(schedule: Schedule, suffix: Suffix, c: f64) -> Latent {
        Latent { schedule, suffix, c, k_max: 3, ..Latent::default() }
    }

    #[test]
    fn stages_by_hand() {
        let response = [1, 2, 3, 4, 5, 6, 7, 8];
        let spans = [1..4, 5..7];
        let run = |k, s: &Latent| staged(&response, &spans, &[], At { k, c: s.c }, s, IDS);
        let keep = settings(Schedule::Parallel, Suffix::KeepSuffix, 2.0);
        assert_eq!(run(0, &keep), [1, 90, 2, 3, 4, 91, 5, 90, 6, 7, 91, 8]);
        assert_eq!(run(1, &keep), [1, 90, 92, 92, 3, 4, 91, 5, 90, 92, 92, 7, 91, 8]);
        assert_eq!(run(9, &keep), [1, 90, 92, 92, 92, 92, 92, 92, 91, 5, 90, 92, 92, 92, 92, 91, 8]);
        let drop = settings(Schedule::Parallel, Suffix::Drop, 1.0);
        assert_eq!(run(1, &drop), [1, 90, 92, 91, 5, 90, 92, 91, 8]);
        // Both readings meet at the last stage.
        assert_eq!(run(3, &drop), run(3, &settings(Schedule::Parallel, Suffix::KeepSuffix, 1.0)));
        let sequential = settings(Schedule::Sequential, Suffix::KeepSuffix, 1.0);
        assert_eq!(run(1, &sequential), [1, 90, 92, 92, 92, 91, 5, 90, 6, 7, 91, 8]);
        let at = At { k: 1, c: 1.0 };
        assert_eq!([0, 1].map(|m| latents(m, &spans[m], at, &sequential)), [3, 0], "as the response has them");
        // At the end of the curriculum all spans are latent, even if there are more than K_max.
        let short = Latent { k_max: 1, ..sequential };
        let end = staged(&response, &spans, &[], At::end(&short), &short, IDS);
        assert_eq!(end, [1, 90, 92, 3, 4, 91, 5, 90, 92, 7, 91, 8]);
        assert_eq!(staged(&response, &spans, &[false, true], At::end(&drop), &drop, IDS)[7..], [90, 6, 7, 91, 8]);
    }

    #[test]
    fn below_one_a_latent_stands_for_several_tokens() {
        let (response, spans) = ([1, 2, 3, 4, 5, 6, 7, 8], [0..5, 6..8]);
        let half = Latent { k_max: 5, ..settings(Schedule::Parallel, Suffix::KeepSuffix, 0.4) };
        let run = |k| staged(&response, &spans, &[], At { k, c: half.c }, &half, IDS);
        // ⌈.4 k⌉: 1, 1, 2, 2, 2; of a span of two, 1.
        assert_eq!(run(1), [90, 92, 2, 3, 4, 5, 91, 6, 90, 92, 8, 91]);
        assert_eq!(run(2), [90, 92, 3, 4, 5, 91, 6, 90, 92, 91]);
        assert_eq!(run(3), [90, 92, 92, 4, 5, 91, 6, 90, 92, 91]);
        assert_eq!(run(5), [90, 92, 92, 91, 6, 90, 92, 91]);
        // A last stage that sets c: one latent for the whole span.
        let stages =
            vec![Stage { k: 5, steps: 1, epochs: 0.0, c: None }, Stage { k: 5, steps: 1, epochs: 0.0, c: Some(0.2) }];
        let shrinks = Latent { stages, ..half };
        let at = |stage| latents(0, &spans[0], At::stage(shrinks.stages.get(stage), &shrinks), &shrinks);
        assert_eq!((at(0), at(1), latents(0, &spans[0], At::end(&shrinks), &shrinks)), (2, 1, 1));
    }
}
