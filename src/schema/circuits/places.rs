//! Orders named places in records of circuits (`latent[2]`, one block back) as they occur in a text.

/// Sort key of a place, from left to right: `prompt`, `source`, `earlier`, `text`; then block by block, the last one at the end; then
/// `readout` and places with other names (`position[i]`, by number).
pub fn place_order(place: &str, back: Option<usize>) -> impl Ord {
    let number = place_number(place);
    let outside = ["prompt", "source", "earlier", "text"].iter().position(|name| *name == place);
    let within = match place {
        "swi" => 0,
        "swi_end" => usize::MAX,
        _ => number.unwrap_or(0),
    };
    let part = match (outside, back, place) {
        (Some(at), ..) => at,
        (None, Some(_), _) => 4,
        (None, None, "readout") => 5,
        (None, None, _) => 6,
    };
    (part, std::cmp::Reverse(back.unwrap_or(0)), within, place.to_owned())
}

/// `latent[2]`; of an earlier block `latent[2], 1 back`.
pub fn place_name(place: &str, back: Option<usize>) -> String {
    match back.filter(|back| *back > 0) {
        Some(back) => format!("{place}, {back} back"),
        None => place.to_owned(),
    }
}

/// The number in brackets, of `latent[2]`.
pub fn place_number(place: &str) -> Option<usize> {
    place.strip_suffix(']')?.rsplit_once('[')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{place_name, place_order};

    #[test]
    fn places_are_ordered_as_they_occur() {
        let sorted = [
            ("prompt", None),
            ("source", None),
            ("text", None),
            ("swi", Some(1)),
            ("latent[2]", Some(1)),
            ("swi_end", Some(1)),
            ("swi", Some(0)),
            ("latent[2]", Some(0)),
            ("latent[10]", Some(0)),
            ("readout", None),
            ("position[9]", None),
            ("position[10]", None),
        ];
        assert!(sorted.is_sorted_by_key(|(place, back)| place_order(place, *back)));
        assert_eq!(place_name("latent[2]", Some(1)), "latent[2], 1 back");
        assert_eq!(place_name("latent[2]", Some(0)), "latent[2]");
    }
}
