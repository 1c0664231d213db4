//! What the manifest says that rows depend on. Shared by `probe` and `intervene`.

use serde_json::{Value, json};

use crate::machine::{self, Compute};
use crate::study::Study;

/// What the rows of an experiment depend on.
pub fn setup(study: &Study, weights: &str, settings: Value) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "checkpoint": study.subject.name,
        "weights": weights,
        "dataset": study.subject.dataset(),
        "problems": study.subject.corpus.test.len(),
        "seed": study.seed,
        "device": machine::name(&study.device),
        "dtype": Compute::of(&study.subject.model).name(),
        "settings": settings,
    })
}
