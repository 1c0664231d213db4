//! Every block closed as it is opened: `<swi></swi>`, no latent step.

use super::Rule;
use crate::latent::{Start, Switching};

/// Keeps the boundary tokens (and whatever they alone tell the model) and takes the computation away. Misleads: a model
/// trained with K_min ≥ 1 has never seen an empty block, so part of the loss is surprise.
pub(super) const ABOUT: Rule = Rule { name: "empty_block", start: Start::Switch, switching: Switching::Empty };
