//! Known token sequences: kind and name of each position.

use anyhow::{Result, ensure};

use crate::model::Step;

/// One known token sequence. The input at a latent position is not the token's embedding but the recurrence's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Index of the problem or sample; the row for hooks.
    pub row: usize,
    pub ids: Vec<u32>,
    /// Kind of each position, `[ids.len()]`.
    pub steps: Vec<Step>,
}

impl Sequence {
    /// Names every position: the first `prompt` ones are prompt, `<latent>` ids are latent, and a block is a run of latents.
    ///
    /// # Errors
    /// No tokens; a latent position at 0, which has no hidden state to read.
    pub fn new(row: usize, ids: Vec<u32>, prompt: usize, latent: Option<u32>) -> Result<Self> {
        Self::with_latents(row, ids, prompt, |_, id| Some(id) == latent)
    }

    /// As [`Self::new`]; `is_latent` of position and id decides which positions are latent.
    pub(crate) fn with_latents(
        row: usize,
        ids: Vec<u32>,
        prompt: usize,
        is_latent: impl Fn(usize, u32) -> bool,
    ) -> Result<Self> {
        ensure!(!ids.is_empty(), "sequence {row} has no tokens");
        ensure!(
            !is_latent(0, ids[0]),
            "sequence {row} begins with a latent position: there is no hidden state before it to read"
        );
        let (mut text, mut blocks, mut step) = (0, 0, 0);
        let mut steps = Vec::with_capacity(ids.len());
        for (position, &id) in ids.iter().enumerate() {
            if is_latent(position, id) {
                if step == 0 {
                    blocks += 1;
                }
                steps.push(Step::Latent { block: blocks - 1, step });
                step += 1;
                continue;
            }
            step = 0;
            if position < prompt {
                steps.push(Step::Prompt);
            } else {
                steps.push(Step::Text(text));
                text += 1;
            }
        }
        Ok(Self { row, ids, steps })
    }

    pub(crate) fn is_latent(&self, position: usize) -> bool {
        matches!(self.steps.get(position), Some(Step::Latent { .. }))
    }

    /// Position, block and step of every latent.
    pub(crate) fn latent_steps(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        self.steps.iter().enumerate().filter_map(|(position, at)| match *at {
            Step::Latent { block, step } => Some((position, block, step)),
            _ => None,
        })
    }

    pub fn latents(&self) -> usize {
        self.latent_steps().count()
    }
}
