//! Rewrites a template's source where minijinja differs from Jinja2 and no hook of its environment can change it.
//!
//! 1. Split the source into text, tags (`{% … %}`, `{{ … }}`), comments and raw blocks; only tags are rewritten.
//! 2. Split a tag into tokens (names, numbers, quoted texts, signs).
//! 3. Methods: `x.items()` becomes a name that no item of `x` can have, `x.items` a filter that returns a method where Python has one.
//!    Escapes in quoted texts are those of Python.
//! 4. `a % b` becomes `a|percent(b)`, `a ~ b` becomes `(a)|text ~ (b)|text`, `for x in y` becomes `for x in (y)|items_of`.
//! 5. Macros: one whose body names `varargs` or `kwargs` gets optional parameters that are gathered in it, for `kwargs` those that its calls
//!    name. A default that names another parameter is set at the beginning of the body. Where a macro has defaults, undefined arguments
//!    are marked in its calls, because minijinja would replace them by the defaults.

use super::jinja_methods::{DICT, LIST, NUMBER as NUMBERS, STRING, is_among};

/// `a % b`, of texts too.
pub(super) const PERCENT: &str = "switchyard_percent";
/// The items of a loop; of a text, its characters.
pub(super) const ITEMS: &str = "switchyard_items";
/// The arguments that were given of a macro's optional ones.
pub(super) const GIVEN: &str = "switchyard_given";
/// `value.name` where a value may have a method of this name.
pub(super) const ATTRIBUTE: &str = "switchyard_attribute";
/// An operand of `~` as Python's text.
pub(super) const TEXT: &str = "switchyard_text";
/// minijinja's `format`.
pub(super) const NUMBER: &str = "switchyard_number";
/// Before the names of a dictionary's methods, so that an item of that name is not called.
pub(super) const METHOD: &str = "switchyard_method_";
/// An argument of a macro with defaults, which minijinja would replace where it is undefined, and the parameter that gets it.
pub(super) const PASSED: &str = "switchyard_passed";
pub(super) const RECEIVED: &str = "switchyard_received";
/// Most extra positional arguments of a macro.
const EXTRA: usize = 16;
/// Most right sides of `%` in each other: minijinja refuses brackets that are nested deeper.
const NESTED: usize = 160;

pub(super) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let defaulted: Vec<&str> = source.split("macro ").skip(1).filter_map(defaulted).collect();
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(tag) = Tag::read(rest) else {
            out.push('{');
            rest = &rest[1..];
            continue;
        };
        let whole = &rest[..tag.length];
        rest = &rest[tag.length..];
        if tag.kind == '#' {
            out.push_str(whole);
            continue;
        }
        let tokens = passed(attributes(tokens(tag.inside)), &defaulted);
        let word =
            tokens.iter().map(|token| token.trim()).find(|token| !token.is_empty()).unwrap_or_default().to_owned();
        let is = |name: &str| tag.kind == '%' && word == name;
        if is("raw") {
            let end = rest.find("endraw").map_or(rest.len(), |at| rest[..at].rfind("{%").unwrap_or(at));
            out.push_str(whole);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let changed = texts(if is("for") { looped(tokens) } else { percents(tokens) }).concat();
        if is("macro")
            && let Some(head) = macro_head(&changed, rest, source)
        {
            out.push_str(&head.write(tag.begin, tag.end));
            continue;
        }
        let [open, close] = if tag.kind == '%' { ["{%", "%}"] } else { ["{{", "}}"] };
        out.extend([open, tag.begin, &changed, tag.end, close]);
    }
    out + rest
}

/// The name of a macro that has a default, from the text after `macro`.
fn defaulted(head: &str) -> Option<&str> {
    let (name, parameters) = head.split_once("%}")?.0.split_once('(')?;
    parameters.contains('=').then(|| name.trim())
}

/// Tokens with the arguments of calls of these macros marked.
fn passed(mut tokens: Vec<String>, macros: &[&str]) -> Vec<String> {
    let declares = next(&tokens, 0).is_some_and(|first| tokens[first] == "macro");
    for at in (0..tokens.len()).rev().filter(|_| !declares && !macros.is_empty()) {
        if !macros.contains(&tokens[at].as_str()) || at > 0 && tokens[at - 1] == "." {
            continue;
        }
        let Some(open) = next(&tokens, at + 1).filter(|open| tokens[*open] == "(") else { continue };
        let Some(close) = close_of(&tokens, open) else { continue };
        let marked: Vec<String> = arguments(&tokens[open + 1..close])
            .into_iter()
            .map(|argument| match argument.iter().position(|token| token == "=") {
                Some(sign) => format!("{}({})|{PASSED}", argument[..=sign].concat(), argument[sign + 1..].concat()),
                None => format!("({})|{PASSED}", argument.concat()),
            })
            .collect();
        let marked = self::tokens(&marked.join(", "));
        tokens.splice(open + 1..close, marked);
    }
    tokens
}

