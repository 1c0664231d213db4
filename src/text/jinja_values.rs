//! Python's values that minijinja lacks, and `str` and `repr` of Python's values.

use std::sync::{Arc, Mutex, PoisonError};
use std::vec::IntoIter;

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};

pub(super) fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

#[derive(Debug)]
pub(super) enum Python {
    Range {
        start: i64,
        stop: i64,
        step: i64,
    },
    /// `dict_keys`, `dict_values` or `dict_items`.
    View(&'static str, Vec<Value>),
    /// A generator.
    Once(Mutex<IntoIter<Value>>),
    /// A method that is not called.
    Method,
    /// An undefined argument of a macro.
    Missing,
}

impl Python {
    /// # Errors
    /// A step of 0, and more items than Jinja2's sandbox allows.
    pub(super) fn range(start: i64, stop: i64, step: i64) -> Result<Value, Error> {
        const MOST: usize = 100_000;
        let range = Self::Range { start, stop, step };
        if step == 0 || range.length().is_none_or(|length| length > MOST) {
            return Err(wrong(format!("range({start}, {stop}, {step}): a step of 0, or more than {MOST} items")));
        }
        Ok(Value::from_object(range))
    }

    pub(super) fn once(items: Vec<Value>) -> Value {
        Value::from_object(Self::Once(Mutex::new(items.into_iter())))
    }

    fn length(&self) -> Option<usize> {
        match self {
            Self::Range { start, stop, step } => {
                let (span, step) =
                    ((i128::from(*stop) - i128::from(*start)) * i128::from(step.signum()), step.unsigned_abs());
                usize::try_from(span.max(0).unsigned_abs().div_ceil(step.max(1).into())).ok()
            }
            Self::View(_, items) => Some(items.len()),
            Self::Once(_) | Self::Method | Self::Missing => None,
        }
    }

    /// What Python prints of it, with items of at most `depth` levels.
    fn text(&self, depth: usize) -> Option<Result<String, Error>> {
        match self {
            Self::Range { start, stop, step: 1 } => Some(Ok(format!("range({start}, {stop})"))),
            Self::Range { start, stop, step } => Some(Ok(format!("range({start}, {stop}, {step})"))),
            Self::View(name, items) => {
                Some(repr_within(&Value::from(items.clone()), depth).map(|items| format!("{name}({items})")))
            }
            Self::Once(_) | Self::Method | Self::Missing => None,
        }
    }
}

impl Object for Python {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match **self {
            Self::Range { .. } => ObjectRepr::Seq,
            Self::View(..) | Self::Once(_) => ObjectRepr::Iterable,
            Self::Method | Self::Missing => ObjectRepr::Plain,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let (Self::Range { start, step, .. }, Some(at)) = (&**self, key.as_i64()) else { return None };
        let in_range = usize::try_from(at).is_ok_and(|at| self.length().is_some_and(|length| at < length));
        in_range.then(|| Value::from(start + step * at))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match &**self {
            Self::Range { .. } => Enumerator::Seq(self.length().unwrap_or_default()),
            Self::View(_, items) => Enumerator::Values(items.clone()),
            Self::Once(_) => {
                let source = self.clone();
                Enumerator::Iter(Box::new(std::iter::from_fn(move || match &*source {
                    Self::Once(items) => items.lock().unwrap_or_else(PoisonError::into_inner).next(),
                    _ => None,
                })))
            }
            Self::Method | Self::Missing => Enumerator::NonEnumerable,
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.length()
    }
}

/// The value that a macro's parameter gets.
pub(super) fn received(value: Value) -> Value {
    if matches!(value.downcast_object_ref(), Some(Python::Missing)) { Value::UNDEFINED } else { value }
}

/// Whether a value is of minijinja's type of this name.
pub(super) fn is_a(value: &Value, name: &str) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with(name))
}

/// A mapping that is neither a namespace nor a macro nor a loop.
pub(super) fn is_dict(value: &Value) -> bool {
    value.kind() == ValueKind::Map && !["Namespace", "Macro", "Loop"].iter().any(|name| is_a(value, name))
}

/// Python's `str`. An undefined value is empty.
///
/// # Errors
/// A value of which Python prints an address, or of which minijinja has no such text.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.to_string()),
        _ => repr(value),
    }
}

/// Python's `repr`.
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    repr_within(value, DEEPEST)
}

