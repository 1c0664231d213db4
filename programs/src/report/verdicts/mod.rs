//! Tests whether the paper's claims hold on our records. Knows claims and evidence, not pages.
//!
//! 1. Each comparison `left op times · right + plus` of a claim has two one-sided p-values ([`contrast`]): against holding, and for it.
//! 2. A claim holds if all its comparisons do, so the largest of the first counts (an intersection of tests needs no correction); it fails if
//!    one of them does, so the smallest of the second counts, times their number (Holm's first step).
//! 3. Twice the smaller of the two is the claim's p-value, and Holm's correction runs over all claims of the folder.
//! 4. Above .05 the claim is undecided: an interval across the line is not evidence against it.

mod calibration;
mod compare;
mod contrast;
mod needs;

use std::collections::BTreeSet;

use super::claims::{Claim, Term};
use super::exhibits;
use super::folder::{Folder, distinct};
use super::paper::Paper;
use compare::{Trial, compare};
use switchyard::schema::METRICS;
use switchyard::stats::{LEVEL, holm};

pub use contrast::shown_p;
pub(crate) use contrast::{Contrast, FEWEST_RUNS, Test, TestEvidence};
pub(super) use needs::Need;

/// Verdict of our rows on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Reproduced,
    NotReproduced,
    /// Tested; the data allow both answers.
    Undecided,
    NotTestable,
}

impl Verdict {
    pub(crate) const ALL: [Self; 4] = [Self::Reproduced, Self::NotReproduced, Self::Undecided, Self::NotTestable];

    /// As printed.
    pub fn words(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::Undecided => "undecided",
            Self::NotTestable => "not testable here",
        }
    }
}

/// A claim, on one checkpoint (or on two phases of training), with the tests of its verdict.
#[derive(Clone, Debug)]
pub struct TestedClaim<'a> {
    pub claim: &'a Claim,
    /// Checkpoint, or `grpo_start → grpo`; empty if nothing could be tested.
    pub on: String,
    pub verdict: Verdict,
    /// Holm-adjusted over the folder's verdicts; `None` if nothing could be tested.
    pub p: Option<f64>,
    /// Our numbers in a line.
    pub ours: String,
    /// One line per comparison, or the reason for none.
    pub tests: Vec<String>,
    /// Accuracy of such tests on models with known truth, if measured.
    pub calibrated: Vec<String>,
}

impl TestedClaim<'_> {
    /// The p-value of its verdict; `None` if it is not testable here.
    pub(crate) fn tested_p(&self) -> Option<f64> {
        self.p.filter(|_| self.verdict != Verdict::NotTestable)
    }

    /// The verdict in words, with its p-value and whether it covers the whole claim.
    pub(crate) fn describe(&self) -> String {
        let tested = self.tested_p();
        let p = tested.map_or_else(String::new, |p| format!(" ({})", shown_p(p)));
        let part = if tested.is_none() || self.claim.untested.is_empty() { "" } else { ", in part" };
        format!("{}{p}{part}", self.verdict.words())
    }
}

/// Explanation of verdicts, printed below them.
pub(crate) const READING: &str = "Each comparison has its own two-sided p-value. A claim with several is reproduced if all of \
    them hold, not reproduced if one fails (corrected for their number); the claim's p is Holm-adjusted over all verdicts of \
    this table. Undecided: p > .05. In part: what is not tested is below. A verdict needs 20 problems, or three runs. Claims \
    about RL compare the checkpoint that Switch-GRPO started from with its last one.";

/// A claim on one checkpoint, before the correction.
struct ClaimReading<'a> {
    claim: &'a Claim,
    on: String,
    tried: Vec<Trial>,
    /// Comparisons that could not be made, with reasons.
    missing: Vec<String>,
    /// Properties that make the claim testable, and remarks on the comparisons.
    note: Vec<String>,
}

/// Tests every claim on a folder's records. `at_scale` returns, for a label, the command that would test it on the paper's model.
pub fn test<'a>(paper: &'a Paper, folder: &Folder, at_scale: impl Fn(&str) -> Option<String>) -> Vec<TestedClaim<'a>> {
    let mut all: Vec<ClaimReading<'_>> = vec![];
    for claim in &paper.claims {
        if let Some(why) = untestable(claim, folder, &at_scale) {
            all.push(ClaimReading { claim, on: String::new(), tried: vec![], missing: vec![why], note: vec![] });
            continue;
        }
        let asked = subjects(claim, folder).into_iter().map(|checkpoint| ask(paper, claim, folder, checkpoint));
        let (some, none): (Vec<_>, Vec<_>) = asked.partition(|a| !a.tried.is_empty());
        // A claim that can be tested nowhere is listed once.
        let nowhere =
            none.into_iter().take(usize::from(some.is_empty())).map(|a| ClaimReading { on: String::new(), ..a });
        all.extend(nowhere.chain(some));
    }
    settle(all)
}

/// Why a claim can be tested on no checkpoint of the folder.
fn untestable(claim: &Claim, folder: &Folder, at_scale: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let steps = folder.flat(METRICS, &folder.grpo).len();
    if claim.comparisons_here().is_empty() {
        let what = "the paper gives no number to compare";
        return Some(if claim.note.is_empty() { what.to_owned() } else { format!("{what}: {}", claim.note) });
    }
    if steps > 0 && steps < claim.grpo_steps {
        return Some(format!("needs {} steps of Switch-GRPO, this run has {steps}", claim.grpo_steps));
    }
    let missing: Vec<String> = subjects(claim, folder)
        .into_iter()
        .map(|checkpoint| properties(claim, folder, checkpoint).err())
        .collect::<Option<_>>()?;
    let command = claim.rests_on.iter().find_map(|label| at_scale(label));
    let command = command.map_or_else(String::new, |c| format!("; on Qwen3-8B: `{c}`"));
    Some(format!("{}{command}", distinct(missing.iter().map(String::as_str)).join("; ")))
}

