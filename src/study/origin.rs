//! Provenance of a study's records besides settings: hashes of weights, adapter and data, float type, decoding, grader.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Study;
use crate::latent::Reasoning;
use crate::machine::Compute;
use crate::recipe::{Evaluation, Shared};
use crate::store::{ORIGIN, hex, sha256};
use crate::tasks::Split;
use crate::text::{Part, data_files};

impl Study {
    /// Provenance by the names in [`crate::store::ORIGIN`].
    pub fn origin(&self) -> Result<Map<String, Value>> {
        let Evaluation { k_min, k_cap, max_new_tokens, .. } = self.recipe.evaluation;
        let template = self.corpus.template.described()?;
        let Reasoning { source, blocks, .. } = &self.reasoning;
        let parts = [
            json!(sha256(&weight_files(&self.source)?)?),
            json!(self.adapter.clone().map(|dir| sha256(&weight_files(&[dir])?)).transpose()?),
            json!(Compute::new(&self.model).name()),
            json!({
                "k_min": k_min,
                "k_cap": k_cap,
                "max_new_tokens": max_new_tokens,
                "template": template,
                "source": source,
                "blocks": blocks,
            }),
            json!(self.data_hash()?),
            json!(self.corpus.grader()),
        ];
        Ok(ORIGIN.into_iter().map(str::to_owned).zip(parts).collect())
    }

    /// Hash of the problem file with its key names, or of the first problems of a generated task.
    fn data_hash(&self) -> Result<String> {
        let Shared { task, data, seed, .. } = &*self.recipe;
        let Some(task) = task else {
            let file = data.test_path.as_ref().or(data.path.as_ref()).context("data.path is missing")?;
            let hash = sha256(&data_files(file, Part::Test)?)?;
            return Ok(data.fields.as_ref().map_or(hash.clone(), |fields| format!("{hash} {fields:?}")));
        };
        let mut hash = Sha256::new();
        for problem in task.rows(Split::Test, *seed, 0..16)? {
            for text in [&problem.id, &problem.question, &problem.solution, &problem.answer] {
                hash.update(text);
            }
        }
        Ok(hex(&hash.finalize()))
    }
}

/// The given files; for a folder its `.safetensors`, sorted by name.
fn weight_files(sources: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = vec![];
    for source in sources {
        if !source.is_dir() {
            files.push(source.clone());
            continue;
        }
        let read = std::fs::read_dir(source).with_context(|| format!("{}: cannot read", source.display()))?;
        let paths = read.flatten().map(|entry| entry.path());
        let mut own: Vec<PathBuf> = paths.filter(|p| p.extension().is_some_and(|e| e == "safetensors")).collect();
        own.sort();
        files.extend(own);
    }
    Ok(files)
}
