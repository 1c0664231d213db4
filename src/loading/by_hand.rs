//! A loaded model in Rust: continue a prompt under hooks, run known sequences and record their activations, like `probe generate` and
//! `probe activations` without files.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use burn::tensor::Tensor;

use super::{Checkpoint, Loaded};
use crate::interventions::{ChangeReport, Changes};
use crate::latent::{Decode, DecodeSettings, Gradient, Request, Sequence, Trace, Wave, Waves, decode};
use crate::machine::Machine;
use crate::model::checkpoint::peft::Apply;
use crate::model::hooks::{Place, RecordedTensor, Recording};
use crate::model::{Activation, HookSpec, Hooks};
use crate::ops;
use crate::text::Vocabulary;

/// Batch size.
const BATCH: usize = 16;

/// Name of the logits in [`Loaded::run_with_cache`], `[rows, positions, V]`.
const LOGITS: &str = "logits";

/// The logits that a run records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordedLogits {
    #[default]
    None,
    /// Those of each row's last position, `[rows, 1, V]`; those of other positions are not computed.
    Last,
    All,
}

impl From<bool> for RecordedLogits {
    fn from(all: bool) -> Self {
        if all { Self::All } else { Self::None }
    }
}

impl Loaded {
    /// Opens a Hugging Face folder (in a run: `<run>/<phase>/checkpoint`), a `.gguf` or a hub id, on the CPU in f32.
    pub fn open(model: &str) -> Result<Self> {
        Checkpoint::open(model, None, Apply::Merged)?.load(&Machine::default().device)
    }

    /// Number of layers, to resolve the names of hooks.
    pub fn layers(&self) -> usize {
        self.model.config().num_hidden_layers
    }

    fn text_side(&self) -> Result<&Vocabulary> {
        self.vocabulary.as_ref().context("the model has no tokenizer: use token ids")
    }

    /// Greedy decoding with the checkpoint's trained latent steps, until it ends its text.
    pub fn settings(&self) -> DecodeSettings {
        let (k_min, k_cap) = (self.reasoning.k_min, self.reasoning.k_cap);
        DecodeSettings { k_min, k_cap, stop: self.stop.clone(), ..DecodeSettings::default() }
    }

    /// Shared inputs of its decodes: model, latent source, controller, switch tokens.
    pub fn decode<'a>(&'a self, settings: &'a DecodeSettings) -> Decode<'a> {
        let (source, controller) = (&self.reasoning.source, &self.reasoning.blocks);
        Decode { model: &self.model, source, controller, switch: self.switch, settings, cancel: None, ahead: None }
    }

    /// Continues a prompt under hooks, with [`Self::settings`]. The last token is drawn but not fed: no hook sees it.
    ///
    /// # Errors
    /// A model without a tokenizer; a hook that never fired; as [`decode()`].
    pub fn generate(&self, prompt: &str, hooks: &mut Hooks) -> Result<Trace> {
        let (settings, prompt) = (self.settings(), self.text_side()?.encode_row(prompt)?);
        let trace = decode(self.decode(&settings), &Request::all([prompt]), 1, hooks)?.pop();
        hooks.finish()?;
        trace.context("the decoder returned nothing")
    }

    /// Parses the changes of one run, one line each.
    pub fn changes(&self, lines: &[&str]) -> Result<Changes> {
        Changes::read(lines, self.model.config())
    }

    /// As [`Self::generate`], under changes; also returns a report of each change.
    ///
    /// # Errors
    /// As [`Changes::read`] and [`Self::generate`]; a change that never fired.
    pub fn generate_changed(&self, prompt: &str, changes: &[&str]) -> Result<(Trace, Vec<ChangeReport>)> {
        let (changes, known) = (self.changes(changes)?, self.text_side()?.encode_row(prompt)?.len());
        let ran = |trace: &Trace| format!("{} tokens, {} latent steps", trace.visible_tokens(), trace.latent_calls());
        changes.run((&[(0, known)], 0), ran, |mut hooks| self.generate(prompt, &mut hooks))
    }

