//! What a recipe must satisfy, with the name of what does not.

use anyhow::{Result, bail, ensure};

use super::{Compute, Icot, Recipe};

/// More problems than anyone has, and few enough to be held.
pub(crate) const MOST_ROWS: usize = 10_000_000;

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
        check_name(&self.name)?;
        for (key, n) in [("data.rows", self.data.rows), ("evaluation.problems", self.evaluation.problems)] {
            ensure!((1..=MOST_ROWS).contains(&n), "{key} must be from 1 to {MOST_ROWS}, found {n}");
        }
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
            ("coconut.smoothing", self.coconut.smoothing),
        ] {
            ensure!((0.0..=1.0).contains(&share), "{key} must be between 0 and 1, found {share}");
        }
        for (key, n) in [
            ("base.batch", self.base.batch),
            ("boundary.batch", self.boundary.batch),
            ("latent.batch", self.latent.batch),
            ("latent.k_max", self.latent.k_max),
            ("icot.batch", self.icot.batch),
            ("coconut.batch", self.coconut.batch),
            ("coconut.c", self.coconut.c),
            ("coconut.max_stage", self.coconut.max_stage),
            ("codi.batch", self.codi.batch),
            ("codi.latents", self.codi.latents),
            ("colar.batch", self.colar.batch),
            ("colar.width", self.colar.width),
            ("colar.limit", self.colar.limit),
            ("soft_thinking.top_k", self.soft_thinking.top_k),
            ("grpo.questions", self.grpo.questions),
            ("grpo.inner_epochs", self.grpo.inner_epochs),
            ("optimizer.accumulate", self.optimizer.accumulate),
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
        ensure!(
            (0.0..1.0).contains(&self.grpo.dropout_rollouts),
            "grpo.dropout_rollouts must be at least 0 and below 1, found {}",
            self.grpo.dropout_rollouts
        );
        for (key, found) in [("grpo.gumbel", self.grpo.gumbel), ("soft_thinking.gumbel", self.soft_thinking.gumbel)] {
            ensure!(found.is_finite() && found >= 0.0, "{key} must be 0 or above, found {found}");
        }
        ensure!(self.grpo.temperature > 0.0, "grpo.temperature must be above 0, found {}", self.grpo.temperature);
        for (key, lr) in [
            ("base.learning_rate", self.base.learning_rate),
            ("boundary.learning_rate", self.boundary.learning_rate),
            ("latent.learning_rate", self.latent.learning_rate),
            ("icot.learning_rate", self.icot.learning_rate),
            ("coconut.learning_rate", self.coconut.learning_rate),
            ("codi.learning_rate", self.codi.learning_rate),
            ("colar.learning_rate", self.colar.learning_rate),
            ("grpo.learning_rate", self.grpo.learning_rate),
        ] {
            ensure!(lr.is_finite() && lr > 0.0, "{key} must be a positive number, found {lr}");
        }
        for (key, stages) in [("latent", &self.latent.stages), ("coconut", &self.coconut.stages)] {
            for (i, stage) in stages.iter().enumerate() {
                ensure!(
                    (stage.steps > 0) != (stage.epochs > 0.0),
                    "{key}.stages[{i}]: give one of `steps` and `epochs`, found steps = {}, epochs = {}",
                    stage.steps,
                    stage.epochs
                );
            }
        }
        let Icot { remove_per_epoch, smoothing, .. } = self.icot;
        ensure!(
            remove_per_epoch.is_finite() && remove_per_epoch >= 0.0,
            "icot.remove_per_epoch must be 0 or above, found {remove_per_epoch}"
        );
        self.check_optimizer()?;
        ensure!(smoothing > 0.0, "icot.smoothing (λ) must be above 0, `inf` for none, found {smoothing}");
        let temperature = self.soft_thinking.temperature;
        ensure!(temperature > 0.0, "soft_thinking.temperature must be above 0, found {temperature}");
        let factors = &self.colar.factors;
        ensure!(
            !factors.is_empty() && !factors.contains(&0),
            "colar.factors must name numbers of tokens, at least 1 each, found {factors:?}"
        );
        for (key, weight) in [
            ("codi.teacher", self.codi.teacher),
            ("codi.distance", self.codi.distance),
            ("colar.slots", self.colar.slots),
            ("colar.entropy", self.colar.entropy),
        ] {
            ensure!(weight.is_finite() && weight >= 0.0, "{key} must be 0 or above, found {weight}");
        }
        self.check_methods()?;
        self.check_unused()?;
        self.check_latents()
    }

    /// How many latents stand for how much text.
    fn check_latents(&self) -> Result<()> {
        let c = self.latent.c;
        ensure!(c.is_finite() && c > 0.0, "latent.c must be a number above 0, found {c}");
        for (i, stage) in self.latent.stages.iter().enumerate() {
            let own = stage.c.unwrap_or(c);
            ensure!(
                own > 0.0 && own <= c,
                "latent.stages[{i}].c must be above 0 and at most latent.c = {c} (annotate.spans.latent_cap counts with \
                 that), found {own}"
            );
        }
        if let Some(i) = self.coconut.stages.iter().position(|stage| stage.c.is_some()) {
            bail!("coconut.stages[{i}].c: only latent.stages have a c of their own; coconut.c counts latents a step");
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

    /// Settings that would do nothing, or not what they say.
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
        let reward = &self.grpo.reward;
        ensure!(
            reward.t_lo < reward.t_hi,
            "grpo.reward.t_lo must be below grpo.reward.t_hi, found {} and {}",
            reward.t_lo,
            reward.t_hi
        );
        // A stage told in epochs has as many steps as its data says.
        let last = self.latent.stages.last().map_or(0, |stage| stage.steps);
        ensure!(
            last == 0 || self.grpo.from_step <= last,
            "grpo.from_step must not exceed the steps of the last of latent.stages ({last}), found {}",
            self.grpo.from_step
        );
        Ok(())
    }

    fn check_optimizer(&self) -> Result<()> {
        let o = &self.optimizer;
        ensure!(
            o.dtype != Compute::StoredBf16,
            "optimizer.dtype (--dtype) {}: is for models that are examined; train with stored, f32 or bf16",
            o.dtype.name()
        );
        ensure!(
            o.dtype != Compute::Stored || self.lora.is_some(),
            "optimizer.dtype (--dtype) stored: only LoRA factors are trained over weights that stay as they are stored, and this recipe \
             has no [lora]; use f32 or bf16"
        );
        for (key, beta) in [("optimizer.beta_1", o.beta_1), ("optimizer.beta_2", o.beta_2)] {
            ensure!((0.0..1.0).contains(&beta), "{key} must be at least 0 and below 1, found {beta}");
        }
        for (key, value) in [("optimizer.clip", o.clip), ("optimizer.epsilon", o.epsilon)] {
            ensure!(value.is_finite() && value > 0.0, "{key} must be a positive number, found {value}");
        }
        let decay = o.weight_decay;
        ensure!(decay.is_finite() && decay >= 0.0, "optimizer.weight_decay must be at least 0, found {decay}");
        Ok(())
    }

    /// Every method that is named has something to do.
    fn check_methods(&self) -> Result<()> {
        for (key, methods, there) in [
            ("no_cot.steps must be at least 1", ["no_cot", "pause"].as_slice(), self.no_cot.steps > 0),
            ("icot.steps or icot.epochs must be above 0", &["icot"], self.icot.steps > 0 || self.icot.epochs > 0.0),
            ("latent.stages must not be empty", &["switch", "switch_brevity"], !self.latent.stages.is_empty()),
            ("coconut.stages must not be empty", &["coconut"], !self.coconut.stages.is_empty()),
            ("codi.steps or codi.epochs must be above 0", &["codi"], self.codi.steps > 0 || self.codi.epochs > 0.0),
            (
                "colar.steps or colar.epochs must be above 0",
                &["colar"],
                self.colar.steps > 0 || self.colar.epochs > 0.0,
            ),
        ] {
            let named = methods.iter().find(|name| self.methods.iter().any(|m| m == *name));
            if let (false, Some(name)) = (there, named) {
                bail!("{key} where `methods` has {name}: set it, or leave the method out");
            }
        }
        Ok(())
    }
}

/// A recipe's name is that of its folders.
fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    ensure!(
        !name.is_empty() && !name.starts_with('.') && name.chars().all(plain),
        "name = {name:?}: a recipe's name must be letters, digits, '-', '_' and '.', and not begin with '.'"
    );
    Ok(())
}
