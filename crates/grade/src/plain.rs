//! Finds and reads plain numbers (`$1,234.50`, `-3`, `28 %`) and plain arithmetic (`3/4`, `2 + 3*5`) in prose.
//!
//! Knows how such numbers are written and what must come before and after them, not LaTeX.

use super::exact::decimal;
use super::expr::{E, Expr, add, mul, neg};
use super::lexer::digits;
use super::scan::{Candidate, CandidateKind, within_line};
use std::ops::Range;
use std::rc::Rc;

#[derive(Clone, Debug)]
pub enum Plain {
    /// Digits without separators, whether a percent sign follows, and where in the text the number begins.
    Number { digits: String, percent: bool, at: usize },
    /// Arithmetic, by its place in the text.
    Arithmetic(Range<usize>),
}

pub(crate) const CURRENCY: &str = "$€£¥₹₽₪₩₫฿₡₢₣₤₥₦₧₨₭₮₯₰₱₲₳₴₵₶₷₸₺₻₼₾₿";
/// Characters of arithmetic looked at; longer ones are left alone.
const MAX_RUN: usize = 300;

/// Arithmetic or else a number, whose prefix (a space, `=` or the start of the text) is at `i`.
pub fn at(t: &str, i: usize) -> Option<Candidate> {
    arithmetic(t, i).or_else(|| number(t, i, false))
}

/// The first number after "answer": after the last `=` within a hundred characters, else the nearest within fifty.
pub fn after(t: &str, from: usize) -> Option<Candidate> {
    let not_equated = |c: &Candidate| !t[c.end..].trim_start().starts_with('=');
    let find = |i: usize| {
        arithmetic(t, i).filter(not_equated).or_else(|| {
            let n = number(t, i, false)?;
            if not_equated(&n) { Some(n) } else { number(t, i, true) }
        })
    };
    let places: Vec<usize> = within_line(t, from, 100).filter(|i| t[*i..].starts_with('=')).collect();
    for i in places.into_iter().rev() {
        let gap = t[i + 1..].len() - t[i + 1..].trim_start().len();
        // The number's own prefix takes the last of the spaces.
        let ends: Vec<usize> = t[i + 1..i + 1 + gap].char_indices().map(|(k, _)| i + 1 + k).collect();
        if let Some(c) = find(i + 1 + gap).or_else(|| ends.into_iter().rev().find_map(find)) {
            return Some(c);
        }
    }
    within_line(t, from, 50).find_map(find)
}

/// Every piece of arithmetic and every number in the text, left to right.
pub fn each(t: &str, out: &mut Vec<Candidate>) {
    for want_arithmetic in [true, false] {
        let mut i = 0;
        while i <= t.len() {
            let possible = i == 0 || t[i..].starts_with(|c: char| c == '=' || c.is_whitespace());
            let found = match (possible, want_arithmetic) {
                (false, _) => None,
                (_, true) => arithmetic(t, i),
                (_, false) => number(t, i, false),
            };
            match found {
                Some(c) => {
                    i = c.end.max(i + 1);
                    out.push(c);
                }
                None => i += t[i..].chars().next().map_or(1, char::len_utf8),
            }
        }
    }
}

/// Where a number may begin if its prefix is at `i`: at the very start, or after a space or `=`; `**` may intervene.
fn starts(t: &str, i: usize) -> impl Iterator<Item = usize> + '_ {
    let here = (i == 0).then_some(0);
    let next = t[i..].chars().next().filter(|c| *c == '=' || c.is_whitespace()).map(|c| i + c.len_utf8());
    here.into_iter().chain(next).map(move |k| if t[k..].starts_with("**") { k + 2 } else { k })
}

