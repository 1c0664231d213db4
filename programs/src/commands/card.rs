//! `probe card`: the experiment `card` on models, then its report.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::device::MachineArgs;
use super::runner::Runner;
use super::selection::{OutArgs, Selection};
use super::targets::Targets;
use super::{is_dry, print};
use crate::report::folder::Folder;
use crate::report::render;
use switchyard::experiments::Settings;
use switchyard::machine::Machine;
use switchyard::schema::{BlockOrigin, CardRow, RowFile};

/// Certify a latent reasoner: eleven questions about its latents, one answer each.
///
/// Do right answers need the latents, do they follow a value, which step, in which order, more than an average or a token, do they
/// help, can a value be read, were problems memorised, are longer ones solved, do answers vary? Each is yes, no or undecided by one test;
/// all are one family. Writes rows, tables/tab-card.md, tables/card-CHECKPOINT.json and a page. A question that a model or its problems
/// cannot be asked says why.
#[derive(Args, Clone, Debug)]
pub(super) struct Card {
    #[command(flatten)]
    targets: Targets,
    /// On 100 problems, unless --problems says how many
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    rows: OutArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

impl Card {
    pub fn run(&self) -> Result<()> {
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let mut targets = self.targets.clone();
        targets.problems = targets.problems.or(self.quick.then_some(100));
        let (program, targets, settings) = ("probe", &targets, &Settings::default());
        let chosen = &Selection::one(CardRow::NAME, &self.rows);
        let runner = Runner { program, targets, chosen, settings, blocks: BlockOrigin::Own, less: false };
        let written = runner.run(machine)?;
        if is_dry() { Ok(()) } else { print_report(&written) }
    }
}

/// Writes the report of these folders and prints its page.
pub(super) fn print_report<'a>(folders: impl IntoIterator<Item = &'a PathBuf>) -> Result<()> {
    let folders: Vec<Folder> = folders.into_iter().map(|folder| Folder::open(folder)).collect::<Result<_>>()?;
    let page = render::default_page(&folders);
    render::report(&folders, &page)?;
    print(&format!("{}\n", page.display()))
}
