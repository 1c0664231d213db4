//! Held-out accuracy, with the outcome of each problem for the tables.

use anyhow::Result;
use burn::tensor::{Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::corpus::Corpus;
use crate::latent::{
    Decode, DecodeSettings, End, Reasoning, Request, Sampling, Switching, Trace, decode, ensure_positions,
};
use crate::model::{Decoder, Hooks, ModelConfig, Span};
use crate::ops;
use crate::parallel;
use crate::progress::Interruption;
use crate::recipe::Evaluation;
use crate::stats::Estimate;
use crate::stats::wilson;
use crate::text::Sample;

/// One problem's outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub problem: usize,
    pub level: Option<u8>,
    pub subject: Option<String>,
    pub correct: bool,
    pub switched: bool,
    pub visible_tokens: usize,
    pub latent_calls: usize,
    pub truncated: bool,
}

impl Outcome {
    /// Sequential forward passes: one for the prompt, which decides the first position, and one for each position but the last.
    pub fn forward_passes(&self) -> usize {
        self.visible_tokens + self.latent_calls
    }
}

/// A phase's held-out scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    pub accuracy: Estimate,
    /// Accuracy on the problems with at least one block; absent without such problems.
    pub latent_accuracy: Option<Estimate>,
    pub switch_rate: Estimate,
    pub visible_tokens: f64,
    pub latent_calls: f64,
    pub truncated: usize,
    pub outcomes: Vec<Outcome>,
}

/// The decoder settings of an evaluation: greedy.
pub(crate) fn decode_settings(evaluation: &Evaluation, stops: &[u32], switching: Switching) -> DecodeSettings {
    DecodeSettings {
        sampling: Sampling::default(),
        k_min: evaluation.k_min,
        k_cap: evaluation.k_cap,
        max_new_tokens: evaluation.max_new_tokens,
        stop: stops.to_vec(),
        mask_tags: true,
        masked: vec![],
        switching,
    }
}

/// One request for each held-out problem.
pub fn requests(corpus: &Corpus) -> Result<Vec<Request>> {
    corpus.test_prompts.iter().enumerate().map(|(problem, prompt)| corpus.request(problem, prompt)).collect()
}

/// Decodes every held-out problem and grades it. `model` is outside autodiff.
///
/// # Errors
/// As [`decode`]; [`Interruption`] if the user stopped it, because unfinished rows have no outcome.
pub fn evaluate(
    model: &Decoder,
    corpus: &Corpus,
    evaluation: &Evaluation,
    reasoning: &Reasoning,
    switching: Switching,
    threads: usize,
) -> Result<(Scores, Vec<Trace>)> {
    let requests = requests(corpus)?;
    let parts = parallel::cut(&requests, threads);
    let batches: Vec<&[Request]> = parts.iter().flat_map(|part| part.chunks(evaluation.batch)).collect();
    let setup = EvaluationSetup { model, corpus, evaluation, reasoning, switching };
    let traces = decode_batches(&setup, &batches, threads, &|_| Ok(()))?;
    Ok((score(&traces, corpus)?, traces))
}

pub(crate) struct EvaluationSetup<'a> {
    pub model: &'a Decoder,
    pub corpus: &'a Corpus,
    pub evaluation: &'a Evaluation,
    pub reasoning: &'a Reasoning,
    pub switching: Switching,
}

/// Decodes batches of problems on several threads; traces in the order of the batches. `done` is called after each batch, from several
/// threads.
pub(crate) fn decode_batches(
    setup: &EvaluationSetup,
    batches: &[&[Request]],
    threads: usize,
    done: &(dyn Fn(&[Trace]) -> Result<()> + Sync),
) -> Result<Vec<Trace>> {
    let EvaluationSetup { model, corpus, evaluation, reasoning, switching } = *setup;
    let settings = decode_settings(evaluation, &corpus.stops, switching);
    batches.iter().try_for_each(|batch| ensure_positions(model, &settings, batch))?;
    let cancel = crate::progress::stop_flag();
    let traces = parallel::each(batches, threads, |batch| {
        let decoding = Decode {
            model,
            source: &reasoning.source,
            controller: &reasoning.blocks,
            switch: Some(corpus.switch),
            settings: &settings,
            cancel: Some(cancel),
            ahead: None,
        };
        let decoded = decode(decoding, batch, 1, &mut Hooks::none())?;
        if decoded.iter().any(|trace| trace.end == End::Cancelled) {
            return Err(Interruption.into());
        }
        decoded.iter().try_for_each(Trace::ensure_finite)?;
        done(&decoded)?;
        Ok(decoded)
    })?;
    Ok(traces.concat())
}

