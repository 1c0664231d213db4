//! Gives powers, roots, logarithms and fractions the braces they lack: `\frac12`, `\sqrt3`, `x^(2)`, `3/4`.

use super::boxed::closing;

pub(crate) fn operators(mut t: String) -> String {
    if t.contains('^') {
        t = wrap_parens(&t, "^", "^");
    }
    if t.contains("sqrt") {
        t = wrap_parens(&t, "sqrt", "\\sqrt");
    }
    if t.contains("\\log_") {
        t = split_digits(&t, "\\log_");
    }
    if t.contains(" sqrt") {
        t = t.replace(" sqrt", "\\sqrt");
    }
    if t.contains("\\frac") {
        t = split_digits(&t, "\\frac");
        t = fractions(&t);
    }
    if t.contains("\\sqrt") {
        t = roots(&t);
    }
    t
}

/// `name (…)` → `new{…}` up to the first closing parenthesis.
fn wrap_parens(t: &str, name: &str, new: &str) -> String {
    let mut out = String::with_capacity(t.len());
    let mut rest = t;
    while let Some(i) = rest.find(name) {
        let after = &rest[i + name.len()..];
        let space = after.chars().next().filter(|c| c.is_whitespace()).map_or(0, char::len_utf8);
        let close = after[space..].strip_prefix('(').and_then(|b| b.find(')').map(|k| (&b[..k], &b[k + 1..])));
        out.push_str(&rest[..i]);
        match close {
            Some((body, tail)) => {
                out.push_str(&format!("{new}{{{body}}}"));
                rest = tail;
            }
            None => {
                out.push_str(name);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// `\frac 12` → `\frac{1}{2}`: one digit, then the digits after it.
fn split_digits(t: &str, name: &str) -> String {
    let mut out = String::with_capacity(t.len());
    let mut rest = t;
    while let Some(i) = rest.find(name) {
        out.push_str(&rest[..i]);
        let after = &rest[i + name.len()..];
        let skip = |s: &str| s.chars().next().filter(|c| c.is_whitespace()).map_or(0, char::len_utf8);
        let a = skip(after);
        let one = after[a..].bytes().next().filter(u8::is_ascii_digit);
        let two = one.map(|_| a + 1 + skip(&after[a + 1..]));
        let n = two.map_or(0, |k| after[k..].bytes().take_while(u8::is_ascii_digit).count());
        match (two, n) {
            (Some(k), n) if n > 0 => {
                out.push_str(&format!("{name}{{{}}}{{{}}}", &after[a..=a], &after[k..k + n]));
                rest = &after[k + n..];
            }
            _ => {
                out.push_str(name);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Gives `\frac` its two braced arguments where they are single characters (or digits after a braced one).
fn fractions(t: &str) -> String {
    let mut parts = t.split("\\frac");
    let mut out = parts.next().unwrap_or("").to_string();
    for part in parts {
        let s = part.trim_start();
        out.push_str("\\frac");
        if s.starts_with('{') {
            match closing(s).map(|k| s.split_at(k + 1)) {
                Some((top, tail)) if tail.trim_start().starts_with(|c: char| c.is_ascii_digit()) => {
                    let tail = tail.trim_start();
                    out.push_str(&format!("{top}{{{}}}{}", &tail[..1], &tail[1..]));
                }
                _ => out.push_str(s),
            }
            continue;
        }
        let mut chars = s.chars();
        let (Some(a), Some(b)) = (chars.next(), chars.next()) else { return t.to_string() };
        if b == '{' {
            out.push_str(&format!("{{{a}}}{{{}", chars.as_str()));
        } else if b == ' ' && chars.as_str().starts_with('{') {
            out.push_str(&format!("{{{a}}}{}", chars.as_str()));
        } else {
            out.push_str(&format!("{{{a}}}{{{b}}}{}", chars.as_str()));
        }
    }
    out
}

fn roots(t: &str) -> String {
    let mut parts = t.split("\\sqrt");
    let mut out = parts.next().unwrap_or("").to_string();
    for part in parts {
        let s = part.trim_start();
        out.push_str("\\sqrt");
        match s.chars().next() {
            Some(c) if c != '{' && c != '[' => out.push_str(&format!("{{{c}}}{}", &s[c.len_utf8()..])),
            _ => out.push_str(s),
        }
    }
    out
}

/// `3/4` alone is a fraction.
pub(crate) fn slash(t: &str) -> Option<String> {
    let (a, b) = t.split_once('/')?;
    let whole = |s: &str| {
        let d = s.strip_prefix('-').unwrap_or(s);
        !d.is_empty() && d.len() < 19 && d.bytes().all(|c| c.is_ascii_digit()) && (d == "0" || !d.starts_with('0'))
    };
    (whole(a) && whole(b)).then(|| format!("\\frac{{{a}}}{{{b}}}"))
}
