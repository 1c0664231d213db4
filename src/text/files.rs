//! Resolves a path to problem files, and detects the kind of each from its first bytes. Knows bytes and names, not records.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::store::{file_name, list};

/// Part of a data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Train,
    Test,
}

impl Part {
    /// Words for it in file names, in order of preference.
    fn names(self) -> &'static [&'static str] {
        match self {
            Part::Train => &["train", "training"],
            Part::Test => &["test", "validation", "valid", "val", "dev", "eval"],
        }
    }
}

/// Endings of files of problems; `.gz` may follow.
const ENDINGS: [&str; 6] = [".jsonl", ".json", ".ndjson", ".parquet", ".csv", ".tsv"];
/// Subfolders in which data sets store their files.
const DEPTH: usize = 2;

/// The files to read for a path: the file itself, or a folder's files of this part (`train-00000-of-00002.parquet`, `test.jsonl`), ordered
/// by name. A folder with a single file has no parts. Files named by numbers (`train/algebra/17.json`) have one record each and are read
/// across folders if the first is one JSON object. `FOLDER/test_sft`, if there is no such file, means the files of that set.
///
/// # Errors
/// A path that does not exist; a folder without such files, or with those of several data sets.
pub(crate) fn data_files(path: &Path, part: Part) -> Result<Vec<PathBuf>> {
    let shown = path.display();
    if !path.is_dir() {
        let set = if path.exists() { vec![] } else { named_set(path) };
        ensure!(path.exists() || !set.is_empty(), "{shown}: no such file or folder");
        return if set.is_empty() { Ok(vec![path.to_path_buf()]) } else { ensure_one_set(&set).map(|()| set) };
    }
    let all = listed(path, DEPTH)?;
    ensure!(!all.is_empty() || !has_arrow(path, DEPTH), "{shown}: {ARROW}");
    ensure!(!all.is_empty(), "{shown}: a folder without files of problems ({}): name the file", ENDINGS.join(", "));
    if all.len() == 1 {
        return Ok(all);
    }
    let of = |name: &str| all.iter().filter(|file| is_part(path, file, name)).cloned().collect::<Vec<PathBuf>>();
    let found = part.names().iter().map(|name| of(name)).find(|files| !files.is_empty());
    let records = |files: &[PathBuf]| {
        files.iter().all(|file| {
            file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"))
                && stem(file).bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    if let Some(mut files) = found.clone().or_else(|| Some(all.clone())).filter(|files| records(files)) {
        files.sort_by_cached_key(|file| (file.parent().map(Path::to_path_buf), stem(file).parse::<u64>().ok()));
        if is_one_object(&files[0]) {
            return Ok(files);
        }
    }
    let names = || all.iter().take(8).map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
    let found = found.with_context(|| {
        format!("{shown}: no file here is called {}: name one of {}", part.names().join(" or "), names())
    })?;
    let elsewhere = found.iter().find(|file| file.parent() != found[0].parent());
    if let Some(other) = elsewhere {
        bail!("{shown}: has {} and {}: name the folder or the file to read", found[0].display(), other.display());
    }
    let sets = sets(&found);
    if let [first, .., last] = &sets[..] {
        bail!(
            "{shown}: has {} sets of this part ({}): name one of them, {}",
            sets.len(),
            sets.join(", "),
            [first, last].map(|set| path.join(set).display().to_string()).join(" or ")
        );
    }
    ensure_one_set(&found)?;
    Ok(found)
}

/// Whether a file is a single JSON object of at most a megabyte.
fn is_one_object(file: &Path) -> bool {
    const MOST: u64 = 1 << 20;
    let text = crate::guard::read_bytes(file, MOST).unwrap_or_default();
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&text).is_ok()
}

/// Names of the data sets of files. Files numbered from 0 or 1 on are one set: `train-0`, `train-1`.
fn sets(files: &[PathBuf]) -> Vec<String> {
    let mut sets: Vec<String> = files.iter().map(|file| set(&stem(file)).0.to_owned()).collect();
    sets.sort();
    sets.dedup();
    let counted = |name: &String| {
        files.iter().map(|file| stem(file)).filter(|stem| set(stem).0 == name).all(|stem| numbered(&stem).is_some())
    };
    let whole = |name: &String| {
        let mut numbers: Vec<usize> = files
            .iter()
            .map(|file| stem(file))
            .filter_map(|stem| {
                let (of, number) = set(&stem);
                number.filter(|_| of == name)
            })
            .collect();
        numbers.sort_unstable();
        let from = numbers.first().copied().filter(|first| *first < 2).unwrap_or(0);
        counted(name) || numbers.iter().zip(from..).all(|(a, b)| *a == b)
    };
    if sets.iter().all(whole) {
        return sets;
    }
    let mut stems: Vec<String> = files.iter().map(|file| stem(file)).collect();
    stems.sort();
    stems.dedup();
    stems
}

/// The data set of a file, by its name, and the file's number: `test_sft` and 0 for `test_sft-00000-of-00002`.
fn set(stem: &str) -> (&str, Option<usize>) {
    let body = match stem.rsplit_once("-of-") {
        Some((body, _)) if numbered(stem).is_some() => body,
        _ => stem,
    };
    let name = body.trim_end_matches(|c: char| c.is_ascii_digit());
    match body[name.len()..].parse() {
        Ok(number) => (name.trim_end_matches(['-', '_', '.']), Some(number)),
        _ => (body, None),
    }
}

/// Files of the set with the path's name, in the path's folder.
fn named_set(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent().filter(|folder| folder.is_dir()), path.file_name()) else {
        return vec![];
    };
    let name = name.to_string_lossy();
    let all = listed(folder, DEPTH).unwrap_or_default();
    all.into_iter().filter(|file| set(&stem(file)).0 == name).collect()
}

const ARROW: &str = "Arrow files, as `save_to_disk` of datasets writes them, are not read: write Parquet or JSON lines \
                     (dataset.to_parquet(FILE), dataset.to_json(FILE)) and name that";

fn has_arrow(folder: &Path, depth: usize) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.into_iter().any(|path| {
        path.extension().is_some_and(|ending| ending == "arrow")
            || depth > 0 && path.is_dir() && has_arrow(&path, depth - 1)
    })
}

