//! Rewrites LaTeX as models write it into the plainer LaTeX that the parser reads: boxed content, sizes, text styles,
//! units, malformed fractions and roots. Follows `math_normalization.py` of latex2sympy2_extended step by step,
//! because what it removes decides which answers agree.

use super::boxed::{Boxes, boxed};
use super::plain::CURRENCY;
use super::repair::{operators, slash};
use super::scan::spaces;
use super::units::{apart, strip_units};

/// The formula in the parser's LaTeX. Its unit or currency is dropped, or in strict mode returned.
pub(crate) fn normalize(text: &str, boxes: Boxes, strict: bool) -> (String, Option<String>) {
    let mut t = boxed(text, boxes);
    if strict && t.contains("\\sqrt(") {
        t = t.replace("\\sqrt(", "sqrt(");
    }
    for (from, to) in [
        ("\\mathrm{T}", "T"),
        ("\\mathrm{d}", "d"),
        ("{\\rm d}", "d"),
        ("\\left[\\begin{matrix}", "\\begin{bmatrix}"),
        ("\\end{matrix}\\right]", "\\end{bmatrix}"),
    ] {
        if t.contains(from) {
            t = t.replace(from, to);
        }
    }
    if t.contains('\\') {
        t = delimiters(&t);
    }
    let money = t.chars().find(|c| *c != '$' && CURRENCY.contains(*c)).filter(|_| strict);
    t = remove(&t);
    t = replace(&t);
    if t.contains(['\n', '\t']) {
        t = t.replace(['\n', '\t'], " ");
    }
    if t.contains("\\\\") && !t.contains("matrix") {
        t = single_slashes(&t);
    }
    let mut unit = None;
    if strict {
        (t, unit) = apart(&t);
    } else {
        t = strip_units(t);
    }
    if t.starts_with('.') {
        t.insert(0, '0');
    }
    if t == "0.5" {
        t = "\\frac{1}{2}".into();
    }
    t = operators(t);
    t = slash(&t).unwrap_or(t);
    (t.trim().to_string(), unit.or(money.map(String::from)))
}

