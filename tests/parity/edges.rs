//! Gradients of a lead at the input of every reader of the residual stream, through the recurrence, against PyTorch
//! (`fixtures/make_edges.py`).

use burn::tensor::Device;
use serde::Deserialize;
use switchyard::latent::{HiddenState, Sequence};
use switchyard::study::circuits::edges::EdgeWeights;
use switchyard::study::circuits::gradient::TargetRow;
use switchyard::study::circuits::pulls::pulls;

use super::reference::{fixture, read, relative, tiny};

const LATENT: u32 = 95;

#[derive(Deserialize)]
struct Rows {
    clean: Vec<u32>,
    corrupt: Vec<u32>,
    prompt: usize,
    says: [u32; 2],
}

#[test]
fn every_receiver_has_the_gradient_of_pytorch() {
    let text = std::fs::read_to_string(fixture("attribution/rows.json")).expect("the fixture");
    let rows: Rows = serde_json::from_str(&text).expect("rows");
    let reference = read("attribution/edges.safetensors");
    let model = tiny("qwen3_tied", &Device::flex());
    let weights = EdgeWeights::new(&model).expect("weights");
    let receivers = weights.graph.receivers();
    let row = |ids: &[u32]| Sequence::new(0, ids.to_vec(), rows.prompt, Some(LATENT)).expect("a row");
    let (clean, corrupt) = (row(&rows.clean), row(&rows.corrupt));
    let aimed = [&clean, &corrupt].map(|row| TargetRow { row, says: rows.says, toward: None });
    let found = pulls(&model, &HiddenState, &weights, &aimed).expect("gradients");
    for (name, ours) in ["clean", "corrupt"].into_iter().zip(&found) {
        let theirs = &reference[&format!("{name}.pull")];
        assert_eq!(theirs.shape, [rows.clean.len(), receivers.len(), weights.width]);
        for (i, receiver) in receivers.iter().enumerate() {
            let of = |position: usize| {
                let from = (position * receivers.len() + i) * weights.width;
                theirs.data[from..from + weights.width].to_vec()
            };
            let theirs: Vec<f32> = (0..rows.clean.len()).flat_map(of).collect();
            let ours: Vec<f32> = ours.iter().flat_map(|at| at.row(i).to_vec()).collect();
            let what = format!("{name}, {}", receiver.label());
            assert!(theirs.iter().any(|g| g.abs() > 1e-6), "{what}: nothing to compare");
            let off = relative(&ours, &theirs, &what);
            assert!(off < 1e-4, "{what}: off by {off:e}");
        }
    }
}
