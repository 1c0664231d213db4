//! A rollout that exceeds the device's memory is dropped, and the others are unchanged.

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;

use switchyard::corpus::Corpus;
use switchyard::latent::{Reasoning, Trace};
use switchyard::machine::{Compute, Machine};
use switchyard::method::Recipe;
use switchyard::model::Decoder;
use switchyard::model::config::{Extras, Family, ModelConfig};
use switchyard::parity::ParityComparison;
use switchyard::recipe::Grpo;
use switchyard::train::rollouts::{self, Behaviour};

/// Tokens of the long prompts: its attention scores have `4 · tokens²` values of 4 bytes. The last needs 1 TiB.
const LONG: [usize; 5] = [2_048, 4_096, 16_384, 65_536, 262_144];

const WHAT: &str = "rollouts of a short prompt, next to one that does not fit: log-probabilities";

/// Samples rollouts of a short prompt together with increasingly long ones, until a long one is lost.
///
/// # Errors
/// A device on which all of them fit, that also loses the short ones, or that computes a long one incorrectly.
pub(super) fn a_rollout_that_does_not_fit(device: &Device) -> Result<ParityComparison> {
    let cpu = Machine::default().device;
    let expected = sample(&cpu, &[8])?.0;
    if *device == cpu {
        // The operating system kills a process that requests too much: the test does not apply.
        return compare(&expected, &expected);
    }
    for long in LONG {
        let (traces, dropped) = sample(device, &[8, long])?;
        if dropped > 0 {
            ensure!(
                dropped == GROUP,
                "{dropped} rollouts were lost next to a prompt of {long} tokens, not the {GROUP} long"
            );
            // The device must be usable afterwards.
            compare(&sample(device, &[8])?.0, &expected)?;
            return compare(&traces, &expected);
        }
        // If it was not refused, it must be correct: a driver that binds less memory than requested reports nothing.
        let compared = compare(&traces, &sample(&cpu, &[8, long])?.0)?;
        ensure!(compared.passes(), "rollouts next to a prompt of {long} tokens are off by {:.1e}", compared.off);
    }
    anyhow::bail!("even the attention of {} tokens fits the device", LONG[LONG.len() - 1])
}

const GROUP: usize = 2;

/// Surviving rollouts of prompts of these lengths, and the number of lost ones.
fn sample(device: &Device, prompts: &[usize]) -> Result<(Vec<Trace>, usize)> {
    let recipe = Recipe::resolve("smoke", &["data.rows=8".to_owned(), "evaluation.max_new_tokens=4".to_owned()])?;
    let corpus = Corpus::build(&recipe, None)?;
    let model = Decoder::random(&shape(corpus.vocabulary.size()), 0, device)?;
    let grpo = Grpo { group: GROUP, max_positions: usize::MAX, ..recipe.grpo.clone() };
    let settings = rollouts::rollout_settings(&grpo, &recipe.evaluation, &corpus.stops, 0);
    let reasoning = Reasoning::default();
    let behaviour =
        Behaviour { reasoning: &reasoning, switch: corpus.switch, settings: &settings, compute: Compute::F32 };
    let prompts: Vec<Vec<u32>> = prompts.iter().map(|&n| (0..n as u32).map(|i| i % 7).collect()).collect();
    let questions: Vec<(usize, &[u32], &str)> =
        prompts.iter().enumerate().map(|(i, prompt)| (i, prompt.as_slice(), "0")).collect();
    let sampled = rollouts::sample(&model, &corpus, &questions, &grpo, behaviour, 1)?;
    Ok((sampled.all.into_iter().map(|(trace, _, _)| trace).collect(), sampled.dropped.total()))
}

fn shape(vocab_size: usize) -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab_size,
        hidden_size: 32,
        intermediate_size: 96,
        num_hidden_layers: 1,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: None,
        qk_norm: true,
        tie_word_embeddings: true,
        max_position_embeddings: 1 << 20,
        bos_token_id: None,
        eos_token_ids: vec![],
        pad_token_id: None,
        extras: Extras::default(),
    }
}

fn compare(ours: &[Trace], theirs: &[Trace]) -> Result<ParityComparison> {
    let tokens = |all: &[Trace]| -> Vec<u32> { all.iter().flat_map(|t| t.positions.iter().map(|p| p.token)).collect() };
    ensure!(tokens(ours) == tokens(theirs), "the rollouts have other tokens than on the CPU");
    let logprobs =
        |all: &[Trace]| -> Vec<f64> { all.iter().flat_map(|t| t.positions.iter().filter_map(|p| p.logprob)).collect() };
    let (ours, theirs) = (logprobs(ours), logprobs(theirs));
    let off = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    Some(ParityComparison { what: WHAT.to_owned(), off, bound: 1e-5, values: ours.len() })
        .filter(|compared| compared.values > 0)
        .context("the short prompt has no rollouts")
}
