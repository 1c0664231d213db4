//! A loaded model from Rust in a few calls: continue a prompt under hooks, run known rows and keep their activations. What
//! `probe generate` and `probe activations` do, without files.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::{Checkpoint, Loaded};
use crate::interventions::{ChangeReport, Changes};
use crate::latent::{Decode, DecodeSettings, Gradient, Request, Sequence, Trace, Wave, Waves, decode};
use crate::machine::Machine;
use crate::model::checkpoint::peft::Apply;
use crate::model::hooks::{Place, RecordedTensor, Recording};
use crate::model::{Activation, HookSpec, Hooks};
use crate::ops;
use crate::text::Vocabulary;

/// Rows handed to the model at once.
const BATCH: usize = 16;

/// What [`Loaded::run_with_cache`] calls the logits, `[rows, positions, V]`.
const LOGITS: &str = "logits";

impl Loaded {
    /// Opens a Hugging Face folder (of a run: `<run>/<phase>/checkpoint`), a `.gguf` or a hub id, on the CPU in f32.
    ///
    /// # Errors
    /// As [`Checkpoint::open`] and [`Checkpoint::load`].
    pub fn open(model: &str) -> Result<Self> {
        Checkpoint::open(model, None, Apply::Merged)?.load(&Machine::default().device)
    }

    /// Layers of the model: what the names of hooks are resolved against.
    pub fn layers(&self) -> usize {
        self.model.config().num_hidden_layers
    }

    fn text_side(&self) -> Result<&Vocabulary> {
        self.vocabulary.as_ref().context("the model brings no tokenizer: work with token ids")
    }

    /// Greedy, with the latent steps that the checkpoint was trained with, until it ends its text.
    pub fn settings(&self) -> DecodeSettings {
        let (k_min, k_cap) = (self.reasoning.k_min, self.reasoning.k_cap);
        DecodeSettings { k_min, k_cap, stop: self.stop.clone(), ..DecodeSettings::default() }
    }

    /// What a decode of it shares: model, latent source, controller, switch tokens.
    pub fn decode<'a>(&'a self, settings: &'a DecodeSettings) -> Decode<'a> {
        let (source, controller) = (&self.reasoning.source, &self.reasoning.blocks);
        Decode { model: &self.model, source, controller, switch: self.switch, settings, cancel: None, ahead: None }
    }

    /// Continues a prompt under hooks, decoded as [`Self::settings`] says. The last token is drawn and not fed: no hook sees it.
    ///
    /// # Errors
    /// A model without tokenizer, a hook that never fired, and as [`decode()`].
    pub fn generate(&self, prompt: &str, hooks: &mut Hooks) -> Result<Trace> {
        let (settings, prompt) = (self.settings(), self.text_side()?.encode_row(prompt)?);
        let trace = decode(self.decode(&settings), &Request::all([prompt]), 1, hooks)?.pop();
        hooks.finish()?;
        trace.context("the decoder returned nothing")
    }

    /// The changes of one run, one line each.
    ///
    /// # Errors
    /// As [`Changes::read`].
    pub fn changes(&self, lines: &[&str]) -> Result<Changes> {
        Changes::read(lines, self.model.config())
    }

    /// As [`Self::generate`], under changes; with what each change did.
    ///
    /// # Errors
    /// As [`Changes::read`] and [`Self::generate`]; a change that never fired.
    pub fn generate_changed(&self, prompt: &str, changes: &[&str]) -> Result<(Trace, Vec<ChangeReport>)> {
        let (changes, known) = (self.changes(changes)?, self.text_side()?.encode_row(prompt)?.len());
        let ran = |trace: &Trace| format!("{} tokens, {} latent steps", trace.visible_tokens(), trace.latent_calls());
        changes.run((&[known], 0), ran, |mut hooks| self.generate(prompt, &mut hooks))
    }

