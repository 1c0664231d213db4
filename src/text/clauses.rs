//! Clause starts (clauses of the task, else sentences), and the steps of a chain of thought, which begin at them.

use std::ops::Range;

use super::Sample;

/// Tokens of the response that begin a clause. In prose, clauses are calculations if spans are whole clauses (`snapped`), else sentences.
pub(crate) fn clause_starts(sample: &Sample, snapped: bool) -> Vec<usize> {
    if !sample.names_clauses(snapped) {
        return (0..sample.response.len()).filter(|&token| begins_sentence(sample, token)).collect();
    }
    sample.clauses.iter().map(|clause| clause.start).collect()
}

/// The steps of the chain of thought, from clause start to clause start, the last up to the final answer. `None` without a marked answer.
pub fn steps(sample: &Sample) -> Option<Vec<Range<usize>>> {
    let end = sample.answer.as_ref()?.start;
    let inner = clause_starts(sample, false).into_iter().filter(|&start| start > 0 && start < end);
    let edges: Vec<usize> = std::iter::once(0).chain(inner).chain([end]).collect();
    Some(edges.windows(2).map(|edge| edge[0]..edge[1]).filter(|step| !step.is_empty()).collect())
}

/// Whether the token comes after `.`, `!`, `?`, `;` or `:` and white space, or after a line break.
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
            prose: false,
            answer: None,
            spans: None,
        };
        let texts = |starts: Vec<usize>| starts.into_iter().map(|t| words[t]).collect::<Vec<_>>();
        assert_eq!(texts(clause_starts(&sample, false)), ["He", " She", "none", " all"]);
        let tagged = Sample { clauses: vec![2..5, 7..9], ..sample };
        assert_eq!(clause_starts(&tagged, false), [2, 7]);
        let prose = Sample { prose: true, ..tagged.clone() };
        assert_eq!(texts(clause_starts(&prose, false)), ["He", " She", "none", " all"]);
        assert_eq!(clause_starts(&prose, true), [2, 7]);
        assert_eq!(steps(&tagged), None, "no final answer is marked");
        let answered = Sample { answer: Some(11..13), ..tagged };
        assert_eq!(steps(&answered), Some(vec![0..2, 2..7, 7..11]));
        let named = Sample { clauses: vec![0..4, 5..9], answer: Some(9..13), ..answered };
        assert_eq!(steps(&named), Some(vec![0..5, 5..9]));
    }
}
