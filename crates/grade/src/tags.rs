//! The answering part of a response: reasoning models write `<think>…</think>` and `<answer>…</answer>`.

use std::borrow::Cow;

use super::words;

const THINKING: [&str; 4] = ["think", "thinking", "thought", "reasoning"];

/// The part of a text that may state an answer: the text after the thinking, or inside the last `<answer>` of it if there is
/// one. Thinking that does not end states nothing.
pub(crate) fn answering(text: &str) -> Cow<'_, str> {
    if !text.contains('<') {
        return Cow::Borrowed(text);
    }
    let said = behind_thinking(text);
    let Some(inside) = tagged(said).map(str::trim) else { return Cow::Borrowed(said) };
    let marked = ["\\boxed", "\\fbox", "####", "$", "\\(", "\\[", "\n"].iter().any(|mark| inside.contains(mark));
    // A formula, a number or a letter alone is marked by its tag as by a box.
    if inside.is_empty() || marked || words::has_word(&without_commands(inside)) {
        Cow::Borrowed(inside)
    } else {
        Cow::Owned(format!("\\boxed{{{inside}}}"))
    }
}

fn behind_thinking(text: &str) -> &str {
    let lower = text.to_ascii_lowercase();
    let end = THINKING.iter().filter_map(|name| behind(&lower, name)).max().unwrap_or(0);
    let open = THINKING.iter().filter_map(|name| lower[end..].find(&format!("<{name}>"))).min();
    &text[end..open.map_or(text.len(), |at| end + at)]
}

/// End of the last closing tag of this name.
fn behind(lower: &str, name: &str) -> Option<usize> {
    let tag = format!("</{name}>");
    Some(lower.rfind(&tag)? + tag.len())
}

/// The inside of the last `<answer>`, else of the last `<final_answer>` or `<final>`; its closing tag may be missing, where generation
/// stopped at it.
fn tagged(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    ["answer", "final_answer", "final"].into_iter().find_map(|name| {
        let tag = format!("<{name}>");
        let start = lower.rfind(&tag)? + tag.len();
        let end = lower[start..].find(&format!("</{name}>")).map_or(text.len(), |at| start + at);
        Some(&text[start..end])
    })
}

/// A text without the names of LaTeX's commands and without `\text{…}`.
fn without_commands(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let name = part.len() - part.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let rest = &part[name..];
        let styled = part.starts_with("text") || part.starts_with("mathrm") || part.starts_with("mbox");
        out.push(' ');
        out.push_str(if styled { rest.split_once('}').map_or("", |(_, behind)| behind) } else { rest });
    }
    out
}