    /// What a trace says, without latents, `<swi>` and `</swi>`.
    ///
    /// # Errors
    /// A model without tokenizer.
    pub fn said(&self, trace: &Trace) -> Result<String> {
        self.text_side()?.decode_visible(&trace.text())
    }

    /// A trace as a known row, latent steps included.
    ///
    /// # Errors
    /// An empty prompt.
    pub fn row(&self, trace: &Trace) -> Result<Sequence> {
        match &self.switch {
            Some(ids) => trace.sequence(ids),
            None => Sequence::new(0, [trace.prompt.clone(), trace.visible()].concat(), trace.prompt.len(), None),
        }
    }

    /// A text as a known row, all of it prompt; `<latent>` tokens in it are latent steps.
    ///
    /// # Errors
    /// A model without tokenizer, an empty text, and one that begins with a latent step.
    pub fn row_of(&self, text: &str) -> Result<Sequence> {
        let ids = self.text_side()?.encode_row(text)?;
        let prompt = ids.len();
        Sequence::new(0, ids, prompt, self.switch.map(|ids| ids.latent))
    }

    /// Runs known rows under hooks (what replaces comes first) and returns what stood at the points that `names` name, one
    /// tensor a point, by its name: TransformerLens' `run_with_cache`. A name may be a pattern and may select positions, as
    /// `blocks.*.hook_resid_post@latent[*,2]`; `logits` are those of every position. Rows are numbered in their order, from 0.
    ///
    /// # Errors
    /// No rows, a name that the model does not have, a hook that never fired, and as the model's.
    pub fn run_with_cache(
        &self,
        rows: &[Sequence],
        names: &[&str],
        hooks: Hooks,
    ) -> Result<BTreeMap<String, RecordedTensor>> {
        ensure!(!names.is_empty(), "nothing to keep: name hook points, or `{LOGITS}`");
        let (logits, points): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| **name == LOGITS);
        let specs = points.iter().map(|name| name.parse()).collect::<Result<Vec<HookSpec>>>()?;
        let recorded = self.record(rows, &specs, !logits.is_empty(), hooks)?;
        Ok(recorded.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect())
    }

    /// As [`Self::run_with_cache`], of names that were read already; tensors in the order of the points.
    pub fn record(
        &self,
        rows: &[Sequence],
        specs: &[HookSpec],
        logits: bool,
        hooks: Hooks,
    ) -> Result<Vec<RecordedTensor>> {
        let recording = Recording::for_model(specs, self.model.config())?;
        // A name of its own: these hooks borrow the recording too.
        let mut hooks: Hooks = hooks;
        recording.attach(&mut hooks, self.layers())?;
        let rows: Vec<Sequence> = rows.iter().enumerate().map(|(row, s)| Sequence { row, ..s.clone() }).collect();
        for batch in rows.chunks(BATCH) {
            let mut waves = Waves::new(&self.model, batch, &self.reasoning.source, Gradient::Through)?;
            while let Some(wave) = waves.next_wave(&mut hooks)? {
                if logits {
                    let [b, l, _] = wave.hidden.dims();
                    let bytes = [b, l, self.model.config().vocab_size, 3 * size_of::<f32>()];
                    let bytes = bytes.iter().map(|&n| n as u64).product();
                    ops::ensure_memory(|| format!("the logits of {l} positions in {b} rows"), bytes)?;
                    let value = Activation::Rank3(self.model.unembed(wave.hidden.clone()));
                    recording.keep_logits(&places(batch, &wave), &value)?;
                }
            }
        }
        hooks.finish()?;
        drop(hooks);
        recording.tensors(rows.len())
    }
}

/// Every position of a wave.
fn places(batch: &[Sequence], wave: &Wave) -> Vec<Place> {
    let mut places = vec![];
    for (row, columns) in wave.columns.iter().enumerate() {
        for (index, position) in columns.iter().enumerate() {
            if let Some(position) = *position {
                let Sequence { row: name, steps, .. } = &batch[row];
                places.push(Place { batch: row, index, row: *name, position, step: steps[position] });
            }
        }
    }
    places
}
