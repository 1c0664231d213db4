//! `Problem`: one question with its worked solution and its gold answer, from any file or generator.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::tasks::{StepValue, TaskProblem};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub id: String,
    pub question: String,
    /// The visible chain of thought, with the final answer if the source has it. Empty without a solution.
    pub solution: String,
    pub answer: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// Splits for probes, decoders, lenses or subspaces never separate the problems of a group: the program up to renaming for generated tasks
    /// (the template for `stories`, the graph up to relabelling), the key `group` for files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Known intermediate values, if the source has them. Word ranges count whitespace-separated words of `solution`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepValue>,
    /// Byte ranges of `solution` between `<swi>` and `</swi>` in the source; `None` if the source has no tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spans: Option<Vec<Range<usize>>>,
}

impl From<TaskProblem> for Problem {
    fn from(task: TaskProblem) -> Self {
        let group = Some(format!("{:016x}", task.group()));
        Problem {
            group,
            id: task.id,
            question: task.question,
            solution: task.solution,
            answer: task.answer,
            subject: Some(task.subject),
            level: Some(task.level),
            steps: task.steps,
            spans: None,
        }
    }
}

impl Problem {
    /// Normalised question for finding duplicates: lower case, one space between words.
    pub(crate) fn asks(&self) -> String {
        self.question.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
    }

    /// Bytes of the solution that state the final answer, marker included: from the last `\boxed{`, or from a `#`, `###` or `####` that is a
    /// separate word. `None` without either. A `#` or `###` at the start of a line with text after it is a heading.
    pub fn answer_range(&self) -> Option<Range<usize>> {
        let solution = self.solution.as_str();
        let boxed = solution.rfind("\\boxed{").map(|start| start..closing_brace(solution, start));
        let is_heading = |range: &Range<usize>| {
            let before = solution[..range.start].rsplit('\n').next().unwrap_or_default();
            let after = solution[range.end..].split_once('\n').map_or("", |(_, after)| after);
            before.trim().is_empty() && after.contains(|c: char| !c.is_whitespace())
        };
        let is_mark = |range: &Range<usize>| match &solution[range.clone()] {
            "####" => true,
            "#" | "###" => !is_heading(range),
            _ => false,
        };
        let hash = word_ranges(solution).rfind(is_mark).map(|range| range.start..solution.trim_end().len());
        match (boxed, hash) {
            (Some(boxed), Some(hash)) => Some(if boxed.start > hash.start { boxed } else { hash }),
            (boxed, hash) => boxed.or(hash),
        }
    }

    /// Byte of the solution at which the gold answer begins: in its final answer, else its last occurrence. `None` if it does not occur
    /// literally.
    pub(crate) fn answer_at(&self) -> Option<usize> {
        // After the brace: `\boxed` itself contains an x.
        let stated =
            self.answer_range().and_then(|range| Some(range.start + self.solution[range].rfind(&self.answer)?));
        stated.or_else(|| self.solution.rfind(&self.answer)).filter(|_| !self.answer.is_empty())
    }

    /// Bytes of the solution that a range of its words covers.
    pub fn word_bytes(&self, words: Range<usize>) -> Option<Range<usize>> {
        let start = word_ranges(&self.solution).nth(words.start)?.start;
        let end = word_ranges(&self.solution).nth(words.end.checked_sub(1)?)?.end;
        (start < end).then_some(start..end)
    }
}

/// Byte ranges of whitespace-separated words.
pub(crate) fn word_ranges(text: &str) -> impl DoubleEndedIterator<Item = Range<usize>> {
    text.split_whitespace().map(|word| {
        let start = word.as_ptr() as usize - text.as_ptr() as usize;
        start..start + word.len()
    })
}

/// End of the group whose `{` is the first after `start`; the end of the text if it is not closed.
pub(super) fn closing_brace(text: &str, start: usize) -> usize {
    let mut depth = 0usize;
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            // `\{` is a brace to print, not a group; the `\` of `\boxed` escapes only its `b`.
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' if depth <= 1 => return index + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}
