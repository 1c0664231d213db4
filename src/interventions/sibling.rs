//! The state of the same block and step in another, sampled rollout of the same problem.

use super::{Acts, InterventionAbout};

/// The gentlest swap: same problem, same place, other noise. If `resample` breaks the answer and this does not, latents carry the
/// content of the problem. Misleads if rollouts diverge early: the same block number may then belong to another step of the solution.
/// Does not fire if the sibling lacks the block or step.
pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("sibling", Acts::OnLatents, |m, d| Box::new(m.siblings[d.number].replay())).random()];
