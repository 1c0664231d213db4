//! Files that appear whole or not at all. Knows bytes and paths.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

const MOST_LINKS: usize = 16;

/// Writes `bytes` to `path`: into `<path>.tmp`, synced, then renamed. Makes the folder if it is missing. A link is written through:
/// the file that it leads to is replaced, the link stays.
///
/// # Errors
/// A disk that cannot be written; a path that is not a file and does not lead to one (a device, a pipe, a folder).
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let target = &written(path)?;
    let temporary = temporary(target);
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    }
    // A link under this name would be followed.
    let free = !fs::symlink_metadata(&temporary).is_ok_and(|there| there.is_symlink());
    ensure!(free, "cannot write {}: {} is a link; remove it", path.display(), temporary.display());
    let write = || -> io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, target)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// `<path>.tmp` (ignored by git): keeps the whole name, so that `a.csv` and `a.parquet` do not collide.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// Where a file that is to be replaced lies, links followed; it need not be there yet. A rename onto the path as it was named would
/// put a file in the place of the link or the device.
///
/// # Errors
/// A path that leads to something else than a file.
pub fn written(path: &Path) -> Result<PathBuf> {
    let mut at = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let there = match fs::symlink_metadata(&at) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound) => return Ok(at),
            there => there.with_context(|| format!("cannot write {}", path.display()))?,
        };
        if there.is_symlink() {
            let to = fs::read_link(&at).with_context(|| format!("{}: cannot follow the link", at.display()))?;
            at = plain(&at.parent().unwrap_or(Path::new("")).join(to));
            // `/dev/stdout`, and what leads there: who opened it reads what is written into it, not a file put in its place.
            let opened = at.starts_with("/proc") || (at.starts_with("/dev") && !at.starts_with("/dev/shm"));
            ensure!(!opened, "{}: leads to {}, not a file: name a file", path.display(), at.display());
            continue;
        }
        ensure!(!there.is_dir(), "{}: a folder, not a file: name a file", path.display());
        ensure!(there.is_file(), "{}: a device or a pipe, not a file: name a file", path.display());
        return Ok(at);
    }
    anyhow::bail!("{}: leads from link to link and to no file", path.display())
}

/// The path with its folder's links and `..` resolved, where the folder is there.
fn plain(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (fs::canonicalize(folder), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_path_buf(),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    #[test]
    fn a_link_is_written_through_and_stays() {
        let home = tempfile::tempdir().expect("a folder");
        let at = |name: &str| home.path().join(name);
        fs::create_dir(at("elsewhere")).expect("made");
        fs::write(at("elsewhere/real"), "old").expect("written");
        symlink("elsewhere/real", at("near")).expect("linked");
        symlink(at("near"), at("far")).expect("linked");
        symlink("elsewhere/new", at("waiting")).expect("linked");
        for (link, real, text) in [("near", "real", "one"), ("far", "real", "two"), ("waiting", "new", "three")] {
            write_atomic(&at(link), text.as_bytes()).expect("writes");
            assert!(fs::symlink_metadata(at(link)).expect("there").is_symlink(), "{link} was replaced");
            assert_eq!(fs::read_to_string(at("elsewhere").join(real)).expect("there"), text);
        }
        assert!(!at("near.tmp").exists() && !at("elsewhere/real.tmp").exists());
    }

    #[test]
    fn what_is_no_file_is_refused_and_stays() {
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
            let kind = || fs::symlink_metadata(at(name)).expect("there").file_type();
            let before = kind();
            let said = write_atomic(&at(name), b"x").expect_err(name).to_string();
            assert!(said.contains("file"), "{name}: {said}");
            assert_eq!(kind(), before, "{name} was replaced");
        }
        // As root a rename would replace them.
        for device in ["/dev/full", "/dev/null", "/dev/stdout"] {
            write_atomic(Path::new(device), b"x").expect_err(device);
            let there = fs::symlink_metadata(device).expect("there").file_type();
            assert!(there.is_char_device() || there.is_symlink(), "{device}");
            assert!(!Path::new(&format!("{device}.tmp")).exists());
        }
        // What a link under the temporary name leads to stays as it is.
        fs::write(at("kept"), "kept").expect("written");
        symlink(at("kept"), at("out.tmp")).expect("linked");
        write_atomic(&at("out"), b"x").expect_err("a link");
        assert_eq!(fs::read_to_string(at("kept")).expect("there"), "kept");
    }
}
