//! The problems of a run as token rows: training and held-out, from a generated task or a file.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
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

/// Everything about text that training needs.
pub struct Corpus {
    pub vocabulary: Vocabulary,
    pub switch: SwitchIds,
    pub template: Prompts,
    /// The token that closes a response.
    pub end: u32,
    /// Tokens that end a generation, that one first.
    pub stops: Vec<u32>,
    pub train: Vec<Sample>,
    /// Gold answers of `train`.
    pub train_answers: Vec<String>,
    /// Prompts and gold answers that rollouts are drawn for; where empty, those of `train`.
    pub rewarded: Vec<(Vec<u32>, String)>,
    pub test: Vec<Problem>,
    pub test_prompts: Vec<Vec<u32>>,
    /// Training problems that were too long to use.
    pub dropped: usize,
    /// How answers are graded.
    pub grading: Grading,
    /// Whether the problems are generated: responses then end in `# answer`.
    pub is_task: bool,
    /// Whether each question begins with the budget of its answer.
    pub budgets: bool,
    /// What a user should know of the problems: repeated questions, training problems among the held-out ones.
    pub told: Vec<String>,
}

impl Corpus {
    /// Reads or generates the problems. `vocabulary` is the pretrained model's; a task makes its own.
    ///
    /// # Errors
    /// A file that cannot be read, no usable sample, a template whose tokens the vocabulary lacks.
    pub fn build(recipe: &Shared, vocabulary: Option<Vocabulary>) -> Result<Self> {
        Self::held_out(recipe, vocabulary, Split::Test)
    }

    /// The validation problems of a generated task in place of the held-out ones: for choices that must not see these.
    ///
    /// # Errors
    /// As [`Self::build`]; the problems of a file have no such part.
    pub(crate) fn validation(recipe: &Shared, vocabulary: &Vocabulary) -> Result<Self> {
        let mut few = recipe.clone();
        few.data.rows = 1;
        Self::held_out(&few, Some(vocabulary.clone()), Split::Validation)
    }

    fn held_out(recipe: &Shared, vocabulary: Option<Vocabulary>, split: Split) -> Result<Self> {
        Self::of(recipe, vocabulary, problems(recipe, split)?)
    }