/// Requires files of one format and, if they are numbered (`-00000-of-00002`), all of them.
fn ensure_one_set(files: &[PathBuf]) -> Result<()> {
    let form = |file: &Path| {
        file.to_string_lossy().to_lowercase().trim_end_matches(".gz").rsplit('.').next().map(str::to_owned)
    };
    let first = &files[0];
    if let Some(other) = files.iter().find(|file| form(file) != form(first)) {
        bail!("{} and {}: two formats of one part: name the file to read", first.display(), other.display());
    }
    let numbers: Vec<(usize, usize)> = files.iter().filter_map(|file| numbered(&stem(file))).collect();
    let Some(&(_, of)) = numbers.first() else { return Ok(()) };
    let missing = (0..of).find(|number| !numbers.contains(&(*number, of)));
    if let Some(number) = missing {
        bail!(
            "{}: is one of {of} files, and number {number:05} is missing: add it, or name the files to read one by one",
            first.display()
        );
    }
    Ok(())
}

/// `train-00000-of-00002` and `train-00000-of-00002-1a2b3c` → 0 and 2.
fn numbered(stem: &str) -> Option<(usize, usize)> {
    let (rest, of) = stem.rsplit_once("-of-")?;
    let number = rest.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    Some((number.parse().ok()?, of.split('-').next()?.parse().ok()?))
}

/// Whether a folder has several files, and some of this part.
pub(crate) fn has_part(path: &Path, part: Part) -> bool {
    let all = if path.is_dir() { listed(path, DEPTH).unwrap_or_default() } else { vec![] };
    all.len() > 1 && part.names().iter().any(|name| all.iter().any(|file| is_part(path, file, name)))
}

/// Whether a path is a file, a folder or a set of files ([`data_files`]).
pub(crate) fn is_there(path: &Path) -> bool {
    path.exists() || !named_set(path).is_empty()
}

/// Whether a file belongs to the part `name`, by its own name (`train`, `train-00000-of-00002`, `gsm8k_train`) or, if that names no part,
/// by a folder below `root` (`train/0.jsonl`).
fn is_part(root: &Path, file: &Path, name: &str) -> bool {
    let says =
        |text: &str, name: &str| text.to_lowercase().split(|c: char| !c.is_ascii_alphabetic()).any(|w| w == name);
    let stem = stem(file);
    if [Part::Train, Part::Test].iter().any(|part| part.names().iter().any(|other| says(&stem, other))) {
        return says(&stem, name);
    }
    let folders = file.strip_prefix(root).ok().and_then(Path::parent);
    folders.is_some_and(|folders| folders.iter().any(|folder| says(&folder.to_string_lossy(), name)))
}

fn listed(folder: &Path, depth: usize) -> Result<Vec<PathBuf>> {
    let mut out = vec![];
    for path in list(folder)? {
        let name = file_name(&path).to_lowercase();
        // Metadata that the hub's library writes next to the data.
        if name.starts_with('.')
            || ["dataset_info", "dataset_dict", "dataset_infos", "state"].contains(&stem(&path).as_str())
        {
            continue;
        }
        if path.is_dir() {
            out.extend(if depth > 0 { listed(&path, depth - 1)? } else { vec![] });
        } else if ENDINGS.iter().any(|ending| name.trim_end_matches(".gz").ends_with(ending)) {
            out.push(path);
        }
    }
    Ok(out)
}

