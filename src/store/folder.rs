//! Copies of whole folders.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Copies a folder with all that is in it; every file is on the disk when it returns.
///
/// # Errors
/// What cannot be read or written, by path.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{}: cannot make the folder", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("{}: cannot list", from.display()))? {
        let entry = entry.with_context(|| format!("{}: cannot list", from.display()))?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .and_then(|_| fs::File::open(&target)?.sync_all())
                .with_context(|| format!("{}: cannot copy to {}", entry.path().display(), target.display()))?;
        }
    }
    Ok(())
}
