//! One process at a time in a folder or at a file. The system lets go of a lock when its process ends, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Held until dropped.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes `<folder>/.lock` for as long as the work lasts; `doing` is what another process is told.
    ///
    /// # Errors
    /// A folder in which another process works, by its number and what it is doing; one that cannot be written.
    pub fn take(folder: &Path, doing: &str) -> Result<Self> {
        let mut file = open(folder, ".lock")?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                file.read_to_string(&mut owner).ok();
                let owner = if owner.is_empty() { "another process".into() } else { owner };
                bail!("{}: {owner} works here: wait for its end, or name another folder", folder.display());
            }
            // A file system without locks: what they guard against stays possible there.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("{}: cannot lock", folder.display()));
            }
        }
        // Only for the other's message: without it the lock holds all the same.
        let _ = file.set_len(0).and_then(|()| write!(file, "process {} ({doing})", std::process::id()));
        Ok(Self { _file: file })
    }

    /// Takes `<folder>/.manifest.lock` when it is free, for a change that lasts no time: a file of its own, so that it never
    /// waits for work.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn wait(folder: &Path) -> Result<Self> {
        let file = open(folder, ".manifest.lock")?;
        match file.lock() {
            Err(error) if error.kind() != ErrorKind::Unsupported => {
                Err(error).with_context(|| format!("{}: cannot lock", folder.display()))
            }
            _ => Ok(Self { _file: file }),
        }
    }
}

fn open(folder: &Path, name: &str) -> Result<File> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    let path = folder.join(name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    file.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_there_and_gets_in_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Lock::take(folder.path(), "train smoke").expect("free");
        let refused = Lock::take(folder.path(), "probe").err().expect("taken").to_string();
        assert!(refused.contains(&format!("process {} (train smoke)", std::process::id())), "{refused}");
        Lock::wait(folder.path()).expect("a manifest does not wait for work");
        drop(first);
        Lock::take(folder.path(), "probe").expect("free again");
    }
}
