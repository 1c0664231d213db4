//! The training and held-out problems of a run as token sequences, from a generated task or a file.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::grade::{Grader, GraderVerdict, Grading, Rule};
use crate::latent::{Request, SwitchIds};
use crate::recipe::{Data, Shared};
use crate::tasks::{Fact, Split, StepOperand, StepValue, Task, evaluate, number};
use crate::text::formats::RecordFormat;
use crate::text::sources::{Fields, Generations, LeftOut};
use crate::text::{Part, Problem, Prompts, Sample, Source, Vocabulary, cut, has_part, is_there, said_budget};

/// Vocabulary, prompts and problems of a run.
pub struct Corpus {
    pub vocabulary: Vocabulary,
    pub switch: SwitchIds,
    pub template: Prompts,
    /// The token that closes a response.
    pub end: u32,
    /// Tokens that end a generation; `end` is the first.
    pub stops: Vec<u32>,
    pub train: Vec<Sample>,
    /// Gold answers of `train`.
    pub train_answers: Vec<String>,
    /// Prompts and gold answers for rollouts; if empty, those of `train`.
    pub rewarded: Vec<(Vec<u32>, String)>,
    pub test: Vec<Problem>,
    pub test_prompts: Vec<Vec<u32>>,
    /// Number of training problems that were too long.
    pub dropped: usize,
    pub grading: Grading,
    /// Whether the problems are generated: responses then end in `# answer`.
    pub is_task: bool,
    /// Whether each question begins with the budget of its answer.
    pub budgets: bool,
    /// Notes and warnings for the user: repeated questions, training problems among the held-out ones.
    pub told: Vec<String>,
}

impl Corpus {
    /// Reads or generates the problems. `vocabulary` is the pretrained model's; without one, the task's words are used.
    ///
    /// # Errors
    /// A file that cannot be read, no usable sample, a template whose tokens the vocabulary lacks.
    pub fn build(recipe: &Shared, vocabulary: Option<Vocabulary>) -> Result<Self> {
        Self::build_split(recipe, vocabulary, Split::Test)
    }

    /// A corpus with a generated task's validation problems instead of the held-out ones, for model selection.
    ///
    /// # Errors
    /// As [`Self::build`]; problems of a file, which have no validation split.
    pub(crate) fn validation(recipe: &Shared, vocabulary: &Vocabulary) -> Result<Self> {
        let mut few = recipe.clone();
        few.data.rows = 1;
        Self::build_split(&few, Some(vocabulary.clone()), Split::Validation)
    }

    fn build_split(recipe: &Shared, vocabulary: Option<Vocabulary>, split: Split) -> Result<Self> {
        Self::from_problems(recipe, vocabulary, problems(recipe, split)?)
    }

    /// A corpus with a random sample of training problems instead of the held-out ones, twice as many (seed of the recipe); and the
    /// programs of all training problems. Problems that training drops because they are too long are in neither.
    pub(crate) fn training(recipe: &Shared, vocabulary: &Vocabulary) -> Result<(Self, HashSet<ProgramKey>)> {
        let Problems { mut train, rewarded, .. } = problems(recipe, Split::Test)?;
        if recipe.task.is_none() {
            leave_out_unsolved(recipe, &mut train)?;
        }
        let template = Prompts::new(recipe.data.template, vocabulary)?;
        let mut fitting = vec![];
        for (problem, place) in train {
            if Sample::new(&problem, vocabulary, &template).with_context(|| place.clone())?.length()
                < recipe.data.max_tokens
            {
                fitting.push((problem, place));
            }
        }
        let mut train = fitting;
        train.extend(rewarded);
        let programs = train.iter().map(|(problem, _)| program(problem)).collect();
        train.shuffle(&mut ChaCha8Rng::seed_from_u64(recipe.seed));
        train.truncate(2 * recipe.evaluation.problems);
        let drawn = Problems { test: train, ..Problems::default() };
        let mut twice = recipe.clone();
        twice.evaluation.problems *= 2;
        Ok((Self::from_problems(&twice, Some(vocabulary.clone()), drawn)?, programs))
    }

