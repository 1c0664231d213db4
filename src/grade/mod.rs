//! Answer extraction and mathematical equivalence. Plain Rust: knows nothing of tensors.
//!
//! ```text
//! text → scan (where is the answer?) → normalize (plainer LaTeX) → lexer → parser, arith → Expr
//! two Exprs → compare (kinds: relations, sets, matrices, words) → sets, scalar → exact | modular | numeric
//! ```
//! The rules follow math-verify 0.9.0 (<https://github.com/huggingface/Math-Verify>) with its default settings, so that
//! accuracies compare with those that others report; where we differ on purpose is listed in `tests/grade.rs`.
//! Every verdict names the rule that decided it. Any input is accepted: work, nesting and sizes are bounded.

mod arith;
mod boxed;
mod compare;
mod exact;
mod expr;
mod lexer;
mod matrix;
mod modular;
mod normalize;
mod numeric;
pub mod pairs;
mod parser;
mod plain;
mod real;
mod repair;
mod scalar;
mod scan;
mod series;
mod sets;
mod symbols;
mod units;

use boxed::Boxes;
use expr::{E, Expr};
use normalize::normalize;
use scan::{Candidate, CandidateKind, GROUPS, Scanner};
use serde::Serialize;
use std::fmt;
use std::rc::Rc;

/// Bytes of a text that are read: its end, where answers stand.
const MAX_TEXT: usize = 16_000;
/// Bytes of a single formula that are parsed.
const MAX_FORMULA: usize = 4_000;
/// Candidates tried before a text counts as having no answer.
const MAX_CANDIDATES: usize = 40;

/// Whether two answers are equal, and which rule decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub equal: bool,
    pub rule: Rule,
}

/// The rule that decided a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// One side states no answer.
    NoAnswer,
    /// The two texts are the same.
    Text,
    /// Exact rational numbers.
    Exact,
    /// Decimals, rounded to six places.
    Rounded,
    /// The same expression as written.
    Structure,
    /// The same rational function, by evaluation modulo a prime.
    Identity,
    /// Evaluation in high precision.
    Numeric,
    /// Words and single symbols.
    Symbol,
    Tuple,
    Set,
    Interval,
    Matrix,
    /// Equations and inequalities.
    Relation,
    /// The two sides are of different kinds.
    Kind,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{self:?}");
        for (i, c) in name.chars().enumerate() {
            if c.is_uppercase() && i > 0 {
                f.write_str("_")?;
            }
            write!(f, "{}", c.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

/// What a text answers: the value, where it could be read, and the text of the first candidate.
struct Answer {
    value: Option<E>,
    text: Option<String>,
    /// The text that `value` was read from.
    source: Option<String>,
}

/// The final answer of a response: a closing `#### …` line, the last box, what "the answer is" states, else the last
/// formula or number.
pub fn extract(text: &str) -> Option<String> {
    let a = hashed(text).unwrap_or_else(|| answer(text));
    a.source.or(a.text)
}

/// Whether `prediction` answers as `gold` does; both as raw text (`$…$`, `\boxed{…}`, prose or a bare number).
pub fn equivalent(gold: &str, prediction: &str) -> Verdict {
    compare_answers(&answer(gold), &answer(prediction))
}

/// Whether a model's `response` reaches `gold`, a gold answer with or without delimiters (`\frac{1}{2}`, `$x=2$`).
pub fn grade(gold: &str, response: &str) -> Verdict {
    let bare = !["$", "\\(", "\\[", "\\boxed", "\n"].iter().any(|d| gold.replace("\\$", "").contains(d));
    let gold = if bare { answer(&format!("${}$", gold.trim())) } else { answer(gold) };
    compare_answers(&gold, &hashed(response).unwrap_or_else(|| answer(response)))
}

/// What GSM8K's closing line `#### 42` states. math-verify does not know this mark (`equivalent` follows it), and may
/// take a number after an earlier "answer" instead.
fn hashed(text: &str) -> Option<Answer> {
    let start = text.rfind("\n####").map(|i| i + 5).or_else(|| text.starts_with("####").then_some(4))?;
    let line = text[start..].trim_start_matches('#').lines().next()?.trim();
    if line.is_empty() || text[start..].contains("\\boxed") {
        return None;
    }
    let a = answer(line);
    a.value.is_some().then_some(a)
}

fn compare_answers(gold: &Answer, pred: &Answer) -> Verdict {
    let verdict = |equal, rule| Verdict { equal, rule };
    let mut decided = verdict(false, Rule::NoAnswer);
    if let (Some(g), Some(p)) = (&gold.value, &pred.value) {
        let (equal, rule) = compare::Comparer::new().equal(g, p);
        decided = verdict(equal, rule);
    }
    let trimmed = |a: &Answer| a.text.as_deref().map(|t| t.trim().to_string()).filter(|t| !t.is_empty());
    if !decided.equal
        && let (Some(g), Some(p)) = (trimmed(gold), trimmed(pred))
        && g == p
    {
        return verdict(true, Rule::Text);
    }
    decided
}

fn answer(text: &str) -> Answer {
    let mut start = text.len().saturating_sub(MAX_TEXT);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let text = &text[start..];
    let scanner = Scanner::new(text);
    let mut first = None;
    let mut tried = 0;
    for group in 0..GROUPS {
        for c in scanner.group(group) {
            tried += 1;
            if tried > MAX_CANDIDATES {
                break;
            }
            let (value, source) = read(text, &c);
            if first.is_none() && !source.is_empty() {
                first = Some(source.clone());
            }
            if value.is_some() {
                return Answer { value, text: first, source: Some(source) };
            }
        }
    }
    Answer { value: None, text: first, source: None }
}

/// The value of a candidate and its normalised text.
fn read(text: &str, c: &Candidate) -> (Option<E>, String) {
    let formulas = match &c.kind {
        CandidateKind::Plain(p) => return plain::read(text, p),
        CandidateKind::Formulas(f) => f,
    };
    let mut values = vec![];
    let mut texts = vec![];
    for f in formulas {
        let content = &text[f.content.clone()];
        if content.len() > MAX_FORMULA {
            values.push(None);
            texts.push(String::new());
            continue;
        }
        let plain = normalize(content, if f.bare_box { Boxes::Last } else { Boxes::All });
        let value = parser::parse(&plain).or_else(|| parser::parse(last_equation(&plain)?));
        values.push(value.map(|v| if f.percent { Rc::new(Expr::Percent(v)) } else { v }));
        texts.push(plain);
    }
    if values.len() > 1 && values.iter().all(Option::is_some) {
        let mut items = vec![];
        for v in values.into_iter().flatten() {
            match &*v {
                Expr::Set(inner) => items.extend(inner.iter().cloned()),
                _ => items.push(v),
            }
        }
        return (Some(parser::set(items)), texts.join(" and "));
    }
    (values.into_iter().next().flatten(), texts.into_iter().next().unwrap_or_default())
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
