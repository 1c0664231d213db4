//! Gradients of a lead at every node, through the recurrence, against PyTorch (`fixtures/make_attribution.py`).

use burn::tensor::Device;
use serde::Deserialize;
use switchyard::latent::{HiddenState, Sequence};
use switchyard::study::circuits::gradient::{Slope, TargetRow, slopes};
use switchyard::study::circuits::patch::{Node, points};

use super::reference::{fixture, read, relative, tiny};

const LATENT: u32 = 95;

#[derive(Deserialize)]
struct Rows {
    clean: Vec<u32>,
    corrupt: Vec<u32>,
    prompt: usize,
    says: [u32; 2],
    shares: Vec<f64>,
}

/// The script's name of the node.
fn called(node: Node) -> Option<String> {
    match node {
        Node::Head(layer, 0) => Some(format!("z.{layer}")),
        Node::Head(..) => None,
        Node::Mlp(layer) => Some(format!("mlp.{layer}")),
        Node::Resid(0) => Some("embed".into()),
        Node::Resid(layer) => Some(format!("resid.{}", layer - 1)),
    }
}

#[test]
fn every_node_has_the_gradient_of_pytorch() {
    let text = std::fs::read_to_string(fixture("attribution/rows.json")).expect("the fixture");
    let rows: Rows = serde_json::from_str(&text).expect("rows");
    let reference = read("attribution/reference.safetensors");
    let model = tiny("qwen3_tied", &Device::flex());
    let nodes = Node::all_nodes(model.config());
    let row = |ids: &[u32]| Sequence::new(0, ids.to_vec(), rows.prompt, Some(LATENT)).expect("a row");
    let (clean, corrupt) = (row(&rows.clean), row(&rows.corrupt));
    assert_eq!(clean.latents(), 5, "two blocks");
    let run = |aimed: &[TargetRow]| -> Vec<Slope> {
        slopes(&model, &HiddenState, aimed, &points(nodes.clone()), |_, _| true).expect("gradients")
    };
    let whole = |of: &dyn Fn(usize) -> Vec<f32>| -> Vec<f32> { (0..rows.clean.len()).flat_map(of).collect() };
    // Both rows in one batch, then each step between them.
    let plain = |row| TargetRow { row, says: rows.says, toward: None };
    let ends = run(&[plain(&clean), plain(&corrupt)]);
    let mut worst = 0.0_f32;
    for (name, slope) in ["clean", "corrupt"].into_iter().zip(&ends) {
        let lead = f64::from(reference[&format!("{name}.lead")].data[0]);
        assert!((slope.lead - lead).abs() < 1e-5, "{name}: lead {}, PyTorch {lead}", slope.lead);
        for (node, called) in nodes.iter().filter_map(|&n| Some((n, called(n)?))) {
            for (what, held) in [("value", &slope.values), ("grad", &slope.gradients)] {
                let ours = whole(&|position| held[&(node.point(), position)].clone());
                let at = format!("{name}.{what}.{called}");
                let off = relative(&ours, &reference[&at].data, &at);
                assert!(off < 1e-4, "{at}: off by {off:e}");
                worst = worst.max(off);
            }
        }
    }
    let toward = |&share| TargetRow { row: &corrupt, says: rows.says, toward: Some((&clean, share)) };
    let between = run(&rows.shares.iter().map(toward).collect::<Vec<_>>());
    for (node, called) in nodes.iter().filter_map(|&n| Some((n, called(n)?))) {
        let mean = |position| {
            let mut mean = vec![];
            for slope in &between {
                let gradient = &slope.gradients[&(node.point(), position)];
                mean.resize(gradient.len(), 0.0);
                mean.iter_mut().zip(gradient).for_each(|(m, g)| *m += g / between.len() as f32);
            }
            mean
        };
        let at = format!("between.grad.{called}");
        let off = relative(&whole(&mean), &reference[&at].data, &at);
        assert!(off < 1e-4, "{at}: off by {off:e}");
        worst = worst.max(off);
    }
    // An early step reaches the read-out through the recurrence: its gradient is not 0.
    let early = &ends[0].gradients[&(Node::Resid(0).point(), 6)];
    assert!(early.iter().any(|g| g.abs() > 1e-4));
    println!("worst of values and gradients: {worst:.1e}");
}
