//! Guards for untrusted files: a panic of another crate while reading becomes an error, without output; and sizes of files that are
//! read into memory are bounded.

use std::any::Any;
use std::cell::Cell;
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;

use anyhow::{Result, anyhow};

pub use switchyard_ops::ensure_memory;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` and converts a panic into an error.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panic| {
            // Threads of polars forward their panics to the waiting thread.
            let polars = std::thread::current().name().is_some_and(|name| name.starts_with("polars"));
            if !GUARDED.get() && !polars {
                report(panic);
            }
        }));
    });
    let before = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    done.map_err(|panic| anyhow!("{}", panic_text(&*panic)))
}

/// Maximum bytes of a weights or records file that is read whole.
pub const MOST_FILE: u64 = 2 << 30;

/// Maximum bytes of a text file: the longest are tokenizers, of some 35 MB.
pub const MOST_TEXT: u64 = 256 << 20;

/// The text of a file of settings, a tokenizer or a manifest.
///
/// # Errors
/// A file that cannot be read, is not UTF-8 or exceeds [`MOST_TEXT`].
pub fn read_text(file: impl AsRef<Path>) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(MOST_TEXT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_TEXT {
        let words = format!("longer than {MOST_TEXT} bytes, too long for a text file");
        return Err(Error::new(ErrorKind::InvalidData, words));
    }
    match recognise(text.as_bytes()) {
        Some(what) if what == POINTER => Err(Error::new(ErrorKind::InvalidData, what)),
        _ => Ok(text),
    }
}

/// Reads a regular file (or a link to one) of at most `most` bytes.
///
/// # Errors
/// A device, a pipe or a folder, which may be endless; a longer file.
pub fn read_bytes(file: impl AsRef<Path>, most: u64) -> std::io::Result<Vec<u8>> {
    let length = regular(file.as_ref())?;
    let refused = |words: String| Error::new(ErrorKind::InvalidData, words);
    if length > most {
        return Err(refused(format!("{length} bytes, and at most {most} are read")));
    }
    ensure_memory(|| "reading it".into(), length).map_err(|error| refused(error.to_string()))?;
    let mut bytes = vec![];
    File::open(file)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(refused(format!("more than {most} bytes, the most that are read")));
    }
    Ok(bytes)
}

/// The length of a regular file. Checked before a file is opened: opening a pipe waits for its writer.
pub fn regular(file: &Path) -> std::io::Result<u64> {
    let metadata = std::fs::metadata(file)?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::InvalidData, "not a regular file (a folder, a device or a pipe)"));
    }
    Ok(metadata.len())
}

const POINTER: &str = "it is a pointer of Git LFS: fetch the file itself with git lfs pull";

/// Recognises a failed download or clone by the file's first bytes.
pub fn recognise(bytes: &[u8]) -> Option<&'static str> {
    let begins = |mark: &[u8]| bytes.starts_with(mark);
    if bytes.is_empty() {
        Some("the file is empty")
    } else if begins(b"version https://git-lfs") {
        Some(POINTER)
    } else if begins(b"<") || begins(b"{") {
        Some("it is a page or an answer of a server, not the file")
    } else {
        None
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_the_next_work_is_done() {
        let error = guarded(|| [1, 2, 3][std::hint::black_box(7)]).expect_err("a panic").to_string();
        assert!(error.contains("index out of bounds"), "{error}");
        assert_eq!(guarded(|| 5).expect("no panic"), 5);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_text_without_end_is_refused() {
        let error = read_text("/dev/zero").expect_err("too long").to_string();
        assert!(error.contains("longer than"), "{error}");
        let error = read_bytes("/dev/zero", 1 << 20).expect_err("a device").to_string();
        assert!(error.contains("not a regular file"), "{error}");
        let error = read_bytes(std::env::current_exe().expect("a path"), 1 << 10).expect_err("long").to_string();
        assert!(error.contains("at most 1024"), "{error}");
    }
}
