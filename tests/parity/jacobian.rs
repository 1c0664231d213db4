//! Jacobians of the final residual state: on text against TransformerLens (`fixtures/make_jacobian.py`), through the recurrence
//! against finite differences.

use std::collections::BTreeMap;

use burn::tensor::Device;
use serde::Deserialize;
use switchyard::latent::{Gradient, HiddenState, Sequence, unroll};
use switchyard::model::hooks::Recording;
use switchyard::model::{HookPoint, HookSpec, Hooks, PointKind};
use switchyard::study::circuits::jacobian::{Passage, jacobians};
use switchyard::study::circuits::lens::{Fitting, JacobianLens};

use super::reference::{fixture, relative, tiny};

#[derive(Deserialize)]
struct Reference {
    ids: Vec<u32>,
    skip: usize,
    #[serde(rename = "J")]
    jacobians: BTreeMap<usize, Vec<f32>>,
}

#[test]
fn the_jacobian_lens_of_text_is_transformer_lens_own() {
    let text = std::fs::read_to_string(fixture("latent/jacobian.json")).expect("the fixture");
    let reference: Reference = serde_json::from_str(&text).expect("a reference");
    let model = tiny("llama_gqa", &Device::flex());
    let row = Sequence::new(0, reference.ids.clone(), reference.ids.len(), None).expect("a row");
    let places: Vec<usize> = (reference.skip..reference.ids.len() - 1).collect();
    let passage = Passage { row: &row, from: std::slice::from_ref(&places), to: &places };
    assert!(!reference.jacobians.is_empty());
    // A chunk of dimensions that divides the width, and one that does not.
    for together in [8, 7] {
        for (&layer, theirs) in &reference.jacobians {
            let point = HookPoint::at(layer, PointKind::ResidPost);
            let ours = jacobians(&model, &HiddenState, passage, &[point], together).expect("Jacobians");
            let off = relative(&ours.jacobians[&(point, 0)], theirs, "J");
            println!("layer {layer}, {together} together: {off:.1e}");
            assert!(off < 1e-4, "layer {layer}: off by {off:e}");
        }
    }
}

#[test]
fn a_lens_is_read_as_transformer_lens_saves_it_and_fitted_as_it_fits() {
    let text = std::fs::read_to_string(fixture("latent/jacobian.json")).expect("the fixture");
    let reference: Reference = serde_json::from_str(&text).expect("a reference");
    let model = tiny("llama_gqa", &Device::flex());
    let (width, layers) = (model.config().hidden_size, model.config().num_hidden_layers);
    let loaded = JacobianLens::load(&fixture("latent/lens.pt")).expect("theirs");
    let row = Sequence::new(0, reference.ids.clone(), reference.ids.len(), None).expect("a row");
    let short = Sequence::new(1, vec![1, 2], 2, None).expect("a row");
    let how = Fitting { skip: reference.skip, together: 8, threads: 2 };
    let fitted = JacobianLens::fit(&model, &HiddenState, &[row, short], how).expect("ours");
    assert_eq!((fitted.prompts, loaded.prompts, loaded.width), (1, 1, width), "a text that is too short is left out");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lens.pt");
    fitted.save(&path).expect("saved");
    let again = JacobianLens::load(&path).expect("ours again");
    assert_eq!(again.matrices.keys().collect::<Vec<_>>(), reference.jacobians.keys().collect::<Vec<_>>());
    for (layer, theirs) in &reference.jacobians {
        // Half precision has eleven significant bits.
        for (lens, bound) in [(&fitted, 1e-4), (&loaded, 1e-3), (&again, 1e-3)] {
            let off = relative(&lens.matrices[layer].data, theirs, "J");
            assert!(off < bound, "layer {layer}: off by {off:e}");
        }
    }
    loaded.check_fits(width, layers).expect("its own model");
    let wrong = |width, layers| loaded.check_fits(width, layers).expect_err("refused").to_string();
    assert!(wrong(width + 1, layers).contains("the model 33"), "{}", wrong(width + 1, layers));
    assert!(wrong(width, 1).contains("the lens has layer 0"), "{}", wrong(width, 1));
    let states: Vec<f32> = (0..2 * width).map(|i| i as f32 / 7.0 - 3.0).collect();
    let carried = fitted.carry(0, &states).expect("layer 0");
    let by_hand = |h: usize, i: usize| -> f32 {
        (0..width).map(|j| fitted.matrices[&0].data[i * width + j] * states[h * width + j]).sum()
    };
    assert!((carried[width + 3] - by_hand(1, 3)).abs() < 1e-3 && carried.len() == 2 * width);
    assert!(fitted.carry(layers - 1, &states).is_none());
    let no_lens = JacobianLens::load(&fixture("pickle/../latent/jacobian.json")).expect_err("refused").to_string();
    assert!(no_lens.contains("not a file that torch.save wrote"), "{no_lens}");
}

