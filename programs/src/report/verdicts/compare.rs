//! Makes one comparison of a claim on our records, and describes it. Knows cells and tests.

use super::calibration::{alarms, line};
use super::contrast::{Contrast, TestEvidence, shown_p};
use crate::report::cells::{Cells, intervention_row};
use crate::report::claims::{Comparison, Op, Term};
use crate::report::exhibits::{self, sources};
use crate::report::folder::Folder;
use crate::report::paired;
use crate::report::paper::{Paper, parts};
use switchyard::schema::NORMAL;
use switchyard::stats::Estimate;

/// A comparison on our records.
pub(crate) struct Trial {
    pub evidence: TestEvidence,
    /// Left and right in a few words.
    pub ours: String,
    /// The whole test.
    pub text: String,
    /// Accuracy of this test on models with known truth.
    pub calibrated: Option<String>,
    /// Left and right by name.
    cells: Vec<String>,
    /// Its checkpoints, and whether one only replaces GRPO's missing start.
    pub of: Vec<String>,
    pub stands_in: bool,
}

/// One side: our estimate in the paper's unit, or a constant.
struct ComparisonSide {
    name: String,
    value: Estimate,
}

/// Makes a comparison on a checkpoint; the error is why it cannot be made.
pub(crate) fn compare(
    paper: &Paper,
    folder: &Folder,
    checkpoint: &str,
    rl: bool,
    c: &Comparison,
) -> Result<Trial, String> {
    let needed: Vec<&str> =
        [&c.left, &c.right].into_iter().filter_map(Term::label).flat_map(sources).copied().collect();
    let cells = Cells { folder, checkpoint, sft: if rl { folder.before_grpo(&needed) } else { &folder.sft } };
    let (left, right) = (side(paper, cells, &c.left)?, side(paper, cells, &c.right)?);
    if let Some(control) = &c.learnt_above {
        let control = side(paper, cells, &Term::Cell(control.clone()))?;
        if !Contrast::independent(right.value, control.value).judged(Op::Above, 0.0, 0.0).decides() {
            let (right, control) = (right.shown(), control.shown());
            return Err(format!("{right} is not above {control}: a method that learnt nothing is no rival"));
        }
    }
    if let Some(why) = [&c.left, &c.right].into_iter().find_map(|term| nothing_to_lose(cells, term)) {
        return Err(why);
    }
    let contrast = match paired::difference(paper, cells, c) {
        Some(contrast) => contrast,
        None if c.shared => return Err(format!("{}: needs `outcomes` of both checkpoints", left.name)),
        None => Contrast::independent(left.value, right.value.scaled(c.times)),
    };
    let over_runs = of_exhibit(&[&c.left, &c.right], |exhibit| exhibit.over_runs);
    if let Some(why) = contrast.too_few(over_runs) {
        return Err(format!("{} against {}: {why}", left.name, right.name));
    }
    let n = contrast.difference.n;
    let (calibrated, alarms) = (line(&folder.calibration, c, n), alarms(&folder.calibration, c, n));
    let evidence = contrast.judged(c.op, c.plus, c.tolerance);
    if let Some(alarms) = alarms.filter(|_| evidence.agrees()) {
        let (left, right) = (left.shown(), right.shown());
        return Err(format!("{left} against {right}: {alarms}: that it agrees is no evidence"));
    }
    let right_of = |shown: &str| format!("{}{shown}{}", times(c.times), plus(c.plus));
    let ours = format!("{} {} {}", rounded(left.value), symbol(c.op), right_of(&rounded(right.value)));
    let ours = match contrast.difference.n {
        _ if left.value.n == 0 => ours,
        n if over_runs => format!("{ours} ({n} runs)"),
        n => format!("{ours} (n = {n})"),
    };
    let slack = if c.tolerance == 0.0 { String::new() } else { format!(" (± {})", c.tolerance) };
    let text = format!(
        "{} {} {}{slack}: difference {} ({}): {}, {}",
        left.shown(),
        symbol(c.op),
        right_of(&right.shown()),
        interval(contrast.difference),
        contrast.how,
        if evidence.agrees() { "agrees" } else { "disagrees" },
        shown_p(evidence.two_sided())
    );
    let of = [&c.left, &c.right].into_iter().filter_map(|term| whose(cells, term)).map(str::to_owned).collect();
    let after_sft = [&c.left, &c.right].into_iter().any(says_sft);
    let names = [&c.left, &c.right].into_iter().filter_map(Term::cell).map(str::to_owned).collect();
    Ok(Trial {
        evidence,
        ours,
        text,
        calibrated,
        cells: names,
        of,
        stands_in: rl && after_sft && cells.sft != folder.start,
    })
}

