//! What the causal experiments on one checkpoint share: its normal run, decoded when it is first asked for.

use std::cell::OnceCell;

use anyhow::{Context, Result};

use super::Study;
use super::sweep::Sweep;
use crate::latent::DecodeSettings;
use crate::schema::BlockOrigin;

/// A checkpoint, its normal run and where a user is told what is being done.
pub struct Causal<'a> {
    pub study: &'a Study,
    pub blocks: BlockOrigin,
    pub(crate) settings: &'a DecodeSettings,
    sweep: OnceCell<Sweep<'a>>,
    say: &'a dyn Fn(&str),
}

impl<'a> Causal<'a> {
    /// `settings` are [`Sweep::settings`] of the study.
    pub fn new(study: &'a Study, settings: &'a DecodeSettings, blocks: BlockOrigin, say: &'a dyn Fn(&str)) -> Self {
        Self { study, blocks, settings, sweep: OnceCell::new(), say }
    }

    /// The problems decoded normally, ready to be forked.
    ///
    /// # Errors
    /// As the decoder's.
    pub fn sweep(&self) -> Result<&Sweep<'a>> {
        if self.sweep.get().is_none() {
            let _ = self.sweep.set(Sweep::with(self.study, self.settings, self.blocks)?);
        }
        self.sweep.get().context("nothing was decoded")
    }

    /// Tells the user what is being done.
    pub fn say(&self, what: &str) {
        (self.say)(what);
    }
}
