//! Characters that must not come from rows into a page, a figure or a table. Knows Unicode, no format.

/// The character, or a replacement: for control characters, which HTML forbids, and for characters that reorder text or are invisible
/// (Unicode's `Bidi_Control`, zero-width spaces, tags).
pub(super) fn harmless(c: char) -> char {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let hidden = matches!(c, '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    if turns || hidden || (c.is_control() && c != '\n' && c != '\t') { '\u{fffd}' } else { c }
}

/// Applies [`harmless`] to a text.
pub(super) fn all(raw: &str) -> String {
    raw.chars().map(harmless).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_turns_or_hides_text_is_shown_and_letters_stay() {
        assert_eq!(
            super::all("a\u{202e}b\u{2066}c\u{200f}d\u{feff}e\u{1b}[31m\n"),
            "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}[31m\n"
        );
        // Right-to-left scripts do not need these characters, and joiners are parts of words.
        assert_eq!(super::all("שלום می\u{200c}خواهم"), "שלום می\u{200c}خواهم");
    }
}
