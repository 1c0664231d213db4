//! One supervised step and one Switch-GRPO loss (`fixtures/make_steps.py`).

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn::tensor::Device;
use serde::Deserialize;

use super::latent::{LATENT, rows_of};
use super::reference::{self, Deviation, get, read};
use super::{Fixtures, ParityComparison};
use crate::guard::read_text;
use crate::latent::drawn::DrawnInput;
use crate::latent::hybrid::{Hybrid, MixedInput};
use crate::latent::trace::{Position, PositionRole};
use crate::latent::{
    Blocks, Decode, DecodeSettings, End, Gradient, LatentSource, Reasoning, Sampling, Source, SwitchIds, Trace, replay,
    rules,
};
use crate::method::{CrossEntropy, LrSchedule};
use crate::model::Decoder;
use crate::model::gradients::gradients_by_name;
use crate::model::heads::HeadSizes;
use crate::recipe::{Compute, Facts, Grpo, Invalid, KlAnchor, LossForm, Optimizer, ReplayMode};
use crate::train::advantages::rollout_advantages;
use crate::train::grpo::{fill_anchor, gradients, loss_settings};
use crate::train::rollouts::{Behaviour, Rollout};
use crate::train::sft::{self, Sft};
use crate::train::trainer::Trainer;

const IDS: SwitchIds = SwitchIds { swi: 93, swi_end: 94, latent: LATENT };

/// Supervised steps through latents at a constant learning rate, on one thread.
pub fn sft_settings(latent_token: u32, steps: usize) -> Sft<'static> {
    Sft {
        name: "check",
        steps,
        schedule: LrSchedule { peak: 1e-3, warmup: 0, cosine_from: steps, steps },
        latent_token,
        objective: &CrossEntropy { source: Source::HiddenState, gradient: Gradient::Through },
        resets: &[],
        restarts: &[],
        accumulate: 1,
        threads: 1,
        checkpoint_every: steps,
    }
}

/// Loss, gradient norm and every weight after an optimiser step, on so many threads and in so many micro-batches.
pub fn sft_step(fixtures: &Fixtures, threads: usize, accumulate: usize) -> Result<Vec<ParityComparison>> {
    let references = read(&fixtures.path("steps/sft.safetensors"))?;
    let settings = Optimizer { beta_2: 0.98, ..Optimizer::default() };
    let model = fixtures.tiny("qwen3_tied", &fixtures.device.clone().autodiff())?;
    let mut trainer = Trainer::new(model, &settings);
    let sft = Sft { accumulate, threads, ..sft_settings(LATENT, 1) };
    let stats = sft::step(&mut trainer, &sft, &rows_of(fixtures, "b")?, 1e-3)?;
    let value = |name| get(&references, name).map(|x| f64::from(x.data[0]));
    let (loss, norm) = (value("loss")?, value("norm")?);
    let (mut weights, mut far) = (vec![], vec![]);
    for (name, after) in trainer.decoder().export()? {
        let theirs = get(&references, &format!("after.{name}"))?;
        // AdamW's first step is lr · g / (|g| + eps): where g is next to nothing, its last digits decide the step.
        weights.push(Deviation::relative(&after.data, &theirs.data).at(&name));
        let scale = theirs.data.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let off = after.data.iter().zip(&theirs.data).filter(|(a, b)| (*a - *b).abs() > 1e-5 * scale).count();
        let values = theirs.data.len();
        far.push(Deviation { off: off as f64 / values as f64, values, at: name });
    }
    let how = format!("SFT step, {threads} thread(s), {accumulate} micro-batch(es)");
    Ok(vec![
        ParityComparison::new(format!("{how}: loss"), 1e-5, [Deviation::absolute(stats.loss / loss, 1.0)]),
        ParityComparison::new(format!("{how}: gradient norm"), 1e-4, [Deviation::absolute(stats.norm / norm, 1.0)]),
        ParityComparison::new(format!("{how}: weights after it"), 1e-4, weights),
        ParityComparison::new(format!("{how}: share of a tensor's weights that are off by 1e-5"), 1e-3, far),
    ])
}

