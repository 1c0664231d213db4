//! Converts one record of each problem format to problems. Knows JSON objects, not files.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value};

use super::Problem;
use super::options::ChoiceOptions;
use super::problems::closing_brace;
use super::record::{Record, kind};
use super::sources::Generations;
use super::steps::{self, FileStep};
use super::templates::BOXED_INSTRUCTION;
use super::vocabulary::{SWI, SWI_END};
use crate::tasks::{Fact, StepValue};

names! {
    /// A format of problem files, by its name in a recipe.
    pub enum RecordFormat {
        /// openai/grade-school-math: question, answer (steps, then `#### gold`).
        Gsm8k = "gsm8k",
        /// GSM8K reduced to its equations: question, steps, answer.
        GsmEquations = "gsm-equations",
        /// problem, solution, answer, subject, level, unique_id.
        Math500 = "math500",
        /// hendrycks/math: problem, solution (the last box of which is the answer), level, type.
        Math = "math",
        /// facebookresearch/coconut: question, steps, answer, edges, idx_to_symbol, root.
        ProsQa = "prosqa",
        /// OpenR1-Math and its like: problem, solution, answer, and perhaps uuid, problem_type.
        OpenR1 = "openr1",
        /// verl: prompt (a list of messages), reward_model.ground_truth; questions for rewards, without solutions.
        Verl = "verl",
        /// Any JSONL whose keys `fields` names.
        Jsonl = "jsonl",
    }
}

impl RecordFormat {
    /// The format, from a record's keys.
    pub fn detect(object: &Map<String, Value>) -> Result<RecordFormat> {
        let has = |keys: &[&str]| keys.iter().all(|key| object.contains_key(*key));
        let objects =
            |key: &str| matches!(object.get(key), Some(Value::Array(all)) if all.iter().any(Value::is_object));
        let final_line = || object.get("answer").and_then(Value::as_str).is_some_and(|text| text.contains("####"));
        if has(&["prompt", "reward_model"]) {
            Ok(RecordFormat::Verl)
        } else if has(&["problem", "solution", "answer", "unique_id"]) {
            Ok(RecordFormat::Math500)
        } else if has(&["problem", "solution", "answer"]) {
            Ok(RecordFormat::OpenR1)
        } else if has(&["problem", "solution"]) && object["solution"].as_str().is_some_and(|text| boxed(text).is_some())
        {
            Ok(RecordFormat::Math)
        } else if has(&["question", "steps", "answer", "edges", "idx_to_symbol"]) {
            Ok(RecordFormat::ProsQa)
        } else if has(&["question", "solution", "answer"]) {
            // Before the equations, because Switchyard's own files have steps as well.
            Ok(RecordFormat::Jsonl)
        } else if has(&["question", "steps", "answer"]) && !objects("steps") {
            Ok(RecordFormat::GsmEquations)
        } else if has(&["question", "answer"]) && !objects("steps") && final_line() {
            Ok(RecordFormat::Gsm8k)
        } else if has(&["question", "answer"]) || has(&["Question", "Correct Answer"]) {
            Ok(RecordFormat::Jsonl)
        } else {
            let keys: Vec<&String> = object.keys().collect();
            bail!(
                "no known format has the keys {keys:?}; name yours: --field question=…,answer=… (in a recipe data.fields)"
            )
        }
    }
}

/// The content of the last `\boxed{…}` or `\fbox{…}`, or what follows `\boxed ` up to the end of its formula, as MATH's evaluation reads it.
fn boxed(solution: &str) -> Option<&str> {
    let (start, mark) =
        ["\\boxed", "\\fbox"].into_iter().filter_map(|mark| Some((solution.rfind(mark)?, mark))).max()?;
    let rest = &solution[start + mark.len()..];
    let content = if rest.starts_with('{') {
        rest.get(1..closing_brace(rest, 0))?.strip_suffix('}')?
    } else {
        rest.strip_prefix(' ')?.split('$').next()?
    };
    Some(content.trim())
}

