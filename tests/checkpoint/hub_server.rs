//! A local hub server that can send wrong data, disconnect or hang, and records its requests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Fault of the server for the file that [`Hub::start`] names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The connection ends in the middle of the file.
    BreaksOff,
    /// Fewer bytes than it announces, without an error.
    Short,
    /// An endless body.
    Longer,
    /// One byte differs; the ETag is the SHA-256 of the correct file.
    Changed,
    /// The same with the git hash of a small file.
    ChangedUnderGit,
    /// Accepts the connection and never answers.
    Silent,
    /// HTTP 500.
    Fails,
    /// An endless redirect to itself.
    Loops,
    /// A redirect to a host that does not exist.
    Nowhere,
    /// A redirect to the same path on another host, as hubs do for large files.
    Elsewhere(String),
    /// The same for every request, including the file list.
    Moved(String),
    /// An ETag with a path out of the cache.
    HostileTag,
    /// A commit with a path out of the cache.
    HostileCommit,
    /// A commit that was pushed after the list of files was requested.
    Pushed,
    /// Announces more bytes than any disk has.
    Huge,
    /// An endless file list.
    EndlessList,
    /// Too busy at the first request; asks to wait this many seconds.
    Busy(u64),
}

/// Commit of the server's repository.
pub const COMMIT: &str = "c0ffee";

/// One request.
#[derive(Clone, Debug)]
pub struct HubRequest {
    pub path: String,
    /// `Host` header.
    pub host: String,
    pub authorization: Option<String>,
    /// First and last requested byte.
    range: Option<(usize, Option<usize>)>,
}

/// A running server.
pub struct Hub {
    pub endpoint: String,
    state: Arc<State>,
}

struct State {
    files: BTreeMap<String, Vec<u8>>,
    wrong: &'static str,
    fault: Mutex<Fault>,
    log: Mutex<Vec<HubRequest>>,
}

impl Hub {
    /// Serves `files` as every repository; `wrong` is the file with the fault.
    pub fn start(files: BTreeMap<String, Vec<u8>>, wrong: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(State { files, wrong, fault: Mutex::new(Fault::None), log: Mutex::default() });
        let its = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = its.clone();
                // Ignore clients that disconnect.
                std::thread::spawn(move || _ = state.serve(stream));
            }
        });
        Self { endpoint, state }
    }

    pub fn set(&self, fault: Fault) {
        *self.state.fault.lock().expect("a fault") = fault;
    }

    /// Requests since the last call.
    pub fn asked(&self) -> Vec<HubRequest> {
        std::mem::take(&mut self.state.log.lock().expect("a log"))
    }
}

impl HubRequest {
    /// Whether it resumes in the middle of a file.
    pub fn goes_on(&self) -> bool {
        self.range.is_some_and(|(from, _)| from > 0)
    }
}

/// The files of a folder.
pub fn files(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let read = |path: &Path| std::fs::read(path).expect("a file");
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), read(&entry.path()))).collect()
}

/// The next request of a connection.
fn request(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> std::io::Result<Option<HubRequest>> {
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut request = HubRequest { path, host: String::new(), authorization: None, range: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "host" => request.host = value.to_owned(),
            "authorization" => request.authorization = Some(value.to_owned()),
            "range" => {
                let bytes = value.strip_prefix("bytes=").and_then(|bytes| bytes.split_once('-'));
                request.range = bytes.map(|(from, to)| (from.parse().unwrap_or(0), to.parse().ok()));
            }
            _ => {}
        }
    }
    Ok(Some(request))
}

