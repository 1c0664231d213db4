//! The licence that a model's files name: `general.license` of a GGUF, `license` in the front matter of a folder's `README.md`.

use std::path::Path;

use anyhow::Result;

use super::ModelFiles;
use super::text::Source;
use crate::guard::read_text;

impl ModelFiles {
    /// The license of the model; that of the base if the card of a PEFT folder names none.
    pub fn license(&self) -> Result<Option<String>> {
        for source in &self.text {
            let found = match source {
                Source::Gguf(file) => file.license()?,
                Source::Folder(dir) => read_card(&dir.join("README.md")),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// The license that a card names; `None` if the card is not text.
fn read_card(path: &Path) -> Option<String> {
    read_text(path).ok().and_then(|text| front_matter(&text, "license"))
}

/// A plain value of the YAML between the first two lines `---`.
fn front_matter(text: &str, key: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim_end);
    lines.next().filter(|first| *first == "---")?;
    let mut inside = lines.take_while(|line| *line != "---");
    let value = inside.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_read_from_the_front_matter_alone() {
        let read = |text: &str| front_matter(text, "license");
        assert_eq!(read("---\ntags: [a]\nlicense: \"apache-2.0\"\r\n---\n# x\n").as_deref(), Some("apache-2.0"));
        for without in ["# x\nlicense: mit\n", "---\ntags: [a]\n---\nlicense: mit\n", "---\nlicense:\n---\n", ""] {
            assert_eq!(read(without), None, "{without:?}");
        }
    }
}
