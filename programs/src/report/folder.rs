//! A folder of results in memory: its Parquet records by experiment and checkpoint, and its manifest. Knows file names, not the meaning of
//! numbers. A missing file has no records and is not an error.
//!
//! Records with a struct in [`switchyard::schema`] are read as that struct; others as columns by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::mixture;
use switchyard::guard::read_text;
use switchyard::method::declared;
use switchyard::schema::{
    CalibrationRow, ExitRow, GRPO_START, KNOWN, KnownRows, METRICS, PhaseRow, ProbeRow, RAW, RowFile, SwitchBenefitRow,
    TeacherForcedRow, TypedRows, WindowRow,
};
use switchyard::stats::Estimate;
use switchyard::store::{FlatRow, read, read_carried, read_flat};

/// Position of a checkpoint in the order of training; those that are not a method's phase follow.
pub(super) fn place(checkpoint: &str) -> usize {
    declared().iter().position(|phase| phase.name == checkpoint).unwrap_or(usize::MAX)
}

/// Error rates of the tests, measured once per version of the program.
const CALIBRATION: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../reports/calibration/calibration-hand_built.parquet"));

pub struct Folder {
    /// Last part of its path.
    pub name: String,
    pub path: PathBuf,
    /// Of the records; in a run folder, with the run's own keys.
    pub manifest: Option<Value>,
    /// The checkpoints for the paper's "after SFT" and "after Switch-GRPO".
    pub sft: String,
    pub grpo: String,
    /// The checkpoint that Switch-GRPO started from, if not the finished one after SFT: claims about RL compare with it.
    pub start: String,
    /// Accuracy of the tests: from the folder `calibration` next to it, else from `reports/calibration` embedded in the program.
    pub calibration: Vec<CalibrationRow>,
    /// Files that could not be read, with the reason.
    pub unreadable: Vec<String>,
    /// Files that were excluded because their records have another origin (weights, adapter, float type, decoding, data) than the others of their
    /// checkpoint, or do not match the manifest, with the difference.
    pub mixed: Vec<String>,
    /// Whether the paper's numbers were requested for any model.
    asked: bool,
    files: BTreeMap<(String, String), File>,
}

struct File {
    flat: Vec<FlatRow>,
    /// The records as a `Vec` of their struct, if they have one.
    typed: Option<TypedRows>,
}

/// Refuses one folder under two names: its records would count twice.
pub(super) fn once(folders: &[Folder]) -> Result<()> {
    let mut seen = BTreeMap::new();
    for Folder { path, .. } in folders {
        if let Some(other) = seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone()), path) {
            bail!("{}: is named twice (also as {}): name each folder once", path.display(), other.display());
        }
    }
    Ok(())
}

/// Renames folders with the same name (`a/micro`, `b/micro`) by as many parts of their paths as tell them apart: a page or a table names them
/// side by side.
pub fn tell_apart(folders: &mut [Folder]) {
    let parts = |folder: &Folder| -> Vec<String> {
        let whole = folder.path.canonicalize().unwrap_or_else(|_| folder.path.clone());
        whole.iter().map(|part| part.to_string_lossy().into_owned()).collect()
    };
    let paths: Vec<Vec<String>> = folders.iter().map(parts).collect();
    let tail = |path: &[String], n: usize| path[path.len().saturating_sub(n)..].join("/");
    for (at, folder) in folders.iter_mut().enumerate() {
        let own = &paths[at];
        let alone =
            |n: &usize| paths.iter().enumerate().all(|(other, path)| other == at || tail(path, *n) != tail(own, *n));
        if let Some(n) = (1..=own.len()).find(alone).filter(|n| *n > 1) {
            folder.name = tail(own, n);
        }
    }
}

