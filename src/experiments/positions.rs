//! Every position of the first responses with its statistics, for the trace viewer.
//!
//! At a latent, `lens` is the last layer's next-token prediction (the decoder's distribution, full softmax). The trace stores only its
//! entropy and p(`</swi>`), so the traces are replayed.

use anyhow::{Context, Result};

use super::About;
use crate::latent::trace::PositionRole;
use crate::latent::{Sequence, Trace, sampling};
use crate::model::Hooks;
use crate::schema::PositionRow;
use crate::study::Study;
use crate::study::readout::logits;
use crate::study::shown::{first_responses, most_probable};

pub const ABOUT: About =
    About::asking("the first responses position by position (the trace viewer's rows)").of_responses();

settings! {
    pub struct Config {
        /// Number of problems, from the first.
        pub problems: usize = 24,
        /// Tokens of the lens at a latent.
        pub top: usize = 5,
    }
}

pub fn table(rows: &[PositionRow]) -> String {
    let latents = rows.iter().filter(|r| r.lens.is_some()).count();
    let problems = rows.iter().filter(|r| r.index == 0).count();
    format!("{} positions of {problems} problems, {latents} of them latent\n", rows.len())
}

pub fn rows(study: &Study, config: &Config) -> Result<Vec<PositionRow>> {
    let (scores, traces) = study.decoded()?;
    let mut rows = vec![];
    for ((shown, trace), outcome) in
        first_responses(study, config.problems)?.into_iter().zip(traces).zip(&scores.outcomes)
    {
        let lenses = lenses(study, trace, &shown.sequence, config.top)?;
        let told = shown.positions.into_iter().skip(trace.prompt.len());
        for (index, ((p, lens), (kind, token))) in trace.positions.iter().zip(lenses).zip(told).enumerate() {
            let prompt = (index == 0).then(|| study.corpus.vocabulary.decode(&trace.prompt)).transpose()?;
            rows.push(PositionRow {
                identity: study.identity(traces.len()),
                problem: trace.problem,
                index,
                kind: kind.context("a position of the prompt")?,
                id: p.token,
                token,
                logprob: p.logprob,
                entropy: p.entropy,
                p_swi: p.p_swi,
                p_exit: p.p_exit,
                lens,
                correct: outcome.correct,
                prompt,
            });
        }
    }
    Ok(rows)
}

/// At each latent of a trace the `top` most probable next tokens, `None` elsewhere.
fn lenses(study: &Study, trace: &Trace, row: &Sequence, top: usize) -> Result<Vec<Option<String>>> {
    let mut out = vec![None; trace.positions.len()];
    let latents: Vec<usize> = (0..out.len()).filter(|&i| trace.positions[i].kind == PositionRole::Latent).collect();
    if latents.is_empty() {
        return Ok(out);
    }
    let all = study.unroll(std::slice::from_ref(row), &mut Hooks::none())?;
    // One position at a time: a vocabulary of 150,000 and 16 latents would need 10 MB of logits.
    for i in latents {
        let h = all.hidden_at(&[(0, trace.prompt.len() + i)])?;
        let log_probs = sampling::log_softmax(&logits(&study.model, h)?[0], 1.0, &[]);
        out[i] = Some(most_probable(&study.corpus.vocabulary, &log_probs, top)?);
    }
    Ok(out)
}
