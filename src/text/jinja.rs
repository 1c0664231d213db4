//! Jinja as `transformers` sets it up for chat templates (`utils/chat_template_utils.py`), on top of minijinja: line breaks
//! after and spaces before a block tag are dropped, loops can be left, Python's methods and constants are Python's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::functions::namespace;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, escape_formatter, filters};
use minijinja_contrib::{filters as more, globals};
use serde_json::Value as Json;

use super::{dates, jinja_source};

/// Most instructions of a template: a chat of a thousand messages needs less, an endless loop more.
const FUEL: u64 = 50_000_000;

pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_fuel(Some(FUEL));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(method);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("the template refuses the messages: {message}")))
    });
    env.add_function("strftime_now", |format: String| -> Result<String, Error> {
        dates::now(&format).map_err(|error| wrong(format!("strftime_now({format:?}): {error}")))
    });
    env.add_filter("tojson", tojson);
    // As Python writes a number by itself.
    env.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Number => Ok(out.write_str(&number(value))?),
        ValueKind::Seq | ValueKind::Map => Ok(out.write_str(&repr(value)?)?),
        _ => escape_formatter(out, state, value),
    });
    env.add_filter("string", |state: &State, value: Value| match value.kind() {
        ValueKind::Number => Ok(Value::from(number(&value))),
        ValueKind::Seq | ValueKind::Map => Ok(Value::from(repr(&value)?)),
        _ => filters::string(state, &value),
    });
    for name in ["e", "escape"] {
        env.add_filter(name, |value: Value| match (value.is_safe(), value.kind()) {
            (true, _) => value,
            (_, ValueKind::Number) => Value::from_safe_string(number(&value)),
            _ => Value::from_safe_string(escaped(&value.to_string())),
        });
    }
    add_filters(&mut env);
    env.add_function("joiner", globals::joiner);
    env.add_function("cycler", |items: Rest<Value>| match items.0.is_empty() {
        true => Err(wrong("cycler: no items")),
        false => Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) })),
    });
    // `dict`'s arguments: a mapping, and keywords.
    env.add_function("namespace", |first: Option<Value>, kwargs: Kwargs| {
        let mut pairs: Vec<(Value, Value)> = vec![];
        if let Some(first) = first {
            for key in first.try_iter()? {
                pairs.push((key.clone(), first.get_item(&key)?));
            }
        }
        for key in kwargs.args() {
            pairs.push((Value::from(key), kwargs.get(key)?));
        }
        let all = [Value::from_pairs(pairs)];
        let (all,) = from_args(&all)?;
        namespace(Some(all))
    });
    env.add_test("callable", |value: Value| match value.kind() {
        ValueKind::Plain => true,
        ValueKind::Map => value.to_string().starts_with("<macro "),
        _ => false,
    });
    // These print differently from Python, or are not Jinja's.
    env.remove_filter("pprint");
    env.remove_global("debug");
    env.add_test("iterable", |value: Value| !value.is_none() && value.try_iter().is_ok());
    // A string and an object are sequences in Python.
    env.add_test("sequence", |value: Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
    });
    Ok(env)
}

/// Adds filters that minijinja lacks, or that need Jinja2's keywords.
fn add_filters(env: &mut Environment) {
    env.add_filter(jinja_source::PERCENT, percent);
    env.add_filter(jinja_source::ITEMS, |value: Value| match value.as_str() {
        Some(text) => Value::from(text.chars().map(|c| Value::from(c.to_string())).collect::<Vec<_>>()),
        None => value,
    });
    env.add_filter(jinja_source::GIVEN, |values: Value| -> Result<Value, Error> {
        if values.kind() != ValueKind::Map {
            let given = values.try_iter()?.filter(|value| !value.is_undefined());
            return Ok(Value::from(Tuple::from(given.collect::<Vec<_>>())));
        }
        let mut given = vec![];
        for key in values.try_iter()? {
            let value = values.get_item(&key)?;
            given.extend((!value.is_undefined()).then_some((key, value)));
        }
        Ok(Value::from_pairs(given))
    });
    for name in ["default", "d"] {
        env.add_filter(name, default);
    }
    env.add_filter("truncate", truncate);
    env.add_filter("indent", indent);
    env.add_filter("urlencode", urlencode);
    env.add_filter("filesizeformat", more::filesizeformat);
    env.add_filter("striptags", more::striptags);
    env.add_filter("wordcount", |text: String| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count()
    });
    env.add_filter("center", |text: String, width: Option<usize>| padded(&text, width.unwrap_or(80), Pad::Both, ' '));
    env.add_filter("forceescape", |value: Value| Value::from_safe_string(escaped(&value.to_string())));
}