impl Folder {
    /// Reads `<experiment>-<checkpoint>.parquet`, and for a run folder of `train` also `<phase>/metrics.parquet` and `reports/`.
    pub fn open(path: &Path) -> Result<Self> {
        ensure!(path.is_dir(), "{}: not a folder; name one that `probe`, `intervene` or `train` wrote", path.display());
        let name = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let name = name.file_name().map_or_else(|| "results".into(), |n| n.to_string_lossy().into_owned());
        let [sft, grpo, start] = ["sft", "grpo", GRPO_START].map(str::to_owned);
        let mut folder = Self {
            name,
            path: path.to_path_buf(),
            manifest: None,
            sft,
            grpo,
            start,
            calibration: vec![],
            unreadable: vec![],
            mixed: vec![],
            asked: false,
            files: BTreeMap::new(),
        };
        folder.read_calibration();
        folder.manifest = folder.read_manifest(path);
        let strangers = folder.manifest.as_ref().map(|m| mixture::find_excluded(path, m)).unwrap_or_default();
        for entry in sorted(path)? {
            let own = entry.file_name().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            let metrics = entry.join(format!("{METRICS}.parquet"));
            if metrics.is_file() {
                folder.add(METRICS, &own, &metrics);
            } else if entry.is_dir() && own == "reports" {
                let inner = folder.read_manifest(&entry);
                let strangers = inner.as_ref().map(|m| mixture::find_excluded(&entry, m)).unwrap_or_default();
                sorted(&entry)?.iter().for_each(|file| folder.add_file(file, &strangers));
                folder.manifest = match (folder.manifest.take(), inner) {
                    (Some(Value::Object(run)), Some(Value::Object(rows))) => {
                        Some(Value::Object(run.into_iter().chain(rows).collect()))
                    }
                    (run, rows) => rows.or(run),
                };
            } else {
                folder.add_file(&entry, &strangers);
            }
        }
        ensure!(
            !folder.files.is_empty(),
            "{}: holds no rows (*.parquet){}; `probe` and `intervene` write them",
            path.display(),
            folder.unreadable.first().map(|why| format!(" that can be read ({why})")).unwrap_or_default()
        );
        Ok(folder)
    }

    /// `manifest.json` of a folder, if it has a readable one.
    fn read_manifest(&mut self, folder: &Path) -> Option<Value> {
        let manifest = folder.join("manifest.json");
        if !manifest.is_file() {
            return None;
        }
        let read = read_text(&manifest).map_err(anyhow::Error::from);
        match read.and_then(|text| serde_json::from_str(&text).map_err(anyhow::Error::from)) {
            Ok(value) => Some(value),
            Err(why) => {
                self.unreadable.push(format!("manifest.json: {why}"));
                None
            }
        }
    }

    fn read_calibration(&mut self) {
        let rows = format!("{}-{}.parquet", CalibrationRow::NAME, CalibrationRow::CHECKPOINT);
        let file = self.path.join("..").join(CalibrationRow::NAME).join(rows);
        let rows = if file.is_file() { read(&file) } else { read_carried(CALIBRATION) };
        match rows {
            Ok(rows) => self.calibration = rows,
            Err(why) => self.unreadable.push(format!("{why:#}")),
        }
    }

    /// Records of `reports/calibration` embedded in the program.
    #[cfg(test)]
    pub(crate) fn calibration_of_this_program() -> anyhow::Result<Vec<CalibrationRow>> {
        read_carried(CALIBRATION)
    }

    /// Whether it has only the calibration of tests, and no checkpoint.
    pub(crate) fn is_calibration(&self) -> bool {
        self.files.keys().all(|(rows, _)| rows == CalibrationRow::NAME)
    }

    /// This folder with the paper's tables and claims, for any model.
    pub fn with_paper(self, asked: bool) -> Self {
        Self { asked, ..self }
    }

    /// Whether the paper's tables and claims are shown: there is a checkpoint for the paper's SFT or GRPO. For a user's own model only if
    /// requested.
    pub(crate) fn beside_paper(&self) -> bool {
        let stands = |checkpoint: &str| [&self.sft, &self.grpo, &self.start].iter().any(|role| **role == checkpoint);
        !self.is_calibration() && (self.asked || self.files.keys().any(|(_, checkpoint)| stands(checkpoint)))
    }

    /// Whether the paper's tables and claims are shown even without rows for them.
    pub(crate) fn is_paper_requested(&self) -> bool {
        self.asked
    }

    /// This folder with other checkpoints in the roles that the paper names.
    pub fn named(self, sft: &str, grpo: &str, start: &str) -> Self {
        let [sft, grpo, start] = [sft, grpo, start].map(str::to_owned);
        Self { sft, grpo, start, ..self }
    }

    /// The checkpoint that GRPO is compared with in records of these experiments: its start or, without records of it, the finished one after SFT
    /// (then [`Self::no_start`] is printed).
    pub(crate) fn before_grpo(&self, experiments: &[&str]) -> &str {
        let measured = |e: &&str| match *e {
            PhaseRow::NAME => self.phases().iter().any(|row| row.phase == self.start),
            other => self.file(other, &self.start).is_some(),
        };
        if experiments.iter().any(measured) { &self.start } else { &self.sft }
    }

