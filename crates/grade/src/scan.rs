//! Finds where a text states its answer: boxed LaTeX, "the final answer is", "answer:", the last formula, the last
//! number. Knows places only, in math-verify's order of preference (`parser.py`); what they mean is decided later.

use super::lexer::digits;
use super::plain::{self, Plain};
use std::cell::RefCell;
use std::ops::Range;

/// A formula between delimiters, and whether a percent sign follows it.
#[derive(Clone, Debug)]
pub(crate) struct Formula {
    pub content: Range<usize>,
    pub percent: bool,
    /// Found as a bare `\boxed{…}`, without delimiters around it.
    pub bare_box: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum CandidateKind {
    Formulas(Vec<Formula>),
    Plain(Plain),
}

#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub start: usize,
    pub end: usize,
    pub kind: CandidateKind,
}

/// The five groups of patterns, tried in this order until one yields an answer: what marks each. The last needs no mark.
pub(crate) const MARKS: [&[&str]; 5] =
    [&["final answer"], &["final answer", "\\boxed{"], &["answer"], &["answer"], &[]];
/// Formulas that "and", "or" or a comma may join to the first.
const MAX_JOINED: usize = 5;

/// Mentions of "answer" that are followed up, from the end of the text.
const MAX_ANSWERS: usize = 200;

