//! Collectives over MPI, on `MPI_COMM_WORLD`.

use anyhow::{Context, Result, ensure};
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Equivalence, Root};

use super::World;

/// Maximum elements per call: MPI counts in 32 bits.
const AT_ONCE: usize = 1 << 26;

pub fn start() -> Result<(Universe, World)> {
    // Work runs on a thread of the pool, one collective at a time.
    let (universe, level) = mpi::initialize_with_threading(Threading::Serialized).context("MPI was started before")?;
    ensure!(level >= Threading::Serialized, "this MPI cannot be called from another thread than the first");
    let world = SimpleCommunicator::world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    Ok((universe, World { rank, size }))
}

pub fn abort() {
    SimpleCommunicator::world().abort(2);
}

pub fn sum<T: Equivalence + Clone>(values: &mut [T]) {
    let world = SimpleCommunicator::world();
    for part in values.chunks_mut(AT_ONCE) {
        let own = part.to_vec();
        world.all_reduce_into(&own[..], part, SystemOperation::sum());
    }
}

pub fn max(value: f64) -> f64 {
    let mut most = value;
    SimpleCommunicator::world().all_reduce_into(&value, &mut most, SystemOperation::max());
    most
}

pub fn gather(world: World, bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let all = SimpleCommunicator::world();
    let mut lengths = vec![0_u64; world.size];
    all.all_gather_into(&(bytes.len() as u64), &mut lengths[..]);
    let from = |(rank, length): (usize, u64)| {
        let mut theirs = if rank == world.rank { bytes.clone() } else { vec![0; length as usize] };
        let root = all.process_at_rank(rank as i32);
        theirs.chunks_mut(AT_ONCE).for_each(|part| root.broadcast_into(part));
        theirs
    };
    lengths.into_iter().enumerate().map(from).collect()
}

pub fn barrier() {
    SimpleCommunicator::world().barrier();
}
