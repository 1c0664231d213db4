//! Environment variables by which launchers number the processes that they start.

/// Variables with the number of processes, the rank and the local rank: Open MPI; MPICH and Intel; Slurm's `srun`.
const VARIABLES: [[&str; 3]; 3] = [
    ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"],
    ["PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"],
    ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"],
];

/// A process among several that a launcher started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub rank: usize,
    pub size: usize,
    /// Local rank, from 0, which chooses the device.
    pub local: usize,
    /// The variable with the number of processes.
    pub said_by: &'static str,
}

impl Place {
    /// This process's ranks; `None` if it was started alone.
    pub fn of_process() -> Option<Self> {
        Self::told(|name| std::env::var(name).ok())
    }

    /// Reads the ranks from the variables of an environment.
    pub fn told(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.parse::<usize>().ok();
        VARIABLES.iter().find_map(|[said_by, rank, local]| {
            let size = number(said_by).filter(|size| *size > 1)?;
            let rank = number(rank)?;
            Some(Self { rank, size, local: number(local).unwrap_or(rank), said_by })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_say_which_process_this_is() {
        let told = |variables: &[(&str, &str)]| {
            let of = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            Place::told(of).map(|place| [place.rank, place.size, place.local])
        };
        let slurm = [("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_PROCID", "5"), ("SLURM_LOCALID", "1")];
        assert_eq!(told(&slurm), Some([5, 8, 1]));
        // mpirun inside a Slurm job.
        let open_mpi =
            [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")];
        assert_eq!(told(&[&slurm[..], &open_mpi].concat()), Some([1, 2, 0]));
        assert_eq!(told(&[("PMI_SIZE", "2"), ("PMI_RANK", "1")]), Some([1, 2, 1]));
        assert_eq!(told(&[("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "0")]), None);
        assert_eq!(told(&[]), None);
    }
}
