//! The hand-built models of `known`, with a decoy head that attends to the latents and has no effect.
//!
//! | node | function | expected finding |
//! | --- | --- | --- |
//! | L0H0 | at `<swi>`: copies the digit into the state | writes the operand |
//! | MLP 1 | adds one to the state at each step | writes the result |
//! | L2H0 | at `#`: reads the state of the last latent (of the inert model: the digit) | reads the result |
//! | L3H0 | the decoy: at `#` it looks at the last latent, copies its state to unread coordinates | attends, is not used |

use std::path::PathBuf;
use std::sync::OnceLock;

use switchyard::calibration::known::{self, Built};
use switchyard::experiments::edge_attribution::{self, Config};
use switchyard::schema::{CircuitRow, EdgeRow, Form};
use switchyard::study::Study;

use super::known::{Purpose, of};

/// (layer, head).
pub const WRITER: (usize, usize) = (0, 0);
pub const READER: (usize, usize) = (2, 0);
pub const DECOY: (usize, usize) = (3, 0);
/// Layer of the MLP that counts.
pub const COUNTS: usize = known::COUNTS;

/// A study of a model with the decoy.
pub fn study(which: Purpose, n: usize, seed: u64) -> Study {
    of(&Built { decoy: Some(DECOY), ..Built::new(which) }, n, seed)
}

/// Edges and circuits of the working model with the decoy and one latent step: two gates in series hide the writer from a
/// few steps of integrated gradients.
pub fn one_step_circuit() -> &'static (Vec<EdgeRow>, Vec<CircuitRow>) {
    static FOUND: OnceLock<(Vec<EdgeRow>, Vec<CircuitRow>)> = OnceLock::new();
    FOUND.get_or_init(|| {
        let (file, _folder) = pair_file(5);
        let study = of(&Built { decoy: Some(DECOY), reads: 1, exit: 1, ..Built::new(Purpose::Working) }, 10, 5);
        let forms = vec![Form::Latents];
        let config = Config { pairs_file: Some(file), forms, pairs: 12, steps: 200, random: 10, ..Config::default() };
        edge_attribution::rows(&study, &config).expect("rows")
    })
}

/// Pairs of prompts that differ in the digit: `a b s v :` against `a b s w :`.
pub fn pair_file(seed: u64) -> (PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("pairs.jsonl");
    let letters = ["a", "b", "c", "d", "e"];
    let line = |i: usize| {
        let (x, y) = (letters[i % 5], letters[(i + seed as usize) % 5]);
        let (v, w) = (i % 7, (i + 1 + i % 5) % 7);
        format!("{{\"clean\": \"{x} {y} s {v} :\", \"corrupt\": \"{x} {y} s {w} :\"}}\n")
    };
    std::fs::write(&file, (0..28).map(line).collect::<String>()).expect("a pair file");
    (file, folder)
}