    /// Twice as many training problems as there are held-out ones, drawn by the recipe's seed, in place of those; and the programs of all.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub(crate) fn training(recipe: &Shared, vocabulary: &Vocabulary) -> Result<(Self, HashSet<ProgramKey>)> {
        let Problems { mut train, rewarded, .. } = problems(recipe, Split::Test)?;
        train.extend(rewarded);
        if recipe.task.is_none() {
            leave_out_unsolved(recipe, &mut train)?;
        }
        let programs = train.iter().map(|(problem, _)| program(problem)).collect();
        train.shuffle(&mut ChaCha8Rng::seed_from_u64(recipe.seed));
        train.truncate(2 * recipe.evaluation.problems);
        let drawn = Problems { test: train, ..Problems::default() };
        let mut twice = recipe.clone();
        twice.evaluation.problems *= 2;
        Ok((Self::of(&twice, Some(vocabulary.clone()), drawn)?, programs))
    }

    fn of(recipe: &Shared, vocabulary: Option<Vocabulary>, found: Problems) -> Result<Self> {
        let mut vocabulary = match (vocabulary, &recipe.task) {
            (Some(vocabulary), _) => vocabulary,
            (None, Some(task)) => Vocabulary::from_words(task.words())?,
            (None, None) => {
                anyhow::bail!("the model brings no tokenizer and the recipe no `task`: nothing to encode text with")
            }
        };
        let switch = vocabulary.add_switch_tokens()?;
        let Problems { mut train, mut test, rewarded, mut told } = found;
        if recipe.task.is_none() {
            told.extend(leave_out_unsolved(recipe, &mut train)?);
            told.extend(overlaps(&train, &mut test));
            test.truncate(recipe.evaluation.problems);
            told.extend(known_steps(&train, &test));
            told.extend(wrong_marks(test.iter().chain(&train)));
        } else {
            told.extend(drawn_twice(&test));
        }
        let budgets = recipe.task.as_ref().map_or(recipe.data.budgets, Task::says_budget);
        if budgets {
            train.iter().chain(&test).try_for_each(says_budget)?;
            told.extend(cut_budgets(&test, recipe.evaluation.max_new_tokens));
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

    /// Prompt and gold answer of the question with this number, of those that rollouts are drawn for.
    pub(crate) fn rewarded(&self, number: usize) -> (&[u32], &str) {
        match self.rewarded.get(number) {
            Some((prompt, answer)) => (prompt, answer),
            None => (&self.train[number].prompt, &self.train_answers[number]),
        }
    }

    /// How many questions rollouts are drawn for.
    pub(crate) fn rewarded_questions(&self) -> usize {
        if self.rewarded.is_empty() { self.train.len() } else { self.rewarded.len() }
    }

    /// Of each held-out problem the first of its group ([`Problem::group`]; without one, problems with the same question). A split by
    /// problem would let a probe learn a program by heart and be judged on the same program with other letters.
    pub fn groups(&self) -> Vec<usize> {
        let mut first = HashMap::new();
        self.test.iter().enumerate().map(|(i, problem)| *first.entry(program(problem)).or_insert(i)).collect()
    }

    /// Share of the held-out problems that a guess gets right: that of the commonest gold answer, and one in two where steps are sets of
    /// nodes, because such a question names two candidates.
    pub fn guess(&self) -> f64 {
        let mut counts: HashMap<String, usize> = HashMap::new();
        let gold = |problem: &Problem| problem.answer.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
        self.test.iter().for_each(|problem| *counts.entry(gold(problem)).or_default() += 1);
        let two = self.test.iter().any(|problem| problem.steps.iter().any(|step| matches!(step.value, Fact::Set(_))));
        let commonest = counts.into_values().max().unwrap_or(0) as f64 / self.test.len().max(1) as f64;
        if two { commonest.max(0.5) } else { commonest }
    }

    /// The first response to a prompt, which may be as long as the prompt says where prompts say that.
    ///
    /// # Errors
    /// A token that the vocabulary lacks; a prompt without its budget.
    pub fn request(&self, problem: usize, prompt: &[u32]) -> Result<Request> {
        let text = if self.budgets { Some(self.vocabulary.decode_visible(prompt)?) } else { None };
        let said = |text: String| {
            said_budget(&text)
                .with_context(|| format!("problem {problem}: its prompt says no `budget N ;`: {}", cut(&text)))
        };
        Ok(Request { problem, prompt: prompt.to_vec(), rollout: 0, limit: text.map(said).transpose()? })
    }

    /// Hashes of the training and the test problems: ids, texts, tokens and gold answers, in order.
    ///
    /// # Errors
    /// What cannot be written as JSON.
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

    /// The grader of the held-out problems, as manifests have it: `math`, or `choice, math` where each gold answer has its own.
    pub(crate) fn grader(&self) -> String {
        let counted = self.grading.counted(self.test.iter().map(|problem| problem.answer.as_str()));
        counted.graders.keys().map(|grader| grader.name()).collect::<Vec<_>>().join(", ")
    }

    /// Says how many of the held-out problems the run of this recipe was trained on, where its training problems can be read.
    pub(crate) fn tell_trained(&mut self, recipe: &Shared) {
        let Ok(Problems { train, rewarded, .. }) = problems(recipe, Split::Test) else { return };
        let trained = train.iter().chain(&rewarded).cloned().collect::<Vec<_>>();
        let trained = trained.iter().map(|(problem, _)| problem.asks()).collect();
        self.told.extend(known(&trained, self.test.iter()));
    }

    /// What to say of how the answers are graded, before any work.
    ///
    /// # Errors
    /// Gold answers of which more than half cannot be read by their grader.
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
            said.extend(self.unsayable(of, golds)?.map(|(_, what)| format!("warning: {what}")));
        }
        Ok(said)
    }

    /// Refuses training problems whose answers the model cannot give: there is nothing to learn from a reward of none.
    ///
    /// # Errors
    /// More than half of them.
    pub(crate) fn ensure_sayable(&self) -> Result<()> {
        let golds: Vec<&str> = self.train_answers.iter().map(String::as_str).collect();
        if let Some((count, what)) = self.unsayable("training problems", &golds)? {
            ensure!(2 * count <= golds.len(), "{what}: no response would be right; look at the gold answers");
        }
        Ok(())
    }

    /// How many gold answers hold words which are no tokens of the model, and what to say of them.
    fn unsayable(&self, of: &str, golds: &[&str]) -> Result<Option<(usize, String)>> {
        let (mut count, mut first) = (0, None);
        for gold in golds {
            let unknown = self.vocabulary.unknown(gold)?;
            count += usize::from(!unknown.is_empty());
            first = first.or(unknown.into_iter().next());
        }
        let what = |word: String| {
            format!(
                "{of}: {count} of {} gold answers cannot be said by the model, which has no token for a word of theirs (the \
                 first is `{}`)",
                golds.len(),
                cut(&word)
            )
        };
        Ok(first.map(|word| (count, what(word))))
    }

    /// Whether a response's visible text reaches the gold answer, and by which rule.
    pub fn verdict(&self, gold: &str, text: &str) -> GraderVerdict {
        self.verdict_of(self.grading, gold, text)
    }

    /// Whether a response earns its reward: graded strictly, where the reward's settings say so.
    pub(crate) fn pays(&self, gold: &str, text: &str, strict: bool) -> bool {
        self.verdict_of(Grading { strict, ..self.grading }, gold, text).equal
    }

    fn verdict_of(&self, grading: Grading, gold: &str, text: &str) -> GraderVerdict {
        if !self.is_task {
            return grading.grade(gold, text);
        }
        match behind_the_last_mark(text) {
            Some(answer) => GraderVerdict { equal: answer == gold, rule: Rule::Text },
            None => GraderVerdict { equal: false, rule: Rule::NoAnswer },
        }
    }

    /// The final answer of a response to the problem with this gold answer, as it is compared.
    pub fn answer(&self, gold: &str, text: &str) -> Option<String> {
        if self.is_task { behind_the_last_mark(text) } else { self.grading.answer(gold, text) }
    }
}

