//! `fixtures/…`, as README writes it, from any folder.

use std::path::{Path, PathBuf};

/// The checkout that the program was built from.
const CHECKOUT: &str = env!("CARGO_MANIFEST_DIR");

/// A path as it is; of one below `fixtures/` that is not in this folder, the committed one, if it is still there.
pub(crate) fn committed(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    let there = Path::new(CHECKOUT).join(path);
    if path.starts_with("fixtures") && !path.exists() && there.exists() { there } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here_or_nowhere_or_elsewhere_stays_as_it_is() {
        for path in ["fixtures/micro", "fixtures/nothing", "src/lib.rs", "/fixtures/micro", "Qwen/Qwen3-8B"] {
            assert_eq!(committed(path), Path::new(path));
        }
    }
}
