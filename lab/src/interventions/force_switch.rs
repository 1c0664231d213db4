//! Switch where it came closest to it: the other side of the benefit of switching, free of the model's own selection.

use super::Rule;
use crate::latent::{Start, Switching};

/// A problem that opens no block of its own is made to open one at the response position where p(`<swi>`) was highest; one
/// that does is left as it is. Misleads: the forced place is one where the model preferred text, and a block there may stand
/// in the middle of a clause that it never saw a block in.
pub(crate) const ABOUT: Rule = Rule { name: "force_switch", start: Start::Prompt, switching: Switching::Free };