/// The loss of a Switch-GRPO step, or of a method related to it, on given rollouts.
pub struct GrpoCase {
    title: &'static str,
    /// Its rollouts and gradients in `fixtures/steps`.
    file: &'static str,
    /// Prefix of the gradients.
    mode: &'static str,
    reasoning: fn() -> Reasoning,
    grpo: fn() -> Grpo,
}

/// The losses with reference values: three replay modes; drawn mixtures as latents (`fixtures/make_soft.py`); mixtures with one-sided noise,
/// masked rollouts and one learnt first latent in each group (`fixtures/make_latent_grpo.py`); states mixed into text, with the gate's
/// gradients and the anchor of plain text (`fixtures/make_hrpo.py`), also with the loss of its public code.
pub const GRPO_CASES: [GrpoCase; 7] = [
    GrpoCase {
        title: "GRPO",
        file: "grpo",
        mode: "text_graph",
        reasoning: Reasoning::default,
        grpo: || Grpo { replay: ReplayMode::TextGraph, ..Grpo::default() },
    },
    GrpoCase {
        title: "GRPO",
        file: "grpo",
        mode: "segmented",
        reasoning: Reasoning::default,
        grpo: || Grpo { replay: ReplayMode::Segmented, ..Grpo::default() },
    },
    GrpoCase { title: "GRPO", file: "grpo", mode: "full_bptt", reasoning: Reasoning::default, grpo: through },
    GrpoCase {
        title: "SofT-GRPO",
        file: "soft",
        mode: "full_bptt",
        reasoning: || {
            let rule = rules::SoftThinking { certain: 0.0, patience: 0, temperature: 1.0, limit: 8, end: 0 };
            Reasoning { blocks: Blocks::SoftThinking(rule), ..Reasoning::default() }
        },
        grpo: through,
    },
    GrpoCase {
        title: "Latent-GRPO",
        file: "latent_grpo",
        mode: "full_bptt",
        reasoning: || Reasoning { blocks: Blocks::Thinking { limit: 4 }, ..Reasoning::default() },
        grpo: || Grpo { beta: 0.0, invalid: Invalid::Mask, first: true, ..through() },
    },
    GrpoCase { title: "HRPO", file: "hrpo", mode: "full_bptt", reasoning: hybrid, grpo: anchored },
    GrpoCase {
        title: "HRPO with its authors' loss",
        file: "hrpo_authors",
        mode: "full_bptt",
        reasoning: hybrid,
        grpo: || Grpo { loss: LossForm::Authors, ..anchored() },
    },
];

fn through() -> Grpo {
    Grpo { replay: ReplayMode::FullBptt, ..Grpo::default() }
}

fn anchored() -> Grpo {
    Grpo { anchor: KlAnchor::Reference, beta: 5e-3, ..through() }
}

fn hybrid() -> Reasoning {
    Reasoning { source: Source::Hybrid(HYBRID), ..Reasoning::text("hrpo") }
}

/// `steps/grpo.json`.
#[derive(Deserialize)]
pub struct GrpoValues {
    pub rewards: Vec<Vec<f64>>,
    /// Who ran into no limit, in `latent_grpo.json`: the others are masked.
    #[serde(default)]
    valid: Vec<Vec<bool>>,
    pub rollouts: Vec<GrpoRollout>,
    pub n_tok: usize,
    pub loss: f64,
    pub surrogate: f64,
    pub kl: f64,
    pub temperature: f64,
}

