//! The recurrence against its definition in PyTorch (`fixtures/make_latent.py`): Coconut's loss is set `a`.

use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use serde::Deserialize;
use switchyard::latent::{Gradient, HiddenState, Sequence, unroll};
use switchyard::model::Hooks;
use switchyard::model::gradients::gradients_by_name;

use super::reference::{compare_gradients, fixture, mean_cross_entropy, read, relative, tiny, values};

const LATENT: u32 = 95;

#[derive(Deserialize)]
struct Rows {
    a: Vec<Row>,
    b: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    ids: Vec<u32>,
    prompt: usize,
}

#[test]
fn known_rows_have_the_logits_loss_and_gradients_of_pytorch() {
    let text = std::fs::read_to_string(fixture("latent/rows.json")).expect("the fixture");
    let rows: Rows = serde_json::from_str(&text).expect("rows");
    let reference = read("latent/reference.safetensors");
    let model = tiny("qwen3_tied", &Device::flex().autodiff());
    let sets = [
        ("a", &rows.a, Gradient::Through),
        ("b.through", &rows.b, Gradient::Through),
        ("b.frozen", &rows.b, Gradient::Frozen),
    ];
    for (label, rows, gradient) in sets {
        let make = |(i, r): (usize, &Row)| Sequence::new(i, r.ids.clone(), r.prompt, Some(LATENT)).expect("a row");
        let sequences: Vec<Sequence> = rows.iter().enumerate().map(make).collect();
        let all = unroll(&model, &sequences, &HiddenState, gradient, &mut Hooks::none()).expect("unrolls");
        let mut worst = 0.0_f32;
        for (b, row) in rows.iter().enumerate() {
            let places: Vec<_> = (0..row.ids.len()).map(|p| (b, p)).collect();
            let hidden: Tensor<3> = all.hidden_at(&places).expect("places exist").unsqueeze_dim(0);
            let off =
                relative(&values(&model.unembed(hidden)), &reference[&format!("{label}.row{b}.logits")].data, label);
            assert!(off <= 1e-5, "{label}, row {b}: logits off by {off:e}");
            worst = worst.max(off);
        }
        let decided = rows.iter().enumerate().flat_map(|(b, row)| {
            let targets = (row.prompt..row.ids.len()).filter(|&t| row.ids[t] != LATENT);
            targets.map(move |t| ((b, t - 1), row.ids[t]))
        });
        let (places, targets): (Vec<(usize, usize)>, Vec<u32>) = decided.unzip();
        let loss = mean_cross_entropy(&model, all.hidden_at(&places).expect("places exist"), &targets);
        let (ours, theirs) = (loss.clone().into_scalar::<f32>(), reference[&format!("{label}.loss")].data[0]);
        assert!((ours - theirs).abs() <= 1e-5 * theirs, "{label}: loss {ours}, PyTorch {theirs}");
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let grads = gradients_by_name(&model, &grads).expect("gradients");
        let gradient = compare_gradients(&grads, &reference, label, 1e-4);
        println!("{label}: logits {worst:.1e}, loss {:.1e}, gradients {gradient:.1e}", (ours - theirs).abs() / theirs);
    }
}