    /// The note on a comparison without records of GRPO's start.
    pub(crate) fn no_start(&self) -> String {
        format!("no rows of `{}` here, so the finished `{}` is used as the start of GRPO", self.start, self.sft)
    }

    fn add_file(&mut self, file: &Path, strangers: &BTreeMap<String, String>) {
        if file.extension().is_some_and(|e| e == "parquet")
            && let Some(stem) = file.file_stem().and_then(|s| s.to_str())
        {
            if let Some(why) = strangers.get(stem) {
                self.mixed.push(why.clone());
                return;
            }
            let (experiment, checkpoint) = stem.split_once('-').unwrap_or((stem, ""));
            if !RAW.contains(&experiment) {
                self.add(experiment, checkpoint, file);
            }
        }
    }

    fn add(&mut self, experiment: &str, checkpoint: &str, file: &Path) {
        let known = KNOWN.iter().find(|known| known.name == experiment);
        match read_flat(file).and_then(|flat| typed_or_flat(flat, known).with_context(|| file.display().to_string())) {
            Ok((rows, lost)) => {
                self.files.insert((experiment.to_owned(), checkpoint.to_owned()), rows);
                self.unreadable.extend(lost.map(|lost| format!("{}: {lost}", file.display())));
            }
            Err(why) => self.unreadable.push(format!("{why:#}")),
        }
    }

    fn file(&self, experiment: &str, checkpoint: &str) -> Option<&File> {
        self.files.get(&(experiment.to_owned(), checkpoint.to_owned()))
    }

    /// Records of a checkpoint; empty if the file is missing.
    pub fn rows<R: RowFile>(&self, checkpoint: &str) -> &[R] {
        self.rows_in(R::NAME, checkpoint)
    }

    /// Records of a checkpoint from a file with another name.
    pub(crate) fn rows_in<R: RowFile>(&self, experiment: &str, checkpoint: &str) -> &[R] {
        let typed = self.file(experiment, checkpoint).and_then(|file| file.typed.as_ref());
        typed.and_then(|rows| rows.downcast_ref::<Vec<R>>()).map_or(&[], Vec::as_slice)
    }

    /// A run's records of its phases.
    pub fn phases(&self) -> &[PhaseRow] {
        self.rows("")
    }

    /// Records of the phases of every run in the folder: its own (`summary`), and those of other seeds (`summary-seed1`), each seed once.
    pub(crate) fn runs(&self) -> Vec<&[PhaseRow]> {
        let names =
            self.checkpoints(PhaseRow::NAME).into_iter().filter(|name| name.is_empty() || name.starts_with("seed"));
        let mut runs: BTreeMap<u64, &[PhaseRow]> = BTreeMap::new();
        for rows in names.map(|name| self.rows::<PhaseRow>(name)) {
            if let Some(first) = rows.first() {
                runs.entry(first.identity.seed).or_insert(rows);
            }
        }
        runs.into_values().collect()
    }

    /// The columns of a file by name.
    pub fn flat(&self, experiment: &str, checkpoint: &str) -> &[FlatRow] {
        self.file(experiment, checkpoint).map_or(&[], |file| &file.flat)
    }

    /// Checkpoints with records of a kind.
    pub fn checkpoints_with<R: RowFile>(&self) -> Vec<&str> {
        self.checkpoints(R::NAME)
    }

    /// Rows of a kind, checkpoint by checkpoint.
    pub(super) fn all<R: RowFile>(&self) -> impl Iterator<Item = (&str, &R)> {
        self.checkpoints_with::<R>().into_iter().flat_map(|c| self.rows::<R>(c).iter().map(move |row| (c, row)))
    }

    /// The paper's checkpoints with a counterpart of ours in rows of this kind, by the names of its columns and of a legend.
    pub(super) fn papers(&self, experiment: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
        let named = [(&self.sft, ("sft", "paper, SFT")), (&self.grpo, ("grpo", "paper, Switch-GRPO"))];
        named.into_iter().filter(move |(ours, _)| self.has(experiment, ours)).map(|(_, theirs)| theirs)
    }

    /// Checkpoints that an experiment has rows of.
    pub fn checkpoints(&self, experiment: &str) -> Vec<&str> {
        let mut found: Vec<&str> =
            self.files.iter().filter(|((e, _), _)| e == experiment).map(|((_, c), _)| c.as_str()).collect();
        found.sort_by_key(|c| place(c));
        found
    }

    /// Every checkpoint with records, once per file.
    pub fn all_checkpoints(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(|(_, checkpoint)| checkpoint.as_str())
    }