    fn from_problems(recipe: &Shared, vocabulary: Option<Vocabulary>, found: Problems) -> Result<Self> {
        let mut vocabulary = match (vocabulary, &recipe.task) {
            (Some(vocabulary), _) => vocabulary,
            (None, Some(task)) => Vocabulary::from_words(task.words())?,
            (None, None) => {
                anyhow::bail!("the model has no tokenizer and the recipe no `task`: text cannot be encoded")
            }
        };
        let switch = vocabulary.add_switch_tokens()?;
        let Problems { mut train, mut test, rewarded, mut told } = found;
        if recipe.task.is_none() {
            told.extend(leave_out_unsolved(recipe, &mut train)?);
            told.extend(remove_repeats(&train, &mut test));
            let (n, all) = (recipe.evaluation.problems, test.len());
            if n < all && recipe.data.rows == 0 {
                told.push(format!(
                    "{n} of {all} problems are used: evaluation.problems of the recipe, or --problems, is {n}"
                ));
            }
            test.truncate(n);
            told.extend(count_known_steps(&train, &test));
            told.extend(find_wrong_marks(test.iter().chain(&train)));
        } else {
            told.extend(count_repeated_draws(&test));
        }
        let budgets = recipe.task.as_ref().map_or(recipe.data.budgets, Task::says_budget);
        if budgets {
            train.iter().chain(&test).chain(&rewarded).try_for_each(ensure_budget)?;
            told.extend(count_cut_budgets(&test, recipe.evaluation.max_new_tokens));
        }
        let template = Prompts::new(recipe.data.template, &vocabulary)?;
        let stops = template.stops(&vocabulary)?;
        let end = stops[0];
        let found = train.len();
        let limit = recipe.data.max_tokens;
        let (mut samples, mut train_answers) = (vec![], vec![]);
        for (problem, place) in &train {
            let sample = Sample::new(problem, &vocabulary, &template).with_context(|| place.clone())?;
            if sample.length() < limit {
                samples.push(sample);
                train_answers.push(problem.answer.clone());
            }
        }
        ensure!(
            found == 0 || !samples.is_empty(),
            "all {found} training problems exceed data.max_tokens = {limit}: raise it"
        );
        let dropped = found - samples.len();
        if dropped > 0 {
            told.push(format!(
                "{dropped} of {found} training problems are longer than data.max_tokens = {limit} and were dropped"
            ));
        }
        if recipe.task.is_none() {
            told.extend(leave_out_unanswered(&mut samples, &mut train_answers));
        }
        let encode = |(problem, place): (Problem, String)| {
            let prompt = template.encode_prompt(&vocabulary, &problem.question);
            Ok((prompt.with_context(|| format!("{place}: the question"))?, problem.answer))
        };
        let rewarded = rewarded.into_iter().map(encode).collect::<Result<_>>()?;
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
            stops,
            dropped,
            train: samples,
            train_answers,
            rewarded,
            test_prompts,
            test: test.into_iter().map(|(problem, _)| problem).collect(),
            grading: Grading {
                named: recipe.task.as_ref().map(|_| Grader::Exact).or(recipe.data.grader),
                strict: false,
            },
            is_task: recipe.task.is_some(),
            budgets,
            told,
            vocabulary,
        })
    }

    /// Prompt and gold answer of a question for rollouts, by its index.
    pub(crate) fn rewarded(&self, number: usize) -> (&[u32], &str) {
        match self.rewarded.get(number) {
            Some((prompt, answer)) => (prompt, answer),
            None => (&self.train[number].prompt, &self.train_answers[number]),
        }
    }

    /// Number of questions for rollouts.
    pub(crate) fn rewarded_questions(&self) -> usize {
        if self.rewarded.is_empty() { self.train.len() } else { self.rewarded.len() }
    }

    /// For each held-out problem, the index of the first one of its group ([`Problem::group`], else the question). A split by problem would
    /// let a probe memorise a program and be tested on the same program with other letters.
    pub fn groups(&self) -> Vec<usize> {
        let mut first = HashMap::new();
        self.test.iter().enumerate().map(|(i, problem)| *first.entry(program(problem)).or_insert(i)).collect()
    }

    /// Accuracy of guessing on the held-out problems: the share of the most common gold answer, and at least one half if steps are sets of
    /// nodes, because such a question names two candidates.
    pub fn guess(&self) -> f64 {
        let mut counts: HashMap<String, usize> = HashMap::new();
        let gold = |problem: &Problem| problem.answer.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
        self.test.iter().for_each(|problem| *counts.entry(gold(problem)).or_default() += 1);
        let two = self.test.iter().any(|problem| problem.steps.iter().any(|step| matches!(step.value, Fact::Set(_))));
        let commonest = counts.into_values().max().unwrap_or(0) as f64 / self.test.len().max(1) as f64;
        if two { commonest.max(0.5) } else { commonest }
    }

    /// Requests the first response to a prompt. If prompts state budgets, the prompt's budget limits its length.
    ///
    /// # Errors
    /// A token that the vocabulary lacks; a prompt without its budget.
    pub fn request(&self, problem: usize, prompt: &[u32]) -> Result<Request> {
        let text = if self.budgets { Some(self.vocabulary.decode_visible(prompt)?) } else { None };
        let said = |text: String| {
            said_budget(&text)
                .with_context(|| format!("problem {problem}: its prompt has no `budget N ;`: {}", cut(&text)))
        };
        Ok(Request { problem, prompt: prompt.to_vec(), rollout: 0, limit: text.map(said).transpose()? })
    }

    /// Hashes of the training and the test problems: ids, texts, tokens and gold answers, in order.
    pub(crate) fn hashes(&self) -> Result<[String; 2]> {
        let (mut train, mut test) = (Sha256::new(), Sha256::new());
        for (sample, answer) in self.train.iter().zip(&self.train_answers) {
            train.update(serde_json::to_vec(&(
                &sample.id,
                &sample.prompt,
                &sample.response,
                &sample.solution,
                answer,
            ))?);
        }
        for question in &self.rewarded {
            train.update(serde_json::to_vec(question)?);
        }
        for (problem, prompt) in self.test.iter().zip(&self.test_prompts) {
            test.update(serde_json::to_vec(&(problem, prompt))?);
        }
        Ok([format!("{:x}", train.finalize()), format!("{:x}", test.finalize())])
    }

    /// The grader of the held-out problems, for manifests: `math`, or `choice, math` if each gold answer selects its own.
    pub(crate) fn grader(&self) -> String {
        let counted = self.grading.counted(self.test.iter().map(|problem| problem.answer.as_str()));
        counted.graders.keys().map(|grader| grader.name()).collect::<Vec<_>>().join(", ")
    }

    /// Adds a warning if held-out problems are among the training problems of this recipe's run, if those can be read.
    pub(crate) fn tell_trained(&mut self, recipe: &Shared) {
        let Ok(Problems { train, rewarded, .. }) = problems(recipe, Split::Test) else { return };
        let trained = train.iter().chain(&rewarded).map(|(problem, _)| problem.asks()).collect();
        self.told.extend(count_trained(&trained, self.test.iter()));
    }

    /// Lines for the user about grading, before any work.
    ///
    /// # Errors
    /// More than half of the gold answers cannot be read by their grader.
    pub fn graded(&self) -> Result<Vec<String>> {
        if self.is_task {
            return Ok(vec![]);
        }
        let mut said = vec![];
        let held_out: Vec<&str> = self.test.iter().map(|problem| problem.answer.as_str()).collect();
        let training: Vec<&str> = self.train_answers.iter().map(String::as_str).collect();
        for (of, golds) in [("held-out problems", &held_out), ("training problems", &training)] {
            let counted = self.grading.counted(golds.iter().copied());
            if of.starts_with("held") {
                let how = if self.grading.named.is_some() {
                    "named"
                } else {
                    "from the gold answers; --grader names one for all"
                };
                said.push(format!("grader: {counted} ({how})"));
            }
            said.extend(counted.check(of)?);
            said.extend(self.count_unsayable(of, golds)?.map(|(_, what)| format!("warning: {what}")));
        }
        Ok(said)
    }

    /// Refuses training problems whose answers the model cannot produce: their reward is always 0.
    ///
    /// # Errors
    /// More than half of the gold answers have words without a token.
    pub(crate) fn ensure_sayable(&self) -> Result<()> {
        let golds: Vec<&str> = self.train_answers.iter().map(String::as_str).collect();
        if let Some((count, what)) = self.count_unsayable("training problems", &golds)? {
            ensure!(2 * count <= golds.len(), "{what}: no response would be right; look at the gold answers");
        }
        Ok(())
    }

    /// Number of gold answers with words that the vocabulary lacks, and a message; `None` if there are none.
    fn count_unsayable(&self, of: &str, golds: &[&str]) -> Result<Option<(usize, String)>> {
        let (mut count, mut first) = (0, None);
        for gold in golds {
            let unknown = self.vocabulary.unknown(gold)?;
            count += usize::from(!unknown.is_empty());
            first = first.or(unknown.into_iter().next());
        }
        let what = |word: String| {
            format!(
                "{of}: {count} of {} gold answers have a word without a token of the model (the first is `{}`)",
                golds.len(),
                cut(&word)
            )
        };
        Ok(first.map(|word| (count, what(word))))
    }

    /// Grades a response's visible text: whether it is equal to the gold answer, and by which rule.
    pub fn verdict(&self, gold: &str, text: &str) -> GraderVerdict {
        self.verdict_of(self.grading, gold, text)
    }

    /// Whether a response is rewarded; `strict` is the reward's setting.
    pub(crate) fn pays(&self, gold: &str, text: &str, strict: bool) -> bool {
        self.verdict_of(Grading { strict, ..self.grading }, gold, text).equal
    }

    fn verdict_of(&self, grading: Grading, gold: &str, text: &str) -> GraderVerdict {
        if !self.is_task {
            return grading.grade(gold, text);
        }
        match answer_after_mark(text) {
            Some(answer) => GraderVerdict { equal: answer == gold, rule: Rule::Text },
            None => GraderVerdict { equal: false, rule: Rule::NoAnswer },
        }
    }

    /// The final answer of a response, in the form in which it is compared with this gold answer.
    pub fn answer(&self, gold: &str, text: &str) -> Option<String> {
        if self.is_task { answer_after_mark(text) } else { self.grading.answer(gold, text) }
    }
}