pub(crate) struct Scanner<'a> {
    text: &'a str,
    lower: String,
    answers: Vec<usize>,
    /// Per delimiter, a stretch in which no closing delimiter was found: later searches there fail at once.
    dead: RefCell<[(usize, usize); 4]>,
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a str) -> Self {
        let lower = text.to_ascii_lowercase();
        let all: Vec<usize> = lower.match_indices("answer").map(|(i, _)| i).collect();
        let answers = all[all.len().saturating_sub(MAX_ANSWERS)..].to_vec();
        Scanner { text, lower, answers, dead: RefCell::new([(0, 0); 4]) }
    }

    /// Candidates of a group, the most likely first: the last in the text, the longest of those that end together.
    pub fn group(&self, group: usize) -> Vec<Candidate> {
        let mut found = vec![];
        match group {
            0 => self.final_answers(true, &mut found),
            1 => {
                self.final_answers(false, &mut found);
                self.boxes(&mut found);
            }
            2 => self.after_answer(true, &mut found),
            3 => self.after_answer(false, &mut found),
            _ => {
                self.each_formula(false, &mut found);
                plain::each(self.text, &mut found);
            }
        }
        found.sort_by(|a, b| b.end.cmp(&a.end).then(a.start.cmp(&b.start)));
        found
    }

    fn formulas_at(&self, at: usize, boxed: bool) -> Option<Candidate> {
        let (first, mut end) = self.formula(at, boxed)?;
        let mut all = vec![first];
        while all.len() <= MAX_JOINED {
            let mut i = end + spaces(&self.text[end..]);
            let rest = &self.text[i..];
            let joint = [",and", ",or", "and", "or", ","].iter().find(|j| rest.starts_with(**j));
            let Some(joint) = joint else { break };
            i += joint.len();
            i += spaces(&self.text[i..]);
            // A bracket formula begins with its whitespace, which may have been skipped.
            let back = self.text[..i].chars().next_back().filter(|c| c.is_whitespace()).map_or(i, |c| i - c.len_utf8());
            let Some((f, e)) = self.formula(i, boxed).or_else(|| self.formula(back, boxed)) else { break };
            all.push(f);
            end = e;
        }
        if boxed {
            end += spaces(&self.text[end..]);
        }
        Some(Candidate { start: at, end, kind: CandidateKind::Formulas(all) })
    }

    /// A formula that begins at `at`, with the percent sign after it.
    fn formula(&self, at: usize, boxed: bool) -> Option<(Formula, usize)> {
        let (content, end) = self.delimited(at, boxed)?;
        let after = end + spaces(&self.text[end..]);
        let rest = &self.text[after..];
        let percent = if rest.starts_with("\\%") { Some(2) } else { plain::percent(rest) };
        let f = Formula { content, percent: percent.is_some(), bare_box: false };
        Some((f, after + percent.unwrap_or(0)))
    }

    fn delimited(&self, at: usize, boxed: bool) -> Option<(Range<usize>, usize)> {
        let t = self.text;
        let rest = t.get(at..)?;
        let before = t[..at].bytes().next_back();
        let free = before != Some(b'\\');
        let good = |r: &Range<usize>| !r.is_empty() && (!boxed || has_box(&t[r.clone()]));
        if free
            && rest.starts_with("$$")
            && let Some(r) = self.until(0, at + 2, "$$", false).filter(good)
        {
            return Some((r.clone(), r.end + 2));
        }
        if free && rest.starts_with("\\[") {
            return self.until(1, at + 2, "\\]", false).filter(good).map(|r| (r.clone(), r.end + 2));
        }
        if free && rest.starts_with('$') && !before.is_some_and(|b| b.is_ascii_digit()) {
            return self.until(2, at + 1, "$", true).filter(good).map(|r| (r.clone(), r.end + 1));
        }
        if free && rest.starts_with("\\(") {
            return self.until(3, at + 2, "\\)", true).filter(good).map(|r| (r.clone(), r.end + 2));
        }
        let c = rest.chars().next()?;
        if c.is_whitespace() && rest[c.len_utf8()..].starts_with('[') {
            let start = at + c.len_utf8() + 1;
            let n = t[start..].find(['\n', '[', ']'])?;
            let space = t[start + n..].strip_prefix(']')?.chars().next().filter(|c| c.is_whitespace())?;
            let r = start..start + n;
            return good(&r).then(|| (r.clone(), r.end + 1 + space.len_utf8()));
        }
        if !boxed && (c == '-' || c == '\\') {
            let n = bare_fraction(rest)?;
            return Some((at..at + n, at + n));
        }
        None
    }

    /// The content up to the next unescaped `close`, on the same line if `line`.
    fn until(&self, slot: usize, start: usize, close: &str, line: bool) -> Option<Range<usize>> {
        let (from, to) = self.dead.borrow()[slot];
        if (from..to).contains(&start) {
            return None;
        }
        let bytes = self.text.as_bytes();
        let mut i = start;
        while i < bytes.len() {
            if line && bytes[i] == b'\n' {
                break;
            }
            if bytes[i..].starts_with(close.as_bytes()) && i > start && bytes[i - 1] != b'\\' {
                return Some(start..i);
            }
            // An empty pair of dollars is not a formula, and a lone one ends the search.
            if i == start && close == "$" && bytes[i] == b'$' {
                return None;
            }
            i += 1;
        }
        self.dead.borrow_mut()[slot] = (start, i);
        None
    }

    /// "final answer is …", with or without "I hope" after it.
    fn final_answers(&self, hope: bool, out: &mut Vec<Candidate>) {
        let t = self.text;
        let mut next = 0;
        for &a in &self.answers {
            let Some(start) = a.checked_sub(6).filter(|s| self.lower.as_bytes()[*s..].starts_with(b"final answer"))
            else {
                continue;
            };
            if start < next {
                continue;
            }
            let after = a + 6;
            if hope {
                let Some(rest) = self.lower[after..].strip_prefix(" is") else { continue };
                let i = self.text.len() - rest.len();
                let i = i + usize::from(rest.starts_with(':'));
                let j = i + spaces(&t[i..]);
                let back = t[i..j].chars().next_back().map_or(j, |c| j - c.len_utf8());
                let ends = |c: &Candidate| {
                    let s = t[c.end..].strip_prefix('.').unwrap_or(&t[c.end..]);
                    s.strip_prefix(char::is_whitespace).unwrap_or(s).starts_with("I hope")
                        || t[..c.end].ends_with(char::is_whitespace) && s.starts_with("I hope")
                };
                for c in [self.formulas_at(j, false), self.formulas_at(back, false)].into_iter().flatten() {
                    if ends(&c) {
                        next = c.end;
                        out.push(Candidate { start, ..c });
                        break;
                    }
                }
                let number = plain::at(t, back).or_else(|| plain::at(t, j));
                if let Some(c) = number.filter(ends) {
                    out.push(Candidate { start, ..c });
                }
                continue;
            }
            for i in within_line(t, after, 100) {
                let gap = spaces(&t[i..]);
                if gap == 0 || !t[i + gap..].starts_with("is") {
                    continue;
                }
                let k = i + gap + 2;
                let k = k + usize::from(t[k..].starts_with(':'));
                let j = k + spaces(&t[k..]);
                let back = t[k..j].chars().next_back().map_or(j, |c| j - c.len_utf8());
                let found = self.formulas_at(j, false).or_else(|| self.formulas_at(back, false));
                let number = plain::at(t, k);
                let done = found.is_some() || number.is_some();
                for c in [found, number].into_iter().flatten() {
                    next = next.max(c.end);
                    out.push(Candidate { start, ..c });
                }
                if done {
                    break;
                }
            }
        }
    }

    fn boxes(&self, out: &mut Vec<Candidate>) {
        let t = self.text;
        if !t.contains("\\boxed{") {
            return;
        }
        self.each_formula(true, out);
        let mut base = 0;
        for line in t.split_inclusive('\n') {
            if let Some(i) = line.find("\\boxed{")
                && let Some(k) = line.rfind('}').filter(|k| *k > i + 7)
            {
                let f = Formula { content: base + i..base + k + 1, percent: false, bare_box: true };
                out.push(Candidate { start: base + i, end: base + k + 1, kind: CandidateKind::Formulas(vec![f]) });
            }
            base += line.len();
        }
    }

    fn each_formula(&self, boxed: bool, out: &mut Vec<Candidate>) {
        let mut i = 0;
        let bytes = self.text.as_bytes();
        while i < bytes.len() {
            let possible = matches!(bytes[i], b'$' | b'\\' | b'-') || bytes[i].is_ascii_whitespace();
            if possible && let Some(c) = self.formulas_at(i, boxed) {
                i = c.end.max(i + 1);
                out.push(c);
                continue;
            }
            i += 1;
        }
    }

    /// "answer: …" and "answer …", within fifty characters.
    fn after_answer(&self, colon: bool, out: &mut Vec<Candidate>) {
        let t = self.text;
        let (mut next_formula, mut next_number) = (0, 0);
        for &a in &self.answers {
            let mut after = a + 6;
            if colon {
                if !t[after..].starts_with(':') {
                    continue;
                }
                after += 1;
            }
            if a >= next_formula
                && let Some(c) = within_line(t, after, 50).find_map(|i| self.formulas_at(i, false))
            {
                next_formula = c.end;
                out.push(Candidate { start: a, ..c });
            }
            if a >= next_number
                && let Some(c) = plain::after(t, after)
            {
                next_number = c.end;
                out.push(Candidate { start: a, ..c });
            }
        }
    }
}