/// The properties that make a claim testable on a checkpoint (if its cells name theirs, on the one after SFT).
///
/// # Errors
/// The first property that it lacks.
fn properties(claim: &Claim, folder: &Folder, checkpoint: &str) -> Result<Vec<String>, String> {
    let checkpoint = if checkpoint.is_empty() { &folder.sft } else { checkpoint };
    claim.needs.iter().map(|need| need.check(folder, checkpoint)).filter(|found| found != &Ok(String::new())).collect()
}

/// The checkpoints that a claim is tested on; one empty name if its cells name theirs.
fn subjects<'f>(claim: &Claim, folder: &'f Folder) -> Vec<&'f str> {
    let mut labels = claim.comparisons_here().iter().flat_map(|c| [&c.left, &c.right]).filter_map(Term::label);
    let Some(exhibit) = labels.find_map(|label| exhibits::find(label).filter(|e| e.per_checkpoint)) else {
        return vec![""];
    };
    let there = exhibit.sources.first().map_or(vec![], |experiment| folder.checkpoints(experiment));
    let named = |c: &&str| *c == folder.sft || *c == folder.grpo;
    match there.iter().any(named) {
        true => there.into_iter().filter(named).collect(),
        false if there.is_empty() => vec![""],
        false => there,
    }
}

fn ask<'a>(paper: &Paper, claim: &'a Claim, folder: &Folder, checkpoint: &str) -> ClaimReading<'a> {
    let (mut tried, mut missing): (Vec<Trial>, Vec<String>) = (vec![], vec![]);
    let testable = match properties(claim, folder, checkpoint) {
        Ok(found) => found,
        Err(why) => return ClaimReading { claim, on: checkpoint.to_owned(), tried, missing: vec![why], note: vec![] },
    };
    for comparison in
        claim.comparisons_here().iter().filter(|c| !c.cells().any(|cell| exhibits::of_other_set(folder, cell)))
    {
        match compare(paper, folder, checkpoint, claim.rl, comparison) {
            Ok(new) if tried.iter().any(|t| t.repeats(&new)) => {}
            Ok(new) => tried.push(new),
            Err(why) if !missing.contains(&why) => missing.push(why),
            Err(_) => {}
        }
    }
    let stands_in = tried.iter().any(|t| t.stands_in).then(|| folder.no_start());
    let note = testable.into_iter().map(|found| format!("testable: {found}")).chain(stands_in).collect();
    let mut of = distinct(tried.iter().flat_map(|t| &t.of).map(String::as_str));
    // In the order of training.
    of.sort_by_key(|name| *name == folder.grpo);
    ClaimReading { claim, on: of.join(if claim.rl { " → " } else { ", " }), tried, missing, note }
}

/// Verdicts, Holm-corrected.
fn settle(all: Vec<ClaimReading<'_>>) -> Vec<TestedClaim<'_>> {
    let evidence: Vec<Option<TestEvidence>> = all.iter().map(ClaimReading::evidence).collect();
    let p: Vec<f64> = evidence.iter().flatten().map(|e| e.two_sided()).collect();
    // Each is in [0, 1], so Holm's correction can only fail if there is none.
    let mut adjusted = holm(&p).unwrap_or_default().into_iter();
    let settled = all.into_iter().zip(evidence).map(|(asked, evidence)| {
        let p = evidence.and_then(|_| adjusted.next());
        let decided = p.is_some_and(|p| p <= 1.0 - LEVEL);
        let verdict = match evidence {
            Some(e) if decided && e.fails < e.holds => Verdict::NotReproduced,
            Some(_) if decided => Verdict::Reproduced,
            Some(_) if asked.missing.is_empty() => Verdict::Undecided,
            _ => Verdict::NotTestable,
        };
        let (ours, calibrated) = (asked.ours(), asked.calibrated());
        let tests = asked.tried.into_iter().map(|t| t.text).chain(asked.missing).chain(asked.note).collect();
        TestedClaim { claim: asked.claim, on: asked.on, verdict, p, ours, tests, calibrated }
    });
    settled.collect()
}

impl ClaimReading<'_> {
    /// The evidence of all comparisons together; `None` without any.
    fn evidence(&self) -> Option<TestEvidence> {
        let largest = self.tried.iter().map(|t| t.evidence.holds).reduce(f64::max)?;
        let smallest = self.tried.iter().map(|t| t.evidence.fails).reduce(f64::min)?;
        // With a missing part the claim cannot hold, but it can fail.
        let holds = if self.missing.is_empty() { largest } else { 1.0 };
        Some(TestEvidence { holds, fails: (smallest * self.tried.len() as f64).min(1.0) })
    }

    fn calibrated(&self) -> Vec<String> {
        let lines: BTreeSet<String> = self.tried.iter().filter_map(|t| t.calibrated.clone()).collect();
        lines.into_iter().collect()
    }

    fn ours(&self) -> String {
        match self.tried.as_slice() {
            [] => String::new(),
            [one] => one.ours.clone(),
            many => {
                let agree = many.iter().filter(|t| t.evidence.agrees()).count();
                format!("{agree} of {} comparisons agree", many.len())
            }
        }
    }
}