/// The part of a problem that can be memorised: its group (`true`) or, without one, its question.
pub(crate) type ProgramKey = (bool, String);

pub(crate) fn program(problem: &Problem) -> ProgramKey {
    match &problem.group {
        Some(group) => (true, group.clone()),
        None => (false, problem.asks()),
    }
}

/// The answer of a response to a generated problem: the words after the last `#`; `None` if the response ended before it.
fn answer_after_mark(text: &str) -> Option<String> {
    let (_, answer) = text.rsplit_once('#')?;
    let answer = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    (!answer.is_empty()).then_some(answer)
}

/// A note with the number of values that a file's solutions state.
fn count_known_steps(train: &[ProblemAt], test: &[ProblemAt]) -> Option<String> {
    let of = |problems: &[ProblemAt]| {
        let known = |problem: &Problem| problem.steps.iter().filter(|step| step.value.number().is_some()).count();
        let counts: Vec<usize> = problems.iter().map(|(problem, _)| known(problem)).filter(|n| *n > 0).collect();
        (counts.iter().sum::<usize>(), counts.len())
    };
    let ((trained, training), (asked, held)) = (of(train), of(test));
    (trained + asked > 0).then(|| {
        format!(
            "known values: {asked} in {held} of {} held-out solutions, {trained} in {training} of {} training ones (from `steps` or from marks \
             <<a*b=c>>, which are removed from sentences)",
            test.len(),
            train.len()
        )
    })
}