/// Jinja2's `default(value, default_value, boolean)`.
fn default(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [other, boolean] = named(["default_value", "boolean"], &args, &kwargs)?;
    let missing = value.is_undefined() || boolean.is_some_and(|boolean| boolean.is_true()) && !value.is_true();
    Ok(if missing { other.filter(|other| !other.is_undefined()).unwrap_or_else(|| Value::from("")) } else { value })
}

/// The arguments of a call by name, given by place or keyword; `None` for those that are not given.
fn named<const N: usize>(names: [&str; N], args: &[Value], kwargs: &Kwargs) -> Result<[Option<Value>; N], Error> {
    if args.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut found = [const { None }; N];
    for (at, name) in names.into_iter().enumerate() {
        found[at] = match args.get(at) {
            Some(given) => Some(given.clone()),
            None if kwargs.has(name) => Some(kwargs.get(name)?),
            None => None,
        };
    }
    kwargs.assert_all_used()?;
    Ok(found)
}

fn whole(value: Option<Value>, otherwise: usize) -> Result<usize, Error> {
    value.map_or(Ok(otherwise), usize::try_from)
}

/// Jinja2's `truncate(s, length, killwords, end, leeway)`.
fn truncate(text: String, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let [length, cut, end, leeway] = named(["length", "killwords", "end", "leeway"], &args, &kwargs)?;
    let (length, leeway) = (whole(length, 255)?, whole(leeway, 5)?);
    let end = end.map_or_else(|| "...".to_owned(), |end| end.to_string());
    let kept = length.checked_sub(end.chars().count());
    let kept = kept.ok_or_else(|| wrong(format!("truncate: {length} characters have no room for {end:?}")))?;
    if text.chars().count() <= length + leeway {
        return Ok(text);
    }
    let head: String = text.chars().take(kept).collect();
    let head = if cut.is_some_and(|cut| cut.is_true()) {
        &head[..]
    } else {
        head.rsplit_once(' ').map_or(&head[..], |(words, _)| words)
    };
    Ok(format!("{head}{end}"))
}

/// Jinja2's `indent(s, width, first, blank)`; the width is a number of spaces or a text.
fn indent(text: String, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    const WIDEST: usize = 1 << 10;
    let [width, first, blank] = named(["width", "first", "blank"], &args, &kwargs)?;
    let indent = match width.as_ref().and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => " ".repeat(whole(width, 4)?.min(WIDEST)),
    };
    let is = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (first, blank) = (is(first), is(blank));
    let lines = text.split('\n').enumerate().map(|(number, line)| match number {
        0 if first => format!("{indent}{line}"),
        0 => line.to_owned(),
        _ if line.is_empty() && !blank => String::new(),
        _ => format!("{indent}{line}"),
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Jinja2's `urlencode`: of a text its characters, of pairs a query.
fn urlencode(value: Value) -> Result<String, Error> {
    let quoted = |value: &Value, query: bool| {
        let mut out = String::new();
        for byte in value.to_string().bytes() {
            match byte {
                b' ' if query => out.push('+'),
                b'/' if !query => out.push('/'),
                b if b.is_ascii_alphanumeric() || b"_.-~".contains(&b) => out.push(b as char),
                b => out.push_str(&format!("%{b:02X}")),
            }
        }
        out
    };
    if !matches!(value.kind(), ValueKind::Map | ValueKind::Seq) {
        return Ok(quoted(&value, false));
    }
    let mut parts = vec![];
    for item in value.try_iter()? {
        let (key, value) = match value.kind() {
            ValueKind::Map => (item.clone(), value.get_item(&item)?),
            _ => (item.get_item(&Value::from(0))?, item.get_item(&Value::from(1))?),
        };
        parts.push(format!("{}={}", quoted(&key, true), quoted(&value, true)));
    }
    Ok(parts.join("&"))
}

/// Items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.items[self.at.load(Ordering::Relaxed)].clone())
    }

    fn call_method(self: &Arc<Self>, _: &mut State, method: &str, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        let at = self.at.load(Ordering::Relaxed);
        let (next, value) = match method {
            "next" => ((at + 1) % self.items.len(), self.items[at].clone()),
            "reset" => (0, Value::from(())),
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        };
        self.at.store(next, Ordering::Relaxed);
        Ok(value)
    }
}

