//! The model card of an exported checkpoint: Hugging Face's `README.md`. A function of recipe, manifest and step, so that a resumed run
//! writes the same bytes. It names no folder of this machine, because people publish checkpoints.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Run, inputs};
use crate::latent::Reasoning;
use crate::latent::source::LatentSource;
use crate::method::Recipe;
use crate::store::certificate;
use crate::train::state::TrainingHistory;

/// One checkpoint.
pub(super) struct ModelCard<'a> {
    pub run: &'a Run,
    /// Phase, and the export's name if it is not the finished checkpoint.
    pub name: String,
    pub reasoning: &'a Reasoning,
    pub trained: TrainingHistory,
    /// Whether it is a PEFT folder.
    pub is_adapter: bool,
}

impl ModelCard<'_> {
    pub fn markdown(&self) -> Result<String> {
        let recipe = without_folders(&self.run.recipe);
        let title = format!("{}/{}", recipe.name, self.name);
        Ok(format!(
            "---\n{}---\n\n# {title}\n\n{}\n## Load\n\n{}\n## Certificate\n\n{}\n## Recipe\n\n`train --preset recipe.toml` with this file \
             trains it again.\n\n```toml\n{}```\n",
            self.front_matter(&recipe),
            self.facts(&recipe)?,
            self.loading(&recipe),
            certificate("Not made yet: `probe card` on this folder writes it here.\n"),
            toml::to_string(&recipe).context("writing the recipe as TOML")?
        ))
    }

    /// YAML of the hub. A JSON string is a YAML string.
    fn front_matter(&self, recipe: &Recipe) -> String {
        let mut lines = vec![format!("library_name: {}", if self.is_adapter { "peft" } else { "transformers" })];
        lines.push("pipeline_tag: text-generation".into());
        lines.push(format!("tags: [switchyard, latent-reasoning, {}]", Value::from(self.reasoning.method.as_str())));
        // The hub accepts its own ids only.
        let base = self.run.recipe.pretrained.as_ref().filter(|name| !Path::new(name).exists());
        if let (Some(_), Some(base)) = (base, &recipe.pretrained) {
            let id: Vec<&str> = base.split('@').next().unwrap_or_default().split('/').take(2).collect();
            lines.push(format!("base_model: {}", Value::from(id.join("/"))));
        }
        lines.extend(self.run.license.as_ref().map(|license| format!("license: {}", Value::from(license.as_str()))));
        lines.into_iter().map(|line| line + "\n").collect()
    }

    fn facts(&self, recipe: &Recipe) -> Result<String> {
        let manifest = inputs::read_manifest(&self.run.root, &[])?.unwrap_or_default();
        let of = |key: &str| match &manifest[key] {
            Value::Null => "unknown".to_owned(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let base = match (&recipe.pretrained, &self.run.license) {
            (None, _) => "none: trained from random weights".to_owned(),
            (Some(base), Some(license)) => format!("{base}, licence {license}"),
            (Some(base), None) => format!("{base}, licence unknown"),
        };
        let kind = if recipe.task.is_some() { "generated task" } else { "file" };
        let rows = [
            (
                "data",
                format!(
                    "{} ({kind}): {} training problems, SHA-256 {}",
                    self.run.recipe.dataset(),
                    of("train_rows"),
                    of("data_sha256")
                ),
            ),
            ("held out", format!("{} problems, SHA-256 {}", of("test_rows"), of("test_sha256"))),
            ("base", base),
            ("method", format!("{}, latent input `{}`", self.reasoning.method, self.reasoning.source.name())),
            ("training", format!("{} steps, {} positions", self.trained.steps, self.trained.positions)),
            ("seed", of("seed")),
            ("commit", of("commit")),
            (
                "version",
                format!("Switchyard {}, Burn {}, {}, {}", of("version"), of("burn"), of("dtype"), of("device")),
            ),
        ];
        let rows: String =
            rows.iter().map(|(name, value)| format!("| {name} | {} |\n", value.replace('|', "\\|"))).collect();
        Ok(format!("| | |\n| --- | --- |\n{rows}"))
    }

    fn loading(&self, recipe: &Recipe) -> String {
        let base = recipe.pretrained.as_deref().unwrap_or_default();
        let base = match base.ends_with(".gguf") {
            true => format!("\"FOLDER OF THE BASE\", gguf_file=\"{base}\""),
            false => format!("\"{base}\""),
        };
        let model = match self.is_adapter {
            false => "model = AutoModelForCausalLM.from_pretrained(\"FOLDER\")\n".to_owned(),
            true => format!(
                "from peft import PeftModel\nmodel = AutoModelForCausalLM.from_pretrained({base})\n\
                 model.resize_token_embeddings({}, mean_resizing=False)\nmodel = PeftModel.from_pretrained(model, \"FOLDER\")\n",
                self.run.corpus.vocabulary.size()
            ),
        };
        let latents = match self.reasoning.has_blocks() {
            true => {
                "`generate` of transformers writes text only. With latent steps, as `reasoning.json` describes them: `probe generate --model FOLDER --prompt …`.\n"
            }
            false => "",
        };
        format!(
            "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n{model}\
             tokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")\n```\n\n{latents}"
        )
    }
}

/// The recipe with the last part of each path.
fn without_folders(recipe: &Recipe) -> Recipe {
    let mut recipe = recipe.clone();
    let shared = &mut recipe.shared;
    let last = |path: &Path| path.file_name().map_or_else(|| path.to_path_buf(), PathBuf::from);
    for path in [&mut shared.data.path, &mut shared.data.test_path, &mut shared.data.grpo_path].into_iter().flatten() {
        *path = last(path);
    }
    for name in [&mut shared.pretrained, &mut shared.adapter].into_iter().flatten() {
        if Path::new(name).exists() {
            *name = last(Path::new(name)).display().to_string();
        }
    }
    recipe
}
