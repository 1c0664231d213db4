//! The licence that a model's files name: `general.license` of a GGUF, `license` in the front matter of a folder's `README.md`.

use anyhow::Result;

use super::ModelFiles;
use super::text::Source;
use crate::guard::read_text;

impl ModelFiles {
    /// The license of the model; that of the base if the card of a PEFT folder names none.
    pub fn license(&self) -> Result<Option<String>> {
        self.first(|source| match source {
            Source::Gguf(file) => file.license(),
            Source::Folder(dir) => Ok(read_text(dir.join("README.md")).ok().and_then(|card| front_matter(&card))),
        })
    }
}

/// `license` of the YAML between the first two lines `---`.
fn front_matter(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim_end);
    lines.next().filter(|first| *first == "---")?;
    let mut inside = lines.take_while(|line| *line != "---");
    let value = inside.find_map(|line| line.strip_prefix("license:"))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_read_from_the_front_matter_alone() {
        assert_eq!(
            front_matter("---\ntags: [a]\nlicense: \"apache-2.0\"\r\n---\n# x\n").as_deref(),
            Some("apache-2.0")
        );
        for without in ["# x\nlicense: mit\n", "---\ntags: [a]\n---\nlicense: mit\n", "---\nlicense:\n---\n", ""] {
            assert_eq!(front_matter(without), None, "{without:?}");
        }
    }
}
