//! `probe info`: what a model's files say of it, without its weights.

use anyhow::{Result, ensure};
use clap::Args;

use super::{ModelArgs, print};
use switchyard::latent::reasoning::FILE;
use switchyard::latent::{Chain, LatentSource, Reasoning, SerialDepth};
use switchyard::model::heads::HeadSizes;

/// Describe a model: shape, way of reasoning, and opaque serial depth.
///
/// Opaque serial depth (arXiv:2603.09786) is the longest chain of computation between two tokens of text: an upper bound on what can be
/// computed without text. In layers, and in operations: 1 for an elementwise operation, log2 n for a sum of n. Reads no weights.
#[derive(Args, Debug)]
pub struct InfoArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Positions that attention sums over; by default the model's most
    #[arg(long, value_name = "N")]
    positions: Option<usize>,
}

impl InfoArgs {
    pub fn run(&self) -> Result<()> {
        let opened = self.model.open()?;
        let config = opened.config();
        let most = config.max_position_embeddings;
        let positions = self.positions.unwrap_or(most);
        ensure!((1..=most).contains(&positions), "--positions must be from 1 to the model's {most}, found {positions}");
        let assumed = || {
            let of_all = if opened.switch().is_some() { Reasoning::default() } else { Reasoning::text("text") };
            Reasoning { method: format!("{} (assumed, it has no {FILE})", of_all.method), ..of_all }
        };
        let reasoning = opened.reasoning.clone().unwrap_or_else(assumed);
        let depth = SerialDepth::new(config, &reasoning.source, HeadSizes::read(opened.heads_folder())?, positions)?;
        let longest = reasoning.longest_block();
        let (mixes, blocks) = (reasoning.source.mixing().is_some(), longest > 0);
        let latents = match (mixes, blocks) {
            (true, _) => format!("states mixed into its text, {}", reasoning.source.name()),
            (_, true) => format!("latents are {}, blocks of up to {longest}", reasoning.source.name()),
            _ => "text only".to_owned(),
        };
        let line = |of: &str, Chain { layers, operations }| {
            format!("  {of:<32}{layers:>8} layers {operations:>9} operations\n")
        };
        let mut said = format!(
            "{}: {}, {} layers, width {}, {} tokens, {most} positions\n{}: {latents}\nopaque serial depth at {positions} positions:\n",
            opened.files.path.display(),
            config.family,
            config.num_hidden_layers,
            config.hidden_size,
            config.vocab_size,
            reasoning.method,
        );
        let plain = depth.chain(0);
        said += &line("text", plain);
        if blocks {
            said += &line(&format!("a block of {longest} latents"), depth.chain(longest));
        }
        if mixes || blocks {
            let one = depth.chain(1);
            let more = Chain { layers: one.layers - plain.layers, operations: one.operations - plain.operations };
            said += &line(if mixes { "each token with a state, more" } else { "each further latent, more" }, more);
        }
        print(&said)
    }
}
