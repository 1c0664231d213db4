//! `probe activations`: writes the activations of known sequences as a safetensors file, one float32 tensor per hook point.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;

use super::device::MachineArgs;
use super::hooks::{HookArgs, list};
use super::{ModelArgs, encode, reach, row_ids, tensors};
use switchyard::latent::Sequence;
use switchyard::loading::Checkpoint;
use switchyard::machine::Machine;
use switchyard::text::lines;

/// Write activations to a safetensors file, one float32 tensor per hook point, named by it.
///
/// Tensors are [rows, positions, …]; rows are padded with zeros on the right. Ids, lengths and positions are in the
/// file's metadata. <latent> tokens in a row are fed by the recurrence.
#[derive(Args, Debug)]
pub struct Activations {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids of one row: 1,2,3
    #[arg(long, conflicts_with_all = ["prompt", "prompts"], allow_hyphen_values = true)]
    ids: Option<String>,
    /// Text of one row
    #[arg(long, conflicts_with = "prompts", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// One row a line: {"prompt": "text"} or {"ids": [1, 2, 3]}
    #[arg(long, value_name = "FILE.jsonl")]
    prompts: Option<PathBuf>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptLine {
    prompt: Option<String>,
    ids: Option<Vec<u32>>,
}

impl Activations {
    /// # Errors
    /// Anything wrong with the request before any weight is read; later, values that are not finite and a file that
    /// cannot be written. No partial file is left.
    pub fn run(&self) -> Result<()> {
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let opened = self.model.open()?;
        if self.edit.list_hooks {
            return list(&opened);
        }
        let out = self.out.as_deref().context("--out is missing: name the file to write")?;
        tensors::check_out(out)?;
        let rows = self.rows(&opened)?;
        let latent = opened.switch().map(|ids| ids.latent);
        let mut sequences = vec![];
        for (row, ids) in rows.into_iter().enumerate() {
            let whole = ids.len();
            sequences.push(Sequence::new(row, ids, whole, latent)?);
        }
        let wanted = reach::HookRequest::read(self.hooks.as_deref().unwrap_or_default(), &sequences)?;
        let specs = &wanted.specs;
        ensure!(!specs.is_empty() || self.logits, "nothing to record: give --hooks, --logits or both");
        let changes = self.edit.changes(&opened)?;
        reach::check(specs, &changes, opened.config().num_hidden_layers, &sequences)?;
        let ends: Vec<usize> = sequences.iter().map(|sequence| sequence.ids.len()).collect();
        let opened = if self.allow_non_finite { opened.allowing_non_finite() } else { opened };
        let loaded = opened.load_as(machine.dtype, &machine.device)?.computing_in(machine.dtype);
        let (mut recorded, _) = changes.run(
            (&ends, 0),
            |_| "no position of these rows reached it".into(),
            |hooks| loaded.record(&sequences, specs, self.logits, hooks),
        )?;
        let from_end = wanted.named(&mut recorded, loaded.layers())?;
        if !self.allow_non_finite {
            tensors::check_finite(&recorded).context("--allow-non-finite writes them anyway")?;
        }
        tensors::write(out, (&self.model.named()?, loaded.layers()), &sequences, &recorded, &from_end)
    }

    fn rows(&self, opened: &Checkpoint) -> Result<Vec<Vec<u32>>> {
        if let Some(file) = &self.prompts {
            return read_lines(file, opened);
        }
        let ids = row_ids(opened, self.prompt.as_deref(), self.ids.as_deref())?;
        let ids = ids.context("nothing to run: give --ids, --prompt or --prompts")?;
        opened.check_ids(&ids)?;
        Ok(vec![ids])
    }
}

fn read_lines(file: &Path, opened: &Checkpoint) -> Result<Vec<Vec<u32>>> {
    let mut rows = vec![];
    for (place, line) in lines(file)? {
        let row = || -> Result<Vec<u32>> {
            let ids = match serde_json::from_str(&line)? {
                PromptLine { prompt: Some(prompt), ids: None } => encode(opened, &prompt)?,
                PromptLine { prompt: None, ids: Some(ids) } => ids,
                _ => bail!("expected either `prompt` or `ids`"),
            };
            opened.check_ids(&ids)?;
            Ok(ids)
        };
        rows.push(row().with_context(|| place.clone())?);
    }
    ensure!(!rows.is_empty(), "{}: no prompts, expected one JSON object per line", file.display());
    Ok(rows)
}
