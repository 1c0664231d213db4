//! Jinja as `transformers` sets it up for chat templates (`utils/chat_template_utils.py`), on top of minijinja: line breaks
//! after and spaces before a block tag are dropped, loops can be left, Python's methods and constants are Python's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::functions::namespace;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, escape_formatter, filters};
use minijinja_contrib::{filters as more, globals};
use serde_json::Value as Json;

use super::jinja_methods::{Pad, check_digits, get_attribute, is_space, lines, method, padded, percent_text};
use super::jinja_values::{
    DEEPEST, Python, attribute, check_order, is_a, is_dict, items, number, received, repr, text, wrong,
};
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
    env.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Undefined | ValueKind::String => escape_formatter(out, state, value),
        _ => Ok(out.write_str(&repr(value)?)?),
    });
    for name in ["string", jinja_source::TEXT] {
        env.add_filter(
            name,
            |value: Value| if value.as_str().is_some() { Ok(value) } else { text(&value).map(Value::from) },
        );
    }
    for name in ["e", "escape"] {
        env.add_filter(name, |value: Value| match value.is_safe() {
            true => Ok(value),
            false => Ok::<_, Error>(Value::from_safe_string(escaped(&text(&value)?))),
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
    env.add_function("range", |first: i64, stop: Option<i64>, step: Option<i64>| {
        let (start, stop) = stop.map_or((0, first), |stop| (first, stop));
        Python::range(start, stop, step.unwrap_or(1))
    });
    env.add_test("callable", |value: Value| {
        matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined) || is_a(&value, "Macro")
    });
    // These print differently from Python, or are not Jinja2's.
    for name in ["pprint", "split", "lines", "bool", "chain", "zip"] {
        env.remove_filter(name);
    }
    for name in ["startingwith", "endingwith", "safe", "int"] {
        env.remove_test(name);
    }
    env.remove_global("debug");
    env.add_test("iterable", |value: Value| items(&value).is_ok() && value.kind() != ValueKind::Plain);
    env.add_test("mapping", |value: Value| is_dict(&value));
    // A string, an object and an undefined value are sequences in Python, a generator is not.
    env.add_test("sequence", |value: Value| match value.kind() {
        ValueKind::Iterable => value.downcast_object_ref::<Python>().is_none(),
        kind => matches!(kind, ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined),
    });
    Ok(env)
}

/// Adds filters that minijinja lacks, or that need Jinja2's keywords.
fn add_filters(env: &mut Environment) {
    env.add_filter(jinja_source::PERCENT, percent);
    env.add_filter(jinja_source::RECEIVED, received);
    env.add_filter(jinja_source::PASSED, |value: Value| match value.is_undefined() {
        true => Value::from_object(Python::Missing),
        false => value,
    });
    env.add_filter(jinja_source::NUMBER, filters::format);
    env.add_filter(jinja_source::ATTRIBUTE, |value: Value, name: String| get_attribute(&value, &name));
    env.add_filter(jinja_source::ITEMS, |value: Value| match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => Ok(value),
        _ => items(&value).map(Value::from),
    });
    env.add_filter(jinja_source::GIVEN, |values: Value| -> Result<Value, Error> {
        if values.kind() != ValueKind::Map {
            let given = values.try_iter()?.filter(|value| !value.is_undefined()).map(received);
            return Ok(Value::from(Tuple::from(given.collect::<Vec<_>>())));
        }
        let mut given = vec![];
        for key in values.try_iter()? {
            let value = values.get_item(&key)?;
            given.extend((!value.is_undefined()).then(|| (key, received(value))));
        }
        Ok(Value::from_pairs(given))
    });
    for name in ["default", "d"] {
        env.add_filter(name, default);
    }
    add_generators(env);
    add_orders(env);
    env.add_filter("format", |state: &mut State, value: String, args: Rest<Value>, kwargs: Kwargs| {
        let keywords: Vec<&str> = kwargs.args().collect();
        let given = match (args.is_empty(), keywords.is_empty()) {
            (false, false) => return Err(wrong("format: positional and keyword arguments")),
            (true, false) => keywords
                .iter()
                .map(|key| Ok((*key, kwargs.get::<Value>(key)?)))
                .collect::<Result<Vec<_>, Error>>()
                .map(Value::from_pairs)?,
            _ => Value::from(Tuple::from(args.0)),
        };
        percent_text(state, &value, &given)
    });
    env.add_filter("attr", |value: Value, name: String| {
        let found = get_attribute(&value, &name)?;
        // An item is not an attribute.
        let is_item = is_dict(&value) && found.downcast_object_ref::<Python>().is_none();
        Ok::<_, Error>(if is_item { Value::UNDEFINED } else { found })
    });
    env.add_filter("join", |value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let [mark, path] = named(["d", "attribute"], &args, &kwargs)?;
        let mark = mark.as_ref().map_or(Ok(String::new()), text)?;
        let shown = |item: Value| {
            path.as_ref().map_or(Ok(item.clone()), |path| attribute(&item, path)).and_then(|item| text(&item))
        };
        Ok::<_, Error>(items(&value)?.into_iter().map(shown).collect::<Result<Vec<_>, _>>()?.join(&mark))
    });
    env.add_filter("trim", |value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let [signs] = named(["chars"], &args, &kwargs)?;
        let text = text(&value)?;
        Ok::<_, Error>(match signs.as_ref().and_then(Value::as_str) {
            Some(signs) => text.trim_matches(|c| signs.contains(c)).to_owned(),
            None => text.trim_matches(is_space).to_owned(),
        })
    });
    env.add_filter("int", int);
    env.add_filter("float", |value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let [other] = named(["default"], &args, &kwargs)?;
        Ok::<_, Error>(float(&value)?.map_or_else(|| other.unwrap_or_else(|| Value::from(0.0)), Value::from))
    });
    env.add_filter("truncate", truncate);
    env.add_filter("indent", indent);
    env.add_filter("urlencode", urlencode);
    env.add_filter("filesizeformat", more::filesizeformat);
    env.add_filter("striptags", more::striptags);
    env.add_filter("wordcount", |text: String| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count()
    });
    env.add_filter("center", |text: String, args: Rest<Value>, kwargs: Kwargs| {
        let [width] = named(["width"], &args, &kwargs)?;
        Ok::<_, Error>(padded(&text, whole(width, 80)?, Pad::Both, ' '))
    });
    env.add_filter("forceescape", |value: Value| Ok::<_, Error>(Value::from_safe_string(escaped(&text(&value)?))));
}

