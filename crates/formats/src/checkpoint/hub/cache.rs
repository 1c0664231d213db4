//! The local cache in Hugging Face's layout: `models--org--name/` with `blobs/TAG`, links to them in `snapshots/COMMIT/NAME`, commits of
//! revisions in `refs/REVISION`, and `.no_exist/COMMIT/NAME` for files that a commit lacks. Shared with `transformers` in both
//! directions. Knows no hub.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{folder, is_hash};
use crate::guard::read_text;
use crate::output::{open_to_append, symlink, write_atomic};
use crate::progress::say;

/// The folder of `HF_HOME` or its default.
pub(super) fn home() -> Result<PathBuf> {
    if let Some(home) = folder("HF_HOME") {
        return Ok(home);
    }
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(std::env::home_dir()?.join(".cache")));
    Ok(cache.context("no home folder: set HF_HOME to the folder for models")?.join("huggingface"))
}

/// The folder with all repositories.
pub(super) fn root() -> Result<PathBuf> {
    let named = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
    named.map_or_else(|| Ok(home()?.join("hub")), Ok)
}

/// The cache of one repository.
pub(super) struct Cache {
    folder: PathBuf,
    locks: PathBuf,
}

impl Cache {
    /// The cache of the model `id`, a checked `org/name`.
    pub fn new(root: &Path, id: &str) -> Self {
        let name = format!("models--{}", id.replace('/', "--"));
        Self { locks: root.join(".locks").join(&name), folder: root.join(name) }
    }

    /// The commit of a revision at its last request; the revision itself if it is a cached commit.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let cached = read_text(self.folder.join("refs").join(revision)).ok();
        let cached = cached.map(|text| text.trim().to_owned()).filter(|commit| is_hash(commit));
        cached.or_else(|| (is_hash(revision) && self.snapshot(revision).is_dir()).then(|| revision.to_owned()))
    }

    /// The folder of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Whether the commit is known to lack a file.
    pub fn lacks(&self, commit: &str, name: &str) -> bool {
        self.folder.join(".no_exist").join(commit).join(name).exists()
    }

    /// Records that a commit lacks a file.
    pub fn note_lack(&self, commit: &str, name: &str) -> Result<()> {
        write(&self.folder.join(".no_exist").join(commit).join(name), b"")
    }

    /// Records that `revision` is `commit`.
    pub fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit { Ok(()) } else { write(&self.folder.join("refs").join(revision), commit.as_bytes()) }
    }

    /// Path of the bytes with this tag.
    pub fn blob(&self, tag: &str) -> PathBuf {
        self.folder.join("blobs").join(tag)
    }

    /// Locks the bytes with this tag for one downloading process, until the file is dropped.
    pub fn lock(&self, tag: &str, name: &str) -> Result<File> {
        fs::create_dir_all(&self.locks).with_context(|| format!("cannot make folder {}", self.locks.display()))?;
        let file = open_to_append(&self.locks.join(format!("{tag}.lock")))?;
        if let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
            say(&format!("{name}: waiting for another process that downloads it"));
            // On a file system without locks two processes may write at once: the hash is checked anyway.
            let _ = file.lock();
        }
        Ok(file)
    }

    /// Links `name` in a commit's folder to the bytes with this tag.
    pub fn link(&self, commit: &str, name: &str, tag: &str) -> Result<PathBuf> {
        let path = self.snapshot(commit).join(name);
        let new = self.snapshot(commit).join(format!("{name}.{}.tmp", std::process::id()));
        fs::create_dir_all(self.snapshot(commit))?;
        let blob = self.blob(tag);
        let made = symlink(Path::new("../../blobs").join(tag), &new);
        let made = made.or_else(|_| fs::hard_link(&blob, &new)).or_else(|_| fs::copy(&blob, &new).map(drop));
        made.and_then(|()| fs::rename(&new, &path)).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// Writes a small file whole or not at all, with its folder.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    match write_atomic(path, bytes) {
        // Another process wrote it meanwhile.
        Err(_) if fs::read(path).is_ok_and(|found| found == bytes) => Ok(()),
        done => done,
    }
}