/// Grades traces against their held-out problems.
pub fn score(traces: &[Trace], corpus: &Corpus) -> Result<Scores> {
    let mut outcomes = vec![];
    for trace in traces {
        let problem = &corpus.test[trace.problem];
        let text = corpus.vocabulary.decode_visible(&trace.text())?;
        outcomes.push(Outcome {
            problem: trace.problem,
            level: problem.level,
            subject: problem.subject.clone(),
            correct: corpus.verdict(&problem.answer, &text).equal,
            switched: trace.switched(),
            visible_tokens: trace.visible_tokens(),
            latent_calls: trace.latent_calls(),
            truncated: trace.truncated(),
        });
    }
    let n = outcomes.len();
    let count = |f: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|o| f(o)).count();
    let mean = |f: &dyn Fn(&Outcome) -> usize| outcomes.iter().map(f).sum::<usize>() as f64 / n as f64;
    let switched = count(&|o| o.switched);
    let latent_accuracy =
        if switched == 0 { None } else { Some(wilson(count(&|o| o.switched && o.correct), switched, 0.95)?) };
    Ok(Scores {
        accuracy: wilson(count(&|o| o.correct), n, 0.95)?,
        latent_accuracy,
        switch_rate: wilson(switched, n, 0.95)?,
        visible_tokens: mean(&|o| o.visible_tokens),
        latent_calls: mean(&|o| o.latent_calls),
        truncated: count(&|o| o.truncated),
        outcomes,
    })
}

/// The longest rows of a decode.
pub(crate) struct LongestRows {
    /// Prompt, response and one block.
    pub positions: usize,
    /// Bytes of a key or value.
    pub bytes: usize,
    /// Number of batches that decode at the same time.
    pub workers: usize,
}

impl LongestRows {
    /// Bytes of one row: keys and values, twice while the cache grows; logits in f32 and twice in f64 on the host.
    pub fn row(&self, config: &ModelConfig) -> u64 {
        let kept = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim;
        (2 * kept * self.positions * self.bytes + 20 * config.vocab_size) as u64
    }
}

/// Number of rows per worker that fit into `free` bytes.
pub(crate) fn rows_that_fit(config: &ModelConfig, rows: &LongestRows, free: u64) -> usize {
    (free / (rows.workers.max(1) as u64 * rows.row(config)).max(1)) as usize
}

/// Maximum logits in memory for entropies: 16 MB.
const LOGITS_HELD: usize = 1 << 22;

/// Next-token entropies (nats) at the response positions of a batch, for phase 1's annotation. Logits are computed for a few positions at a
/// time: with a vocabulary of 150,000 they would need gigabytes.
pub(crate) fn response_entropies(model: &Decoder, batch: &[&Sample]) -> Result<Vec<Vec<f32>>> {
    let width = batch.iter().map(|s| s.length()).max().unwrap_or(0);
    let pad = |s: &Sample| -> Vec<u32> {
        let ids = s.prompt.iter().chain(&s.response).copied();
        ids.chain(std::iter::repeat(0)).take(width).collect()
    };
    let ids: Vec<Vec<u32>> = batch.iter().map(|s| pad(s)).collect();
    let lengths: Vec<usize> = batch.iter().map(|s| s.length()).collect();
    let span = Span::prompts(&lengths, false);
    let mut cache = model.cache_for_one_call(batch.len());
    let hidden = model.hidden(model.embed(&ids)?, &span, &mut cache, &mut Hooks::none())?;
    let d = model.config().hidden_size;
    let flat = hidden.reshape([batch.len() * width, d]);
    // Response token i is drawn from the distribution at the position before it.
    let places: Vec<i64> = batch
        .iter()
        .enumerate()
        .flat_map(|(b, s)| (0..s.response.len()).map(move |i| (b * width + s.prompt.len() - 1 + i) as i64))
        .collect();
    let mut values: Vec<f32> = Vec::with_capacity(places.len());
    for chunk in places.chunks((LOGITS_HELD / model.config().vocab_size).max(1)) {
        let index = Tensor::<1, Int>::from_data(TensorData::new(chunk.to_vec(), [chunk.len()]), &flat.device());
        let logits = model.unembed(flat.clone().select(0, index).unsqueeze_dim(0));
        let entropies = ops::entropy(logits).try_into_vec_as::<f32>();
        values.extend(entropies.map_err(|e| anyhow::anyhow!("reading entropies: {e:?}"))?);
    }
    let mut values = values.into_iter();
    Ok(batch.iter().map(|s| values.by_ref().take(s.response.len()).collect()).collect())
}
