//! The first problems with the model's answers, position by position, for the trace viewer and the prompt explorer. Knows traces
//! and token text.

use anyhow::Result;

use super::Study;
use crate::latent::{Sequence, Trace};
use crate::model::hooks::{RecordedTensor, Recording};
use crate::model::{HookSpec, Hooks};
use crate::schema::PositionKind;
use crate::text::Vocabulary;

/// One problem with its answer.
pub(crate) struct ShownProblem {
    pub problem: usize,
    /// The whole sequence, as batch row 0.
    pub sequence: Sequence,
    /// Kind (`None` in the prompt) and text of every position.
    pub positions: Vec<(Option<PositionKind>, String)>,
}

impl ShownProblem {
    /// The activations of the sequence at `specs`, one tensor per point.
    pub fn record(&self, study: &Study, specs: &[HookSpec]) -> Result<Vec<RecordedTensor>> {
        let config = study.model.config();
        let recording = Recording::for_model(specs, config)?;
        let mut hooks = Hooks::none();
        recording.attach(&mut hooks, config.num_hidden_layers)?;
        study.unroll(std::slice::from_ref(&self.sequence), &mut hooks)?;
        drop(hooks);
        recording.tensors(1)
    }
}

pub(crate) fn first_responses(study: &Study, problems: usize) -> Result<Vec<ShownProblem>> {
    let corpus = &study.corpus;
    let (_, traces) = study.decoded()?;
    let one = |trace: &Trace| {
        let ids: Vec<u32> = trace.positions.iter().map(|p| p.token).collect();
        let prompt = pieces(&corpus.vocabulary, &trace.prompt)?.into_iter().map(|text| (None, text));
        let kinds = trace.positions.iter().map(|p| Some(p.kind));
        let response = kinds.zip(pieces(&corpus.vocabulary, &ids)?);
        let sequence = Sequence { row: 0, ..trace.sequence(&corpus.switch)? };
        Ok(ShownProblem { problem: trace.problem, sequence, positions: prompt.chain(response).collect() })
    };
    traces.iter().take(problems).map(one).collect()
}

/// The text that each token adds. A token that ends inside a character, or that changes the text before it, is decoded alone.
fn pieces(vocabulary: &Vocabulary, ids: &[u32]) -> Result<Vec<String>> {
    let mut before = String::new();
    let mut pieces = vec![];
    for i in 0..ids.len() {
        let until = vocabulary.decode(&ids[..=i])?;
        pieces.push(match until.strip_prefix(&before) {
            Some(added) => added.to_owned(),
            None => vocabulary.decode(&ids[i..=i])?,
        });
        before = until;
    }
    Ok(pieces)
}

/// JSON `[[token, p], …]`: the `count` most probable tokens.
pub(crate) fn most_probable(vocabulary: &Vocabulary, log_probs: &[f64], count: usize) -> Result<String> {
    largest(vocabulary, (0..).zip(log_probs.iter().copied()), count, f64::exp)
}

/// JSON `[[token, p], …]`: the `count` tokens of largest weight; `p` converts a weight to a probability.
pub(crate) fn largest(
    vocabulary: &Vocabulary,
    weights: impl Iterator<Item = (u32, f64)>,
    count: usize,
    p: impl Fn(f64) -> f64,
) -> Result<String> {
    let mut weights: Vec<(u32, f64)> = weights.collect();
    weights.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let named = |(token, weight): (u32, f64)| Ok((vocabulary.decode(&[token])?, p(weight)));
    let tokens: Result<Vec<(String, f64)>> = weights.into_iter().take(count).map(named).collect();
    Ok(serde_json::to_string(&tokens?)?)
}