/// Bytes of the whitespace at the beginning of a text.
pub(crate) fn spaces(s: &str) -> usize {
    s.len() - s.trim_start().len()
}

/// Positions from `from` on, at most `n` characters further, on the same line.
pub(crate) fn within_line(t: &str, from: usize, n: usize) -> impl Iterator<Item = usize> + '_ {
    let line = t[from..].find('\n').map_or(t.len(), |k| from + k);
    t[from..line].char_indices().map(move |(i, _)| from + i).chain(std::iter::once(line)).take(n + 1)
}

/// `\boxed{` with something in it and a brace after it.
fn has_box(s: &str) -> bool {
    s.find("\\boxed{").is_some_and(|i| s[i + 7..].rfind('}').is_some_and(|k| k > 0))
}

/// `-\frac{12}{3.5}` without delimiters around it: its length.
fn bare_fraction(s: &str) -> Option<usize> {
    let number = |s: &str| -> Option<usize> {
        let sign = usize::from(s.starts_with('-'));
        let int = digits(&s[sign..]);
        let mut n = sign + int;
        if s[n..].starts_with(['.', ',']) {
            let frac = digits(&s[n + 1..]);
            n += if frac > 0 { 1 + frac } else { 0 };
        }
        (int > 0).then_some(n)
    };
    let sign = usize::from(s.starts_with('-'));
    let mut rest = s[sign..].strip_prefix("\\frac")?;
    for _ in 0..2 {
        rest = rest.strip_prefix('{')?;
        rest = rest[number(rest)?..].strip_prefix('}')?;
    }
    Some(s.len() - rest.len())
}
