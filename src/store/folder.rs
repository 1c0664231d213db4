//! Copies of whole folders of finished work.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Copies a folder with all that is in it; every file is on the disk when it returns. Weights are shared where the file system can:
/// nothing ever writes into them, they are only replaced whole.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{}: cannot make the folder", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("{}: cannot list", from.display()))? {
        let entry = entry.with_context(|| format!("{}: cannot list", from.display()))?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            let weights = target.extension().is_some_and(|ending| ending == "safetensors");
            let weights = weights && fs::symlink_metadata(entry.path()).is_ok_and(|file| file.is_file());
            let shared = weights && fs::hard_link(entry.path(), &target).is_ok();
            let copied = if shared { Ok(0) } else { fs::copy(entry.path(), &target) };
            copied
                .and_then(|_| fs::File::open(&target)?.sync_all())
                .with_context(|| format!("{}: cannot copy to {}", entry.path().display(), target.display()))?;
        }
    }
    Ok(())
}
