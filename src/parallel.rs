//! Runs contiguous parts of work on separate threads, with results in order.

use std::any::Any;
use std::cell::Cell;
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use memmap2::MmapOptions;
use rayon::{ThreadBuilder, ThreadPool, ThreadPoolBuilder, Yield};

/// Runs a program's work on one of the `threads` of the pool of tensor operations. From any other thread, each operation on several threads
/// would first put its caller to sleep.
pub fn on_the_pool<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> Result<R> {
    // An error without a cause means that the pool exists already: it is used as it is.
    let built = ThreadPoolBuilder::new().num_threads(threads).spawn_handler(start).build_global();
    if let Some(cause) = built.as_ref().err().and_then(Error::source) {
        bail!("cannot start {threads} threads: {cause}; {ADVICE}");
    }
    Ok(rayon::scope(|_| work()))
}

/// Bytes of a thread's stack, as large as a main thread's.
const STACK: usize = 8 << 20;

/// An error if a thread's stack and a MiB more cannot be mapped: a thread that finds no memory for its signal stack aborts the program.
fn memory_for_a_thread() -> io::Result<()> {
    MmapOptions::new().len(STACK + (1 << 20)).map_anon().map(drop)
}

/// Starts a thread of a pool and waits until it runs: what it maps at its start is then known to the next one's check.
fn start(thread: ThreadBuilder) -> io::Result<()> {
    memory_for_a_thread()?;
    let (running, runs) = sync_channel(1);
    std::thread::Builder::new().stack_size(STACK).spawn(move || {
        // Fails only if the receiver is gone, and it waits.
        let _ = running.send(());
        thread.run();
    })?;
    runs.recv().map_err(io::Error::other)
}

const ADVICE: &str = "--threads N starts fewer; `ulimit -u` and `ulimit -v` show what this user may have";

/// Runs `work` while the pool's other threads spin for their parts of it. Waking a thread takes as long as a small product; steps of hundreds
/// of small products spent a tenth of their time on it (benches/PROFILE.md).
pub(crate) fn threads_awake<R>(work: impl FnOnce() -> R) -> R {
    if CALLING.replace(true) {
        return work();
    }
    let done = AtomicBool::new(false);
    rayon::in_place_scope(|scope| {
        let _ended = EndSignal(&done);
        for _ in 1..rayon::current_num_threads() {
            scope.spawn(|_| {
                // A thread that waits for a part may be given this loop: it must not stay here.
                while !CALLING.get() && !done.load(Ordering::Relaxed) {
                    if rayon::yield_now() != Some(Yield::Executed) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        work()
    })
}

thread_local! {
    /// Whether this thread is inside the work of [`threads_awake`].
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Ends the spinning when the work is done, also by a panic.
struct EndSignal<'a>(&'a AtomicBool);

impl Drop for EndSignal<'_> {
    fn drop(&mut self) {
        CALLING.set(false);
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Cuts `items` into at most `shards` contiguous parts of similar size.
pub fn cut<T>(items: &[T], shards: usize) -> Vec<&[T]> {
    let size = items.len().div_ceil(shards.max(1)).max(1);
    items.chunks(size).collect()
}

/// Error for a panic, with its message.
#[derive(Clone, Debug, thiserror::Error)]
#[error("a computation panicked: {0}")]
pub(crate) struct Panic(String);

impl Panic {
    pub fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self(text.unwrap_or_else(|| "no message".to_owned()))
    }

    /// Whether its message is about memory, as that of a device without enough of it.
    pub fn is_out_of_memory(&self) -> bool {
        let text = self.0.to_lowercase();
        ["memory", "alloc"].iter().any(|word| text.contains(word))
    }
}

/// Runs `work` on every part, one worker each; results in order.
///
/// Tensor operations inside a part use its share of the cores: two parts on two cores get one thread each. With more threads than cores
/// they would wait for each other at every matrix product.
///
/// # Errors
/// The first part that fails; a panic inside a worker becomes an error.
pub fn run<'t, T: Sync, R: Send>(parts: &[&'t [T]], work: impl Fn(&'t [T]) -> Result<R> + Sync) -> Result<Vec<R>> {
    if let &[only] = parts {
        return Ok(vec![work(only)?]);
    }
    let threads = (rayon::current_num_threads() / parts.len().max(1)).max(1);
    let within = |part: &'t [T]| {
        let pool = idle_pool(threads)?;
        let done = pool.install(|| work(part));
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
        done
    };
    std::thread::scope(|scope| {
        let within = &within;
        let start = |part| {
            memory_for_a_thread()?;
            std::thread::Builder::new().spawn_scoped(scope, move || within(part))
        };
        let workers: Vec<_> = parts.iter().copied().map(start).collect();
        // Join every worker before the first error is examined: a scope panics on an unjoined panic.
        let joined: Vec<_> = workers.into_iter().map(|worker| Ok(worker.context(ADVICE)?.join())).collect();
        joined.into_iter().map(|done: Result<_>| done?.map_err(|panic| anyhow!(Panic::new(panic.as_ref())))?).collect()
    })
}

/// Runs `work` on every item, one worker per part ([`cut`], [`run`]); results in order.
pub(crate) fn each<'t, T: Sync, R: Send>(
    items: &'t [T],
    shards: usize,
    work: impl Fn(&'t T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let done = run(&cut(items, shards), |part| part.iter().map(&work).collect::<Result<Vec<_>>>())?;
    Ok(done.into_iter().flatten().collect())
}

/// Idle pools. The next step reuses the threads of a step, with their memory.
static IDLE: Mutex<Vec<ThreadPool>> = Mutex::new(vec![]);

fn idle_pool(threads: usize) -> Result<ThreadPool> {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = idle.iter().position(|pool| pool.current_num_threads() == threads) {
        return Ok(idle.swap_remove(at));
    }
    drop(idle);
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .spawn_handler(start)
        .build()
        .with_context(|| format!("cannot start {threads} threads; {ADVICE}"))
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn awake_ends_wherever_it_is_called_and_when_the_work_panics() {
        let sum = |n: u64| -> u64 {
            use rayon::prelude::*;
            (0..n).into_par_iter().sum()
        };
        for i in 0..600 {
            let pool = ThreadPoolBuilder::new().num_threads(1 + i % 3).build().expect("a pool");
            assert_eq!(threads_awake(|| sum(1000)), 499_500);
            // From inside a pool, nested, and in two tasks of one pool at once.
            let (a, b) = pool.install(|| {
                rayon::join(|| threads_awake(|| threads_awake(|| sum(1000))), || threads_awake(|| sum(100)))
            });
            assert_eq!((a, b), (499_500, 4_950));
        }
        let pool = ThreadPoolBuilder::new().num_threads(2).build().expect("a pool");
        let panicked = pool.install(|| catch_unwind(AssertUnwindSafe(|| threads_awake(|| panic!("on purpose")))));
        assert!(panicked.is_err());
    }
}
