//! `Sample`: a problem as token ids, with ranges of its clauses and final answer; writes spans back into ids and
//! text.

use std::ops::Range;

use anyhow::{Context, Result, ensure};

use super::vocabulary::{EncodedText, SWI, SWI_END};
use super::{Problem, Prompts, Vocabulary};

/// A response for the base model to score. Ranges count response tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub id: String,
    pub prompt: Vec<u32>,
    /// Ids of the solution, without the token that closes a response.
    pub response: Vec<u32>,
    pub solution: String,
    /// Byte range in the solution of each id.
    pub offsets: Vec<(usize, usize)>,
    pub clauses: Vec<Range<usize>>,
    /// Whether its clauses are calculations inside sentences, as in a file's solution.
    pub prose: bool,
    pub answer: Option<Range<usize>>,
    /// Tagged spans of the data; `None` if the data has no tags.
    pub spans: Option<Vec<Range<usize>>>,
}

impl Sample {
    pub fn new(problem: &Problem, vocabulary: &Vocabulary, prompts: &Prompts) -> Result<Self> {
        let tagged = problem.spans.as_deref().unwrap_or_default();
        let (encoded, spans) = encode_around(vocabulary, &problem.solution, tagged)?;
        ensure!(!encoded.ids.is_empty(), "problem {}: has no solution to score", problem.id);
        let mut clauses: Vec<Range<usize>> = Vec::new();
        for step in &problem.steps {
            let Some(bytes) = problem.word_bytes(step.words.clone()) else {
                continue;
            };
            let Some(mut clause) = tokens_of(&encoded.offsets, &bytes) else {
                continue;
            };
            // A token across two clauses belongs to the first.
            clause.start = clause.start.max(clauses.last().map_or(0, |before| before.end));
            if !clause.is_empty() {
                clauses.push(clause);
            }
        }
        Ok(Sample {
            id: problem.id.clone(),
            prompt: prompts.encode_prompt(vocabulary, &problem.question)?,
            response: encoded.ids,
            solution: problem.solution.clone(),
            clauses,
            // A line with only a mark is its own clause.
            prose: problem.steps.iter().any(|step| step.expression.is_some() && !step.clause.ends_with(">>")),
            answer: problem.answer_range().and_then(|bytes| tokens_of(&encoded.offsets, &bytes)),
            offsets: encoded.offsets,
            spans: problem.spans.is_some().then_some(spans),
        })
    }

    /// Whether its clauses are known; calculations in prose count if spans are whole clauses (`snapped`).
    pub(crate) fn names_clauses(&self, snapped: bool) -> bool {
        !self.clauses.is_empty() && (snapped || !self.prose)
    }

    /// The final answer, for what cannot be done without one (`so`).
    ///
    /// # Errors
    /// A solution without a marked final answer.
    pub(crate) fn required_answer(&self, so: &str) -> Result<&Range<usize>> {
        self.answer.as_ref().with_context(|| self.unanswered(so))
    }

    /// The error of a sample without a marked final answer.
    pub(crate) fn unanswered(&self, so: &str) -> String {
        format!("problem {}: no final answer is marked in its solution, so {so}", self.id)
    }

    /// Prompt and response tokens together.
    pub fn length(&self) -> usize {
        self.prompt.len() + self.response.len()
    }

    /// The text of one response token. Empty if an id is only part of a character.
    pub fn token(&self, position: usize) -> &str {
        let (start, end) = self.offsets[position];
        self.solution.get(start..end).unwrap_or_default()
    }

    /// The solution with `<swi>` and `</swi>` around the spans. No spaces are added, so removing the tags restores the
    /// solution.
    pub fn tagged_solution(&self, spans: &[Range<usize>]) -> String {
        let mut text = String::with_capacity(self.solution.len() + spans.len() * (SWI.len() + SWI_END.len()));
        let mut written = 0;
        for span in spans {
            for (byte, tag) in [(self.offsets[span.start].0, SWI), (self.offsets[span.end - 1].1, SWI_END)] {
                let byte = self.solution.floor_char_boundary(byte).max(written);
                text.push_str(&self.solution[written..byte]);
                text.push_str(tag);
                written = byte;
            }
        }
        text.push_str(&self.solution[written..]);
        text
    }
}

/// Encodes a text so that no token crosses an end of these byte ranges, as if they were tagged. Also returns the tokens of each range.
fn encode_around(
    vocabulary: &Vocabulary,
    text: &str,
    ranges: &[Range<usize>],
) -> Result<(EncodedText, Vec<Range<usize>>)> {
    let mut all = EncodedText { ids: vec![], offsets: vec![] };
    let mut add = |part: Range<usize>| -> Result<Range<usize>> {
        let encoded = vocabulary.encode_with_offsets(&text[part.clone()])?;
        let first = all.ids.len();
        all.ids.extend(encoded.ids);
        all.offsets.extend(encoded.offsets.into_iter().map(|(from, to)| (from + part.start, to + part.start)));
        Ok(first..all.ids.len())
    };
    let (mut spans, mut done) = (vec![], 0);
    for range in ranges {
        add(done..range.start)?;
        spans.push(add(range.clone())?);
        done = range.end;
    }
    add(done..text.len())?;
    spans.retain(|span| !span.is_empty());
    Ok((all, spans))
}

/// Tokens that overlap a byte range.
fn tokens_of(offsets: &[(usize, usize)], bytes: &Range<usize>) -> Option<Range<usize>> {
    let touches = |(start, end): &(usize, usize)| *start < bytes.end && *end > bytes.start;
    let first = offsets.iter().position(touches)?;
    let last = offsets.iter().rposition(touches)?;
    Some(first..last + 1)
}
