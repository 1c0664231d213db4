//! Locks for one process at a time in a folder or at a file. The system releases a lock when its process ends in any way.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// Held until dropped.
pub struct Lock {
    _file: File,
    /// Removed when the lock is dropped.
    brief: Option<PathBuf>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(path) = &self.brief {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Lock {
    /// Locks `<folder>/.lock` for the duration of the work; `doing` is shown to other processes.
    ///
    /// # Errors
    /// A folder that another process has locked, with its id and work; a folder that cannot be written.
    pub fn acquire(folder: &Path, doing: &str) -> Result<Self> {
        let mut file = open(folder, ".lock")?;
        if !try_hold(&file).with_context(|| format!("{}: cannot lock", folder.display()))? {
            let mut owner = String::new();
            file.read_to_string(&mut owner).ok();
            let owner = if owner.is_empty() { "another process".into() } else { owner };
            bail!("{}: {owner} works here: wait for its end, or name another folder", folder.display());
        }
        // Only for another process's message: the lock holds without it.
        let _ = file.set_len(0).and_then(|()| write!(file, "process {} ({doing})", std::process::id()));
        Ok(Self { _file: file, brief: None })
    }

    /// Waits for `<folder>/.manifest.lock`, for a short change. A separate file, so that it never waits for work; removed with the lock.
    pub fn wait(folder: &Path) -> Result<Self> {
        let path = folder.join(".manifest.lock");
        loop {
            let file = open(folder, ".manifest.lock")?;
            retry_lock(|| file.lock()).with_context(|| format!("{}: cannot lock", folder.display()))?;
            // The previous owner may have removed the file since it was opened: then this lock is void.
            if is_at(&file, &path) {
                return Ok(Self { _file: file, brief: cfg!(unix).then_some(path) });
            }
        }
    }
}

/// Whether a path still leads to an open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let both = file.metadata().and_then(|open| Ok((open, std::fs::symlink_metadata(path)?)));
    both.is_ok_and(|(open, named)| (open.dev(), open.ino()) == (named.dev(), named.ino()))
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// Locks a file unless another process holds the lock.
pub fn try_hold(file: &File) -> io::Result<bool> {
    let mut taken = false;
    retry_lock(|| match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            taken = true;
            Ok(())
        }
        Err(TryLockError::Error(error)) => Err(error),
    })?;
    Ok(!taken)
}

/// Retries a lock while signals interrupt it. On a file system without locks, or out of them (NFS without its daemon), prints a warning
/// and continues unprotected.
fn retry_lock(mut lock: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match lock() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(ENOLCK) => {
                let _ = writeln!(
                    io::stderr(),
                    "warning: this file system has no locks ({error}): start no second process here"
                );
                return Ok(());
            }
            done => return done,
        }
    }
}

/// "No locks available".
const ENOLCK: i32 = if cfg!(target_os = "linux") { 37 } else { 77 };

fn open(folder: &Path, name: &str) -> Result<File> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    let path = folder.join(name);
    let linked = std::fs::symlink_metadata(&path).is_ok_and(|there| there.is_symlink());
    ensure!(!linked, "{}: is a link, and what it leads to would be written over; remove it", path.display());
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    file.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_there_and_gets_in_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Lock::acquire(folder.path(), "train smoke").expect("free");
        let refused = Lock::acquire(folder.path(), "probe").err().expect("taken").to_string();
        assert!(refused.contains(&format!("process {} (train smoke)", std::process::id())), "{refused}");
        Lock::wait(folder.path()).expect("a manifest does not wait for work");
        assert!(!folder.path().join(".manifest.lock").exists(), "a brief lock leaves no file");
        drop(first);
        Lock::acquire(folder.path(), "probe").expect("free again");
    }

    #[test]
    fn a_signal_is_waited_out_and_a_system_without_locks_is_no_error() {
        let answers = |mut codes: Vec<i32>| {
            retry_lock(move || codes.pop().map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code))))
        };
        let (interrupted, full) = (4, 28);
        answers(vec![interrupted; 3]).expect("taken at last");
        answers(vec![ENOLCK, interrupted]).expect("no locks here");
        assert_eq!(answers(vec![full]).expect_err("an error").raw_os_error(), Some(full));
    }

    /// A brief lock's file is removed and created again while others wait for it.
    #[test]
    fn a_brief_lock_is_held_by_one_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let counter = folder.path().join("counter");
        std::fs::write(&counter, "0").expect("written");
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..50 {
                        let _lock = Lock::wait(folder.path()).expect("locked");
                        let count: usize = std::fs::read_to_string(&counter).expect("read").parse().expect("a number");
                        std::fs::write(&counter, (count + 1).to_string()).expect("written");
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&counter).expect("read"), "200");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_the_place_of_a_lock_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = folder.path().join("kept");
        std::fs::write(&kept, "kept").expect("written");
        std::os::unix::fs::symlink(&kept, folder.path().join(".lock")).expect("linked");
        assert!(Lock::acquire(folder.path(), "train").is_err());
        assert_eq!(std::fs::read_to_string(&kept).expect("there"), "kept");
    }
}