/// Filters that are generators in Jinja2: they can be read once, are true, and have no length and no text.
fn add_generators(env: &mut Environment) {
    env.add_filter("map", |state: &mut State, value: Value, args| filters::map(state, value, args).map(Python::once));
    type Test = Option<String>;
    type More = Rest<ValueOrKwargs>;
    env.add_filter("select", |state: &mut State, value: Value, test: Test, more: More| {
        filters::select(state, value, test.map(Into::into), more).map(Python::once)
    });
    env.add_filter("reject", |state: &mut State, value: Value, test: Test, more: More| {
        filters::reject(state, value, test.map(Into::into), more).map(Python::once)
    });
    env.add_filter("selectattr", |state: &mut State, value: Value, name: String, test: Test, more: More| {
        filters::selectattr(state, value, name.into(), test.map(Into::into), more).map(Python::once)
    });
    env.add_filter("rejectattr", |state: &mut State, value: Value, name: String, test: Test, more: More| {
        filters::rejectattr(state, value, name.into(), test.map(Into::into), more).map(Python::once)
    });
    env.add_filter("items", |value: Value| filters::items(&value).and_then(|value| items(&value)).map(Python::once));
    env.add_filter("reverse", |value: Value| match value.as_str() {
        Some(text) => Ok(Value::from(text.chars().rev().collect::<String>())),
        None => items(&value).map(|mut items| {
            items.reverse();
            Python::once(items)
        }),
    });
    env.add_filter("batch", |state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let [count, fill] = named(["linecount", "fill_with"], &args, &kwargs)?;
        let batches =
            filters::batch(state, items(&value)?.into(), whole(count, 0)?, fill.filter(|fill| !fill.is_none()))?;
        items(&batches).map(Python::once)
    });
    env.add_filter("slice", |state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let [count, fill] = named(["slices", "fill_with"], &args, &kwargs)?;
        let slices =
            filters::slice(state, items(&value)?.into(), whole(count, 0)?, fill.filter(|fill| !fill.is_none()))?;
        items(&slices).map(Python::once)
    });
}

