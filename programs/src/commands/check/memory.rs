//! A rollout that exceeds the device's memory is dropped, and the others are unchanged.

use anyhow::{Result, ensure};
use burn::tensor::Device;

use switchyard::corpus::Corpus;
use switchyard::latent::{Reasoning, Trace};
use switchyard::machine::{Compute, Machine};
use switchyard::method::Recipe;
use switchyard::model::{Decoder, ModelConfig};
use switchyard::parity::reference::Deviation;
use switchyard::parity::{Fixtures, ParityComparison, compare_traces};
use switchyard::recipe::Grpo;
use switchyard::train::rollouts::{self, Behaviour};

/// Tokens of the long prompts: its attention scores have `4 · tokens²` values of 4 bytes. The last needs 1 TiB.
const LONG: [usize; 5] = [2_048, 4_096, 16_384, 65_536, 262_144];

const WHAT: &str = "rollouts of a short prompt, next to one that does not fit: log-probabilities";

/// Samples rollouts of a short prompt together with increasingly long ones, until a long one is lost.
///
/// # Errors
/// A device on which all of them fit, that also loses the short ones, or that computes a long one incorrectly.
pub(super) fn a_rollout_that_does_not_fit(fixtures: &Fixtures) -> Result<Vec<ParityComparison>> {
    let (device, cpu) = (&fixtures.device, Machine::default().device);
    let tiny = fixtures.tiny("qwen3_tied", &cpu)?.config().clone();
    let tiny = ModelConfig { num_hidden_layers: 1, max_position_embeddings: 1 << 20, ..tiny };
    let sample = |device: &Device, prompts: &[usize]| sample(&tiny, device, prompts);
    let expected = sample(&cpu, &[8])?.0;
    if *device == cpu {
        // The operating system kills a process that requests too much: the test does not apply.
        return Ok(vec![compare(&expected, &expected)]);
    }
    for long in LONG {
        let (traces, dropped) = sample(device, &[8, long])?;
        if dropped > 0 {
            ensure!(
                dropped == GROUP,
                "{dropped} rollouts were lost next to a prompt of {long} tokens, not the {GROUP} long"
            );
            // The device must be usable afterwards.
            return Ok(vec![compare(&sample(device, &[8])?.0, &expected), compare(&traces, &expected)]);
        }
        // If it was not refused, it must be correct: a driver that binds less memory than requested reports nothing.
        let compared = compare(&traces, &sample(&cpu, &[8, long])?.0);
        ensure!(compared.passes(), "rollouts next to a prompt of {long} tokens are off by {:.1e}", compared.found.off);
    }
    anyhow::bail!("even the attention of {} tokens fits the device", LONG[LONG.len() - 1])
}

const GROUP: usize = 2;

/// Surviving rollouts of prompts of these lengths, and the number of lost ones.
fn sample(tiny: &ModelConfig, device: &Device, prompts: &[usize]) -> Result<(Vec<Trace>, usize)> {
    let recipe = Recipe::resolve("smoke", &["data.rows=8".to_owned(), "evaluation.max_new_tokens=4".to_owned()])?;
    let corpus = Corpus::build(&recipe, None)?;
    let model = Decoder::random(&ModelConfig { vocab_size: corpus.vocabulary.size(), ..tiny.clone() }, 0, device)?;
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

fn compare(ours: &[Trace], theirs: &[Trace]) -> ParityComparison {
    // Without a rollout, nothing is compared, which fails.
    let lost = (ours.len() != theirs.len()).then(|| Deviation::absolute(f64::INFINITY, 0.0));
    let all = ours.iter().zip(theirs).map(|(ours, theirs)| compare_traces(ours, theirs));
    ParityComparison::new(WHAT, 2e-6, all.chain(lost))
}
