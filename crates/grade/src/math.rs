//! Answers that are mathematics: where a text states one, what it is worth, and whether two are equal.
//!
//! The work is bounded, not the length of the text: a long text is read in pieces around the marks of answers, from its end, so that
//! the last box is always found.

use super::around::{Beside, beside};
use super::boxed::{Boxes, closing};
use super::expr::{E, Expr};
use super::normalize::normalize;
use super::scan::{Candidate, CandidateKind, MARKS, Scanner};
use super::{GraderVerdict, Rule, compare, exact, parser, plain, units, words};
use std::ops::Range;
use std::rc::Rc;

/// Bytes of a text that are scanned together.
const PIECE: usize = 16_000;
/// Pieces of a longer text that are scanned for one kind of mark.
const MAX_PIECES: usize = 6;
/// Bytes of a single formula that are parsed.
const MAX_FORMULA: usize = 4_000;
/// Candidates tried before a text counts as having no answer.
const MAX_CANDIDATES: usize = 40;

/// The answer of a text: its value, if it could be parsed, and the text of the first candidate.
#[derive(Default)]
pub(super) struct Answer {
    pub value: Option<E>,
    pub text: Option<String>,
    /// The text that `value` was read from.
    pub source: Option<String>,
    /// The text next to it; strict grading only.
    beside: Beside,
}

impl Answer {
    fn new(value: E, text: &str) -> Self {
        Answer { value: Some(value), text: Some(text.into()), source: Some(text.into()), beside: Beside::default() }
    }
}

/// Whether a `response` reaches `gold`. Strictly, what math-verify drops counts too: units, bases, what it cannot read, places beyond
/// the sixth, the order of letters.
pub(super) fn grade(gold: &str, response: &str, strict: bool) -> GraderVerdict {
    let pred = response_answer(response, strict);
    let decided = compared(&gold_answer(gold, strict), &pred, strict);
    // `60 km/h` may be a product of letters, but is a number with its unit too.
    match quantity(gold).filter(|_| !decided.equal) {
        Some(quantity) => Some(compared(&quantity, &pred, strict)).filter(|v| v.equal).unwrap_or(decided),
        None => decided,
    }
}

fn compared(gold: &Answer, pred: &Answer, strict: bool) -> GraderVerdict {
    let verdict = |equal, rule| GraderVerdict { equal, rule };
    let mut decided = verdict(false, Rule::NoAnswer);
    if let (Some(g), Some(p)) = (&gold.value, &pred.value) {
        let (equal, rule) = compare::Comparer::new(strict).equal(g, p);
        decided = verdict(equal, rule);
    }
    let trimmed = |a: &Answer| a.text.as_deref().map(|t| t.trim().to_string()).filter(|t| !t.is_empty());
    if !decided.equal
        && let (Some(g), Some(p)) = (trimmed(gold), trimmed(pred))
        && g == p
    {
        decided = verdict(true, Rule::Text);
    }
    if strict && decided.equal && dropped(gold, pred) {
        return verdict(false, Rule::Strict);
    }
    decided
}

/// Whether what was left out of two equal answers differs.
fn dropped(gold: &Answer, pred: &Answer) -> bool {
    let more = gold.beside.more || pred.beside.more;
    let units = match (&gold.beside.unit, &pred.beside.unit) {
        (Some(gold), Some(pred)) => gold != pred,
        (Some(one), None) | (None, Some(one)) => units::is_number(one),
        (None, None) => false,
    };
    let source = |a: &Answer| a.source.clone().unwrap_or_default();
    let (gold, pred) = (source(gold), source(pred));
    let (of_gold, of_pred) = (bases(&gold), bases(&pred));
    let other_base = !of_gold.is_empty() && !of_pred.is_empty() && of_gold != of_pred;
    let letters = |text: &str| text.to_lowercase().split_whitespace().collect::<String>();
    let word = |text: &str| text.len() > 2 && text.bytes().all(|b| b.is_ascii_alphabetic());
    let (gold, pred) = (letters(&gold), letters(&pred));
    more || units || other_base || word(&gold) && word(&pred) && gold != pred
}

/// The bases that subscripts of numbers name.
fn bases(text: &str) -> Vec<String> {
    let digit = |at: usize| text[..at].ends_with(|c: char| c.is_ascii_digit());
    let base = |at: usize| {
        let rest = text[at + 1..].trim_start();
        match rest.strip_prefix('{') {
            Some(body) => words::unstyled(body).split('}').next().unwrap_or_default().trim().to_owned(),
            None => rest.chars().take(1).collect(),
        }
    };
    text.match_indices('_').map(|(at, _)| at).filter(|at| digit(*at)).map(base).collect()
}

