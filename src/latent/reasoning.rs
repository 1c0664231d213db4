//! How a checkpoint reasons: the input of latent positions, the rule that opens and closes blocks, and the trained block lengths. Stored
//! next to the weights, so that every program decodes a checkpoint as it was trained.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::controller::{Blocks, LearntRule};
use super::source::Source;
use crate::guard::read_text;

/// `reasoning.json` of a checkpoint folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    /// The method that trained it.
    pub method: String,
    pub source: Source,
    pub blocks: Blocks,
    /// Latent steps before an exit may be drawn, as evaluated in training.
    pub k_min: usize,
    /// Latent steps after which `</swi>` is forced, as evaluated in training.
    pub k_cap: usize,
    /// Block lengths in its last stage of training, ascending; empty if it had no blocks or they are unknown.
    #[serde(default)]
    pub trained_dwell: Vec<usize>,
}

/// Maximum latents of a block: each needs a forward and stores keys and values.
pub(crate) const MOST_LATENTS: usize = 1 << 16;

/// Its name in a checkpoint folder.
pub const FILE: &str = "reasoning.json";

impl Default for Reasoning {
    /// SWITCH as the paper decodes it; the default for a checkpoint without `reasoning.json`.
    fn default() -> Self {
        Self {
            method: "switch".into(),
            source: Source::HiddenState,
            blocks: Blocks::default(),
            k_min: 4,
            k_cap: 16,
            trained_dwell: vec![],
        }
    }
}

impl Reasoning {
    /// The rule of the paper's released code (method §9): blocks end by argmax, or after 256 steps.
    pub fn released() -> Self {
        Self { blocks: Blocks::Learnt(LearntRule::RELEASED), k_cap: 256, ..Self::default() }
    }

    /// Text only: no block is ever opened.
    pub fn text(method: &str) -> Self {
        Self { method: method.into(), blocks: Blocks::Never, ..Self::default() }
    }

    /// Reads the file of a checkpoint folder, if it has one.
    ///
    /// # Errors
    /// A file that cannot be read or parsed.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        let text = match read_text(&path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("{}: cannot read", path.display())),
        };
        let read: Self =
            serde_json::from_str(&text).with_context(|| format!("{}: not a reasoning file", path.display()))?;
        let what = || path.display();
        ensure!(
            read.k_cap >= 1 && read.k_min <= read.k_cap,
            "{}: k_min {} and k_cap {}: expected k_min <= k_cap and k_cap >= 1",
            what(),
            read.k_min,
            read.k_cap
        );
        let longest = read.blocks.longest(read.k_cap).unwrap_or(0).max(read.k_cap);
        ensure!(
            longest <= MOST_LATENTS,
            "{}: blocks of up to {longest} latents, at most {MOST_LATENTS} are decoded",
            what()
        );
        read.source.check().with_context(|| format!("{}", what()))?;
        Ok(Some(read))
    }

    /// Checks that a model with this many positions has room for the blocks; `place` names it in errors.
    ///
    /// # Errors
    /// Blocks that are longer than the model's longest text.
    pub(crate) fn check_fits(&self, positions: usize, place: &Path) -> Result<()> {
        let longest = self.blocks.longest(self.k_cap).unwrap_or(0);
        ensure!(
            longest <= positions,
            "{}: blocks of up to {longest} latents, the model has {positions} positions (max_position_embeddings)",
            place.join(FILE).display()
        );
        Ok(())
    }

    /// Warning if no trained block length lies in `k_min..=k_cap`: the checkpoint may fail for that reason alone. `None` if one does, if none
    /// is known, or if the rule decides the length of blocks.
    pub fn untrained_dwell(&self, k_min: usize, k_cap: usize) -> Option<String> {
        let fits = |dwell: &usize| (k_min.max(1)..=k_cap).contains(dwell);
        if !matches!(self.blocks, Blocks::Learnt(_))
            || self.trained_dwell.is_empty()
            || self.trained_dwell.iter().any(fits)
        {
            return None;
        }
        Some(format!(
            "warning: trained for blocks of {:?} latents, decoded with K_min = {k_min} and k_cap = {k_cap}, which allow none \
             of these lengths",
            self.trained_dwell
        ))
    }

    /// Maximum latents of a block, 0 without blocks.
    pub fn longest_block(&self) -> usize {
        match &self.blocks {
            Blocks::SwiReasoning(rule) => rule.limit,
            Blocks::SoftThinking(rule) => rule.limit,
            blocks => blocks.longest(self.k_cap).unwrap_or(0),
        }
    }

    /// Whether latent positions ever occur.
    pub(crate) fn has_blocks(&self) -> bool {
        !matches!(
            self.blocks,
            Blocks::Never | Blocks::Plain | Blocks::AfterPrompt { steps: 0 } | Blocks::Pause { steps: 0 }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_beyond_all_reason_are_refused_with_file_and_number() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |change: serde_json::Value| {
            let mut file = serde_json::to_value(Reasoning::default()).expect("a value");
            let into = file.as_object_mut().expect("an object");
            into.extend(change.as_object().expect("an object").clone());
            std::fs::write(folder.path().join(FILE), file.to_string()).expect("a file");
            Reasoning::read(folder.path()).map(|read| read.expect("there"))
        };
        for (change, number) in [
            (serde_json::json!({ "k_cap": 50_000_000 }), "50000000"),
            (serde_json::json!({ "blocks": { "rule": "after_prompt", "steps": u64::MAX } }), "18446744073709551615"),
            (serde_json::json!({ "blocks": { "rule": "thinking", "limit": 1_u64 << 40 } }), "1099511627776"),
        ] {
            let error = write(change).expect_err("refused").to_string();
            assert!(error.contains(FILE) && error.contains(number), "{error}");
        }
        let long = write(serde_json::json!({ "blocks": { "rule": "pause", "steps": 5000 } })).expect("a file");
        let error = long.check_fits(2048, folder.path()).expect_err("no room").to_string();
        assert!(error.contains(FILE) && error.contains("5000") && error.contains("2048"), "{error}");
        long.check_fits(8192, folder.path()).expect("room");
    }

    #[test]
    fn decoding_at_a_length_that_was_not_trained_is_said() {
        let trained = Reasoning { trained_dwell: vec![1, 3], ..Reasoning::default() };
        assert_eq!(
            [(0, 1), (1, 1), (2, 16), (3, 3)].map(|(min, cap)| trained.untrained_dwell(min, cap)),
            [const { None }; 4]
        );
        for (k_min, k_cap) in [(2, 2), (4, 16)] {
            let said = trained.untrained_dwell(k_min, k_cap).expect("a warning");
            assert!(said.contains("[1, 3]") && said.contains(&format!("K_min = {k_min}")), "{said}");
        }
        let none = Reasoning { trained_dwell: vec![], ..trained.clone() };
        let fixed = Reasoning { blocks: Blocks::AfterPrompt { steps: 9 }, ..trained };
        assert_eq!([none.untrained_dwell(4, 16), fixed.untrained_dwell(4, 16)], [None, None]);
    }
}
