//! What a user sees while it works: a bar on a terminal, plain lines otherwise; and Ctrl-C.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

static STOP: AtomicBool = AtomicBool::new(false);
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on nothing is said or shown: of the processes that train together one speaks.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

fn quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// The exit code of a process that the user or a scheduler stopped: 128 and the number of SIGINT.
pub const STOPPED: u8 = 130;

/// Raised by the first Ctrl-C, by the SIGTERM that a scheduler sends before it kills, and by its earlier warnings (SIGUSR1, SIGXCPU). A
/// second Ctrl-C or SIGTERM ends the process at once. A signal that was ignored when the process began (`nohup`) stays ignored.
pub fn stop_flag() -> &'static AtomicBool {
    static HANDLER: OnceLock<()> = OnceLock::new();
    HANDLER.get_or_init(|| {
        let before = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        // Without a handler Ctrl-C simply ends the process, and the last checkpoint stands.
        let _ = ctrlc::set_handler(|| {
            static ASKED: AtomicBool = AtomicBool::new(false);
            if ASKED.swap(true, Ordering::SeqCst) {
                std::process::exit(STOPPED.into());
            }
            STOP.store(true, Ordering::SeqCst);
            say("\nstopping after this step (Ctrl-C again to stop at once)");
        });
        #[cfg(unix)]
        signals::set(before);
        #[cfg(not(unix))]
        let _ = before;
    });
    &STOP
}

/// Bit mask of the signals that this process ignores, from Linux's `status`; 0 on other systems.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(unix)]
mod signals {
    use std::sync::atomic::Ordering;

    use nix::sys::signal::{SigHandler, Signal, signal};

    /// Warnings may repeat (SIGXCPU comes every second); they never end the process.
    extern "C" fn warned(_: i32) {
        super::STOP.store(true, Ordering::SeqCst);
    }

    /// Keeps ignored signals ignored, and lets warnings raise the flag.
    pub(super) fn set(ignored: u64) {
        let set = |which: Signal, handler| {
            // SAFETY: the handler stores into an atomic and does nothing else.
            #[allow(unsafe_code)]
            let _ = unsafe { signal(which, handler) };
        };
        let was_ignored = |which: Signal| ignored >> (which as i32 - 1) & 1 == 1;
        for which in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().filter(|which| was_ignored(*which)) {
            set(which, SigHandler::SigIgn);
        }
        for which in [Signal::SIGUSR1, Signal::SIGXCPU].into_iter().filter(|which| !was_ignored(*which)) {
            set(which, SigHandler::Handler(warned));
        }
    }
}

/// Whether [`stop_flag`] is up.
pub fn stop_asked() -> bool {
    stop_flag().load(Ordering::SeqCst)
}

/// Text without what steers a terminal (escape sequences of a model file's keys, of a generated answer): written out instead, as JSON
/// writes it, so that a line of JSON stays one.
pub fn plain(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(steers) {
        return text.into();
    }
    text.chars().map(|c| if steers(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }).collect()
}

/// A line for whoever watches, on stderr. That nobody can read it any more (a closed pipe, a full disk) ends no work.
pub fn say(line: &str) {
    if !quiet() {
        complain(line);
    }
}

/// An error: a line that is shown also where nothing else is.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", plain(line));
}

/// The error with which a line of [`show`] could not be written.
static UNWRITTEN: OnceLock<String> = OnceLock::new();

/// Prints a line of results on stdout. An error does not end the work; [`shown`] returns it at the end.
pub fn show(line: &str) {
    if quiet() {
        return;
    }
    let mut out = std::io::stdout();
    match writeln!(out, "{}", plain(line)).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => drop(UNWRITTEN.set(error.to_string())),
        _ => {}
    }
}

/// # Errors
/// The error with which a line of [`show`] could not be written. A closed pipe is not an error.
pub fn shown() -> anyhow::Result<()> {
    UNWRITTEN.get().map_or(Ok(()), |why| Err(anyhow::anyhow!("standard output: {why}")))
}