/// What can be learnt by heart of a problem: its group; without one, its question.
pub(crate) type ProgramKey = (bool, String);

pub(crate) fn program(problem: &Problem) -> ProgramKey {
    match &problem.group {
        Some(group) => (true, group.clone()),
        None => (false, problem.asks()),
    }
}

/// The words after the last `#`, with which responses to generated problems end: one without it has not come to its answer.
fn behind_the_last_mark(text: &str) -> Option<String> {
    let (_, answer) = text.rsplit_once('#')?;
    let answer = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    (!answer.is_empty()).then_some(answer)
}

/// How many values a file's solutions say, and what becomes of the marks that say them.
fn known_steps(train: &[ProblemAt], test: &[ProblemAt]) -> Option<String> {
    let of = |problems: &[ProblemAt]| {
        let known = |problem: &Problem| problem.steps.iter().filter(|step| step.value.number().is_some()).count();
        let counts: Vec<usize> = problems.iter().map(|(problem, _)| known(problem)).filter(|n| *n > 0).collect();
        (counts.iter().sum::<usize>(), counts.len())
    };
    let ((trained, training), (asked, held)) = (of(train), of(test));
    (trained + asked > 0).then(|| {
        format!(
            "known values: {asked} in {held} of {} held-out solutions, {trained} in {training} of {} training ones (of `steps` or of marks \
             <<a*b=c>>, which are left out of the text of a sentence)",
            test.len(),
            train.len()
        )
    })
}

/// How many calculations of a file's solutions make another value than they say.
fn wrong_marks<'p>(problems: impl Iterator<Item = &'p ProblemAt>) -> Option<String> {
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
        let value = match said.strip_prefix('-') {
            Some(positive) => -number(positive)?,
            None => number(&said)?,
        };
        // A value may be rounded to its last digit.
        let digits = said.split_once('.').map_or(0, |(_, behind)| behind.len());
        let last = number(&if digits == 0 { "1".into() } else { format!(".{}1", "0".repeat(digits - 1)) })?;
        let off = if made > value { &made - value } else { value - &made };
        let expression = step.expression.as_deref().unwrap_or_default();
        (off >= last).then(|| format!("{} makes {made}, not {said}", cut(expression)))
    };
    let wrong = problems.flat_map(|(problem, place)| {
        problem.steps.iter().filter_map(other).map(move |what| format!("{place}: {what}"))
    });
    let wrong: Vec<String> = wrong.collect();
    let first = wrong.first()?;
    Some(format!(
        "warning: {} marks <<a*b=c>> say another value than they make (the first is {first}). The text is learnt as it stands, and no \
         answer is predicted through them",
        wrong.len()
    ))
}

/// How many generated problems were drawn before, with these letters or others. They stay: what an experiment knows of a generated
/// problem goes by its number.
fn drawn_twice(test: &[ProblemAt]) -> Option<String> {
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

/// Leaves of held-out problems that ask the same question the first: the question is what is sampled, and its copies would count as
/// more evidence and stand on both sides of a split. Says how many, and how many questions are training problems.
fn overlaps(train: &[ProblemAt], test: &mut Vec<ProblemAt>) -> Vec<String> {
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
    told.extend(known(&trained, test.iter().map(|(problem, _)| problem)));
    told
}

/// How many held-out problems ask what training problems ask.
fn known<'p>(trained: &HashSet<String>, test: impl ExactSizeIterator<Item = &'p Problem>) -> Option<String> {
    let all = test.len();
    let known = test.filter(|problem| trained.contains(&problem.asks())).count();
    (known > 0).then(|| {
        format!(
            "warning: {known} of {all} held-out problems are training problems too (the same question): accuracy on them is no measure of \
             problems that the model has not seen"
        )
    })
}

/// Refuses a question that does not begin with the budget of its answer.
fn says_budget((problem, place): &ProblemAt) -> Result<()> {
    let question = problem.question.trim_start();
    ensure!(
        question.starts_with("budget ") && said_budget(question).is_some(),
        "{place}: the question must begin with `budget N ;`, N visible tokens of its answer and at least 1, found `{}`",
        cut(question)
    );
    Ok(())
}