    /// Text of a trace, without latents, `<swi>` and `</swi>`.
    ///
    /// # Errors
    /// A model without a tokenizer.
    pub fn said(&self, trace: &Trace) -> Result<String> {
        self.text_side()?.decode_visible(&trace.text())
    }

    /// A trace as a known sequence, latent steps included.
    ///
    /// # Errors
    /// An empty prompt.
    pub fn row(&self, trace: &Trace) -> Result<Sequence> {
        match &self.switch {
            Some(ids) => trace.sequence(ids),
            None => Sequence::new(0, [trace.prompt.clone(), trace.visible()].concat(), trace.prompt.len(), None),
        }
    }

    /// A text as a known sequence, all of it prompt; `<latent>` tokens in it are latent steps.
    ///
    /// # Errors
    /// A model without a tokenizer; an empty text; a text that begins with a latent step.
    pub fn row_of(&self, text: &str) -> Result<Sequence> {
        let ids = self.text_side()?.encode_row(text)?;
        let prompt = ids.len();
        Sequence::new(0, ids, prompt, self.switch.map(|ids| ids.latent))
    }

    /// Runs known sequences under hooks and returns the activations at the points in `names` (after replacements), one tensor per point, by
    /// name: TransformerLens' `run_with_cache`. A name may be a pattern and may select positions, as
    /// `blocks.*.hook_resid_post@latent[*,2]`; `logits` are those of every position. Rows are numbered in order, from 0.
    ///
    /// # Errors
    /// No sequences; a name that the model lacks; a hook that never fired; failures of the model.
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

    /// As [`Self::run_with_cache`], for parsed names; tensors in the order of the points.
    pub fn record(
        &self,
        rows: &[Sequence],
        specs: &[HookSpec],
        logits: impl Into<RecordedLogits>,
        hooks: Hooks,
    ) -> Result<Vec<RecordedTensor>> {
        let logits = logits.into();
        let recording = Recording::for_model(specs, self.model.config())?;
        // A new variable: these hooks borrow the recording too.
        let mut hooks: Hooks = hooks;
        recording.attach(&mut hooks, self.layers())?;
        let rows: Vec<Sequence> = rows.iter().enumerate().map(|(row, s)| Sequence { row, ..s.clone() }).collect();
        for batch in rows.chunks(BATCH) {
            let mut waves = Waves::new(&self.model, batch, &self.reasoning.source, Gradient::Through)?;
            while let Some(wave) = waves.next_wave(&mut hooks)? {
                let (places, hidden) = match logits {
                    RecordedLogits::None => continue,
                    RecordedLogits::All => (places(batch, &wave), wave.hidden.clone()),
                    RecordedLogits::Last => last_states(batch, &wave),
                };
                if !places.is_empty() {
                    let [b, l, _] = hidden.dims();
                    let bytes = [b, l, self.model.config().vocab_size, 3 * size_of::<f32>()];
                    let bytes = bytes.iter().map(|&n| n as u64).product();
                    ops::ensure_memory(|| format!("the logits of {l} positions in {b} rows"), bytes)?;
                    recording.keep_logits(&places, &Activation::Rank3(self.model.unembed(hidden)))?;
                }
            }
        }
        hooks.finish()?;
        drop(hooks);
        recording.tensors(rows.len())
    }
}

/// The states of the last positions of rows that end in a wave, `[rows, 1, D]`, each recorded as position 0.
fn last_states(batch: &[Sequence], wave: &Wave) -> (Vec<Place>, Tensor<3>) {
    let mut last = places(batch, wave);
    last.retain(|place| place.position + 1 == batch[place.batch].ids.len());
    let of = |place: &Place| wave.hidden.clone().narrow(0, place.batch, 1).narrow(1, place.index, 1);
    let states: Vec<Tensor<3>> = last.iter().map(of).collect();
    let hidden = if states.is_empty() { wave.hidden.clone() } else { Tensor::cat(states, 0) };
    let first = |(batch, place): (usize, &Place)| Place { batch, index: 0, position: 0, ..*place };
    (last.iter().enumerate().map(first).collect(), hidden)
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
