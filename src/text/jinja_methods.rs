//! Methods of Python's strings, lists and dictionaries, and Python's two ways to format a text.

use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::jinja::named;
use super::jinja_source::METHOD;
use super::jinja_values::{Python, is_dict, items, repr, text, wrong};

/// The names that a value has as methods or attributes in Python, if minijinja could take them for others.
fn attributes(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::String => STRING,
        ValueKind::Seq => LIST,
        ValueKind::Number | ValueKind::Bool => NUMBER,
        ValueKind::Map if is_dict(value) => DICT,
        _ => "",
    }
}

pub(super) const DICT: &str = "clear copy fromkeys get items keys pop popitem setdefault update values";
pub(super) const NUMBER: &str = "real imag numerator denominator";
pub(super) const LIST: &str = "append count extend index insert remove reverse sort";
pub(super) const STRING: &str = "capitalize casefold center count encode endswith find format index isdigit islower isupper join ljust lower \
    lstrip partition replace rfind rjust rsplit rstrip split splitlines startswith strip swapcase title upper zfill";

/// Whether a name is one of these words.
pub(super) fn is_among(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|other| other == name)
}

/// `value.name`: in Python a method comes before an item.
///
/// # Errors
/// An undefined value.
pub(super) fn get_attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if is_among(attributes(value), name) { Ok(Value::from_object(Python::Method)) } else { value.get_attr(name) }
}

/// A letter as the first of a word: also of `ß`, `ﬁ` and `ǆ`.
fn first_letter(c: char, out: &mut String) {
    let mut upper = match c {
        'Ǆ'..='ǌ' | 'Ǳ'..='ǳ' => {
            return out.push(['ǅ', 'ǈ', 'ǋ', 'ǲ']["ǆǉǌǳ".chars().position(|d| c <= d).unwrap_or(3)]);
        }
        _ => c.to_uppercase(),
    };
    out.extend(upper.next());
    out.extend(upper.flat_map(char::to_lowercase));
}

/// Every letter after what is not a letter is a capital, an apostrophe's too.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => first_letter(c, &mut out),
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// # Errors
/// Digits of other scripts.
pub(super) fn check_digits(text: &str) -> Result<(), Error> {
    match text.chars().find(|c| !c.is_ascii() && c.is_numeric()) {
        Some(digit) => Err(wrong(format!("the digit {digit} is not supported"))),
        None => Ok(()),
    }
}

/// Python's white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `split` and, from the right, `rsplit` at white space.
fn words(text: &str, most: usize, right: bool) -> Vec<&str> {
    let mut parts = vec![];
    let trim = |rest: &'_ str| {
        if right { rest.trim_end_matches(is_space).len() } else { rest.trim_start_matches(is_space).len() }
    };
    let mut rest = text;
    loop {
        let length = trim(rest);
        rest = if right { &rest[..length] } else { &rest[rest.len() - length..] };
        if rest.is_empty() {
            break;
        }
        let end = if right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(end) = end.filter(|_| parts.len() < most) else {
            parts.push(rest);
            break;
        };
        let (before, behind) = rest.split_at(end);
        // The white space stays with the rest and is trimmed.
        let width = behind.chars().next().map_or(0, char::len_utf8);
        (rest, _) = if right { (before, parts.push(&behind[width..])) } else { (behind, parts.push(before)) };
    }
    if right {
        parts.reverse();
    }
    parts
}