/// A warning with the number of calculations in a file's solutions whose result differs from the stated value.
fn find_wrong_marks<'p>(problems: impl Iterator<Item = &'p ProblemAt>) -> Option<String> {
    let other = |step: &StepValue| {
        let made = evaluate(step.expression.as_deref()?, &mut |operand| match operand {
            StepOperand::Number(n) => Some(n),
            StepOperand::Step(_) => None,
        })?;
        let said = match &step.value {
            Fact::Number(whole) => whole.to_string(),
            Fact::Text(text) => text.clone(),
            Fact::Set(_) => return None,
        };
        let value = number(&said)?;
        // A stated value may be rounded to its last digit.
        let digits = said.split_once('.').map_or(0, |(_, behind)| behind.len());
        let last = number(&if digits == 0 { "1".into() } else { format!(".{}1", "0".repeat(digits - 1)) })?;
        let off = if made > value { &made - value } else { value - &made };
        let expression = step.expression.as_deref().unwrap_or_default();
        (off >= last).then(|| format!("{} is {made}, not {said}", cut(expression)))
    };
    let wrong = problems.flat_map(|(problem, place)| {
        problem.steps.iter().filter_map(other).map(move |what| format!("{place}: {what}"))
    });
    let wrong: Vec<String> = wrong.collect();
    let first = wrong.first()?;
    Some(format!(
        "warning: {} marks <<a*b=c>> state another value than their expression has (the first is {first}). The text is trained on unchanged, \
         and no answer is predicted through them",
        wrong.len()
    ))
}

