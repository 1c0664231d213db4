//! A name inside a folder: the only way from a name in a file to a path that is read, written or removed.

use std::fmt;
use std::ops::Deref;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// A single, plain file name: it cannot lead out of its folder on any system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Inside(String);

impl Inside {
    /// # Errors
    /// Not a file name: empty, a path, `..`, control characters, or too long for file systems.
    pub fn parse(name: &str) -> Result<Self> {
        let mut parts = Path::new(name).components();
        let one = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
        let plain = !name.contains(|c: char| matches!(c, '/' | '\\' | ':') || c.is_control());
        ensure!(
            one && plain && name.len() <= 250,
            "{:?} is not the name of something inside a folder",
            name.chars().take(80).collect::<String>()
        );
        Ok(Self(name.to_owned()))
    }

    /// Its path in a folder.
    pub fn join_to(&self, folder: &Path) -> PathBuf {
        folder.join(&self.0)
    }

    /// The path of its file with this ending.
    pub fn file(&self, folder: &Path, ending: &str) -> PathBuf {
        folder.join(format!("{}.{ending}", self.0))
    }
}

impl TryFrom<String> for Inside {
    type Error = anyhow::Error;

    fn try_from(name: String) -> Result<Self> {
        Self::parse(&name)
    }
}

impl From<Inside> for String {
    fn from(name: Inside) -> Self {
        name.0
    }
}

impl Deref for Inside {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Inside {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_folder() {
        for good in ["sft", "latent_intervention-micro-s1", "state-0000003", "a..b", ".hidden", "Qwen3-8B.Q4_0", "é"] {
            let name = Inside::parse(good).expect(good);
            assert_eq!(name.join_to(Path::new("x")).parent(), Some(Path::new("x")), "{good}");
        }
        let long = "x".repeat(251);
        for bad in
            ["", ".", "..", "/", "/x", "../x", "a/b", "a/", "./a", "a\\b", "..\\x", "C:", "C:x", "a\0b", "a\nb", &long]
        {
            let said = Inside::parse(bad).expect_err(bad).to_string();
            assert!(said.contains("inside a folder"), "{said}");
            let quoted = serde_json::to_string(bad).expect("JSON");
            assert!(serde_json::from_str::<Inside>(&quoted).is_err(), "{bad}");
        }
    }
}
