//! The benefit of switching, problem by problem: every problem with a block and without one.
//!
//! Problems that switch by themselves are decoded again with `<swi>` masked; the others with a block forced where p(`<swi>`) was highest.
//! `benefit` is accuracy with a block minus accuracy without, on the same problems. On problems that chose to switch it is the effect of
//! that choice; on the others, of a block that the model did not choose; over all problems it is free of the model's selection. Misleads
//! as `force_switch` and `suppress_switch` do.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

pub use super::NoSettings as Config;
use super::markdown::table_of;
use super::{About, Files, Journal, Unfit};
use crate::interventions::{At, Later};
use crate::latent::Switching;
use crate::schema::{BlockOrigin, Identity, RowFile, SwitchBenefitRow, SwitchProblemRow, benefit, never};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::sweep::{Continuation, SweepOutcome};

pub const ABOUT: About = About::asking("the benefit of switching: every problem with a block and without one")
    .of_grpo_start()
    .of_switching();

/// Needs blocks that the model opened by itself.
pub fn unfit(study: &Study, _config: &Config) -> Result<Unfit> {
    let why = || "it compares what the model chose; run it without --force".to_owned();
    Ok((study.blocks == BlockOrigin::Forced).then(why))
}

pub(crate) const FILES: &[Files] = &[(SwitchProblemRow::NAME, SwitchBenefitRow::NAME)];

pub(crate) fn conclude(_: &Config, rows: Measurements<SwitchProblemRow>, journal: &mut Journal) -> Result<String> {
    let rows = benefit(&journal.finish(rows, true)?)?;
    journal.tell(&rows, table)
}

/// Decodes each problem that `rows` lacks once more: without blocks if it switched, otherwise with a forced one.
pub fn measure(study: &Study, _config: &Config, rows: &mut Measurements<SwitchProblemRow>) -> Result<()> {
    let sweep = study.sweep()?;
    let identity = study.identity(sweep.normal.len());
    study.check_identity(rows.rows(), &(None, 0), &identity)?;
    let guess = study.corpus.guess();
    let done: BTreeSet<usize> = rows.rows().iter().map(|row| row.problem).collect();
    study.say("every problem with a block and without");
    let rows = Mutex::new(rows);
    let both = [
        Continuation { switching: Switching::Suppressed, ..Continuation::default() },
        Continuation { force: true, ..Continuation::default() },
    ];
    sweep.each(&both, Later::Recompute, At::Both, &|problem, _| done.contains(&problem), &|forks| {
        let new = forks.into_iter().filter(|f| !done.contains(&f.problem));
        let new =
            new.map(|f| row(study, (&identity, guess), f.problem, &sweep.normal[f.problem], &f.outcome)).collect();
        rows.lock().unwrap_or_else(PoisonError::into_inner).push(new)
    })
}

/// The record of a problem decoded with and without a block, of which one is the normal decode.
fn row(
    study: &Study,
    (identity, guess): (&Identity, f64),
    problem: usize,
    normal: &SweepOutcome,
    other: &SweepOutcome,
) -> SwitchProblemRow {
    let (with, without) = if normal.switched { (normal, other) } else { (other, normal) };
    let asked = &study.corpus.test[problem];
    SwitchProblemRow {
        identity: identity.clone(),
        problem,
        level: asked.level,
        subject: asked.subject.clone(),
        chosen: normal.switched,
        with_block: with.correct,
        without_block: without.correct,
        guess: Some(guess),
        logit_diff: with.margin.zip(without.margin).map(|(with, without)| with - without),
    }
}

pub fn table(rows: &[SwitchBenefitRow]) -> String {
    let columns = "problems | with a block [95 %] | without | benefit | better / worse | p | Holm p | verdict";
    let out = table_of(columns, rows, |r| {
        let SwitchBenefitRow { group, with_block, without_block, benefit, better, worse, p_value, p_holm, .. } = r;
        let verdict = r.verdict();
        format!(
            "{group} | {with_block:.3} | {without_block:.3} | {benefit:.3} | {better} / {worse} | {p_value:.1e} | {p_holm:.1e} | {verdict}"
        )
    });
    out + &rows.iter().map(|r| r.identity.n).max().and_then(never).unwrap_or_default()
}
