//! Downloads the files of one commit of a repository into the cache and verifies them. A file appears under its name only if it has the
//! announced size and hash; a broken download is resumed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use ureq::http::StatusCode;

use super::cache::Cache;
use super::client::{Client, HubResponse};
use super::is_hash;
use crate::output::open_to_append;
use crate::progress::{go_on, say};

/// Maximum bytes of the list of files, of a text file, and of a weights file.
const MOST_LIST: u64 = 32 << 20;
const MOST_TEXT: u64 = 512 << 20;
const MOST_WEIGHTS: u64 = 1 << 40;
/// Maximum connections per download; a retry requires progress by the last one.
const TRIES: usize = 3;

#[derive(Deserialize)]
struct HubListing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// The files of one commit: the revision is resolved once, so that later pushes do not mix in.
pub(super) struct HubFiles<'a> {
    client: &'a Client,
    cache: &'a Cache,
    id: String,
    pub commit: String,
    names: Vec<String>,
}

/// The hub's announcement of a file.
struct HubFile {
    /// ETag: a hash whose length determines its kind.
    tag: String,
    size: Option<u64>,
}

impl<'a> HubFiles<'a> {
    pub fn new(client: &'a Client, cache: &'a Cache, id: &str, revision: &str) -> Result<Self> {
        let path = format!("/api/models/{}/revision/{}", percent_encode(id, "/"), percent_encode(revision, ""));
        let answer = client.get(&path, None)?;
        let mut body = Vec::new();
        answer
            .response
            .into_body()
            .into_reader()
            .take(MOST_LIST + 1)
            .read_to_end(&mut body)
            .map_err(|error| client.describe(error.into()))?;
        ensure!(body.len() as u64 <= MOST_LIST, "the hub's list of files is longer than {MOST_LIST} bytes");
        let info: HubListing = serde_json::from_slice(&body).context("not a hub's list of files")?;
        ensure!(is_hash(&info.sha), "the hub names the commit {:?}, which is not a hash", info.sha);
        let names = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        Ok(Self { client, cache, id: id.to_owned(), commit: info.sha, names })
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|other| other == name)
    }

    /// The file in the cache, downloaded if necessary; the next call resumes a failed download. `name` contains no folder.
    pub fn get(&self, name: &str) -> Result<PathBuf> {
        let path = self.cache.snapshot(&self.commit).join(name);
        if path.exists() {
            return Ok(path);
        }
        self.download(name).with_context(|| name.to_owned())
    }

    fn download(&self, name: &str) -> Result<PathBuf> {
        let path = format!("/{}/resolve/{}/{}", percent_encode(&self.id, "/"), self.commit, percent_encode(name, ""));
        let announced = self.parse_headers(&self.client.get(&path, Some("bytes=0-0"))?)?;
        let lower = name.to_ascii_lowercase();
        let is_weights = lower.ends_with(".safetensors") || lower.ends_with(".gguf");
        let most = if is_weights { MOST_WEIGHTS } else { MOST_TEXT };
        let size = announced.size.unwrap_or(0);
        ensure!(size <= most, "announced with {size} bytes; at most {most} are downloaded");
        let blob = self.cache.blob(&announced.tag);
        let _lock = self.cache.lock(&announced.tag, name)?;
        let is_complete = blob.metadata().is_ok_and(|file| announced.size.is_none_or(|size| size == file.len()));
        if !is_complete {
            let part = blob.with_added_extension("incomplete");
            self.fill(&path, &part, name, &announced, most)?;
            if let Err(error) = verify(&part, &announced, name) {
                let _ = fs::remove_file(&part);
                return Err(error);
            }
            fs::rename(&part, &blob).with_context(|| format!("cannot write {}", blob.display()))?;
        }
        self.cache.link(&self.commit, name, &announced.tag)
    }

    /// Parses the hub's headers of a file. Of the host that serves the bytes only the length is used.
    fn parse_headers(&self, answer: &HubResponse) -> Result<HubFile> {
        if let Some(commit) = answer.hub_header("x-repo-commit") {
            ensure!(is_hash(commit), "the server names the commit {commit:?}, which is not a hash");
            ensure!(commit == self.commit, "is of commit {commit} instead of {}: try again", self.commit);
        }
        let tag = answer.hub_header("x-linked-etag").or_else(|| answer.hub_header("etag")).unwrap_or_default();
        let tag = tag.trim_start_matches("W/").trim_matches('"').to_owned();
        ensure!(is_hash(&tag), "the server's ETag {tag:?} is not a hash");
        let total = || answer.header("content-range")?.rsplit_once('/')?.1.parse().ok();
        let length = || answer.header("content-length")?.parse().ok();
        let size = answer.hub_header("x-linked-size").and_then(|size| size.parse().ok());
        // A server cannot send a range of an empty file (416).
        let whole = answer.response.status() == StatusCode::OK;
        Ok(HubFile { tag, size: size.or_else(|| if whole { length() } else { total() }) })
    }

    /// Downloads `part` to its full length over at most [`TRIES`] connections.
    fn fill(&self, path: &str, part: &Path, name: &str, announced: &HubFile, most: u64) -> Result<()> {
        if let Some(folder) = part.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
        }
        let bar = bar(name, announced.size);
        let length = || part.metadata().map_or(0, |file| file.len());
        for again in 1.. {
            let before = length();
            let done = self.stream(path, part, announced.size.unwrap_or(most), &bar);
            go_on()?;
            let now = length();
            let short = announced.size.filter(|size| now < *size);
            match (done, short) {
                (Ok(()), None) => break,
                (_, Some(_)) if again < TRIES && now > before => {}
                (Err(error), _) => return Err(error),
                (Ok(()), Some(size)) => bail!("{now} bytes of {size} arrived; try again"),
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Appends the bytes of one connection to `part`, at most `most` in all.
    fn stream(&self, path: &str, part: &Path, most: u64, bar: &ProgressBar) -> Result<()> {
        let mut have = part.metadata().map_or(0, |file| file.len());
        if have > most {
            fs::remove_file(part)?;
            have = 0;
        }
        if have == most && most > 0 {
            return Ok(());
        }
        let answer = self.client.get(path, (have > 0).then(|| format!("bytes={have}-")).as_deref())?;
        let status = answer.response.status();
        let start = || answer.header("content-range")?.strip_prefix("bytes ")?.split('-').next()?.parse().ok();
        let resumes = have > 0 && status == StatusCode::PARTIAL_CONTENT && start() == Some(have);
        if !resumes && have > 0 && status != StatusCode::OK {
            let _ = fs::remove_file(part);
            bail!("the server cannot resume at byte {have}; try again from the start");
        }
        let cannot_write = || format!("cannot write {}", part.display());
        let mut file = open_to_append(part)?;
        have = if resumes { have } else { 0 };
        file.set_len(have).with_context(cannot_write)?;
        let mut body = answer.response.into_body().into_reader();
        let mut piece = vec![0; 1 << 16];
        loop {
            go_on()?;
            bar.set_position(have);
            let read = body.read(&mut piece).map_err(|error| self.client.describe(error.into()))?;
            if read == 0 {
                return file.sync_all().with_context(cannot_write);
            }
            have += read as u64;
            if have > most {
                let _ = fs::remove_file(part);
                bail!("the server sends more than {most} bytes");
            }
            file.write_all(&piece[..read]).with_context(cannot_write)?;
        }
    }
}

/// Verifies a file against its announcement. The hub's tag of a large file is the SHA-256 of its bytes, that of a small one git's
/// SHA-1; some mirrors use the plain SHA-1.
fn verify(path: &Path, announced: &HubFile, name: &str) -> Result<()> {
    let found = path.metadata()?.len();
    if let Some(size) = announced.size {
        ensure!(found == size, "{found} bytes of {size} arrived; try again");
    }
    let tag = announced.tag.to_ascii_lowercase();
    let hexadecimal = tag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let same = match tag.len() {
        64 if hexadecimal => digest(Sha256::new(), path)? == tag,
        40 if hexadecimal => {
            let git = Sha1::new().chain_update(format!("blob {found}\0"));
            digest(git, path)? == tag || digest(Sha1::new(), path)? == tag
        }
        _ => {
            say(&format!("{name}: the server's tag {tag} is neither SHA-1 nor SHA-256: only the length was checked"));
            true
        }
    };
    ensure!(same, "damaged: its hash is not the announced {tag}; try again");
    Ok(())
}

fn digest<D: Digest + Write>(mut hash: D, path: &Path) -> Result<String> {
    std::io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Percent-encodes a part of a URL path, except letters, digits, `-_.~` and `safe`.
fn percent_encode(text: &str, safe: &str) -> String {
    let encode = |byte: u8| match char::from(byte) {
        c if c.is_ascii_alphanumeric() || "-_.~".contains(c) || safe.contains(c) => c.to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// Shown on a terminal only.
fn bar(name: &str, size: Option<u64>) -> ProgressBar {
    let bar = size.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let style = ProgressStyle::with_template("{prefix:>12} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(name.to_owned());
    bar
}
