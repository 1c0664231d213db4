//! Removes a unit at the end of an answer: `5 cm`, `3\text{ miles}^2`, `12 dollars`.
//!
//! Knows the list of units of latex2sympy2_extended and its two rules, including their rough edges (a final `g`
//! after a digit is a gram), because they decide which answers agree.

/// Longest first is not needed: the longest match is looked for. `.` stands for any character.
const UNITS: [&str; 139] = [
    "integerpoint",
    "feet",
    "sue",
    "digit",
    "pound",
    "meal",
    "edge",
    "student",
    "children ticket",
    "multiple",
    "east",
    "degree",
    "mph",
    "kmph",
    "ft",
    "m square",
    " m east",
    "sq m",
    "deg",
    "mile",
    "q .",
    "monkey",
    "prime",
    "ratio",
    "profit of rs",
    "rd",
    "o",
    "gm",
    "p . m",
    "lb",
    "tile",
    "per",
    "dm",
    "lt",
    "gain",
    "ab",
    "way",
    "west",
    "a .",
    "b .",
    "c .",
    "d .",
    "e .",
    "f .",
    "g .",
    "h .",
    "t",
    "h",
    "no change",
    "men",
    "soldier",
    "pie",
    "bc",
    "excess",
    "st",
    "inches",
    "noon",
    "cent",
    "by",
    "gal",
    "kmh",
    "c",
    "acre",
    "rise",
    "a . m",
    "th",
    "π r 2",
    "sq",
    "mark",
    "l",
    "toy",
    "coin",
    "sq . m",
    "gallon",
    "° f",
    "profit",
    "minw",
    "yr",
    "women",
    "am",
    "pm",
    "hr",
    "cu cm",
    "square",
    "v â € ™",
    "are",
    "rupee",
    "rounds",
    "cubic",
    "cc",
    "mtr",
    "s",
    "ohm",
    "number",
    "day",
    "hour",
    "minute",
    "min",
    "second",
    "man",
    "woman",
    "sec",
    "cube",
    "mt",
    "sq inch",
    "mp",
    "∏ cm ³",
    "hectare",
    "more",
    "unit",
    "cu . m",
    "cm 2",
    "rs .",
    "rs",
    "kg",
    "g",
    "month",
    "km",
    "m",
    "cm",
    "mm",
    "apple",
    "liter",
    "loss",
    "yard",
    "pure",
    "year",
    "increase",
    "decrease",
    "d",
    "less",
    "Surface",
    "litre",
    "pi sq m",
    "s .",
    "metre",
    "meter",
    "inch",
    "hours",
];

pub(crate) fn strip_units(mut t: String) -> String {
    let head = before_text(&t).unwrap_or(&t).trim();
    if !head.is_empty() && head.len() < t.len() {
        t = head.to_string();
    }
    for _ in 0..2 {
        match without_unit(&t) {
            Some(n) if n > 0 => t.truncate(n),
            _ => break,
        }
    }
    t
}

/// What stands before a `\text{…}` that reaches to the end (with a power after it, as in cm²).
fn before_text(t: &str) -> Option<&str> {
    let b = t.as_bytes();
    let mut end = b.len();
    if end >= 4 && b[end - 1] == b'}' && b[end - 2].is_ascii_digit() && &b[end - 4..end - 2] == b"{^" {
        end -= 4;
    } else if end >= 2 && b[end - 1].is_ascii_digit() && b[end - 2] == b'^' {
        end -= 2;
    }
    for end in [end, b.len()] {
        if end == 0 || b[end - 1] != b'}' {
            continue;
        }
        let found = [t.find("\\text{").map(|i| (i, 6)), t.find("\\mbox{").map(|i| (i, 6))].into_iter().flatten().min();
        if let Some((i, n)) = found
            && i + n < end
        {
            return Some(&t[..i]);
        }
    }
    None
}

/// Length of `t` without its final unit; `None` where there is none.
fn without_unit(t: &str) -> Option<usize> {
    let body = t.trim_end();
    let last = body.chars().next_back()?;
    if last.is_ascii_digit() && last != '2' {
        return None;
    }
    let mut best: Option<usize> = None;
    for suffix in ["", "s", "es"] {
        let Some(stem) = body.strip_suffix(suffix) else { continue };
        for unit in UNITS {
            let Some(head) = strip_wild(stem, unit) else { continue };
            let trimmed = head.trim_end();
            // A digit or brace, or else whitespace, must stand before the unit; one whitespace character stays.
            let keep = match trimmed.chars().next_back() {
                Some(c) if c.is_numeric() || c == '}' => trimmed.len(),
                _ if trimmed.len() < head.len() => trimmed.len() + 1,
                _ => continue,
            };
            best = Some(best.map_or(keep, |b| b.min(keep)));
        }
    }
    best.filter(|n| t.is_char_boundary(*n))
}

/// `stem` without `unit` at its end, where a dot in `unit` matches any character.
fn strip_wild<'a>(stem: &'a str, unit: &str) -> Option<&'a str> {
    if !unit.contains('.') {
        return stem.strip_suffix(unit);
    }
    let mut chars = stem.chars();
    for u in unit.chars().rev() {
        let c = chars.next_back()?;
        if u != '.' && u != c {
            return None;
        }
    }
    Some(chars.as_str())
}
