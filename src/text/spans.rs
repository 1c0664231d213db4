//! Phase 1's span rule (`method.md` §3): from the entropies of one response to the spans that become latent blocks. Entropy `i`, in nats,
//! is that of the distribution that predicts response token `i`.
//!
//! 1. Candidates by the token rule: positions above the corpus' top-share quantile; runs with gaps of at most `merge_gap` are joined; runs
//!    shorter than `min_length` are dropped; of a longer run, the window of `max_length` with the greatest entropy. By the clause rule
//!    (`snap_to_clause`): whole clauses whose mean entropy is above the corpus' quantile of clauses.
//! 2. Candidates that touch the final answer are dropped.
//! 3. Spans are chosen in order of decreasing mean entropy while they fit the latent cap.
//!
//! Knows numbers and ranges only; every range counts response tokens.

use std::ops::Range;

use anyhow::{Result, ensure};

settings! {
    pub struct SpanSettings {
        /// Share of the corpus' response positions that count as uncertain. Ties at the border are left out.
        pub top_share: f64 = 0.2,
        pub merge_gap: usize = 1,
        pub min_length: usize = 2,
        pub max_length: usize = 8,
        /// Maximum latents of a sample, over all its spans, once all their text is replaced.
        pub latent_cap: usize = 48,
        /// c of phase 2: latents per replaced token. Below 1 a latent replaces several, as in [`latents_for`].
        pub latents_per_token: f64 = 2.0,
        /// K_max of phase 2: tokens of a span that are replaced at the last stage.
        pub max_stage: usize = 8,
        /// Tag whole clauses instead of runs of tokens (`recipe.md`, "what worked" 1).
        pub snap_to_clause: bool = false,
        /// With `snap_to_clause`: clauses above this quantile of the corpus' clause scores are tagged.
        pub clause_quantile: f64 = 0.25,
    }
}

/// One response as input of the rule.
#[derive(Clone, Copy, Debug)]
pub struct ScoredResponse<'a> {
    pub entropies: &'a [f32],
    /// Clauses in order, not overlapping. Only the clause rule reads them.
    pub clauses: &'a [Range<usize>],
    pub answer: Option<&'a Range<usize>>,
}

/// Spans of one response, and the dropped candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanChoice {
    pub spans: Vec<Range<usize>>,
    pub too_short: usize,
    pub over_cap: usize,
}

impl SpanSettings {
    /// Refuses contradictory settings by name.
    pub fn check(&self) -> Result<()> {
        let SpanSettings { top_share, clause_quantile, min_length, max_length, max_stage, .. } = *self;
        ensure!(top_share > 0.0 && top_share < 1.0, "spans.top_share: expected inside 0..1, found {top_share}");
        ensure!(
            (0.0..1.0).contains(&clause_quantile),
            "spans.clause_quantile: expected 0 or more and below 1, found {clause_quantile}"
        );
        ensure!(min_length >= 1, "spans.min_length: expected at least 1, found 0");
        ensure!(min_length <= max_length, "spans.min_length: {min_length} is above spans.max_length {max_length}");
        ensure!(
            max_length <= max_stage,
            "spans.max_length: {max_length} is above spans.max_stage {max_stage}; the last stage could not replace a whole span"
        );
        let c = self.latents_per_token;
        ensure!(c.is_finite() && c > 0.0, "spans.latents_per_token: expected a number above 0, found {c}");
        let least = self.latents(&(0..min_length));
        ensure!(
            self.latent_cap >= least,
            "spans.latent_cap: {} is below the {least} latents of the shortest span",
            self.latent_cap
        );
        Ok(())
    }

    /// Latents of a span once all its text is replaced: ⌈c · min(K_max, |S|)⌉.
    pub fn latents(&self, span: &Range<usize>) -> usize {
        latents_for(self.max_stage.min(span.len()), self.latents_per_token)
    }