/// What a computation that the user cut short returns: nothing of it may be taken for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped: nothing of what was under way is kept as a result")]
pub struct Interruption;

/// # Errors
/// [`Interruption`], after Ctrl-C.
pub fn go_on() -> Result<(), Interruption> {
    if stop_flag().load(Ordering::Relaxed) { Err(Interruption) } else { Ok(()) }
}

static ABANDONED: AtomicBool = AtomicBool::new(false);

/// Whether anybody still waits for the forward that this process runs: one that is abandoned ends at its next layer.
pub fn set_abandoned(abandoned: bool) {
    ABANDONED.store(abandoned, Ordering::Relaxed);
}

/// # Errors
/// [`Interruption`], of a forward that is abandoned.
pub fn ensure_wanted() -> Result<(), Interruption> {
    if ABANDONED.load(Ordering::Relaxed) { Err(Interruption) } else { Ok(()) }
}

/// One phase's progress.
pub struct Progress {
    bar: Option<ProgressBar>,
    name: String,
    total: usize,
    last: Option<Instant>,
    started: Instant,
    first: usize,
}

impl Progress {
    pub fn new(name: &str, total: usize, done: usize) -> Self {
        let bar = (std::io::stderr().is_terminal() && !quiet()).then(|| {
            let bar = ProgressBar::new(total as u64);
            let style = ProgressStyle::with_template("{prefix:>12} {bar:30} {pos}/{len} {eta} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(name.to_owned());
            bar.set_position(done as u64);
            bar
        });
        Self { bar, name: name.to_owned(), total, last: None, started: Instant::now(), first: done }
    }

    /// `done` of the total, with figures to show. Plain lines come at most every ten seconds, and at the end.
    pub fn update(&mut self, done: usize, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
            bar.set_message(plain(message).into_owned());
            return;
        }
        let due = self.last.is_none_or(|t| t.elapsed() >= Duration::from_secs(10)) || done == self.total;
        if due {
            self.last = Some(Instant::now());
            // Before the first is done nothing says how long one takes.
            let left = match done.saturating_sub(self.first) {
                0 => String::new(),
                n => {
                    let per = self.started.elapsed().as_secs_f64() / n as f64;
                    format!("({:.0} s left) ", per * self.total.saturating_sub(done) as f64)
                }
            };
            say(&format!("{}: {done}/{} {left}{message}", self.name, self.total));
        }
    }

    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish();
        }
    }
}

/// How far work is that threads share. What is done within a second says nothing.
pub struct SharedProgress {
    at: Mutex<(usize, Progress)>,
    what: String,
}

impl SharedProgress {
    /// `of` is who works.
    pub fn new(of: &str, what: &str, total: usize) -> Self {
        Self { at: Mutex::new((0, Progress::new(of, total, 0))), what: what.to_owned() }
    }

    /// One more is done.
    pub fn one(&self) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.0 += 1;
        if at.1.started.elapsed() >= Duration::from_secs(1) {
            let done = at.0;
            at.1.update(done, &self.what);
        }
    }
}

impl Drop for SharedProgress {
    fn drop(&mut self) {
        let at = self.at.get_mut().unwrap_or_else(PoisonError::into_inner);
        at.1.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let status = "Name:\tx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001003\n";
        assert_eq!(super::ignored(status), 0x1003, "SIGHUP, SIGINT and SIGPIPE");
        assert_eq!(super::ignored(""), 0);
    }

    #[test]
    fn a_text_cannot_steer_the_terminal() {
        assert_eq!(super::plain("a\tb\nc é"), "a\tb\nc é");
        let line = serde_json::json!({ "text": "\u{7f}\u{9b}\u{1b}[2J\"" }).to_string();
        let read: serde_json::Value = serde_json::from_str(&super::plain(&line)).expect("JSON still");
        assert_eq!(read["text"], "\u{7f}\u{9b}\u{1b}[2J\"");
        assert_eq!(super::plain("general.\u{1b}[2Jname\r\u{9b}"), "general.\\u001b[2Jname\\u000d\\u009b");
    }
}