struct Tag<'a> {
    /// `%`, `{` or `#`.
    kind: char,
    /// `-` or `+` after the opening and before the closing sign.
    begin: &'a str,
    end: &'a str,
    inside: &'a str,
    length: usize,
}

impl<'a> Tag<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let kind = text[1..].chars().next().filter(|kind| "%{#".contains(*kind))?;
        let close = match kind {
            '%' => "%}",
            '{' => "}}",
            _ => "#}",
        };
        let at = if kind == '#' { 2 + text.get(2..)?.find(close)? } else { closing(text, close)? };
        let body = &text[2..at];
        let begin = ["-", "+"].into_iter().find(|sign| body.starts_with(sign)).unwrap_or_default();
        let body = &body[begin.len()..];
        let end = ["-", "+"].into_iter().find(|sign| body.ends_with(sign)).unwrap_or_default();
        Some(Self { kind, begin, end, inside: &body[..body.len() - end.len()], length: at + 2 })
    }
}

/// Where a tag's closing sign begins, outside quoted texts and, of `}}`, outside braces.
fn closing(text: &str, close: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut quote, mut depth, mut at) = (None, 0, 2);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(bytes[at]),
            (None, _) if depth == 0 && text[at..].starts_with(close) => return Some(at),
            (None, b'{') => depth += 1,
            (None, b'}') => depth -= 1,
            _ => {}
        }
        at += 1;
        while at < text.len() && !text.is_char_boundary(at) {
            at += 1;
        }
    }
    None
}

/// Names and numbers, quoted texts, spaces and single signs (`**`, `//`, `==` and their like as two); together they are the text.
fn tokens(inside: &str) -> Vec<String> {
    let mut out = vec![];
    let mut rest = inside;
    while let Some(first) = rest.chars().next() {
        let run = |kept: fn(char) -> bool| rest.find(|c: char| !kept(c)).unwrap_or(rest.len());
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            '\'' | '"' => {
                let mut escaped = false;
                let end = rest[1..].char_indices().find(|(_, c)| {
                    let closes = *c == first && !escaped;
                    escaped = *c == '\\' && !escaped;
                    closes
                });
                end.map_or(rest.len(), |(at, _)| at + 2)
            }
            c if c.is_whitespace() => run(char::is_whitespace),
            c if c.is_ascii_digit() => number_length(rest),
            c if word(c) => run(|c| c.is_alphanumeric() || c == '_'),
            _ if ["**", "//", "==", "!=", "<=", ">="].iter().any(|sign| rest.starts_with(sign)) => 2,
            c => c.len_utf8(),
        };
        out.push(rest[..length].to_owned());
        rest = &rest[length..];
    }
    out
}

/// The length of a number: digits, and in decimal ones a fraction and an exponent.
fn number_length(text: &str) -> usize {
    let digits = |from: usize| {
        from + text[from..].find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len() - from)
    };
    let has_digit = |at: usize| text[at..].starts_with(|c: char| c.is_ascii_digit());
    let mut end = digits(0);
    if text[end..].starts_with('.') && has_digit(end + 1) {
        end = digits(end + 1);
    }
    let exponent = !text.starts_with("0x") && text[..end].ends_with(['e', 'E']) && text[end..].starts_with(['-', '+']);
    if exponent && has_digit(end + 1) { digits(end + 1) } else { end }
}

/// Tokens with every `a % b` as a filter of a. A product before it (`a * b % c`) is of numbers and stays.
fn percents(tokens: Vec<String>) -> Vec<String> {
    percents_within(tokens, NESTED)
}

/// [`percents`] with at most `depth` right sides in each other: each has its own copy of its tokens.
fn percents_within(mut tokens: Vec<String>, depth: usize) -> Vec<String> {
    let Some(depth) = depth.checked_sub(1) else { return tokens };
    let mut from = 0;
    while let Some(at) = tokens[from..].iter().position(|token| token == "%").map(|at| from + at) {
        from = at + 1;
        let Some(start) = operand_before(&tokens, at) else { continue };
        let before = last_before(&tokens, start).map_or("", |i| tokens[i].as_str());
        if ["*", "/", "//", "**", "-", "+"].contains(&before) && !tokens[start].starts_with(['\'', '"']) {
            continue;
        }
        let Some(end) = operand_behind(&tokens, at) else { continue };
        let argument = percents_within(tokens[at + 1..end].to_vec(), depth).concat();
        let filter = format!("|{PERCENT}({})", argument.trim());
        tokens.splice(at..end, [filter]);
        // Spaces before the filter do no harm; a further `%` takes all of it as its left side.
        from = at;
    }
    tokens
}

