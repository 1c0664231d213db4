//! Does a claim of the paper hold on our rows? Knows claims, cells and intervals; nothing of pages.
//!
//! Each comparison `left op times · right + plus` becomes the difference of its sides with a 95 % interval: paired where the
//! rows are of the same problems (exact McNemar and bootstrap), else from the two intervals (MOVER: Zou & Donner 2008). Where
//! the whole interval satisfies the comparison it is reproduced, where none of it does it is not, and between the two the
//! data leave it undecided: an interval across the line is no evidence against a claim.

use super::cells::{Cells, per_checkpoint, sources};
use super::claims::{Claim, Comparison, Op, Scale, Term};
use super::folder::Folder;
use super::paired::{self, Paired};
use super::paper::{Paper, parts};
use crate::stats::Estimate;

/// What our rows say about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Reproduced,
    NotReproduced,
    /// Testable and tested; the intervals cover both answers.
    Undecided,
    NotTestable,
}

impl Verdict {
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

/// A claim, on one checkpoint (or on SFT against GRPO), with the test behind its verdict.
#[derive(Clone, Debug)]
pub struct Tested<'a> {
    pub claim: &'a Claim,
    /// Checkpoint, or `latent → grpo`.
    pub on: String,
    pub verdict: Verdict,
    /// One line per comparison, or the reason why there is none.
    pub tests: Vec<String>,
}

/// How verdicts are to be read; printed under them.
pub(crate) const READING: &str = "Reproduced: the whole 95 % interval of the difference satisfies the comparison; not reproduced: none of it does; \
    undecided: some of it. Intervals are not corrected for the number of claims. latent → grpo compares the finished checkpoints of the two \
    phases: where a recipe starts Switch-GRPO from an earlier one (micro: grpo.from_step = 50, because the finished one leaves no \
    headroom) it mixes the start with the training; the run's summary.md compares GRPO with its own start.";

/// Tests every claim on a folder's rows. `at_scale` gives, for a label, the command that would test it on the paper's model.
pub fn test<'a>(paper: &'a Paper, folder: &Folder, at_scale: impl Fn(&str) -> Option<String>) -> Vec<Tested<'a>> {
    let mut out = vec![];
    for claim in &paper.claims {
        let labels = claim.here().iter().flat_map(|c| [&c.left, &c.right]).filter_map(label);
        let labels: Vec<&str> = labels.collect();
        let single = labels.iter().any(|l| per_checkpoint(l));
        let mut subjects: Vec<&str> = if single {
            labels.first().and_then(|l| sources(l).first()).map_or(vec![], |e| folder.checkpoints(e))
        } else {
            vec![]
        };
        subjects.dedup();
        if subjects.is_empty() {
            subjects.push("");
        }
        for checkpoint in subjects {
            let cells = Cells { folder, checkpoint };
            let (verdict, tests) = one(paper, claim, cells, &at_scale);
            let on = match (checkpoint, verdict) {
                (_, Verdict::NotTestable) => String::new(),
                ("", _) => format!("{} → {}", folder.sft, folder.grpo),
                (named, _) => named.to_owned(),
            };
            out.push(Tested { claim, on, verdict, tests });
            if verdict == Verdict::NotTestable && claim.scale != Scale::Any {
                break;
            }
        }
    }
    out
}

fn label(term: &Term) -> Option<&str> {
    if let Term::Cell(name) = term { name.split('/').next() } else { None }
}

