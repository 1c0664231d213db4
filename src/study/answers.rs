//! What a decoded response answers, and how far the gold answer leads where it does. Knows a corpus and traces.

use anyhow::Result;

use super::sweep::Outcome;
use crate::corpus::Corpus;
use crate::latent::trace::PositionRole;
use crate::latent::{Decoded, Trace};

/// Grades decoded rows.
pub(crate) struct Reader<'a> {
    corpus: &'a Corpus,
    /// First token of each gold answer.
    gold: Vec<Option<u32>>,
}

impl<'a> Reader<'a> {
    /// # Errors
    /// A gold answer that cannot be encoded.
    pub fn new(corpus: &'a Corpus) -> Result<Self> {
        let first = |p: &crate::text::Problem| Ok(corpus.vocabulary.encode(&p.answer)?.first().copied());
        Ok(Self { corpus, gold: corpus.test.iter().map(first).collect::<Result<_>>()? })
    }

    pub(crate) fn gold_token(&self, problem: usize) -> Option<u32> {
        self.gold.get(problem).copied().flatten()
    }

    /// # Errors
    /// A token that the vocabulary does not know; logits that were not finite.
    pub fn outcome(&self, decoded: &Decoded, normal: Option<&Trace>) -> Result<Outcome> {
        let Decoded { trace, margins } = decoded;
        trace.ensure_finite()?;
        let text = self.corpus.vocabulary.decode_visible(&trace.text())?;
        let gold = &self.corpus.test[trace.problem].answer;
        let answer = self.corpus.answer(gold, &text);
        let at = self.answer_position(trace, &text, answer.as_deref())?;
        Ok(Outcome {
            correct: self.corpus.verdict(gold, &text).equal,
            margin: at.and_then(|at| margins.get(at).copied().flatten()),
            answer,
            switched: trace.switched(),
            latent_calls: trace.latent_calls(),
            identical: normal.is_some_and(|normal| normal == trace),
        })
    }

    /// The position that decides the first token of the final answer: of a generated task the one after the last `#`, else
    /// where the extracted answer last begins in the text.
    fn answer_position(&self, trace: &Trace, text: &str, answer: Option<&str>) -> Result<Option<usize>> {
        if self.corpus.is_task {
            let marker = self.corpus.vocabulary.id("#");
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
            let reached = self.corpus.vocabulary.decode_visible(&tokens[..=middle])?.len() > from;
            if reached { high = middle } else { low = middle + 1 }
        }
        Ok(places.get(low).copied())
    }
}
