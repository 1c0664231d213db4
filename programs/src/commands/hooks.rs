//! `--hook` and `--list-hooks`, the same on every command that runs known prompts; and what a decode can reach.

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::print;
use switchyard::interventions::{ActiveChange, Change, Draw, Firings, Material, NO_STATES, Target, What, With};
use switchyard::latent::{Blocks, DecodeSettings};
use switchyard::loading::Checkpoint;
use switchyard::model::{Decoder, HookPoint, HookSpec, Hooks, ModelConfig, PointKind, Select};

/// What to change, or which hooks there are.
#[derive(Args, Debug)]
pub(crate) struct HookArgs {
    /// Change the value at a hook: zero, scale:2, random_norm, rotate:30, add:FILE or swap:FILE, for example
    /// 'blocks.3.hook_resid_post@latent[*,2]=zero' or 'blocks.2.attn.hook_z[head=0,3]@pos[-1]=zero'. FILE is one of --record, or has
    /// one safetensors tensor of the size of one place. May be given more than once
    #[arg(long = "hook", value_name = "HOOK=CHANGE")]
    hook: Vec<String>,
    /// List the model's hooks with their shapes (B rows, L positions, T keys), and stop
    #[arg(long)]
    pub list_hooks: bool,
}

impl HookArgs {
    /// The changes, read and checked, files included.
    pub fn edits(&self, opened: &Checkpoint) -> Result<Edits> {
        Edits::read(&self.hook, opened.config())
    }
}

/// Changes at hooks of one run, at most. A pattern is one of them.
const MOST_CHANGES: usize = 256;

/// Every `--hook` of a command that has one run, read and checked.
#[derive(Default)]
pub(crate) struct Edits(Vec<Change>);

impl Edits {
    pub fn read(texts: &[String], config: &ModelConfig) -> Result<Self> {
        ensure!(
            texts.len() <= MOST_CHANGES,
            "{} changes at hooks, at most {MOST_CHANGES} are made at a time: use patterns, as `blocks.*.attn.hook_z[head=0,3]`",
            texts.len()
        );
        let read = |text: &String| Change::read(text, config).with_context(|| format!("--hook '{text}'"));
        texts.iter().map(read).collect::<Result<_>>().map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As hooks, for rows of which at most `end` positions are known when the run begins.
    ///
    /// # Errors
    /// A position before the first.
    pub fn specs(&self, end: usize) -> Result<Vec<HookSpec>> {
        self.0.iter().map(|change| change.spec(end).with_context(|| format!("--hook '{}'", change.text))).collect()
    }

    /// Runs rows with this many known positions, numbered from 0, under the changes. Returns the result of `work`, and what each change did
    /// ([`AtWork::fired`]). `ran` says what was run, for the error.
    ///
    /// # Errors
    /// A change that never fired, and those of `work`.
    pub fn run<T>(
        &self,
        model: &Decoder,
        (ends, seed): (&[usize], u64),
        ran: impl FnOnce(&T) -> String,
        work: impl FnOnce(Hooks<'_>) -> Result<T>,
    ) -> Result<(T, Vec<Value>)> {
        let edits = self.at_work(model, ends, seed);
        let done = work(edits.hooks(model.config().num_hidden_layers)?)?;
        let fired = edits.fired(&ran(&done))?;
        Ok((done, fired))
    }

    /// At work on rows of so many known positions, numbered from 0.
    pub fn at_work<'a>(&'a self, model: &'a Decoder, ends: &[usize], seed: u64) -> AtWork<'a> {
        let material = Material { bank: &NO_STATES, siblings: &[], swaps: &[], model, exit: &[] };
        let one = |change: &'a Change| {
            let with = match &change.what {
                What::File { adds, values } => With::File { adds: *adds, values },
                What::Made { about, dose } => With::Everywhere(Box::new(move |place| {
                    let draw = Draw { number: 0, seed: seed ^ place, dose: dose.unwrap_or_default() };
                    (about.make)(&material, draw)
                })),
            };
            let Target { heads, region, .. } = &change.target;
            let place = (heads.clone().unwrap_or_default(), region.unwrap_or(Select::All));
            (change, ActiveChange::new(place, with, (0..ends.len()).collect(), ends.to_vec()))
        };
        AtWork(self.0.iter().map(one).collect())
    }
}

/// Changes of one run, and how often each fired.
pub(crate) struct AtWork<'a>(Vec<(&'a Change, ActiveChange<'a>)>);

impl AtWork<'_> {
    /// The hooks that change.
    pub fn hooks(&self, layers: usize) -> Result<Hooks<'_>> {
        let mut hooks = Hooks::none();
        for (change, acting) in &self.0 {
            acting.attach(&change.target.pattern, &mut hooks, layers)?;
        }
        Ok(hooks)
    }

    /// How often each fired, of several rows also in each, and how far it moved the values on average (Euclidean norm of the change
    /// at a place).
    ///
    /// # Errors
    /// One that never fired: it would have been a silent no-op. `ran` says what was run, for the error.
    fn fired(&self, ran: &str) -> Result<Vec<Value>> {
        let one = |(change, acting): &(&Change, ActiveChange)| {
            let mut all = Firings::default();
            acting.firings().iter().for_each(|firings| all.add(firings));
            ensure!(all.count > 0, "--hook '{}' never fired: {ran}", change.text);
            let mut said =
                json!({ "hook": change.text, "fired": all.count, "mean_change": all.moved / all.count as f64 });
            if acting.firings().len() > 1 {
                said["rows"] = acting.firings().iter().map(|firings| firings.count).collect();
            }
            Ok(said)
        };
        self.0.iter().map(one).collect()
    }
}