/// Name of a file without its endings.
pub(super) fn stem(file: &Path) -> String {
    let name = file_name(file);
    let name = strip_ending(&name, ".gz").unwrap_or(&name);
    ENDINGS.iter().find_map(|ending| strip_ending(name, ending)).unwrap_or(name).to_owned()
}

/// A name without this ending, in upper or lower case.
fn strip_ending<'n>(name: &'n str, ending: &str) -> Option<&'n str> {
    let (stem, end) = name.split_at_checked(name.len().checked_sub(ending.len())?)?;
    end.eq_ignore_ascii_case(ending).then_some(stem)
}

/// Kind of a file.
pub(super) enum Content {
    /// JSON lines, or one JSON list.
    Json(Box<dyn BufRead>),
    Csv(Box<dyn BufRead>),
    Parquet(Vec<u8>),
}

/// First bytes of unsupported files, with the kind and what to do.
const OTHERS: [(&[u8], &str); 13] = [
    (b"PK\x03\x04", "a zip archive: unpack it"),
    (b"\xfd7zXZ", "xz-compressed: unpack it (xz -d)"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed: unpack it (zstd -d)"),
    (b"BZh", "bzip2-compressed: unpack it (bzip2 -d)"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it"),
    (b"ARROW1", "an Arrow file: write it as Parquet or JSON lines"),
    (b"FEA1", "a Feather file: write it as Parquet or JSON lines"),
    (b"\xff\xff\xff\xff", ARROW),
    (b"SQLite format 3", "an SQLite database: write it as JSON lines"),
    (b"\xff\xfe", "UTF-16 text: write it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: write it as UTF-8"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: git lfs pull"),
    (b"<", "a web page or XML, not a file of problems: look at how it was downloaded"),
];

/// Opens a file. Its kind is detected from its first bytes, for CSV also from its name.
///
/// # Errors
/// A file that cannot be read; a file of another kind, which the message names.
pub(super) fn open(file: &Path) -> Result<Content> {
    let shown = file.display();
    let context = || format!("{shown}: cannot read");
    let plain = std::fs::File::open(file).with_context(context)?;
    let packed = plain.metadata().with_context(context)?.len();
    let mut reader: Box<dyn BufRead> = Box::new(BufReader::new(plain));
    if reader.fill_buf().with_context(context)?.starts_with(&[0x1f, 0x8b]) {
        let most = MOST_UNPACKED.0.saturating_add(MOST_UNPACKED.1.saturating_mul(packed));
        let what = format!("{packed} bytes unpack to more than {most}: more than text does");
        let reader_of = flate2::bufread::MultiGzDecoder::new(reader);
        reader = Box::new(BufReader::new(BoundedReader { reader: reader_of, left: most, what }));
    }
    let head = reader.fill_buf().with_context(context)?;
    if let Some((_, what)) = OTHERS.iter().find(|(magic, _)| head.starts_with(magic)) {
        bail!("{shown}: {what}");
    }
    let zeros = head.iter().take(64).filter(|byte| **byte == 0).count();
    if head.starts_with(b"PAR1") {
        let mut bytes = vec![];
        reader.take(MOST_PARQUET + 1).read_to_end(&mut bytes).with_context(context)?;
        ensure!(bytes.len() as u64 <= MOST_PARQUET, "{shown}: Parquet of more than {MOST_PARQUET} bytes: split it");
        return Ok(Content::Parquet(bytes));
    }
    ensure!(
        zeros == 0,
        "{shown}: has zero bytes, so it is not UTF-8 text (UTF-16, or a binary file): save it as UTF-8"
    );
    ensure!(head.get(257..262).is_none_or(|tag| tag != b"ustar"), "{shown}: a tar archive: unpack it");
    let name = file_name(file).to_lowercase();
    let named_table = [".csv", ".tsv"].iter().any(|ending| name.trim_end_matches(".gz").ends_with(ending));
    let first =
        head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head).iter().find(|byte| !byte.is_ascii_whitespace());
    if named_table && !first.is_some_and(|byte| matches!(byte, b'{' | b'[')) {
        return Ok(Content::Csv(reader));
    }
    Ok(Content::Json(reader))
}

/// Maximum bytes of a Parquet file, which is read whole.
const MOST_PARQUET: u64 = 512 << 20;

/// Maximum bytes of an unpacked file: this constant, plus this many times its packed size. Text packs to a tenth.
const MOST_UNPACKED: (u64, u64) = (64 << 20, 50);

/// A reader that fails after `left` bytes.
struct BoundedReader<R> {
    reader: R,
    left: u64,
    what: String,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 && !into.is_empty() {
            return Err(std::io::Error::other(self.what.clone()));
        }
        let came = self.reader.read(&mut into[..most])?;
        self.left -= came as u64;
        Ok(came)
    }
}

/// Error for a text that could not be read.
pub(super) fn unread(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        std::io::ErrorKind::InvalidData => anyhow!("not UTF-8 text: write it as UTF-8"),
        _ => anyhow!("cannot read: {error}"),
    }
}
