//! The hand-built models of `known`, with a head that looks at the latents and is of no use.
//!
//! | node | what it does | what a tool must say |
//! | --- | --- | --- |
//! | L0H0 | at `<swi>`: copies the digit into the state | writes the operand |
//! | MLP 1 | adds one to the state at each step | writes the result |
//! | L2H0 | at `#`: reads the state of the last latent (of the inert model: the digit) | reads the result |
//! | L3H0 | the decoy: at `#` it looks at the last latent, copies its state to where nothing reads | looks, is not used |
//!
//! The decoy writes to the coordinates of the letters, which no later layer reads and the head gives no weight.

use std::collections::BTreeMap;

use burn::tensor::Device;
use switchyard::model::Decoder;
use switchyard::model::checkpoint::HostTensor;
use switchyard::study::Study;

use super::known::{self, Kind};

/// (layer, head).
pub const WRITER: (usize, usize) = (0, 0);
pub const READER: (usize, usize) = (2, 0);
pub const DECOY: (usize, usize) = (3, 0);
/// Layer of the MLP that counts.
pub const COUNTS: usize = 1;

// Coordinates of the stream, as `known` lays them out.
const STATE: usize = 24;
const COUNTER: usize = 31;
const BIAS: usize = 45;
const LETTERS: usize = 46;
/// Coordinates of a head that RoPE hardly turns.
const SINK: usize = 7;
const PICK: usize = 15;

/// A study of a model with the decoy.
pub fn study(which: Kind, n: usize, seed: u64) -> Study {
    let mut study = known::study(which, n, seed);
    study.subject.model = with_decoy(&study.subject.model);
    study
}

fn with_decoy(model: &Decoder) -> Decoder {
    let vocabulary = known::vocabulary();
    let id = |word: &str| vocabulary.id(word).expect("a word") as usize;
    let mut weights: BTreeMap<String, HostTensor> = model.export().expect("weights").into_iter().collect();
    let mut set = |part: &str, row: usize, column: usize, value: f32| {
        let tensor = weights.get_mut(&format!("model.layers.3.self_attn.{part}.weight")).expect("a weight");
        let columns = tensor.shape[1];
        tensor.data[row * columns + column] = value;
    };
    // As `known`'s queries and keys: everything looks at `<bos>`, `#` harder at the latest latent.
    set("q_proj", SINK, BIAS, 2.2);
    set("q_proj", PICK, id("#"), 31.0);
    set("k_proj", SINK, id("<bos>"), 22.0);
    for (counter, strength) in [(2, 31.0), (3, 41.0), (4, 52.0)] {
        set("k_proj", PICK, COUNTER + counter, strength);
    }
    for value in 0..7 {
        set("v_proj", 0, STATE + value, 0.3 * value as f32 - 0.9);
    }
    set("o_proj", LETTERS, 0, 1.0);
    Decoder::from_weights(model.config(), &Device::flex(), |name| {
        Ok(weights.get(name).cloned().unwrap_or_else(|| panic!("no weight {name}")))
    })
    .expect("weights by hand")
}
