//! The certificate inside a checkpoint's model card (`README.md`): `train` writes a place for it, and the experiment `card` fills it.

use std::path::Path;

use anyhow::{Context, Result};

use super::write_atomic;
use crate::guard::read_text;

/// The model card of a checkpoint folder.
pub const MODEL_CARD: &str = "README.md";

const OPEN: &str = "<!-- certificate -->\n";
const CLOSE: &str = "<!-- /certificate -->\n";

/// Markdown between the markers.
pub(crate) fn certificate(markdown: &str) -> String {
    format!("{OPEN}{markdown}{CLOSE}")
}

/// Replaces what is between the markers of the model card in `folder`. Returns whether there is such a card.
pub(crate) fn put_certificate(folder: &Path, markdown: &str) -> Result<bool> {
    let path = folder.join(MODEL_CARD);
    // A link, as in the hub's cache, is another file's name.
    if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(false);
    }
    let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
    let parts = text.split_once(OPEN).and_then(|(before, rest)| Some((before, rest.split_once(CLOSE)?.1)));
    let Some((before, after)) = parts else { return Ok(false) };
    write_atomic(&path, format!("{before}{}{after}", certificate(markdown)).as_bytes())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_replaces_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!put_certificate(folder.path(), "- yes\n").expect("no card"));
        let path = folder.path().join(MODEL_CARD);
        std::fs::write(&path, "# A user's card\n").expect("written");
        assert!(!put_certificate(folder.path(), "- yes\n").expect("no markers"));
        std::fs::write(&path, format!("before\n{}after\n", certificate("none\n"))).expect("written");
        for lines in ["- no\n", "- yes\n- yes\n"] {
            assert!(put_certificate(folder.path(), lines).expect("a card"));
            let text = std::fs::read_to_string(&path).expect("text");
            assert_eq!(text, format!("before\n{OPEN}{lines}{CLOSE}after\n"));
        }
    }
}