#[derive(Deserialize)]
pub struct GrpoRollout {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    kinds: Vec<PositionRole>,
    old: Vec<Option<f64>>,
    new: Vec<Option<f64>>,
    advantage: f64,
    group: usize,
    /// The mixtures of `soft.json`.
    #[serde(default)]
    drawn: Vec<Option<DrawnInput>>,
    /// The states that are mixed into the text of `hrpo.json`.
    #[serde(default)]
    states: Vec<Option<Vec<f32>>>,
    /// The log-probabilities of plain text there.
    #[serde(default)]
    anchor: Vec<f64>,
    /// Whether its first decision is learnt.
    #[serde(default = "yes")]
    first: bool,
}

fn yes() -> bool {
    true
}

impl GrpoValues {
    /// Reads `steps/{name}.json`, and the rollouts as the trainer takes them.
    pub fn read(root: &Path, name: &str) -> Result<(Self, Vec<Rollout>)> {
        let path = root.join(format!("steps/{name}.json"));
        let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
        let values: Self = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let rollouts = values.rollouts.iter().map(GrpoRollout::rollout).collect();
        Ok((values, rollouts))
    }

    /// How the rollouts were drawn.
    pub fn decoding(&self) -> DecodeSettings {
        let sampling = Sampling { temperature: self.temperature, ..Sampling::default() };
        DecodeSettings { sampling, k_min: 1, ..DecodeSettings::default() }
    }
}

impl GrpoRollout {
    fn rollout(&self) -> Rollout {
        let position =
            |((&token, &kind), &logprob): ((&u32, &PositionRole), &Option<f64>)| Position::bare(token, kind, logprob);
        let mut positions: Vec<Position> = self.tokens.iter().zip(&self.kinds).zip(&self.old).map(position).collect();
        positions.iter_mut().zip(&self.drawn).for_each(|(position, drawn)| position.drawn.clone_from(drawn));
        let mixed = |state: &Option<Vec<f32>>| state.clone().map(|state| MixedInput { state, token_share: 0.0 });
        positions.iter_mut().zip(&self.states).for_each(|(position, state)| position.mixed = mixed(state));
        let trace = Trace { problem: self.group, rollout: 0, prompt: self.prompt.clone(), positions, end: End::Stop };
        let terms = Grpo::default().reward.of(Facts::new(&trace, true));
        Rollout {
            anchor: self.old.clone(),
            trace,
            terms,
            correct: true,
            advantage: self.advantage,
            weight: 1.0,
            first: self.first,
        }
    }
}

/// How the rollouts of `hrpo.json` were drawn.
pub const HYBRID: Hybrid = Hybrid { temperature: 0.7, end: 7 };

/// The tiny model with the gate of `hrpo.safetensors`.
pub fn gated(fixtures: &Fixtures, device: &Device) -> Result<Decoder> {
    let references = read(&fixtures.path("steps/hrpo.safetensors"))?;
    fixtures.tiny("qwen3_tied", device)?.with_heads(HeadSizes { gate: true, ..HeadSizes::default() }, |name| {
        get(&references, name.trim_start_matches("heads.")).cloned()
    })
}

