//! What the manifest says that rows depend on. Shared by `probe` and `intervene`.

use serde_json::{Map, Value, json};

use crate::machine;
use crate::study::Study;

/// What the rows of an experiment depend on. `origin` is [`crate::study::Subject::origin`] of the study.
pub fn setup(study: &Study, origin: &Map<String, Value>, settings: Value) -> Value {
    let mut setup = Map::new();
    for (key, value) in [
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("checkpoint", json!(study.subject.name)),
        ("dataset", json!(study.subject.dataset())),
        ("problems", json!(study.subject.corpus.test.len())),
        ("seed", json!(study.seed)),
        ("device", json!(machine::described(&study.device))),
    ] {
        setup.insert(key.to_owned(), value);
    }
    if let Some(batch) = study.batch {
        setup.insert("batch".to_owned(), json!(batch));
    }
    if let Some(shard) = study.shard {
        setup.insert("shard".to_owned(), json!(shard.to_string()));
    }
    setup.extend(origin.clone());
    setup.insert("settings".to_owned(), settings);
    Value::Object(setup)
}
