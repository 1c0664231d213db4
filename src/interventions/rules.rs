//! Changes of when blocks are opened and closed.

use super::SwitchRule;
use crate::latent::Switching;

pub(crate) const RULES: &[SwitchRule] = &[SKIP, EMPTY_BLOCK, FORCE_SWITCH, SUPPRESS_SWITCH];

/// Masks `<swi>`: the next best token instead (the paper's *skip*). Misleads: it removes the block *and* makes the model continue at a
/// position where it wanted one; a model trained on both forms writes the step as text and loses nothing, which shows that text
/// suffices, not that latents do nothing.
const SKIP: SwitchRule = SwitchRule { name: "skip", switching: Switching::Suppressed };

/// Closes every block as it is opened, `<swi></swi>`: preserves the boundary tokens (and their effect on the model) and removes the
/// computation. Misleads: a model trained with K_min ≥ 1 has never seen an empty block, so part of the loss is surprise.
const EMPTY_BLOCK: SwitchRule = SwitchRule { name: "empty_block", switching: Switching::Empty };

/// Forces a switch where p(`<swi>`) is highest, to measure the benefit of switching without the model's own selection: a problem without
/// a block gets one at that response position; others do not change. Misleads: the model preferred text at the forced position, and the
/// block may be in the middle of a clause, where it never saw one.
pub(crate) const FORCE_SWITCH: SwitchRule = SwitchRule { name: "force_switch", switching: Switching::Free };

/// Never switches: the same masking as `skip`, for the benefit of switching. Misleads as `skip` does; on problems that switch by
/// themselves the difference to normal is the benefit *for those*, which the model chose.
const SUPPRESS_SWITCH: SwitchRule = SwitchRule { name: "suppress_switch", switching: Switching::Suppressed };
