//! Opens a user's targets (runs, models) as studies. Shared by `probe` and `intervene`.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;

use super::committed::fixture_path;
use super::unknown_words::warn_of_unknown;
use super::{setting, spooled};
use switchyard::grade::Grader;
use switchyard::latent::Blocks;
use switchyard::machine::Machine;
use switchyard::method::Recipe;
use switchyard::names::suggest;
use switchyard::progress::say;
use switchyard::schema::GRPO_START;
use switchyard::study::{ProblemChoice, Study, phases, recipe_of};
use switchyard::text::Fields;

/// The default target: the committed checkpoints.
pub(crate) const FIXTURE: &str = "fixtures/micro";

/// The default recipe for prompts, tags and decoding of a model outside a run.
pub(super) const LIKE: &str = "smollm2-gsm8k";

/// Which checkpoints, on which problems.
#[derive(Args, Clone, Debug, Default)]
pub struct Targets {
    /// Run folders of `train`, Hugging Face folders, .gguf files or hub ids; by default fixtures/micro
    #[arg(value_name = "RUN|MODEL")]
    pub targets: Vec<String>,
    /// Phases of a run whose checkpoints are used; by default the existing ones of sft, grpo_start and grpo
    #[arg(long, value_delimiter = ',')]
    pub phase: Vec<String>,
    /// A PEFT LoRA folder or a repository of the hub with one, over a model (not a run)
    #[arg(long, value_name = "DIR|OWNER/NAME")]
    pub adapter: Option<PathBuf>,
    /// The base of an adapter whose settings name another place: the adapter is --adapter, or the one that is named
    #[arg(long, value_name = "MODEL")]
    pub base: Option<String>,
    /// A file of held-out problems instead of the run's own, or a folder of a data set: JSON lines, CSV or Parquet
    #[arg(long, value_name = "FILE|DIR")]
    pub data: Option<PathBuf>,
    /// Your file's keys for question, answer, solution, id, subject, level, choices, context, group: question=frage,answer=antwort
    #[arg(long, value_delimiter = ',', value_name = "KEY=YOURS")]
    pub field: Vec<String>,
    /// Grader of the file's answers: math, exact (the same words) or choice (the same letter); by default chosen by each gold answer
    #[arg(long, value_name = "NAME")]
    pub grader: Option<Grader>,
    /// For a model outside a run: the preset or recipe for its prompts, tags and decoding; by default smollm2-gsm8k, with the model's own chat
    /// template, or plain prompts if it has none. A run has its own recipe, so this is refused for it
    #[arg(long, value_name = "PRESET|FILE")]
    pub like: Option<String>,
    /// recurrence: the checkpoint's way of reasoning, hidden states fed inside blocks (the authors' eval_latent); generate: plain generation, in
    /// which <swi> is a token like any other (their eval_math500). Rows of the latter have -generate in their names
    #[arg(long, value_name = "NAME", default_value = "recurrence", value_parser = setting::<Evaluator>)]
    pub evaluator: Evaluator,
    /// Name the rows after these problems (`grpo-on-gsm8k`), so that one folder can have them next to those of other problems
    #[arg(long)]
    pub beside: bool,
    /// For a model outside a run: the model whose entropies place its switches (the base that it was trained from); by default it tags its own
    /// solutions, so that two checkpoints are read at different positions
    #[arg(long, value_name = "MODEL")]
    pub annotator: Option<String>,
    /// Number of held-out problems; by default that of the run's evaluation
    #[arg(long, value_name = "N")]
    pub problems: Option<usize>,
    /// Problems that decode together; by default as the run's evaluation. Numbers may differ in their last digits
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Of everything random: bootstraps, splits, draws
    #[arg(long, default_value_t = 0, value_parser = super::seed)]
    pub seed: u64,
    /// Sequences are given as token text: no template is applied.
    #[arg(skip)]
    pub raw: bool,
}

/// Decoder of the held-out problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evaluator {
    #[default]
    Recurrence,
    Generate,
}

