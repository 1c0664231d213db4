//! Replaces characters that must not come from records into a page, a figure or a table.

/// The character, or U+FFFD for a control character, which HTML forbids, or one that reorders text or is invisible (Unicode's
/// `Bidi_Control`, zero-width spaces, tags).
pub(super) fn sanitize_char(c: char) -> char {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let hidden = matches!(c, '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    if turns || hidden || (c.is_control() && c != '\n' && c != '\t') { '\u{fffd}' } else { c }
}

/// Applies [`sanitize_char`] to a text.
pub(super) fn sanitize(raw: &str) -> String {
    raw.chars().map(sanitize_char).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn characters_that_reorder_or_hide_text_are_replaced() {
        assert_eq!(
            super::sanitize("a\u{202e}b\u{2066}c\u{200f}d\u{feff}e\u{1b}[31m\n"),
            "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}[31m\n"
        );
        // Right-to-left scripts do not need these characters, and joiners are parts of words.
        assert_eq!(super::sanitize("שלום می\u{200c}خواهم"), "שלום می\u{200c}خواهم");
    }
}