/// Drops `\left` and `\right` before a delimiter.
fn delimiters(t: &str) -> String {
    const DELIMITERS: [&str; 25] = [
        "\\{", "\\}", "{", "}", "\\|", "|", "[", "]", "(", ")", "\\lbrac", "\\rbrac", "\\lgroup", "\\rgroup",
        "\\lbrace", "\\rbrace", "\\vert", "\\lvert", "\\rvert", "\\lceil", "\\rceil", "\\lfloor", "\\rfloor",
        "\\langle", "\\rangle",
    ];
    let mut out = String::with_capacity(t.len());
    let mut rest = t;
    while let Some(i) = rest.find('\\') {
        out.push_str(&rest[..i]);
        rest = &rest[i..];
        let word = ["\\left", "\\right", "\\mleft", "\\mright"].iter().find(|w| rest.starts_with(**w));
        match word {
            Some(w) if DELIMITERS.iter().any(|d| rest[w.len()..].starts_with(d)) => rest = &rest[w.len()..],
            _ => {
                out.push('\\');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Removes what carries no value: currencies, quotes, thin negative spaces, empty text. Primes become powers.
fn remove(t: &str) -> String {
    let mut out = String::with_capacity(t.len());
    let mut rest = t;
    let mut quoted = false;
    while let Some(c) = rest.chars().next() {
        let n = match c {
            '$' => 1,
            c if !c.is_ascii() && CURRENCY.contains(c) => c.len_utf8(),
            // Odd spaces, which the parser does not know.
            '\u{a0}' | '\u{202f}' | '\u{2009}' => {
                out.push(' ');
                c.len_utf8()
            }
            '\'' | '’' | '′' if !quoted && is_primed(&out) => {
                let primes = rest.chars().take_while(|next| *next == c).count();
                let behind = &rest[primes * c.len_utf8()..];
                if !behind.starts_with(char::is_alphabetic) {
                    out.push_str(&format!("^{{{}}}", "\\prime".repeat(primes)));
                }
                primes * c.len_utf8()
            }
            '\'' => {
                quoted = !quoted && !out.ends_with(char::is_alphanumeric);
                usize::from(!out.ends_with('\\'))
            }
            '"' if !out.ends_with('\\') => 1,
            '\\' if rest.starts_with("\\mathrm{th}") => 11,
            '\\' if rest.starts_with("\\!") => 2 + spaces(&rest[2..]),
            '\\' if rest.starts_with("\\$") => 2,
            '\\' if rest.starts_with("\\displaystyle") => 13,
            '\\' if rest.starts_with("\\text") => empty_text(rest).unwrap_or(0),
            _ => 0,
        };
        if n == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            rest = &rest[n..];
        }
    }
    out
}

/// Whether a prime may follow this formula: after a letter that is not part of a word, outside `\text{…}`.
fn is_primed(formula: &str) -> bool {
    let word = formula.len() - formula.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let command = word > 0 && formula[..formula.len() - word].ends_with('\\');
    let text = formula.rfind("\\text").is_some_and(|at| !formula[at..].contains('}'));
    (word == 1 || command) && !text
}

fn empty_text(s: &str) -> Option<usize> {
    let open = 5 + spaces(s.strip_prefix("\\text")?);
    let body = s[open..].strip_prefix('{')?;
    let end = spaces(body);
    body[end..].starts_with('}').then_some(open + end + 2)
}

/// One pass of replacements; at each place the first that fits.
fn replace(t: &str) -> String {
    let mut out = String::with_capacity(t.len() + 8);
    let mut i = 0;
    let before = |i: usize| t[..i].chars().next_back();
    while let Some(c) = t[i..].chars().next() {
        let rest = &t[i..];
        let hit = match c {
            '\\' => slash_command(rest, before(i)),
            ' ' | '\t' | '\n' | '\r' | ',' | '{' | '~' | 'a' | 'o' | 'i' | 'p' => plain_word(rest, before(i)),
            _ => None,
        };
        match hit {
            Some((n, with)) => {
                out.push_str(with);
                i += n;
            }
            None => {
                out.push(c);
                i += c.len_utf8();
            }
        }
    }
    out
}

fn slash_command(r: &str, before: Option<char>) -> Option<(usize, &'static str)> {
    let styles = ["\\mathrm", "\\mathit", "\\mathbf", "\\textnormal", "\\textbf", "\\textit", "\\textrm"];
    if let Some(style) = styles.iter().find(|style| r.starts_with(**style)) {
        return Some((style.len(), "\\text"));
    }
    if ["\\dfrac", "\\tfrac", "\\cfrac"].iter().any(|frac| r.starts_with(frac)) {
        return Some((6, "\\frac"));
    }
    if let Some(body) = r.strip_prefix("\\text{") {
        let pad = spaces(body);
        for word in ["and", "or"] {
            if let Some(tail) = body[pad..].strip_prefix(word) {
                let tail_pad = spaces(tail);
                if tail[tail_pad..].starts_with('}') {
                    return Some((6 + pad + word.len() + tail_pad + 1, ","));
                }
            }
        }
        for word in ["percentage}", "percent}", "pct}"] {
            if body.starts_with(word) {
                return Some((6 + word.len(), "%"));
            }
        }
    }
    let mut after = r[1..].chars();
    if after.next().is_some_and(char::is_whitespace) && before != Some('\\') {
        return Some((r.len() - after.as_str().len(), " "));
    }
    r.starts_with("\\ldots").then_some((6, " "))
}

fn plain_word(r: &str, before: Option<char>) -> Option<(usize, &'static str)> {
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphabetic());
    let pad = spaces(r);
    let s = &r[pad..];
    if pad == 1 && s.starts_with('.') || r.chars().next().is_some_and(char::is_whitespace) && r[1..].starts_with('.') {
        return Some((2, " 0."));
    }
    if r.starts_with("{.") {
        return Some((2, "{0."));
    }
    if r.starts_with("~=") {
        return Some((2, "\\approx"));
    }
    if let Some(body) = s.strip_prefix('{') {
        let a = spaces(body);
        if let Some(tail) = body[a..].strip_prefix(',') {
            let b = spaces(tail);
            if tail[b..].starts_with('}') {
                return Some((pad + 1 + a + 1 + b + 1, ","));
            }
        }
    }
    let comma = usize::from(r.starts_with(','));
    let gap = comma + spaces(&r[comma..]);
    let joined = |word: &str| r[gap..].starts_with(word) && !letter(r[gap + word.len()..].chars().next());
    if !letter(before) {
        for word in ["and", "or"] {
            if joined(word) {
                return Some((gap + word.len(), ","));
            }
        }
    }
    if r[gap..].starts_with("\\text{")
        && let Some((n, ",")) = slash_command(&r[gap..], None)
    {
        return Some((gap + n, ","));
    }
    if r.starts_with("infinity") {
        return Some((8, "\\infty"));
    }
    if r.starts_with(",\\ldots") {
        return Some((7, " "));
    }
    let edge = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let start_ok = pad > 0 || edge(before);
    for word in ["percentage", "percent", "pct"] {
        if start_ok && s.starts_with(word) && edge(s[word.len()..].chars().next()) {
            return Some((pad + word.len(), "\\%"));
        }
    }
    if r.starts_with("inf") && before != Some('\\') {
        return Some((3, "\\infty"));
    }
    r.starts_with(" sqrt").then_some((5, "\\sqrt"))
}

/// `\\alpha` (a doubled backslash before a letter) is `\alpha`.
fn single_slashes(t: &str) -> String {
    let mut out = String::with_capacity(t.len());
    let b = t.as_bytes();
    let mut i = 0;
    for (at, c) in t.char_indices() {
        if at < i {
            continue;
        }
        if c == '\\' && b.get(at + 1) == Some(&b'\\') && b.get(at + 2).is_some_and(u8::is_ascii_alphabetic) {
            out.push('\\');
            i = at + 2;
            continue;
        }
        out.push(c);
    }
    out
}
