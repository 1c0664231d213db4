//! Options of multiple choice: their forms in problem files and in a prompt, and the gold option.

use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::Problem;
use super::sources::cut;
use crate::store::digits;

/// Options in prompt order, each with its label (`A`), and the gold number of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChoiceOptions(Vec<(String, String)>, usize);

impl ChoiceOptions {
    /// A list of texts (MMLU, MMLU-Pro), lists of labels and texts (ARC), objects with `label` and `text`, an object by label (MedQA).
    pub(super) fn read(value: &Value) -> Option<Self> {
        let both = |labels: Vec<String>, texts: Vec<String>| {
            (labels.len() == texts.len()).then(|| labels.into_iter().zip(texts).collect::<Vec<_>>())
        };
        let options = match value {
            Value::Array(items) => match items.iter().map(text).collect::<Option<Vec<_>>>() {
                Some(texts) => lettered(texts),
                None => items
                    .iter()
                    .map(|item| {
                        Some((
                            text(item.get("label").or(item.get("key"))?)?,
                            text(item.get("text").or(item.get("value"))?)?,
                        ))
                    })
                    .collect::<Option<Vec<_>>>()?,
            },
            Value::Object(object) => match (object.get("label").and_then(texts), object.get("text").and_then(texts)) {
                (Some(labels), Some(texts)) => both(labels, texts)?,
                _ => {
                    let short = object.keys().all(|label| label.chars().count() <= 2);
                    let options = object.iter().map(|(label, value)| Some((label.clone(), text(value)?)));
                    options.collect::<Option<Vec<_>>>().filter(|_| short)?
                }
            },
            _ => return None,
        };
        (options.len() > 1).then_some(Self(options, 0))
    }

    /// Columns: `A`, `B`, … (MMLU), `option1`, … (WinoGrande), `opa`, … (MedMCQA), `sol1`, … (PIQA), `ending0`, … (SWAG). A right answer and
    /// wrong ones (`Incorrect Answer 1`, … of GPQA, `distractor1`, … of SciQ) are ordered by a hash with the question.
    pub(super) fn of_columns(object: &Map<String, Value>, answer: &str) -> Option<Self> {
        let column = |name: String| object.get(&name).and_then(text).map(|text| text.trim().to_owned());
        let columns = |names: &mut dyn Iterator<Item = String>| -> Option<Vec<String>> {
            let texts: Vec<String> = names.map_while(column).take_while(|text| !text.is_empty()).collect();
            (texts.len() > 1).then_some(texts)
        };
        if let Some(texts) = columns(&mut ('A'..='Z').map(String::from)) {
            let letters = ('A'..='Z').map(String::from);
            return Some(Self(letters.zip(texts).collect(), 0));
        }
        for prefix in ["option", "option_", "choice", "choice_", "op", "ending", "sol", "answer"] {
            let name = |end: String| format!("{prefix}{end}");
            let lettered_names = [('a'..='z'), ('A'..='Z')];
            let found = lettered_names.into_iter().find_map(|letters| columns(&mut letters.map(|c| name(c.into()))));
            let from = |first: usize| columns(&mut (first..).map(|n| name(n.to_string())));
            // PIQA counts its solutions from 1 and its labels from 0.
            let counted = || from(0).map(|texts| (texts, 0)).or_else(|| Some((from(1)?, usize::from(prefix != "sol"))));
            if let Some((texts, first)) = found.map(|texts| (texts, 0)).or_else(counted) {
                return Some(Self(lettered(texts), first));
            }
        }
        let wrong = |prefix: &str| (1..).map_while(|n| column(format!("{prefix}{n}"))).collect::<Vec<_>>();
        let mut texts =
            [wrong("Incorrect Answer "), wrong("distractor")].into_iter().find(|texts| !texts.is_empty())?;
        texts.push(answer.trim().to_owned());
        let question = object.get("Question").or(object.get("question")).unwrap_or(&Value::Null);
        texts.sort_by_cached_key(|option| Sha256::digest(format!("{option}\n{question}")).to_vec());
        Some(Self(lettered(texts), 0))
    }

    /// The problem with its options after the question, and the label of its gold answer. In the file the answer is a label, an option or
    /// its number.
    ///
    /// # Errors
    /// An answer that matches no option, or several; more options than letters.
    pub(super) fn ask(&self, mut problem: Problem, place: &str) -> Result<Problem> {
        ensure!(
            self.0.len() <= LETTERS,
            "{place}: {} options, and at most {LETTERS} have a letter; --field choices=none reads the problems without them",
            self.0.len()
        );
        let gold = problem.answer.trim();
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let bare = gold.trim_start_matches('(').trim_end_matches([')', '.']);
        let mut found: Vec<&str> = vec![];
        if let Some((label, _)) = self.0.iter().find(|(label, _)| label.eq_ignore_ascii_case(bare)) {
            found.push(label);
        } else {
            let number = gold.parse::<usize>().ok().and_then(|number| self.0.get(number.checked_sub(self.1)?));
            let same = self.0.iter().find(|(_, option)| plain(option) == plain(gold));
            found.extend(number.into_iter().chain(same).map(|(label, _)| label.as_str()));
            found.dedup();
        }
        let labels = || self.0.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>().join(", ");
        let [label] = found[..] else {
            let why = if found.is_empty() {
                "is none of the options".into()
            } else {
                format!("may be {}", found.join(" or "))
            };
            bail!(
                "{place}: key \"answer\": {:?} {why} ({}, or their numbers from {}): correct it, or --field choices=none reads the problems \
                 without their options",
                cut(gold),
                labels(),
                self.1
            );
        };
        problem.answer = label.to_owned();
        for (label, option) in &self.0 {
            problem.question = format!("{}\n{label}. {}", problem.question.trim_end(), option.trim());
        }
        Ok(problem)
    }
}

