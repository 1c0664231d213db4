//! Settings of the methods that SWITCH is compared with. Defaults are those of their public code; presets scale them.

use serde::{Deserialize, Serialize};

use super::grpo::{Invalid, LossForm};
use super::ranges::Range::{
    BelowOne, Count, Each, NotNegative, Positive, PositiveOrInfinite, PositiveShare, Share, Typed,
};
use super::ranges::{BATCH, POSITIONS, STEPS, WIDTH};
use super::supervised::Stage;
use crate::latent::Gradient;
use crate::latent::gumbel::Density;

settings! {
    /// Stepwise internalisation (Deng et al. 2024): the leftmost tokens of the chain go, more and more of them.
    pub struct Icot {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Instead of `steps`: passes over the data.
        pub epochs: f64 = 0.0 => NotNegative,
        pub batch: usize = 32 => Count(1, BATCH),
        pub learning_rate: f64 = 5e-5 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        /// Tokens that are removed in each pass over the data, one after the other; 0 removes none.
        pub remove_per_epoch: f64 = 8.0 => NotNegative,
        /// The whole chain goes at once when this many tokens are gone; 0: tokens go one by one to the end.
        pub remove_all_from: usize = 0 => Count(0, POSITIONS),
        /// λ of the removal smoothing: a sample loses o more tokens with p(o) ∝ e^{−λo}. `inf` is no smoothing.
        pub smoothing: f64 = 4.0 => PositiveOrInfinite,
        /// The optimiser forgets its state whenever one more token goes (`--reset_optimizer`).
        pub reset: bool = true => Typed,
        /// The learning rate falls as a cosine once nothing more is scheduled to go (ours); otherwise it is constant.
        pub cosine: bool = false => Typed,
    }
}

settings! {
    /// Pause tokens (Goyal et al. 2024). Start and steps are those of `no_cot`, batch and learning rate those of `base`: the pauses are
    /// the only difference from `no_cot`.
    pub struct Pause {
        /// M: pause tokens after the prompt.
        pub tokens: usize = 10 => Count(0, POSITIONS),
    }
}

/// When an optimiser forgets its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reset {
    Never,
    /// Where a stage begins.
    Stage,
    /// Where a stage begins, and after each pass over the data in it.
    #[default]
    Epoch,
}

settings! {
    /// Coconut (Hao et al. 2024): stage k replaces the first k steps of the chain by c·k latents.
    pub struct Coconut {
        pub batch: usize = 32 => Count(1, BATCH),
        pub learning_rate: f64 = 1e-4 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        /// Latents a step.
        pub c: usize = 2 => Count(1, POSITIONS),
        /// Steps that latents are added for. Of a later stage all text of the chain is gone, with as many latents as of this one.
        pub max_stage: usize = 3 => Count(1, POSITIONS),
        /// All latents are there from the first stage on, and only text goes stage by stage; otherwise they come as it goes.
        pub all_latents: bool = false => Typed,
        /// Probability that a sample's stage is drawn uniformly instead, from no step gone to all of its own (`uniform_prob` of the
        /// public code).
        pub smoothing: f64 = 0.0 => Share,
        /// Probability that a sample's stage is one before the present one instead, stage i in proportion to i + 1 (ours).
        pub mixing: f64 = 0.0 => Share,
        pub reset: Reset = Reset::Epoch => Typed,
        /// The learning rate falls as a cosine in the last stage (ours); otherwise it is constant.
        pub cosine: bool = false => Typed,
        pub gradient: Gradient = Gradient::Through => Typed,
        /// `coconut_pause` feeds all pauses of a row in one pass; otherwise one by one, in as many passes as Coconut has.
        pub one_pass: bool = true => Typed,
        /// Passes over the data of each stage up to `max_stage`, where `stages` names none.
        pub stage_epochs: f64 = 3.0 => Positive,
        /// Passes over the data of all stages, where `stages` names none: what is left after `max_stage` is the stage that drops the text.
        pub epochs: f64 = 22.0 => NotNegative,
        pub stages: Vec<Stage> = vec![],
    }
}

