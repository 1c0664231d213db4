//! `report`: from files to verdicts, tables, figures and a page; needs no model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use super::grade::Grade;
use super::merge::Merge;
use super::print;
use super::selection::REPORTS;
use crate::report::folder::{Folder, tell_apart};
use crate::report::tables::{Formats, Table};
use crate::report::{compare, curves, journal, render};
use switchyard::machine::threads;
use switchyard::names::suggest;
use switchyard::parallel::on_the_pool;
use switchyard::progress::show;

/// Tables, figures and a page next to the paper's, from the results of `probe`, `intervene` and `train`.
///
/// Reads rows only: it has no model, and therefore no --device, --dtype or --threads.
#[derive(Parser)]
#[command(
    name = "report",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  report                       what `probe` and `intervene` wrote: runs/reports/*\n  \
                  report reports/micro runs/micro\n  report compare reports/micro reports/micro-compressed\n  report curves runs/micro\n  \
                  report runs/reports/SmolLM2 --paper                 the paper's tables next to your own model\n  \
                  report merge runs/x/shard-*-of-4 --out runs/x   what one process would have written\n  \
                  report grade --pairs pairs.jsonl --out graded.jsonl"
)]
pub struct Report {
    /// Folders of rows; by default all under runs/reports/
    #[arg(value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// The page; by default index.html next to the first folder, or in it if that is the page of other folders
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// The checkpoint for the paper's "after SFT"
    #[arg(long, value_name = "CHECKPOINT", default_value = "sft")]
    sft: String,
    /// The checkpoint for the paper's "after Switch-GRPO"
    #[arg(long, value_name = "CHECKPOINT", default_value = "grpo")]
    grpo: String,
    /// The checkpoint that Switch-GRPO started from, for claims about RL
    #[arg(long, value_name = "CHECKPOINT", default_value = "grpo_start")]
    grpo_start: String,
    /// Show the paper's tables and claims also next to a model that is not a reproduction of the paper's
    #[arg(long)]
    paper: bool,
    #[command(flatten)]
    formats: Formats,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Grade(Grade),
    /// Compare checkpoints of several folders, one row each: results of interventions and probes of their latents.
    Compare {
        /// Folders of rows.
        #[arg(required = true, value_name = "FOLDER")]
        folders: Vec<PathBuf>,
        /// Also write the table: STEM.md, STEM.csv and STEM.tex.
        #[arg(long, value_name = "STEM")]
        out: Option<PathBuf>,
        /// Compare with a third party's records of the released adapter on MATH-500: by level and subject, switch rate, blocks, steps and exits. A
        /// file of their records, one JSON object per problem; without one their totals, which are embedded.
        #[arg(long, value_name = "FILE", num_args = 0..=1)]
        journal: Option<Option<PathBuf>>,
    },
    Merge(Merge),
    /// Draw a run's training curves from its rows, into its folder `figures`.
    Curves {
        /// A run folder of `train`.
        run: PathBuf,
    },
}

impl Report {
    pub fn run(&self) -> Result<()> {
        on_the_pool(threads(), || match &self.command {
            None => report(self),
            Some(Command::Grade(grade)) => grade.run(),
            Some(Command::Compare { folders, out, journal }) => compare(folders, out.as_deref(), journal.as_ref()),
            Some(Command::Merge(merge)) => merge.run(),
            Some(Command::Curves { run }) => draw(run),
        })?
    }
}

fn report(args: &Report) -> Result<()> {
    let started = Instant::now();
    let paths =
        if args.folders.is_empty() { render::default_folders(Path::new(REPORTS))? } else { args.folders.clone() };
    let named =
        |path: &PathBuf| Ok(Folder::open(path)?.named(&args.sft, &args.grpo, &args.grpo_start).with_paper(args.paper));
    let mut folders: Vec<Folder> = paths.iter().map(named).collect::<Result<_>>()?;
    tell_apart(&mut folders);
    for (flag, name, default) in
        [("--sft", &args.sft, "sft"), ("--grpo", &args.grpo, "grpo"), ("--grpo-start", &args.grpo_start, "grpo_start")]
    {
        let all = || folders.iter().flat_map(Folder::all_checkpoints);
        ensure!(
            name == default || all().any(|there| there == name),
            "{flag}: no folder has rows of a checkpoint `{name}`{}",
            suggest(name, all())
        );
    }
    let page = args.page.clone().unwrap_or_else(|| render::default_page(&folders));
    let done = render::report_as(&folders, &page, args.formats)?;
    let seconds = started.elapsed().as_secs_f64();
    let aside = args.page.is_none() && page.parent() == Some(paths[0].as_path());
    let why = if aside { "index.html next to the folder is another page and stays; " } else { "" };
    print(&format!("{}\n{}  ({seconds:.1} s; {why}open it in a browser)\n", done.summary, done.page.display()))
}

fn compare(folders: &[PathBuf], out: Option<&Path>, records: Option<&Option<PathBuf>>) -> Result<()> {
    let mut folders: Vec<Folder> = folders.iter().map(|path| Folder::open(path)).collect::<Result<_>>()?;
    tell_apart(&mut folders);
    if let Some(records) = records {
        let tables = journal::tables(&folders, records.as_deref())?;
        for (number, table) in tables.iter().enumerate() {
            let Some(stem) = out else { break };
            let own =
                stem.with_file_name(format!("{}-{number}", stem.file_name().unwrap_or_default().to_string_lossy()));
            table.save(if number == 0 { stem } else { &own }, Formats::ALL)?;
        }
        return print(&tables.iter().map(Table::markdown).collect::<Vec<_>>().join("\n"));
    }
    let table = compare::table(&folders)?;
    if let Some(stem) = out {
        table.save(stem, Formats::ALL)?;
    }
    print(&table.markdown())?;
    compare::cards(&folders)?.map_or(Ok(()), |cards| print(&format!("\n{}", cards.markdown())))
}

fn draw(run: &Path) -> Result<()> {
    let figures = curves::draw(run)?;
    ensure!(!figures.is_empty(), "{}: has no training rows to draw", run.display());
    for figure in figures {
        std::iter::once(&figure.svg).chain(&figure.png).for_each(|file| show(&file.display().to_string()));
    }
    Ok(())
}
