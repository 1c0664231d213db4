//! A hub on this machine that can be made to lie, break off or fall silent.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// What the server does wrong with the file that [`Hub::wrong`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The connection ends in the middle.
    BreaksOff,
    /// Fewer bytes than it announces, without an error.
    Short,
    /// One byte is another.
    Changed,
    /// Accepts the connection and says nothing more.
    Silent,
    /// HTTP 500.
    Fails,
    /// Sends on to itself without end.
    Loops,
    /// Sends on to nowhere.
    Nowhere,
    /// A tag that leads out of the cache.
    HostileTag,
    /// A commit that leads out of the cache.
    HostileCommit,
}

#[derive(Default)]
struct Log {
    /// First bytes that were asked for beyond a file's start.
    resumed: Vec<usize>,
}

/// A running server.
pub struct Hub {
    pub endpoint: String,
    fault: Arc<Mutex<Fault>>,
    log: Arc<Mutex<Log>>,
}

impl Hub {
    /// Serves `files` as every repository; `wrong` is the one that faults meet.
    pub fn start(files: BTreeMap<String, Vec<u8>>, wrong: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let (fault, log) = (Arc::new(Mutex::new(Fault::None)), Arc::<Mutex<Log>>::default());
        let (its_fault, its_log, files) = (fault.clone(), log.clone(), Arc::new(files));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (fault, log, files) = (its_fault.clone(), its_log.clone(), files.clone());
                std::thread::spawn(move || {
                    let fault = || *fault.lock().expect("a fault");
                    // A client that went away is its own affair.
                    let _ = serve(stream, &files, wrong, &fault, &log);
                });
            }
        });
        Self { endpoint, fault, log }
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock().expect("a fault") = fault;
    }

    /// Whether a download went on in the middle of a file.
    pub fn has_resumed(&self) -> bool {
        self.log.lock().expect("a log").resumed.iter().any(|from| *from > 0)
    }
}

/// The files of a folder.
pub fn files(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let read = |path: &Path| std::fs::read(path).expect("a file");
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), read(&entry.path()))).collect()
}

fn serve(
    mut stream: TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    wrong: &str,
    fault: &dyn Fn() -> Fault,
    log: &Mutex<Log>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    loop {
        let Some(request) = lines.next().transpose()? else { return Ok(()) };
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut range = None;
        for line in lines.by_ref() {
            let line = line?.to_ascii_lowercase();
            if let Some(bytes) = line.strip_prefix("range: bytes=") {
                range = bytes.split_once('-').map(|(from, to)| (from.parse().unwrap_or(0), to.parse::<usize>().ok()));
            }
            if line.is_empty() {
                break;
            }
        }
        if path.starts_with("/api/") {
            let names: Vec<_> = files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
            let body = serde_json::json!({ "siblings": names, "sha": "c0ffee" }).to_string();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
            continue;
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let Some(bytes) = files.get(name) else {
            write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let fault = if name == wrong { fault() } else { Fault::None };
        let (mut tag, mut commit) = (format!("{:x}", Sha256::digest(bytes)), "c0ffee");
        match fault {
            Fault::Silent => std::thread::sleep(std::time::Duration::from_secs(60)),
            Fault::Fails => {
                write!(stream, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            }
            Fault::Loops | Fault::Nowhere => {
                let to = if fault == Fault::Loops { format!("Location: {path}\r\n") } else { String::new() };
                let head = format!("ETag: \"{tag}\"\r\nX-Repo-Commit: {commit}\r\n{to}");
                write!(stream, "HTTP/1.1 302 Found\r\n{head}Content-Length: 0\r\n\r\n")?;
                continue;
            }
            Fault::HostileTag => tag = "../../../../../evil".to_owned(),
            Fault::HostileCommit => commit = "../../../../../evil",
            _ => {}
        }
        let (from, to) = range.unwrap_or((0, None));
        let asked_one = to == Some(0);
        let end = to.map_or(bytes.len(), |last| (last + 1).min(bytes.len()));
        let mut body = bytes[from.min(end)..end].to_vec();
        if !asked_one {
            log.lock().expect("a log").resumed.push(from);
        }
        if fault == Fault::Short && !asked_one {
            body.truncate(body.len() / 2);
        }
        if fault == Fault::Changed && !asked_one {
            let last = body.len() - 1;
            body[last] ^= 1;
        }
        let range = format!("Content-Range: bytes {from}-{}/{}", end.saturating_sub(1), bytes.len());
        let head = format!("{range}\r\nETag: \"{tag}\"\r\nX-Repo-Commit: {commit}\r\nContent-Length: {}", body.len());
        write!(stream, "HTTP/1.1 206 Partial Content\r\n{head}\r\n\r\n")?;
        if fault == Fault::BreaksOff && !asked_one {
            stream.write_all(&body[..body.len() / 2])?;
            return stream.shutdown(std::net::Shutdown::Both);
        }
        stream.write_all(&body)?;
    }
}