fn number(t: &str, i: usize, shorter: bool) -> Option<Candidate> {
    for start in starts(t, i) {
        let mut k = start;
        if let Some(c) = t[k..].chars().next().filter(|c| !c.is_ascii() || *c == '$').filter(|c| CURRENCY.contains(*c))
        {
            k += c.len_utf8();
        }
        if k > 0 && t.as_bytes()[k - 1].is_ascii_digit() {
            continue;
        }
        if let Some(c) = number_at(t, k, shorter) {
            return Some(Candidate { start: i, ..c });
        }
    }
    None
}

fn number_at(t: &str, k: usize, shorter: bool) -> Option<Candidate> {
    let s = &t[k..];
    let sign = usize::from(s.starts_with('-'));
    let int = digits(&s[sign..]);
    let mut n = sign + int;
    if int == 0 {
        let frac = s.strip_prefix('.').map_or(0, digits);
        if frac == 0 {
            return None;
        }
        n = 1 + frac;
    } else {
        let groups = if int <= 3 && !s[sign..].starts_with('0') { thousands(&s[n..]) } else { 0 };
        let groups = if groups == 0 && int <= 2 { lakhs(&s[n..]) } else { groups };
        n += groups;
        let frac = match s.as_bytes().get(n) {
            Some(b'.') => digits(&s[n + 1..]),
            Some(b',') if groups == 0 => digits(&s[n + 1..]),
            _ => 0,
        };
        n += if frac > 0 { 1 + frac } else { 0 };
        if shorter {
            // "=" follows: the pattern then matches one digit less.
            n -= 1;
            if n == sign || !s[..n].ends_with(|c: char| c.is_ascii_digit()) {
                return None;
            }
        }
    }
    let raw = &s[..n];
    let decimal_comma = !raw.contains('.') && raw.matches(',').count() == 1 && n - raw.find(',').unwrap_or(0) != 4;
    let short_comma = decimal_comma || (raw.contains(',') && (s[sign..].starts_with('0') || int > 3));
    let clean: String = if short_comma {
        raw.replace(',', ".")
    } else {
        raw.chars().filter(|c| *c != ',' && !c.is_whitespace()).collect()
    };
    let clean = clean.trim_start_matches('0');
    let clean = if clean.is_empty() || clean.starts_with('.') { format!("0{clean}") } else { clean.to_string() };
    let (clean, n) = match exponent(&s[n..]).filter(|_| !shorter && int > 0) {
        Some((power, more)) => (format!("{clean}E{power}"), n + more),
        None => (clean, n),
    };
    let after = &s[n..];
    let gap = after.len() - after.trim_start().len();
    let percent = percent(&after[gap..]);
    Some(Candidate {
        start: k,
        end: k + n + percent.map_or(0, |length| gap + length),
        kind: CandidateKind::Plain(Plain::Number { digits: clean, percent: percent.is_some(), at: k }),
    })
}

/// Length of the percent sign or word at the beginning of a text; of "percentage" only "percent" counts, as in math-verify.
pub(crate) fn percent(text: &str) -> Option<usize> {
    let signs = ["%", "Percent", "percent", "Pct", "pct"];
    signs.into_iter().find(|sign| text.starts_with(sign)).map(str::len)
}

/// The exponent that programs write after a number (`e-06`) and its length.
fn exponent(s: &str) -> Option<(i32, usize)> {
    let body = s.strip_prefix(['e', 'E'])?;
    let sign = usize::from(body.starts_with(['-', '+']));
    let n = sign + digits(&body[sign..]);
    let ends =
        !body[n..].starts_with(|c: char| c.is_alphanumeric() || c == '^' || c == '.' && digits(&body[n + 1..]) > 0);
    if n == sign || !ends {
        return None;
    }
    Some((body[..n].trim_start_matches('+').parse().ok()?, 1 + n))
}

/// Length of `,234,567` or ` 234 567`.
fn thousands(s: &str) -> usize {
    let mut n = 0;
    while let Some(gap) = [",", " ", "\u{a0}", "\u{202f}", "\u{2009}"].iter().find(|gap| s[n..].starts_with(**gap)) {
        let end = n + gap.len() + 3;
        if digits(&s[n + gap.len()..]) < 3 {
            break;
        }
        n = end;
    }
    n
}