/// A note with the number of generated problems that repeat an earlier one, with the same letters or others. They are not removed:
/// experiments generate problems again by index.
fn count_repeated_draws(test: &[ProblemAt]) -> Option<String> {
    let distinct = test.iter().map(|(problem, _)| problem.asks()).collect::<HashSet<_>>().len();
    let groups = test.iter().map(|(problem, _)| &problem.group).collect::<HashSet<_>>().len();
    let (all, twice) = (test.len(), test.len() - distinct);
    (twice > 0).then(|| {
        format!(
            "note: {twice} of {all} generated held-out problems were drawn before: {distinct} distinct questions, in {groups} groups that \
             splits keep together"
        )
    })
}

/// Removes held-out problems whose question repeats an earlier one: copies would count as independent samples, and could be on both sides
/// of a split. Returns warnings about them, about repeated training problems, and about training problems among the held-out ones.
fn remove_repeats(train: &[ProblemAt], test: &mut Vec<ProblemAt>) -> Vec<String> {
    let mut told = vec![];
    let trained: HashSet<String> = train.iter().map(|(problem, _)| problem.asks()).collect();
    let (all, mut seen) = (test.len(), HashMap::new());
    let (mut other, mut shown) = (0, None);
    test.retain(|(problem, place)| match seen.entry(problem.asks()) {
        Entry::Vacant(new) => {
            new.insert(problem.answer.clone());
            true
        }
        Entry::Occupied(first) => {
            other += usize::from(*first.get() != problem.answer);
            shown.get_or_insert_with(|| place.clone());
            false
        }
    });
    if let Some(place) = shown {
        let answers =
            if other > 0 { format!("; {other} of them with another answer than the first") } else { String::new() };
        told.push(format!(
            "warning: {} of {all} held-out problems repeat the same question as one before (the first is {place}) and are left out, so \
             that n counts questions{answers}",
            all - test.len()
        ));
    }
    if train.len() > trained.len() {
        let twice = train.len() - trained.len();
        told.push(format!(
            "warning: {twice} of {} training problems repeat the same question as one before",
            train.len()
        ));
    }
    told.extend(count_trained(&trained, test.iter().map(|(problem, _)| problem)));
    told
}

/// A warning with the number of held-out problems whose question is a training problem's.
fn count_trained<'p>(trained: &HashSet<String>, test: impl ExactSizeIterator<Item = &'p Problem>) -> Option<String> {
    let all = test.len();
    let known = test.filter(|problem| trained.contains(&problem.asks())).count();
    (known > 0).then(|| {
        format!(
            "warning: {known} of {all} held-out problems are training problems too (the same question): accuracy on them does not measure \
             unseen problems"
        )
    })
}

/// Refuses a question that does not begin with the budget of its answer.
fn ensure_budget((problem, place): &ProblemAt) -> Result<()> {
    let question = problem.question.trim_start();
    ensure!(
        question.starts_with("budget ") && said_budget(question).is_some(),
        "{place}: the question must begin with `budget N ;`, N the visible tokens of its answer, at least 1; found `{}`",
        cut(question)
    );
    Ok(())
}

/// A warning with the number of questions whose budget exceeds the limit of every response.
fn count_cut_budgets(test: &[ProblemAt], most: usize) -> Option<String> {
    let above = test.iter().filter(|(problem, _)| said_budget(&problem.question) > Some(most)).count();
    (above > 0).then(|| {
        format!(
            "warning: {above} of {} held-out questions state a budget above evaluation.max_new_tokens = {most}, which ends their responses",
            test.len()
        )
    })
}

