//! What a recipe must satisfy, with the name of what does not.

use anyhow::{Result, ensure};

use super::Recipe;

impl Recipe {
    /// # Errors
    /// Settings that contradict each other, by name.
    pub fn check(&self) -> Result<()> {
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
        ensure!(self.data.rows > 0, "data.rows must be at least 1, found 0");
        if let Some(task) = &self.task {
            task.check()?;
        }
        self.annotate.check()?;
        for (key, share) in [
            ("boundary.untagged", self.boundary.untagged),
            ("latent.untagged", self.latent.untagged),
            ("latent.keep_text", self.latent.keep_text),
            ("latent.smoothing", self.latent.smoothing),
            ("base.annotator_accuracy", self.base.annotator_accuracy),
        ] {
            ensure!((0.0..=1.0).contains(&share), "{key} must be between 0 and 1, found {share}");
        }
        for (key, n) in [
            ("base.batch", self.base.batch),
            ("boundary.batch", self.boundary.batch),
            ("latent.batch", self.latent.batch),
            ("latent.c", self.latent.c),
            ("latent.k_max", self.latent.k_max),
            ("grpo.questions", self.grpo.questions),
            ("grpo.inner_epochs", self.grpo.inner_epochs),
            ("optimizer.accumulate", self.optimizer.accumulate),
            ("evaluation.problems", self.evaluation.problems),
            ("evaluation.batch", self.evaluation.batch),
            ("evaluation.max_new_tokens", self.evaluation.max_new_tokens),
            ("evaluation.k_cap", self.evaluation.k_cap),
            ("checkpoint.every", self.checkpoint.every),
        ] {
            ensure!(n > 0, "{key} must be at least 1, found 0");
        }
        ensure!(
            self.grpo.group >= 2,
            "grpo.group must be at least 2 (a group's std needs two), found {}",
            self.grpo.group
        );
        ensure!(
            self.evaluation.k_min <= self.evaluation.k_cap && self.grpo.k_min <= self.evaluation.k_cap,
            "evaluation.k_min and grpo.k_min must not exceed evaluation.k_cap ({})",
            self.evaluation.k_cap
        );
        ensure!(self.grpo.temperature > 0.0, "grpo.temperature must be above 0, found {}", self.grpo.temperature);
        for (key, lr) in [
            ("base.learning_rate", self.base.learning_rate),
            ("boundary.learning_rate", self.boundary.learning_rate),
            ("latent.learning_rate", self.latent.learning_rate),
            ("grpo.learning_rate", self.grpo.learning_rate),
        ] {
            ensure!(lr.is_finite() && lr > 0.0, "{key} must be a positive number, found {lr}");
        }
        for (i, stage) in self.latent.stages.iter().enumerate() {
            ensure!(
                (stage.steps > 0) != (stage.epochs > 0.0),
                "latent.stages[{i}]: give one of `steps` and `epochs`, found steps = {}, epochs = {}",
                stage.steps,
                stage.epochs
            );
        }
        ensure!(
            self.no_cot.steps > 0 || !self.methods.iter().any(|m| m == "no_cot"),
            "no_cot.steps must be at least 1 where `methods` has no_cot, found 0"
        );
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
}
