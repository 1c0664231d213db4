//! Fractions as people type them: `1½`, `1 1/2`, `1⁄2`. They become improper fractions (`3/2`), which every later rule reads.

use std::borrow::Cow;

const VULGAR: [(char, u32, u32); 18] = [
    ('½', 1, 2),
    ('⅓', 1, 3),
    ('⅔', 2, 3),
    ('¼', 1, 4),
    ('¾', 3, 4),
    ('⅕', 1, 5),
    ('⅖', 2, 5),
    ('⅗', 3, 5),
    ('⅘', 4, 5),
    ('⅙', 1, 6),
    ('⅚', 5, 6),
    ('⅐', 1, 7),
    ('⅛', 1, 8),
    ('⅜', 3, 8),
    ('⅝', 5, 8),
    ('⅞', 7, 8),
    ('⅑', 1, 9),
    ('⅒', 1, 10),
];
const SLASHES: [char; 2] = ['/', '⁄'];
/// Maximum digits of a part.
const LONGEST: usize = 9;

/// Replaces every typed fraction by an improper one; removes the spaces of a text that is a ratio (`1 : 2`).
pub(crate) fn improper(text: &str) -> Cow<'_, str> {
    let typed = |c: char| c == '⁄' || VULGAR.iter().any(|(sign, ..)| *sign == c);
    if !text.contains(|c: char| typed(c) || c == '/' || c == ':') {
        return Cow::Borrowed(text);
    }
    if let Some(ratio) = ratio(text) {
        return Cow::Owned(ratio);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let free = !out.ends_with(|c: char| c.is_alphanumeric() || ".,/^_\\".contains(c));
        match fraction(rest).filter(|_| free) {
            Some((above, below, length)) => {
                rest = &rest[length..];
                let joined = rest.starts_with(char::is_alphanumeric);
                out.push_str(&if joined { format!("({above}/{below})") } else { format!("{above}/{below}") });
            }
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    Cow::Owned(out)
}

/// A mixed number, a sign such as ½ or a fraction with a fraction slash at the beginning of a text, and its length.
fn fraction(text: &str) -> Option<(u64, u64, usize)> {
    let (whole, after) = match digits(text) {
        Some((whole, n)) => (whole, &text[n..]),
        None => (0, text),
    };
    let gap = after.len() - after.trim_start_matches([' ', '\u{a0}', '\u{202f}']).len();
    let (above, below, end) = if let Some(part) = vulgar(&after[gap..]).filter(|_| gap == 0 || whole > 0) {
        part
    } else if whole > 0 && gap > 0 {
        // A mixed number's fraction is below one (`1 1/2`); `12 5/3` are two numbers.
        slashed(&after[gap..]).filter(|(above, below, _)| 0 < *above && above < below)?
    } else if gap == 0 && after.starts_with('⁄') {
        return slashed(text);
    } else {
        return None;
    };
    let length = text.len() - after.len() + gap + end;
    Some((whole * below + above, below, length))
}

fn vulgar(text: &str) -> Option<(u64, u64, usize)> {
    let sign = text.chars().next()?;
    let (_, above, below) = VULGAR.iter().find(|(other, ..)| *other == sign)?;
    Some(((*above).into(), (*below).into(), sign.len_utf8()))
}

/// `1/2` of whole numbers, not followed by a character that would make it part of another expression.
fn slashed(text: &str) -> Option<(u64, u64, usize)> {
    let (above, n) = digits(text)?;
    let slash = text[n..].chars().next().filter(|c| SLASHES.contains(c))?;
    let from = n + slash.len_utf8();
    let (below, m) = digits(&text[from..])?;
    let behind = &text[from + m..];
    let more = behind.starts_with(|c: char| c.is_ascii_digit() || SLASHES.contains(&c) || "^!_".contains(c))
        || behind.strip_prefix(['.', ',']).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    (below > 0 && !more).then_some((above, below, from + m))
}

fn digits(text: &str) -> Option<(u64, usize)> {
    let n = text.bytes().take_while(u8::is_ascii_digit).count();
    if n == 0 || n > LONGEST || n > 1 && text.starts_with('0') { None } else { Some((text[..n].parse().ok()?, n)) }
}

/// The ratio without spaces if it is the whole text: `1 : 2`, `1 : 2 : 3`.
fn ratio(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.trim().split(':').map(str::trim).collect();
    let numbers = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    (parts.len() > 1 && numbers).then(|| parts.join(":"))
}

#[cfg(test)]
mod tests {
    use super::improper;

    #[test]
    fn typed_fractions_are_improper_ones() {
        for (typed, improper_one) in [
            ("1½", "3/2"),
            ("½", "1/2"),
            ("-2 ¾ cups", "-11/4 cups"),
            ("1 1/2", "3/2"),
            ("33 1/3%", "100/3%"),
            ("1⁄2", "1/2"),
            ("2½x", "(5/2)x"),
            ("1 : 2", "1:2"),
        ] {
            assert_eq!(improper(typed), improper_one, "{typed}");
        }
        for same in
            ["1/2", "12 5/3", "x^2 1/2/3", "1.5 1/2", "3 1/2^2", "10:30 am", "Step 1 : 2 apples", "a1/2", "1 0/2"]
        {
            assert_eq!(improper(same), same);
        }
    }
}