/// A problem and its place (`file:line`), for messages.
type ProblemAt = (Problem, String);

/// The problems of a recipe.
#[derive(Default)]
struct Problems {
    train: Vec<ProblemAt>,
    test: Vec<ProblemAt>,
    /// Problems of `data.grpo_path`.
    rewarded: Vec<ProblemAt>,
    told: Vec<String>,
}

/// Download addresses of benchmarks, by a part of the file name in recipes.
const DOWNLOADS: [(&str, &str); 2] = [
    ("math500", "https://huggingface.co/datasets/HuggingFaceH4/MATH-500/resolve/main/test.jsonl"),
    ("gsm8k", "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/test.jsonl"),
];

/// # Errors
/// A missing held-out file; the message has the download command of a known benchmark.
fn ensure_there(path: &Path) -> Result<()> {
    let shown = path.display().to_string();
    let known = DOWNLOADS.iter().find(|(name, _)| shown.contains(name));
    let get = known.map(|(_, url)| format!("download it (curl --create-dirs -L -o {shown} {url}), or "));
    ensure!(
        is_there(path),
        "data.test_path = {shown}: no such file or folder; {}name another (--set data.test_path=FILE)",
        get.unwrap_or_default()
    );
    Ok(())
}

/// Removes training problems without a solution, and returns a note: supervised phases cannot learn from them.
///
/// # Errors
/// No training problem has a solution.
fn leave_out_unsolved(recipe: &Shared, train: &mut Vec<ProblemAt>) -> Result<Option<String>> {
    let found = train.len();
    train.retain(|(problem, _)| !problem.solution.trim().is_empty());
    let path = recipe.data.path.as_ref().map_or_else(String::new, |path| path.display().to_string());
    ensure!(
        found == 0 || !train.is_empty(),
        "{path}: none of {found} training problems has a solution to learn from; to use the questions for rewards alone: --set \
         data.grpo_path={path}"
    );
    let without = found - train.len();
    Ok((without > 0)
        .then(|| format!("{path}: {without} of {found} training problems have no solution and are left out")))
}

/// Removes training solutions without a marked final answer if others have one, and returns a note: several methods need it.
fn leave_out_unanswered(samples: &mut Vec<Sample>, answers: &mut Vec<String>) -> Option<String> {
    let found = samples.len();
    let kept = samples.iter().filter(|sample| sample.answer.is_some()).count();
    if kept == 0 || kept == found {
        return None;
    }
    let pairs = std::mem::take(samples).into_iter().zip(std::mem::take(answers));
    (*samples, *answers) = pairs.filter(|(sample, _)| sample.answer.is_some()).unzip();
    Some(format!(
        "{} of {found} training solutions state no final answer (\\boxed{{}} or ####) and are left out",
        found - kept
    ))
}