    /// Whether there is a file of these records.
    pub(crate) fn has(&self, experiment: &str, checkpoint: &str) -> bool {
        self.file(experiment, checkpoint).is_some()
    }

    /// All files: experiment, checkpoint, number of rows.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str, usize)> {
        self.files.iter().map(|((e, c), rows)| (e.as_str(), c.as_str(), rows.flat.len()))
    }

    /// Names of the checkpoints in their rows (`micro/sft`), in the order of training.
    pub(crate) fn models(&self) -> Vec<&str> {
        let mut found: Vec<(usize, &str)> = vec![];
        for ((_, checkpoint), file) in &self.files {
            let Some(name) = file.flat.first().and_then(|row| text(row, "checkpoint")) else { continue };
            if !found.iter().any(|(_, other)| *other == name) {
                found.push((place(checkpoint), name));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// A text in the setup of records.
    pub(crate) fn setup(&self, experiment: &str, checkpoint: &str, key: &str) -> Option<&str> {
        self.manifest.as_ref()?.get(format!("{experiment}-{checkpoint}"))?.get("setup")?.get(key)?.as_str()
    }

    /// Whether a checkpoint has no blocks by its manifest: a model that never learnt to switch, or a method with text only. Measurements of
    /// `<swi>` are then of an untrained token.
    pub(crate) fn is_plain(&self, checkpoint: &str) -> bool {
        let entries = self.manifest.as_ref().and_then(Value::as_object).into_iter().flatten();
        let mut rules = entries
            .filter(|(name, _)| name.split_once('-').is_some_and(|(_, of)| of == checkpoint))
            .filter_map(|(_, entry)| entry.pointer("/setup/decode/blocks/rule")?.as_str())
            .peekable();
        rules.peek().is_some() && rules.all(|rule| rule == "never")
    }

    /// Warnings about measurements of `<swi>` on checkpoints that never learnt it.
    pub(crate) fn untrained(&self) -> Vec<String> {
        let switching =
            [TeacherForcedRow::NAME, WindowRow::NAME, ExitRow::NAME, ProbeRow::NAME, SwitchBenefitRow::NAME];
        let measured = switching.into_iter().flat_map(|rows| self.checkpoints(rows));
        let plain = distinct(measured).into_iter().filter(|checkpoint| self.is_plain(checkpoint));
        plain
            .map(|checkpoint| {
                let name = called(checkpoint);
                format!("untrained token: {name} never learnt <swi>; its numbers about switching are of a token without training")
            })
            .collect()
    }

    /// Largest number of problems of a file of rows.
    pub(crate) fn problems(&self) -> Option<usize> {
        let n = |file: &File| usize::try_from(file.flat.first()?.get("n")?.as_i64()?).ok();
        self.files.values().filter_map(n).max()
    }

    /// The data set of the records, e.g. `chains`.
    pub fn dataset(&self) -> String {
        let named = self.files.values().filter_map(|rows| text(rows.flat.first()?, "dataset"));
        let names: Vec<&str> = named.collect::<BTreeSet<_>>().into_iter().collect();
        if names.is_empty() { self.name.clone() } else { names.join(", ") }
    }
}

/// Records as their struct, if they have one. A value that is not a number (NaN and infinities are null) removes its estimate, or its record
/// if the struct requires it; the second result lists them.
fn typed_or_flat(mut flat: Vec<FlatRow>, known: Option<&KnownRows>) -> Result<(File, Option<String>)> {
    let mut lost: Vec<String> = vec![];
    for (number, row) in flat.iter_mut().enumerate() {
        lost.extend(without_numbers(row).into_iter().map(|key| format!("{key} of row {number} is not a number")));
    }
    let read = |rows: &[FlatRow]| known.map(|known| (known.read)(rows)).transpose();
    let typed = match read(&flat) {
        Ok(typed) => typed,
        Err(why) => {
            let (mut kept, all) = (vec![], flat.len());
            for (number, row) in flat.into_iter().enumerate() {
                match read(std::slice::from_ref(&row)) {
                    Ok(_) => kept.push(row),
                    Err(_) => lost.push(format!("row {number} is left out")),
                }
            }
            flat = kept;
            let again = "make them again with the command in manifest.json";
            ensure!(!flat.is_empty() || all == 0, "records of another version: {why:#}; {again}");
            read(&flat)?
        }
    };
    let more = if lost.len() > 3 { format!(" and {} more", lost.len() - 3) } else { String::new() };
    let said = (!lost.is_empty()).then(|| format!("{}{more}", lost[..lost.len().min(3)].join(", ")));
    Ok((File { flat, typed }, said))
}

/// Removes estimates with a missing part; returns their keys.
fn without_numbers(row: &mut FlatRow) -> Vec<String> {
    let keys: Vec<String> = row.keys().filter_map(|key| Some(key.strip_suffix(".n")?.to_owned())).collect();
    let parts = |key: &str| ["value", "low", "high", "n"].map(|part| format!("{key}.{part}"));
    let broken = |key: &String| {
        let values = parts(key).map(|part| row.get(&part).map(Value::is_null));
        // All four columns exist, some with a number and some without.
        values.iter().all(Option::is_some) && values.contains(&Some(true)) && values.contains(&Some(false))
    };
    let broken: Vec<String> = keys.into_iter().filter(broken).collect();
    for part in broken.iter().flat_map(|key| parts(key)) {
        row.insert(part, Value::Null);
    }
    broken
}

/// Distinct names in order of first occurrence.
pub(super) fn distinct<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all: Vec<&str> = vec![];
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Display name of a checkpoint.
pub(super) fn called(checkpoint: &str) -> String {
    match checkpoint {
        "sft" => "after SFT".into(),
        "grpo_start" => "where GRPO starts".into(),
        "grpo" => "after Switch-GRPO".into(),
        other => other.into(),
    }
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = read.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// The estimate `<key>.value`, `.low`, `.high`, `.n`; `None` if the interval is missing or not ordered.
pub fn estimate(row: &FlatRow, key: &str) -> Option<Estimate> {
    let part = |part: &str| row.get(&format!("{key}.{part}"));
    let (value, low, high) = (part("value")?.as_f64()?, part("low")?.as_f64()?, part("high")?.as_f64()?);
    let n = usize::try_from(part("n")?.as_i64()?).ok()?;
    sound(Estimate { value, low, high, n })
}

pub fn number(row: &FlatRow, key: &str) -> Option<f64> {
    row.get(key)?.as_f64()
}

pub fn text<'a>(row: &'a FlatRow, key: &str) -> Option<&'a str> {
    row.get(key)?.as_str()
}

/// A scalar as text; empty if there is none.
pub(crate) fn cell_text(row: &FlatRow, key: &str) -> String {
    match row.get(key) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(s)) => s.clone(),
        Some(other) => other.to_string(),
    }
}

