//! Checks of combinations of a recipe's settings; `ranges` checks each setting alone.

use anyhow::{Context, Result, bail, ensure};

use super::{Compute, FromStage, Grpo, ReplayMode, Shared, Stage, Strongest};
use crate::latent::reasoning::MOST_LATENTS;
use crate::latent::{Exit, Source};
use crate::text::sources::Generations;

/// Upper bound on problems: more than any data set has, and few enough for memory.
pub const MOST_ROWS: usize = 10_000_000;

impl Shared {
    /// # Errors
    /// Settings that contradict each other, by name.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.task.is_some() != self.data.path.is_some(),
            "exactly one of `task` and `data.path` (--data FILE) must be given, found {}",
            if self.task.is_some() { "both" } else { "neither" }
        );
        ensure!(
            self.model.is_some() != self.pretrained.is_some(),
            "exactly one of `model` (train from nothing) and `pretrained` (--model) must be given, found {}",
            if self.model.is_some() { "both" } else { "neither" }
        );
        ensure!(
            self.pretrained.is_some() || self.base.steps > 0,
            "base.steps must be above 0 without a pretrained model"
        );
        check_name(&self.name)?;
        if let Some(task) = &self.task {
            task.check()?;
        }
        self.annotate.check()?;
        fits("evaluation.k_cap", self.evaluation.k_cap)?;
        fits("latent.k_max", self.latent.k_max)?;
        ensure!(
            self.evaluation.k_min <= self.evaluation.k_cap && self.grpo.k_min <= self.evaluation.k_cap,
            "evaluation.k_min and grpo.k_min must not exceed evaluation.k_cap ({})",
            self.evaluation.k_cap
        );
        Stage::check("latent", &self.latent.stages)?;
        self.check_optimizer()?;
        self.check_unused()?;
        self.check_latents()
    }

    /// Latents per token, and their bounds.
    fn check_latents(&self) -> Result<()> {
        let source = self.latent.source;
        source.check().context("latent.source")?;
        ensure!(
            matches!(source, Source::HiddenState | Source::ScaledState { .. } | Source::VocabularyMixture { .. }),
            "latent.source must be hidden_state, scaled_state or vocabulary_mixture: {source:?} belongs to another method"
        );
        let c = self.latent.c;
        for (i, stage) in self.latent.stages.iter().enumerate() {
            let own = stage.c.unwrap_or(c);
            ensure!(
                own <= c,
                "latent.stages[{i}].c must be at most latent.c = {c} (annotate.spans.latent_cap counts with \
                 that), found {own}"
            );
        }
        let spans = &self.annotate.spans;
        ensure!(
            spans.latents_per_token == self.latent.c && spans.max_stage == self.latent.k_max,
            "annotate.spans (latents_per_token {}, max_stage {}) contradicts latent (c {}, k_max {})",
            spans.latents_per_token,
            spans.max_stage,
            self.latent.c,
            self.latent.k_max
        );
        Ok(())
    }

    /// Settings that would have no effect, or not the intended one.
    fn check_unused(&self) -> Result<()> {
        ensure!(
            self.lora.is_none() || self.pretrained.is_some(),
            "[lora] is for a pretrained model (--model); this recipe trains one from nothing, where every weight is trained: \
             leave [lora] out"
        );
        if let Some(lora) = self.lora.as_ref().filter(|lora| lora.only_new_rows) {
            ensure!(
                lora.train_embeddings && self.optimizer.weight_decay == 0.0,
                "lora.only_new_rows needs lora.train_embeddings = true and optimizer.weight_decay = 0 (weight decay would shrink \
                 the rows that are not learnt), found {} and {}",
                lora.train_embeddings,
                self.optimizer.weight_decay
            );
        }
        ensure!(
            self.task.is_none() || !self.data.budgets,
            "data.budgets is for problems of a file; a generated task says budgets or does not (family = \"adaptive\" does): leave it out"
        );
        let of_files = [
            ("test_path", self.data.test_path.is_some()),
            ("fields", self.data.fields.is_some()),
            ("test_fields", self.data.test_fields.is_some()),
            ("generations", self.data.generations != Generations::default()),
            ("shuffle", self.data.shuffle),
            ("grpo_path", self.data.grpo_path.is_some()),
            ("grader", self.data.grader.is_some()),
        ];
        if let Some((key, _)) = of_files.iter().find(|(_, set)| self.task.is_some() && *set) {
            bail!(
                "data.{key} is for problems of a file (data.path, --data), and this recipe's are generated: leave it out"
            );
        }
        ensure!(
            self.data.test_fields.is_none() || self.data.test_path.is_some(),
            "data.test_fields (--test-field) names keys of data.test_path, which names no file: leave it out, or name one"
        );
        ensure!(
            self.seed_token.is_none() || self.pretrained.is_some(),
            "seed_token names a token of a pretrained model (--model), and this recipe trains one from nothing: leave it out"
        );
        ensure!(
            self.seed_std.is_none() || (self.pretrained.is_some() && self.seed_token.is_none()),
            "seed_std draws the rows of a pretrained model's new tokens (--model) that seed_token would copy: leave it out"
        );
        ensure!(
            self.grpo.early_stop_window != 1,
            "grpo.early_stop_window must be 0 (never stops) or at least 2 (it compares means), found 1"
        );
        let Grpo { latent_noise, gumbel, replay, text_rollouts, .. } = self.grpo;
        let source = self.latent.source;
        ensure!(
            latent_noise == 0.0 && gumbel == 0.0 || replay == ReplayMode::FullBptt && !text_rollouts,
            "grpo.latent_noise and grpo.gumbel make latents actions of the policy, whose gradient needs grpo.replay = \"full_bptt\" and \
             rollouts with blocks (grpo.text_rollouts = false)"
        );
        ensure!(
            latent_noise == 0.0 || source == Source::HiddenState,
            "grpo.latent_noise is noise on hidden states, and latent.source is {source:?}: leave one out"
        );
        ensure!(
            gumbel == 0.0 || matches!(source, Source::VocabularyMixture { .. }),
            "grpo.gumbel is noise on mixtures of the vocabulary, and latent.source is {source:?}: leave it out, or set \
             latent.source={{kind=\"vocabulary_mixture\",top_k=8,temperature=1}}"
        );
        ensure!(
            !self.grpo.continue_term
                || self.blocks.exit_in_loss && self.blocks.exit == Exit::Sampled && !self.grpo.text_rollouts,
            "grpo.continue_term = true learns the choice to stay in a block as a draw; set blocks.exit = \"sampled\", \
             blocks.exit_in_loss = true and grpo.text_rollouts = false, or leave it out"
        );
        ensure!(
            self.adapter.is_none() || self.pretrained.is_some(),
            "adapter goes over a pretrained model (--model), and this recipe trains one from nothing: leave it out"
        );
        self.grpo.reward.check()?;
        if let Some(start) = self.grpo.from_stage {
            ensure!(
                self.grpo.from_step == 0,
                "grpo.from_stage and grpo.from_step = {} both say where GRPO starts: leave one out",
                self.grpo.from_step
            );
            let ks: Vec<usize> = self.latent.stages.iter().map(|stage| stage.k).collect();
            match start {
                FromStage::Named(Strongest::Best) => {
                    ensure!(
                        self.task.is_some(),
                        "grpo.from_stage = \"best\" chooses on validation problems, which generated tasks alone have: name a stage"
                    );
                    ensure!(
                        self.evaluation.stages,
                        "grpo.from_stage = \"best\" chooses among evaluated stages: set evaluation.stages=true, or name a stage"
                    );
                }
                FromStage::Stage(k) => ensure!(
                    ks.contains(&k),
                    "grpo.from_stage = {k} is not the k of one of latent.stages, which are {ks:?}"
                ),
            }
        }
        let reward = &self.grpo.reward;
        ensure!(
            reward.brevity == 0.0 || reward.lengths.is_some() || reward.t_lo < self.evaluation.max_new_tokens,
            "grpo.reward.t_lo = {} is not below evaluation.max_new_tokens = {}: the term `brevity` would pay every right answer with a \
             block in full; set grpo.reward.lengths=[0.42, 1.04] (multiples of the mean answer) or a smaller t_lo",
            reward.t_lo,
            self.evaluation.max_new_tokens
        );
        // The data decides the steps of a stage given in epochs.
        let last = self.latent.stages.last().map_or(0, |stage| stage.steps);
        for (key, step) in std::iter::once(("grpo.from_step", &self.grpo.from_step))
            .chain(self.latent.keep_steps.iter().map(|step| ("latent.keep_steps", step)))
        {
            ensure!(
                last == 0 || *step <= last,
                "{key} must not exceed the steps of the last of latent.stages ({last}), found {step}"
            );
        }
        Ok(())
    }

    fn check_optimizer(&self) -> Result<()> {
        let o = &self.optimizer;
        ensure!(
            !matches!(o.dtype, Compute::StoredBf16 | Compute::StoredQ8),
            "optimizer.dtype (--dtype) {}: is for models that are examined; train with stored, f32 or bf16",
            o.dtype.name()
        );
        ensure!(
            o.dtype != Compute::Stored || self.lora.is_some(),
            "optimizer.dtype (--dtype) stored: only LoRA factors are trained over weights that stay as they are stored, and this recipe \
             has no [lora]; use f32 or bf16"
        );
        ensure!(
            o.dtype != Compute::Stored || !self.checkpoint.whole,
            "checkpoint.whole = true: weights that stay as they are stored (--dtype stored) are not written whole; use f32 or bf16"
        );
        Ok(())
    }
}

/// # Errors
/// More latents than a block may have.
pub(crate) fn fits(key: &str, latents: usize) -> Result<()> {
    ensure!(latents <= MOST_LATENTS, "{key} must be at most {MOST_LATENTS} (latents of one block), found {latents}");
    Ok(())
}

/// Checks that a recipe's name can be a folder's.
fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    ensure!(
        !name.is_empty() && !name.starts_with('.') && name.chars().all(plain),
        "name = {name:?}: a recipe's name must be letters, digits, '-', '_' and '.', and not begin with '.'"
    );
    Ok(())
}
