//! Files that appear whole or not at all. Knows bytes and paths.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Writes `bytes` to `path`: into `<path>.tmp`, synced, then renamed. Makes the folder if it is missing.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary(path);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    }
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// `<path>.tmp` (ignored by git): keeps the whole name, so that `a.csv` and `a.parquet` do not collide.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}
