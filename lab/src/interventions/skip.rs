//! `<swi>` masked: the next best token instead (the paper's *skip*).

use super::Rule;
use crate::latent::{Start, Switching};

/// Misleads: it takes away the block *and* makes the model go on from a place where it wanted one; a model trained on both
/// forms writes the step as text and loses nothing, which shows that text can do it, not that latents did nothing.
pub(super) const ABOUT: Rule = Rule { name: "skip", start: Start::Switch, switching: Switching::Suppressed };
