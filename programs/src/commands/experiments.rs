//! `probe [RUN|MODEL]...`: runs the experiments on checkpoints, one file of rows each.

use anyhow::Result;
use clap::Args;

use super::device::MachineArgs;
use super::print;
use super::runner::Runner;
use super::selection::Selection;
use super::targets::Targets;
use switchyard::schema::BlockOrigin;

/// Run the paper's observational experiments on checkpoints.
#[derive(Args, Clone, Debug)]
pub struct Experiments {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    chosen: Selection,
    #[command(flatten)]
    machine: MachineArgs,
}

impl Experiments {
    pub fn run(&self) -> Result<()> {
        if self.chosen.list {
            return print(&Selection::listed());
        }
        let Self { targets, chosen, .. } = self;
        let (settings, less) = (&chosen.settings()?, chosen.is_open() && targets.phase.is_empty());
        let runner = Runner { program: "probe", targets, chosen, settings, blocks: BlockOrigin::Own, less };
        self.machine.compute_decoding(|machine| runner.run(machine).map(drop))
    }
}
