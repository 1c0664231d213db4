//! The kind of a gold answer: a letter of a choice, words, or mathematics. Knows spellings only.

use super::{Grader, words};

/// The answer of a gold text: the answer that a whole solution marks, otherwise the whole text.
pub(super) fn stated(gold: &str) -> String {
    let stated = words::stated(gold);
    let marked = if stated.marked { stated.shown() } else { None };
    marked.unwrap_or_else(|| gold.trim().to_owned())
}

/// Whether a gold answer is between math delimiters: then it is declared as mathematics, and is graded as math-verify
/// grades it.
pub(super) fn is_delimited(gold: &str) -> bool {
    let gold = gold.trim();
    [("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")]
        .iter()
        .any(|(open, close)| gold.starts_with(open) && gold.ends_with(close) && gold.len() > 2)
}

/// The grader for a gold answer.
pub(super) fn detect(gold: &str) -> Grader {
    let said = stated(gold);
    if is_delimited(gold) {
        Grader::Math
    } else if words::is_letter(&said) {
        Grader::Choice
    } else if is_words(&said) {
        Grader::Exact
    } else {
        Grader::Math
    }
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
/// Letters that mathematics spells out.
const NAMES: [&str; 40] = [
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp",
    "sqrt", "pi", "inf", "infty", "infinity", "max", "min", "gcd", "lcm", "mod", "and", "or", "deg", "det", "lim",
    "sum", "int", "floor", "ceil", "abs", "percent", "alpha", "beta", "theta", "frac",
];
/// Short words that are not products of letters.
const SHORT: [&str; 14] =
    ["yes", "no", "not", "all", "one", "two", "six", "ten", "odd", "red", "he", "she", "man", "day"];

/// Whether a text is words, such as a date, a time or text without a formula.
fn is_words(text: &str) -> bool {
    let text = words::unstyled(text);
    let text = text.trim();
    if words::time(text).is_some() || is_date(text) {
        return true;
    }
    if text.contains(['\\', '=', '<', '>', '^', '_', '+', '*', '|', '{', '}', '[', ']', '$', '%']) {
        return false;
    }
    let tokens: Vec<&str> =
        text.split(|c: char| !(c.is_alphabetic() || c == '\'' || c == '’')).filter(|t| !t.is_empty()).collect();
    let words = tokens.iter().filter(|token| is_word(token)).count();
    // "it is so": short words, but several.
    let several =
        tokens.iter().filter(|t| t.chars().count() > 1 && !NAMES.contains(&t.to_lowercase().as_str())).count() > 1;
    if !text.contains(|c: char| c.is_ascii_digit()) {
        return words > 0 || several;
    }
    // "5 hours 30 minutes", "Room 12", "5 March"; but "12 dollars" and "30 minutes" are numbers.
    let numbers = text
        .split(|c: char| !c.is_ascii_digit() && !".,".contains(c))
        .filter(|n| n.contains(|c: char| c.is_ascii_digit()))
        .count();
    let month = tokens.iter().any(|t| MONTHS.contains(&t.to_lowercase().as_str()));
    month || words > 0 && (text.starts_with(|c: char| c.is_alphabetic()) || numbers > 1 && words > 1)
}

/// A word of a language, not a unit, a function or a product of letters.
pub(super) fn is_word(token: &str) -> bool {
    let lower = token.to_lowercase();
    if NAMES.contains(&lower.as_str()) || lower.chars().all(|c| ('α'..='ω').contains(&c)) {
        return false;
    }
    let letters = token.chars().count();
    let mut chars = token.chars();
    let named =
        letters > 2 && chars.next().is_some_and(char::is_uppercase) && chars.all(|c| c.is_lowercase() || c == '\'');
    letters > 3 || named || !token.is_ascii() || SHORT.contains(&lower.as_str())
}

/// `2020-03-05`, `03/05/2020`.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split(['-', '/', '.']).collect();
    let digits = |s: &&str| s.bytes().all(|b| b.is_ascii_digit());
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    parts.iter().all(digits) && matches!(lengths[..], [4, 1..=2, 1..=2] | [1..=2, 1..=2, 4])
}
