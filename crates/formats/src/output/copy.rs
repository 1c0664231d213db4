//! Copies of whole folders of finished work.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::ensure_inside;

/// Copies a folder recursively; every file is on disk on return. Weights are reflinked or hard-linked if the file system can: programs
/// never modify them in place, only replace them whole.
///
/// # Errors
/// A link that leads out of its folder; a device or a pipe; a file that cannot be read or written.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{}: cannot make the folder", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("{}: cannot list", from.display()))? {
        let entry = entry.with_context(|| format!("{}: cannot list", from.display()))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        ensure_inside(&source)?;
        if source.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            ensure!(source.is_file(), "{}: a device or a pipe, which cannot be copied", source.display());
            let weights = target.extension().is_some_and(|ending| ending == "safetensors");
            let weights = weights && fs::symlink_metadata(&source).is_ok_and(|file| file.is_file());
            let shared = weights && fs::hard_link(&source, &target).is_ok();
            let copied = if shared { Ok(0) } else { fs::copy(&source, &target) };
            copied
                .and_then(|_| fs::File::open(&target)?.sync_all())
                .with_context(|| format!("{}: cannot copy to {}", source.display(), target.display()))?;
        }
    }
    Ok(())
}
