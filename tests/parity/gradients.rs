//! Loss and every parameter's gradient against PyTorch's.

use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};
use switchyard::model::gradients::gradients_by_name;
use switchyard::model::{Decoder, Hooks, Span};

use super::reference::{Reference, TINY, compare_gradients, mean_cross_entropy, read, relative, rows, tiny};

/// Mean cross-entropy of the next token over all rows, as one right-padded batch.
fn loss(model: &Decoder, rows: &[Vec<u32>]) -> Tensor<1> {
    let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
    let width = lengths.iter().copied().max().unwrap_or(0);
    let ids: Vec<Vec<u32>> = rows.iter().map(|r| [r.clone(), vec![0; width - r.len()]].concat()).collect();
    let x = model.embed(&ids).expect("ids in the table");
    let span = Span::prompts(&lengths, false);
    let hidden = model.hidden(x, &span, &mut model.cache(rows.len()), &mut Hooks::none()).expect("a forward");
    let flat = hidden.reshape([rows.len() * width, model.config().hidden_size]);
    let places = rows.iter().enumerate().flat_map(|(b, r)| (0..r.len() - 1).map(move |p| (b * width + p, r[p + 1])));
    let (places, targets): (Vec<i64>, Vec<u32>) = places.map(|(place, target)| (place as i64, target)).unzip();
    let index = Tensor::<1, Int>::from_data(TensorData::new(places, [targets.len()]), &flat.device());
    mean_cross_entropy(model, flat.select(0, index), &targets)
}

#[test]
fn loss_and_gradients_are_those_of_pytorch() {
    for name in TINY {
        let model = tiny(name, &Device::flex().autodiff());
        let all = rows(&read(&format!("tiny/{name}/reference.safetensors")));
        let reference = read(&format!("tiny/{name}/gradients.safetensors"));
        let mut worst = vec![];
        for (label, rows) in [("row1", &all[1..2]), ("batch", &all[..])] {
            let loss = loss(&model, rows);
            let Reference { data, .. } = &reference[&format!("{label}.loss")];
            let ours = loss.clone().into_scalar::<f32>();
            assert!(relative(&[ours], data, "loss") <= 1e-5, "{name}, {label}: loss {ours}, PyTorch {}", data[0]);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            let grads = gradients_by_name(&model, &grads).expect("gradients");
            worst.push(format!("{label} {:.1e}", compare_gradients(&grads, &reference, label, 1e-4)));
        }
        println!("{name}: worst relative difference of a gradient: {}", worst.join(", "));
    }
}
