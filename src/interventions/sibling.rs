//! The state of the same block and step in another, sampled rollout of the same problem.

use super::{About, Acts};

/// The gentlest swap: same problem, same place, other noise. Where `resample` breaks the answer and this does not, it is
/// the content of the problem that is carried. Misleads where rollouts part early: the same block number may then work on
/// another step of the solution. Where the sibling has no such block or step it does not fire.
pub(super) const ABOUT: &[About] =
    &[About::new("sibling", Acts::OnLatents, |m, d| Box::new(m.siblings[d.number].again())).random()];