/// Length of `,34,567`: pairs of digits and a last group of three.
fn lakhs(s: &str) -> usize {
    let mut n = 0;
    while s[n..].starts_with(',') && digits(&s[n + 1..]) == 2 {
        n += 3;
    }
    if n > 0 && s[n..].starts_with(',') && digits(&s[n + 1..]) == 3 { n + 4 } else { 0 }
}

/// A formula that is one number with spaces between its thousands: `1 000 000`, `-12\,500.5`.
pub(crate) fn spaced(formula: &str) -> Option<E> {
    let text = formula.trim();
    let body = text.strip_prefix('-').unwrap_or(text);
    let mut rest = body.trim_start();
    let mut number: String = rest.chars().take_while(char::is_ascii_digit).collect();
    rest = &rest[number.len()..];
    if !(1..=3).contains(&number.len()) || number.starts_with('0') {
        return None;
    }
    let first = number.len();
    while let Some(group) = ["\\,", "\\;", "\\ ", "~", " "].iter().find_map(|gap| rest.strip_prefix(gap)) {
        if digits(group) != 3 {
            return None;
        }
        number.push_str(&group[..3]);
        rest = &group[3..];
    }
    let fraction = rest.strip_prefix('.').filter(|fraction| digits(fraction) == fraction.len() && !fraction.is_empty());
    if number.len() == first || !rest.is_empty() && fraction.is_none() {
        return None;
    }
    let value = decimal(&fraction.map_or(number.clone(), |fraction| format!("{number}.{fraction}")))?;
    Some(if body.len() < text.len() { neg(&value) } else { value })
}

fn arithmetic(t: &str, i: usize) -> Option<Candidate> {
    let op = |b: u8| matches!(b, b'+' | b'-' | b'*' | b'/' | b'^' | b'(' | b')');
    for start in starts(t, i) {
        let b = t.as_bytes();
        let mut k = start;
        for c in [b'-', b'(', b'-'] {
            k += usize::from(b.get(k) == Some(&c));
        }
        if !b.get(k).is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let first = k + 1;
        let stop = b[first..]
            .iter()
            .take(MAX_RUN)
            .take_while(|c| op(**c) || c.is_ascii_digit() || **c == b'.' || c.is_ascii_whitespace())
            .count();
        let stop = first + stop;
        let good_end = |e: usize| {
            let e = if b[e..].starts_with(b"**") { e + 2 } else { e };
            e == b.len() || matches!(b[e], b'.' | b',' | b':' | b')' | b'$') || t[e..].starts_with(char::is_whitespace)
        };
        // The last operator that has something after it and a fitting end; the longest such end.
        for o in (first..stop).rev().filter(|o| op(b[*o])) {
            if let Some(e) = (o + 2..=stop).rev().find(|e| t.is_char_boundary(*e) && good_end(*e)) {
                let stars = if b[e..].starts_with(b"**") { e + 2 } else { e };
                let end = stars + t[stars..].chars().next().map_or(0, char::len_utf8);
                return Some(Candidate { start: i, end, kind: CandidateKind::Plain(Plain::Arithmetic(start..e)) });
            }
        }
    }
    None
}

/// The value of a plain candidate, and its text.
pub fn read(t: &str, p: &Plain) -> (Option<E>, String) {
    match p {
        Plain::Number { digits, percent, .. } => {
            let (minus, body) = digits.strip_prefix('-').map_or((false, digits.as_str()), |b| (true, b));
            let e = decimal(body).map(|e| if minus { neg(&e) } else { e });
            let e = if *percent { e.map(|e| Rc::new(Expr::Percent(e))) } else { e };
            (e, digits.clone())
        }
        Plain::Arithmetic(r) => {
            let text = &t[r.clone()];
            let mut p = PlainArithmetic { s: text.as_bytes(), i: 0, depth: 0 };
            let e = p.sum().filter(|_| {
                p.spaces();
                p.i == p.s.len()
            });
            (e, text.to_string())
        }
    }
}

