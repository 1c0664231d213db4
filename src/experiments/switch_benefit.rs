//! What switching is worth, problem by problem: every problem with a block and without one.
//!
//! Problems that switch of their own accord are decoded again with `<swi>` masked; those that do not, with a block forced
//! where p(`<swi>`) was highest. `benefit` is accuracy with a block minus accuracy without, on the same problems. On the
//! problems that chose to switch it is the effect of a choice; on the others, of a block that nobody asked for; over all it
//! is free of the model's selection. Misleads as `force_switch` and `suppress_switch` do.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Files, Fit};
use crate::interventions::Later;
use crate::latent::{Channel, Switching};
use crate::schema::{BlockOrigin, Identity, Named, SwitchBenefitRow, SwitchProblemRow, benefit};
use crate::store::{FlatRow, Journal};
use crate::study::sweep::{Continuation, Outcome, What};
use crate::study::{Causal, Subject};

/// What it asks.
pub const ABOUT: &str = "what switching is worth: every problem with a block and without one";

/// No settings: the decode is the evaluation's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// Runs on blocks of the model's own.
///
/// # Errors
/// None.
pub fn fits(causal: &Causal, _config: &Config) -> Result<Fit> {
    Ok(match causal.blocks {
        BlockOrigin::Own => Fit::Yes,
        BlockOrigin::Forced => Fit::No("it compares what the model chose; run it without --force".into()),
    })
}

/// Decodes every problem the other way, goes on with the problems of a run that was stopped, and writes problems and groups.
///
/// # Errors
/// As [`problems`]; a disk that cannot be written.
pub fn run(causal: &Causal, _config: &Config, files: &Files) -> Result<String> {
    if files.done_from(SwitchProblemRow::NAME, SwitchBenefitRow::NAME)? {
        return Ok("done before\n".into());
    }
    let done = problems(causal, files.journal(SwitchProblemRow::NAME)?)?;
    match files.shard {
        Some(shard) => files.finish_shard(shard, (SwitchProblemRow::NAME, "problems"), done, |p| p.problem),
        None => conclude(files, done),
    }
}

/// The files that its shards write.
pub(crate) const SHARDS: &[&str] = &[SwitchProblemRow::NAME];

/// Makes the tables of the problems of all shards.
///
/// # Errors
/// A problem that no shard has, and as [`run`].
pub(crate) fn merge(_config: &Config, files: &Files, name: &str, rows: &[FlatRow]) -> Result<String> {
    let done: Journal<SwitchProblemRow> = files.gathered(name, rows)?;
    files.all_problems(done.rows().iter().map(|row| row.problem))?;
    conclude(files, done)
}

fn conclude(files: &Files, done: Journal<SwitchProblemRow>) -> Result<String> {
    let rows = benefit(&files.finish(SwitchProblemRow::NAME, done, |p| p.problem, true)?)?;
    files.save(SwitchBenefitRow::NAME, &rows)?;
    Ok(table(&rows))
}

/// Adds the problems that the journal does not hold yet.
///
/// # Errors
/// Problems of another run in the journal; as the decoder's.
pub fn problems(causal: &Causal, journal: Journal<SwitchProblemRow>) -> Result<Journal<SwitchProblemRow>> {
    let (study, sweep) = (causal.study, causal.sweep()?);
    let (subject, identity) = (&study.subject, study.identity(sweep.normal.len()));
    let there: BTreeSet<usize> = journal.rows().iter().map(|row| row.problem).collect();
    for row in journal.rows() {
        ensure!(
            row.identity == identity,
            "the problems of the run that was stopped are of {:?}, this run is of {identity:?}; start over without --resume",
            row.identity
        );
    }
    causal.say("every problem with a block and without");
    let journal = Mutex::new(journal);
    let both = [What::Rule(Switching::Suppressed), What::Force].map(|what| Continuation { what, same_shape: false });
    sweep.each(&both, Later::Recompute, Channel::Both, &|problem, _| there.contains(&problem), &|forks| {
        let new = forks.into_iter().filter(|f| !there.contains(&f.problem));
        let rows = new.map(|f| row(subject, &identity, f.problem, &sweep.normal[f.problem], &f.outcome)).collect();
        journal.lock().unwrap_or_else(PoisonError::into_inner).push(rows)
    })?;
    Ok(journal.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// A problem decoded normally and the other way.
fn row(subject: &Subject, identity: &Identity, problem: usize, normal: &Outcome, other: &Outcome) -> SwitchProblemRow {
    let (with, without) = if normal.switched { (normal, other) } else { (other, normal) };
    let asked = &subject.corpus.test[problem];
    SwitchProblemRow {
        identity: identity.clone(),
        problem,
        level: asked.level,
        subject: asked.subject.clone(),
        chosen: normal.switched,
        with_block: with.correct,
        without_block: without.correct,
        logit_diff: with.margin.zip(without.margin).map(|(with, without)| with - without),
    }
}

/// Markdown, one row a group.
pub fn table(rows: &[SwitchBenefitRow]) -> String {
    let mut out = String::from(
        "| problems | with a block [95 %] | without | benefit | better / worse | p | verdict |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for r in rows {
        out += &format!(
            "| {} | {:.3} | {:.3} | {:.3} | {} / {} | {:.1e} | {} |\n",
            r.group,
            r.with_block,
            r.without_block,
            r.benefit,
            r.better,
            r.worse,
            r.p_value,
            r.verdict()
        );
    }
    out
}