impl State {
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        while let Some(request) = request(&mut lines)? {
            self.log.lock().expect("a log").push(request.clone());
            let name = request.path.rsplit('/').next().unwrap_or_default();
            let fault = self.fault.lock().expect("a fault").clone();
            match fault {
                Fault::Moved(to) => redirect(&mut stream, &format!("{to}{}", request.path), "")?,
                _ if request.path.starts_with("/api/") => self.list(&mut stream, &fault)?,
                _ => {
                    let fault = if name == self.wrong { fault } else { Fault::None };
                    self.file(&mut stream, &request, name, fault)?;
                }
            }
        }
        Ok(())
    }

    fn list(&self, stream: &mut TcpStream, fault: &Fault) -> std::io::Result<()> {
        if *fault == Fault::EndlessList {
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{{\"sha\": \"")?;
            loop {
                stream.write_all(&[b'a'; 1 << 16])?;
            }
        }
        let names: Vec<_> = self.files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let body = serde_json::json!({ "siblings": names, "sha": COMMIT }).to_string();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn file(&self, stream: &mut TcpStream, request: &HubRequest, name: &str, fault: Fault) -> std::io::Result<()> {
        let Some(bytes) = self.files.get(name) else { return status(stream, "404 Not Found", "") };
        let (mut tag, mut commit) = (format!("{:x}", Sha256::digest(bytes)), COMMIT);
        let mut linked = String::new();
        match &fault {
            Fault::Silent => std::thread::sleep(std::time::Duration::from_secs(60)),
            Fault::Fails => return status(stream, "500 Internal Server Error", ""),
            Fault::Busy(wait) => {
                *self.fault.lock().expect("a fault") = Fault::None;
                return status(stream, "429 Too Many Requests", &format!("Retry-After: {wait}\r\n"));
            }
            Fault::Loops | Fault::Nowhere | Fault::Elsewhere(_) => {
                let to = match &fault {
                    Fault::Loops => request.path.clone(),
                    Fault::Elsewhere(to) => format!("{to}{}", request.path),
                    _ => String::new(),
                };
                let head = format!("X-Linked-ETag: \"{tag}\"\r\nX-Repo-Commit: {commit}\r\n");
                return redirect(stream, &to, &head);
            }
            Fault::HostileTag => tag = "../../../../../evil".to_owned(),
            Fault::HostileCommit => commit = "../../../../../evil",
            Fault::Pushed => commit = "decaf",
            Fault::Huge => linked = format!("X-Linked-Size: {}\r\n", u64::MAX),
            Fault::ChangedUnderGit => {
                let git = Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes);
                tag = format!("{:x}", git.finalize());
            }
            _ => {}
        }
        let (from, to) = request.range.unwrap_or((0, None));
        let only_asked = to == Some(0);
        let end = to.map_or(bytes.len(), |last| (last + 1).min(bytes.len()));
        let mut body = bytes[from.min(end)..end].to_vec();
        if fault == Fault::Short && !only_asked {
            body.truncate(body.len() / 2);
        }
        if matches!(fault, Fault::Changed | Fault::ChangedUnderGit) && !only_asked {
            let last = body.len() - 1;
            body[last] ^= 1;
        }
        let range = format!("Content-Range: bytes {from}-{}/{}", end.saturating_sub(1), bytes.len());
        let head = format!("{range}\r\n{linked}ETag: \"{tag}\"\r\nX-Repo-Commit: {commit}\r\n");
        if fault == Fault::Longer && !only_asked {
            write!(stream, "HTTP/1.1 206 Partial Content\r\n{head}Connection: close\r\n\r\n")?;
            loop {
                stream.write_all(&[0; 1 << 16])?;
            }
        }
        write!(stream, "HTTP/1.1 206 Partial Content\r\n{head}Content-Length: {}\r\n\r\n", body.len())?;
        if fault == Fault::BreaksOff && !only_asked {
            stream.write_all(&body[..body.len() / 2])?;
            return stream.shutdown(std::net::Shutdown::Both);
        }
        stream.write_all(&body)
    }
}

fn status(stream: &mut TcpStream, status: &str, head: &str) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\n{head}Content-Length: 0\r\n\r\n")
}

fn redirect(stream: &mut TcpStream, to: &str, head: &str) -> std::io::Result<()> {
    let to = if to.is_empty() { String::new() } else { format!("Location: {to}\r\n") };
    status(stream, "302 Found", &format!("{head}{to}"))
}
