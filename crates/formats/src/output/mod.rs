//! Output files: programs write and remove files only through this module. Knows bytes and paths.
//!
//! 1. A file appears whole or not at all: the bytes go into a temporary file next to it, which is synced and renamed.
//! 2. A link is followed only inside its own folder. A link that leads out of it is an error, for files and for subfolders.
//! 3. Temporary names are reserved: only killed processes leave [`temporary`] files and [`scratch_prefix`] folders.
//! 4. A program removes only reserved names and names in a list that it wrote itself.

mod copy;
mod inside;
mod lock;

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

pub use copy::copy_folder;
pub use inside::Inside;
pub use lock::{Lock, try_hold};
#[cfg(unix)]
pub(crate) use std::os::unix::fs::symlink;

const MOST_LINKS: usize = 16;

/// Writes `bytes` to `path`, whole or not at all. Makes the folder if it is missing.
///
/// # Errors
/// A disk that cannot be written; a path that [`output_path`] refuses.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |file| file.write_all(bytes).with_context(|| format!("cannot write {}", path.display())))
}

/// Atomically writes to `path` what `fill` writes. An error of `fill` leaves the old file.
pub fn write_with<T>(path: &Path, fill: impl FnOnce(&mut BufWriter<&File>) -> Result<T>) -> Result<T> {
    let target = output_path(path)?;
    let temporary = temporary(&target);
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    }
    let cannot_write = || format!("cannot write {}", path.display());
    remove_entry(&temporary).with_context(cannot_write)?;
    let file = File::create_new(&temporary).with_context(cannot_write)?;
    let write = || -> Result<T> {
        let mut writer = BufWriter::new(&file);
        let value = fill(&mut writer)?;
        writer.flush().and_then(|()| file.sync_all()).with_context(cannot_write)?;
        drop(writer);
        fs::rename(&temporary, &target).with_context(cannot_write)?;
        Ok(value)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Opens a file for appending, creating it if necessary. A link is refused, wherever it leads.
///
/// # Errors
/// A link, a device, a folder; a disk that cannot be written.
pub fn open_to_append(path: &Path) -> Result<File> {
    ensure!(output_path(path)? == *path, "{}: is a link; remove it", path.display());
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("cannot write {}", path.display()))
}

/// The file that `path` names, with links resolved; the file need not exist.
///
/// # Errors
/// A folder, a device or a pipe; a link that leads out of its folder.
pub fn output_path(path: &Path) -> Result<PathBuf> {
    let mut at = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let entry = match fs::symlink_metadata(&at) {
            Err(error) if error.kind() == ErrorKind::NotFound => return inside_its_folder(path, at),
            entry => entry.with_context(|| format!("cannot write {}", path.display()))?,
        };
        if entry.is_symlink() {
            let to = fs::read_link(&at).with_context(|| format!("{}: cannot follow the link", at.display()))?;
            at = resolve_folder(&folder_of(&at).join(to));
            // A process that has `/dev/stdout` open reads what is written into it, not a file renamed onto it.
            let opened = at.starts_with("/proc") || (at.starts_with("/dev") && !at.starts_with("/dev/shm"));
            ensure!(!opened, "{}: leads to {}, not a file: name a file", path.display(), at.display());
            continue;
        }
        ensure!(!entry.is_dir(), "{}: a folder, not a file: name a file", path.display());
        ensure!(entry.is_file(), "{}: a device or a pipe, not a file: name a file", path.display());
        return inside_its_folder(path, at);
    }
    bail!("{}: leads from link to link and to no file", path.display())
}

/// `target` is the file that `path` leads to.
fn inside_its_folder(path: &Path, target: PathBuf) -> Result<PathBuf> {
    if target != *path {
        let folder = fs::canonicalize(folder_of(path)).with_context(|| format!("cannot write {}", path.display()))?;
        ensure!(
            target.starts_with(&folder),
            "{}: is a link that leads out of its folder, to the file {}: name that file, or remove the link",
            path.display(),
            target.display()
        );
    }
    Ok(target)
}

/// Creates the folder `name` in `folder` and returns its path.
///
/// # Errors
/// A link that leads out of `folder`; a folder that cannot be created.
pub fn subfolder(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    ensure_inside(&path)?;
    fs::create_dir_all(&path).with_context(|| format!("cannot make folder {}", path.display()))?;
    Ok(path)
}