/// Loss, gradients, replayed log-probabilities and advantages of a step's rollouts; with a gate also the anchor of plain text.
pub fn grpo_step(fixtures: &Fixtures, case: &GrpoCase, threads: usize) -> Result<Vec<ParityComparison>> {
    let GrpoCase { title, file, mode, .. } = case;
    let (reasoning, grpo) = (&(case.reasoning)(), &(case.grpo)());
    let (values, mut rollouts) = GrpoValues::read(&fixtures.root, file)?;
    let references = read(&fixtures.path(&format!("steps/{file}.safetensors")))?;
    let settings = values.decoding();
    let policy = Behaviour { reasoning, switch: IDS, settings: &settings, compute: Compute::F32 };
    let device = fixtures.device.clone().autodiff();
    let mixes = reasoning.source.mixing().is_some();
    let model = if mixes { gated(fixtures, &device)? } else { fixtures.tiny("qwen3_tied", &device)? };
    let how = format!("{title} step, {mode}, {threads} thread(s)");
    let mut more = vec![];
    if mixes {
        let settings = loss_settings(policy, grpo);
        fill_anchor(&model.valid(), Behaviour { settings: &settings, ..policy }, &mut rollouts)?;
        let anchors = values.rollouts.iter().zip(&rollouts).flat_map(|(theirs, ours)| {
            let both = theirs.anchor.iter().zip(&ours.anchor);
            both.map(|(theirs, ours)| Deviation::absolute(ours.unwrap_or(f64::NAN), *theirs))
        });
        more.push(ParityComparison::new(format!("{how}: log-probabilities of plain text"), 1e-5, anchors));
        let mut fresh = rollouts.clone();
        fresh.iter_mut().flat_map(|r| &mut r.trace.positions).for_each(|position| position.mixed = None);
        let again = compare_replayed(&values, &fresh, &model, policy)?;
        more.push(ParityComparison::new(format!("{how}: log-probabilities through states of its own"), 1e-5, again));
    }
    let (grads, parts) = gradients(&model, policy, &rollouts, grpo, threads)?;
    ensure!(parts.tokens == values.n_tok, "{mode}: {} tokens, the reference has {}", parts.tokens, values.n_tok);
    let terms = [(parts.loss, values.loss), (parts.surrogate, values.surrogate), (parts.kl, values.kl)]
        .map(|(a, b)| Deviation::absolute(a, b));
    let replayed = compare_replayed(&values, &rollouts, &model, policy)?;
    let advantages = compare_advantages(&values, &rollouts, grpo)?;
    let found = reference::gradients(&gradients_by_name(&model, &grads)?, &references, mode)?;
    more.extend([
        ParityComparison::new(format!("{how}: loss and its terms"), 1e-5, terms),
        ParityComparison::new(format!("{how}: gradients"), 1e-4, found),
        ParityComparison::new(format!("{how}: replayed log-probabilities"), 1e-5, replayed),
        ParityComparison::new(format!("{how}: advantages"), 1e-9, advantages),
    ]);
    Ok(more)
}

fn compare_replayed(
    values: &GrpoValues,
    rollouts: &[Rollout],
    model: &Decoder,
    policy: Behaviour,
) -> Result<Vec<Deviation>> {
    let traces: Vec<Trace> = rollouts.iter().map(|r| r.trace.clone()).collect();
    let (source, controller) = (&policy.reasoning.source, &policy.reasoning.blocks);
    let decoding =
        Decode { model, source, controller, switch: Some(IDS), settings: policy.settings, cancel: None, ahead: None };
    let again = replay::logprobs(decoding, &traces)?;
    let mut out = vec![];
    for (theirs, ours) in values.rollouts.iter().zip(again) {
        for (theirs, ours) in theirs.new.iter().zip(ours) {
            ensure!(theirs.is_some() == ours.is_some(), "another position was sampled");
            out.extend(ours.zip(*theirs).map(|(a, b)| Deviation::absolute(a, b)));
        }
    }
    Ok(out)
}

fn compare_advantages(values: &GrpoValues, rollouts: &[Rollout], grpo: &Grpo) -> Result<Vec<Deviation>> {
    let mut out = vec![];
    for (group, rewards) in values.rewards.iter().enumerate() {
        let of_group = rollouts.iter().filter(|r| r.trace.problem == group);
        let (traces, theirs): (Vec<&Trace>, Vec<&Rollout>) = of_group.map(|r| (&r.trace, r)).unzip();
        if let Some(valid) = values.valid.get(group) {
            ensure!(traces.iter().map(|trace| trace.ends_by_itself()).eq(valid.iter().copied()), "others are valid");
        }
        let ours = rollout_advantages(rewards, &traces, grpo).context("a group without variance")?;
        for ((advantage, first), theirs) in ours.into_iter().zip(theirs) {
            ensure!(first == theirs.first, "another rollout of group {group} teaches the first latent");
            out.push(Deviation::absolute(advantage, theirs.advantage));
        }
    }
    Ok(out)
}
