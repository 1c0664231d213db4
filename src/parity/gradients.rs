//! Loss and every parameter's gradient.

use anyhow::Result;
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData};

use super::recorder::{Call, padded};
use super::reference::{self, Deviation, get, mean_cross_entropy, read, rows, values};
use super::{Fixtures, ParityComparison};
use crate::model::gradients::gradients_by_name;
use crate::model::{Decoder, Hooks};

const BOUND: f64 = 1e-4;

/// A tiny model's loss and gradients, for one row and for a batch.
pub fn gradients(fixtures: &Fixtures, name: &str) -> Result<Vec<ParityComparison>> {
    let model = fixtures.tiny(name, &fixtures.device.clone().autodiff())?;
    let all = rows(&read(&fixtures.path(&format!("tiny/{name}/reference.safetensors")))?)?;
    let references = read(&fixtures.path(&format!("tiny/{name}/gradients.safetensors")))?;
    let mut out = vec![];
    for (label, rows) in [("row1", &all[1..2]), ("batch", &all[..])] {
        let loss = loss(&model, rows)?;
        let off = Deviation::relative(&values(&loss)?, &get(&references, &format!("{label}.loss"))?.data);
        out.push(ParityComparison::new(format!("{name}: loss, {label}"), 1e-5, [off]));
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let found = reference::gradients(&gradients_by_name(&model, &grads)?, &references, label)?;
        out.push(ParityComparison::new(format!("{name}: gradients, {label}"), BOUND, found));
    }
    Ok(out)
}

/// Mean cross-entropy of the next token over all rows, as one right-padded batch.
fn loss(model: &Decoder, rows: &[Vec<u32>]) -> Result<Tensor<1>> {
    let Call { ids, span } = padded(rows, false);
    let hidden = model.hidden(model.embed(&ids)?, &span, &mut model.cache(rows.len()), &mut Hooks::none())?;
    let [_, width, d] = hidden.dims();
    let flat = hidden.reshape([rows.len() * width, d]);
    let places = rows.iter().enumerate().flat_map(|(b, r)| (0..r.len() - 1).map(move |p| (b * width + p, r[p + 1])));
    let (places, targets): (Vec<i64>, Vec<u32>) = places.map(|(place, target)| (place as i64, target)).unzip();
    let index = Tensor::<1, Int>::from_data(TensorData::new(places, [targets.len()]), &flat.device());
    Ok(mean_cross_entropy(model, flat.select(0, index), &targets))
}
