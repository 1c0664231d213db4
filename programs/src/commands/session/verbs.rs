//! Experiments on the session's model: the functions behind `intervene pairs` and `intervene`, and a linear probe for a user's labels. Knows
//! requests and records, writes no files.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ndarray::Array2;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Room;
use crate::commands::intervene::set_changes;
use crate::commands::lens::token;
use crate::commands::pairs::PairsRequest;
use crate::commands::request::{KnownRows, Prompt, Subject};
use crate::commands::targets::{LIKE, fields};
use crate::commands::unknown_words::warn_of_unknown;
use switchyard::experiments::{Settings, hook_intervention, latent_intervention, pair_patching};
use switchyard::interventions::{Change, Steps};
use switchyard::machine::Machine;
use switchyard::method::Recipe;
use switchyard::model::Hooks;
use switchyard::model::hooks::parse_specs;
use switchyard::progress::say;
use switchyard::recipe::MOST_ROWS;
use switchyard::stats::probe::ValueProtocol;
use switchyard::stats::{Bootstrap, Flips, LEVEL, accuracy};
use switchyard::store::flatten;
use switchyard::study::{ProblemChoice, Study, recipe_of};
use switchyard::text::Problem;

/// Replaces latent inputs on problems of a file; defaults are those of `intervene`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InterveneVerb {
    file: PathBuf,
    /// At these hook points in place of the latent inputs.
    #[serde(default)]
    hooks: Vec<Change>,
    #[serde(default)]
    modes: Vec<String>,
    #[serde(default)]
    steps: Vec<Steps>,
    draws: Option<usize>,
    problems: Option<usize>,
    #[serde(default)]
    field: Vec<String>,
    like: Option<String>,
    #[serde(default)]
    seed: u64,
}

/// The problems of a file as the program asks them, and whether `texts` (one per problem, or none) answer them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProblemsVerb {
    /// Absent: the held-out problems of the model's run.
    file: Option<PathBuf>,
    problems: Option<usize>,
    #[serde(default)]
    field: Vec<String>,
    like: Option<String>,
    #[serde(default)]
    texts: Vec<String>,
}

/// A linear probe for labels of prompts, at one position of each.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProbeVerb {
    prompts: Vec<Prompt>,
    labels: Vec<String>,
    names: String,
    /// Negative: from the end of each prompt.
    position: i64,
    /// Splits never separate prompts of one group; absent: each is its own group.
    groups: Option<Vec<usize>>,
    #[serde(default)]
    seed: u64,
}

/// A metric of unchanged and changed runs of the same problems.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CompareVerb {
    before: Vec<f64>,
    after: Vec<f64>,
    #[serde(default)]
    seed: u64,
}

impl CompareVerb {
    /// Means and mean difference with the intervals of `intervene`: of shares Wilson's and that of flips, else a paired bootstrap. One problem
    /// has none.
    pub(super) fn run(&self) -> Result<Value> {
        let Self { before, after, seed } = self;
        let (n, m) = (before.len(), after.len());
        ensure!(n == m, "paired outcomes differ in length: {n} before, {m} after");
        let shares = before.iter().chain(after).all(|value| [0.0, 1.0].contains(value));
        let right = |values: &[f64]| values.iter().map(|value| *value == 1.0).collect::<Vec<_>>();
        let bootstrap = Bootstrap::seeded(*seed);
        let mean = |values: &[f64]| match shares {
            true => accuracy(&right(values)).ok(),
            false => bootstrap.mean(values).ok(),
        };
        let difference = match shares {
            true => Flips::count(&right(before), &right(after))?.change(LEVEL).ok(),
            false => bootstrap.paired(before, after).ok(),
        };
        Ok(json!({ "normal": mean(before), "changed": mean(after), "difference": difference }))
    }
}

/// Minimum number of prompts per class, so that both sides of every split, also of inner ones, have it.
const FEWEST: usize = 10;

/// Refuses a class with too few prompts for a probe. A prompt and its copies, or a group, count once.
fn few(classes: &[&str], values: &[usize], groups: &[usize]) -> Option<anyhow::Error> {
    let of = |class: usize| {
        let own = values.iter().zip(groups).filter(|(value, _)| **value == class).map(|(_, group)| group);
        own.collect::<BTreeSet<_>>().len()
    };
    let (class, count) = (0..classes.len()).map(|class| (class, of(class))).min_by_key(|(_, count)| *count)?;
    (classes.len() > 1 && count < FEWEST).then(|| {
        anyhow::anyhow!(
            "label {:?} has {count} different prompts, but the probe's splits need {FEWEST} of each label: add some, or remove the \
            label",
            classes[class]
        )
    })
}