/// That responses end before the budget that their question says.
fn cut_budgets(test: &[ProblemAt], most: usize) -> Option<String> {
    let above = test.iter().filter(|(problem, _)| said_budget(&problem.question) > Some(most)).count();
    (above > 0).then(|| {
        format!(
            "warning: {above} of {} held-out questions say a budget above evaluation.max_new_tokens = {most}, which ends their responses",
            test.len()
        )
    })
}

/// A problem and the place it stands at, for messages.
type ProblemAt = (Problem, String);

/// The problems of a recipe.
#[derive(Default)]
struct Problems {
    train: Vec<ProblemAt>,
    test: Vec<ProblemAt>,
    /// Of `data.grpo_path`.
    rewarded: Vec<ProblemAt>,
    told: Vec<String>,
}

/// Where benchmarks are downloaded from that recipes name by these files.
const DOWNLOADS: [(&str, &str); 2] = [
    ("math500", "https://huggingface.co/datasets/HuggingFaceH4/MATH-500/resolve/main/test.jsonl"),
    ("gsm8k", "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/test.jsonl"),
];

/// # Errors
/// A held-out file that is not there, with how to get it where it is a known benchmark.
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

/// Leaves out training problems without a solution: supervised phases learn nothing from them.
///
/// # Errors
/// Where none has one.
fn leave_out_unsolved(recipe: &Shared, train: &mut Vec<ProblemAt>) -> Result<Option<String>> {
    let found = train.len();
    train.retain(|(problem, _)| !problem.solution.trim().is_empty());
    let path = recipe.data.path.as_ref().map_or_else(String::new, |path| path.display().to_string());
    ensure!(
        found == 0 || !train.is_empty(),
        "{path}: none of {found} training problems has a solution to learn from; questions for rewards alone are named by \
         data.grpo_path (--set data.grpo_path={path})"
    );
    let without = found - train.len();
    Ok((without > 0)
        .then(|| format!("{path}: {without} of {found} training problems have no solution and are left out")))
}

/// Leaves out training solutions that state no final answer, where others do: half of the methods learn the answer from it.
fn leave_out_unanswered(samples: &mut Vec<Sample>, answers: &mut Vec<String>) -> Option<String> {
    let found = samples.len();
    let stated: Vec<bool> = samples.iter().map(|sample| sample.answer.is_some()).collect();
    let kept = stated.iter().filter(|stated| **stated).count();
    if kept == 0 || kept == found {
        return None;
    }
    let mut keep = stated.iter();
    samples.retain(|_| *keep.next().unwrap_or(&true));
    let mut keep = stated.iter();
    answers.retain(|_| *keep.next().unwrap_or(&true));
    Some(format!(
        "{} of {found} training solutions state no final answer (\\boxed{{}} or ####) and are left out",
        found - kept
    ))
}

/// Training problems and those that are held out: of a generated task those of `split`.
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
    ensure!(split == Split::Test, "problems of a file have no validation part");
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

/// A training row: prompt and closed response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub ids: Vec<u32>,
    pub prompt: usize,
    /// The same sample with its chain of thought, where a method learns from both. Ends as this one does.
    pub teacher: Option<Box<Row>>,
    /// What each latent, or each of as many equal groups of them, stands for, in order, where a method learns that; else empty.
    pub slots: Vec<Slot>,
    /// Names the noise on what its latents are fed, where a method that knows their inputs adds some.
    pub noise: Option<u64>,
}

/// Tokens that one latent, or one group of them, stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub tokens: Vec<u32>,
    /// That of them which the language model's head learns, where it learns one.
    pub label: u32,
}

impl Row {
    pub fn new(prompt: &[u32], response: &[u32], end: u32) -> Self {
        let ids = prompt.iter().chain(response).copied().chain([end]).collect();
        Self { ids, prompt: prompt.len(), teacher: None, slots: vec![], noise: None }
    }

    /// The visible chain of thought as it is.
    pub fn text(sample: &Sample, end: u32) -> Self {
        Self::new(&sample.prompt, &sample.response, end)
    }

    /// The response from its token `from` on: what stands before is gone.
    pub fn rest(sample: &Sample, from: usize, end: u32) -> Self {
        Self::new(&sample.prompt, &sample.response[from..], end)
    }

    /// The row with these tokens between prompt and response. They are not learnt.
    #[must_use]
    pub fn after(self, block: &[u32]) -> Self {
        let (prompt, response) = self.ids.split_at(self.prompt);
        Self { ids: [prompt, block, response].concat(), prompt: self.prompt + block.len(), ..self }
    }

    /// The row with this teacher.
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
