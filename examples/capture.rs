//! Capture: record attention heads and latent steps of a decoded response. `cargo run --example capture`

use anyhow::Result;
use switchyard::loading::Loaded;
use switchyard::model::Hooks;

const PROMPT: &str = "<bos> a = 5 ; h = a + 4 ; c = h - a ; ? c :";

/// One line per position: its step, the norm of the stream after layer 2, and the key that head 0 of layer 3 attends to most.
pub fn found() -> Result<String> {
    let loaded = Loaded::open("fixtures/micro/sft/checkpoint")?;
    let trace = loaded.generate(PROMPT, &mut Hooks::none())?;
    let row = loaded.row(&trace)?;
    // A dictionary by TransformerLens' names; latent steps are positions like others.
    let names = ["blocks.*.hook_resid_post", "blocks.3.attn.hook_pattern", "latent.hook_injected"];
    let cache = loaded.run_with_cache(std::slice::from_ref(&row), &names, Hooks::none())?;
    let mut out = format!("{} → {}\n", PROMPT, loaded.said(&trace)?);
    for (position, step) in row.steps.iter().enumerate() {
        let state = cache["blocks.2.hook_resid_post"].at(0, position)?;
        let norm = state.iter().map(|x| x * x).sum::<f32>().sqrt();
        // One row of keys per head, side by side; head 0 comes first.
        let pattern = cache["blocks.3.attn.hook_pattern"].at(0, position)?;
        let key = (0..row.ids.len()).max_by(|a, b| pattern[*a].total_cmp(&pattern[*b])).unwrap_or_default();
        let (step, mass) = (step.to_string(), pattern[key]);
        out += &format!("{position:>3} {step:<12} norm {norm:>6.2}, looks at {key:>3} ({mass:.2})\n");
    }
    Ok(out)
}

fn main() -> Result<()> {
    print!("{}", found()?);
    Ok(())
}
