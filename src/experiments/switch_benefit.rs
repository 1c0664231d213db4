//! What switching is worth, problem by problem: every problem with a block and without one.
//!
//! Problems that switch of their own accord are decoded again with `<swi>` masked; those that do not, with a block forced
//! where p(`<swi>`) was highest. `benefit` is accuracy with a block minus accuracy without, on the same problems. On the
//! problems that chose to switch it is the effect of a choice; on the others, of a block that nobody asked for; over all it
//! is free of the model's selection. Misleads as `force_switch` and `suppress_switch` do.

use anyhow::Result;
use serde::Serialize;

use crate::interventions::Later;
use crate::latent::{Channel, Switching};
use crate::stats::{Bootstrap, Estimate, Flips, accuracy};
use crate::study::sweep::{Continuation, Sweep, What};
use crate::study::{Identity, Study};

/// A group of problems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `n` counts the group's problems.
    #[serde(flatten)]
    pub identity: Identity,
    /// `all`, `chosen` (switched of their own accord), `forced` (did not), `level:<l>`.
    pub group: String,
    pub with_block: Estimate,
    pub without_block: Estimate,
    pub benefit: Estimate,
    /// Right with a block, wrong without.
    pub better: usize,
    pub worse: usize,
    /// Exact McNemar.
    pub p_value: f64,
}

/// A problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Problem {
    #[serde(flatten)]
    pub identity: Identity,
    pub problem: usize,
    pub level: Option<u8>,
    pub subject: Option<String>,
    pub chosen: bool,
    pub with_block: bool,
    pub without_block: bool,
    /// Lead of the gold answer with a block minus without, in nats, where both give an answer.
    pub logit_diff: Option<f64>,
}

/// Runs the experiment: groups, and the problems behind them.
///
/// # Errors
/// As the decoder's.
pub fn run(study: &Study, sweep: &Sweep) -> Result<(Vec<Row>, Vec<Problem>)> {
    let both = [What::Rule(Switching::Suppressed), What::Force].map(|what| Continuation { what, same_shape: false });
    let done = sweep.run(&both, Later::Recompute, Channel::Both)?;
    let (suppressed, forced) = (&done[0].outcomes, &done[1].outcomes);
    let identity = study.identity(sweep.normal.len());
    let mut problems = vec![];
    for (problem, normal) in sweep.normal.iter().enumerate() {
        let (with, without) = if normal.switched { (normal, &suppressed[problem]) } else { (&forced[problem], normal) };
        let asked = &study.subject.corpus.test[problem];
        problems.push(Problem {
            identity: identity.clone(),
            problem,
            level: asked.level,
            subject: asked.subject.clone(),
            chosen: normal.switched,
            with_block: with.correct,
            without_block: without.correct,
            logit_diff: with.margin.zip(without.margin).map(|(with, without)| with - without),
        });
    }
    let mut levels: Vec<u8> = problems.iter().filter_map(|p| p.level).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut rows = vec![];
    rows.extend(row(study, "all", &problems, &|_| true)?);
    rows.extend(row(study, "chosen", &problems, &|p| p.chosen)?);
    rows.extend(row(study, "forced", &problems, &|p| !p.chosen)?);
    for level in levels {
        rows.extend(row(study, &format!("level:{level}"), &problems, &|p| p.level == Some(level))?);
    }
    Ok((rows, problems))
}

fn row(study: &Study, group: &str, problems: &[Problem], keep: &dyn Fn(&Problem) -> bool) -> Result<Option<Row>> {
    let of: Vec<&Problem> = problems.iter().filter(|p| keep(p)).collect();
    if of.len() < 2 {
        return Ok(None);
    }
    let with: Vec<bool> = of.iter().map(|p| p.with_block).collect();
    let without: Vec<bool> = of.iter().map(|p| p.without_block).collect();
    let numbers = |yes: &[bool]| yes.iter().map(|y| f64::from(u8::from(*y))).collect::<Vec<_>>();
    let flips = Flips::count(&without, &with)?;
    Ok(Some(Row {
        identity: study.identity(of.len()),
        group: group.to_owned(),
        with_block: accuracy(&with)?,
        without_block: accuracy(&without)?,
        benefit: Bootstrap::seeded(study.seed).paired(&numbers(&without), &numbers(&with))?,
        better: flips.gained,
        worse: flips.lost,
        p_value: flips.p_value(),
    }))
}

/// Markdown, one row a group.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| problems | with a block [95 %] | without | benefit | better / worse | p |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for r in rows {
        out += &format!(
            "| {} | {:.3} | {:.3} | {:.3} | {} / {} | {:.1e} |\n",
            r.group, r.with_block, r.without_block, r.benefit, r.better, r.worse, r.p_value
        );
    }
    out
}