/// # Errors
/// A path that is a link out of its folder, or a dangling link.
pub fn ensure_inside(path: &Path) -> Result<()> {
    if is_link(path) {
        let resolve = |path: &Path| {
            fs::canonicalize(path).with_context(|| format!("{}: a link that leads nowhere; remove it", path.display()))
        };
        let (folder, target) = (resolve(folder_of(path))?, resolve(path)?);
        ensure!(
            target.starts_with(&folder),
            "{}: is a link that leads out of its folder, to {}: remove the link, or name a folder there as the output",
            path.display(),
            target.display()
        );
    }
    Ok(())
}

/// Fills a new folder and moves it to `dir` atomically. Files of a replaced folder are carried over, except weights and those that `fill`
/// wrote anew.
///
/// # Errors
/// A folder that is not empty, unless `overwrite`; a disk that cannot be written; errors of `fill`.
pub fn replace_folder(dir: &Path, overwrite: bool, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    // A slash at the end hides a link.
    let dir: PathBuf = dir.components().collect();
    // The user may name a link to a folder: a rename would put a folder in its place.
    let real = if is_link(&dir) {
        fs::canonicalize(&dir).with_context(|| format!("{}: a link that leads nowhere", dir.display()))?
    } else {
        dir
    };
    let dir = real.as_path();
    ensure!(!dir.exists() || dir.is_dir(), "{}: exists and is not a folder", dir.display());
    let name = dir.file_name();
    let name = name.with_context(|| format!("{}: expected a path that ends in a folder name", dir.display()))?;
    let parent = folder_of(dir);
    let occupied = dir.exists();
    if occupied {
        let empty = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
        ensure!(empty || overwrite, "{}: already exists: remove it, or choose another name", dir.display());
    }
    fs::create_dir_all(parent).with_context(|| format!("{}: cannot create", parent.display()))?;
    let prefix = scratch_prefix(&name.to_string_lossy());
    remove_scratch(parent, &prefix)?;
    let scratch = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
    let scratch = scratch.with_context(|| format!("{}: cannot create a folder", parent.display()))?;
    let lock = Lock::acquire(scratch.path(), "write a folder")?;
    let (new, old) = (scratch.path().join("new"), scratch.path().join("old"));
    fs::create_dir(&new).with_context(|| format!("{}: cannot create", new.display()))?;
    fill(&new)?;
    if occupied {
        copy_foreign(dir, &new)?;
    }
    sync_folder(&new)?;
    if occupied {
        fs::rename(dir, &old).with_context(|| format!("{}: cannot move the old folder aside", dir.display()))?;
    }
    if let Err(e) = fs::rename(&new, dir) {
        let back = !occupied || fs::rename(&old, dir).is_ok();
        let note = if back { String::new() } else { format!("; the old one is in {}", scratch.keep().display()) };
        bail!("{}: cannot move the finished folder into place: {e}{note}", dir.display());
    }
    sync_folder(parent)?;
    drop(lock);
    // Removes the old folder, after the new one is in place.
    let at = scratch.path().to_path_buf();
    scratch.close().with_context(|| format!("{}: cannot remove the replaced folder", at.display()))
}

/// Copies the files that `replace_folder` did not write.
fn copy_foreign(old: &Path, new: &Path) -> Result<()> {
    let is_weights = |name: &str| {
        ["model", "adapter_model"].iter().any(|stem| name.starts_with(stem))
            && [".safetensors", ".safetensors.index.json"].iter().any(|ending| name.ends_with(ending))
    };
    let failed = || format!("{}: cannot list", old.display());
    for entry in fs::read_dir(old).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let (from, to) = (entry.path(), new.join(entry.file_name()));
        if is_weights(&name) || is_reserved(&name) || fs::symlink_metadata(&to).is_ok() {
            continue;
        }
        let kind = entry.file_type().with_context(failed)?;
        let copied = match () {
            () if kind.is_dir() => copy_folder(&from, &to),
            () if kind.is_symlink() => fs::read_link(&from).and_then(|target| symlink(target, &to)).map_err(Into::into),
            () => fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).map_err(Into::into),
        };
        copied.with_context(|| format!("{}: cannot be carried over", from.display()))?;
    }
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn symlink(_: impl AsRef<Path>, _: impl AsRef<Path>) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Syncs a folder. Platforms that cannot open a folder leave it to the system.
fn sync_folder(dir: &Path) -> Result<()> {
    match File::open(dir) {
        Ok(handle) if cfg!(unix) => handle.sync_all().with_context(|| format!("{}: cannot flush", dir.display())),
        _ => Ok(()),
    }
}

