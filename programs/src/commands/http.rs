//! Minimal HTTP for one page and its program: one request per connection, with bounded length and time. Each connection is read by its own
//! thread, so that a stalled one blocks no other. Knows no model and no page.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Most bytes of a request's head.
const LONGEST_HEAD: usize = 16 << 10;

/// Bytes of a body, at most.
const LONGEST_BODY: usize = 1 << 20;

/// Timeout of reading a request and of writing an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum number of connections that are read at a time: a new one replaces the oldest.
const MOST: usize = 64;

/// Maximum number of waiting requests; others are told to retry.
const MOST_WAITING: usize = 16;

pub(super) struct Head {
    pub method: String,
    /// Path and query.
    pub target: String,
    headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).next()
    }

    /// The values of a header, which a sender may repeat.
    pub fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        self.headers.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// A whole request, to be answered once.
pub(super) struct HttpRequest {
    pub head: Head,
    pub body: String,
    stream: TcpStream,
}

impl HttpRequest {
    /// Whether the sender has closed the connection.
    pub fn is_abandoned(&self) -> bool {
        let peeked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut [0]));
        let blocking = self.stream.set_nonblocking(false);
        match peeked {
            Ok(bytes) => bytes == 0 || blocking.is_err(),
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    /// A closed pipe is not an error.
    pub fn answer(self, status: u16, kind: &str, body: &str) {
        answer(&self.stream, status, kind, body);
    }
}

/// Why a request is not passed on: a status and a line.
type Refusal = (u16, String);

/// The requests that come in and are not refused by their heads.
pub(super) fn requests(
    listener: TcpListener,
    refuses: impl Fn(&Head) -> Option<Refusal> + Send + Sync + 'static,
) -> Receiver<HttpRequest> {
    let (sender, requests) = sync_channel(MOST_WAITING);
    let (refuses, open) = (Arc::new(refuses), Arc::new(OpenConnections::default()));
    thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let Ok(handle) = stream.try_clone() else { continue };
            open.add(number, handle);
            let (sender, refuses, open) = (sender.clone(), refuses.clone(), open.clone());
            let reader = thread::Builder::new().spawn(move || {
                let read = read(&stream, &*refuses);
                pass_on(stream, read, &sender);
                open.remove(number);
            });
            // Without a thread the connection is closed, and the next one may get one.
            drop(reader);
        }
    });
    requests
}

/// The connections that are being read, the oldest first.
#[derive(Default)]
struct OpenConnections(Mutex<VecDeque<(usize, TcpStream)>>);

impl OpenConnections {
    /// Closes the oldest if there are too many.
    fn add(&self, number: usize, stream: TcpStream) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MOST
            && let Some((_, oldest)) = open.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        open.push_back((number, stream));
    }

    fn remove(&self, number: usize) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(other, _)| *other != number);
    }
}

fn pass_on(stream: TcpStream, read: Result<(Head, String), Refusal>, sender: &SyncSender<HttpRequest>) {
    match read {
        Ok((head, body)) => {
            if let Err(TrySendError::Full(request)) = sender.try_send(HttpRequest { head, body, stream }) {
                request.answer(503, "text/plain", "too many waiting requests: try again later\n");
            }
        }
        Err((status, why)) => {
            answer(&stream, status, "text/plain", &why);
            // Reads what is still in flight: otherwise the system would truncate the answer.
            let until = Instant::now() + PATIENCE;
            let mut rest = [0; 4096];
            while Instant::now() < until && (&stream).read(&mut rest).is_ok_and(|n| n > 0) {}
        }
    }
}

/// A request's head and body.
fn read(stream: &TcpStream, refuses: &dyn Fn(&Head) -> Option<Refusal>) -> Result<(Head, String), Refusal> {
    let wrong = |why: &str| (400, format!("{why}\n"));
    stream.set_write_timeout(Some(PATIENCE)).map_err(|error| wrong(&error.to_string()))?;
    let until = Instant::now() + PATIENCE;
    let mut bytes = vec![];
    let more = |bytes: &mut Vec<u8>| {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut part = [0; 4096];
        let read = stream.set_read_timeout(Some(left)).and_then(|()| (&*stream).read(&mut part));
        match read {
            Ok(n) if n > 0 && Instant::now() < until => {
                bytes.extend_from_slice(&part[..n]);
                Ok(())
            }
            _ => Err((408, "the request is incomplete\n".to_owned())),
        }
    };
    let end = loop {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        if end.unwrap_or(bytes.len()) > LONGEST_HEAD {
            return Err((431, "the head of the request is too long\n".to_owned()));
        }
        if let Some(end) = end {
            break end;
        }
        more(&mut bytes)?;
    };
    let head = head(&bytes[..end]).ok_or_else(|| wrong("malformed request"))?;
    // Duplicate headers: the two ends of a connection may use different ones (request smuggling).
    if let Some(twice) = ["Host", "Origin", "Content-Length"].into_iter().find(|name| head.headers(name).count() > 1) {
        return Err(wrong(&format!("duplicate header {twice}")));
    }
    if let Some(refusal) = refuses(&head) {
        return Err(refusal);
    }
    if head.header("Transfer-Encoding").is_some() {
        return Err((411, "a body needs its Content-Length\n".to_owned()));
    }
    let length = head.header("Content-Length").unwrap_or("0").parse::<usize>();
    let length = length.map_err(|_| wrong("Content-Length is not a number of bytes"))?;
    if length > LONGEST_BODY {
        return Err((413, format!("a request has at most {LONGEST_BODY} bytes\n")));
    }
    if head.header("Expect").is_some_and(|expected| expected.eq_ignore_ascii_case("100-continue")) {
        let _ = (&*stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    while bytes.len() < end + length {
        more(&mut bytes)?;
    }
    let body = String::from_utf8(bytes[end..end + length].to_vec()).map_err(|_| wrong("the body is not UTF-8"))?;
    Ok((head, body))
}

fn head(bytes: &[u8]) -> Option<Head> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(bytes).ok()?;
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let headers = request.headers.iter().map(|header| (header.name.to_owned(), text(header.value))).collect();
    Some(Head { method: request.method?.to_owned(), target: request.path?.to_owned(), headers })
}

/// A closed pipe is not an error.
fn answer(mut stream: &TcpStream, status: u16, kind: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status} \r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let _ = stream.shutdown(Shutdown::Write);
}