/// Python's `%`: of a text its formatting, of numbers the remainder.
fn percent(state: &mut State, value: Value, other: Value) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        let whole = |value: &Value| if value.is_integer() { i64::try_from(value.clone()).ok() } else { None };
        if let (Some(a), Some(b)) = (whole(&value), whole(&other)) {
            // As Python's, the remainder has the sign of the divisor.
            let rest = a.checked_rem(b).ok_or_else(|| wrong(format!("{a} % {b}")))?;
            return Ok(Value::from(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }));
        }
        let float = |value: &Value| f64::try_from(value.clone()).map_err(|_| wrong(format!("{value} in `a % b`")));
        let (a, b) = (float(&value)?, float(&other)?);
        return if b == 0.0 { Err(wrong(format!("{a} % {b}"))) } else { Ok(Value::from(a - b * (a / b).floor())) };
    };
    let args: Vec<Value> = if other.is_tuple() { other.try_iter()?.collect() } else { vec![other] };
    let is_repr = |nth: usize| text.replace("%%", "").split('%').nth(nth + 1).is_some_and(|part| part.starts_with('r'));
    let shown = |(nth, value): (usize, Value)| match value.kind() {
        _ if text.contains("%(") => Ok(value),
        _ if is_repr(nth) => repr(&value).map(Value::from),
        ValueKind::Seq | ValueKind::Map => repr(&value).map(Value::from),
        _ => Ok(value),
    };
    let args: Vec<Value> = args.into_iter().enumerate().map(shown).collect::<Result<_, _>>()?;
    let text = if text.contains("%(") {
        value
    } else {
        Value::from(text.split("%%").map(|part| part.replace("%r", "%s")).collect::<Vec<_>>().join("%%"))
    };
    state.apply_filter("format", &[&[text], &args[..]].concat())
}

/// A list or a mapping as Python prints it.
fn repr(value: &Value) -> Result<String, Error> {
    let all = |values: Vec<String>, open: &str, close: &str| format!("{open}{}{close}", values.join(", "));
    Ok(match value.kind() {
        ValueKind::Number => number(value),
        ValueKind::Seq => {
            let items: Vec<String> = value.try_iter()?.map(|item| repr(&item)).collect::<Result<_, _>>()?;
            match (value.is_tuple(), items.len()) {
                (true, 1) => all(items, "(", ",)"),
                (true, _) => all(items, "(", ")"),
                (false, _) => all(items, "[", "]"),
            }
        }
        ValueKind::Map if !value.to_string().starts_with('<') => {
            let pair = |key: Value| Ok(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?));
            all(value.try_iter()?.map(pair).collect::<Result<_, Error>>()?, "{", "}")
        }
        _ => format!("{value:?}"),
    })
}

/// The template as Jinja2 reads it: line ends are `\n`, the `generation` tags, which print nothing, are removed, and constructs that minijinja
/// lacks are rewritten.
pub(super) fn plain(jinja: &str) -> String {
    jinja_source::rewrite(&without_generation(&jinja.replace("\r\n", "\n").replace('\r', "\n")))
}

fn without_generation(jinja: &str) -> String {
    let mut kept = String::with_capacity(jinja.len());
    let mut rest = jinja;
    while let Some((before, tag)) = rest.split_once("{%") {
        let Some((inner, behind)) = tag.split_once("%}") else { break };
        kept.push_str(before);
        let word = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let other = match word {
            "generation" => inner.replacen("generation", "with", 1),
            "endgeneration" => inner.replacen("endgeneration", "endwith", 1),
            _ => inner.to_owned(),
        };
        kept.extend(["{%", &other, "%}"]);
        // Jinja2 preserves the line end after `raw` only.
        if word == "raw" && behind.starts_with('\n') && !inner.ends_with('-') {
            kept.push('\n');
        }
        rest = behind;
    }
    kept + rest
}

/// As `markupsafe` has it.
fn escaped(text: &str) -> String {
    let signs = [("&", "&amp;"), (">", "&gt;"), ("<", "&lt;"), ("'", "&#39;"), ("\"", "&#34;")];
    signs.into_iter().fold(text.to_owned(), |text, (sign, entity)| text.replace(sign, entity))
}

fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// A value of JSON as a template sees it.
pub(super) fn seen(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::from(whole),
            (None, Some(whole)) => Value::from(whole),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(list) => list.iter().map(seen).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), seen(value)))),
    }
}

