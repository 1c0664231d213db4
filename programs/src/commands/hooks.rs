//! `--hook` and `--list-hooks` for every command that runs known prompts; and the points that a decode can reach.

use anyhow::{Result, bail};
use clap::Args;

use super::print;
use switchyard::interventions::Changes;
use switchyard::latent::{Blocks, DecodeSettings};
use switchyard::loading::Checkpoint;
use switchyard::model::{HookPoint, HookSpec, PointKind, Select};

/// What to change, or a list of the hooks.
#[derive(Args, Debug)]
pub(crate) struct HookArgs {
    /// Change the value at a hook: zero, scale:2, random_norm, rotate:30, add:FILE or swap:FILE, for example
    /// 'blocks.3.hook_resid_post@latent[*,2]=zero' or 'blocks.2.attn.hook_z[head=0,3]@pos[-1]=zero'. FILE is written by --record, or has
    /// one safetensors tensor with the size of one place. Repeatable
    #[arg(long = "hook", value_name = "HOOK=CHANGE")]
    pub hook: Vec<String>,
    /// List the model's hooks with their shapes (B rows, L positions, T keys), and stop
    #[arg(long)]
    pub list_hooks: bool,
}

/// Prints one line per hook, with a pattern for hooks of every layer.
pub(crate) fn list(opened: &Checkpoint) -> Result<()> {
    let config = opened.config();
    let layers = config.num_hidden_layers;
    let latent = opened.switch().is_some();
    let mut out = format!(
        "{layers} layers: blocks.0 to blocks.{}, blocks.-1 is the last, blocks.* are all; B rows, L positions, T keys\n",
        layers.saturating_sub(1)
    );
    // Layers may differ: a point is listed at the first layer that has it.
    let in_some = |point: &HookPoint| {
        (0..layers).any(|layer| point.layer.map_or(*point, |_| HookPoint::at(layer, point.kind)).is_in(config))
    };
    for point in HookPoint::all(1).into_iter().filter(in_some) {
        let name = point.to_string().replacen("blocks.0.", "blocks.*.", 1);
        let where_ = match point.kind {
            kind if kind.is_latent() && !latent => continue,
            kind if kind.is_latent() => "  latent steps",
            PointKind::BoundaryLogits => "  where a token is drawn (generate)",
            PointKind::Result => "  only if it is named",
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
    /// Maximum number of visible tokens; the last one is drawn but not fed.
    visible: usize,
    /// Maximum latent steps of a block; `None` if the block's rule decides.
    latents: Option<usize>,
}

impl Reach {
    pub fn new(blocks: &Blocks, can_switch: bool, settings: &DecodeSettings, prompt: usize) -> Self {
        let latents = if can_switch { blocks.longest(settings.k_cap) } else { Some(0) };
        Self { prompt, visible: settings.max_new_tokens, latents }
    }

    /// Refuses a hook of a recording or a change that the decode cannot reach.
    pub fn check(&self, recorded: &[HookSpec], changes: &Changes, layers: usize) -> Result<()> {
        recorded.iter().chain(&changes.specs(self.prompt)?).try_for_each(|spec| self.check_one(spec, layers))
    }

    fn check_one(&self, spec: &HookSpec, layers: usize) -> Result<()> {
        let only_latents = spec.resolve(layers)?.iter().all(|point| point.kind.is_latent());
        let at_latents = only_latents || matches!(spec.select, Select::Latent { .. });
        let fed = self.visible.saturating_sub(1);
        let positions = self.prompt.saturating_add(fed);
        let why = match spec.select {
            _ if at_latents && self.latents == Some(0) => "this model has no latent steps".to_owned(),
            Select::Prompt | Select::Text(_) if only_latents => "it exists at latent steps only".to_owned(),
            Select::Text(Some(t)) if t >= fed => {
                format!("of {} new tokens at most the last is not fed", self.visible)
            }
            Select::Latent { steps, .. } if self.latents.is_some_and(|most| steps.first() >= most) => {
                format!("a block has {} latent steps at most", self.latents.unwrap_or_default())
            }
            Select::Position(p) if self.latents == Some(0) && usize::try_from(p).is_ok_and(|p| p >= positions) => {
                format!("{} prompt and {fed} new tokens at most are fed", self.prompt)
            }
            _ => return Ok(()),
        };
        bail!("hook `{spec}` would never fire: {why}")
    }
}

#[cfg(test)]
mod tests {
    use switchyard::model::hooks::parse_specs;

    use super::*;

    #[test]
    fn a_position_that_the_most_tokens_reach_is_admitted() {
        let specs = parse_specs("blocks.0.hook_resid_post@pos[3]").expect("a hook");
        let check = |visible| Reach { prompt: 3, visible, latents: Some(0) }.check_one(&specs[0], 1);
        assert!(check(2).is_ok() && check(usize::MAX).is_ok());
        assert!(check(1).is_err());
    }
}