/// Tokens with escapes of quoted texts as minijinja reads them, dictionaries' methods by our names, and attributes that may be methods
/// as filters.
fn attributes(mut tokens: Vec<String>) -> Vec<String> {
    for token in tokens.iter_mut().filter(|token| token.starts_with(['\'', '"']) && token.contains('\\')) {
        *token = escapes(token);
    }
    let is_set = next(&tokens, 0).is_some_and(|first| tokens[first] == "set");
    let target = if is_set { tokens.iter().position(|token| token == "=").unwrap_or(0) } else { 0 };
    let mut at = target;
    while let Some(dot) = tokens[at..].iter().position(|token| token == ".").map(|dot| at + dot) {
        at = dot + 1;
        let Some(name) = tokens.get(at).cloned() else { break };
        let called = next(&tokens, at + 1).is_some_and(|open| tokens[open] == "(");
        let [dict, list, string, number] = [DICT, LIST, STRING, NUMBERS].map(|names| is_among(names, &name));
        if called && dict {
            tokens[at].insert_str(0, METHOD);
        } else if !called
            && (dict || list || string || number)
            && let Some(start) = operand_before(&tokens, dot).filter(|start| tokens[*start] != "loop")
        {
            tokens.splice(dot..=at, [format!("|{ATTRIBUTE}('{name}')"), ")".to_owned()]);
            tokens.insert(start, "(".to_owned());
            at += 1;
        }
    }
    tokens
}

/// A quoted text whose escapes mean in minijinja what they mean in Python.
fn escapes(token: &str) -> String {
    let (mut out, mut rest) = (String::new(), token);
    while let Some((before, behind)) = rest.split_once('\\') {
        out += before;
        let sign = behind.chars().next().unwrap_or_default();
        rest = &behind[sign.len_utf8().min(behind.len())..];
        let long = rest.get(..8).and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        match (sign, long) {
            ('/', _) => out += "\\\\/",
            ('a', _) => out += "\\x07",
            ('v', _) => out += "\\x0b",
            ('\n', _) => {}
            // Not an escape of minijinja: an error.
            ('N', _) => out += "\\uN",
            ('U', Some(c)) => {
                out.push(c);
                rest = &rest[8..];
            }
            _ => out.extend(['\\', sign]),
        }
    }
    out + rest
}

/// Tokens with every operand of `~` as Python's text of it. Operands with tests stay: minijinja's text differs from Python's for few values.
fn texts(tokens: Vec<String>) -> Vec<String> {
    const ENDS: [&str; 20] = [
        "~", "+", "-", ",", ":", "=", "==", "!=", "<", ">", "<=", ">=", "in", "not", "and", "or", "if", "else", "elif",
        "set",
    ];
    let blank = |i: usize| tokens[i].trim().is_empty();
    let unary = |i: usize| {
        matches!(tokens[i].as_str(), "-" | "+")
            && last_before(&tokens, i).is_none_or(|before| {
                !is_value(&tokens[before])
                    && ![")", "]", "}"].contains(&tokens[before].as_str())
                    && !tokens[before].starts_with('|')
            })
    };
    let mut operands = std::collections::BTreeSet::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at] == "~") {
        let mut side = |places: &mut dyn Iterator<Item = usize>, direction: i32| {
            let mut depth = 0;
            let mut last = at;
            for i in places {
                let token = tokens[i].as_str();
                depth += direction * nesting(token);
                if depth < 0 || depth == 0 && ENDS.contains(&token) && !unary(i) {
                    break;
                }
                if !blank(i) {
                    last = i;
                }
            }
            let (start, end) = if last < at { (last, at) } else { (at + 1, last + 1) };
            if last != at && !tokens[start..end].iter().any(|token| token == "is" || token == "recursive") {
                operands.insert((start, end));
            }
        };
        side(&mut (0..at).rev(), -1);
        side(&mut (at + 1..tokens.len()), 1);
    }
    let mut out = vec![];
    for i in 0..=tokens.len() {
        for _ in operands.iter().filter(|(_, end)| *end == i) {
            out.push(format!(")|{TEXT} "));
        }
        for _ in operands.iter().filter(|(start, _)| *start == i) {
            out.push("(".to_owned());
        }
        out.extend(tokens.get(i).cloned());
    }
    out
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn is_value(token: &str) -> bool {
    const WORDS: [&str; 9] = ["in", "not", "and", "or", "is", "if", "else", "elif", "set"];
    token.starts_with(['\'', '"']) || is_name(token) && !WORDS.contains(&token)
}

