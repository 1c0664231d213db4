//! Decoding with latents: a batch on the device against one row at a time on the CPU.

use anyhow::Result;

use super::reference::{Found, relative};
use super::{Compared, Fixtures};
use crate::latent::{Blocks, Decode, DecodeSettings, HiddenState, Request, SwitchIds, Switching, Trace, decode};
use crate::machine::Machine;
use crate::model::{Decoder, Hooks};

const IDS: SwitchIds = SwitchIds { swi: 93, swi_end: 94, latent: 95 };

/// Greedy decoding with a block of latents in each row. A step that takes another token counts as infinitely far off.
///
/// # Errors
/// As the decoder's.
pub(super) fn against_one_row_on_the_cpu(fixtures: &Fixtures) -> Result<Compared> {
    let prompts: Vec<Vec<u32>> = [5, 8, 3, 11].map(|n| (0..n).map(|i| (i * 11 + n) % 90).collect()).to_vec();
    let requests: Vec<Request> =
        prompts.into_iter().enumerate().map(|(problem, prompt)| Request { problem, prompt, rollout: 0 }).collect();
    let ours = run(&fixtures.tiny("qwen3_tied", &fixtures.device)?, &requests)?;
    let cpu = fixtures.tiny("qwen3_tied", &Machine::default().device)?;
    let mut all = vec![];
    for (request, ours) in requests.iter().zip(&ours) {
        for theirs in run(&cpu, std::slice::from_ref(request))? {
            all.push(difference(ours, &theirs)?);
        }
    }
    Ok(Compared::new("decoding with latents: tokens, and log-probabilities against one row on the CPU", 1e-5, all))
}

fn run(model: &Decoder, requests: &[Request]) -> Result<Vec<Trace>> {
    let settings =
        DecodeSettings { k_min: 3, k_cap: 5, max_new_tokens: 16, switching: Switching::Forced, ..Default::default() };
    let (source, controller) = (&HiddenState, &Blocks::Learnt);
    let how = Decode { model, source, controller, switch: Some(IDS), settings: &settings, cancel: None, ahead: None };
    decode(how, requests, 1, &mut Hooks::none())
}

fn difference(ours: &Trace, theirs: &Trace) -> Result<Found> {
    let steps = |trace: &Trace| trace.positions.iter().map(|p| (p.token, p.kind)).collect::<Vec<_>>();
    if steps(ours) != steps(theirs) {
        return Ok(Found { off: f64::INFINITY, values: theirs.positions.len() });
    }
    let logprobs = |trace: &Trace| {
        let of = trace.positions.iter().flat_map(|p| [p.logprob, p.p_exit]);
        of.flatten().map(|x| x as f32).collect::<Vec<_>>()
    };
    relative(&logprobs(ours), &logprobs(theirs), "log-probabilities")
}