/// Python's `splitlines`.
pub(super) fn lines(text: &str, ends: bool) -> Vec<&str> {
    let is_end = |c: char| "\n\r\x0b\x0c\x1c\x1d\x1e\u{85}\u{2028}\u{2029}".contains(c);
    let (mut out, mut rest) = (vec![], text);
    while !rest.is_empty() {
        let at = rest.find(is_end).unwrap_or(rest.len());
        let width =
            if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(0, char::len_utf8) };
        out.push(&rest[..if ends { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    out
}

fn list(parts: &[&str]) -> Value {
    parts.iter().map(|part| Value::from(*part)).collect()
}

fn tuple(parts: [&str; 3]) -> Value {
    Value::from(Tuple::from(parts.map(Value::from)))
}

#[derive(Clone, Copy)]
pub(super) enum Pad {
    Left,
    Right,
    Both,
}

/// Pads a text to `width` characters.
pub(super) fn padded(text: &str, width: usize, pad: Pad, with: char) -> String {
    const WIDEST: usize = 1 << 16;
    let width = width.min(WIDEST);
    let missing = width.saturating_sub(text.chars().count());
    let left = match pad {
        Pad::Left => missing,
        Pad::Right => 0,
        // As CPython rounds it.
        Pad::Both => missing / 2 + (missing & width & 1),
    };
    let of = |n: usize| with.to_string().repeat(n);
    format!("{}{text}{}", of(left), of(missing - left))
}

/// The part of a text between two of its characters, counted as in Python, and the number of characters before it.
fn between(text: &str, start: Option<i64>, end: Option<i64>) -> (&str, usize) {
    let count = text.chars().count() as i64;
    let place = |at: Option<i64>, otherwise: i64| {
        at.map_or(otherwise, |at| if at < 0 { at + count } else { at }).clamp(0, count)
    };
    let (start, end) = (place(start, 0), place(end, count));
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    (&text[byte(start)..byte(end.max(start))], start as usize)
}

/// Methods of Python's strings and lists that minijinja lacks, or counts in bytes.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let name = name.strip_prefix(METHOD).unwrap_or(name);
    if let ("keys" | "values" | "items", true) = (name, is_dict(value)) {
        let () = from_args(args)?;
        let item = |key: Value| {
            let item = value.get_item(&key)?;
            Ok(if name == "values" { item } else { Value::from(Tuple::from([key, item])) })
        };
        return Ok(Value::from_object(match name {
            "keys" => Python::View("dict_keys", value.try_iter()?.collect()),
            "values" => Python::View("dict_values", value.try_iter()?.map(item).collect::<Result<_, Error>>()?),
            _ => Python::View("dict_items", value.try_iter()?.map(item).collect::<Result<_, Error>>()?),
        }));
    }
    if let (ValueKind::Seq | ValueKind::Map, "copy") = (value.kind(), name) {
        let () = from_args(args)?;
        return Ok(value.clone());
    }
    if let (ValueKind::Seq, "index") = (value.kind(), name) {
        let (what,): (Value,) = from_args(args)?;
        let at = value.try_iter()?.position(|item| item == what);
        return at.map(Value::from).ok_or_else(|| wrong(format!("{what:?} is not in the list")));
    }
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, args);
    };
    Ok(match name {
        "format" => {
            let (args, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
            Value::from(fields(state, text, &args, &kwargs)?)
        }
        "split" | "rsplit" => {
            let (args, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
            let [sep, most] = named(["sep", "maxsplit"], &args, &kwargs)?;
            let most = most.map(i64::try_from).transpose()?.and_then(|most| usize::try_from(most).ok());
            let right = name == "rsplit";
            let Some(sep) = sep.filter(|sep| !sep.is_none()) else {
                return Ok(list(&words(text, most.unwrap_or(usize::MAX), right)));
            };
            let sep = sep.as_str().filter(|sep| !sep.is_empty()).ok_or_else(|| wrong("split: not a separator"))?;
            let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
            let mut parts: Vec<&str> =
                if right { text.rsplitn(most, sep).collect() } else { text.splitn(most, sep).collect() };
            if right {
                parts.reverse();
            }
            list(&parts)
        }
        "splitlines" => {
            let (ends,): (Option<bool>,) = from_args(args)?;
            list(&lines(text, ends.unwrap_or(false)))
        }
        "join" => {
            let (parts,): (Value,) = from_args(args)?;
            let parts = items(&parts)?;
            let parts: Option<Vec<&str>> = parts.iter().map(Value::as_str).collect();
            Value::from(parts.ok_or_else(|| wrong("join: not all items are texts"))?.join(text))
        }
        "strip" | "lstrip" | "rstrip" if args.first().is_none_or(Value::is_none) => {
            let (_,): (Option<Value>,) = from_args(args)?;
            Value::from(match name {
                "strip" => text.trim_matches(is_space),
                "lstrip" => text.trim_start_matches(is_space),
                _ => text.trim_end_matches(is_space),
            })
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (part, before) = between(text, start, end);
            let found = if name.starts_with('r') { part.rfind(what) } else { part.find(what) };
            if found.is_none() && name.ends_with("index") {
                return Err(wrong(format!("{what:?} is not in the text")));
            }
            Value::from(found.map_or(-1, |byte| (before + part[..byte].chars().count()) as i64))
        }
        "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            Value::from(between(text, start, end).0.matches(what).count())
        }
        "startswith" | "endswith" if args.len() > 1 => {
            let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            let part = Value::from(between(text, start, end).0);
            return unknown_method_callback(state, &part, name, std::slice::from_ref(what));
        }
        "center" | "ljust" | "rjust" => {
            let (width, with): (usize, Option<char>) = from_args(args)?;
            let pad = match name {
                "center" => Pad::Both,
                "ljust" => Pad::Right,
                _ => Pad::Left,
            };
            Value::from(padded(text, width, pad, with.unwrap_or(' ')))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let sign = text.len() - text.trim_start_matches(['-', '+']).len();
            let (sign, digits) = text.split_at(sign.min(1));
            Value::from(format!("{sign}{}", padded(digits, width.saturating_sub(sign.len()), Pad::Left, '0')))
        }
        "istitle" => {
            let () = from_args(args)?;
            Value::from(text.chars().any(|c| c.is_lowercase() || c.is_uppercase()) && title(text) == text)
        }
        "isdecimal" => {
            let () = from_args(args)?;
            check_digits(text)?;
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        }
        "isidentifier" => {
            let () = from_args(args)?;
            let word = |c: char| c.is_alphanumeric() || c == '_';
            Value::from(!text.starts_with(|c: char| c.is_numeric()) && !text.is_empty() && text.chars().all(word))
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap =
                |c: char| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "removeprefix" => {
            let (what,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(what).unwrap_or(text))
        }
        "removesuffix" => {
            let (what,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(what).unwrap_or(text))
        }
        "partition" => {
            let (what,): (&str,) = from_args(args)?;
            tuple(text.split_once(what).map_or([text, "", ""], |(before, behind)| [before, what, behind]))
        }
        "rpartition" => {
            let (what,): (&str,) = from_args(args)?;
            tuple(text.rsplit_once(what).map_or(["", "", text], |(before, behind)| [before, what, behind]))
        }
        _ => return unknown_method_callback(state, value, name, args),
    })
}

/// A text in `width` characters, cut to `precision`; a sign of Python's format language aligns it.
fn aligned(text: &str, align: char, fill: char, width: &str, precision: Option<usize>) -> Result<String, Error> {
    let number = if width.is_empty() { Ok(0) } else { width.parse::<usize>() };
    let width = number.map_err(|_| wrong(format!("the width {width} is not supported")))?;
    let pad = match align {
        '>' => Pad::Left,
        '^' => Pad::Both,
        _ => Pad::Right,
    };
    let text: String = text.chars().take(precision.unwrap_or(usize::MAX)).collect();
    Ok(match pad {
        // As `str.format` rounds it.
        Pad::Both => {
            let missing = width.saturating_sub(text.chars().count());
            padded(&padded(&text, text.chars().count() + missing / 2, Pad::Left, fill), width, Pad::Right, fill)
        }
        pad => padded(&text, width, pad, fill),
    })
}

/// `text % args` of Python: minijinja writes the numbers.
///
/// # Errors
/// As in Python, and for a width of `*` and for `%a`.
pub(super) fn percent_text(state: &mut State, format: &str, args: &Value) -> Result<String, Error> {
    let mut given = if args.is_tuple() { items(args)? } else { vec![args.clone()] }.into_iter();
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, spec)) = rest.split_once('%') {
        out += before;
        let (key, spec) = match spec.strip_prefix('(').and_then(|spec| spec.split_once(')')) {
            Some((key, spec)) => (Some(key), spec),
            None => (None, spec),
        };
        let end = spec.find(|c: char| !"-+ #0123456789.".contains(c)).ok_or_else(|| wrong("% without a format"))?;
        let sign = spec[end..].chars().next().unwrap_or_default();
        let flags = &spec[..end];
        rest = &spec[end + sign.len_utf8()..];
        if sign == '%' {
            out.push('%');
            continue;
        }
        let value = match key {
            Some(key) if is_dict(args) => args.get_item(&Value::from(key))?,
            Some(key) => return Err(wrong(format!("%({key}): the right side of % is not a mapping"))),
            None => given.next().ok_or_else(|| wrong(format!("not enough arguments for {format:?}")))?,
        };
        if key.is_some() {
            given = vec![].into_iter();
        }
        let number = |value: Value| value.kind() == ValueKind::Number || value.kind() == ValueKind::Bool;
        let value = match sign {
            's' | 'r' => {
                let shown = if sign == 's' { text(&value)? } else { repr(&value)? };
                let (width, precision) =
                    flags.split_once('.').map_or((flags, None), |(w, p)| (w, Some(p.parse().unwrap_or(0))));
                let left = width.starts_with('-');
                out += &aligned(
                    &shown,
                    if left { '<' } else { '>' },
                    ' ',
                    width.trim_start_matches(['-', '+', ' ', '#', '0']),
                    precision,
                )?;
                continue;
            }
            'd' | 'i' | 'u' if number(value.clone()) => match f64::try_from(value.clone()) {
                Ok(float) if !value.is_integer() => Value::from(float.trunc() as i128),
                _ => value,
            },
            'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'c' => value,
            _ => return Err(wrong(format!("%{sign} of {value:?} is not supported"))),
        };
        let sign = if matches!(sign, 'i' | 'u') { 'd' } else { sign };
        let args = [Value::from(format!("%{flags}{sign}")), value];
        out += state.apply_filter(super::jinja_source::NUMBER, &args)?.as_str().unwrap_or_default();
    }
    match given.next() {
        Some(left) if !is_dict(&left) => Err(wrong(format!("not all arguments of {format:?} are used"))),
        _ => Ok(out + rest),
    }
}

