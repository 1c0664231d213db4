//! Where a clause begins: those that the task names, or sentences where the text names none.

use crate::text::Sample;

/// Tokens of the response that begin a clause.
pub(crate) fn clause_starts(sample: &Sample) -> Vec<usize> {
    if sample.clauses.is_empty() {
        return (0..sample.response.len()).filter(|&token| begins_sentence(sample, token)).collect();
    }
    sample.clauses.iter().map(|clause| clause.start).collect()
}

/// After `.`, `!`, `?`, `;`, `:` with white space behind it, or after a line break.
fn begins_sentence(sample: &Sample, token: usize) -> bool {
    let (start, end) = sample.offsets[token];
    let text = &sample.solution;
    let (start, end) = (text.floor_char_boundary(start), text.floor_char_boundary(end));
    // White space may belong to this token or to the one before it.
    let first = text[start..end].find(|c: char| !c.is_whitespace());
    let Some(first) = first.map(|at| start + at) else { return false };
    let before = &text[..first];
    let spoken = before.trim_end();
    let gap = &before[spoken.len()..];
    spoken.is_empty() || gap.contains('\n') || (!gap.is_empty() && spoken.ends_with(['.', '!', '?', ';', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_begin_after_stops_and_line_breaks() {
        let solution = "He has 3.5 pears. She has\nnone; all";
        let words = ["He", " has", " 3", ".", "5", " pears", ".", " She", " has", "\n", "none", ";", " all"];
        let mut at = 0;
        let offsets = words.iter().map(|w| {
            at += w.len();
            (at - w.len(), at)
        });
        let sample = Sample {
            id: String::new(),
            prompt: vec![0],
            response: (0..words.len() as u32).collect(),
            solution: solution.to_owned(),
            offsets: offsets.collect(),
            clauses: vec![],
            answer: None,
        };
        let starts: Vec<&str> = clause_starts(&sample).into_iter().map(|t| words[t]).collect();
        assert_eq!(starts, ["He", " She", "none", " all"]);
        let tagged = Sample { clauses: vec![2..5, 7..9], ..sample };
        assert_eq!(clause_starts(&tagged), [2, 7]);
    }
}
