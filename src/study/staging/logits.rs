//! Logits at chosen positions of known sequences, in batches of bounded memory, on several threads.

use anyhow::{Result, ensure};

use super::StagedSolutions;
use crate::latent::{Sequence, SwitchIds, sampling};
use crate::model::{Decoder, Hooks, ModelConfig};
use crate::study::Study;
use crate::study::readout::{LOGITS_HELD, logits};
use crate::{parallel, progress};

/// Batch size of short sequences.
const ROWS: usize = 64;

/// KV cache of one batch, in floats: 32 MB per thread, of a large model a small share of its weights (every step reads them all).
const CACHE_HELD: usize = 1 << 23;
const SHARE_OF_WEIGHTS: usize = 80;

/// Number of sequences of this length whose KV cache fits.
pub(crate) fn rows_held(config: &ModelConfig, positions: usize) -> usize {
    let held = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim;
    CACHE_HELD.max(config.token_weights() / SHARE_OF_WEIGHTS) / (held * positions.max(1))
}

/// Statistics of `<swi>` in one next-token distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Nats.
    pub entropy: f64,
    pub p_swi: f64,
    /// 1 if `<swi>` is the most probable token.
    pub rank: f64,
    /// `log p(<swi>) − log p(best other token)`, nats.
    pub margin: f64,
}

impl Reading {
    /// `masked`: tokens that cannot be drawn here.
    pub fn new(logits: &[f32], ids: SwitchIds, masked: &[u32]) -> Self {
        let lp = sampling::log_softmax(logits, 1.0, masked);
        let swi = lp[ids.swi as usize];
        let others = lp.iter().enumerate().filter(|(t, _)| *t != ids.swi as usize).map(|(_, p)| *p);
        let best = others.fold(f64::NEG_INFINITY, f64::max);
        let rank = 1 + lp.iter().filter(|p| **p > swi).count();
        Self { entropy: sampling::entropy(&lp), p_swi: swi.exp(), rank: rank as f64, margin: swi - best }
    }
}

/// Readings of every position from the prompt's last on: `[problem][position − (prompt − 1)]`. Outside blocks the distribution is
/// the decoder's in text mode, without `<latent>` and `</swi>`; inside blocks it is the full softmax.
pub(crate) fn readings(study: &Study, staged: &StagedSolutions) -> Result<Vec<Vec<Reading>>> {
    let solution = |s: &Sequence| &staged.solutions[s.row];
    let wanted = |s: &Sequence| (solution(s).prompt - 1..s.ids.len()).collect();
    let ids = study.corpus.switch;
    let text = study.mask_in_text(true);
    let read = |s: &Sequence, position: usize, logits: &[f32]| {
        Reading::new(logits, ids, if solution(s).in_block(position) { &[] } else { &text })
    };
    logits_at(study, &staged.sequences, wanted, read)
}

/// Applies `read` to the logits at the `wanted` positions of every sequence.
pub(crate) fn logits_at<R: Send>(
    study: &Study,
    sequences: &[Sequence],
    wanted: impl Fn(&Sequence) -> Vec<usize> + Sync,
    read: impl Fn(&Sequence, usize, &[f32]) -> R + Sync,
) -> Result<Vec<Vec<R>>> {
    let model = &study.model;
    in_batches(model, sequences, study.threads, |batch| {
        let all = study.unroll(batch, &mut Hooks::none())?;
        let of_row = |(b, sequence): (usize, &Sequence)| {
            let mut out = vec![];
            for chunk in wanted(sequence).chunks((LOGITS_HELD / model.config().vocab_size).max(1)) {
                let at: Vec<_> = chunk.iter().map(|&p| (b, p)).collect();
                for (&position, logits) in chunk.iter().zip(logits(model, all.hidden_at(&at)?)?) {
                    let (problem, finite) = (sequence.row, logits.iter().all(|x| x.is_finite()));
                    ensure!(
                        finite,
                        "problem {problem}: the logits at position {position} are not finite (NaN or infinity)"
                    );
                    out.push(read(sequence, position, &logits));
                }
            }
            Ok(out)
        };
        batch.iter().enumerate().map(of_row).collect()
    })
}

/// Runs `work` on the sequences batch by batch, on several threads; results in order.
pub(crate) fn in_batches<R: Send>(
    model: &Decoder,
    sequences: &[Sequence],
    threads: usize,
    work: impl Fn(&[Sequence]) -> Result<Vec<R>> + Sync,
) -> Result<Vec<R>> {
    let longest = sequences.iter().map(|s| s.ids.len()).max().unwrap_or(1);
    let rows = rows_held(model.config(), longest).clamp(1, ROWS);
    let batches: Vec<&[Sequence]> = sequences.chunks(rows).collect();
    let done = parallel::each(&batches, threads, |batch| {
        // A batch of a large model runs for minutes.
        progress::go_on()?;
        work(batch)
    })?;
    Ok(done.into_iter().flatten().collect())
}
