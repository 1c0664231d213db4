//! Teacher-forced switch statistics (tab:tf): how sharply does the model place `<swi>`?
//!
//! Held-out solutions are tagged at their clauses and fed as the last stage of the curriculum saw them (latents in the
//! blocks). At each position the next-token distribution gives H, p(`<swi>`), the rank of `<swi>` and its log-margin to
//! the best other token. Uncertain clauses only carry tags in training, so `start` covers every clause start, split by
//! whether the annotator's own threshold would tag it.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::lab::{Identity, Lab};
use super::subject::Subject;
use crate::curriculum::staged;
use crate::latent::{Gradient, HiddenState, Sequence, sampling, unroll};
use crate::model::Hooks;
use crate::report::rows::RowWriter;
use crate::stats::{Bootstrap, Estimate};

/// What it asks.
pub const ABOUT: &str = "how sharply the model places <swi> (tab:tf)";

/// A class of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The next token is an annotated `<swi>`.
    SwiStart,
    /// The same token type (`=`) where the annotation puts no `<swi>`: the hard negative.
    SameToken,
    /// Any other response position outside blocks.
    Other,
}

/// One class on one checkpoint; intervals are cluster bootstraps over problems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub identity: Identity,
    pub event: Event,
    pub positions: usize,
    pub entropy: Estimate,
    pub p_swi: Estimate,
    pub rank: Estimate,
    /// `log p(<swi>) − log p(best other token)`, nats.
    pub margin: Estimate,
}

struct Seen {
    event: Event,
    problem: usize,
    values: [f64; 4],
}

/// No settings: the positions are the annotator's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// Runs the experiment.
///
/// # Errors
/// No tagged span in the data, and whatever the model returns.
pub fn run(lab: &Lab, _config: &Config, writer: &mut RowWriter) -> Result<String> {
    let rows = rows(lab)?;
    rows.iter().try_for_each(|row| writer.push(row))?;
    Ok(table(&rows))
}

/// One row a class of positions.
///
/// # Errors
/// As [`run`].
pub fn rows(lab: &Lab) -> Result<Vec<Row>> {
    let (subject, tagged) = (&lab.subject, lab.tagged()?);
    let ids = subject.corpus.switch;
    let latents = &subject.recipe.latent;
    let mut seen = vec![];
    for (at, chunk) in tagged.chunks(64).enumerate() {
        let mut sequences = vec![];
        for (i, (sample, spans)) in chunk.iter().enumerate() {
            let response = staged(&sample.response, spans, &[], latents.k_max, latents, ids);
            let row: Vec<u32> = sample.prompt.iter().chain(&response).copied().collect();
            sequences.push(Sequence::new(at * 64 + i, row, sample.prompt.len(), Some(ids.latent))?);
        }
        let all = unroll(&subject.model, &sequences, &HiddenState, Gradient::Through, &mut Hooks::none())?;
        for (b, sequence) in sequences.iter().enumerate() {
            observe(subject, &all, b, sequence, chunk[b].0.prompt.len(), &mut seen)?;
        }
    }
    ensure!(
        seen.iter().any(|s| s.event == Event::SwiStart),
        "{}: no boundary in this data: no held-out solution has a tagged span",
        subject.name
    );
    [Event::SwiStart, Event::SameToken, Event::Other]
        .into_iter()
        .filter(|event| seen.iter().any(|s| s.event == *event))
        .map(|event| row(lab, tagged.len(), event, &seen))
        .collect()
}

fn observe(
    subject: &Subject,
    all: &crate::latent::Unrolled,
    b: usize,
    sequence: &Sequence,
    prompt: usize,
    seen: &mut Vec<Seen>,
) -> Result<()> {
    let ids = subject.corpus.switch;
    let equals: Vec<u32> =
        (0..sequence.ids.len() - 1).filter(|&p| sequence.ids[p + 1] == ids.swi).map(|p| sequence.ids[p]).collect();
    let mut inside = false;
    let mut places = vec![];
    for p in prompt..sequence.ids.len() - 1 {
        let (here, next) = (sequence.ids[p], sequence.ids[p + 1]);
        inside = (inside || here == ids.swi) && here != ids.swi_end;
        if inside || here == ids.swi_end {
            continue;
        }
        let event = match next {
            n if n == ids.swi => Event::SwiStart,
            _ if equals.contains(&here) => Event::SameToken,
            _ => Event::Other,
        };
        places.push((p, event));
    }
    if places.is_empty() {
        return Ok(());
    }
    let at: Vec<_> = places.iter().map(|&(p, _)| (b, p)).collect();
    let logits = subject.model.unembed(all.hidden_at(&at)?.unsqueeze_dim(0)).squeeze_dim::<2>(0);
    let vocab = logits.dims()[1];
    let logits = logits.try_into_vec_as::<f32>().map_err(|e| anyhow::anyhow!("reading logits: {e:?}"))?;
    for (i, (_, event)) in places.into_iter().enumerate() {
        // The decoder's own distribution in text mode: <latent> and </swi> cannot be drawn.
        let masked = [ids.latent, ids.swi_end];
        let lp = sampling::log_softmax(&logits[i * vocab..(i + 1) * vocab], 1.0, &masked);
        let swi = lp[ids.swi as usize];
        let others = lp.iter().enumerate().filter(|(t, _)| *t != ids.swi as usize).map(|(_, p)| *p);
        let best = others.fold(f64::NEG_INFINITY, f64::max);
        let rank = 1 + lp.iter().filter(|p| **p > swi).count();
        seen.push(Seen {
            event,
            problem: sequence.row,
            values: [sampling::entropy(&lp), swi.exp(), rank as f64, swi - best],
        });
    }
    Ok(())
}

fn row(lab: &Lab, n: usize, event: Event, seen: &[Seen]) -> Result<Row> {
    let of: Vec<&Seen> = seen.iter().filter(|s| s.event == event).collect();
    let groups: Vec<usize> = of.iter().map(|s| s.problem).collect();
    let mean = |k: usize| -> Result<Estimate> {
        let values: Vec<f64> = of.iter().map(|s| s.values[k]).collect();
        Bootstrap::seeded(lab.seed).clustered_mean(&values, &groups).with_context(|| format!("{event:?}"))
    };
    Ok(Row {
        identity: lab.identity(n),
        event,
        positions: of.len(),
        entropy: mean(0)?,
        p_swi: mean(1)?,
        rank: mean(2)?,
        margin: mean(3)?,
    })
}

/// Markdown, one row a class.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| event | positions | H (nats) | p(swi) | rank | margin |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for r in rows {
        out += &format!(
            "| {:?} | {} | {:.3} | {:.4} | {:.2} | {:.2} |\n",
            r.event, r.positions, r.entropy, r.p_swi, r.rank, r.margin
        );
    }
    out
}