impl Targets {
    /// Opens all targets on the machine, before any work.
    pub fn open(&self, machine: &Machine) -> Result<Vec<Study>> {
        if let Some(base) = &self.base {
            let named: Vec<PathBuf> =
                self.adapter.iter().cloned().chain(self.targets.iter().map(PathBuf::from)).collect();
            let [adapter] = named.as_slice() else {
                bail!("--base {base}: is for one adapter, found {}: name one with --adapter", named.len())
            };
            let over = Self { targets: vec![base.clone()], adapter: Some(adapter.clone()), base: None, ..self.clone() };
            return over.open(machine);
        }
        if let Some(phase) = self.as_phase() {
            return phase.open(machine);
        }
        let mut adapter = self.adapter.as_ref().map(fixture_path);
        let named = match (self.targets.is_empty(), &adapter) {
            // An adapter alone names its own base.
            (true, Some(alone)) => vec![alone.display().to_string()],
            (true, None) => vec![FIXTURE.to_owned()],
            (false, _) => self.targets.clone(),
        };
        if self.targets.is_empty() {
            adapter = None;
        }
        let named: Vec<String> = named.iter().map(|target| fixture_path(target).display().to_string()).collect();
        ensure!(
            !self.targets.is_empty() || self.adapter.is_some() || Path::new(&named[0]).is_dir(),
            "{FIXTURE} is neither here nor where the program was built: run in the repository's folder, or name a run folder of \
             `train` or a model"
        );
        let Self { data, problems, batch, raw, grader, .. } = self.clone();
        let unnamed = self.like.is_none();
        let data = data.as_deref().map(spooled).transpose()?;
        let asked = ProblemChoice { data, fields: fields(&self.field)?, grader, problems, batch, raw, unnamed };
        let mut studies: Vec<Study> = vec![];
        for (target, name) in named.iter().zip(names(&named, adapter.as_deref())) {
            let run = Path::new(target);
            if is_run(run) {
                ensure!(adapter.is_none(), "{target}: --adapter goes over a model, this is a run folder");
                ensure!(
                    self.like.is_none(),
                    "{target}: --like is for a model outside a run; this run has its own recipe.toml: \
                    omit --like"
                );
                ensure!(
                    self.annotator.is_none(),
                    "{target}: --annotator is for a model outside a run; this run has its own annotator: omit it"
                );
                for phase in self.phases(run) {
                    studies.push(Study::open_run(run, &phase, &asked, machine)?.with_name(&name));
                }
                continue;
            }
            let empty = std::fs::read_dir(run).is_ok_and(|mut entries| entries.next().is_none());
            ensure!(!empty, "{target}: an empty folder: neither a run of `train` nor a model");
            ensure!(
                self.phase.is_empty() || named.iter().any(|other| is_run(Path::new(other))),
                "{target}: --phase names checkpoints of a run, and this is not a run folder"
            );
            let like = Recipe::like(self.like.as_deref().unwrap_or(LIKE))?;
            if unnamed && adapter.is_none() && recipe_of(run, true)?.is_some() {
                say(&format!(
                    "{target}: decoded like {LIKE}, not by its run's recipe: name the run and --phase for that"
                ));
            }
            let mut study = Study::open_model(target, adapter.as_deref(), &like, &asked, machine)?.with_name(&name);
            study.annotator.clone_from(&self.annotator);
            studies.push(study);
        }
        studies.iter_mut().for_each(|study| study.seed = self.seed);
        for study in studies.iter_mut().filter(|_| self.beside) {
            study.name = format!("{}-on-{}", study.name, plain(&study.recipe.dataset()));
        }
        if self.evaluator == Evaluator::Generate {
            for study in &mut studies {
                study.reasoning.blocks = Blocks::Plain;
                study.name += "-generate";
            }
        }
        let mut names: Vec<_> = studies.iter().map(|study| &study.name).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        ensure!(
            twice.is_none(),
            "{} is named twice: its rows would overwrite each other",
            twice.map_or("", |pair| pair[0].as_str())
        );
        let mut told: Vec<String> = vec![];
        for study in studies.iter().filter(|_| !self.raw) {
            let corpus = &study.corpus;
            // Phases of a run share their problems.
            for line in corpus.told.iter().cloned().chain(corpus.graded()?) {
                if !told.contains(&line) {
                    say(&line);
                    told.push(line);
                }
            }
        }
        for study in &studies {
            let corpus = &study.corpus;
            refuse_long_prompts(study)?;
            warn_of_unknown(&corpus.vocabulary, "problems", corpus.test.iter().map(|p| p.question.as_str()))?;
        }
        Ok(studies)
    }

    /// A target `RUN/PHASE/checkpoint` that nothing says how to ask, as that phase of its run, which brings recipe and problems.
    fn as_phase(&self) -> Option<Self> {
        let Self { targets, phase, adapter, base, data, like, annotator, .. } = self;
        let open = phase.is_empty() && [adapter, data].iter().all(|path| path.is_none());
        let [target] = targets.as_slice() else { return None };
        if !open || [base, like, annotator].iter().any(|name| name.is_some()) {
            return None;
        }
        let checkpoint = fixture_path(target);
        let folder = checkpoint.parent().filter(|_| checkpoint.ends_with("checkpoint"))?;
        let run = folder.parent().filter(|run| run.join("recipe.toml").is_file())?;
        let phase = vec![folder.file_name()?.to_str()?.to_owned()];
        Some(Self { targets: vec![run.display().to_string()], phase, ..self.clone() })
    }

    fn phases(&self, run: &Path) -> Vec<String> {
        if !self.phase.is_empty() {
            return self.phase.clone();
        }
        let there = examined(run);
        // None trained: the error names the first.
        if there.is_empty() { vec!["sft".to_owned()] } else { there }
    }
}

