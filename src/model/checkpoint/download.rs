//! Downloads from the hub that cannot hang, leave the cache, or be taken for whole when they are not. `hf-hub` does the
//! work; this file doubts what servers say.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiRepo};
use hf_hub::{Cache, Repo};
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};

/// Seconds without a byte after which a download is given up (Hugging Face's name for it), and their default.
const TIMEOUT: (&str, u64) = ("HF_HUB_DOWNLOAD_TIMEOUT", 60);

/// The files of one repository.
pub(super) struct Files {
    api: Api,
    repo: Repo,
    /// Told of whatever comes from the server.
    alive: Sender<()>,
}

/// Runs `work` with the files of a repository, until it is done or nothing has come for the timeout.
///
/// # Errors
/// Those of `work`; a server that is silent or says what no hub says.
pub(super) fn with_files<T: Send + 'static>(
    api: Api,
    repo: Repo,
    work: impl FnOnce(&Files) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (name, default) = TIMEOUT;
    let seconds = std::env::var(name).ok().and_then(|text| text.parse().ok()).filter(|s| *s > 0).unwrap_or(default);
    let (alive, beats) = channel();
    // A thread of its own: hf-hub waits for a silent server without end, and panics at some answers.
    let worker = std::thread::spawn(move || work(&Files { api, repo, alive }));
    loop {
        match beats.recv_timeout(Duration::from_secs(seconds)) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => bail!("nothing came from the server for {seconds} s ({name})"),
            Err(RecvTimeoutError::Disconnected) => {
                return worker.join().unwrap_or_else(|_| bail!("the server's answer is not that of a hub"));
            }
        }
    }
}

impl Files {
    fn repo(&self) -> ApiRepo {
        self.api.repo(self.repo.clone())
    }

    /// Names of all files.
    pub fn names(&self) -> Result<Vec<String>> {
        let names = self.repo().info()?.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        let _ = self.alive.send(());
        Ok(names)
    }

    /// The file in the cache, downloaded if need be and then compared with what the server said of it.
    ///
    /// # Errors
    /// A download that failed or came damaged, by file; the next try goes on where it stopped.
    pub fn get(&self, name: &str) -> Result<PathBuf> {
        if let Some(path) = Cache::from_env().repo(self.repo.clone()).get(name) {
            return Ok(path);
        }
        let repo = self.repo();
        let said = self.api.metadata(&repo.url(name)).with_context(|| name.to_owned())?;
        for part in [said.etag(), said.commit_hash()] {
            // hf-hub makes paths of them. A tag may be "weak".
            let part = part.trim_start_matches("W/");
            let plain = !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            ensure!(plain, "{name}: the server names it {part:?}, which is no hash");
        }
        let _ = self.alive.send(());
        let beat = Beat { bar: ProgressBar::new(0), alive: self.alive.clone() };
        let path = repo.download_with_progress(name, beat).with_context(|| name.to_owned())?;
        if let Err(error) = whole(&path, said.size() as u64, said.etag()) {
            // Otherwise it would be found in the cache the next time.
            let _ = fs::canonicalize(&path).and_then(fs::remove_file);
            let _ = fs::remove_file(&path);
            return Err(error.context(name.to_owned()));
        }
        Ok(path)
    }
}

/// Whether a file is what was announced. The hub's tag of a large file is the SHA-256 of its bytes.
fn whole(path: &Path, size: u64, etag: &str) -> Result<()> {
    let mut file = fs::File::open(path)?;
    let found = file.metadata()?.len();
    ensure!(found == size, "came with {found} bytes of {size}; try again");
    if etag.len() == 64 {
        let mut hash = Sha256::new();
        std::io::copy(&mut file, &mut hash)?;
        let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(digits == etag, "came damaged (SHA-256 {digits}, announced {etag}); try again");
    }
    Ok(())
}

/// A bar on a terminal that also tells that bytes come.
struct Beat {
    bar: ProgressBar,
    alive: Sender<()>,
}

impl Progress for Beat {
    fn init(&mut self, size: usize, name: &str) {
        Progress::init(&mut self.bar, size, name);
    }

    fn update(&mut self, bytes: usize) {
        Progress::update(&mut self.bar, bytes);
        let _ = self.alive.send(());
    }

    fn finish(&mut self) {
        Progress::finish(&mut self.bar);
    }
}