/// Every letter after what is not a letter is a capital, an apostrophe's too.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_lowercase() || c.is_uppercase();
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
enum Pad {
    Left,
    Right,
    Both,
}

/// Pads a text to `width` characters.
fn padded(text: &str, width: usize, pad: Pad, with: char) -> String {
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
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
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
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    Ok(match name {
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
            return minijinja_contrib::pycompat::unknown_method_callback(
                state,
                &part,
                name,
                std::slice::from_ref(what),
            );
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
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        }
        "isidentifier" => {
            let () = from_args(args)?;
            let word = |c: char| c.is_alphanumeric() || c == '_';
            Value::from(!text.starts_with(|c: char| c.is_numeric()) && !text.is_empty() && text.chars().all(word))
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
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
        "rsplit" if !args.is_empty() && !args[0].is_none() => {
            let (what, most): (&str, Option<i64>) = from_args(args)?;
            let most = most.and_then(|most| usize::try_from(most).ok());
            let mut parts: Vec<&str> = match most {
                Some(most) => text.rsplitn(most + 1, what).collect(),
                None => text.rsplit(what).collect(),
            };
            parts.reverse();
            list(&parts)
        }
        _ => return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    })
}

/// Python's `json.dumps`, with `transformers`' choice of its arguments and their order.
fn tojson(value: Value, ascii: Option<bool>, indent: Option<usize>, kwargs: Kwargs) -> Result<String, Error> {
    let ascii = ascii.or(kwargs.get("ensure_ascii")?).unwrap_or(false);
    let indent = indent.or(kwargs.get("indent")?);
    let sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let marks: Option<Vec<String>> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    let marks = match marks.as_deref() {
        Some([item, key]) => [item.clone(), key.clone()],
        Some(_) => return Err(wrong("tojson: separators must be a pair")),
        None if indent.is_some() => [",".to_owned(), ": ".to_owned()],
        None => [", ".to_owned(), ": ".to_owned()],
    };
    let mut out = String::new();
    Dumps { ascii, indent, sorted, marks }.write(&value, 0, &mut out)?;
    Ok(out)
}

/// As Python writes it: large and small ones with an exponent of two digits.
fn number(value: &Value) -> String {
    let float = f64::try_from(value.clone()).unwrap_or_default();
    let large = !value.is_integer() && float.is_finite() && float != 0.0 && !(1e-4..1e16).contains(&float.abs());
    let written = format!("{float:e}");
    match written.split_once('e').filter(|_| large) {
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
            format!("{digits}e{sign}{power:0>2}")
        }
        None => value.to_string(),
    }
}

struct Dumps {
    ascii: bool,
    indent: Option<usize>,
    sorted: bool,
    /// After an item, after a key.
    marks: [String; 2],
}

impl Dumps {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.items(['[', ']'], items, depth, out)?;
            }
            ValueKind::Map => {
                let mut items = vec![];
                for key in value.try_iter()? {
                    let name = match key.kind() {
                        ValueKind::None => "null".to_owned(),
                        ValueKind::Bool => key.is_true().to_string(),
                        ValueKind::Number => number(&key),
                        _ => key.to_string(),
                    };
                    items.push((Some(name), value.get_item(&key)?));
                }
                if self.sorted {
                    items.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.items(['{', '}'], items, depth, out)?;
            }
            other => return Err(wrong(format!("tojson: {other} is not JSON"))),
        }
        Ok(())
    }

    fn items(
        &self,
        [open, close]: [char; 2],
        items: Vec<(Option<String>, Value)>,
        depth: usize,
        out: &mut String,
    ) -> Result<(), Error> {
        let line = |depth: usize| self.indent.map(|n| format!("\n{}", " ".repeat(n * depth))).unwrap_or_default();
        out.push(open);
        let some = !items.is_empty();
        for (i, (key, item)) in items.into_iter().enumerate() {
            if i > 0 {
                out.push_str(&self.marks[0]);
            }
            out.push_str(&line(depth + 1));
            if let Some(key) = key {
                self.text(&key, out);
                out.push_str(&self.marks[1]);
            }
            self.write(&item, depth + 1, out)?;
        }
        if some {
            out.push_str(&line(depth));
        }
        out.push(close);
        Ok(())
    }

    fn text(&self, text: &str, out: &mut String) {
        for c in Json::from(text).to_string().chars() {
            if self.ascii && !c.is_ascii() {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            } else {
                out.push(c);
            }
        }
    }
}
