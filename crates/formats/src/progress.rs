//! Progress for the user: a bar on a terminal, plain lines otherwise; and Ctrl-C.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

static STOP: AtomicBool = AtomicBool::new(false);
static QUIET: AtomicBool = AtomicBool::new(false);

/// Disables output: of the processes that train together only one prints.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

fn quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// The exit code of a process that the user or a scheduler stopped: 128 and the number of SIGINT.
pub const STOPPED: u8 = 130;

/// Set by the first Ctrl-C, by the SIGTERM that a scheduler sends before it kills, and by its earlier warnings (SIGUSR1, SIGXCPU). A
/// second Ctrl-C or SIGTERM ends the process at once. A signal that was ignored at the start (`nohup`) stays ignored.
pub fn stop_flag() -> &'static AtomicBool {
    static HANDLER: OnceLock<()> = OnceLock::new();
    HANDLER.get_or_init(|| {
        let before = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        // Without a handler Ctrl-C ends the process, with its last checkpoint on disk.
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

    /// Restores ignored signals, and lets warnings set the flag.
    pub(super) fn set(ignored: u64) {
        let set = |which: Signal, handler| {
            // SAFETY: the handler only stores into an atomic.
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

/// Whether [`stop_flag`] is set.
pub fn stop_asked() -> bool {
    stop_flag().load(Ordering::SeqCst)
}

/// Text with terminal control sequences (in keys of a model file, in a generated answer) escaped as in JSON, so that a line of JSON stays
/// valid.
pub fn plain(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(steers) {
        return text.into();
    }
    text.chars().map(|c| if steers(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }).collect()
}

/// Prints a line to stderr. A closed pipe or a full disk is ignored.
pub fn say(line: &str) {
    if !quiet() {
        complain(line);
    }
}

/// Prints an error, also where other output is disabled.
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

/// Error of a computation that the user interrupted: no partial result may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped: what was not finished will be done again")]
pub struct Interruption;

/// # Errors
/// [`Interruption`], after Ctrl-C.
pub fn go_on() -> Result<(), Interruption> {
    if stop_flag().load(Ordering::Relaxed) { Err(Interruption) } else { Ok(()) }
}

static ABANDONED: AtomicBool = AtomicBool::new(false);

/// Sets whether the current forward is abandoned, because nobody waits for it: it then ends at its next layer.
pub fn set_abandoned(abandoned: bool) {
    ABANDONED.store(abandoned, Ordering::Relaxed);
}

/// # Errors
/// [`Interruption`] if the forward is abandoned.
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
            // Before the first piece is done there is no estimate.
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

/// Progress of work that threads share. Work that finishes within a second prints nothing.
pub struct SharedProgress {
    at: Mutex<(usize, Progress)>,
    what: String,
}

impl SharedProgress {
    /// `of` names the worker.
    pub fn new(of: &str, what: &str, total: usize) -> Self {
        Self { at: Mutex::new((0, Progress::new(of, total, 0))), what: what.to_owned() }
    }

    /// Counts one finished piece.
    pub fn add_one(&self) {
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
