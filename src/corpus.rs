//! The problems of a run as token rows: training and held-out, from a generated task or a file.

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::latent::SwitchIds;
use crate::recipe::Recipe;
use crate::tasks::Split;
use crate::text::formats::Format;
use crate::text::{Problem, Sample, Source, Template, Vocabulary};

/// Everything about text that training needs.
pub struct Corpus {
    pub vocabulary: Vocabulary,
    pub switch: SwitchIds,
    pub template: Template,
    /// The token that closes a response.
    pub end: u32,
    pub train: Vec<Sample>,
    /// Gold answers of `train`.
    pub train_answers: Vec<String>,
    pub test: Vec<Problem>,
    pub test_prompts: Vec<Vec<u32>>,
    /// Training problems that were too long to use.
    pub dropped: usize,
    /// Answers are the words after the last `#` (generated tasks), not mathematics.
    pub exact_answers: bool,
}

impl Corpus {
    /// Reads or generates the problems. `vocabulary` is the pretrained model's; a task makes its own.
    ///
    /// # Errors
    /// A file that cannot be read, no usable sample, a template whose tokens the vocabulary lacks.
    pub fn build(recipe: &Recipe, vocabulary: Option<Vocabulary>) -> Result<Self> {
        let mut vocabulary = match (vocabulary, &recipe.task) {
            (Some(vocabulary), _) => vocabulary,
            (None, Some(task)) => Vocabulary::from_words(task.words())?,
            (None, None) => {
                anyhow::bail!("the model brings no tokenizer and the recipe no `task`: nothing to encode text with")
            }
        };
        let tokens = vocabulary.add_switch_tokens()?;
        let switch = SwitchIds { swi: tokens.swi, swi_end: tokens.swi_end, latent: tokens.latent };
        let (train, test) = problems(recipe)?;
        let template = recipe.data.template;
        let end = template.end_id(&vocabulary)?;
        let found = train.len();
        let limit = recipe.data.max_tokens;
        let (mut samples, mut train_answers) = (vec![], vec![]);
        for (problem, place) in &train {
            let sample = Sample::new(problem, &vocabulary, template).with_context(|| place.clone())?;
            if sample.length() < limit {
                samples.push(sample);
                train_answers.push(problem.answer.clone());
            }
        }
        ensure!(
            found == 0 || !samples.is_empty(),
            "all {found} training problems exceed data.max_tokens = {limit}: raise it"
        );
        let mut test_prompts = vec![];
        for (problem, place) in &test {
            let prompt = template.encode_prompt(&vocabulary, &problem.question);
            test_prompts.push(prompt.with_context(|| format!("{place}: the question"))?);
            vocabulary.encode(&problem.answer).with_context(|| format!("{place}: the answer"))?;
        }
        Ok(Self {
            switch,
            template,
            end,
            dropped: found - samples.len(),
            train: samples,
            train_answers,
            test_prompts,
            test: test.into_iter().map(|(problem, _)| problem).collect(),
            exact_answers: recipe.task.is_some(),
            vocabulary,
        })
    }

    /// Whether a response's visible text holds the gold answer.
    pub(crate) fn is_correct(&self, gold: &str, text: &str) -> bool {
        if self.exact_answers {
            return exact_answer(text).is_some_and(|answer| answer == gold);
        }
        crate::grade::grade(gold, text).equal
    }

    /// The final answer of a response, as it is compared.
    pub fn answer(&self, text: &str) -> Option<String> {
        if self.exact_answers { exact_answer(text) } else { crate::grade::extract(text) }
    }
}

/// The words after the last `#`.
fn exact_answer(text: &str) -> Option<String> {
    let (_, answer) = text.rsplit_once('#')?;
    let answer = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    (!answer.is_empty()).then_some(answer)
}

/// A problem and the place it stands at, for messages.
type Placed = (Problem, String);

fn problems(recipe: &Recipe) -> Result<(Vec<Placed>, Vec<Placed>)> {
    let wanted = recipe.evaluation.problems;
    if let Some(task) = &recipe.task {
        let placed = |problem: Problem| (problem.clone(), format!("problem {}", problem.id));
        let rows = |split, n: usize| -> Result<Vec<Placed>> {
            Ok(task.rows(split, recipe.seed, 0..n as u64)?.into_iter().map(Problem::from).map(placed).collect())
        };
        return Ok((rows(Split::Train, recipe.data.rows)?, rows(Split::Test, wanted)?));
    }
    let read = |path: &PathBuf| {
        let format = recipe.data.fields.is_some().then_some(Format::Jsonl);
        let fields = recipe.data.fields.clone().unwrap_or_default();
        Source { format, fields, ..Source::new(path) }.placed()
    };
    let path = recipe.data.path.as_ref().context("data.path is missing")?;
    let mut train = read(path)?;
    let test = match &recipe.data.test_path {
        Some(path) => read(path)?,
        None => {
            let held = recipe.data.test_rows;
            ensure!(
                held > 0 && held < train.len(),
                "{}: data.test_rows = {held} of {} problems; hold out at least 1 and leave some, or give data.test_path",
                path.display(),
                train.len()
            );
            train.split_off(train.len() - held)
        }
    };
    train.truncate(recipe.data.rows);
    Ok((train, test.into_iter().take(wanted).collect()))
}

/// A training row: prompt and closed response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub ids: Vec<u32>,
    pub prompt: usize,
    /// The same sample with its chain of thought, where a method learns from both. Ends as this one does.
    pub teacher: Option<Box<Row>>,
    /// What each latent stands for, in order, where a method compresses text into latents; else empty.
    pub slots: Vec<Slot>,
}

/// Tokens that one latent stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub tokens: Vec<u32>,
    /// That of them which the language model's head learns.
    pub label: u32,
}

impl Row {
    pub fn new(prompt: &[u32], response: &[u32], end: u32) -> Self {
        let ids = prompt.iter().chain(response).copied().chain([end]).collect();
        Self { ids, prompt: prompt.len(), teacher: None, slots: vec![] }
    }

    /// The visible chain of thought as it is.
    pub fn text(sample: &Sample, end: u32) -> Self {
        Self::new(&sample.prompt, &sample.response, end)
    }

    /// The response from its token `from` on: what stands before is gone.
    pub fn rest(sample: &Sample, from: usize, end: u32) -> Self {
        Self::new(&sample.prompt, &sample.response[from..], end)
    }

    /// The same with these tokens between prompt and response. They are not learnt.
    #[must_use]
    pub fn after(self, block: &[u32]) -> Self {
        let (prompt, response) = self.ids.split_at(self.prompt);
        Self { ids: [prompt, block, response].concat(), prompt: self.prompt + block.len(), ..self }
    }

    /// The same with this teacher.
    #[must_use]
    pub fn taught_by(self, teacher: Row) -> Self {
        Self { teacher: Some(Box::new(teacher)), ..self }
    }

    /// Positions that are fed for it, the teacher's too.
    pub fn positions(&self) -> usize {
        self.ids.len() + self.teacher.as_ref().map_or(0, |teacher| teacher.positions())
    }

    /// The final answer only (the no-CoT control).
    ///
    /// # Errors
    /// A sample whose final answer is not marked.
    pub fn answer_only(sample: &Sample, end: u32) -> Result<Self> {
        let Range { start, end: stop } = sample.answer.clone().with_context(|| {
            format!("problem {}: no final answer is marked in its solution, so no-CoT cannot be trained", sample.id)
        })?;
        Ok(Self::new(&sample.prompt, &sample.response[start..stop], end))
    }
}
