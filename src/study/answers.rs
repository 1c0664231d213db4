//! What a decoded response answers, and how far the gold answer leads where it does. Knows a corpus and traces.

use anyhow::Result;

use super::sweep::Outcome;
use crate::corpus::Corpus;
use crate::latent::trace::PositionRole;
use crate::latent::{FinishedRow, Trace};

/// The first token of each problem's gold answer.
pub(crate) fn gold_tokens(corpus: &Corpus) -> Result<Vec<Option<u32>>> {
    corpus.test.iter().map(|p| Ok(corpus.vocabulary.encode(&p.answer)?.first().copied())).collect()
}

/// Grades a decoded row.
///
/// # Errors
/// A token that the vocabulary does not know; logits that were not finite.
pub(crate) fn outcome(corpus: &Corpus, decoded: &FinishedRow, normal: Option<&Trace>) -> Result<Outcome> {
    let FinishedRow { trace, margins } = decoded;
    trace.ensure_finite()?;
    let text = corpus.vocabulary.decode_visible(&trace.text())?;
    let gold = &corpus.test[trace.problem].answer;
    let answer = corpus.answer(gold, &text);
    let at = answer_position(corpus, trace, &text, answer.as_deref())?;
    Ok(Outcome {
        correct: corpus.verdict(gold, &text).equal,
        margin: at.and_then(|at| margins.get(at).copied().flatten()),
        answer,
        switched: trace.switched(),
        latent_calls: trace.latent_calls(),
        identical: normal.is_some_and(|normal| normal == trace),
    })
}

/// The response position of the first token of the final answer, where the response gives one; its predecessor decides it.
pub(crate) fn answer_at(corpus: &Corpus, trace: &Trace) -> Result<Option<usize>> {
    let text = corpus.vocabulary.decode_visible(&trace.text())?;
    let answer = corpus.answer(&corpus.test[trace.problem].answer, &text);
    answer_position(corpus, trace, &text, answer.as_deref())
}

/// Where a text gives its answer, both known: of a generated task the position after the last `#`, else where the
/// extracted answer last begins in the text.
fn answer_position(corpus: &Corpus, trace: &Trace, text: &str, answer: Option<&str>) -> Result<Option<usize>> {
    if corpus.is_task {
        let marker = corpus.vocabulary.id("#");
        let last = trace.positions.iter().rposition(|p| p.kind == PositionRole::Text && Some(p.token) == marker);
        return Ok(last.map(|i| i + 1));
    }
    let Some(from) = answer.filter(|a| !a.is_empty()).and_then(|answer| text.rfind(answer)) else {
        return Ok(None);
    };
    let text_at = trace.positions.iter().enumerate().filter(|(_, p)| p.kind == PositionRole::Text);
    let places: Vec<usize> = text_at.map(|(i, _)| i).collect();
    let tokens = trace.text();
    // The first token whose text reaches beyond the answer's first byte.
    let (mut low, mut high) = (0, tokens.len());
    while low < high {
        let middle = (low + high) / 2;
        let reached = corpus.vocabulary.decode_visible(&tokens[..=middle])?.len() > from;
        if reached { high = middle } else { low = middle + 1 }
    }
    Ok(places.get(low).copied())
}
