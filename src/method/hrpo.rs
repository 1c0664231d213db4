//! HRPO (Yue et al. 2025, arXiv:2505.18454): the text checkpoint, whose drawn tokens are mixed with states while it thinks
//! (`latent::hybrid`), trained by GRPO. A trained gate begins near the token alone and decides how much of the state enters.
//!
//! As in the public code (Yueeeeeeee/HRPO): every response token up to the one that ends thinking is mixed, the first with the state
//! that the prompt leaves; the distribution behind a state has the temperature of the rollouts, in greedy decoding too; in the replay
//! states are the constants that they were in the rollout, while embeddings and gate have a gradient; one step of the optimiser for
//! each batch of rollouts; gate and Λ have learning rates of their own; the KL term (k3) is against the model that it started from, which
//! reads the response as plain text; W from N(0, .02²), biases zero, Λ so that a is uniform in [r_min, r_max] where r = 1.
//!
//! It differs in this:
//! - Thinking ends at a token (`</think>`, `####` or `#`, whichever the vocabulary has; theirs: at the text `####`, which several tokens
//!   may spell).
//! - States are of the softmax over the whole vocabulary; `<swi>`, `</swi>` and `<latent>`, which text never draws, are in it.
//! - 1 − a² is computed without cancellation; the value is the same.
//! - With `hrpo.loss = "authors"` the loss is theirs. By default it is GRPO's as everywhere here: a mean over the tokens of all rollouts (theirs: over each response, then over responses),
//!   log-probabilities at the temperature of the rollouts (theirs: at 1), the KL term weighted with π/old, which is 1 in value at the one
//!   step and gives its gradient the right direction; a ratio that is clipped, which at the one step it never is; groups without
//!   variance are left out; the deviation's floor is `grpo.std_floor` (theirs: 1e-4 added).
//! - The reward is `[grpo.reward]` (theirs: 1 if the answer is right and `####` occurs once).
//! - All weights are trained where the recipe has no `[lora]` (theirs: LoRA of rank 32 and α 64 on all projections, embeddings frozen).
//! - AdamW in f32, constant rates (theirs: 8 bits, cosine with a tenth of warm-up, β 0.9 and .99, decay .1, clip .1). Group, rate and
//!   temperature are the recipe's (theirs: 4, 5e-6 and .5).

use anyhow::{Result, ensure};

use super::phase::{Panel, Phase, TableRow, Work};
use super::soft_thinking::end_of_thinking;
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::corpus::Corpus;
use crate::latent::hybrid::Hybrid;
use crate::latent::{Reasoning, Source};
use crate::model::Decoder;
use crate::recipe::Range::{BelowOne, NotNegative, Positive, Typed};
use crate::recipe::{Grpo, KlAnchor, LossForm, LossMean, ReplayMode};

settings! {
    /// HRPO (Yue et al. 2025): text whose tokens a gate mixes with states, trained by GRPO from the checkpoint of `base`. Steps, group,
    /// rate, temperature and reward are those of `grpo`.
    pub struct Settings {
        /// a, the share of the token's own embedding, begins between these where r = 1, and at their roots where r is ½, as it is at first.
        pub r_min: f64 = 0.99 => BelowOne,
        pub r_max: f64 = 0.999 => BelowOne,
        /// Learning rate of the gate's matrices and biases.
        pub gate_rate: f64 = 1e-4 => Positive,
        /// Learning rate of the gate's Λ.
        pub lambda_rate: f64 = 1e-3 => Positive,
        /// Weight of the KL term against the text model that it starts from; instead of `grpo.beta`.
        pub beta: f64 = 5e-3 => NotNegative,
        pub loss: LossForm = LossForm::Tokens => Typed,
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "hrpo",
    about: "text whose tokens a gate mixes with states while it thinks, by GRPO (Yue et al. 2025)",
    phases: &[BASE, START, HRPO],
    check,
    ..Method::PLAIN
}];

pub(super) const HRPO: Phase = Phase {
    name: "hrpo",
    from: Some(START.name),
    reads: &["grpo", "hrpo", "evaluation"],
    row: TableRow::Ours("Text-CoT through a gate between token and state, then GRPO (HRPO)"),
    panel: Panel::Text,
    work: Work::Grpo(settings),
};

const START: Phase = Phase {
    name: "hrpo_start",
    from: Some(BASE.name),
    reads: &["hrpo.r_min", "hrpo.r_max", "grpo.temperature", "evaluation"],
    row: TableRow::Ours("Text-CoT through a gate that is not trained yet"),
    panel: Panel::None,
    work: Work::Decode { model: gated, reasoning },
};

fn check(recipe: &Recipe) -> Result<()> {
    let Settings { r_min, r_max, .. } = recipe.hrpo;
    ensure!(
        0.0 < r_min && r_min <= r_max,
        "hrpo.r_min must be above 0 and at most hrpo.r_max = {r_max}, found {r_min}"
    );
    ensure!(
        recipe.hrpo.loss == LossForm::Tokens || recipe.grpo.loss_mean == LossMean::Tokens,
        "hrpo.loss = \"authors\" is a mean over each response: leave grpo.loss_mean out"
    );
    Ok(())
}

fn gated(recipe: &Recipe, model: Decoder) -> Result<Decoder> {
    let Settings { r_min, r_max, .. } = recipe.hrpo;
    model.with_new_gate([r_min, r_max], recipe.seed)
}

fn reasoning(recipe: &Recipe, corpus: &Corpus) -> Result<Reasoning> {
    let hybrid = Hybrid { temperature: recipe.grpo.temperature, end: end_of_thinking(corpus)? };
    Ok(Reasoning { source: Source::Hybrid(hybrid), ..Reasoning::text("hrpo") })
}

fn settings(recipe: &Recipe) -> Grpo {
    let Settings { gate_rate, lambda_rate, beta, loss, .. } = recipe.hrpo;
    Grpo {
        anchor: KlAnchor::Reference,
        beta,
        loss,
        inner_epochs: 1,
        replay: ReplayMode::FullBptt,
        gumbel: 0.0,
        latent_noise: 0.0,
        cosine_every: 0,
        own_rates: vec![
            ("heads.gate.keep.", gate_rate),
            ("heads.gate.admit.", gate_rate),
            ("heads.gate.lambda", lambda_rate),
        ],
        ..recipe.grpo.clone()
    }
}
