//! Decoding with latents: a batch on the device against one row at a time on the CPU.

use anyhow::Result;
use burn::tensor::Device;

use super::reference::Deviation;
use super::{Fixtures, ParityComparison};
use crate::latent::{
    Blocks, Decode, DecodeSettings, HiddenState, Request, Sampling, SwitchIds, Switching, Trace, decode,
};
use crate::machine::Machine;
use crate::model::{Decoder, Hooks, ModelConfig};

const IDS: SwitchIds = SwitchIds { swi: 93, swi_end: 94, latent: 95 };

/// Greedy decoding with a block of latents in each row. A step that takes another token counts as infinitely far off.
pub(super) fn against_one_row_on_the_cpu(fixtures: &Fixtures) -> Result<ParityComparison> {
    let requests = Request::all([5, 8, 3, 11].map(|n| (0..n).map(|i| (i * 11 + n) % 90).collect()));
    let ours = run(&fixtures.tiny("qwen3_tied", &fixtures.device)?, &requests)?;
    let cpu = fixtures.tiny("qwen3_tied", &Machine::default().device)?;
    let mut all = vec![];
    for (request, ours) in requests.iter().zip(&ours) {
        for theirs in run(&cpu, std::slice::from_ref(request))? {
            all.push(compare_traces(ours, &theirs));
        }
    }
    Ok(ParityComparison::new(
        "decoding with latents: tokens, and log-probabilities against one row on the CPU",
        1e-5,
        all,
    ))
}

/// A decode against one row, with a vocabulary of Qwen3's size and drawn tokens: what a device decides itself, for several steps between two reads.
pub(super) fn drawn_from_a_large_vocabulary(fixtures: &Fixtures) -> Result<ParityComparison> {
    let cpu = Machine::default().device;
    let small = fixtures.tiny("qwen3_tied", &cpu)?;
    let config = ModelConfig { vocab_size: 151_672, ..small.config().clone() };
    let requests = Request::all((0..4).map(|i| (0..5).map(|t| (i * 7 + t) * 4_001).collect()));
    let mut all = vec![];
    // A model with random weights is nearly uniform: at temperature 1 a token's share is smaller than what f32 loses in the sum over
    // all, and another token is drawn in one of ten draws. At 0.02 few tokens have nearly all.
    for temperature in [0.0, 0.02] {
        let sampling = Sampling { temperature, seed: 3, ..Sampling::default() };
        let settings = DecodeSettings { sampling, k_min: 3, k_cap: 5, max_new_tokens: 12, ..DecodeSettings::default() };
        let run = |device: &Device, ahead| {
            let model = Decoder::random(&config, 1, device)?;
            decoded(
                &model,
                &requests,
                &DecodeSettings { switching: Switching::Forced, ..settings.clone() },
                Some(ahead),
            )
        };
        for (ours, theirs) in run(&fixtures.device, 8)?.iter().zip(&run(&cpu, 0)?) {
            all.push(compare_traces(ours, theirs));
        }
    }
    Ok(ParityComparison::new(
        "decoding ahead of the host, 151,672 tokens: tokens, and log-probabilities against the CPU's",
        1e-5,
        all,
    ))
}

fn run(model: &Decoder, requests: &[Request]) -> Result<Vec<Trace>> {
    let settings =
        DecodeSettings { k_min: 3, k_cap: 5, max_new_tokens: 16, switching: Switching::Forced, ..Default::default() };
    decoded(model, requests, &settings, None)
}

fn decoded(
    model: &Decoder,
    requests: &[Request],
    settings: &DecodeSettings,
    ahead: Option<usize>,
) -> Result<Vec<Trace>> {
    let (source, controller) = (&HiddenState, &Blocks::LEARNT);
    let decoding = Decode { model, source, controller, switch: Some(IDS), settings, cancel: None, ahead };
    decode(decoding, requests, 1, &mut Hooks::none())
}

/// The log-probabilities of two decodes; infinitely far off if their tokens differ.
pub fn compare_traces(ours: &Trace, theirs: &Trace) -> Deviation {
    let steps = |trace: &Trace| trace.positions.iter().map(|p| (p.token, p.kind)).collect::<Vec<_>>();
    if steps(ours) != steps(theirs) {
        return Deviation { off: f64::INFINITY, values: theirs.positions.len(), at: String::new() };
    }
    let logprobs = |trace: &Trace| {
        let of = trace.positions.iter().flat_map(|p| [p.logprob, p.p_exit]);
        of.flatten().map(|x| x as f32).collect::<Vec<_>>()
    };
    Deviation::relative(&logprobs(ours), &logprobs(theirs))
}