/// Reads or generates training and held-out problems; `split` selects the held-out ones of a generated task.
fn problems(recipe: &Shared, split: Split) -> Result<Problems> {
    let wanted = recipe.evaluation.problems;
    if let Some(task) = &recipe.task {
        let placed = |problem: Problem| (problem.clone(), format!("problem {}", problem.id));
        let rows = |split, n: usize| -> Result<Vec<ProblemAt>> {
            Ok(task.rows(split, recipe.seed, 0..n as u64)?.into_iter().map(Problem::from).map(placed).collect())
        };
        let (train, test) = (rows(Split::Train, recipe.data.rows)?, rows(split, wanted)?);
        return Ok(Problems { train, test, ..Problems::default() });
    }
    ensure!(split == Split::Test, "problems of a file have no validation split");
    let Data { fields, test_fields, generations, .. } = &recipe.data;
    let mut told = vec![];
    let mut read = |path: &PathBuf, part, named: Option<&Fields>, likely: Option<&Fields>| -> Result<Vec<ProblemAt>> {
        let format = named.is_some().then_some(RecordFormat::Jsonl);
        let fields = named.or(likely).cloned().unwrap_or_default();
        let generations = if part == Part::Train { *generations } else { Generations::default() };
        let mut left_out = LeftOut::default();
        let read = Source { format, fields, generations, ..Source::new(path) }.placed(part, &mut left_out)?;
        let LeftOut { unmarked, parts } = left_out;
        if unmarked > 0 {
            told.push(format!(
                "{}: {unmarked} records have no generation that is marked right and are left out",
                path.display()
            ));
        }
        if let Some(first) = parts.first() {
            told.push(format!(
                "warning: {}: the prompts do not have {} of the records; --field context={first} puts a text before the question, and \
                 context=none drops this warning",
                path.display(),
                parts.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
            ));
        }
        Ok(read)
    };
    let fields = fields.as_ref();
    let path = recipe.data.path.as_ref().context("data.path is missing")?;
    let apart = has_part(path, Part::Train) && has_part(path, Part::Test);
    let mut train = if recipe.data.rows > 0 || recipe.data.test_path.is_none() && !apart {
        read(path, Part::Train, fields, None)?
    } else {
        vec![]
    };
    let test = match &recipe.data.test_path {
        Some(path) => {
            ensure_there(path)?;
            read(path, Part::Test, test_fields.as_ref(), fields)?
        }
        None if apart => read(path, Part::Test, fields, None)?,
        None => {
            let held = recipe.data.test_rows;
            ensure!(
                held > 0 && held < train.len(),
                "{}: data.test_rows = {held} of {} problems; hold out at least 1 and leave some, or name a file of held-out problems \
                 (--set data.test_path=FILE)",
                path.display(),
                train.len()
            );
            train.split_off(train.len() - held)
        }
    };
    let mut rewarded = match &recipe.data.grpo_path {
        Some(path) if recipe.data.rows > 0 => read(path, Part::Train, None, fields)?,
        _ => vec![],
    };
    if recipe.data.shuffle {
        let mut rng = ChaCha8Rng::seed_from_u64(recipe.seed);
        train.shuffle(&mut rng);
        rewarded.shuffle(&mut rng);
    }
    train.truncate(recipe.data.rows);
    Ok(Problems { train, test, rewarded, told })
}

/// A training sequence: prompt, response and end token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub ids: Vec<u32>,
    pub prompt: usize,
    /// The same sample with its chain of thought, for methods that learn from both. Both have the same end.
    pub teacher: Option<Box<Row>>,
    /// The targets of each latent, or of each group of latents (of equal size), in order; empty for methods without such a loss.
    pub slots: Vec<Slot>,
    /// Seed of the noise on latent inputs, for methods that add it.
    pub noise: Option<u64>,
}

/// Tokens that one latent, or one group of latents, replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub tokens: Vec<u32>,
    /// The one of them that is the target of the language model's head, for methods with such a loss.
    pub label: u32,
}

impl Row {
    pub fn new(prompt: &[u32], response: &[u32], end: u32) -> Self {
        let ids = prompt.iter().chain(response).copied().chain([end]).collect();
        Self { ids, prompt: prompt.len(), teacher: None, slots: vec![], noise: None }
    }

    /// The prompt with the visible chain of thought.
    pub fn text(sample: &Sample, end: u32) -> Self {
        Self::new(&sample.prompt, &sample.response, end)
    }

    /// The prompt with the response from its token `from` on; earlier tokens are removed.
    pub fn rest(sample: &Sample, from: usize, end: u32) -> Self {
        Self::new(&sample.prompt, &sample.response[from..], end)
    }

    /// Inserts tokens between prompt and response. They are not in the loss.
    #[must_use]
    pub fn after(self, block: &[u32]) -> Self {
        let (prompt, response) = self.ids.split_at(self.prompt);
        Self { ids: [prompt, block, response].concat(), prompt: self.prompt + block.len(), ..self }
    }

    #[must_use]
    pub fn taught_by(self, teacher: Row) -> Self {
        Self { teacher: Some(Box::new(teacher)), ..self }
    }

    /// Number of positions fed, including the teacher's.
    pub fn positions(&self) -> usize {
        self.ids.len() + self.teacher.as_ref().map_or(0, |teacher| teacher.positions())
    }

    /// The final answer only (the no-CoT control).
    ///
    /// # Errors
    /// A sample whose final answer is not marked.
    pub fn answer_only(sample: &Sample, end: u32) -> Result<Self> {
        let answer = sample.required_answer("no-CoT cannot be trained")?.clone();
        Ok(Self::new(&sample.prompt, &sample.response[answer], end))
    }
}