/// Whether a folder is a run of `train`, not a model.
pub(crate) fn is_run(folder: &Path) -> bool {
    let has = |file: &str| folder.join(file).is_file();
    has("recipe.toml") || (!has("config.json") && !has("adapter_config.json") && trained(folder).next().is_some())
}

/// Phases that others continue from.
const BEFORE: [&str; 3] = ["annotate", "base", "boundary"];

/// The phases of a run that are examined by default: the trained ones of Switchyard's own method, in their order; for a run of another
/// method its own.
pub(crate) fn examined(run: &Path) -> Vec<String> {
    let own: Vec<String> = trained(run).map(str::to_owned).collect();
    if own.is_empty() { phases(run).into_iter().filter(|name| !BEFORE.contains(&name.as_str())).collect() } else { own }
}

fn trained(run: &Path) -> impl Iterator<Item = &'static str> {
    ["sft", GRPO_START, "grpo"].into_iter().filter(|phase| run.join(phase).join("checkpoint").is_dir())
}

/// A name for each target, for folders and files: the last part of its path, with enough of the earlier parts to distinguish targets of the
/// same name, and the adapter's. Different models never share a name.
fn names(targets: &[String], adapter: Option<&Path>) -> Vec<String> {
    let full = |target: &String| {
        let path = Path::new(target).canonicalize().unwrap_or_else(|_| PathBuf::from(target));
        let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
        parts.map(|part| plain(&part.as_os_str().to_string_lossy())).collect::<Vec<_>>()
    };
    let paths: Vec<Vec<String>> = targets.iter().map(full).collect();
    let longest = paths.iter().map(Vec::len).max().unwrap_or(1);
    let over = adapter.and_then(Path::file_name).map(|name| format!("-{}", plain(&name.to_string_lossy())));
    let last = |path: &[String], n: usize| path[path.len().saturating_sub(n)..].join("-");
    let name = |path: &Vec<String>| {
        let alone = |n: &usize| paths.iter().filter(|other| last(other, *n) == last(path, *n)).count() == 1;
        last(path, (1..=longest).find(alone).unwrap_or(1)) + over.as_deref().unwrap_or_default()
    };
    paths.iter().map(name).collect()
}

/// Letters, digits, `-` and `_`: the characters of records' file names.
fn plain(part: &str) -> String {
    let part = part.strip_suffix(".gguf").unwrap_or(part);
    part.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

/// Parses key names such as `question=frage`.
pub fn fields(pairs: &[String]) -> Result<Option<Fields>> {
    let mut fields = Fields::default();
    for pair in pairs {
        let (key, yours) = pair
            .split_once('=')
            .with_context(|| format!("--field {pair}: write key=yours, for example question=frage,answer=antwort"))?;
        let known = [
            ("question", &mut fields.question),
            ("answer", &mut fields.answer),
            ("solution", &mut fields.solution),
            ("id", &mut fields.id),
            ("subject", &mut fields.subject),
            ("level", &mut fields.level),
            ("choices", &mut fields.choices),
            ("context", &mut fields.context),
            ("group", &mut fields.group),
        ];
        let names = known.each_ref().map(|(name, _)| *name);
        let field = known.into_iter().find(|(name, _)| *name == key);
        let (_, field) = field.with_context(|| {
            format!("--field {pair}: a problem has no `{key}`{}; it has {}", suggest(key, names), names.join(", "))
        })?;
        yours.clone_into(field);
    }
    Ok((!pairs.is_empty()).then_some(fields))
}

/// Refuses a problem whose prompt leaves no position for a response.
fn refuse_long_prompts(study: &Study) -> Result<()> {
    let most = study.model.config().max_position_embeddings;
    let prompts = &study.corpus.test_prompts;
    let mut longer = prompts.iter().zip(&study.corpus.test).filter(|(prompt, _)| prompt.len() >= most);
    let Some((prompt, problem)) = longer.next() else { return Ok(()) };
    bail!(
        "{}: problem {}: its prompt has {} tokens, and the model has {most} positions (max_position_embeddings); {} of {} prompts are too \
         long: leave these problems out",
        study.name,
        problem.id,
        prompt.len(),
        longer.count() + 1,
        prompts.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_the_same_name_get_names_of_their_own() {
        let of = |targets: &[&str], adapter: Option<&str>| {
            names(&targets.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>(), adapter.map(Path::new))
        };
        assert_eq!(of(&["Qwen/Qwen3-0.6B"], None), ["Qwen3-0_6B"]);
        assert_eq!(of(&["/no/SmolLM2.gguf"], Some("/no/lora.v2/")), ["SmolLM2-lora_v2"]);
        let three = ["/no/a/sft/checkpoint", "/no/b/sft/checkpoint", "/no/c"];
        assert_eq!(of(&three, None), ["a-sft-checkpoint", "b-sft-checkpoint", "c"]);
        assert_eq!(of(&["/no/a", "/no/a"], None), ["a", "a"]);
    }
}
