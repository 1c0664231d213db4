//! Escapes text for HTML.

use crate::report::letters::sanitize_char;

/// Safe between tags and inside quoted attributes.
pub(in crate::report) fn text(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(sanitize_char(c)),
        }
    }
    out
}

/// A token's text with visible spaces.
pub(super) fn token(raw: &str) -> String {
    let shown: String = raw
        .chars()
        .map(|c| match c {
            '\n' => '⏎',
            '\t' => '⇥',
            c => c,
        })
        .collect();
    text(if shown.trim().is_empty() { "␣" } else { shown.trim() })
}

/// `` `code` `` of a note as `<code>`, the rest escaped. A backtick without a second one is text.
pub(super) fn prose(raw: &str) -> String {
    let parts: Vec<&str> = raw.split('`').collect();
    let mut out = String::new();
    for (i, part) in parts.iter().enumerate() {
        match (i % 2 == 1, i + 1 < parts.len()) {
            (true, true) => out += &format!("<code>{}</code>", text(part)),
            (true, false) => out += &format!("`{}", text(part)),
            (false, _) => out += &text(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_escapes() {
        assert_eq!(super::text("<swi> & \"x\" 'y'\u{0}"), "&lt;swi&gt; &amp; &quot;x&quot; &#39;y&#39;\u{fffd}");
        assert_eq!(super::token("\n"), "⏎");
        assert_eq!(super::token(" "), "␣");
        assert_eq!(super::token(" a\nb "), "a⏎b");
        assert_eq!(super::prose("run `a<b`."), "run <code>a&lt;b</code>.");
        assert_eq!(super::prose("a ` <b"), "a ` &lt;b");
        assert_eq!(super::prose("`a` ` b"), "<code>a</code> ` b");
    }
}