/// Letters from `A` to `Z`.
const LETTERS: usize = 26;

/// Texts with letters from `A`, those after `Z` with their numbers; a letter that a text has already (`A) 21`) is not repeated.
fn lettered(texts: Vec<String>) -> Vec<(String, String)> {
    let letters = || (b'A'..=b'Z').map(char::from);
    let brought = |(letter, text): (char, &String)| {
        let rest = text.trim_start().trim_start_matches('(').strip_prefix(letter)?;
        Some(rest.strip_prefix([')', '.', ':'])?.trim_start().to_owned())
    };
    let bare: Option<Vec<String>> = letters().zip(&texts).map(brought).collect();
    let labels = letters().map(String::from).chain((LETTERS + 1..).map(|number| number.to_string()));
    labels.zip(bare.filter(|bare| bare.len() == texts.len()).unwrap_or(texts)).collect()
}

fn text(value: &Value) -> Option<String> {
    match (value, digits::digits(value)) {
        (_, Some(number)) => Some(digits::plain(number)),
        (Value::String(text), _) => Some(text.clone()),
        (Value::Bool(is), _) => Some(is.to_string()),
        _ => None,
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(options: Value, answer: &str) -> Result<(String, String)> {
        let options = ChoiceOptions::read(&options).expect("options");
        let (question, answer) = ("Which?".to_owned(), answer.to_owned());
        let problem = Problem { id: "1".into(), question, answer, ..Problem::default() };
        options.ask(problem, "a.jsonl:1").map(|problem| (problem.question, problem.answer))
    }

    #[test]
    fn every_form_of_options_is_asked_and_answered_by_its_label() {
        let wanted = ("Which?\nA. tin\nB. lead".to_owned(), "B".to_owned());
        for (options, answer) in [
            (json!(["tin", "lead"]), "1"),
            (json!(["tin", "lead"]), "b"),
            (json!(["tin", "lead"]), "lead"),
            (json!(["A) tin", "B) lead"]), "(B)"),
            (json!({ "label": ["A", "B"], "text": ["tin", "lead"] }), "B"),
            (json!([{ "label": "A", "text": "tin" }, { "label": "B", "text": "lead" }]), "B"),
            (json!({ "A": "tin", "B": "lead" }), "lead"),
        ] {
            assert_eq!(asked(options.clone(), answer).expect("asked"), wanted, "{options} {answer}");
        }
        for (answer, said) in [("2", "none of the options"), ("zinc", "none of the options (A, B"), ("-1", "none of")] {
            let error = asked(json!(["tin", "lead"]), answer).expect_err(answer).to_string();
            assert!(error.contains("a.jsonl:1: key \"answer\"") && error.contains(said), "{error}");
        }
        let error = asked(json!(["2", "1", "0"]), "0").expect_err("a number and a text").to_string();
        assert!(error.contains("may be A or C"), "{error}");
        let many: Vec<String> = (0..27).map(|number| format!("o{number}")).collect();
        let error = asked(json!(many), "3").expect_err("more options than letters").to_string();
        assert!(error.contains("a.jsonl:1: 27 options"), "{error}");
        assert!(ChoiceOptions::read(&json!("tin")).is_none() && ChoiceOptions::read(&json!([{ "a": 1 }])).is_none());
    }

    #[test]
    fn columns_are_options() {
        let row = json!({ "question": "Which?", "A": "tin", "B": "lead", "answer": "B" });
        assert_eq!(
            ChoiceOptions::of_columns(row.as_object().expect("an object"), "B"),
            ChoiceOptions::read(&json!(["tin", "lead"]))
        );
        let gpqa = json!({ "Question": "Which?", "Correct Answer": "tin", "Incorrect Answer 1": "lead", "Incorrect Answer 2": "zinc" });
        let ChoiceOptions(drawn, _) =
            ChoiceOptions::of_columns(gpqa.as_object().expect("an object"), "tin").expect("three");
        let mut texts: Vec<&str> = drawn.iter().map(|(_, text)| text.as_str()).collect();
        texts.sort_unstable();
        assert_eq!(texts, ["lead", "tin", "zinc"]);
    }
}
