//! Entropy and log-probability of the model's choices, by kind of position: text, `<swi>`, latent, `</swi>`.
//!
//! Entropy is that of the distribution from which the token was drawn. At a latent nothing is drawn, so it is that of its next-token
//! distribution; the last latent's is therefore also `</swi>`'s. A `</swi>` forced by the cap counts with its probability.

use anyhow::Result;

use super::About;
pub use super::NoSettings as Config;
use super::markdown::table_of;
use crate::latent::Trace;
use crate::latent::trace::PositionRole;
use crate::schema::EntropyRow;
use crate::stats::by_problem::{cell, mean};
use crate::study::Study;

pub const ABOUT: About = About::asking("entropy and log-probability by kind of position").of_responses();

struct EntropySample {
    problem: usize,
    kind: &'static str,
    entropy: Option<f64>,
    logprob: Option<f64>,
}

/// One row per kind that occurs.
pub fn rows(study: &Study, _config: &Config) -> Result<Vec<EntropyRow>> {
    let (_, traces) = study.decoded()?;
    let seen: Vec<EntropySample> = traces.iter().flat_map(see).collect();
    let mut rows = vec![];
    for kind in ["text", "swi", "latent", "swi_end"] {
        let of: Vec<&EntropySample> = seen.iter().filter(|s| s.kind == kind).collect();
        if of.is_empty() {
            continue;
        }
        let over = |value: fn(&EntropySample) -> Option<f64>| {
            mean(study.seed, of.iter().filter_map(|s| Some((s.problem, value(s)?))))
        };
        rows.push(EntropyRow {
            identity: study.identity(traces.len()),
            kind: kind.to_owned(),
            positions: of.len(),
            entropy: over(|s| s.entropy)?,
            logprob: over(|s| s.logprob)?,
        });
    }
    Ok(rows)
}

fn see(trace: &Trace) -> impl Iterator<Item = EntropySample> {
    // A probability that underflowed still has a finite logarithm.
    let ln = |p: f64| p.max(f64::MIN_POSITIVE).ln();
    trace.positions.iter().enumerate().map(move |(i, p)| {
        let before = i.checked_sub(1).map(|i| &trace.positions[i]);
        let (kind, entropy, logprob) = match p.kind {
            PositionRole::Text => ("text", p.entropy, p.logprob),
            PositionRole::Swi => ("swi", p.entropy, p.logprob),
            PositionRole::Latent => ("latent", p.entropy, None),
            // The trace stores the distribution of an exit at the latent before it.
            PositionRole::SwiEndSampled | PositionRole::SwiEndForced => {
                ("swi_end", before.and_then(|b| b.entropy), before.and_then(|b| b.p_exit).map(ln))
            }
        };
        EntropySample { problem: trace.problem, kind, entropy, logprob }
    })
}

pub fn table(rows: &[EntropyRow]) -> String {
    table_of("kind | positions | H (nats) | log p", rows, |r| {
        format!("{} | {} | {} | {}", r.kind, r.positions, cell(r.entropy, 3), cell(r.logprob, 3))
    })
}
