//! The experiments that a user selects, their settings, and the folder of their rows. Shared by `probe` and `intervene`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::shard::ShardArgs;
use crate::report::recipes;
use switchyard::experiments::{ALL, About, Experiment, Journal, Settings};
use switchyard::guard::read_text;
use switchyard::names::suggest;
use switchyard::progress::say;
use switchyard::store::{program as typed, quoted};
use switchyard::study::Study;

/// Default folder of reports; git ignores it.
pub const REPORTS: &str = "runs/reports";

/// Where rows go, and which may be reused or replaced.
#[derive(Args, Clone, Debug, Default)]
pub struct OutArgs {
    /// Folder for rows and manifest. By default runs/reports/<name of the run or model>; if that has rows of other settings, NAME.2
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue a stopped run; skip rows that the manifest lists with the same weights, problems, settings and seed
    #[arg(long)]
    pub resume: bool,
    /// Overwrite rows that were made with larger settings (problems, modes, draws), and remove those of other weights, adapter, float
    /// type, decoding or data under the same name
    #[arg(long)]
    pub replace: bool,
}

/// What is run.
#[derive(Args, Clone, Debug, Default)]
pub struct Selection {
    /// Run these only (`--list` names them)
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// Run every experiment except those on request (--list marks them). By default `probe` runs only those of its first look, `intervene` all,
    /// and with --recipe or --shard both run all
    #[arg(long, conflicts_with = "only")]
    pub all: bool,
    /// A recipe of experiments/: its [settings] are used
    #[arg(long, value_name = "FILE")]
    pub(super) recipe: Option<PathBuf>,
    /// Change a setting of an experiment that runs: `layer_probe.layers=all`; more than one with --set again. docs/reference/experiments.md
    /// lists them
    #[arg(long, value_name = "EXPERIMENT.KEY=VALUE")]
    pub(super) set: Vec<String>,
    #[command(flatten)]
    pub rows: OutArgs,
    #[command(flatten)]
    pub shards: ShardArgs,
    /// List the experiments, the program that runs each, and its question
    #[arg(long)]
    pub list: bool,
}

impl Selection {
    /// One experiment.
    pub(super) fn one(name: &str, rows: &OutArgs) -> Self {
        Self { only: vec![name.to_owned()], rows: rows.clone(), ..Self::default() }
    }

    /// One line per experiment: name, program, question.
    pub fn listed() -> String {
        let only = |e: &Experiment| match e.about {
            About { on_request: true, .. } => " (runs only if --only names it)",
            About { first_look: true, .. } => " (in the first look)",
            _ => "",
        };
        ALL.iter().map(|e| format!("{:<20} {:<10} {}{}\n", e.name, e.program(), e.about.asks, only(e))).collect()
    }

    /// Whether the user named no experiment.
    pub(crate) fn is_open(&self) -> bool {
        self.only.is_empty()
    }

    /// Whether `probe` runs only its first look: no experiments and no settings were named.
    fn is_first_look(&self, program: &str) -> bool {
        program == "probe" && self.is_open() && !self.all && self.recipe.is_none() && !self.shards.is_asked()
    }

    /// Whether the user named this experiment.
    pub fn names(&self, experiment: &Experiment) -> bool {
        self.only.iter().any(|name| name == experiment.name)
    }

