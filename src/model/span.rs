//! A span: the rectangle of positions of one call of the model, with the kind of each.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::nth::Nth;

/// Kind of a position, for readers of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Prompt,
    /// The t-th response position that is not latent (boundary tokens included).
    Text(usize),
    /// Step `step` of block `block`: indices, from 0. Shown from 1.
    Latent {
        block: usize,
        step: usize,
    },
}

impl Step {
    /// Number of the latent step in its block.
    pub(crate) fn nth(self) -> Option<Nth> {
        if let Step::Latent { step, .. } = self { Some(Nth::new(step)) } else { None }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Prompt => f.write_str("prompt"),
            Step::Text(t) => write!(f, "text[{t}]"),
            Step::Latent { block, step } => write!(f, "latent[{},{}]", Nth::new(*block), Nth::new(*step)),
        }
    }
}

/// `[B][L]`, rectangular; rows may be shorter than `L` and are padded on either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Problem or sequence of each row, so that hooks can identify rows after some left the batch.
    pub rows: Vec<usize>,
    /// True position of each token in its row (RoPE's input). Any value at padding.
    pub positions: Vec<Vec<usize>>,
    /// `None` is padding: never attended to, never hooked.
    pub steps: Vec<Vec<Option<Step>>>,
}

impl Span {
    /// Prompts of the given lengths from position 0, padded to the longest on the right (or left).
    pub fn prompts(lengths: &[usize], pad_left: bool) -> Self {
        let width = lengths.iter().copied().max().unwrap_or(0);
        let mut span = Self { rows: (0..lengths.len()).collect(), positions: vec![], steps: vec![] };
        for &n in lengths {
            let lead = if pad_left { width - n } else { 0 };
            span.positions.push((0..width).map(|i| i.saturating_sub(lead).min(n.saturating_sub(1))).collect());
            span.steps.push((0..width).map(|i| (i >= lead && i < lead + n).then_some(Step::Prompt)).collect());
        }
        span
    }

    /// One row, all prompt, starting at `start`.
    pub fn single_row(start: usize, len: usize) -> Self {
        Self {
            rows: vec![0],
            positions: vec![(start..start + len).collect()],
            steps: vec![vec![Some(Step::Prompt); len]],
        }
    }

    pub fn width(&self) -> usize {
        self.steps.first().map_or(0, Vec::len)
    }

    /// Checks that the three fields are `[B, L]`.
    ///
    /// # Errors
    /// A ragged span, with the row that differs.
    pub fn check(&self, batch: usize, width: usize) -> Result<()> {
        ensure!(
            self.rows.len() == batch && self.positions.len() == batch && self.steps.len() == batch,
            "span has {} rows, {} position rows and {} step rows for a batch of {batch}",
            self.rows.len(),
            self.positions.len(),
            self.steps.len()
        );
        for (i, (positions, steps)) in self.positions.iter().zip(&self.steps).enumerate() {
            ensure!(
                positions.len() == width && steps.len() == width,
                "span row {i} has {} positions and {} steps for a width of {width}",
                positions.len(),
                steps.len()
            );
        }
        Ok(())
    }
}