/// How deep lists and mappings that are printed may be nested: a template from a hub must not end the process.
pub(super) const DEEPEST: usize = 500;

/// [`repr`] of a value with at most `depth` levels.
fn repr_within(value: &Value, depth: usize) -> Result<String, Error> {
    let depth = depth.checked_sub(1).ok_or_else(|| wrong(format!("a value is nested more than {DEEPEST} deep")))?;
    let repr = |value: &Value| repr_within(value, depth);
    let all = |values: Vec<String>, open: &str, close: &str| format!("{open}{}{close}", values.join(", "));
    if let Some(text) = value.downcast_object_ref::<Python>().and_then(|value| value.text(depth)) {
        return text;
    }
    Ok(match value.kind() {
        ValueKind::Undefined => "Undefined".to_owned(),
        ValueKind::Number => number(value),
        ValueKind::String if value.is_safe() => format!("Markup({})", quoted(value.as_str().unwrap_or_default())),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::None | ValueKind::Bool => value.to_string(),
        ValueKind::Seq | ValueKind::Iterable if value.downcast_object_ref::<Python>().is_none() => {
            let items: Vec<String> = value.try_iter()?.map(|item| repr(&item)).collect::<Result<_, _>>()?;
            match (value.is_tuple() || is_a(value, "GroupTuple"), items.len()) {
                (true, 1) => all(items, "(", ",)"),
                (true, _) => all(items, "(", ")"),
                (false, _) => all(items, "[", "]"),
            }
        }
        ValueKind::Map if is_dict(value) => {
            let pair = |key: Value| Ok(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?));
            all(value.try_iter()?.map(pair).collect::<Result<_, Error>>()?, "{", "}")
        }
        _ => return Err(wrong("printing a generator, function, macro, method or namespace is not supported")),
    })
}

/// A string literal of Python. What Python cannot print is what `Debug` escapes inside a text.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            '\\' => out += "\\\\",
            c if c == quote => out.extend(['\\', c]),
            '\0'..='\x7f' if !c.is_control() => out.push(c),
            c if format!("{:?}", format!("a{c}")).contains("\\u{") || c.is_control() => {
                out += &match u32::from(c) {
                    code @ ..0x100 => format!("\\x{code:02x}"),
                    code @ ..0x1_0000 => format!("\\u{code:04x}"),
                    code => format!("\\U{code:08x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// A number as Python prints it: large and small ones with an exponent of two digits.
pub(super) fn number(value: &Value) -> String {
    let float = f64::try_from(value.clone()).unwrap_or_default();
    let large = !value.is_integer() && float.is_finite() && float != 0.0 && !(1e-4..1e16).contains(&float.abs());
    let written = format!("{float:e}");
    match written.split_once('e').filter(|_| large) {
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
            format!("{digits}e{sign}{power:0>2}")
        }
        None if float.is_nan() => "nan".to_owned(),
        None => value.to_string(),
    }
}

/// The items of what a filter or a loop iterates over: characters of a text, keys of a mapping.
///
/// # Errors
/// A value that Python cannot iterate over.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    match value.as_str() {
        Some(text) => Ok(text.chars().map(|c| Value::from(c.to_string())).collect()),
        None if value.is_none() => Err(wrong("none is not iterable")),
        None => Ok(value.try_iter()?.collect()),
    }
}

/// An attribute with dots, or an index, as `map(attribute=…)` reads it.
pub(super) fn attribute(value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else { return value.get_item(path) };
    path.split('.').try_fold(value.clone(), |value, part| match part.parse::<usize>() {
        Ok(index) => value.get_item(&Value::from(index)),
        Err(_) => value.get_item(&Value::from(part)),
    })
}

/// # Errors
/// Values that Python cannot order: minijinja orders values of several types.
pub(super) fn check_order(values: &[Value]) -> Result<(), Error> {
    let class = |value: &Value| match value.kind() {
        ValueKind::Number | ValueKind::Bool => 0,
        ValueKind::String => 1,
        ValueKind::Seq => 2,
        _ => 3,
    };
    let alike = values.iter().all(|value| class(value) == class(&values[0]) && class(value) != 3);
    if alike || values.len() < 2 {
        Ok(())
    } else {
        Err(wrong("`<` between values of several types, or of one without an order"))
    }
}
