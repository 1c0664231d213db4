//! Never switch: the same masking as `skip`, read as one side of the benefit of switching.

use super::Rule;
use crate::latent::{Start, Switching};

/// Misleads as `skip` does; on the problems that switch of their own accord the difference to normal is the benefit *for
/// those*, which the model chose.
pub(super) const ABOUT: Rule = Rule { name: "suppress_switch", start: Start::Switch, switching: Switching::Suppressed };
