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

/// Units that are more than letters of a formula, in the spelling under which they are compared.
const KNOWN: [(&str, &[&str]); 24] = [
    ("m", &["meter", "metre"]),
    ("cm", &["centimeter", "centimetre"]),
    ("mm", &["millimeter", "millimetre"]),
    ("km", &["kilometer", "kilometre"]),
    ("in", &["inch", "inche"]),
    ("ft", &["foot", "feet"]),
    ("yd", &["yard"]),
    ("mi", &["mile"]),
    ("kg", &["kilogram"]),
    ("gm", &["gram"]),
    ("lb", &["pound"]),
    ("oz", &["ounce"]),
    ("sec", &["second"]),
    ("min", &["minute"]),
    ("hr", &["hour"]),
    ("yr", &["year"]),
    ("day", &[]),
    ("week", &[]),
    ("liter", &["litre"]),
    ("gal", &["gallon"]),
    ("degree", &["deg"]),
    ("cent", &[]),
    ("dollar", &["usd"]),
    ("mph", &[]),
];

/// A formula apart from the unit behind it, which is named or written as text; `3m` is three times m. Text that holds numbers or closes
/// no brace (`\frac{1}{\mathrm{e}}`) is no unit.
pub(crate) fn apart(t: &str) -> (String, Option<String>) {
    let t = t.trim();
    if let Some(head) = before_text(t).map(str::trim)
        && !head.is_empty()
        && balanced(head)
    {
        let unit = &t[head.len()..];
        let words: String = unit.replace("\\text", " ").replace("\\mbox", " ").replace(['{', '}'], "");
        let power =
            words.trim_end().strip_suffix(['2', '3']).map_or(words.trim_end(), |rest| rest.trim_end_matches('^'));
        if !power.contains(|c: char| c.is_ascii_digit()) {
            return (head.to_owned(), Some(spelled(&words)).filter(|unit| !unit.is_empty()));
        }
        return (t.to_owned(), None);
    }
    let at = t
        .rfind(|c: char| !c.is_ascii_alphabetic())
        .map_or(0, |at| at + t[at..].chars().next().map_or(1, char::len_utf8));
    let (head, word) = t.split_at(at);
    let known = word.len() > 1
        && KNOWN.iter().any(|(unit, more)| spelled(word) == *unit || more.contains(&spelled(word).as_str()));
    if known && head.ends_with(|c: char| c.is_whitespace() || c.is_ascii_digit()) && !head.trim().is_empty() {
        return (head.trim().to_owned(), Some(spelled(word)));
    }
    (t.to_owned(), None)
}

fn balanced(t: &str) -> bool {
    t.matches('{').count() == t.matches('}').count()
}

/// One spelling of a unit: singular, short, `cm2` for square centimetres.
fn spelled(unit: &str) -> String {
    let lower = unit.to_lowercase();
    let mut power = if lower.contains("square") || lower.contains("sq") || lower.contains('2') { "2" } else { "" };
    if lower.contains("cubic") || lower.contains("cube") || lower.contains('3') {
        power = "3";
    }
    // A unit without a name is any unit.
    if lower.contains("unit") {
        return String::new();
    }
    let kept = |word: &&str| !["square", "sq", "cubic", "cube", "cu"].contains(word);
    let one = |word: &str| {
        let stem = if word.len() > 2 { word.strip_suffix('s').unwrap_or(word) } else { word };
        let known = KNOWN.iter().find(|(unit, more)| *unit == stem || more.contains(&stem));
        known.map_or(stem.to_owned(), |(unit, _)| (*unit).to_owned())
    };
    let words: Vec<String> =
        lower.split(|c: char| !c.is_alphabetic()).filter(|w| !w.is_empty()).filter(kept).map(one).collect();
    words.join(" ") + power
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