fn one(
    paper: &Paper,
    claim: &Claim,
    cells: Cells<'_>,
    at_scale: &impl Fn(&str) -> Option<String>,
) -> (Verdict, Vec<String>) {
    let elsewhere = || claim.rests_on.iter().find_map(|label| at_scale(label));
    match claim.scale {
        Scale::None => return (Verdict::NotTestable, vec![said("nothing to measure", &claim.note)]),
        Scale::EightB => {
            let command = elsewhere().map_or_else(String::new, |c| format!("; on Qwen3-8B: `{c}`"));
            return (Verdict::NotTestable, vec![format!("needs the paper's model and data{command}")]);
        }
        Scale::Any if claim.here().is_empty() => {
            return (Verdict::NotTestable, vec![said("the paper gives no number to compare", &claim.note)]);
        }
        Scale::Any => {}
    }
    let results: Vec<(Verdict, String)> = claim.here().iter().map(|c| compare(paper, cells, c)).collect();
    let mut tests: Vec<String> = vec![];
    for (_, test) in &results {
        // Ten comparisons without rows need to be told once.
        if !tests.contains(test) {
            tests.push(test.clone());
        }
    }
    let any = |v: Verdict| results.iter().any(|(verdict, _)| *verdict == v);
    let verdict = if any(Verdict::NotReproduced) {
        Verdict::NotReproduced
    } else if any(Verdict::NotTestable) {
        Verdict::NotTestable
    } else if any(Verdict::Undecided) {
        Verdict::Undecided
    } else {
        Verdict::Reproduced
    };
    (verdict, tests)
}

fn said(what: &str, note: &str) -> String {
    if note.is_empty() { what.to_owned() } else { format!("{what}: {note}") }
}

/// One side: our estimate in the paper's unit, or a constant.
enum Side {
    Known(f64),
    Ours(Estimate),
    Missing(String),
}

fn side(paper: &Paper, cells: Cells<'_>, term: &Term) -> Side {
    let Term::Cell(name) = term else {
        return if let Term::Number(x) = term { Side::Known(*x) } else { Side::Missing(String::new()) };
    };
    let (Ok([label, row, column]), Ok(unit)) = (parts(name), paper.unit(name)) else {
        return Side::Missing(name.clone());
    };
    match cells.get(label, row, column) {
        Some(e) => Side::Ours(e.scaled(unit.per_share())),
        None => Side::Missing(lacking(cells.folder, label, row)),
    }
}

/// Why there is no number of ours.
fn lacking(folder: &Folder, label: &str, row: &str) -> String {
    let there = |e: &&&str| !folder.checkpoints(e).is_empty();
    if let Some(experiment) = sources(label).iter().find(there) {
        return format!("{label}: the rows of `{experiment}` give no number for {row} (not run, or too few problems)");
    }
    let needs = sources(label).iter().map(|e| format!("`{e}`")).collect::<Vec<_>>().join(" or ");
    format!("{label}: no rows of ours for {row} (needs {needs})")
}

fn compare(paper: &Paper, cells: Cells<'_>, c: &Comparison) -> (Verdict, String) {
    let (left, right) = (side(paper, cells, &c.left), side(paper, cells, &c.right));
    let (l, r) = match (&left, &right) {
        (Side::Missing(why), _) | (_, Side::Missing(why)) => return (Verdict::NotTestable, why.clone()),
        (l, r) => (value(l), value(r)),
    };
    let shift = |e: Estimate, by: f64| Estimate { value: e.value + by, low: e.low + by, high: e.high + by, n: e.n };
    let paired = if c.times == 1.0 { paired::difference(paper, cells, &c.left, &c.right) } else { None };
    let (difference, how) = match paired {
        Some(Paired { difference, test }) => (shift(difference, -c.plus), test),
        None => (shift(mover(l, r.scaled(c.times)), -c.plus), "from the two intervals".to_owned()),
    };
    let verdict = judge(c.op, difference, c.tolerance);
    let times = if c.times == 1.0 { String::new() } else { format!("{} × ", c.times) };
    let plus = if c.plus == 0.0 {
        String::new()
    } else {
        format!(" {} {}", if c.plus < 0.0 { '−' } else { '+' }, c.plus.abs())
    };
    let slack = if c.tolerance == 0.0 { String::new() } else { format!(" (± {})", c.tolerance) };
    let text = format!(
        "{} = {} {} {times}{}{plus}{slack}: difference {} ({how}): {}",
        short(&c.left),
        printed(&left),
        symbol(c.op),
        match &c.right {
            Term::Number(x) => x.to_string(),
            cell => format!("{} = {}", short(cell), printed(&right)),
        },
        interval(difference),
        verdict.words()
    );
    (verdict, text)
}