fn rows(rows: &[impl Serialize]) -> Result<Vec<Value>> {
    rows.iter().map(|row| Ok(Value::Object(flatten(serde_json::to_value(row)?)?))).collect()
}

/// Problems of a user's file, all of them unless a number is given; or of the run.
fn chosen(
    file: Option<&Path>,
    problems: Option<usize>,
    field: &[String],
    like: Option<&String>,
) -> Result<ProblemChoice> {
    let fields = fields(field)?;
    let data = file.map(Path::to_owned);
    let problems = problems.or(data.is_some().then_some(MOST_ROWS));
    Ok(ProblemChoice { data, fields, problems, unnamed: like.is_none(), ..ProblemChoice::default() })
}

impl Room {
    fn study(&self, asked: &ProblemChoice, like: Option<&str>, machine: &Machine) -> Result<Study> {
        let own = match like {
            None => recipe_of(Path::new(&self.name), asked.data.is_some())?,
            Some(_) => None,
        };
        ensure!(
            own.is_some() || asked.data.is_some(),
            "{}: not a checkpoint of a run, so it has no problems of its own: give some",
            self.name
        );
        let asked = &ProblemChoice { unnamed: asked.unnamed && own.is_none(), ..asked.clone() };
        let recipe = own.map_or_else(|| Recipe::like(like.unwrap_or(LIKE)), Ok)?;
        let study = Study::from_session(&self.name, &self.loaded, &recipe, asked, machine)?;
        let corpus = &study.corpus;
        if !asked.raw {
            corpus.told.iter().for_each(|line| say(line));
        }
        warn_of_unknown(&corpus.vocabulary, "problems", corpus.test.iter().map(|problem| problem.question.as_str()))?;
        Ok(study)
    }

    pub(super) fn pairs(&self, asked: &PairsRequest, machine: &Machine) -> Result<Value> {
        let data = ProblemChoice {
            data: Some(asked.file.clone()),
            fields: fields(&PairsRequest::fields())?,
            problems: Some(MOST_ROWS),
            raw: true,
            unnamed: true,
            ..ProblemChoice::default()
        };
        let study = self.study(&data, None, machine)?;
        let settings = Settings { pair_patching: asked.config(asked.file.clone()), ..Settings::default() };
        settings.check()?;
        pair_patching::unfit(&study, &settings.pair_patching)?;
        let words = |ids: &Vec<u32>| ids.iter().map(|id| token(&self.loaded, *id)).collect::<Vec<_>>();
        let tokens: Vec<_> = study.corpus.test_prompts.iter().map(words).collect();
        Ok(json!({ "rows": rows(&pair_patching::rows(&study, &settings.pair_patching)?)?, "tokens": tokens }))
    }

    pub(super) fn intervene(&self, asked: &InterveneVerb, machine: &Machine) -> Result<Value> {
        let switches = self.loaded.switch.is_some() || !asked.hooks.is_empty();
        ensure!(switches, "{}: never learnt to switch: it has no latent steps", self.name);
        let InterveneVerb { file, hooks, modes, steps, draws, problems, field, like, seed } = asked;
        let mut study = self.study(&chosen(Some(file), *problems, field, like.as_ref())?, like.as_deref(), machine)?;
        study.seed = *seed;
        let mut settings = Settings::default();
        set_changes(&mut settings, (modes, steps), hooks, *draws);
        settings.check()?;
        let (summary, skipped) = match hooks.as_slice() {
            [] => latent_intervention::summary(&study, &settings.latent_intervention, None)?,
            _ => hook_intervention::summary(&study, &settings.hook_intervention)?,
        };
        let verdicts: Vec<&str> = summary.rows.iter().map(|row| row.verdict()).collect();
        Ok(
            json!({ "rows": rows(&summary.rows)?, "verdicts": verdicts, "known": rows(&summary.known)?, "skipped": skipped }),
        )
    }

