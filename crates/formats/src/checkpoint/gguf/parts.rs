//! A model in several files (`NAME-00001-of-00003.gguf`), and files with something other than a model.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use memmap2::Mmap;

use super::super::map_file;
use super::parse::{Contents, parse};
use super::settings::Keys;

/// The files of one model and their joint contents. Settings come from the first file.
pub(super) struct Parts {
    pub paths: Vec<PathBuf>,
    pub maps: Vec<Mmap>,
    pub contents: Contents,
}

impl Parts {
    /// # Errors
    /// A file that is not a model, or not the first part; a part that is missing or belongs to another model.
    pub fn open(path: &Path) -> Result<Self> {
        let (map, contents) = read(path)?;
        let origin = path.display().to_string();
        let keys = Keys { origin: &origin, meta: &contents.meta };
        refuse_others(&keys)?;
        let count = keys.usize("split.count")?.unwrap_or(1).max(1);
        let number = keys.usize("split.no")?.unwrap_or(0);
        if number > 0 {
            let first = sibling(path, number, 0, count);
            let first = first.map_or_else(|| "the first part".to_owned(), |path| path.display().to_string());
            bail!(
                "{origin}: part {} of a model in {count} parts: name the first, {first}; the others are read with it",
                number + 1
            );
        }
        let mut parts = Self { paths: vec![path.to_owned()], maps: vec![map], contents };
        for number in 1..count {
            let next = sibling(path, 0, number, count).ok_or_else(|| {
                anyhow!("{origin}: the first of {count} parts is not called NAME-00001-of-{count:05}.gguf, so the others cannot be found")
            })?;
            parts.add(&next, number, count)?;
        }
        let origin = path.display();
        let keys = Keys { origin: &origin.to_string(), meta: &parts.contents.meta };
        let expected = keys.usize("split.tensors.count")?.filter(|_| count > 1);
        let found = parts.contents.tensors.len();
        ensure!(
            expected.is_none_or(|n| n == found),
            "{origin}: metadata `split.tensors.count` is {}, but the {count} parts have {found} tensors",
            expected.unwrap_or_default()
        );
        Ok(parts)
    }

    fn add(&mut self, path: &Path, number: usize, count: usize) -> Result<()> {
        let origin = path.display().to_string();
        ensure!(path.is_file(), "{origin}: part {} of {count} is missing: put all parts into one folder", number + 1);
        let (map, contents) = read(path)?;
        let keys = Keys { origin: &origin, meta: &contents.meta };
        let says = (keys.usize("split.no")?, keys.usize("split.count")?);
        ensure!(
            says == (Some(number), Some(count)),
            "{origin}: expected part {} of {count}, found `split.no` and `split.count` {says:?}",
            number + 1
        );
        for (name, mut info) in contents.tensors {
            info.part = number;
            ensure!(
                self.contents.tensors.insert(name.clone(), info).is_none(),
                "{origin}: tensor `{name}` is in two parts"
            );
        }
        self.paths.push(path.to_owned());
        self.maps.push(map);
        Ok(())
    }
}

fn read(path: &Path) -> Result<(Mmap, Contents)> {
    let map = map_file(path)?;
    let contents = parse(&map).map_err(|e| anyhow!("{}: {e}", path.display()))?;
    Ok((map, contents))
}

/// The file name of another part of the same model.
fn sibling(path: &Path, own: usize, other: usize, count: usize) -> Option<PathBuf> {
    let (name, ending) = path.file_name()?.to_str()?.rsplit_once('.')?;
    let stem = name.strip_suffix(&format!("-{:05}-of-{count:05}", own + 1))?;
    Some(path.with_file_name(format!("{stem}-{:05}-of-{count:05}.{ending}", other + 1)))
}

/// Whether a file's name marks it as a later part.
pub(in crate::checkpoint) fn is_later_part(name: &str) -> bool {
    let stem = name.rsplit_once('.').filter(|(_, ending)| ending.eq_ignore_ascii_case("gguf")).map(|(stem, _)| stem);
    let numbers = stem.and_then(|stem| stem.rsplit_once("-of-"));
    let own = numbers.filter(|(_, count)| count.len() == 5).and_then(|(stem, _)| stem.rsplit_once('-'));
    own.and_then(|(_, own)| own.parse::<usize>().ok()).is_some_and(|own| own > 1)
}

fn refuse_others(keys: &Keys) -> Result<()> {
    let origin = keys.origin;
    let text = |key: &str| Ok::<_, anyhow::Error>(keys.text(key)?.unwrap_or_default());
    let (kind, arch) = (text("general.type")?, text("general.architecture")?);
    ensure!(
        kind != "adapter" && !keys.meta.contains_key("adapter.type"),
        "{origin}: a LoRA adapter in GGUF, not a model: name the adapter's PEFT folder with --adapter, or merge it into its base with \
         llama-export-lora"
    );
    ensure!(
        kind != "mmproj" && arch != "clip",
        "{origin}: the projector of a vision model (mmproj), not a model: name the model's own .gguf"
    );
    ensure!(arch != "controlvector", "{origin}: control vectors, not a model");
    ensure!(kind != "imatrix", "{origin}: an importance matrix, not a model");
    Ok(())
}