impl Trial {
    /// Whether both are the same comparison of ours: the paper's two data sets, or two of its tables, may share one number here. Two rows of
    /// one table never do, even if equal.
    pub(crate) fn repeats(&self, other: &Self) -> bool {
        let row = |name: &str| name.rsplit_once('/').map(|(row, _)| row.to_owned());
        let table = |name: &str| name.split('/').next().map(str::to_owned);
        let may = |(a, b): (&String, &String)| table(a) != table(b) || row(a) == row(b);
        let numbers =
            self.ours == other.ours && self.evidence == other.evidence && self.cells.len() == other.cells.len();
        numbers && self.cells.iter().zip(&other.cells).all(may)
    }
}

/// Whether one of these cells belongs to such an exhibit.
fn of_exhibit(terms: &[&Term], is: fn(&exhibits::Exhibit) -> bool) -> bool {
    terms.iter().filter_map(|term| term.label()).any(|label| exhibits::find(label).is_some_and(is))
}

/// Whether a cell belongs to the paper's "after SFT".
fn says_sft(term: &Term) -> bool {
    let mut keys = term.cell().into_iter().flat_map(|name| name.split('/').skip(1));
    keys.any(|key| key.contains("sft") || key.starts_with("stage"))
}

/// The checkpoint that answers a cell.
fn whose<'a>(cells: Cells<'a>, term: &Term) -> Option<&'a str> {
    let label = term.label()?;
    if of_exhibit(&[term], |exhibit| exhibit.over_runs) {
        return Some("runs over seeds");
    }
    Some(match says_sft(term) || label == "ours:sweep" {
        true => cells.sft,
        false if exhibits::find(label).is_some_and(|e| e.per_checkpoint) => cells.checkpoint,
        false => &cells.folder.grpo,
    })
}

/// Why a cell of interventions is meaningless on a model that is at chance with a block: its diagnostic problems are right by chance, so
/// any disturbance makes some of them wrong.
fn nothing_to_lose(cells: Cells<'_>, term: &Term) -> Option<String> {
    const OF_INTERVENTIONS: [&str; 2] = ["tab:intervention", "ours:step"];
    term.label().filter(|label| OF_INTERVENTIONS.contains(label))?;
    let (before, guess) = intervention_row(cells.folder, whose(cells, term)?, NORMAL)?.at_chance()?;
    Some(format!(
        "the unchanged model is right in {} n={} of the problems where it thinks, a guess in {guess:.3}: no better \
         than luck, so there is nothing to lose",
        interval(before),
        before.n
    ))
}

fn side(paper: &Paper, cells: Cells<'_>, term: &Term) -> Result<ComparisonSide, String> {
    let name = match term {
        Term::Number(x) => {
            return Ok(ComparisonSide { name: x.to_string(), value: Estimate { value: *x, low: *x, high: *x, n: 0 } });
        }
        Term::Cell(name) => name.as_str(),
    };
    // A parsed fixture names only existing cells.
    let ([label, row, column], unit) = match (parts(name), paper.unit(name)) {
        (Ok(parts), Ok(unit)) => (parts, unit),
        (Err(why), _) | (_, Err(why)) => return Err(format!("{why:#}")),
    };
    let found = cells.get(label, row, column).ok_or_else(|| lacking(cells.folder, label, row))?;
    // Ours are on one data set, for either of the paper's two.
    let column = column.replace("math500_", "").replace("gsm8k_", "");
    Ok(ComparisonSide { name: format!("{row} {column}"), value: found.scaled(unit.per_share()) })
}

/// Reason why our number is missing.
fn lacking(folder: &Folder, label: &str, row: &str) -> String {
    let there = |e: &&&str| !folder.checkpoints(e).is_empty();
    if let Some(experiment) = sources(label).iter().find(there) {
        return format!("{label}: the rows of `{experiment}` give no number for {row} (not run, or too few problems)");
    }
    let needs = exhibits::find(label).map_or_else(String::new, |e| e.needs());
    format!("{label}: no rows of ours for {row} ({needs})")
}

impl ComparisonSide {
    fn shown(&self) -> String {
        match self.value.n {
            0 => self.name.clone(),
            n => format!("{} = {} n={n}", self.name, interval(self.value)),
        }
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

fn times(times: f64) -> String {
    if times == 1.0 { String::new() } else { format!("{times} × ") }
}

fn plus(plus: f64) -> String {
    match plus {
        0.0 => String::new(),
        _ => format!(" {} {}", if plus < 0.0 { '−' } else { '+' }, plus.abs()),
    }
}

fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        small if small < 5e-4 => format!("{x:.1e}"),
        large if large >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.3}"),
    }
}

fn rounded(e: Estimate) -> String {
    if e.n == 0 { e.value.to_string() } else { number(e.value) }
}

fn interval(e: Estimate) -> String {
    format!("{} [{}, {}]", number(e.value), number(e.low), number(e.high))
}