/// Where the operand that ends before `at` begins: a name, text or bracket with its attributes, calls and filters.
fn operand_before(tokens: &[String], at: usize) -> Option<usize> {
    let mut start = at;
    loop {
        let last = last_before(tokens, start)?;
        start = match tokens[last].as_str() {
            ")" | "]" | "}" => opening(tokens, last)?,
            token if is_value(token) || token.starts_with('|') => last,
            _ => return None,
        };
        // Calls, indices, attributes and filters belong to the token before them.
        let before = last_before(tokens, start);
        match before.map(|i| (i, tokens[i].as_str())) {
            Some((i, "." | "|")) => start = i,
            Some((_, token)) if tokens[start].starts_with('|') && token != "%" => {}
            Some((_, token))
                if matches!(tokens[start].as_str(), "(" | "[") && (is_value(token) || [")", "]"].contains(&token)) => {}
            _ => return Some(start),
        }
    }
}

/// Change of the nesting depth at a token.
fn nesting(token: &str) -> i32 {
    match token {
        "(" | "[" | "{" => 1,
        ")" | "]" | "}" => -1,
        _ => 0,
    }
}

/// The first token that is not blank, from here on.
fn next(tokens: &[String], from: usize) -> Option<usize> {
    (from..tokens.len()).find(|i| !tokens[*i].trim().is_empty())
}

/// The last token that is not blank, before `end`.
fn last_before(tokens: &[String], end: usize) -> Option<usize> {
    (0..end).rev().find(|i| !tokens[*i].trim().is_empty())
}

fn opening(tokens: &[String], close: usize) -> Option<usize> {
    let mut depth = 0;
    (0..=close).rev().find(|i| {
        depth += nesting(&tokens[*i]);
        depth == 0
    })
}

/// Behind the operand that begins after `at`.
fn operand_behind(tokens: &[String], at: usize) -> Option<usize> {
    let mut i = next(tokens, at + 1)?;
    while matches!(tokens[i].as_str(), "-" | "+") {
        i = next(tokens, i + 1)?;
    }
    let mut end = match tokens[i].as_str() {
        "(" | "[" | "{" => close_of(tokens, i)? + 1,
        token if is_value(token) => i + 1,
        _ => return None,
    };
    while let Some(i) = next(tokens, end) {
        end = match tokens[i].as_str() {
            "(" | "[" => close_of(tokens, i)? + 1,
            "." | "|" => next(tokens, i + 1)? + 1,
            _ => break,
        };
    }
    Some(end)
}

fn close_of(tokens: &[String], open: usize) -> Option<usize> {
    let mut depth = 0;
    (open..tokens.len()).find(|i| {
        depth += nesting(&tokens[*i]);
        depth == 0
    })
}

/// `for x in y if z recursive` with `(y)|items_of` for y.
fn looped(tokens: Vec<String>) -> Vec<String> {
    let outside = |wanted: &[&str], from: usize| {
        let mut depth = 0;
        (from..tokens.len()).find(|i| {
            depth += nesting(&tokens[*i]);
            depth == 0 && wanted.contains(&tokens[*i].as_str())
        })
    };
    let Some(start) = outside(&["in"], 0) else { return percents(tokens) };
    let end = outside(&["if", "recursive"], start + 1).unwrap_or(tokens.len());
    let items = percents(tokens[start + 1..end].to_vec()).concat();
    let mut out = tokens[..=start].to_vec();
    out.push(format!(" ({})|{ITEMS} ", items.trim()));
    out.extend(percents(tokens[end..].to_vec()));
    out
}

/// The opening tag of a macro that minijinja reads otherwise.
struct MacroHead {
    name: String,
    parameters: Vec<String>,
    /// Statements at the beginning of the body.
    prologue: Vec<String>,
}

impl MacroHead {
    fn write(&self, begin: &str, end: &str) -> String {
        let Self { name, parameters, prologue } = self;
        let head = format!("{{%{begin} macro {name}({})", parameters.join(", "));
        match prologue.split_last() {
            None => format!("{head} {end}%}}"),
            Some((last, others)) => {
                format!("{head} -%}}{{% {} {end}%}}", [others, &[last.clone()][..]].concat().join(" -%}{% "))
            }
        }
    }
}