impl Coconut {
    /// The stages as `stages` names them, or laid out by epochs.
    pub(crate) fn schedule(&self) -> Vec<Stage> {
        if !self.stages.is_empty() {
            return self.stages.clone();
        }
        let stage = |k, epochs| Stage { k, steps: 0, epochs, c: None };
        let mut left = self.epochs;
        let mut all = vec![];
        for k in 1..=self.max_stage {
            let epochs = self.stage_epochs.min(left);
            left -= epochs;
            all.push(stage(k, epochs));
        }
        all.push(stage(self.max_stage + 1, left));
        all.retain(|stage| stage.epochs > 0.0);
        all
    }
}

settings! {
    /// SIM-CoT (Wei et al. 2025): Coconut with an auxiliary decoder that spells out the latents. All else is as `coconut` says; the authors
    /// have `coconut.all_latents` on.
    pub struct SimCot {
        /// Weight of the decoder's loss.
        pub weight: f64 = 1.0 => NotNegative,
    }
}

settings! {
    /// CODI (Shen et al. 2025): a block of projected hidden states, distilled from the chain of thought. Rate and weight of the distance
    /// are those of the public GPT-2 run; for Llama 3.2 1B they are 8e-4 and 20.
    pub struct Codi {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Instead of `steps`: passes over the data.
        pub epochs: f64 = 0.0 => NotNegative,
        pub batch: usize = 128 => Count(1, BATCH),
        pub learning_rate: f64 = 3e-3 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        pub latents: usize = 6 => Count(1, POSITIONS),
        /// Weight of the teacher's cross-entropy.
        pub teacher: f64 = 1.0 => NotNegative,
        /// Weight of the distance between the hidden states of student and teacher.
        pub distance: f64 = 1.0 => NotNegative,
        /// The teacher's chain keeps its last step (`include_last_cot` of the public code), which says the answer.
        pub last_step: bool = false => Typed,
    }
}

settings! {
    /// CoLaR (Tan et al. 2025): the chain of thought in compressed slots, which a head of its own predicts.
    pub struct Colar {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Instead of `steps`: passes over the data.
        pub epochs: f64 = 0.0 => NotNegative,
        pub batch: usize = 256 => Count(1, BATCH),
        pub learning_rate: f64 = 1e-4 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        /// r is drawn from these for each sample and step: tokens of a slot.
        pub factors: Vec<usize> = vec![1, 2, 3, 4, 5] => Each(&Count(1, POSITIONS)),
        /// Width of the head inside.
        pub width: usize = 2048 => Count(1, WIDTH),
        /// Weight of the head's loss.
        pub slots: f64 = 1.0 => NotNegative,
        /// Reward of a nat of the head's entropy.
        pub entropy: f64 = 0.0 => NotNegative,
        /// Which slot is the smaller one where the chain does not divide by r.
        pub short: Short = Short::Last => Typed,
        /// The head learns to close too: after the last slot it predicts the embedding of what ends thinking.
        pub closing: bool = true => Typed,
        /// The learning rate falls as a cosine (ours); otherwise it is constant.
        pub cosine: bool = false => Typed,
        /// Latents at most.
        pub limit: usize = 64 => Count(1, POSITIONS),
    }
}

/// An end of a chain of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Short {
    First,
    #[default]
    Last,
}

settings! {
    /// SwiReasoning (Shi et al. 2026), training-free: on the checkpoint of `base`.
    pub struct SwiReasoning {
        /// Tokens of text before a block may open again.
        pub window: usize = 512 => Count(0, POSITIONS),
        /// Blocks of a response at most (ours); 0: any number.
        pub budget: usize = 0 => Count(0, POSITIONS),
        /// After so many changes from latents to text thinking is ended (`max_switch_count` of the public code); 0: never.
        pub switches: usize = 0 => Count(0, POSITIONS),
        /// Where the token drawn is a digit, a letter or an operator it is fed itself (`math_ids_tensor` of the public runs).
        pub symbols: bool = true => Typed,
    }
}

