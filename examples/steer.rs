//! Steer: add a direction to the stream at one layer and latent step, at several doses. `cargo run --example steer`

use anyhow::Result;
use switchyard::loading::Loaded;
use switchyard::model::Hooks;

/// Responses when the difference between two start values is added at the first latent step: one line per layer and dose.
pub fn found() -> Result<String> {
    let loaded = Loaded::open("fixtures/micro/sft/checkpoint")?;
    let prompt = |start: usize| format!("<bos> a = {start} ; h = a + 4 ; ? h :");
    let place = |layer: usize| format!("blocks.{layer}.hook_resid_pre@latent[1,1]");
    let [from, to] = [5, 2].map(|start| -> Result<_> {
        let row = loaded.row(&loaded.generate(&prompt(start), &mut Hooks::none())?)?;
        loaded.run_with_cache(&[row], &["blocks.*.hook_resid_pre@latent[1,1]"], Hooks::none())
    });
    let (from, to) = (from?, to?);
    let mut out = String::new();
    for layer in 0..loaded.layers() {
        let place = place(layer);
        let direction: Vec<f32> = from[&place].data.iter().zip(&to[&place].data).map(|(from, to)| to - from).collect();
        for dose in [0.0, 0.5, 1.0, 2.0] {
            let mut hooks = Hooks::none();
            hooks.edit(&place.parse()?, loaded.layers(), |_, values| {
                values.iter_mut().zip(&direction).for_each(|(x, d)| *x += dose * d);
                Ok(())
            })?;
            let trace = loaded.generate(&prompt(5), &mut hooks)?;
            out += &format!("layer {layer}, dose {dose}: {}\n", loaded.said(&trace)?);
        }
    }
    Ok(out)
}

fn main() -> Result<()> {
    print!("{}", found()?);
    Ok(())
}
