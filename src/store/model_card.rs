//! The certificate inside a checkpoint's model card (`README.md`): `train` writes a place for it, and the experiment `card` fills it.

use std::path::Path;

use anyhow::{Context, Result};

use super::write_atomic;
use crate::guard::read_text;

/// The model card of a checkpoint folder.
pub const MODEL_CARD: &str = "README.md";

const OPEN: &str = "<!-- certificate -->\n";
const CLOSE: &str = "<!-- /certificate -->\n";
/// The first words of a certificate; the number of its problems follows.
const PROBLEMS: &str = "`probe card` on ";

/// Markdown between the markers.
pub(crate) fn certificate(markdown: &str) -> String {
    format!("{OPEN}{markdown}{CLOSE}")
}

/// Result of [`put_certificate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Written,
    /// The folder has no model card with a place for it.
    NoCard,
    /// The certificate there is of this many problems, which are more.
    Larger(usize),
}

/// Replaces what is between the markers of the model card in `folder`, unless that is a certificate of more problems.
pub(crate) fn put_certificate(folder: &Path, problems: usize, markdown: &str) -> Result<Placement> {
    let path = folder.join(MODEL_CARD);
    // A link, as in the hub's cache, is another file's name.
    if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(Placement::NoCard);
    }
    let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
    let parts = text.split_once(OPEN).and_then(|(before, rest)| Some((before, rest.split_once(CLOSE)?)));
    let Some((before, (old, after))) = parts else { return Ok(Placement::NoCard) };
    let measured = old.strip_prefix(PROBLEMS).and_then(|rest| rest.split_once(' ')?.0.parse().ok());
    if let Some(more) = measured.filter(|measured| *measured > problems) {
        return Ok(Placement::Larger(more));
    }
    let certificate = certificate(&format!("{PROBLEMS}{problems} problems, {markdown}"));
    write_atomic(&path, format!("{before}{certificate}{after}").as_bytes())?;
    Ok(Placement::Written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_replaces_one_of_no_more_problems_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |problems, lines| put_certificate(folder.path(), problems, lines).expect("a card that can be read");
        assert_eq!(put(100, "- yes\n"), Placement::NoCard);
        let path = folder.path().join(MODEL_CARD);
        std::fs::write(&path, "# A user's card\n").expect("written");
        assert_eq!(put(100, "- yes\n"), Placement::NoCard);
        std::fs::write(&path, format!("before\n{}after\n", certificate("none\n"))).expect("written");
        let text = |problems: usize, lines: &str| {
            format!("before\n{OPEN}`probe card` on {problems} problems, {lines}{CLOSE}after\n")
        };
        for (problems, lines) in [(100, "- no\n"), (500, "- yes\n- yes\n"), (500, "- no\n")] {
            assert_eq!(put(problems, lines), Placement::Written);
            assert_eq!(std::fs::read_to_string(&path).expect("text"), text(problems, lines));
        }
        assert_eq!(put(100, "- yes\n"), Placement::Larger(500));
        assert_eq!(std::fs::read_to_string(&path).expect("text"), text(500, "- no\n"));
    }
}
