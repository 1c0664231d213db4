//! The processes that train together: size, rank, and collective operations. Knows launchers' variables, numbers and bytes, not models.
//! Without the feature `mpi`, or without a launcher, training is one process.
//!
//! All processes must call the collectives ([`World::sum`] and those below it) in the same order, or they wait for each other forever: a
//! process that fails must end the others ([`Launch::fail`]).

mod launcher;
#[cfg(feature = "mpi")]
mod mpi;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use launcher::Place;

use crate::store::json;

/// A process among those that train together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// Rank of this process, from 0; process 0 writes the files.
    pub rank: usize,
    pub size: usize,
}

/// The connection to the other processes, which ends on drop.
pub struct Launch {
    pub world: World,
    #[cfg(feature = "mpi")]
    _universe: Option<::mpi::environment::Universe>,
}

impl Launch {
    /// Joins the other processes, if there are any.
    ///
    /// # Errors
    /// Several processes that cannot communicate, and would each train alone and overwrite each other's files: a build without the feature
    /// `mpi`, or a launcher that MPI does not support.
    pub fn start() -> Result<Self> {
        let Some(Place { size: n, said_by, .. }) = Place::of_process() else { return Ok(Self::alone()) };
        #[cfg(feature = "mpi")]
        {
            let (universe, world) = mpi::start()?;
            if world.size != n {
                bail!(
                    "{said_by} says that {n} processes were started, MPI sees {}: start them with `mpirun -n {n}` or `srun \
                     --mpi=pmix -n {n}`",
                    world.size
                );
            }
            Ok(Self { world, _universe: Some(universe) })
        }
        #[cfg(not(feature = "mpi"))]
        bail!(
            "{said_by} says that {n} processes were started, and this build trains in one: build with --features mpi, or \
             start one"
        )
    }

    fn alone() -> Self {
        Self {
            world: World::ALONE,
            #[cfg(feature = "mpi")]
            _universe: None,
        }
    }

    /// Ends every process that waits for this one, after it failed.
    pub fn fail(&self) {
        #[cfg(feature = "mpi")]
        if self.world.size > 1 {
            mpi::abort();
        }
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        // Ending the connection would wait for the others, which wait for this process.
        if std::thread::panicking() {
            self.fail();
        }
    }
}

impl World {
    pub const ALONE: Self = Self { rank: 0, size: 1 };

    /// Whether this process writes the files.
    pub fn writes(self) -> bool {
        self.rank == 0
    }

    /// This process's share of the items: every `size`th from its rank on, so that shares are similar.
    pub fn own<T: Clone>(self, items: &[T]) -> Vec<T> {
        items.iter().skip(self.rank).step_by(self.size).cloned().collect()
    }

    /// Gathers every process's results of [its own](Self::own) items, in the order of the items.
    ///
    /// # Errors
    /// Processes that divided different items.
    pub fn all<T: Serialize + DeserializeOwned>(self, own: Vec<T>) -> Result<Vec<T>> {
        if self.size == 1 {
            return Ok(own);
        }
        let parts = self.gather(serde_json::to_vec(&own)?);
        let parse = |bytes: Vec<u8>| json::from_str(std::str::from_utf8(&bytes)?);
        interleave(parts.into_iter().map(parse).collect::<Result<_>>()?)
    }

    /// The sum over all processes, element by element: the same bits on every process and in every run with this number of processes.
    pub fn sum(self, values: &mut [f32]) {
        if self.size > 1 {
            timed(|| exchange::sum(values));
        }
    }

    /// The sums of a few numbers, as [`Self::sum`].
    pub fn sums<const N: usize>(self, mut values: [f64; N]) -> [f64; N] {
        if self.size > 1 {
            timed(|| exchange::sum(&mut values));
        }
        values
    }

    /// The maximum over all processes.
    pub fn max(self, value: f64) -> f64 {
        if self.size > 1 { timed(|| exchange::max(value)) } else { value }
    }

    /// Whether `yes` is true on any process.
    pub fn any(self, yes: bool) -> bool {
        self.max(f64::from(u8::from(yes))) > 0.0
    }

    /// The bytes of every process, in the order of their ranks.
    pub fn gather(self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        if self.size > 1 { timed(|| exchange::gather(self, bytes)) } else { vec![bytes] }
    }

    /// Waits for every process: files that process 0 wrote before can be read after.
    pub fn barrier(self) {
        if self.size > 1 {
            timed(exchange::barrier);
        }
    }

    /// Runs `work` on process 0 before the others, so that a model is downloaded once.
    pub fn first_alone<R>(self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.writes() {
            let done = work()?;
            self.barrier();
            return Ok(done);
        }
        self.barrier();
        work()
    }
}

/// Merges the shares of [`World::own`] in the original order.
fn interleave<T>(parts: Vec<Vec<T>>) -> Result<Vec<T>> {
    let total = parts.iter().map(Vec::len).sum();
    let (n, mut parts) = (parts.len(), parts.into_iter().map(Vec::into_iter).collect::<Vec<_>>());
    let mut all = Vec::with_capacity(total);
    for i in 0..total {
        match parts[i % n].next() {
            Some(item) => all.push(item),
            None => bail!("process {} returned too few of {total} results", i % n),
        }
    }
    Ok(all)
}

/// Time of collectives so far, in nanoseconds, including waits for other processes.
static SPENT: AtomicU64 = AtomicU64::new(0);

/// Seconds that this process has spent in collectives, including waits for slower processes.
pub fn spent() -> f64 {
    SPENT.load(Ordering::Relaxed) as f64 / 1e9
}

fn timed<R>(collective: impl FnOnce() -> R) -> R {
    let started = Instant::now();
    let done = collective();
    SPENT.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
    done
}

#[cfg(feature = "mpi")]
use mpi as exchange;

/// Never called: without MPI `size` is 1.
#[cfg(not(feature = "mpi"))]
mod exchange {
    use super::World;

    pub fn sum<T>(_values: &mut [T]) {}

    pub fn max(value: f64) -> f64 {
        value
    }

    pub fn gather(_world: World, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        vec![bytes]
    }

    pub fn barrier() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_in_order() {
        for (n, items) in [(1, 5), (2, 5), (3, 7), (4, 2), (3, 0)] {
            let all: Vec<usize> = (0..items).collect();
            let parts: Vec<Vec<usize>> = (0..n).map(|rank| World { rank, size: n }.own(&all)).collect();
            assert!(parts.iter().all(|part| part.len().abs_diff(items / n) <= 1));
            assert_eq!(interleave(parts).expect("parts"), all);
        }
        assert!(interleave(vec![vec![1], vec![2, 3]]).is_err());
    }

    #[test]
    fn alone_nothing_is_exchanged() {
        let (one, mut values) = (World::ALONE, [1.0, 2.0]);
        one.sum(&mut values);
        one.barrier();
        assert_eq!((values, one.max(3.0), one.gather(vec![7])), ([1.0, 2.0], 3.0, vec![vec![7]]));
        assert!(one.writes() && one.any(true) && !one.any(false));
        assert_eq!((one.own(&[1, 2, 3]), one.all(vec![4]).expect("its own")), (vec![1, 2, 3], vec![4]));
    }
}
