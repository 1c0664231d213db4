//! The weights of a Hugging Face folder: one file, or several with an index.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::host::HostTensor;
use super::params::is_buffer;
use super::safetensors::{INDEX, SINGLE, SafetensorsFile};
use super::{Weights, pickle, place};
use crate::guard::read_text;
use switchyard_ops::stored::StoredMatrix;

/// Names of a single weights file and of an index over several, in the order in which transformers tries them.
const FILES: [(&str, &str); 2] = [(SINGLE, INDEX), (pickle::SINGLE, pickle::INDEX)];

/// The files of one model as one set of weights.
pub(super) struct WeightsFolder {
    /// The index, else the single file: errors about a missing name point to it.
    listing: PathBuf,
    files: Vec<Box<dyn Weights>>,
    /// Tensor → its file.
    home: BTreeMap<String, usize>,
}

/// Whether a folder holds weights of a whole model.
pub(super) fn has_weights(dir: &Path) -> bool {
    FILES.iter().any(|(single, index)| dir.join(single).is_file() || dir.join(index).is_file())
}

/// Files that look like weights but have other names, with advice.
fn list_others(dir: &Path) -> String {
    const KINDS: [&str; 10] = ["safetensors", "bin", "pt", "pth", "gguf", "onnx", "h5", "msgpack", "ot", "nemo"];
    const OF_TRAINING: [&str; 5] = ["training_args", "optimizer", "scheduler", "rng_state", "scaler"];
    let is_weights = |name: &String| {
        name.split('.').skip(1).any(|part| KINDS.contains(&part)) && !OF_TRAINING.iter().any(|of| name.starts_with(of))
    };
    if dir.join("zero_to_fp32.py").is_file() {
        return "parts of a DeepSpeed run (join them there: `python zero_to_fp32.py . pytorch_model.bin`)".to_owned();
    }
    let names: Vec<String> = place::names(dir, false).into_iter().filter(is_weights).take(6).collect();
    let hint = if names.iter().any(|name| name.contains("-of-")) {
        " (the index that maps parameters to these files is missing)"
    } else if names.iter().any(|name| name.ends_with(".gguf")) {
        " (a .gguf is opened by its name)"
    } else {
        " (if one is the whole model with transformers' parameter names, rename it)"
    };
    if names.is_empty() { String::new() } else { names.join(", ") + hint }
}

impl WeightsFolder {
    pub fn open(dir: &Path) -> Result<Self> {
        for (single, index) in FILES {
            let (single, index) = (dir.join(single), dir.join(index));
            if single.is_file() {
                let file = open_file(&single)?;
                let home = file.names().into_iter().map(|name| (name, 0)).collect();
                return Ok(Self { listing: single, files: vec![file], home });
            }
            if index.is_file() {
                return Self::open_sharded(dir, index);
            }
        }
        let found = list_others(dir);
        let found = if found.is_empty() { "none".to_owned() } else { format!("other weights: {found}") };
        bail!("{}: expected {SINGLE}, {INDEX} or {}, found {found}", dir.display(), pickle::SINGLE)
    }

    fn open_sharded(dir: &Path, index: PathBuf) -> Result<Self> {
        let origin = index.display().to_string();
        let text = read_text(&index).with_context(|| format!("{origin}: cannot read"))?;
        let value: Value = serde_json::from_str(&text).map_err(|e| anyhow!("{origin}: not valid JSON: {e}"))?;
        let map = value["weight_map"]
            .as_object()
            .ok_or_else(|| anyhow!("{origin}: `weight_map` is missing: expected an object tensor → file"))?;
        let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, shard) in map {
            let shard = shard
                .as_str()
                .ok_or_else(|| anyhow!("{origin}: `weight_map.{name}` must be a file name, found {shard}"))?;
            // An index comes with the download; it must not be able to point outside its folder.
            ensure!(
                !shard.contains(['/', '\\']),
                "{origin}: `weight_map.{name}` must be a file in the same folder, found {shard:?}"
            );
            shards.entry(shard).or_default().push(name);
        }
        let (mut files, mut home, mut astray) = (Vec::new(), BTreeMap::new(), vec![]);
        for (shard, names) in shards {
            let path = dir.join(shard);
            ensure!(path.is_file(), "{origin}: shard {shard} is missing: expected {}", path.display());
            let file = open_file(&path)?;
            // An index may list buffers, which are not read.
            for name in names.into_iter().filter(|name| !is_buffer(name)) {
                match file.shape(name) {
                    Some(_) => drop(home.insert(name.to_string(), files.len())),
                    None => astray.push((name, path.clone())),
                }
            }
            files.push(file);
        }
        // As in transformers: all tensors of the files are used, whether the index lists them or not.
        for (at, file) in files.iter().enumerate() {
            for name in file.names() {
                let first = *home.entry(name.clone()).or_insert(at);
                if first != at {
                    ensure_same(&name, files[first].as_ref(), file.as_ref())?;
                }
            }
        }
        for (name, path) in astray {
            ensure!(
                home.contains_key(name),
                "{}: tensor `{name}` is missing; {} lists it in this file",
                path.display(),
                index.file_name().unwrap_or_default().display()
            );
        }
        Ok(Self { listing: index, files, home })
    }

    fn file(&self, name: &str) -> Option<&dyn Weights> {
        self.home.get(name).and_then(|i| self.files.get(*i)).map(AsRef::as_ref)
    }

    fn need(&self, name: &str) -> Result<&dyn Weights> {
        self.file(name).ok_or_else(|| anyhow!("{}: no tensor named `{name}`", self.listing.display()))
    }
}

/// A tensor may be in two shards, as tied ones are, if both have the same values.
fn ensure_same(name: &str, one: &dyn Weights, other: &dyn Weights) -> Result<()> {
    let [first, second] = [one.file_of(name).display(), other.file_of(name).display()];
    let bits = |file: &dyn Weights| Ok::<_, anyhow::Error>(file.tensor(name)?.data.into_iter().map(f32::to_bits));
    // A tensor of an unsupported type is reported when it is read.
    let (Ok(a), Ok(b)) = (bits(one), bits(other)) else { return Ok(()) };
    let same = one.shape(name) == other.shape(name) && a.eq(b);
    ensure!(
        same,
        "{second}: tensor `{name}` has other values than in {first}: the folder has shards of two models; download it again"
    );
    Ok(())
}

/// A file of weights of either kind, by its name.
pub(super) fn open_file(path: &Path) -> Result<Box<dyn Weights>> {
    Ok(match path.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => Box::new(SafetensorsFile::open(path)?),
        _ => Box::new(pickle::PickleFile::open(path)?),
    })
}

impl Weights for WeightsFolder {
    fn names(&self) -> Vec<String> {
        self.home.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.file(name)?.shape(name)
    }

    fn tensor(&self, name: &str) -> Result<HostTensor> {
        self.need(name)?.tensor(name)
    }

    fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>> {
        self.need(name)?.stored(name, floats)
    }

    fn file_of(&self, name: &str) -> &Path {
        self.file(name).map_or(&self.listing, |file| file.file_of(name))
    }
}