/// Prints one line a hook, those of every layer as one pattern.
pub(crate) fn list(opened: &Checkpoint) -> Result<()> {
    let config = opened.config();
    let layers = config.num_hidden_layers;
    let latent = opened.switch().is_some();
    let mut out = format!(
        "{layers} layers: blocks.0 to blocks.{}, blocks.-1 is the last, blocks.* are all; B rows, L positions, T keys\n",
        layers.saturating_sub(1)
    );
    // Layers may differ: a point stands where the first layer that has it would list it.
    let in_some = |point: &HookPoint| {
        (0..layers).any(|layer| point.layer.map_or(*point, |_| HookPoint::at(layer, point.kind)).is_in(config))
    };
    for point in HookPoint::all(1).into_iter().filter(in_some) {
        let name = point.to_string().replacen("blocks.0.", "blocks.*.", 1);
        let where_ = match point.kind {
            PointKind::LatentSource | PointKind::LatentInjected if !latent => continue,
            PointKind::LatentSource | PointKind::LatentInjected => "  latent steps",
            PointKind::BoundaryLogits => "  where a token is drawn (generate)",
            PointKind::Result => "  only where it is named",
            _ => "",
        };
        out += format!("{name:<31} {:<18}{where_}", point.kind.shape(config)).trim_end();
        out.push('\n');
    }
    print(&out)
}

/// Bounds of a decode, known before it runs.
pub(crate) struct Reach {
    prompt: usize,
    /// Visible tokens at most; the last one is drawn and not fed.
    visible: usize,
    /// Most latent steps of a block; `None` if the block's rule decides.
    latents: Option<usize>,
}

impl Reach {
    pub fn new(blocks: &Blocks, can_switch: bool, settings: &DecodeSettings, prompt: usize) -> Self {
        let latents = if can_switch { blocks.longest(settings.k_cap) } else { Some(0) };
        Self { prompt, visible: settings.max_new_tokens, latents }
    }

    /// Refuses a hook of a recording or a change that the decode cannot reach.
    ///
    /// # Errors
    /// Why it would never fire.
    pub fn check(&self, recorded: &[HookSpec], edits: &Edits, layers: usize) -> Result<()> {
        recorded.iter().chain(&edits.specs(self.prompt)?).try_for_each(|spec| self.check_one(spec, layers))
    }

    fn check_one(&self, spec: &HookSpec, layers: usize) -> Result<()> {
        let latent = |point: &HookPoint| matches!(point.kind, PointKind::LatentSource | PointKind::LatentInjected);
        let only_latents = spec.resolve(layers)?.iter().all(latent);
        let at_latents = only_latents || matches!(spec.select, Select::Latent { .. });
        let fed = self.visible.saturating_sub(1);
        ensure!(
            !at_latents || self.latents != Some(0),
            "hook `{spec}` would never fire: this model has no latent steps"
        );
        match spec.select {
            Select::Prompt | Select::Text(_) if only_latents => {
                anyhow::bail!("hook `{spec}` would never fire: it exists at latent steps only")
            }
            Select::Text(Some(t)) => ensure!(
                t < fed,
                "hook `{spec}` would never fire: of {} new tokens at most the last is not fed",
                self.visible
            ),
            Select::Latent { steps, .. } => ensure!(
                self.latents.is_none_or(|most| steps.first() < most),
                "hook `{spec}` would never fire: a block has {} latent steps at most",
                self.latents.unwrap_or_default()
            ),
            Select::Position(p) => ensure!(
                self.latents != Some(0) || p < (self.prompt + fed) as isize,
                "hook `{spec}` would never fire: {} prompt and {fed} new tokens at most are fed",
                self.prompt
            ),
            _ => {}
        }
        Ok(())
    }
}