    /// The experiments of a program to run: the named ones, or all except those on request.
    pub fn experiments(&self, program: &str) -> Result<Vec<&'static Experiment>> {
        for name in &self.only {
            let Some(named) = ALL.iter().find(|e| e.name == name) else {
                let all = ALL.iter().map(|e| e.name);
                let known: Vec<_> = ALL.iter().filter(|e| e.program() == program).map(|e| e.name).collect();
                bail!("--only: no experiment `{name}`{}; there are {}", suggest(name, all), known.join(", "));
            };
            if named.program() != program {
                bail!("--only: `{name}` is run by `{}`", named.program());
            }
        }
        let first = self.is_first_look(program);
        let unasked = |e: &Experiment| self.is_open() && !e.about.on_request && (!first || e.about.first_look);
        let chosen: Vec<_> = ALL.iter().filter(|e| e.program() == program && (self.names(e) || unasked(e))).collect();
        for pair in &self.set {
            let name = pair.split(['.', '=']).next().unwrap_or_default();
            ensure!(
                chosen.iter().any(|e| e.name == name),
                "--set {pair}: `{name}` is not an experiment of this command{}; name it with --only",
                suggest(name, ALL.iter().map(|e| e.name))
            );
        }
        Ok(chosen)
    }

    /// The settings of the recipe, or the defaults, with those of `--set`.
    pub fn settings(&self) -> Result<Settings> {
        let settings = self.recipe.as_deref().map_or_else(|| Ok(Settings::default()), settings_of)?;
        settings.with(&self.set)
    }

    /// `runs/reports/<run or model>` unless the user names a folder; for a shard a folder inside it.
    pub fn folder(&self, study: &Study) -> PathBuf {
        let whole = self.rows.out.clone().unwrap_or_else(|| Path::new(REPORTS).join(&study.recipe.name));
        match study.shard {
            Some(shard) => whole.join(format!("shard-{}-of-{}", shard.number, shard.of)),
            None => whole,
        }
    }

    /// Checks that a folder has no shards of another division of the study, which could not be merged.
    pub fn ensure_one_division(&self, study: &Study) -> Result<()> {
        let (Some(shard), folder) = (study.shard, self.folder(study)) else { return Ok(()) };
        let whole = folder.parent().unwrap_or(Path::new("."));
        let of = |name: &str| name.strip_prefix("shard-")?.rsplit_once("-of-")?.1.parse::<usize>().ok();
        for entry in std::fs::read_dir(whole).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if of(&name).is_some_and(|of| of != shard.of) {
                bail!(
                    "--shard {shard}: {} has {name}, a shard of another division: use the same number of shards, or name another folder \
                    with --out",
                    whole.display()
                );
            }
        }
        Ok(())
    }

    /// The next commands, after `program`.
    pub fn next(&self, program: &str, journal: &Journal) -> String {
        let out = &journal.folder;
        if let Some(shard) = journal.shard {
            let whole = quoted(&out.parent().unwrap_or(Path::new("")).display().to_string());
            return format!(
                "\nWhen all {} shards are done:\n  {} merge {whole}/shard-*-of-{} --out {whole}\n",
                shard.of,
                typed("report"),
                shard.of
            );
        }
        let all = "\nThis was a first look. The same command with --all runs every experiment; --list names them.\n";
        let all = if self.is_first_look(program) { all } else { "" };
        let out = quoted(&out.display().to_string());
        format!("{all}\nTables, figures and a page next to the paper's:\n  {} {out}\n", typed("report"))
    }
}

/// The `[settings]` of a recipe.
fn settings_of(file: &Path) -> Result<Settings> {
    let text = read_text(file).with_context(|| format!("{}: cannot read", file.display()))?;
    let mut table: toml::Table = text.parse().with_context(|| format!("{}: not TOML", file.display()))?;
    let unknown = table.keys().find(|key| !recipes::KEYS.contains(&key.as_str()));
    if let Some(key) = unknown {
        bail!(
            "{}: a recipe has no `{key}`{}; it has {}",
            file.display(),
            suggest(key, recipes::KEYS.iter().copied()),
            recipes::KEYS.join(", ")
        );
    }
    let Some(settings) = table.remove("settings") else {
        say(&format!("{}: has no [settings]; experiments run with their defaults", file.display()));
        return Ok(Settings::default());
    };
    settings.try_into().with_context(|| format!("{}: [settings]", file.display()))
}

/// Refuses an unknown method, with a suggestion.
pub fn unknown_method(named: &[String]) -> Result<()> {
    let known: Vec<&str> = switchyard::method::all().map(|method| method.name).collect();
    match named.iter().find(|name| !known.contains(&name.as_str()) && *name != "all") {
        Some(name) => bail!(
            "--method: no method `{name}`{}; there are {}, and `all`",
            suggest(name, known.iter().copied()),
            known.join(", ")
        ),
        None => Ok(()),
    }
}