    pub(super) fn problems(&self, asked: &ProblemsVerb, machine: &Machine) -> Result<Value> {
        let ProblemsVerb { file, problems, field, like, texts } = asked;
        let asked = chosen(file.as_deref(), *problems, field, like.as_ref())?;
        let study = self.study(&asked, like.as_deref(), machine)?;
        let (corpus, n) = (&study.corpus, study.corpus.test.len());
        ensure!(texts.is_empty() || texts.len() == n, "{} texts for {n} problems: give one for each", texts.len());
        let row = |(at, (problem, prompt)): (usize, (&Problem, &Vec<u32>))| {
            let correct = texts.get(at).map(|text| corpus.verdict(&problem.answer, text).equal);
            json!({
                "id": problem.id, "question": problem.question, "answer": problem.answer, "solution": problem.solution,
                "steps": problem.steps, "prompt": prompt,
                "correct": correct,
            })
        };
        let rows: Vec<Value> = corpus.test.iter().zip(&corpus.test_prompts).enumerate().map(row).collect();
        Ok(json!({ "rows": rows }))
    }

    pub(super) fn probe(&self, asked: &ProbeVerb) -> Result<Value> {
        let ProbeVerb { prompts, labels, names, position, groups, seed } = asked;
        ensure!(
            labels.len() == prompts.len(),
            "{} labels for {} prompts: give one for each",
            labels.len(),
            prompts.len()
        );
        let rows = KnownRows::check(&Subject::from(&self.loaded), prompts, &[])?.rows;
        // Copies of a prompt go to the same side of a split: a probe would memorise them.
        let mut first: HashMap<&[u32], usize> = HashMap::new();
        let prompt_of: Vec<usize> =
            rows.iter().enumerate().map(|(n, row)| *first.entry(&row.ids).or_insert(n)).collect();
        let copies = prompts.len() - first.len();
        let groups = match groups {
            Some(groups) => {
                let apart = prompt_of.iter().zip(groups).any(|(first, group)| groups.get(*first) != Some(group));
                if apart {
                    say(&format!(
                        "warning: {copies} of {} prompts are copies of others in another group: a probe memorises prompts that are on both sides",
                        prompts.len()
                    ));
                }
                groups.clone()
            }
            None => {
                if copies > 0 {
                    say(&format!(
                        "warning: {copies} of {} prompts are copies of others: they go to the same side of a split, and n counts the {} \
                         different ones",
                        prompts.len(),
                        first.len()
                    ));
                }
                prompt_of
            }
        };
        ensure!(
            groups.len() == prompts.len(),
            "{} groups for {} prompts: give one for each",
            groups.len(),
            prompts.len()
        );
        let specs = parse_specs(names)?;
        let of = |row: usize, length: usize| {
            let at = if *position < 0 { position + length as i64 } else { *position };
            let at = usize::try_from(at).ok().filter(|at| *at < length);
            at.with_context(|| format!("position {position}: prompt {row} has {length} tokens"))
        };
        let mut classes: Vec<&str> = labels.iter().map(String::as_str).collect();
        classes.sort_unstable();
        classes.dedup();
        let values: Vec<usize> =
            labels.iter().map(|label| classes.iter().position(|class| class == label).unwrap_or_default()).collect();
        // Of each point, the values of the prompts at their positions: all other positions are dropped row by row.
        let mut features: Vec<(String, Vec<Vec<f32>>)> = vec![];
        for (number, row) in rows.iter().enumerate() {
            switchyard::progress::go_on()?;
            let at = of(number, row.ids.len())?;
            let recorded = self.loaded.record(std::slice::from_ref(row), &specs, false, Hooks::none())?;
            for (nth, tensor) in recorded.iter().enumerate() {
                let value = tensor.at(0, at).with_context(|| {
                    format!("`position` {position} of prompt {number} is not among the positions that `names` selects")
                })?;
                match features.get_mut(nth) {
                    Some((_, rows)) => rows.push(value),
                    None => features.push((tensor.name.clone(), vec![value])),
                }
            }
        }
        let protocol = ValueProtocol { seed: *seed, ..ValueProtocol::default() };
        let mut out = vec![];
        for (point, rows) in features {
            let width = rows.first().map_or(0, Vec::len);
            let flat: Vec<f32> = rows.iter().flatten().copied().collect();
            let matrix = Array2::from_shape_vec((rows.len(), width), flat)
                .with_context(|| format!("`{point}`: its values have other sizes from prompt to prompt"))?;
            let score = protocol.run(matrix.view(), &values, &groups);
            let score = score
                .map_err(|error| few(&classes, &values, &groups).unwrap_or(error))
                .with_context(|| point.clone())?;
            let mut score = serde_json::to_value(&score)?;
            // The C of each split is a list: no column.
            score.as_object_mut().and_then(|score| score.remove("c"));
            let mut row = flatten(score)?;
            row.insert("hook".into(), point.into());
            out.push(Value::Object(row));
        }
        Ok(json!({ "rows": out, "classes": classes }))
    }
}
