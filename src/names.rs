//! Suggests a known name for a mistyped one.

/// `` (did you mean `zero`?)`` if a known name is close enough, else empty.
pub fn suggest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known.into_iter().map(|name| (distance(name, written), name)).min();
    // Up to a third of the letters may be wrong, or the name may be a prefix.
    let begun = |name: &str| written.len() > 2 && name.starts_with(written);
    let close = |name: &str, off: usize| 3 * off <= name.len().max(written.len()) || begun(name);
    let near = near.filter(|(off, name)| close(name, *off));
    near.map_or_else(String::new, |(_, name)| format!(" (did you mean `{name}`?)"))
}

/// Levenshtein distance of two short names.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitution = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_meant_and_a_far_one_is_not() {
        let known = ["zero", "random_norm", "resample"];
        assert_eq!(suggest("zeroed", known), " (did you mean `zero`?)");
        assert_eq!(suggest("resampel", known), " (did you mean `resample`?)");
        assert_eq!(suggest("random", known), " (did you mean `random_norm`?)");
        assert_eq!(suggest("nothing_like_it", known), "");
        assert_eq!(suggest("zero", []), "");
    }
}
