//! What the settings of a recipe must satisfy together, with the name of what does not; each alone: `ranges`.

use anyhow::{Result, bail, ensure};

use super::{Compute, FromStage, Hrpo, Recipe, ReplayMode, Strongest, ranges};
use crate::latent::Exit;
use crate::latent::reasoning::MOST_LATENTS;
use crate::text::sources::Generations;

/// More problems than anyone has, and few enough to be held.
pub const MOST_ROWS: usize = 10_000_000;

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
        ranges::check(self)?;
        if let Some(task) = &self.task {
            task.check()?;
        }
        self.annotate.check()?;
        for (key, n) in [
            ("evaluation.k_cap", self.evaluation.k_cap),
            ("latent.k_max", self.latent.k_max),
            ("coconut.c x coconut.max_stage", self.coconut.c.saturating_mul(self.coconut.max_stage)),
            ("codi.latents", self.codi.latents),
            ("colar.limit", self.colar.limit),
            ("latent_sft.limit", self.latent_sft.limit),
            ("pause.tokens", self.pause.tokens),
        ] {
            ensure!(n <= MOST_LATENTS, "{key} must be at most {MOST_LATENTS} (latents of one block), found {n}");
        }
        ensure!(
            self.evaluation.k_min <= self.evaluation.k_cap && self.grpo.k_min <= self.evaluation.k_cap,
            "evaluation.k_min and grpo.k_min must not exceed evaluation.k_cap ({})",
            self.evaluation.k_cap
        );
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
        self.check_optimizer()?;
        ensure!(!self.colar.factors.is_empty(), "colar.factors must name numbers of tokens, found none");
        let Hrpo { r_min, r_max, .. } = self.hrpo;
        ensure!(
            0.0 < r_min && r_min <= r_max,
            "hrpo.r_min must be above 0 and at most hrpo.r_max = {r_max}, found {r_min}"
        );
        self.check_methods()?;
        self.check_unused()?;
        self.check_latents()
    }

    /// How many latents stand for how much text.
    fn check_latents(&self) -> Result<()> {
        let c = self.latent.c;
        for (i, stage) in self.latent.stages.iter().enumerate() {
            let own = stage.c.unwrap_or(c);
            ensure!(
                own <= c,
                "latent.stages[{i}].c must be at most latent.c = {c} (annotate.spans.latent_cap counts with \
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
            self.grpo.early_stop_window != 1,
            "grpo.early_stop_window must be 0 (never stops) or at least 2 (it compares means), found 1"
        );
        ensure!(
            self.grpo.checkpoint_every == 0
                || self.grpo.replay == ReplayMode::FullBptt
                || self.methods.iter().any(|method| ["soft_grpo", "latent_grpo"].contains(&method.as_str())),
            "grpo.checkpoint_every = {} does nothing where grpo.replay is not full_bptt: set grpo.replay=full_bptt, or leave it out",
            self.grpo.checkpoint_every
        );
        ensure!(
            !self.grpo.continue_term || self.blocks.exit_in_loss && self.blocks.exit == Exit::Sampled,
            "grpo.continue_term = true learns the choice to stay in a block as a draw; set blocks.exit = \"sampled\" and \
             blocks.exit_in_loss = true, or leave it out"
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
                FromStage::Named(Strongest::Best) => ensure!(
                    self.task.is_some(),
                    "grpo.from_stage = \"best\" chooses on validation problems, which generated tasks alone have: name a stage"
                ),
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
        // A stage told in epochs has as many steps as its data says.
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
            o.dtype != Compute::StoredBf16,
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

    /// Every method that is named has something to do.
    fn check_methods(&self) -> Result<()> {
        for (key, methods, there) in [
            ("no_cot.steps must be at least 1", ["no_cot", "pause"].as_slice(), self.no_cot.steps > 0),
            ("icot.steps or icot.epochs must be above 0", &["icot"], self.icot.steps > 0 || self.icot.epochs > 0.0),
            ("latent.stages must not be empty", &["switch", "switch_brevity"], !self.latent.stages.is_empty()),
            (
                "coconut.stages must not be empty, or coconut.epochs above 0",
                &["coconut", "coconut_pause", "coconut_no_thought", "coconut_no_curriculum", "simcot"],
                !self.coconut.schedule().is_empty(),
            ),
            (
                "codi.steps or codi.epochs must be above 0",
                &["codi", "codi_fixed"],
                self.codi.steps > 0 || self.codi.epochs > 0.0,
            ),
            (
                "colar.steps or colar.epochs must be above 0",
                &["colar"],
                self.colar.steps > 0 || self.colar.epochs > 0.0,
            ),
            ("latent_sft.steps must be at least 1", &["latent_sft", "latent_grpo"], self.latent_sft.steps > 0),
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
