//! Entropies on disk: parts while scoring, one Parquet file at the end. One record per response position.
//!
//! A part is written under a temporary name and renamed, so a folder has only complete parts; a crash loses unsaved scores only.
//! `source.json` records model and data.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
// No glob import: the prelude has its own `with_context`.
use polars::prelude::{Column, DataFrame};
use serde_json::{Value, json};

use super::samples::Sample;
use super::tagging::TaggedLine;
use crate::store::{file_name, list, parquet, subfolder, write_atomic};
use crate::tokenizer::read_object;

/// Scores of one sample, with its token ids.
struct SampleScores {
    ids: Vec<u32>,
    entropies: Vec<f32>,
}

/// The scores of a folder, on disk and unsaved.
pub(crate) struct Store {
    folder: PathBuf,
    scores: HashMap<String, SampleScores>,
    unsaved: Vec<String>,
    next_part: usize,
}

impl Store {
    /// Opens or creates a folder.
    pub fn open(folder: &Path, source: &str) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot create", folder.display()))?;
        let parts = subfolder(folder, "entropies")?;
        let note = folder.join("source.json");
        match read_object(&note)? {
            None => write_atomic(&note, json!({ "source": source }).to_string().as_bytes())?,
            Some(found) => {
                let found = found.get("source").and_then(|value| value.as_str()).unwrap_or_default();
                ensure!(
                    found == source,
                    "{}: this folder was scored with {found:?}, not {source:?}; choose another folder or delete it",
                    note.display()
                );
            }
        }
        let mut store = Store { folder: parts, scores: HashMap::new(), unsaved: Vec::new(), next_part: 0 };
        for file in store.part_files()? {
            store.read_part(&file)?;
        }
        Ok(store)
    }

    /// Parts in order. Temporary files of a crashed run are not parts.
    fn part_files(&mut self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for path in list(&self.folder)? {
            let name = file_name(&path);
            let number = name.strip_prefix("part-").and_then(|name| name.strip_suffix(".parquet"));
            if let Some(number) = number.and_then(|number| number.parse::<usize>().ok()) {
                files.push((number, path));
            }
        }
        files.sort();
        self.next_part = files.last().map_or(0, |(number, _)| number + 1);
        Ok(files.into_iter().map(|(_, path)| path).collect())
    }

    fn read_part(&mut self, file: &Path) -> Result<()> {
        let context = || format!("{}: not a part of entropies; delete it to score its samples again", file.display());
        let frame = parquet::read(file).with_context(context)?;
        let ids = frame.column("id").and_then(|column| column.str()).with_context(context)?;
        let tokens = frame.column("token_id").and_then(|column| column.u32()).with_context(context)?;
        let entropies = frame.column("entropy").and_then(|column| column.f32()).with_context(context)?;
        for ((id, token), entropy) in ids.iter().zip(tokens.iter()).zip(entropies.iter()) {
            let (Some(id), Some(token), Some(entropy)) = (id, token, entropy) else {
                bail!("{}", context());
            };
            let scores = match self.scores.get_mut(id) {
                Some(scores) => scores,
                None => {
                    let empty = SampleScores { ids: Vec::new(), entropies: Vec::new() };
                    self.scores.entry(id.to_string()).or_insert(empty)
                }
            };
            scores.ids.push(token);
            scores.entropies.push(entropy);
        }
        Ok(())
    }

    /// Whether a sample has been scored. Fails if one with the same name but other tokens has been.
    pub fn has(&self, sample: &Sample) -> Result<bool> {
        let Some(scores) = self.scores.get(&sample.id) else {
            return Ok(false);
        };
        ensure!(
            scores.ids == sample.response,
            "sample {}: its response is not the one in {}; choose another folder or delete it",
            sample.id,
            self.folder.display()
        );
        Ok(true)
    }

    /// Samples that are not on disk yet.
    pub(crate) fn unsaved(&self) -> usize {
        self.unsaved.len()
    }

    /// Adds the scores of a sample.
    pub fn add(&mut self, sample: &Sample, entropies: Vec<f32>) -> Result<()> {
        ensure!(
            entropies.len() == sample.response.len(),
            "sample {}: expected {} entropies, one per response token, found {}",
            sample.id,
            sample.response.len(),
            entropies.len()
        );
        // Rounding can make the entropy of a softmax slightly negative.
        if let Some(position) = entropies.iter().position(|entropy| !entropy.is_finite() || *entropy < -1e-3) {
            bail!("sample {}: entropy {} at response token {position}", sample.id, entropies[position]);
        }
        self.unsaved.push(sample.id.clone());
        self.scores.insert(sample.id.clone(), SampleScores { ids: sample.response.clone(), entropies });
        Ok(())
    }

    /// Writes unsaved scores as a new part.
    pub(crate) fn save_part(&mut self) -> Result<()> {
        if self.unsaved.is_empty() {
            return Ok(());
        }
        let (mut ids, mut positions, mut tokens, mut entropies) = (vec![], vec![], vec![], vec![]);
        for id in &self.unsaved {
            let scores = &self.scores[id];
            for (position, (token, entropy)) in scores.ids.iter().zip(&scores.entropies).enumerate() {
                ids.push(id.as_str());
                positions.push(position as u32);
                tokens.push(*token);
                entropies.push(*entropy);
            }
        }
        let columns = vec![
            Column::new("id".into(), ids),
            Column::new("position".into(), positions),
            Column::new("token_id".into(), tokens),
            Column::new("entropy".into(), entropies),
        ];
        write_parquet(&self.folder.join(format!("part-{:05}.parquet", self.next_part)), columns)?;
        self.next_part += 1;
        self.unsaved.clear();
        Ok(())
    }

    /// The scores of a sample.
    pub fn get(&self, sample: &Sample) -> Result<Vec<f32>> {
        let scores = self.scores.get(&sample.id).with_context(|| format!("sample {}: was not scored", sample.id))?;
        Ok(scores.entropies.clone())
    }
}

/// Writes every entropy of a corpus, with the tag of its position.
pub fn write_all(file: &Path, samples: &[Sample], entropies: &[Vec<f32>], tagged: &[TaggedLine]) -> Result<()> {
    let (mut ids, mut positions, mut tokens, mut texts) = (vec![], vec![], vec![], vec![]);
    let (mut values, mut in_answer, mut in_span) = (vec![], vec![], vec![]);
    for ((sample, entropies), tagged) in samples.iter().zip(entropies).zip(tagged) {
        for (position, entropy) in entropies.iter().enumerate() {
            ids.push(sample.id.as_str());
            positions.push(position as u32);
            tokens.push(sample.response[position]);
            texts.push(sample.token(position));
            values.push(*entropy);
            in_answer.push(sample.answer.as_ref().is_some_and(|answer| answer.contains(&position)));
            in_span.push(tagged.spans.iter().any(|span| span.contains(&position)));
        }
    }
    let columns = vec![
        Column::new("id".into(), ids),
        Column::new("position".into(), positions),
        Column::new("token_id".into(), tokens),
        Column::new("token".into(), texts),
        Column::new("entropy".into(), values),
        Column::new("in_answer".into(), in_answer),
        Column::new("in_span".into(), in_span),
    ];
    write_parquet(file, columns)
}

fn write_parquet(file: &Path, columns: Vec<Column>) -> Result<()> {
    let frame = DataFrame::new_infer_height(columns);
    parquet::write(file, &mut frame.with_context(|| format!("{}: cannot write", file.display()))?, &Value::Null)
}