/// Filters that compare items.
fn add_orders(env: &mut Environment) {
    /// The items, and all arguments as keywords. The items are those that Python can order.
    fn ordered(names: &[&str], value: &Value, args: &[Value], kwargs: &Kwargs) -> Result<(Value, Kwargs), Error> {
        if args.len() > names.len() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let mut all: Vec<(&str, Value)> = names.iter().copied().zip(args.iter().cloned()).collect();
        for key in kwargs.args() {
            all.push((key, kwargs.get(key)?));
        }
        let path = all.iter_mut().find(|(name, path)| *name == "attribute" && !path.is_none());
        let path = path.map(|(_, path)| {
            *path = Value::from(path.to_string());
            path.to_string()
        });
        let values = items(value)?;
        let default = kwargs.get::<Option<Value>>("default")?;
        for path in path.as_deref().map_or(vec![None], |path| path.split(',').map(Some).collect()) {
            let key = |value: &Value| match path {
                Some(path) => attribute(value, &Value::from(path)).map(|key| match &default {
                    Some(default) if key.is_undefined() => default.clone(),
                    _ => key,
                }),
                None => Ok(value.clone()),
            };
            check_order(&values.iter().map(key).collect::<Result<Vec<_>, _>>()?)?;
        }
        Ok((values.into(), all.into_iter().collect()))
    }
    env.add_filter("sort", |state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let (value, kwargs) = ordered(&["reverse", "case_sensitive", "attribute"], &value, &args, &kwargs)?;
        filters::sort(state, value, kwargs)
    });
    env.add_filter("min", |state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let (value, kwargs) = ordered(&["case_sensitive", "attribute"], &value, &args, &kwargs)?;
        filters::min(state, value, kwargs)
    });
    env.add_filter("max", |state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let (value, kwargs) = ordered(&["case_sensitive", "attribute"], &value, &args, &kwargs)?;
        filters::max(state, value, kwargs)
    });
    env.add_filter("groupby", |value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let (value, kwargs) = ordered(&["attribute", "default", "case_sensitive"], &value, &args, &kwargs)?;
        filters::groupby(value, None, kwargs)
    });
    env.add_filter("unique", |state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let [case, path] = named(["case_sensitive", "attribute"], &args, &kwargs)?;
        let given = [("case_sensitive", case), ("attribute", path)].into_iter();
        let kwargs = given.filter_map(|(name, value)| Some((name, value?))).collect();
        items(&filters::unique(state, items(&value)?.into(), kwargs)?).map(Python::once)
    });
    env.add_filter("dictsort", |value: Value, args: Rest<Value>, kwargs: Kwargs| {
        let [case, by, reverse] = named(["case_sensitive", "by", "reverse"], &args, &kwargs)?;
        let given = [("case_sensitive", case), ("by", by), ("reverse", reverse)].into_iter();
        filters::dictsort(&value, given.filter_map(|(name, value)| Some((name, value?))).collect())
    });
}

/// Jinja2's `int(value, default, base)`.
fn int(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [other, base] = named(["default", "base"], &args, &kwargs)?;
    let base = u32::try_from(whole(base, 10)?).ok().filter(|base| (2..=36).contains(base));
    let base = base.ok_or_else(|| wrong("int: the base is not between 2 and 36"))?;
    if let Some(text) = value.as_str() {
        check_digits(text)?;
        let text = text.trim().to_lowercase();
        let (sign, digits) = text.strip_prefix('-').map_or((1, text.as_str()), |digits| (-1, digits));
        let mark = match base {
            2 => "0b",
            8 => "0o",
            16 => "0x",
            _ => "",
        };
        let digits = digits.strip_prefix(mark).unwrap_or(digits);
        let number =
            i128::from_str_radix(&digits.replace('_', ""), base).ok().filter(|_| !digits.starts_with(['+', '-']));
        if let Some(number) = number {
            return Ok(Value::from(sign * number));
        }
    } else if value.is_integer() {
        return Ok(value);
    }
    Ok(match float(&value)? {
        Some(float) if float.is_finite() => Value::from(float.trunc() as i128),
        _ => other.unwrap_or_else(|| Value::from(0)),
    })
}

