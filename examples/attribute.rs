//! Attribution patching: which heads carry the difference between two prompts, by one backward pass through the recurrence (gradient
//! in the corrupt run × difference from the clean run). The largest are checked by patching. `cargo run --example attribute`

use std::path::Path;

use anyhow::{Context, Result};
use switchyard::latent::Switching;
use switchyard::study::Study;
use switchyard::study::circuits::gradient::{TargetRow, slopes};
use switchyard::study::circuits::pairs::decoded;
use switchyard::study::circuits::patch::{Node, Patch, leads, points};

/// The five heads and positions of the largest effect, by gradient and by patch.
pub fn found() -> Result<String> {
    let study = Study::open(Path::new("fixtures/micro"), "sft", Some(1), 0)?;
    let config = study.model.config();
    let prompt = |start: usize| study.corpus.vocabulary.encode(&format!("<bos> a = {start} ; h = a + 4 ; ? h :"));
    // Both are decoded, and cut where their responses diverge.
    let pair = decoded(&study, &[(prompt(5)?, prompt(2)?)], Switching::Free, 1)?.pop();
    let pair = pair.context("the responses do not part after a block")?;
    let heads: Vec<Node> = Node::all_nodes(config).into_iter().filter(|node| matches!(node, Node::Head(..))).collect();
    let aimed = [&pair.clean, &pair.corrupt].map(|row| TargetRow { row, says: pair.says, toward: None });
    let found = slopes(&study.model, &study.reasoning.source, &aimed, &points(heads.clone()), |_, _| true)?;
    let (clean, corrupt) = (&found[0], &found[1]);
    let mut effects = vec![];
    for (node, position) in heads.iter().flat_map(|&node| (0..pair.clean.ids.len()).map(move |p| (node, p))) {
        let (at, part) = ((node.point(), position), node.part(config));
        let moved = part.map(|i| (clean.values[&at][i] - corrupt.values[&at][i]) * corrupt.gradients[&at][i]);
        effects.push((moved.sum::<f32>(), node, position));
    }
    effects.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
    let mut out = format!("the lead is {:.2} in the clean run, {:.2} in the corrupt one\n", clean.lead, corrupt.lead);
    for (effect, node, position) in effects.into_iter().take(5) {
        let patch = Patch::from_run(&clean.values, node, &[position], config)?;
        let patched = leads(&study, &pair.corrupt, &[patch], pair.says)?[0] - corrupt.lead;
        out += &format!("{node:?} at {}: {effect:.2} by gradient, {patched:.2} by patch\n", pair.clean.steps[position]);
    }
    Ok(out)
}

fn main() -> Result<()> {
    print!("{}", found()?);
    Ok(())
}
