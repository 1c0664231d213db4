//! Patch: replace a latent of one problem by another problem's, and decode on. `cargo run --example patch`

use anyhow::Result;
use switchyard::loading::Loaded;
use switchyard::model::Hooks;

const ASKED: &str = "<bos> a = 5 ; h = a + 4 ; ? h :";
const DONOR: &str = "<bos> a = 2 ; h = a + 4 ; ? h :";

/// Answers when one latent step is replaced by the donor's.
pub fn found() -> Result<String> {
    let loaded = Loaded::open("fixtures/micro/sft/checkpoint")?;
    let donor = loaded.generate(DONOR, &mut Hooks::none())?;
    let name = "latent.hook_injected";
    let cache = loaded.run_with_cache(&[loaded.row(&donor)?], &[name], Hooks::none())?;
    let normal = loaded.generate(ASKED, &mut Hooks::none())?;
    let mut out = format!("{ASKED} → {}\n{DONOR} → {}\n", loaded.said(&normal)?, loaded.said(&donor)?);
    for (nth, &position) in cache[name].positions.iter().enumerate() {
        let (step, state) = (nth + 1, cache[name].at(0, position)?);
        let mut hooks = Hooks::none();
        let place = format!("{name}@latent[1,{step}]").parse()?;
        // A head's part of `blocks.2.attn.hook_z` is patched the same way: `values[head * width..][..width]`.
        hooks.edit(&place, loaded.layers(), |_, values| {
            values.copy_from_slice(&state);
            Ok(())
        })?;
        let patched = loaded.generate(ASKED, &mut hooks)?;
        out += &format!("the donor's latent {step}: {}\n", loaded.said(&patched)?);
    }
    Ok(out)
}

fn main() -> Result<()> {
    print!("{}", found()?);
    Ok(())
}
