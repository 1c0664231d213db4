//! Each head's attention to the latents, and its direct contribution to the answer.
//!
//! Sequences are the held-out solutions, teacher forced: with latents at tagged spans (`form` = latents) and as plain text, with the
//! clause in place of its latents. `mass` is the attention from a position of one class to all keys of another, averaged over the
//! positions that see such a key (`queries` of them): weighted by `queries`, the classes of keys sum to 1. `direct`, only for the
//! position that decides the answer, is the head's contribution from those keys to the margin of the gold answer's first token over
//! the best other token (nats; pattern · value · output · unembedding, with the final norm's own scale). Summed over keys it equals the
//! head's contribution in `direct_logit`.
//!
//! Misleads: attention is not use. A head may attend to latents and write to coordinates that nothing reads; `direct` distinguishes such
//! a head from one that copies the answer, `head_patching` from one that acts through others.

mod reading;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ndarray::Array2;

use super::markdown::{largest, or_dash, table_of, titled};
use super::{About, check_of};
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::Count;
use crate::schema::{AttentionRow, Form};
use crate::stats::{Bootstrap, Estimate};
use crate::study::Study;
use crate::study::circuits::{SolutionForms, solution_forms};
use crate::study::staging::logits::in_batches;
use reading::{Cell, Class, ClassCells, read};

pub const ABOUT: About =
    About::asking("each head's attention to the latents, and its direct contribution to the answer");

settings! {
    pub struct Config {
        /// Maximum number of problems with a tagged span.
        pub problems: usize = 200 => Count(2, MOST_ROWS),
    }
}

/// One row per form, head and pair of classes.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<AttentionRow>> {
    check_of("attention_to_latents", config, Config::RANGES)?;
    study.adds_as_it_is()?;
    let solutions = solution_forms(study, config.problems)?;
    let masked = study.mask_in_text(true);
    let mut rows = vec![];
    for form in Form::ALL {
        let sequences: Vec<_> = solutions.iter().map(|w| w.sequence(form).clone()).collect();
        let of_problem: BTreeMap<usize, &SolutionForms> = solutions.iter().map(|w| (w.problem, w)).collect();
        let done = in_batches(&study.model, &sequences, study.threads, |batch| {
            let batch: Vec<&SolutionForms> = batch.iter().map(|s| of_problem[&s.row]).collect();
            read(study, &batch, form, &masked)
        })?;
        rows.extend(of_form(study, form, &done)?);
    }
    let too_few = "fewer than two problems with the same classes of positions, and an interval needs two: raise --problems (one text: \
                   `probe patterns`)";
    study.require(!rows.is_empty(), || too_few.into())?;
    Ok(rows)
}

fn of_form(study: &Study, form: Form, problems: &[(usize, ClassCells)]) -> Result<Vec<AttentionRow>> {
    let heads = study.model.config().num_attention_heads;
    let kinds: BTreeSet<(Class, Class)> = problems.iter().flat_map(|(_, cells)| cells.keys().copied()).collect();
    let mut rows = vec![];
    for kind in kinds {
        let cells: Vec<&Cell> = problems.iter().filter_map(|(_, cells)| cells.get(&kind)).collect();
        let mass = estimates(study, &cells, |cell| &cell.mass)?;
        let direct = if kind.0.answer { estimates(study, &cells, |cell| &cell.direct)? } else { vec![] };
        for (head, mass) in mass.into_iter().enumerate() {
            let Some(mass) = mass else { continue };
            rows.push(AttentionRow {
                identity: study.identity(cells.len()),
                form,
                layer: head / heads,
                head: head % heads,
                from: kind.0.name(form),
                to: kind.1.name(form),
                back: kind.1.back,
                queries: cells.iter().map(|cell| cell.queries).sum(),
                mass,
                direct: direct.get(head).copied().flatten(),
            });
        }
    }
    Ok(rows)
}

/// A mean per query for each head.
fn estimates(study: &Study, cells: &[&Cell], of: impl Fn(&Cell) -> &Vec<f64>) -> Result<Vec<Option<Estimate>>> {
    let heads = cells.iter().map(|cell| of(cell).len()).max().unwrap_or(0);
    let sums = Array2::from_shape_fn((cells.len(), heads), |(i, head)| of(cells[i]).get(head).copied().unwrap_or(0.0));
    let sizes = Array2::from_shape_fn((cells.len(), heads), |(i, _)| cells[i].queries as f64);
    Bootstrap::seeded(study.seed).columns(sums.view(), sizes.view())
}

/// Markdown: the heads that attend most to the last block from the deciding position, and their contributions.
pub fn table(rows: &[AttentionRow]) -> String {
    let looks = Form::ALL.into_iter().flat_map(|form| {
        let into = rows.iter().filter(move |r| r.form == form && r.from == "answer" && r.back == Some(0));
        largest(into, 8, |r| r.mass.value)
    });
    let table = table_of("form | head | attends to | attention | contribution", looks, |r| {
        let mark = if r.brings() { " *" } else { "" };
        let brings = or_dash(r.direct.map(|d| format!("{d:.2}{mark}")));
        let AttentionRow { form, layer, head, to, mass, .. } = r;
        format!("{form} | L{layer}H{head} | {to} | {mass:.3} | {brings}")
    });
    titled(
        "At the position that decides the answer: the heads that attend most to one part of the last block (`latent[k]`; in text \
        `clause[k]`), and their contribution to the answer's margin (nats; * more than zero).",
        &table,
    )
}