settings! {
    /// Soft-Thinking (Zhang et al. 2025), training-free: on the checkpoint of `base`.
    pub struct SoftThinking {
        /// Tokens that are mixed at most.
        pub top_k: usize = 10 => Count(1, POSITIONS),
        /// Of these only the first that have this probability together; 1 keeps all.
        pub top_p: f64 = 0.95 => PositiveShare,
        pub temperature: f64 = 0.6 => Positive,
        /// Nats below which the model counts as certain.
        pub certain: f64 = 0.01 => NotNegative,
        /// Positions in a row at which it must be certain to go over to text; 0 never.
        pub patience: usize = 256 => Count(0, POSITIONS),
        /// `soft_grpo`'s τ, the temperature of the Gumbel-softmax that draws its mixtures.
        pub gumbel: f64 = 0.1 => NotNegative,
        /// `soft_grpo`'s log-density of a mixture: `mean`, the public code's, or `sum`, the equation's.
        pub density: Density = Density::Mean => Typed,
    }
}

settings! {
    /// HRPO (Yue et al. 2025): text whose tokens a gate mixes with states, trained by GRPO from the checkpoint of `base`. Steps, group,
    /// rate, temperature and reward are those of `grpo`.
    pub struct Hrpo {
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

settings! {
    /// Latent-SFT (Deng et al. 2026): the chain of thought as superpositions of the vocabulary. The authors train each of two stages for
    /// tens of passes over the data, at 1e-4 and 3e-4 with LoRA.
    pub struct LatentSft {
        /// Steps of the first stage, in which an encoder learns to compress the chain, and the model to read what it makes.
        pub chain_steps: usize = 0 => Count(0, STEPS),
        /// Steps of the second stage, in which the model learns to write superpositions itself.
        pub steps: usize = 0 => Count(0, STEPS),
        pub batch: usize = 512 => Count(1, BATCH),
        pub learning_rate: f64 = 3e-4 => Positive,
        pub warmup: usize = 0 => Count(0, STEPS),
        /// The learning rate falls as a cosine in the second stage; otherwise it is constant.
        pub cosine: bool = true => Typed,
        /// Tokens of the chain that one latent stands for (`compression_rate` of the public code).
        pub compression: usize = 2 => Count(1, POSITIONS),
        /// Tokens of a superposition (`topk_interpolation` of the public code).
        pub top_k: usize = 10 => Count(1, POSITIONS),
        /// Scale of the Gumbel noise on the superpositions that are learnt; 0 is none.
        pub noise: f64 = 1.0 => NotNegative,
        /// Weight of the divergence from them.
        pub kl: f64 = 1.0 => NotNegative,
        /// Latents at most.
        pub limit: usize = 64 => Count(1, POSITIONS),
    }
}

settings! {
    /// Latent-GRPO (Deng et al. 2026): the checkpoint of `latent_sft`, trained by GRPO. Steps, group, rate, temperature and reward are those
    /// of `grpo`.
    pub struct LatentGrpo {
        /// τ, the temperature of the Gumbel-softmax that weighs the tokens of a mixture.
        pub gumbel: f64 = 1.0 => Positive,
        /// A mixture's tokens are drawn from those that have this probability together.
        pub top_p: f64 = 0.95 => PositiveShare,
        /// What rollouts that ran into a limit teach: `mask` (nothing), `exclude` (nothing, and the others are compared without them) or
        /// `learn` (as the others).
        pub invalid: Invalid = Invalid::Mask => Typed,
        /// In a group with right answers, the first latent is learnt from the most probable of these alone.
        pub first: bool = true => Typed,
        /// The embeddings are not trained, nor a head that is tied to them.
        pub freeze_embeddings: bool = true => Typed,
        /// Weight of the KL term; instead of `grpo.beta`.
        pub beta: f64 = 0.0 => NotNegative,
    }
}
