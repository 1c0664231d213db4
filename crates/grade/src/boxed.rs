//! Finds the content of boxes. Knows braces and which boxes belong to one answer, not their contents.

/// Which boxes to read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boxes {
    All,
    /// The last ones that belong together.
    Last,
}

/// The content of `\boxed{…}` and `\fbox{…}`, joined by commas; the text itself if it has no box.
pub fn boxed(text: &str, mode: Boxes) -> String {
    if !text.contains("\\boxed") && !text.contains("\\fbox") {
        return text.to_string();
    }
    let mut results: Vec<&str> = vec![];
    let (mut limit, mut last) = (text.len(), None);
    loop {
        let head = &text[..limit];
        let (b, f) = (head.rfind("\\boxed"), head.rfind("\\fbox"));
        let (start, n) = match (b, f) {
            (None, None) => break,
            (b, f) if b > f => (b.unwrap_or(0), 6),
            (_, f) => (f.unwrap_or(0), 5),
        };
        let rest = head[start + n..].trim_start();
        let open = limit - rest.len();
        if rest.is_empty() {
            break;
        }
        let Some(close) = rest.starts_with('{').then(|| closing(rest)).flatten() else {
            if results.is_empty() {
                results.push(&text[open..]);
            }
            break;
        };
        let content = rest[1..close].trim();
        if let (Boxes::Last, Some(next)) = (mode, last)
            && !belongs(&text[open + close + 1..next], content, results.last().copied().unwrap_or(""))
        {
            break;
        }
        if results.last() != Some(&content) {
            results.push(content);
        }
        last = Some(start);
        limit = start;
    }
    if results.is_empty() {
        return text.to_string();
    }
    results.reverse();
    let first = results.remove(0).to_owned();
    results.into_iter().fold(first, |joined, next| {
        // Two numbers are not groups of thousands: 1 and 234 are not 1,234.
        let three = next.bytes().take_while(u8::is_ascii_digit).count() == 3;
        let gap = if three && joined.ends_with(|c: char| c.is_ascii_digit()) { ", " } else { "," };
        joined + gap + next
    })
}

/// Position of the brace that closes the one at the start of `s`.
pub(crate) fn closing(s: &str) -> Option<usize> {
    let mut depth = 0;
    for (i, b) in s.bytes().enumerate() {
        match b {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether two boxes are parts of one answer: close together, or joined by "and", "or", a comma or a semicolon.
fn belongs(between: &str, content: &str, next: &str) -> bool {
    let n = between.chars().count();
    let word = |w: &str| {
        between.match_indices(w).any(|(i, _)| {
            let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            !part(between[..i].chars().next_back()) && !part(between[i + w.len()..].chars().next())
        })
    };
    n < 10 || (next != content && n < 70 && (between.contains([',', ';']) || word("and") || word("or")))
}
