//! `probe activations`: writes the activations of known sequences as a safetensors file, one float32 tensor per hook point.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;

use super::device::MachineArgs;
use super::hooks::{HookArgs, list};
use super::reach::{self, HookRequest};
use super::request::{KnownRows, Prompt, PromptsArgs, Subject};
use super::{ModelArgs, tensors};
use switchyard::interventions::ChangeReport;
use switchyard::loading::{Loaded, RecordedLogits};
use switchyard::machine::Machine;
use switchyard::progress::say;

/// Write activations to a safetensors file, one float32 tensor per hook point, named by it.
///
/// Tensors are [rows, positions, …]; rows are padded with zeros on the right. Ids, lengths and positions are in the
/// file's metadata. <latent> tokens in a row are fed by the recurrence.
#[derive(Args, Debug)]
pub struct Activations {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: PromptsArgs,
    /// Hook points: 'blocks.*.hook_resid_post,blocks.-1.attn.hook_pattern@pos[3]'. After `@`: prompt, text[t], pos[p], pos[-1] (the last),
    /// latent[block,step]. Layers, positions and text tokens count from 0, blocks and latent steps from 1
    #[arg(long, value_name = "PATTERN[,PATTERN]")]
    hooks: Option<String>,
    /// Also write `logits`
    #[arg(long)]
    logits: bool,
    /// Write values that are not finite instead of stopping
    #[arg(long)]
    allow_non_finite: bool,
    #[arg(long, value_name = "FILE.safetensors", required_unless_present = "list_hooks")]
    out: Option<PathBuf>,
    #[command(flatten)]
    edit: HookArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

impl Activations {
    pub fn run(&self) -> Result<()> {
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let opened = self.model.open()?;
        if self.edit.list_hooks {
            return list(&opened);
        }
        let (prompts, places) = self.text.read()?;
        let ids = Subject::from(&opened).encode_at(&prompts, &places)?;
        let request = CacheRequest {
            prompts: ids.into_iter().map(Prompt::Ids).collect(),
            names: self.hooks.clone().unwrap_or_default(),
            hooks: self.edit.hook.clone(),
            logits: self.logits.into(),
            out: self.out.clone().context("--out is missing: name the file to write")?,
            allow_non_finite: self.allow_non_finite,
        };
        let checked = request.check(&Subject::from(&opened))?;
        let opened = if self.allow_non_finite { opened.allowing_non_finite() } else { opened };
        checked.run(&opened.load_on(machine)?, &self.model.named()?)?;
        say(&format!("{}: written", request.out.display()));
        Ok(())
    }
}

/// The activations of known texts, into a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheRequest {
    prompts: Vec<Prompt>,
    /// Hooks to record.
    names: String,
    #[serde(default)]
    hooks: Vec<String>,
    #[serde(default)]
    logits: RecordedLogits,
    out: PathBuf,
    #[serde(skip)]
    allow_non_finite: bool,
}

/// A request that fits its model.
pub(super) struct CheckedCache<'a> {
    request: &'a CacheRequest,
    known: KnownRows,
    wanted: HookRequest,
}

impl CacheRequest {
    pub fn check(&self, model: &Subject) -> Result<CheckedCache<'_>> {
        tensors::check_out(&self.out)?;
        let known = KnownRows::check(model, &self.prompts, &self.hooks)?;
        let wanted = HookRequest::read(&self.names, &known.rows)?;
        let records = !wanted.specs.is_empty() || self.logits != RecordedLogits::None;
        ensure!(records, "nothing to record: give --hooks, --logits or both");
        reach::check(&wanted.specs, model.config.num_hidden_layers, &known.rows)?;
        Ok(CheckedCache { request: self, known, wanted })
    }
}

impl CheckedCache<'_> {
    /// Runs the rows, and writes the file of the model of this name. Returns the effects of the changes.
    pub fn run(&self, loaded: &Loaded, name: &str) -> Result<Vec<ChangeReport>> {
        let Self { request: CacheRequest { logits, out, allow_non_finite, .. }, known, wanted } = self;
        let (mut recorded, fired) = known.run(|hooks| loaded.record(&known.rows, &wanted.specs, *logits, hooks))?;
        let mut from_end = wanted.named(&mut recorded, loaded.model.config())?;
        if *logits == RecordedLogits::Last {
            from_end.insert("logits".into(), known.rows.iter().map(|row| row.ids.len() - 1).collect());
        }
        if !allow_non_finite {
            tensors::check_finite(&recorded).context("--allow-non-finite writes them anyway")?;
        }
        tensors::write(out, (name, loaded.layers()), &known.rows, &recorded, &from_end)?;
        Ok(fired)
    }
}