/// Range of a plain candidate in the text, without required neighbours.
pub(crate) fn place(c: &Plain, end: usize) -> Range<usize> {
    match c {
        Plain::Number { at, .. } => *at..end,
        Plain::Arithmetic(place) => place.clone(),
    }
}

/// The number that a text begins with, and where it ends.
pub(crate) fn first(t: &str) -> Option<(E, usize)> {
    let c = number(t, 0, false)?;
    let CandidateKind::Plain(plain) = &c.kind else { return None };
    Some((read(t, plain).0?, c.end))
}

/// Python's arithmetic: + - * / ** and parentheses, `^` read as a power.
struct PlainArithmetic<'a> {
    s: &'a [u8],
    i: usize,
    depth: usize,
}

impl PlainArithmetic<'_> {
    fn spaces(&mut self) {
        while self.s.get(self.i).is_some_and(u8::is_ascii_whitespace) {
            self.i += 1;
        }
    }
    fn next(&mut self) -> Option<u8> {
        self.spaces();
        self.s.get(self.i).copied()
    }
    fn power_sign(&mut self) -> bool {
        let n = match self.next() {
            Some(b'^') => 1,
            Some(b'*') if self.s.get(self.i + 1) == Some(&b'*') => 2,
            _ => return false,
        };
        self.i += n;
        true
    }
    fn sum(&mut self) -> Option<E> {
        let mut left = self.product()?;
        while let Some(c @ (b'+' | b'-')) = self.next() {
            self.i += 1;
            let right = self.product()?;
            left = add(left, if c == b'-' { neg(&right) } else { right });
        }
        Some(left)
    }
    fn product(&mut self) -> Option<E> {
        let mut left = self.signed()?;
        while let Some(c @ (b'*' | b'/')) = self.next() {
            self.i += 1;
            if c == b'/' && self.s.get(self.i) == Some(&b'/') {
                return None;
            }
            let right = self.signed()?;
            left = if c == b'*' { mul(left, right) } else { super::expr::div(left, right) };
        }
        Some(left)
    }
    fn signed(&mut self) -> Option<E> {
        let mut minus = false;
        while let Some(c @ (b'+' | b'-')) = self.next() {
            minus ^= c == b'-';
            self.i += 1;
        }
        let base = self.atom()?;
        let e = if self.power_sign() { Rc::new(Expr::Pow(base, self.nested(Self::signed)?)) } else { base };
        Some(if minus { neg(&e) } else { e })
    }
    fn nested(&mut self, f: fn(&mut Self) -> Option<E>) -> Option<E> {
        self.depth += 1;
        let r = if self.depth < 40 { f(self) } else { None };
        self.depth -= 1;
        r
    }
    fn atom(&mut self) -> Option<E> {
        match self.next()? {
            b'(' => {
                self.i += 1;
                let e = self.nested(Self::sum)?;
                (self.next()? == b')').then(|| self.i += 1)?;
                Some(e)
            }
            b'0'..=b'9' | b'.' => {
                let n = self.s[self.i..].iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count();
                let text = std::str::from_utf8(&self.s[self.i..self.i + n]).ok()?;
                self.i += n;
                // Python rejects whole numbers that begin with a zero, and "1.2.3".
                let whole = !text.contains('.');
                if (whole && text.len() > 1 && text.starts_with('0') && text.bytes().any(|b| b != b'0'))
                    || text.matches('.').count() > 1
                {
                    return None;
                }
                decimal(text.strip_suffix('.').unwrap_or(text)).map(|e| match &*e {
                    Expr::Num { value, .. } if !whole => super::expr::num(value.clone(), true),
                    _ => e,
                })
            }
            _ => None,
        }
    }
}