/// Python's `float`; `None` where it fails.
fn float(value: &Value) -> Result<Option<f64>, Error> {
    Ok(match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => value.as_str().and_then(|text| text.trim().replace('_', "").parse().ok()),
    })
}

/// Jinja2's `default(value, default_value, boolean)`.
fn default(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [other, boolean] = named(["default_value", "boolean"], &args, &kwargs)?;
    let missing = value.is_undefined() || boolean.is_some_and(|boolean| boolean.is_true()) && !value.is_true();
    Ok(if missing { other.filter(|other| !other.is_undefined()).unwrap_or_else(|| Value::from("")) } else { value })
}

/// The arguments of a call by name, given by place or keyword; `None` for those that are not given.
pub(super) fn named<const N: usize>(
    names: [&str; N],
    args: &[Value],
    kwargs: &Kwargs,
) -> Result<[Option<Value>; N], Error> {
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
    if text.chars().count() <= length.saturating_add(leeway) {
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
    let mut all = lines(&text, false);
    if text.ends_with('\n') || text.is_empty() {
        all.push("");
    }
    let lines = all.into_iter().enumerate().map(|(number, line)| match number {
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
    if let Some(text) = value.as_str() {
        return percent_text(state, text, &other).map(Value::from);
    }
    let whole = |value: &Value| if value.is_integer() { i64::try_from(value.clone()).ok() } else { None };
    if let (Some(a), Some(b)) = (whole(&value), whole(&other)) {
        // As Python's, the remainder has the sign of the divisor.
        let rest = a.checked_rem(b).ok_or_else(|| wrong(format!("{a} % {b}")))?;
        return Ok(Value::from(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }));
    }
    let float = |value: &Value| f64::try_from(value.clone()).map_err(|_| wrong(format!("{value} in `a % b`")));
    let (a, b) = (float(&value)?, float(&other)?);
    if b == 0.0 { Err(wrong(format!("{a} % {b}"))) } else { Ok(Value::from(a - b * (a / b).floor())) }
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

/// Python's `json.dumps`, with `transformers`' choice of its arguments and their order.
fn tojson(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, marks, sorted] = named(names, &args, &kwargs)?;
    let is = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let indent = match indent.filter(|indent| !indent.is_none()) {
        Some(indent) if indent.as_str().is_some() => Some(indent.to_string()),
        Some(indent) => Some(" ".repeat(i64::try_from(indent)?.clamp(0, 1 << 10) as usize)),
        None => None,
    };
    let marks = match marks.filter(|marks| !marks.is_none()) {
        Some(marks) => items(&marks)?.iter().map(Value::to_string).collect::<Vec<_>>().try_into().ok(),
        None => Some([if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned)),
    };
    let marks = marks.ok_or_else(|| wrong("tojson: separators must be a pair"))?;
    let mut out = String::new();
    Dumps { ascii: is(ascii), indent, sorted: is(sorted), marks }.write(&value, 0, &mut out)?;
    Ok(out)
}

struct Dumps {
    ascii: bool,
    indent: Option<String>,
    sorted: bool,
    /// After an item, after a key.
    marks: [String; 2],
}

impl Dumps {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(wrong(format!("tojson: a value is nested more than {DEEPEST} deep")));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(match number(value).as_str() {
                "inf" => "Infinity",
                "-inf" => "-Infinity",
                "nan" => "NaN",
                finite => finite,
            }),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable if value.downcast_object_ref::<Python>().is_none() => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.items(['[', ']'], items, depth, out)?;
            }
            ValueKind::Map if is_dict(value) => {
                let mut items = vec![];
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    check_order(&keys)?;
                    keys.sort();
                }
                for key in keys {
                    let name = match key.kind() {
                        ValueKind::None => "null".to_owned(),
                        ValueKind::Bool => key.is_true().to_string(),
                        ValueKind::Number => number(&key),
                        ValueKind::String => key.to_string(),
                        other => return Err(wrong(format!("tojson: a key is a {other}"))),
                    };
                    items.push((Some(name), value.get_item(&key)?));
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
        let line =
            |depth: usize| self.indent.as_ref().map(|indent| format!("\n{}", indent.repeat(depth))).unwrap_or_default();
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