#[test]
fn through_the_recurrence_it_equals_finite_differences() {
    const LATENT: u32 = 95;
    let model = tiny("qwen3_tied", &Device::flex());
    let (layers, width) = (model.config().num_hidden_layers, model.config().hidden_size);
    let row = Sequence::new(0, vec![5, 17, 93, LATENT, LATENT, LATENT, 94, 8, 21], 3, Some(LATENT)).expect("a row");
    let (latent, end) = (3, 8);
    // The last block's output at a latent reaches the end only as the next latent's input.
    for layer in [0, layers - 1] {
        let point = HookPoint::at(layer, PointKind::ResidPost);
        let passage = Passage { row: &row, from: &[vec![latent]], to: &[end] };
        let found = jacobians(&model, &HiddenState, passage, &[point], 16).expect("Jacobians");
        let jacobian = &found.jacobians[&(point, 0)];
        let scale = jacobian.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(scale > 0.0, "layer {layer}: the latent reaches the end");
        let finale: HookSpec = format!("blocks.{}.hook_resid_post", layers - 1).parse().expect("a hook");
        let moved = |column: usize, by: f32| -> Vec<f32> {
            let recording = Recording::for_model(std::slice::from_ref(&finale), model.config()).expect("a recording");
            let mut hooks = Hooks::none();
            let at = format!("{point}@latent[1,1]").parse().expect("a hook");
            hooks
                .edit(&at, layers, move |_, values| {
                    values[column] += by;
                    Ok(())
                })
                .expect("an edit");
            recording.attach(&mut hooks, layers).expect("attached");
            unroll(&model, std::slice::from_ref(&row), &HiddenState, Gradient::Through, &mut hooks).expect("a run");
            drop(hooks);
            let states = recording.tensors(1).expect("states");
            states[0].data[end * width..(end + 1) * width].to_vec()
        };
        for column in [0, 3, width - 1] {
            let h = 1e-2;
            let (up, down) = (moved(column, h), moved(column, -h));
            for (i, (up, down)) in up.iter().zip(&down).enumerate() {
                let (slope, ours) = ((up - down) / (2.0 * h), jacobian[i * width + column]);
                assert!(
                    (slope - ours).abs() < 0.02 * scale,
                    "layer {layer} [{i}, {column}]: {ours}, differences {slope}"
                );
            }
        }
    }
}

#[test]
fn undifferentiable_requests_are_errors() {
    let model = tiny("llama_gqa", &Device::flex());
    let row = Sequence::new(0, vec![1, 2, 3], 3, None).expect("a row");
    let point = [HookPoint::at(0, PointKind::ResidPost)];
    let refused = |from: &[Vec<usize>], to: &[usize], together| {
        let passage = Passage { row: &row, from, to };
        jacobians(&model, &HiddenState, passage, &point, together).expect_err("refused").to_string()
    };
    assert!(refused(&[vec![3]], &[2], 4).contains("position 3 is outside the sequence of 3"));
    assert!(refused(&[vec![]], &[2], 4).contains("no position"));
    assert!(refused(&[vec![0]], &[], 4).contains("no position"));
    assert!(refused(&[vec![0]], &[2], 0).contains("number of dimensions"));
}
