//! Text next to an answer that changes its meaning: a unit, "thousand", "or 6", `\pm`. Used by strict grading only.
//!
//! Prose is ignored ("5 apples are left"); what a reader would see as a part of the answer is not.

use super::units;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    pub unit: Option<String>,
    /// More of the answer: the value that was read is not all of it.
    pub more: bool,
}

/// Commands and signs that join both sides.
const OPERATORS: [&str; 20] = [
    "\\pm", "\\mp", "\\times", "\\cdot", "\\div", "\\neq", "\\ne", "\\leq", "\\le", "\\geq", "\\ge", "±", "∓", "×",
    "·", "÷", "√", "≠", "≤", "≥",
];
/// Commands and signs that belong to the number before them.
const FACTORS: [&str; 14] = [
    "\\sqrt", "\\frac", "\\dfrac", "\\tfrac", "\\pi", "\\ln", "\\log", "\\sin", "\\cos", "\\tan", "\\binom", "π", "²",
    "³",
];

/// The text next to the answer between `before` and `after`; a comma ends an answer that is `marked` as a formula.
pub(crate) fn beside(before: &str, after: &str, marked: bool) -> Beside {
    let before = before.rsplit('\n').next().unwrap_or_default();
    let after = unmarked(after.split('\n').next().unwrap_or_default());
    let (unit, rest) = match units::leading(after) {
        Some((unit, n)) => (Some(unit), &after[n..]),
        None => (None, after),
    };
    let goes_on = if unit.is_some() { second_quantity(rest) } else { continued(rest, marked) };
    Beside { unit, more: goes_on || led(before, marked) }
}

/// A text without the delimiters that it begins with.
fn unmarked(mut text: &str) -> &str {
    while let Some(rest) =
        ["**", "$", "\\)", "\\]", "\\%", "%", "}"].iter().find_map(|mark| text.trim_start().strip_prefix(mark))
    {
        text = rest;
    }
    text
}

/// Whether a number continues in the text after it.
fn continued(after: &str, marked: bool) -> bool {
    let body = after.trim_start();
    let letters = body.chars().take_while(|c| c.is_alphabetic()).count();
    let word: String = body.chars().take(letters).collect();
    let close = body.len() == after.len();
    if letters > 0 {
        let ordinal = ["st", "nd", "rd", "th", "am", "pm"].contains(&word.as_str());
        // `5x`, `5e3`; "5 a day" and "5 I think" are prose.
        let lower = word.chars().all(char::is_lowercase);
        let symbol = close && (letters == 1 || letters == 2 && lower && !ordinal)
            || letters == 1 && lower && word != "a" && !body[word.len()..].starts_with(['\'', '’']);
        return symbol || joined(body, marked);
    }
    // `5 3/4`.
    if body.starts_with(|c: char| c.is_ascii_digit()) {
        return true;
    }
    if close && (body.starts_with('^') || body.strip_prefix('_').is_some_and(operand)) {
        return true;
    }
    if starts(body, &OPERATORS) || starts(body, &FACTORS) {
        return true;
    }
    let operator = ['+', '-', '–', '*', '/', '^', ':', '<', '>'];
    let time = body.starts_with(":00");
    !time && body.strip_prefix(operator).is_some_and(|rest| operand(rest.trim_start())) || joined(body, marked)
}

/// "or 6", ", 6", "to 7", "and a half".
fn joined(body: &str, marked: bool) -> bool {
    let joints: &[&str] = if marked { &["or ", "to "] } else { &["or ", "to ", "and ", ",", ";"] };
    let rest = joints.iter().find_map(|joint| body.strip_prefix(joint)).map(str::trim_start);
    rest.is_some_and(number) || body.starts_with("and a half")
}

/// "30 minutes" after "5 hours"; a lone number may belong to the next clause ("5 hours, 3 more than before").
fn second_quantity(rest: &str) -> bool {
    let body = rest.trim_start();
    if ["or ", "to "].iter().any(|joint| body.strip_prefix(joint).is_some_and(|rest| number(rest.trim_start()))) {
        return true;
    }
    let next = ["and ", ","].iter().find_map(|joint| body.strip_prefix(joint)).unwrap_or(body).trim_start();
    let digits = next.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    digits.len() < next.len() && number(next) && (next.len() == body.len() || units::leading(digits).is_some())
}

/// Whether the text ends with an operator, or a number and "or".
fn led(before: &str, marked: bool) -> bool {
    let before = before.trim_end_matches(|c: char| c.is_whitespace() || "$*{".contains(c));
    let before = ["\\(", "\\["].iter().find_map(|open| before.strip_suffix(open)).unwrap_or(before).trim_end();
    let arrow = before.ends_with("->") || before.ends_with("=>");
    if OPERATORS.iter().any(|sign| before.ends_with(sign)) || before.ends_with(['/', '^', '<', '>']) && !arrow {
        return true;
    }
    if let Some(left) = before.strip_suffix(['+', '-']) {
        // A dash after a word or before an item of a list is not a minus.
        let left = left.trim_end();
        let word = left.chars().rev().take_while(|c| c.is_alphabetic()).count();
        return !left.is_empty() && word < 3;
    }
    let joints: &[&str] = if marked { &[] } else { &[" or", " and", ",", ";"] };
    let left = joints.iter().find_map(|joint| before.strip_suffix(joint)).map(str::trim_end);
    left.is_some_and(|left| left.ends_with(|c: char| c.is_ascii_digit() || ")}$".contains(c)))
}

fn starts(text: &str, signs: &[&str]) -> bool {
    let whole =
        |sign: &str, rest: &str| !sign.starts_with('\\') || !rest.starts_with(|c: char| c.is_ascii_alphabetic());
    signs.iter().any(|sign| text.strip_prefix(sign).is_some_and(|rest| whole(sign, rest)))
}

/// Whether a number begins here.
fn number(text: &str) -> bool {
    let bare = text.trim_start_matches(['$', '-', '±', '(', '*']);
    bare.starts_with(|c: char| c.is_ascii_digit()) || bare.starts_with("\\pm") || bare.starts_with("\\frac")
}

/// Whether the text begins with an operand: a number, a command, a single letter.
fn operand(text: &str) -> bool {
    let letters = text.chars().take_while(|c| c.is_alphabetic()).count();
    number(text) || text.starts_with(['\\', '{']) || letters == 1 && !text.starts_with(['a', 'A', 'I'])
}