/// The estimate if its interval is finite and ordered.
pub(crate) fn sound(e: Estimate) -> Option<Estimate> {
    let finite = e.low.is_finite() && e.high.is_finite();
    (e.n > 0 && finite && e.low <= e.value && e.value <= e.high).then_some(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_or_inverted_interval_is_no_estimate() {
        let row = |low: f64| {
            serde_json::json!({"a.value": 0.5, "a.low": low, "a.high": 0.6, "a.n": 3}).as_object().cloned().unwrap()
        };
        assert_eq!(estimate(&row(0.4), "a").map(|e| e.n), Some(3));
        assert_eq!(estimate(&row(0.55), "a"), None);
        assert_eq!(estimate(&row(0.4), "b"), None);
    }

    /// A folder with the records of a phase in each of these places below it.
    fn with_phases(places: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for place in places {
            let name = if *place == "sft.old" { METRICS } else { "x-sft" };
            fs::create_dir_all(folder.path().join(place)).expect("a folder");
            let mut writer = switchyard::store::RowWriter::create(&folder.path().join(place), name).expect("a file");
            writer.push(&serde_json::json!({"step": 1, "place": place})).expect("a row");
            writer.finish().expect("a file");
        }
        folder
    }

    #[test]
    fn a_folder_put_aside_is_not_that_of_the_reports() {
        let folder = with_phases(&["reports", "reports.old", "sft.old"]);
        let opened = Folder::open(folder.path()).expect("rows");
        assert_eq!(text(&opened.flat("x", "sft")[0], "place"), Some("reports"));
        assert_eq!(opened.checkpoints(METRICS), ["sft.old"]);
    }

    #[test]
    fn folders_with_one_name_are_told_apart() {
        let folder = with_phases(&["a/m", "b/m", "b/n"]);
        let mut opened: Vec<Folder> =
            ["a/m", "b/m", "b/n"].iter().map(|at| Folder::open(&folder.path().join(at)).expect("rows")).collect();
        tell_apart(&mut opened);
        assert_eq!(opened.iter().map(|folder| folder.name.as_str()).collect::<Vec<_>>(), ["a/m", "b/m", "n"]);
    }
}
