//! Every position of the first responses, with its numbers: what the trace viewer shows.
//!
//! At a latent, `lens` is what the last layer would say next (the decoder's own distribution, full softmax): the trace keeps
//! only its entropy and p(`</swi>`), so the traces are run once more from their known ids.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::latent::trace::PositionRole;
use crate::latent::{Trace, sampling};
use crate::model::Hooks;
use crate::schema::{PositionKind, PositionRow};
use crate::store::RowWriter;
use crate::study::Study;
use crate::text::Vocabulary;

/// What it asks.
pub const ABOUT: &str = "the first responses position by position (the trace viewer's rows)";

/// Settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How many problems, from the first.
    pub problems: usize,
    /// Tokens of the lens at a latent.
    pub top: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { problems: 24, top: 5 }
    }
}

/// Runs the experiment.
///
/// # Errors
/// As the decoder's.
pub fn run(study: &Study, config: &Config, writer: &mut RowWriter) -> Result<String> {
    let rows = rows(study, config)?;
    rows.iter().try_for_each(|row| writer.push(row))?;
    let latents = rows.iter().filter(|r| r.lens.is_some()).count();
    let problems = rows.iter().filter(|r| r.index == 0).count();
    Ok(format!("{} positions of {problems} problems, {latents} of them latent\n", rows.len()))
}

/// The rows, problem by problem.
///
/// # Errors
/// As [`run`].
pub fn rows(study: &Study, config: &Config) -> Result<Vec<PositionRow>> {
    let (scores, traces) = study.decoded()?;
    let chosen = &traces[..config.problems.min(traces.len())];
    let mut rows = vec![];
    for (trace, outcome) in chosen.iter().zip(&scores.outcomes) {
        let lenses = lenses(study, trace, config.top)?;
        let texts = pieces(&study.subject.corpus.vocabulary, trace)?;
        for (index, ((p, lens), token)) in trace.positions.iter().zip(lenses).zip(texts).enumerate() {
            let prompt = (index == 0).then(|| study.subject.corpus.vocabulary.decode(&trace.prompt)).transpose()?;
            rows.push(PositionRow {
                identity: study.identity(traces.len()),
                problem: trace.problem,
                index,
                kind: kind(p.kind),
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

fn kind(kind: PositionRole) -> PositionKind {
    match kind {
        PositionRole::Text => PositionKind::Text,
        PositionRole::Swi => PositionKind::Swi,
        PositionRole::Latent => PositionKind::Latent,
        PositionRole::SwiEndSampled => PositionKind::SwiEndSampled,
        PositionRole::SwiEndForced => PositionKind::SwiEndForced,
    }
}

/// The text that each position adds. A token that is part of a character, or after which the text so far reads otherwise,
/// stands alone.
fn pieces(vocabulary: &Vocabulary, trace: &Trace) -> Result<Vec<String>> {
    let ids: Vec<u32> = trace.positions.iter().map(|p| p.token).collect();
    let mut before = String::new();
    let mut pieces = vec![];
    for i in 0..ids.len() {
        let until = vocabulary.decode(&ids[..=i])?;
        pieces.push(match until.strip_prefix(&before) {
            Some(added) => added.to_owned(),
            None => vocabulary.decode(&ids[i..=i])?,
        });
        before = until;
    }
    Ok(pieces)
}

/// At each latent of a trace the `top` most probable next tokens, `None` elsewhere.
fn lenses(study: &Study, trace: &Trace, top: usize) -> Result<Vec<Option<String>>> {
    let mut out = vec![None; trace.positions.len()];
    let latents: Vec<usize> = (0..out.len()).filter(|&i| trace.positions[i].kind == PositionRole::Latent).collect();
    if latents.is_empty() {
        return Ok(out);
    }
    let (model, corpus) = (&study.subject.model, &study.subject.corpus);
    let sequence = [trace.sequence(&corpus.switch)?];
    let all = study.subject.unroll(&sequence, &mut Hooks::none())?;
    // One position at a time: a vocabulary of 150,000 and 16 latents would be 10 MB of logits.
    for i in latents {
        let h = all.hidden_at(&[(0, trace.prompt.len() + i)])?;
        let logits = model.unembed(h.unsqueeze_dim(0)).try_into_vec_as::<f32>();
        let logits = logits.map_err(|e| anyhow::anyhow!("reading logits: {e:?}"))?;
        let log_probs = sampling::log_softmax(&logits, 1.0, &[]);
        let mut order: Vec<usize> = (0..log_probs.len()).collect();
        order.sort_by(|&a, &b| log_probs[b].total_cmp(&log_probs[a]).then(a.cmp(&b)));
        let tokens: Result<Vec<(String, f64)>> = order
            .into_iter()
            .take(top)
            .map(|t| Ok((corpus.vocabulary.decode(&[t as u32])?, log_probs[t].exp())))
            .collect();
        out[i] = Some(serde_json::to_string(&tokens?)?);
    }
    Ok(out)
}
