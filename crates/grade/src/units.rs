//! Removes a unit at the end of an answer: `5 cm`, `3\text{ miles}^2`, `12 dollars`.
//!
//! Knows the list of units of latex2sympy2_extended and its two rules, including their rough edges (a final `g`
//! after a digit is a gram), because they decide which answers agree.

/// The order does not matter: the longest match wins. `.` matches any character.
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
const KNOWN: [(&str, &[&str]); 26] = [
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
    ("month", &[]),
    ("liter", &["litre"]),
    ("gal", &["gallon"]),
    ("degree", &["deg"]),
    ("cent", &[]),
    ("dollar", &["usd"]),
    ("mi/hr", &["mph"]),
    ("km/hr", &["kmh", "kmph"]),
];
/// Units that may also be letters of a formula: read only after a number in plain text. Single letters are case-sensitive.
const PLAIN: [(&str, &[&str]); 24] = [
    ("m", &["m"]),
    ("gm", &["g"]),
    ("sec", &["s"]),
    ("hr", &["h"]),
    ("liter", &["l", "L"]),
    ("ml", &["milliliter", "millilitre"]),
    ("cl", &[]),
    ("dl", &[]),
    ("mg", &["milligram"]),
    ("ms", &["millisecond"]),
    ("nm", &["nanometer"]),
    ("ton", &["tonne"]),
    ("newton", &["N"]),
    ("joule", &["J"]),
    ("kj", &["kilojoule"]),
    ("watt", &["W"]),
    ("kw", &["kilowatt"]),
    ("volt", &["V"]),
    ("hz", &["hertz"]),
    ("mol", &["mole"]),
    ("euro", &[]),
    ("°c", &[]),
    ("°f", &[]),
    ("degree", &["°"]),
];
/// Words that are numbers, not units.
const NUMBERS: [&str; 9] =
    ["dozen", "hundred", "thousand", "million", "billion", "trillion", "tenth", "hundredth", "thousandth"];
/// Names of which a unit may consist.
const MAX_NAMES: usize = 6;

/// Whether a unit is a number in truth: "thousand".
pub(crate) fn is_number(unit: &str) -> bool {
    unit.split([' ', '/']).any(|part| NUMBERS.contains(&part) || part == "pair" || part == "percent")
}

/// The spelling under which a unit is compared.
fn known(word: &str, plain: bool) -> Option<&'static str> {
    let lower = if word.chars().count() > 1 { word.to_lowercase() } else { word.to_owned() };
    let stem = if lower.len() > 2 { lower.strip_suffix('s').unwrap_or(&lower) } else { &lower };
    let more: &[(&str, &[&str])] = if plain { &PLAIN } else { &[] };
    let named = |(unit, others): &&(&'static str, &[&str])| {
        (*unit == stem && word.chars().count() > 1) || others.contains(&stem)
    };
    let unit = KNOWN.iter().chain(more).find(named).map(|(unit, _)| *unit);
    unit.or_else(|| NUMBERS.into_iter().find(|number| plain && *number == stem))
}

/// A unit at the start of a text and where it ends, with the spaces before it: ` km/h`, ` square meters`, `\text{ cm}^2`, `^\circ`.
pub(crate) fn leading(text: &str) -> Option<(String, usize)> {
    let mut body = text;
    while let Some(rest) =
        ["\\,", "\\;", "\\ ", "\\quad", "~"].iter().find_map(|gap| body.trim_start().strip_prefix(gap))
    {
        body = rest;
    }
    body = body.trim_start();
    let skipped = text.len() - body.len();
    for degree in ["^\\circ", "^{\\circ}", "^°", "^\\degree"] {
        if body.starts_with(degree) {
            return Some(("degree".into(), skipped + degree.len()));
        }
    }
    for style in ["\\text{", "\\textrm{", "\\mathrm{", "\\mbox{"] {
        if let Some(words) = body.strip_prefix(style) {
            let end = words.find('}')?;
            let (sign, n) = power(&words[end + 1..]);
            let unit = spelled(format!("{}^{sign}", words[..end].trim_end()).trim_end_matches('^'));
            return (!unit.is_empty()).then_some((unit, skipped + style.len() + end + 1 + n));
        }
    }
    plainly(body).map(|(unit, n)| (unit, skipped + n))
}

/// The power after the name of a unit and its length.
fn power(text: &str) -> (&'static str, usize) {
    let signs = [
        ("^2", "2"),
        ("^{2}", "2"),
        ("²", "2"),
        (" squared", "2"),
        ("^3", "3"),
        ("^{3}", "3"),
        ("³", "3"),
        (" cubed", "3"),
    ];
    let found = signs.into_iter().find(|(sign, _)| text.starts_with(sign));
    found.map_or(("", 0), |(sign, power)| (power, sign.len()))
}