impl Record<'_> {
    /// The problems of a record: one, or one per generation that is read as its solution.
    ///
    /// # Errors
    /// A key that is missing or has another type.
    pub fn problems(&self, format: RecordFormat) -> Result<Vec<Problem>> {
        let Some(generations) = self.generations()? else { return Ok(vec![self.problem(format)?]) };
        let whole = self.problem(format)?;
        let solved = |(number, solution): (usize, String)| -> Result<Problem> {
            let id = if number == 0 { whole.id.clone() } else { format!("{}#{}", whole.id, number + 1) };
            let Problem { subject, level, .. } = whole.clone();
            Ok(Problem { id, subject, level, ..self.plain(whole.question.clone(), solution, whole.answer.clone())? })
        };
        generations.into_iter().enumerate().map(solved).collect()
    }

    /// Generations marked as right, filtered as `generations` of the source requires; `None` for a record without generations.
    fn generations(&self) -> Result<Option<Vec<String>>> {
        const VERDICTS: [&str; 2] = ["correctness_math_verify", "correctness_llama"];
        let most = match self.source.generations {
            Generations::Solution => return Ok(None),
            Generations::First => 1,
            Generations::All => usize::MAX,
        };
        if !self.object.contains_key("generations") {
            return Ok(None);
        }
        let texts = self.texts("generations")?;
        for key in VERDICTS.iter().filter(|key| self.object.get(**key).is_some_and(|verdicts| !verdicts.is_null())) {
            let right: Vec<bool> = self.typed(key, "a list of booleans")?;
            ensure!(
                right.len() == texts.len(),
                "{}: key \"{key}\": {} verdicts of {} generations",
                self.place,
                right.len(),
                texts.len()
            );
            if right.contains(&true) {
                let chosen = texts.iter().zip(&right).filter(|(_, right)| **right).map(|(text, _)| text.clone());
                return Ok(Some(chosen.take(most).collect()));
            }
        }
        Ok(Some(vec![]))
    }

    pub fn problem(&self, format: RecordFormat) -> Result<Problem> {
        let problem = match format {
            RecordFormat::Verl => self.verl(),
            RecordFormat::Gsm8k => self.gsm8k(),
            RecordFormat::GsmEquations => self.equations(),
            RecordFormat::Math500 => self.mathematics("unique_id", "subject", self.text("answer")?),
            RecordFormat::Math => self.mathematics("unique_id", "type", self.boxed("solution")?),
            RecordFormat::ProsQa => self.prosqa(),
            RecordFormat::OpenR1 => self.mathematics("uuid", "problem_type", self.text("answer")?),
            RecordFormat::Jsonl => self.generic(),
        }?;
        let problem = match self.optional(&self.source.fields.context)? {
            Some(context) => Problem { question: format!("{}\n\n{}", context.trim_end(), problem.question), ..problem },
            None => problem,
        };
        let problem = match self.options(&problem.answer)? {
            Some(options) => options.ask(problem, self.place)?,
            None => problem,
        };
        Ok(Problem { group: self.optional(&self.source.fields.group)?, ..problem })
    }

    fn gsm8k(&self) -> Result<Problem> {
        let text = self.text("answer")?;
        let (_, gold) = text
            .rsplit_once("####")
            .with_context(|| format!("{}: key \"answer\": expected `#### gold` at its end, found none", self.place))?;
        let gold = gold.trim().to_string();
        ensure!(!gold.is_empty(), "{}: key \"answer\": nothing after ####", self.place);
        self.marked(self.text("question")?, &text, gold)
    }

    /// A problem whose solution may have GSM8K's marks. They become its steps and are removed from the training text, unless requested.
    fn marked(&self, question: String, solution: &str, answer: String) -> Result<Problem> {
        let (shown, steps) = steps::marked(solution, self.source.keep_calculator);
        Ok(Problem { steps, ..self.plain(question, shown, answer)? })
    }

    fn equations(&self) -> Result<Problem> {
        let steps = self.texts("steps")?;
        let answer = self.text("answer")?;
        let known = steps.iter().map(|step| {
            let result = step.trim_end_matches(">>").rsplit('=').next().unwrap_or_default();
            result.parse().map_or_else(|_| Fact::Text(result.to_string()), Fact::Number)
        });
        let mut problem = self.plain(self.text("question")?, joined(&steps, &answer), answer)?;
        problem.steps = step_values(&steps, known);
        Ok(problem)
    }

    fn prosqa(&self) -> Result<Problem> {
        let steps = self.texts("steps")?;
        let answer = self.text("answer")?;
        let frontiers = self.frontiers(steps.len())?;
        let mut problem = self.plain(self.text("question")?, joined(&steps, &answer), answer)?;
        problem.steps = step_values(&steps, frontiers.into_iter().map(Fact::Set));
        Ok(problem)
    }

    /// Names at distance 1..=hops from the root, each sorted.
    fn frontiers(&self, hops: usize) -> Result<Vec<Vec<String>>> {
        let names = self.texts("idx_to_symbol")?;
        let edges: Vec<(usize, usize)> = self.typed("edges", "a list of pairs of node numbers")?;
        let root: usize = self.typed("root", "a node number")?;
        if let Some(bad) = edges.iter().flat_map(|e| [e.0, e.1]).chain([root]).find(|node| *node >= names.len()) {
            bail!("{}: key \"edges\": node {bad} has no name in idx_to_symbol ({} names)", self.place, names.len());
        }
        let mut distance = vec![usize::MAX; names.len()];
        distance[root] = 0;
        Ok((1..=hops)
            .map(|hop| {
                for &(from, to) in &edges {
                    if distance[from] == hop - 1 && distance[to] > hop {
                        distance[to] = hop;
                    }
                }
                let reached = names.iter().zip(&distance).filter(|(_, at)| **at == hop);
                let mut reached: Vec<String> = reached.map(|(name, _)| name.clone()).collect();
                reached.sort();
                reached
            })
            .collect())
    }

    fn boxed(&self, key: &str) -> Result<String> {
        let text = self.text(key)?;
        let answer = boxed(&text).filter(|answer| !answer.is_empty());
        answer.map(str::to_owned).with_context(|| {
            format!(
                "{}: key \"{key}\": has no \\boxed{{…}}, which would be its answer: add a key \"answer\"",
                self.place
            )
        })
    }

    fn mathematics(&self, id: &str, subject: &str, answer: String) -> Result<Problem> {
        let mut problem = self.plain(self.text("problem")?, self.text("solution")?, answer)?;
        problem.id = self.optional(id)?.unwrap_or(problem.id);
        problem.subject = self.optional(subject)?;
        problem.level = self.level("level")?;
        Ok(problem)
    }

    fn verl(&self) -> Result<Problem> {
        #[derive(serde::Deserialize)]
        struct Message {
            role: String,
            content: String,
        }
        let messages: Vec<Message> = self.typed("prompt", "a list of messages with role and content")?;
        let asked = messages.iter().rfind(|message| message.role == "user");
        let asked =
            asked.with_context(|| format!("{}: key \"prompt\": no message has the role \"user\"", self.place))?;
        // A template adds the instruction again.
        let question = asked.content.trim_end();
        let question = question.strip_suffix(BOXED_INSTRUCTION).map_or(question, str::trim_end);
        let solution = self.optional("extra_info.solution")?.unwrap_or_default();
        let mut problem = self.plain(question.to_owned(), solution, self.text("reward_model.ground_truth")?)?;
        problem.id = self.optional("extra_info.index")?.unwrap_or(problem.id);
        Ok(problem)
    }

    fn generic(&self) -> Result<Problem> {
        let fields = &self.source.fields;
        let solution = self.optional(&fields.solution)?.unwrap_or_default();
        // GPQA's keys.
        let key = |named: &str, other: &str| {
            if self.object.contains_key(named) || !self.object.contains_key(other) {
                named.to_owned()
            } else {
                other.to_owned()
            }
        };
        let answer = self.text(&key(&fields.answer, "Correct Answer"))?;
        // The answer may be the solution in GSM8K's form.
        let (solution, answer) = match answer.rsplit_once("####") {
            Some((_, gold)) if solution.is_empty() && !gold.trim().is_empty() => {
                (answer.clone(), gold.trim().to_owned())
            }
            _ => (solution, answer),
        };
        let mut problem = self.marked(self.text(&key(&fields.question, "Question"))?, &solution, answer)?;
        problem.id = self.optional(&fields.id)?.unwrap_or(problem.id);
        problem.subject = self.optional(&fields.subject)?;
        problem.level = self.level(&fields.level)?;
        if let Some(Value::Array(steps)) = self.object.get("steps")
            && !steps.is_empty()
            && steps.iter().all(Value::is_object)
        {
            problem.steps = self.steps(&problem.solution, steps[0].get("words").is_some())?;
        }
        Ok(problem)
    }

    /// The options of multiple choice, if the record has them.
    ///
    /// # Errors
    /// Options in an unknown form.
    fn options(&self, answer: &str) -> Result<Option<ChoiceOptions>> {
        let named = self.source.fields.choices.as_str();
        let keys: &[&str] = if named == "choices" { &["choices", "options", "endings"] } else { &[named] };
        for key in keys {
            // In CSV, a list is JSON text.
            let listed = |text: &str| serde_json::from_str(text).ok().filter(Value::is_array);
            let value = match self.value(key) {
                Some(Value::String(text)) => {
                    listed(text).map_or_else(|| Cow::Owned(Value::String(text.trim().into())), Cow::Owned)
                }
                Some(value) => Cow::Borrowed(value),
                None => continue,
            };
            match &*value {
                Value::Null => {}
                Value::Array(items) if items.is_empty() => {}
                Value::String(text) if text.is_empty() => {}
                value => {
                    let options = ChoiceOptions::read(value).with_context(|| {
                        format!(
                            "{}: key \"{key}\": expected the options of multiple choice, a list of texts (or {{\"label\": […], \"text\": […]}}, \
                             {{\"A\": …, \"B\": …}}), found {}; --field choices=none reads the problems without them",
                            self.place,
                            kind(value)
                        )
                    })?;
                    return Ok(Some(options));
                }
            }
        }
        Ok(if named == "choices" { ChoiceOptions::of_columns(self.object, answer) } else { None })
    }

    /// The steps in `steps`, in Switchyard's form (`own`) or a user's.
    fn steps(&self, solution: &str, own: bool) -> Result<Vec<StepValue>> {
        if !own {
            let form = "steps such as {\"expression\": \"3+4\", \"value\": 7, \"span\": \"3 + 4 = 7\"}";
            let written: Vec<FileStep> = self.typed("steps", form)?;
            return steps::find_steps(written, solution).with_context(|| format!("{}: key \"steps\"", self.place));
        }
        let steps: Vec<StepValue> = self.typed("steps", "a list of steps as Switchyard writes them")?;
        // The word ranges must lie inside the solution.
        let words = solution.split_whitespace().count();
        let outside = steps.iter().find(|step| step.words.end > words || step.words.is_empty());
        if let Some(step) = outside {
            bail!("{}: key \"steps\": words {:?} of a solution of {words} words", self.place, step.words);
        }
        Ok(steps)
    }

    fn plain(&self, question: String, solution: String, answer: String) -> Result<Problem> {
        ensure!(!question.trim().is_empty(), "{}: the question is empty", self.place);
        ensure!(!answer.trim().is_empty(), "{}: the answer is empty", self.place);
        let id = self.fallback_id.clone();
        let (solution, spans) = self.untagged(solution)?;
        Ok(Problem { id, question, solution, answer, spans, ..Problem::default() })
    }

    /// A solution without its tags, and the byte ranges that were between them; an empty pair of tags is not a span.
    ///
    /// # Errors
    /// Tags that do not alternate.
    fn untagged(&self, solution: String) -> Result<(String, Option<Vec<Range<usize>>>)> {
        if !solution.contains(SWI) && !solution.contains(SWI_END) {
            return Ok((solution, None));
        }
        let (mut text, mut spans, mut open, mut rest) = (String::new(), vec![], None, solution.as_str());
        let wrong = |what: String| anyhow!("{}: key \"solution\": {what}", self.place);
        loop {
            let next = [SWI, SWI_END].into_iter().filter_map(|tag| Some((rest.find(tag)?, tag))).min();
            let Some((at, tag)) = next else { break };
            text.push_str(&rest[..at]);
            rest = &rest[at + tag.len()..];
            match (tag == SWI, open.take()) {
                (true, None) => open = Some(text.len()),
                (true, Some(_)) => return Err(wrong(format!("{SWI} number {} inside another block", spans.len() + 2))),
                (false, None) => return Err(wrong(format!("{SWI_END} after {} blocks closes none", spans.len()))),
                (false, Some(start)) if start < text.len() => spans.push(start..text.len()),
                (false, Some(_)) => {}
            }
        }
        ensure!(open.is_none(), wrong(format!("{SWI} number {} is not closed by {SWI_END}", spans.len() + 1)));
        text.push_str(rest);
        Ok((text, Some(spans)))
    }
}

/// One step per line, then the answer as GSM8K marks it.
fn joined(steps: &[String], answer: &str) -> String {
    let lines = steps.iter().map(|step| format!("{step}\n"));
    lines.chain([format!("#### {answer}")]).collect()
}

fn step_values(steps: &[String], known: impl Iterator<Item = Fact>) -> Vec<StepValue> {
    let mut next = 0;
    let value = |(step, value): (&String, Fact)| {
        let words = next..next + step.split_whitespace().count();
        next = words.end;
        let calculation = step.strip_prefix("<<").and_then(|mark| mark.strip_suffix(">>")?.rsplit_once('='));
        let expression = calculation.map(|(expression, _)| expression.to_owned());
        StepValue {
            value,
            clause: step.clone(),
            value_words: words.end.saturating_sub(1)..words.end,
            words,
            expression,
        }
    };
    steps.iter().zip(known).map(value).collect()
}