    /// The threshold entropy for positions, or for clauses, over the whole corpus. The answer's positions count towards the quantile, its
    /// clauses do not.
    pub fn threshold<'a>(&self, corpus: impl Iterator<Item = ScoredResponse<'a>>) -> Result<f32> {
        let mut scores = Vec::new();
        for scored in corpus {
            if self.snap_to_clause {
                scores.extend(self.clauses(scored).map(|clause| mean(scored.entropies, &clause)));
            } else {
                scores.extend_from_slice(scored.entropies);
            }
        }
        ensure!(
            !scores.is_empty(),
            "no {} to score in the whole corpus{}",
            if self.snap_to_clause { "clause" } else { "response position" },
            if self.snap_to_clause {
                ": a clause of a file's problem is a step with a known value (`steps` or <<3+4=7>>); give them, or set \
                 annotate.spans.snap_to_clause=false"
            } else {
                ""
            }
        );
        let share = if self.snap_to_clause { 1.0 - self.clause_quantile } else { self.top_share };
        let above = (share * scores.len() as f64) as usize;
        if above >= scores.len() {
            // Below any entropy, and finite for JSON: every score counts.
            return Ok(-1.0);
        }
        // At most `above` scores are strictly above this one in descending order.
        let (_, threshold, _) = scores.select_nth_unstable_by(above, |a, b| b.total_cmp(a));
        Ok(*threshold)
    }

    /// The spans of one response, in order, not overlapping; by the token rule never adjacent.
    pub fn choose(&self, scored: ScoredResponse, threshold: f32) -> SpanChoice {
        let mut chosen = SpanChoice::default();
        let candidates: Vec<Range<usize>> = if self.snap_to_clause {
            self.clauses(scored).filter(|clause| mean(scored.entropies, clause) > threshold).collect()
        } else {
            self.runs(scored, threshold)
        };
        let found = candidates.len();
        let mut candidates: Vec<Range<usize>> =
            candidates.into_iter().filter(|run| run.len() >= self.min_length).collect();
        chosen.too_short = found - candidates.len();
        for span in &mut candidates {
            *span = self.window(scored.entropies, span);
        }
        // Stable, so that equal means stay in text order.
        candidates.sort_by(|a, b| mean(scored.entropies, b).total_cmp(&mean(scored.entropies, a)));
        let mut left = self.latent_cap;
        for span in candidates {
            match left.checked_sub(self.latents(&span)) {
                Some(rest) => {
                    left = rest;
                    chosen.spans.push(span);
                }
                None => chosen.over_cap += 1,
            }
        }
        chosen.spans.sort_by_key(|span| span.start);
        chosen
    }

    /// Clauses inside the response that do not touch the answer.
    fn clauses<'a>(&self, scored: ScoredResponse<'a>) -> impl Iterator<Item = Range<usize>> + 'a {
        let fits = move |clause: &&Range<usize>| {
            let apart = scored.answer.is_none_or(|answer| clause.end <= answer.start || clause.start >= answer.end);
            !clause.is_empty() && clause.end <= scored.entropies.len() && apart
        };
        scored.clauses.iter().filter(fits).cloned()
    }

    /// Joined runs of positions above the threshold.
    fn runs(&self, scored: ScoredResponse, threshold: f32) -> Vec<Range<usize>> {
        let in_answer = |position| scored.answer.is_some_and(|answer| answer.contains(&position));
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (position, &entropy) in scored.entropies.iter().enumerate() {
            if entropy <= threshold || in_answer(position) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if position - run.end <= self.merge_gap && !(run.end..position).any(in_answer) => {
                    run.end = position + 1;
                }
                _ => runs.push(position..position + 1),
            }
        }
        runs
    }

    /// The part of a long run with the greatest entropy, the earliest of equals.
    fn window(&self, entropies: &[f32], run: &Range<usize>) -> Range<usize> {
        if run.len() <= self.max_length {
            return run.clone();
        }
        let windows = (run.start..=run.end - self.max_length).map(|start| start..start + self.max_length);
        let better = |best: Range<usize>, next: Range<usize>| {
            if mean(entropies, &next) > mean(entropies, &best) { next } else { best }
        };
        windows.reduce(better).unwrap_or_else(|| run.clone())
    }
}

/// Latents that replace this many tokens: ⌈c · tokens⌉, so that every replaced text has a latent.
pub(crate) fn latents_for(tokens: usize, c: f64) -> usize {
    // 0.07 · 100 is slightly above 7: rounding must not add a latent.
    let exact = c * tokens as f64;
    ((exact - 1e-9 * exact).ceil() as usize).max(usize::from(tokens > 0))
}

/// Mean entropy of a range that is not empty.
pub fn mean(entropies: &[f32], range: &Range<usize>) -> f32 {
    entropies[range.clone()].iter().sum::<f32>() / range.len() as f32
}
