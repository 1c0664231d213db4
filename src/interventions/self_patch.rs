//! A problem's own state, patched onto itself.

use super::{Acts, InterventionAbout};

/// Must change nothing: the control that the machinery itself is inert.
pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("self_patch", Acts::OnRun, |m, _| Box::new(m.bank.replay()))
        .value_wise()
        .positive_at(|_| true)];
