//! Which answer a decoded response gives, at which position, and the margin of the gold answer there. Knows a corpus and traces.

use anyhow::Result;

use super::sweep::SweepOutcome;
use crate::corpus::Corpus;
use crate::latent::trace::PositionRole;
use crate::latent::{FinishedRow, Trace};
use crate::text::vocabulary::EncodedText;
use crate::text::{Problem, Vocabulary};

/// The first token of each problem's gold answer.
pub(crate) fn gold_tokens(corpus: &Corpus) -> Result<Vec<Option<u32>>> {
    corpus.test.iter().map(|p| first_token(&corpus.vocabulary, p, &p.answer)).collect()
}

/// The first token of `answer` in place of the problem's own answer. Many tokenizers encode a word after a space differently from
/// a word at the start. If the solution does not contain its answer: the first token of the answer alone.
pub(crate) fn first_token(vocabulary: &Vocabulary, problem: &Problem, answer: &str) -> Result<Option<u32>> {
    let before = problem.answer_at().map_or("", |at| &problem.solution[..at]);
    let EncodedText { ids, offsets } = vocabulary.encode_with_offsets(&format!("{before}{answer}"))?;
    Ok(offsets.iter().position(|(_, end)| *end > before.len()).map(|i| ids[i]))
}

pub(crate) fn outcome(corpus: &Corpus, decoded: &FinishedRow, normal: Option<&Trace>) -> Result<SweepOutcome> {
    let FinishedRow { trace, margins } = decoded;
    trace.ensure_finite()?;
    let text = corpus.vocabulary.decode_visible(&trace.text())?;
    let gold = &corpus.test[trace.problem].answer;
    let answer = corpus.answer(gold, &text);
    let at = answer_position(corpus, trace, &text, answer.as_deref())?;
    Ok(SweepOutcome {
        correct: corpus.verdict(gold, &text).equal,
        margin: at.and_then(|at| margins.get(at).copied().flatten()),
        answer,
        switched: trace.switched(),
        latent_calls: trace.latent_calls(),
        identical: normal.is_some_and(|normal| normal == trace),
    })
}

/// For each response, whether it is correct, and its answer.
pub(crate) fn graded(corpus: &Corpus, traces: Vec<Trace>) -> Result<(Vec<bool>, Vec<Option<String>>)> {
    let grade = |trace| outcome(corpus, &FinishedRow { trace, margins: vec![] }, None);
    let outcomes = traces.into_iter().map(grade).collect::<Result<Vec<_>>>()?;
    Ok(outcomes.into_iter().map(|outcome| (outcome.correct, outcome.answer)).unzip())
}

/// The response position of the first token of the final answer, if the response gives one. The position before it decides it.
pub(crate) fn answer_at(corpus: &Corpus, trace: &Trace) -> Result<Option<usize>> {
    let text = corpus.vocabulary.decode_visible(&trace.text())?;
    let answer = corpus.answer(&corpus.test[trace.problem].answer, &text);
    answer_position(corpus, trace, &text, answer.as_deref())
}

/// The position of a text's answer: in a generated task after the last `#`, else the last occurrence of the extracted answer.
fn answer_position(corpus: &Corpus, trace: &Trace, text: &str, answer: Option<&str>) -> Result<Option<usize>> {
    if corpus.is_task {
        let marks = corpus.vocabulary.word_tokens("#")?;
        let last = trace.positions.iter().rposition(|p| p.kind == PositionRole::Text && marks.contains(&p.token));
        return Ok(last.map(|i| i + 1));
    }
    let Some(from) = answer.filter(|a| !a.is_empty()).and_then(|answer| text.rfind(answer)) else {
        return Ok(None);
    };
    let text_at = trace.positions.iter().enumerate().filter(|(_, p)| p.kind == PositionRole::Text);
    let places: Vec<usize> = text_at.map(|(i, _)| i).collect();
    let tokens = trace.text();
    // Binary search for the first token that ends after the answer's first byte.
    let (mut low, mut high) = (0, tokens.len());
    while low < high {
        let middle = (low + high) / 2;
        let reached = corpus.vocabulary.decode_visible(&tokens[..=middle])?.len() > from;
        if reached { high = middle } else { low = middle + 1 }
    }
    Ok(places.get(low).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latent::trace::{End, Position};
    use crate::method::Recipe;
    use crate::text::Sample;

    /// SmolLM2 encodes "sixteen" as `six` and `teen` at the start and as one token after a space; `#` differs there too.
    #[test]
    fn answers_are_found_as_the_tokenizer_splits_them_in_their_place() {
        let smollm2 = Vocabulary::load("fixtures/smollm2-chains").expect("a vocabulary");
        for (preset, vocabulary) in [("smollm2-chains", Some(smollm2)), ("micro", None), ("micro-graph", None)] {
            let mut recipe = Recipe::like(preset).expect("a preset");
            (recipe.data.rows, recipe.evaluation.problems) = (50, 40);
            let corpus = Corpus::build(&recipe, vocabulary).expect("a corpus");
            let gold = gold_tokens(&corpus).expect("tokens");
            for (i, problem) in corpus.test.iter().enumerate() {
                let sample = Sample::new(problem, &corpus.vocabulary, &corpus.template).expect("a sample");
                // The answer is one word after its mark.
                let at = sample.answer.expect("an answer").start + 1;
                assert_eq!(gold[i], Some(sample.response[at]), "{preset}: {}", problem.solution);
                let position = |&token: &u32| Position::bare(token, PositionRole::Text, None);
                let positions = sample.response.iter().map(position).collect();
                let trace = Trace { problem: i, rollout: 0, prompt: sample.prompt, positions, end: End::Stop };
                assert_eq!(answer_at(&corpus, &trace).expect("a place"), Some(at), "{preset}: {}", problem.solution);
            }
        }
    }

    #[test]
    fn an_answer_that_a_solution_does_not_write_is_taken_alone() {
        let vocabulary = Vocabulary::load("fixtures/smollm2-chains").expect("a vocabulary");
        let asked = |solution: &str, answer: &str| Problem {
            solution: solution.into(),
            answer: answer.into(),
            ..Problem::default()
        };
        let first = |solution: &str, answer: &str| {
            let problem = asked(solution, "sixteen");
            first_token(&vocabulary, &problem, answer).expect("a token").and_then(|id| vocabulary.token(id))
        };
        assert_eq!(first("", "sixteen").as_deref(), Some("six"));
        assert_eq!(first("so it is sixteen", "sixteen").as_deref(), Some("Ġsixteen"));
        assert_eq!(first("sixteen is \\boxed{sixteen}", "eight").as_deref(), Some("eight"));
        assert_eq!(first("it is sixteen . # sixteen", "eight").as_deref(), Some("Ġeight"));
        assert_eq!(first("it is sixteen", "").as_deref(), None);
        // The x of `\boxed` is not the answer.
        assert_eq!(asked("\\boxed{x}", "x").answer_at(), Some(7));
    }
}