/// Parses a gold answer: a bare formula (`\frac{1}{2}`, also of several lines), mathematics between delimiters, or a whole solution
/// that ends in `#### 42` or a box.
pub(super) fn gold_answer(gold: &str, strict: bool) -> Answer {
    let gold = gold.trim();
    if let Some(a) = hashed(gold, strict) {
        return a;
    }
    let delimited = ["$", "\\(", "\\[", "\\boxed"].iter().any(|d| gold.replace("\\$", "").contains(d));
    if delimited { answer(gold, strict) } else { bare(gold, strict) }
}

/// A text without delimiters: all of it as one formula, unless it is a value among words (`12 dollars a day`).
fn bare(text: &str, strict: bool) -> Answer {
    let whole = || match scientific(text) {
        Some(value) => Answer::new(value, text),
        None => answer(&format!("${}$", text.split_whitespace().collect::<Vec<_>>().join(" ")), strict),
    };
    let among = (words::has_word(text) && !text.contains('\\')).then(|| answer(text, strict));
    among.filter(|a| a.value.is_some()).unwrap_or_else(whole)
}

/// A number and a unit, and nothing else: `60 km/h`, `10 cm^2`, `7 L`. `3m` is three times m.
fn quantity(text: &str) -> Option<Answer> {
    let text = text.trim().trim_end_matches('.');
    let (value, end) = plain::first(text)?;
    let (unit, n) = units::leading(&text[end..])?;
    let beside = Beside { unit: Some(unit), more: false };
    (end + n == text.len() && n > 1).then(|| Answer { beside, ..Answer::new(value, text) })
}

/// The answer of a response. A response that is only a formula is read like a bare gold answer.
pub(super) fn response_answer(response: &str, strict: bool) -> Answer {
    let text = response.trim();
    let formula =
        text.contains(['\\', '^', '=', '<', '>', '+']) || text.starts_with(['(', '[']) && text.ends_with([')', ']']);
    // `t - 1`, `a/b`, `n!`: a letter and a sign after something.
    let signed = text.contains(|c: char| c.is_ascii_alphabetic())
        && text.trim_start_matches('-').contains(['-', '−', '*', '/', '!', '\'', '’'])
        && !text.contains([',', ':', ';']);
    let formula = formula || signed;
    let delimited = ["$", "\n", "\\(", "\\[", "\\boxed"].iter().any(|mark| text.contains(mark));
    let alone = text.len() < MAX_FORMULA && formula && !delimited && !words::has_word(text) && quantity(text).is_none();
    let whole = if alone { Some(bare(text, strict)).filter(|a| a.value.is_some()) } else { None };
    whole.or_else(|| hashed(response, strict)).unwrap_or_else(|| answer(response, strict))
}

/// The answer in GSM8K's closing line `#### 42`. math-verify does not know this mark, and may read a number after an earlier
/// "answer" instead.
fn hashed(text: &str, strict: bool) -> Option<Answer> {
    let line = words::closing_line(text)?;
    let formula = line.contains(['\\', '^', '=', '<', '>']) && !line.contains('$') && !words::has_word(line);
    let a = if formula { bare(line, strict) } else { answer(line, strict) };
    a.value.is_some().then_some(a)
}