fn value(side: &Side) -> Estimate {
    match side {
        Side::Ours(e) => *e,
        Side::Known(x) => Estimate { value: *x, low: *x, high: *x, n: 0 },
        Side::Missing(_) => Estimate { value: f64::NAN, low: f64::NAN, high: f64::NAN, n: 0 },
    }
}

/// left − right of independent estimates.
fn mover(l: Estimate, r: Estimate) -> Estimate {
    let value = l.value - r.value;
    let down = (l.value - l.low).hypot(r.high - r.value);
    let up = (l.high - l.value).hypot(r.value - r.low);
    Estimate { value, low: value - down, high: value + up, n: l.n.max(r.n) }
}

/// Where the interval of left − right lies against what the comparison asks of it.
fn judge(op: Op, d: Estimate, tolerance: f64) -> Verdict {
    // A rounding error must not decide where there is no interval, e.g. a share of exactly 1 against 1.
    let slack = tolerance + 1e-12;
    let (all, none) = match op {
        Op::Above if tolerance == 0.0 => (d.low > 0.0, d.high <= 0.0),
        Op::Below if tolerance == 0.0 => (d.high < 0.0, d.low >= 0.0),
        Op::Above | Op::AtLeast => (d.low >= -slack, d.high < -slack),
        Op::Below | Op::AtMost => (d.high <= slack, d.low > slack),
        Op::About => (d.low >= -slack && d.high <= slack, d.high < -slack || d.low > slack),
    };
    match (all, none) {
        (true, _) => Verdict::Reproduced,
        (_, true) => Verdict::NotReproduced,
        _ => Verdict::Undecided,
    }
}

fn symbol(op: Op) -> &'static str {
    match op {
        Op::Above => ">",
        Op::AtLeast => "≥",
        Op::Below => "<",
        Op::AtMost => "≤",
        Op::About => "≈",
    }
}

/// `tab:intervention/zero/diag_acc` → `zero diag_acc`.
fn short(term: &Term) -> String {
    match term {
        Term::Number(x) => x.to_string(),
        // Ours are of one dataset, whichever of the paper's two a column is of.
        Term::Cell(name) => {
            name.split('/').skip(1).collect::<Vec<_>>().join(" ").replace("math500_", "").replace("gsm8k_", "")
        }
    }
}

fn printed(side: &Side) -> String {
    match side {
        Side::Ours(e) => format!("{} n={}", interval(*e), e.n),
        Side::Known(x) => x.to_string(),
        Side::Missing(why) => why.clone(),
    }
}

fn interval(e: Estimate) -> String {
    let show = |x: f64| if x != 0.0 && x.abs() < 5e-4 { format!("{x:.1e}") } else { format!("{x:.3}") };
    format!("{} [{}, {}]", show(e.value), show(e.low), show(e.high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_across_the_line_decides_nothing() {
        let e = |low: f64, high: f64| Estimate { value: 0.5 * (low + high), low, high, n: 9 };
        assert_eq!(judge(Op::Above, e(0.1, 0.3), 0.0), Verdict::Reproduced);
        assert_eq!(judge(Op::Above, e(-0.1, 0.3), 0.0), Verdict::Undecided);
        assert_eq!(judge(Op::Above, e(-0.3, -0.1), 0.0), Verdict::NotReproduced);
        assert_eq!(judge(Op::About, e(-0.01, 0.01), 0.02), Verdict::Reproduced);
        assert_eq!(judge(Op::About, e(-0.03, 0.01), 0.02), Verdict::Undecided);
        assert_eq!(judge(Op::About, e(0.05, 0.06), 0.02), Verdict::NotReproduced);
        assert_eq!(judge(Op::AtLeast, e(0.0, 0.0), 0.0), Verdict::Reproduced);
        assert_eq!(judge(Op::Below, e(0.0, 0.0), 0.0), Verdict::NotReproduced);
    }

    #[test]
    fn mover_of_equal_symmetric_intervals_grows_by_root_two() {
        let e = |v: f64| Estimate { value: v, low: v - 0.1, high: v + 0.1, n: 9 };
        let d = mover(e(0.7), e(0.5));
        assert!((d.value - 0.2).abs() < 1e-12 && (d.high - d.value - 0.1 * 2f64.sqrt()).abs() < 1e-12);
    }
}
