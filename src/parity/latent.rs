//! The recurrence against its definition (`fixtures/make_latent.py`): Coconut's loss is set `a`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use serde::Deserialize;

use super::reference::{self, Deviation, get, mean_cross_entropy, read, values};
use super::{Fixtures, ParityComparison};
use crate::corpus::Row;
use crate::guard::read_text;
use crate::latent::{Gradient, HiddenState, Sequence, unroll};
use crate::model::Hooks;
use crate::model::gradients::gradients_by_name;

/// `<latent>` of the fixtures' rows.
pub(super) const LATENT: u32 = 95;

#[derive(Deserialize)]
struct KnownRow {
    ids: Vec<u32>,
    prompt: usize,
}

/// Rows with latents, of set `a` (one block each) or `b` (several).
pub(super) fn rows_of(fixtures: &Fixtures, set: &str) -> Result<Vec<Row>> {
    let path = fixtures.path("latent/rows.json");
    let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
    let mut sets: BTreeMap<String, Vec<KnownRow>> =
        serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let known = sets.remove(set).with_context(|| format!("{}: no set `{set}`", path.display()))?;
    Ok(known
        .into_iter()
        .map(|r| Row { ids: r.ids, prompt: r.prompt, teacher: None, slots: vec![], noise: None })
        .collect())
}

/// Logits, loss and gradients of known rows with latents.
pub fn known_rows(fixtures: &Fixtures) -> Result<Vec<ParityComparison>> {
    let references = read(&fixtures.path("latent/reference.safetensors"))?;
    let model = fixtures.tiny("qwen3_tied", &fixtures.device.clone().autodiff())?;
    let mut out = vec![];
    for (label, set, gradient) in
        [("a", "a", Gradient::Through), ("b.through", "b", Gradient::Through), ("b.frozen", "b", Gradient::Frozen)]
    {
        let rows = rows_of(fixtures, set)?;
        let make = |(i, r): (usize, &Row)| Sequence::new(i, r.ids.clone(), r.prompt, Some(LATENT));
        let sequences = rows.iter().enumerate().map(make).collect::<Result<Vec<Sequence>>>()?;
        let all = unroll(&model, &sequences, &HiddenState, gradient, &mut Hooks::none())?;
        let mut logits = vec![];
        for (b, row) in rows.iter().enumerate() {
            let places: Vec<_> = (0..row.ids.len()).map(|p| (b, p)).collect();
            let hidden: Tensor<3> = all.hidden_at(&places)?.unsqueeze_dim(0);
            let expected = get(&references, &format!("{label}.row{b}.logits"))?;
            logits.push(Deviation::relative(&values(&model.unembed(hidden))?, &expected.data));
        }
        out.push(ParityComparison::new(format!("latents, set {label}: logits"), 1e-5, logits));
        let decided = rows.iter().enumerate().flat_map(|(b, row)| {
            let targets = (row.prompt..row.ids.len()).filter(|&t| row.ids[t] != LATENT);
            targets.map(move |t| ((b, t - 1), row.ids[t]))
        });
        let (places, targets): (Vec<(usize, usize)>, Vec<u32>) = decided.unzip();
        let loss = mean_cross_entropy(&model, all.hidden_at(&places)?, &targets);
        let off = Deviation::relative(&values(&loss)?, &get(&references, &format!("{label}.loss"))?.data);
        out.push(ParityComparison::new(format!("latents, set {label}: loss"), 1e-5, [off]));
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let found = reference::gradients(&gradients_by_name(&model, &grads)?, &references, label)?;
        out.push(ParityComparison::new(format!("latents, set {label}: gradients"), 1e-4, found));
    }
    Ok(out)
}