/// Python's `str.format`: minijinja writes the numbers.
///
/// # Errors
/// As in Python, and for fields in fields, and for items and attributes of fields.
fn fields(state: &mut State, format: &str, args: &[Value], kwargs: &Kwargs) -> Result<String, Error> {
    let mut out = String::new();
    let (mut rest, mut auto) = (format, Some(0));
    while let Some(at) = rest.find(['{', '}']) {
        out += &rest[..at];
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix(brace) {
            out += brace;
            rest = behind;
            continue;
        }
        let (field, behind) = rest
            .split_once('}')
            .filter(|_| brace == "{")
            .ok_or_else(|| wrong(format!("single {brace} in {format:?}")))?;
        rest = behind;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = match (name.parse::<usize>(), auto) {
            (Err(_), Some(nth)) if name.is_empty() => {
                auto = Some(nth + 1);
                args.get(nth).cloned()
            }
            (Ok(nth), None | Some(0)) => {
                auto = None;
                args.get(nth).cloned()
            }
            (Err(_), _) if !name.is_empty() => Some(kwargs.get(name)?),
            _ => None,
        };
        let value = value.ok_or_else(|| wrong(format!("{{{name}}} of {format:?} has no argument")))?;
        let shown = match (conversion, value.kind()) {
            ("r", _) => Some(repr(&value)?),
            ("s", _) => Some(text(&value)?),
            ("", ValueKind::String) => Some(text(&value)?),
            ("", _) if spec.is_empty() => Some(text(&value)?),
            ("", ValueKind::Number) => None,
            _ => return Err(wrong(format!("{{{field}:{spec}}} of {value:?} is not supported"))),
        };
        let Some(shown) = shown else {
            let format = Value::from(format!("{{:{spec}}}"));
            out += unknown_method_callback(state, &format, "format", &[value])?.as_str().unwrap_or_default();
            continue;
        };
        let signs: Vec<char> = spec.chars().collect();
        let (fill, align, used) = match signs[..] {
            [fill, align, ..] if "<>^".contains(align) => (fill, align, 2),
            [align, ..] if "<>^".contains(align) => (' ', align, 1),
            _ => (' ', '<', 0),
        };
        let size: String = signs[used..].iter().collect();
        let size = size.strip_suffix('s').unwrap_or(&size);
        let (width, precision) = size.split_once('.').map_or((size, None), |(w, p)| (w, Some(p)));
        let precision =
            precision.map(str::parse).transpose().map_err(|_| wrong(format!("{{:{spec}}} is not supported")))?;
        out += &aligned(&shown, align, fill, width, precision)?;
    }
    Ok(out + rest)
}