/// Removes temporary files and scratch folders of killed processes in `folder`. For the process that holds the folder's lock.
pub fn remove_leftovers(folder: &Path) -> Result<()> {
    let failed = || format!("{}: cannot remove what a stopped process left", folder.display());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        if is_reserved(&entry.file_name().to_string_lossy()) {
            let is_folder = entry.file_type().with_context(failed)?.is_dir();
            let removed = if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
            removed.with_context(failed)?;
        }
    }
    Ok(())
}

/// Removes scratch folders of this prefix whose process has ended.
fn remove_scratch(folder: &Path, prefix: &str) -> Result<()> {
    let failed = || format!("{}: cannot list", folder.display());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let ours = entry.file_name().to_string_lossy().starts_with(prefix);
        let lock = entry.path().join(".lock");
        let is_ours = ours && entry.file_type().with_context(failed)?.is_dir() && lock.is_file() && !is_link(&lock);
        if is_ours && let Ok(_free) = Lock::acquire(&entry.path(), "remove a folder") {
            let removed = fs::remove_dir_all(entry.path());
            removed.with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Removes the files in a list that this program wrote, and `folder` if it is then empty. Changes nothing if `folder` is a link.
pub fn remove_listed(folder: &Path, names: &[&str]) -> Result<()> {
    if is_link(folder) || !folder.is_dir() {
        return Ok(());
    }
    for name in names {
        let path = Inside::parse(name)?.join_to(folder);
        if fs::symlink_metadata(&path).is_ok_and(|entry| !entry.is_dir()) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    let _ = fs::remove_dir(folder);
    Ok(())
}

/// Temporary name of a file before its rename. Ignored by git; contains the whole name, so that `a.csv` and `a.parquet` differ.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.switchyard.tmp"))
}

/// Prefix of a folder's temporary name before its rename.
pub fn scratch_prefix(name: &str) -> String {
    format!(".{name}.switchyard-")
}

fn is_reserved(name: &str) -> bool {
    name.starts_with('.') && (name.ends_with(".switchyard.tmp") || name.contains(".switchyard-"))
}

/// Removes a file or a link, never the link's target.
fn remove_entry(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|entry| entry.is_symlink())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path with links and `..` of its folder resolved, if the folder exists.
fn resolve_folder(path: &Path) -> PathBuf {
    match (fs::canonicalize(folder_of(path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_path_buf(),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    #[test]
    fn a_link_is_followed_inside_its_folder_only() {
        let home = tempfile::tempdir().expect("a folder");
        let at = |name: &str| home.path().join("out").join(name);
        fs::create_dir_all(at("elsewhere")).expect("made");
        fs::write(at("elsewhere/real"), "old").expect("written");
        symlink("elsewhere/real", at("near")).expect("linked");
        symlink(at("near"), at("far")).expect("linked");
        symlink("elsewhere/new", at("waiting")).expect("linked");
        for (link, real, text) in [("near", "real", "one"), ("far", "real", "two"), ("waiting", "new", "three")] {
            write_atomic(&at(link), text.as_bytes()).expect("writes");
            assert!(is_link(&at(link)), "{link} was replaced");
            assert_eq!(fs::read_to_string(at("elsewhere").join(real)).expect("read"), text);
        }
        let victim = home.path().join("victim");
        fs::write(&victim, "kept").expect("written");
        symlink("../victim", at("relative")).expect("linked");
        symlink(&victim, at("absolute")).expect("linked");
        symlink("elsewhere/../../victim", at("detour")).expect("linked");
        symlink("relative", at("twice")).expect("linked");
        symlink("../missing", at("dangling")).expect("linked");
        for link in ["relative", "absolute", "detour", "twice", "dangling"] {
            let error = write_atomic(&at(link), b"x").expect_err(link).to_string();
            assert!(error.contains(link) && error.contains("out of its folder"), "{error}");
            open_to_append(&at(link)).expect_err(link);
        }
        symlink("..", at("folder")).expect("linked");
        symlink("elsewhere", at("inner")).expect("linked");
        let error = subfolder(&home.path().join("out"), "folder").expect_err("leads out").to_string();
        assert!(error.contains("out of its folder"), "{error}");
        subfolder(&home.path().join("out"), "inner").expect("inside");
        assert_eq!(fs::read_to_string(&victim).expect("read"), "kept");
        assert!(!home.path().join("missing").exists());
    }

    #[test]
    fn only_files_are_replaced() {
        let home = tempfile::tempdir().expect("a folder");
        let at = |name: &str| home.path().join(name);
        let pipe = std::process::Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo runs");
        assert!(pipe.success());
        symlink("/proc/self/fd/1", at("stdout")).expect("linked");
        symlink("/dev/stdout", at("device")).expect("linked");
        symlink("round", at("round")).expect("linked");
        symlink(at("stdout"), at("twice")).expect("linked");
        fs::create_dir(at("folder")).expect("made");
        for name in ["pipe", "stdout", "device", "round", "twice", "folder"] {
            let kind = || fs::symlink_metadata(at(name)).expect("exists").file_type();
            let before = kind();
            let error = write_atomic(&at(name), b"x").expect_err(name).to_string();
            assert!(error.contains("file"), "{name}: {error}");
            assert_eq!(kind(), before, "{name} was replaced");
        }
        // As root a rename would replace them.
        for device in ["/dev/full", "/dev/null", "/dev/stdout"] {
            write_atomic(Path::new(device), b"x").expect_err(device);
            let entry = fs::symlink_metadata(device).expect("exists").file_type();
            assert!(entry.is_char_device() || entry.is_symlink(), "{device}");
        }
    }

    #[test]
    fn temporary_names_are_ours_alone() {
        let home = tempfile::tempdir().expect("a folder");
        let at = |name: &str| home.path().join(name);
        for mine in ["out.tmp", ".out.tmp", ".out.partial-1", "victim"] {
            fs::write(at(mine), "kept").expect("written");
        }
        // A link under the temporary name: the link is removed, its target stays.
        symlink(at("victim"), temporary(&at("out"))).expect("linked");
        write_atomic(&at("out"), b"x").expect("writes");
        fs::write(temporary(&at("half")), "half").expect("written");
        fs::create_dir(at(&(scratch_prefix("checkpoint") + "x"))).expect("made");
        remove_leftovers(home.path()).expect("removed");
        for mine in ["out.tmp", ".out.tmp", ".out.partial-1", "victim"] {
            assert_eq!(fs::read_to_string(at(mine)).expect("read"), "kept");
        }
        assert_eq!(fs::read_dir(home.path()).expect("a folder").count(), 5);
    }

    #[test]
    fn a_replaced_folder_has_what_others_put_there() {
        let home = tempfile::tempdir().expect("a folder");
        let dir = home.path().join("checkpoint");
        let write = |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).map_err(Into::into);
        replace_folder(&dir, false, |new| write(new, "model-00001-of-2.safetensors", "old")).expect("written");
        fs::create_dir(dir.join("notes")).expect("made");
        for mine in ["notes/a.md", "my.safetensors"] {
            fs::write(dir.join(mine), "mine").expect("written");
        }
        // Leftovers of a killed process and of a running one.
        let left = |tail: &str| home.path().join(scratch_prefix("checkpoint") + tail);
        let _lock = super::Lock::acquire(&left("busy"), "work").expect("free");
        drop(super::Lock::acquire(&left("dead"), "work").expect("free"));
        replace_folder(&dir, true, |new| write(new, "model.safetensors", "new")).expect("replaced");
        assert!(!dir.join("model-00001-of-2.safetensors").exists());
        assert_eq!(fs::read_to_string(dir.join("model.safetensors")).expect("read"), "new");
        for mine in ["notes/a.md", "my.safetensors"] {
            assert_eq!(fs::read_to_string(dir.join(mine)).expect("read"), "mine");
        }
        assert!(left("busy").exists() && !left("dead").exists());
        // A link stays, also with a slash at its end.
        symlink("checkpoint", home.path().join("latest")).expect("linked");
        let latest = home.path().join("latest/");
        replace_folder(&latest, true, |new| write(new, "model.safetensors", "newer")).expect("replaced");
        assert!(is_link(&home.path().join("latest")));
        assert_eq!(fs::read_to_string(dir.join("model.safetensors")).expect("read"), "newer");
    }
}