/// What becomes of `macro name(a, b=1)`; `None` where it stays. `body` begins after the tag.
fn macro_head(inside: &str, body: &str, source: &str) -> Option<MacroHead> {
    let body = body.split("endmacro").next().unwrap_or_default();
    let (before, given) = inside.trim().strip_prefix("macro")?.split_once('(')?;
    let given = given.trim_end().strip_suffix(')')?;
    let name = before.trim().to_owned();
    let mut parameters: Vec<String> = vec![];
    let mut prologue = vec![];
    let mut names: Vec<String> = vec![];
    let receives = given.contains('=');
    for parameter in arguments(&tokens(given)) {
        let text = parameter.concat();
        let (own, default) = match text.split_once('=') {
            Some((own, default)) => (own.trim().to_owned(), Some(default.trim().to_owned())),
            None => (text.trim().to_owned(), None),
        };
        match default {
            Some(default) if parameter.iter().skip(1).any(|token| names.contains(token)) => {
                prologue.push(format!("if {own} is undefined -%}}{{% set {own} = ({default}) -%}}{{% endif"));
                parameters.push(format!("{own}=undefined"));
            }
            _ => parameters.push(text.trim().to_owned()),
        }
        prologue.extend(receives.then(|| format!("set {own} = {own}|{RECEIVED}")));
        names.push(own);
    }
    let names_word = |word: &str| tokens(body).iter().any(|token| token == word);
    if names_word("varargs") {
        let extra: Vec<String> = (0..EXTRA).map(|n| format!("switchyard_extra_{n}")).collect();
        parameters.extend(extra.iter().map(|name| format!("{name}=undefined")));
        prologue.push(format!("set varargs = [{}]|{GIVEN}", extra.join(", ")));
    }
    if names_word("kwargs") {
        let mut more = keywords(source, &name);
        more.retain(|keyword| !names.contains(keyword) && keyword != "caller");
        parameters.extend(more.iter().map(|name| format!("{name}=undefined")));
        let pairs: Vec<String> = more.iter().map(|name| format!("'{name}': {name}")).collect();
        prologue.push(format!("set kwargs = {{{}}}|{GIVEN}", pairs.join(", ")));
    }
    (!prologue.is_empty()).then_some(MacroHead { name, parameters, prologue })
}

/// The arguments between brackets, without the commas between them.
fn arguments(tokens: &[String]) -> Vec<&[String]> {
    let mut depth = 0;
    let outer = |token: &String| {
        depth += nesting(token);
        depth == 0 && token == ","
    };
    tokens.split(outer).filter(|argument| argument.iter().any(|token| !token.trim().is_empty())).collect()
}

/// Names of keyword arguments in all calls of a macro, in the order in which they come first.
fn keywords(source: &str, name: &str) -> Vec<String> {
    let mut found: Vec<String> = vec![];
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        rest = &rest[at..];
        let Some(tag) = Tag::read(rest) else {
            rest = &rest[1..];
            continue;
        };
        rest = &rest[tag.length..];
        let tokens = if tag.kind == '#' { vec![] } else { tokens(tag.inside) };
        for at in (0..tokens.len()).filter(|at| tokens[*at] == name) {
            let Some(open) = next(&tokens, at + 1) else { continue };
            let Some(close) = close_of(&tokens, open).filter(|_| tokens[open] == "(") else { continue };
            for argument in arguments(&tokens[open + 1..close]) {
                let words: Vec<&String> = argument.iter().filter(|token| !token.trim().is_empty()).collect();
                if let [keyword, sign, ..] = &words[..]
                    && *sign == "="
                    && !found.contains(keyword)
                {
                    found.push((*keyword).clone());
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{NESTED, PERCENT, rewrite};

    /// Each right side has its own copy of its tokens.
    #[test]
    fn nested_remainders_are_rewritten_to_a_bounded_depth() {
        let nested = format!("{{{{ {}1{} }}}}", "7 % (".repeat(1000), ")".repeat(1000));
        assert_eq!(rewrite(&nested).matches(PERCENT).count(), NESTED);
    }

    #[test]
    fn what_needs_no_change_stays() {
        for same in [
            "{{ a + 'b % c' }}{# for x in y % #}",
            "{% raw %}{% for x in y %}{{ 1 % 2 }}{% endraw %}",
            "{%- if a is defined -%} 5 % of {\"a\": {\"b\": 1}} {%- endif %}",
            "{{ {'a': {'b': 1}}['a'] }} { } {",
            "{{ loop.index0 * 2 % 3 }}",
        ] {
            assert_eq!(rewrite(same), same);
        }
    }
}
