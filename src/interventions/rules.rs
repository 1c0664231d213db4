//! Changes of when blocks are opened and closed.

use super::Rule;
use crate::latent::Switching;

pub(crate) const RULES: &[Rule] = &[SKIP, EMPTY_BLOCK, FORCE_SWITCH, SUPPRESS_SWITCH];

/// `<swi>` masked: the next best token instead (the paper's *skip*). Misleads: it takes away the block *and* makes the model go on from
/// a place where it wanted one; a model trained on both forms writes the step as text and loses nothing, which shows that text can do
/// it, not that latents did nothing.
const SKIP: Rule = Rule { name: "skip", switching: Switching::Suppressed };

/// Every block closed as it is opened, `<swi></swi>`: keeps the boundary tokens (and whatever they alone tell the model) and takes the
/// computation away. Misleads: a model trained with K_min ≥ 1 has never seen an empty block, so part of the loss is surprise.
const EMPTY_BLOCK: Rule = Rule { name: "empty_block", switching: Switching::Empty };

/// Switch where it came closest to it, the other side of the benefit of switching, free of the model's own selection: a problem that
/// opens no block of its own is made to open one at the response position where p(`<swi>`) was highest; one that does is left as it is.
/// Misleads: the forced place is one where the model preferred text, and a block there may stand in the middle of a clause that it
/// never saw a block in.
pub(crate) const FORCE_SWITCH: Rule = Rule { name: "force_switch", switching: Switching::Free };

/// Never switch: the same masking as `skip`, read as one side of the benefit of switching. Misleads as `skip` does; on the problems
/// that switch of their own accord the difference to normal is the benefit *for those*, which the model chose.
const SUPPRESS_SWITCH: Rule = Rule { name: "suppress_switch", switching: Switching::Suppressed };