/// Names of units with their powers, divided by `/` or "per".
fn plainly(text: &str) -> Option<(String, usize)> {
    let (mut unit, mut end, mut sign) = (String::new(), 0, "");
    for _ in 0..MAX_NAMES {
        let mut start = end + sign.len();
        start += text[start..].len() - text[start..].trim_start().len();
        let mut times = "";
        for (word, factor) in [("square ", "2"), ("sq ", "2"), ("sq. ", "2"), ("cubic ", "3"), ("cu ", "3")] {
            if text[start..].starts_with(word) {
                (start, times) = (start + word.len(), factor);
            }
        }
        let letter = |c: &char| c.is_alphabetic() || *c == '°';
        let word: String = text[start..].chars().take_while(letter).collect();
        let single = word.chars().count() == 1;
        // "5 in all" is not a length.
        let prose = word == "in" && text[start + 2..].trim_start().starts_with(char::is_alphanumeric);
        // Next to another name only a letter is a unit ("N m"); "5 km yards" is prose.
        let factor = sign == " " && !single;
        let Some(name) = known(&word, true).filter(|_| !prose && !factor) else { break };
        unit.push_str(match sign.trim() {
            "" if unit.is_empty() => "",
            "/" | "per" | "a" => "/",
            _ => " ",
        });
        unit.push_str(name);
        end = start + word.len();
        let (own, n) = power(&text[end..]);
        end += n;
        unit.push_str(if times.is_empty() { own } else { times });
        let signs = ["/", " / ", " per ", " a ", "·", "\\cdot", " "];
        let Some(next) = signs.into_iter().find(|sign| text[end..].starts_with(sign)) else { break };
        sign = next;
    }
    (end > 0).then_some((unit, end))
}

/// Splits a formula from the unit after it, which is a name or text; `3m` is three times m. Text with numbers or an
/// unclosed brace (`\frac{1}{\mathrm{e}}`) is not a unit.
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
        if !power.contains(|c: char| c.is_ascii_digit() || "+=<>".contains(c)) {
            return (head.to_owned(), Some(spelled(&words)).filter(|unit| !unit.is_empty()));
        }
        return (t.to_owned(), None);
    }
    let at = t
        .rfind(|c: char| !c.is_ascii_alphabetic())
        .map_or(0, |at| at + t[at..].chars().next().map_or(1, char::len_utf8));
    let (head, word) = t.split_at(at);
    let begins = head.ends_with(|c: char| c.is_whitespace() || c.is_ascii_digit()) && !head.trim().is_empty();
    match known(word, false).filter(|_| begins && !wants_operand(head.trim_end())) {
        Some(unit) => (head.trim().to_owned(), Some(unit.to_owned())),
        None => (t.to_owned(), None),
    }
}

fn balanced(t: &str) -> bool {
    t.matches('{').count() == t.matches('}').count()
}

/// One spelling of a unit: singular, short, `cm2` for square centimetres.
fn spelled(unit: &str) -> String {
    let unit = unit.trim();
    if let Some((unit, _)) = plainly(unit).filter(|(_, n)| *n == unit.trim_end_matches('.').len()) {
        return unit;
    }
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
        known(word, false).map_or(stem.to_owned(), str::to_owned)
    };
    let words: Vec<String> =
        lower.split(|c: char| !c.is_alphabetic()).filter(|w| !w.is_empty()).filter(kept).map(one).collect();
    words.join(" ") + power
}

/// The text before a final `\text{…}` (which may have a power after it, as in cm²).
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
        let found = ["\\text{", "\\mbox{"].iter().filter_map(|style| t.find(style)).min();
        if let Some(i) = found
            && i + 6 < end
        {
            return Some(&t[..i]);
        }
    }
    None
}

/// Length of `t` without its final unit; `None` without one.
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
            // A digit or brace, or else whitespace, must come before the unit; one whitespace character stays.
            let keep = match trimmed.chars().next_back() {
                Some(c) if c.is_numeric() || c == '}' => trimmed.len(),
                _ if trimmed.len() < head.len() && !wants_operand(trimmed) => trimmed.len() + 1,
                _ => continue,
            };
            best = Some(best.map_or(keep, |b| b.min(keep)));
        }
    }
    best.filter(|n| t.is_char_boundary(*n))
}

/// Whether a formula ends in an operator that needs a right side: then the letter there is not a unit (`n + m`, `x = s`).
fn wants_operand(formula: &str) -> bool {
    let commands =
        ["cdot", "times", "div", "pm", "mp", "le", "leq", "ge", "geq", "ne", "neq", "approx", "in", "cup", "cap"];
    let command = formula.rsplit_once('\\').is_some_and(|(_, name)| commands.contains(&name));
    command || formula.ends_with(['+', '-', '*', '/', '=', '^', '<', '>', '(', '[', '{', ',', '±', '·', '×', '÷'])
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