/// `1e-6`, as programs write numbers; math-verify reads 1·e − 6.
fn scientific(text: &str) -> Option<E> {
    let text = text.trim();
    let body = text.trim_start_matches(['-', '+']);
    let (mantissa, exponent) = body.split_once(['e', 'E'])?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let (int, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    if text.len() - body.len() > 1
        || !digits(int)
        || !digits(fraction)
        || !digits(exponent.trim_start_matches(['-', '+']))
    {
        return None;
    }
    let value = exact::decimal(&format!("{mantissa}E{}", exponent.trim_start_matches('+')))?;
    Some(if text.starts_with('-') { super::expr::neg(&value) } else { value })
}

fn answer(text: &str, strict: bool) -> Answer {
    if text.contains('−') {
        return answer(&text.replace('−', "-"), strict);
    }
    let mut first = None;
    let mut tried = 0;
    let mut scanned: Option<(Range<usize>, Scanner)> = None;
    for (group, marks) in MARKS.iter().enumerate() {
        for piece in pieces(text, marks) {
            let held = scanned.take().filter(|(range, _)| *range == piece);
            let (_, scanner) =
                scanned.insert(held.unwrap_or_else(|| (piece.clone(), Scanner::new(&text[piece.clone()]))));
            for c in scanner.group(group) {
                tried += 1;
                if tried > MAX_CANDIDATES {
                    break;
                }
                let (value, source, beside) = read(&text[piece.clone()], &c, strict);
                if first.is_none() && !source.is_empty() {
                    first = Some(source.clone());
                }
                // Strictly, a formula that cannot be read is not passed over for a number inside it or before it.
                let formula = matches!(c.kind, CandidateKind::Formulas(_));
                if value.is_some() || strict && formula && !source.is_empty() {
                    let source = value.as_ref().map(|_| source);
                    return Answer { value, text: first, source, beside };
                }
            }
        }
    }
    Answer { text: first, ..Answer::default() }
}

/// The pieces of a text around marks, from its end; the whole text if it is short. Without marks: its end.
fn pieces(text: &str, marks: &[&str]) -> Vec<Range<usize>> {
    let end = text.ceil_char_boundary(text.len().saturating_sub(PIECE))..text.len();
    if end.start == 0 || marks.is_empty() {
        return Vec::from([end]);
    }
    let mut out = vec![];
    let mut limit = text.len();
    while out.len() < MAX_PIECES {
        let found = marks.iter().filter_map(|mark| last_of(&text[..limit], mark)).max();
        let Some(at) = found else { break };
        let start = text.ceil_char_boundary(at.saturating_sub(PIECE / 2));
        // A formula begins in the line of its mark.
        let start = text[start..at].find('\n').map_or(start, |line| start + line + 1);
        out.push(start..text.floor_char_boundary((at + PIECE / 2).min(text.len())));
        limit = start;
    }
    out
}

/// Start of the last `mark`, in upper or lower case.
fn last_of(text: &str, mark: &str) -> Option<usize> {
    let (text, mark) = (text.as_bytes(), mark.as_bytes());
    let last = text.len().checked_sub(mark.len())?;
    (0..=last).rev().find(|&at| text[at..at + mark.len()].eq_ignore_ascii_case(mark))
}

/// The text next to a candidate, for strict grading.
fn beside_candidate(text: &str, c: &Candidate) -> Beside {
    let formulas = match &c.kind {
        CandidateKind::Plain(p) => {
            let place = plain::place(p, c.end);
            return beside(&text[..place.start], &text[place.end..], false);
        }
        CandidateKind::Formulas(formulas) => formulas,
    };
    let (Some(first), Some(last)) = (formulas.first(), formulas.last()) else { return Beside::default() };
    let content = &text[last.content.clone()];
    match last_box(content) {
        // The formula before several boxes belongs to the same answer.
        Some((at, end)) => {
            let alone = !content[..at].contains("\\boxed") && formulas.len() == 1;
            let before = if alone { &text[..last.content.start + at] } else { "" };
            beside(before, &text[last.content.start + end..], true)
        }
        None => beside(&text[..first.content.start], &text[last.content.end..], true),
    }
}

/// Start and end of the last box of a formula.
fn last_box(content: &str) -> Option<(usize, usize)> {
    let at = content.rfind("\\boxed{").or_else(|| content.rfind("\\fbox{"))?;
    let open = at + content[at..].find('{')?;
    Some((at, open + closing(&content[open..])? + 1))
}

/// The value of a candidate, its normalised text, and the text next to it.
fn read(text: &str, c: &Candidate, strict: bool) -> (Option<E>, String, Beside) {
    let mut beside = if strict { beside_candidate(text, c) } else { Beside::default() };
    let formulas = match &c.kind {
        CandidateKind::Plain(p) => {
            let (value, text) = plain::read(text, p);
            return (value, text, beside);
        }
        CandidateKind::Formulas(f) => f,
    };
    let (mut values, mut texts, mut units) = (vec![], vec![], vec![]);
    for f in formulas {
        let content = &text[f.content.clone()];
        if content.len() > MAX_FORMULA {
            values.push(None);
            texts.push(String::new());
            continue;
        }
        let (plain, unit) = normalize(content, if f.bare_box { Boxes::Last } else { Boxes::All }, strict);
        units.extend(unit);
        let mut value = scientific(&plain)
            .or_else(|| plain::spaced(&plain))
            .or_else(|| parser::parse(&plain))
            .or_else(|| parser::parse(last_equation(&plain)?));
        // `90°`: math-verify reads it outside boxes only, as a number in prose.
        if strict
            && value.is_none()
            && !content.contains("\\boxed")
            && let Some(found) = quantity(&plain)
        {
            value = found.value;
            units.extend(found.beside.unit);
        }
        values.push(value.map(|v| if f.percent { Rc::new(Expr::Percent(v)) } else { v }));
        texts.push(plain);
    }
    beside.unit = units.into_iter().next().or(beside.unit);
    if values.len() > 1 && values.iter().all(Option::is_some) {
        let mut items = vec![];
        for v in values.into_iter().flatten() {
            match &*v {
                Expr::Set(inner) => items.extend(inner.iter().cloned()),
                _ => items.push(v),
            }
        }
        return (Some(parser::set(items)), texts.join(" and "), beside);
    }
    (values.into_iter().next().flatten(), texts.into_iter().next().unwrap_or_default(), beside)
}

/// The last side of a chain of three or more sides, where the whole could not be read.
fn last_equation(t: &str) -> Option<&str> {
    if t.contains([',', ';']) {
        return None;
    }
    let b = t.as_bytes();
    let signs: Vec<usize> = (0..b.len())
        .filter(|i| b[*i] == b'=' && !i.checked_sub(1).is_some_and(|p| matches!(b[p], b'\\' | b'<' | b'!' | b'>')))
        .collect();
    if signs.len() < 2 {
        return None;
    }
    signs.last().map(|i| &t[i + 1..])
}
