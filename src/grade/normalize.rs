//! Rewrites LaTeX as models write it into the plainer LaTeX that the parser reads: boxed content, sizes, text styles,
//! units, malformed fractions and roots. Follows `math_normalization.py` of latex2sympy2_extended step by step,
//! because what it removes decides which answers agree.

use super::units::strip_units;

/// How much boxed content to take: every box, or the last ones that belong together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Boxes {
    All,
    Last,
}

pub fn normalize(text: &str, boxes: Boxes) -> String {
    let mut t = boxed(text, boxes);
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
    t = remove(&t);
    t = replace(&t);
    if t.contains(['\n', '\t']) {
        t = t.replace(['\n', '\t'], " ");
    }
    if t.contains("\\\\") && !t.contains("matrix") {
        t = single_slashes(&t);
    }
    t = strip_units(t);
    if t.starts_with('.') {
        t.insert(0, '0');
    }
    if t == "0.5" {
        t = "\\frac{1}{2}".into();
    }
    t = operators(t);
    t = slash(&t).unwrap_or(t);
    t.trim().to_string()
}

/// The content of `\boxed{…}` and `\fbox{…}`, joined by commas; the text itself where there is none.
fn boxed(text: &str, mode: Boxes) -> String {
    if !text.contains("\\boxed") && !text.contains("\\fbox") {
        return text.to_string();
    }
    let mut results: Vec<&str> = vec![];
    let (mut limit, mut last) = (text.len(), None);
    loop {
        let head = &text[..limit];
        let (b, f) = (head.rfind("\\boxed"), head.rfind("\\fbox"));
        let (start, n) = match (b, f) {
            (None, None) => break,
            (b, f) if b > f => (b.unwrap_or(0), 6),
            (_, f) => (f.unwrap_or(0), 5),
        };
        let rest = head[start + n..].trim_start();
        let open = limit - rest.len();
        if rest.is_empty() {
            break;
        }
        let Some(close) = rest.starts_with('{').then(|| closing(rest)).flatten() else {
            if results.is_empty() {
                results.push(&text[open..]);
            }
            break;
        };
        let content = rest[1..close].trim();
        if let (Boxes::Last, Some(next)) = (mode, last) {
            if !belongs(&text[open + close + 1..next], content, results.last().copied().unwrap_or("")) {
                break;
            }
        }
        if results.last() != Some(&content) {
            results.push(content);
        }
        last = Some(start);
        limit = start;
    }
    if results.is_empty() {
        return text.to_string();
    }
    results.reverse();
    results.join(",")
}

/// Position of the brace that closes the one at the start of `s`.
fn closing(s: &str) -> Option<usize> {
    let mut depth = 0;
    for (i, b) in s.bytes().enumerate() {
        match b {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether two boxes are parts of one answer: close together, or joined by "and", "or", a comma or a semicolon.
fn belongs(between: &str, content: &str, next: &str) -> bool {
    let n = between.chars().count();
    let word = |w: &str| {
        between.match_indices(w).any(|(i, _)| {
            let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            !part(between[..i].chars().next_back()) && !part(between[i + w.len()..].chars().next())
        })
    };
    n < 10 || (next != content && n < 70 && (between.contains([',', ';']) || word("and") || word("or")))
}

/// Drops `\left` and `\right` before a delimiter.
fn delimiters(t: &str) -> String {
    const DELIMITERS: [&str; 25] = [
        "\\{", "\\}", "{", "}", "\\|", "|", "[", "]", "(", ")", "\\lbrac", "\\rbrac", "\\lgroup", "\\rgroup", "\\lbrace",
        "\\rbrace", "\\vert", "\\lvert", "\\rvert", "\\lceil", "\\rceil", "\\lfloor", "\\rfloor", "\\langle", "\\rangle",
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

/// Removes what carries no value: dollar signs, quotes, thin negative spaces, empty text.
fn remove(t: &str) -> String {
    let mut out = String::with_capacity(t.len());
    let mut rest = t;
    while let Some(c) = rest.chars().next() {
        let n = match c {
            '$' => 1,
            '"' | '\'' if !out.ends_with('\\') => 1,
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

fn spaces(s: &str) -> usize {
    s.len() - s.trim_start().len()
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
    for style in ["\\mathrm", "\\mathit", "\\mathbf"] {
        if r.starts_with(style) {
            return Some((7, "\\text"));
        }
    }
    for (style, n) in [("\\textnormal", 11), ("\\textbf", 7), ("\\textit", 7), ("\\textrm", 7)] {
        if r.starts_with(style) {
            return Some((n, "\\text"));
        }
    }
    for frac in ["\\dfrac", "\\tfrac", "\\cfrac"] {
        if r.starts_with(frac) {
            return Some((6, "\\frac"));
        }
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
    if r[gap..].starts_with("\\text{") {
        if let Some((n, ",")) = slash_command(&r[gap..], None) {
            return Some((gap + n, ","));
        }
    }
    if r.starts_with("infinity") {
        return Some((8, "\\infty"));
    }
    if r.starts_with(",\\ldots") {
        return Some((7, " "));
    }
    let edge = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let start_ok = if pad == 0 { edge(before) } else { true };
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

/// Repairs powers, roots, logarithms and fractions that lack their braces.
fn operators(mut t: String) -> String {
    if t.contains('^') {
        t = wrap_parens(&t, "^", "^");
    }
    if t.contains("sqrt") {
        t = wrap_parens(&t, "sqrt", "\\sqrt");
    }
    if t.contains("\\log_") {
        t = split_digits(&t, "\\log_", "\\log_");
    }
    if t.contains(" sqrt") {
        t = t.replace(" sqrt", "\\sqrt");
    }
    if t.contains("\\frac") {
        t = split_digits(&t, "\\frac", "\\frac");
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
fn split_digits(t: &str, name: &str, new: &str) -> String {
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
                out.push_str(&format!("{new}{{{}}}{{{}}}", &after[a..=a], &after[k..k + n]));
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
fn slash(t: &str) -> Option<String> {
    let (a, b) = t.split_once('/')?;
    let whole = |s: &str| {
        let d = s.strip_prefix('-').unwrap_or(s);
        !d.is_empty() && d.len() < 19 && d.bytes().all(|c| c.is_ascii_digit()) && (d == "0" || !d.starts_with('0'))
    };
    (whole(a) && whole(b)).then(|| format!("\\frac{{{a}}}{{{b}}}"))
}
