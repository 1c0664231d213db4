//! Limits the size of a page: if it would be too large, folded parts are compressed, the largest first. The script unpacks them after the first
//! paint, so that the browser's search and links find their content; without JavaScript a packed part names files with the same content. Knows
//! sizes, not contents.

use anyhow::Result;

use crate::report::live::zipped;

/// Maximum bytes of a page, as far as packing can reach it.
pub(super) const MOST: usize = 3_000_000;

/// A piece of the page, in its order.
pub(super) enum Piece {
    Html(String),
    /// Content of a `<details>`; `files` have the same content.
    Folded {
        html: String,
        files: String,
    },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Html(html) | Piece::Folded { html, .. } => html.len(),
        }
    }
}

/// Joins all pieces. `other`: number of bytes around them.
pub(super) fn joined(mut pieces: Vec<Piece>, other: usize) -> Result<String> {
    loop {
        let all: usize = pieces.iter().map(Piece::len).sum();
        let largest =
            pieces.iter_mut().filter(|piece| matches!(piece, Piece::Folded { .. })).max_by_key(|piece| piece.len());
        let Some(largest) = largest.filter(|_| all + other > MOST) else { break };
        if let Piece::Folded { html, files } = largest {
            *largest = Piece::Html(packed(html, files)?);
        }
    }
    Ok(pieces
        .into_iter()
        .map(|piece| match piece {
            Piece::Html(html) | Piece::Folded { html, .. } => html,
        })
        .collect())
}

fn packed(html: &str, files: &str) -> Result<String> {
    Ok(format!(
        "<div class=\"packed\"><script type=\"application/octet-stream\">{}</script><p class=\"note\">This part is \
         compressed to keep the page small; it needs JavaScript. {files}</p></div>\n",
        zipped(html.as_bytes())?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> Vec<Piece> {
        let folded = |text: &str, n| Piece::Folded { html: text.repeat(n), files: "See files.".into() };
        vec![Piece::Html("first".into()), folded("small ", 10), folded("large ", 200_000), Piece::Html("last".into())]
    }

    #[test]
    fn the_largest_part_is_packed_where_all_would_be_too_heavy() {
        let whole = joined(pieces(), 0).expect("a page");
        assert!(whole.starts_with("firstsmall ") && whole.ends_with("last") && !whole.contains("packed"));
        let light = joined(pieces(), MOST - 500_000).expect("a page");
        assert!(light.contains("small small") && !light.contains("large") && light.contains("See files."));
        assert!(light.len() < 500_000, "{} bytes", light.len());
        let heavy = joined(pieces(), MOST).expect("a page");
        assert_eq!(
            heavy.matches("class=\"packed\"").count(),
            2,
            "what cannot get light enough is packed as far as it goes"
        );
    }
}
