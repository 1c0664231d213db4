//! Properties of a checkpoint, its data or its training that a claim needs, read from manifests and rows, never from a name or a size. Each
//! check returns what it found, for the reader, or why the claim cannot be tested.

use serde::Deserialize;
use serde_json::Value;

use crate::report::folder::{Folder, number};
use switchyard::schema::{ExitGroup, ExitRow, METRICS};

/// A property that a claim needs (`needs` in `paper_tables.toml`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// The model decides when it leaves a block: `K_min` is below `K_cap`, and its blocks have several lengths, or it leaves them as soon
    /// as it may.
    FreeExit,
    /// A vocabulary in which a rank can be a thousand.
    LargeVocabulary,
    /// The paper's main data set.
    Math500,
    /// The brevity reward of right answers with a block varied.
    BrevityVaried,
}

impl Need {
    /// The property found on a checkpoint; empty if its rows lack it.
    ///
    /// # Errors
    /// Why a claim that needs this cannot be tested on it.
    pub(super) fn check(self, folder: &Folder, checkpoint: &str) -> Result<String, String> {
        match self {
            Need::FreeExit => free_exit(folder, checkpoint),
            Need::LargeVocabulary => large_vocabulary(folder, checkpoint),
            Need::Math500 => math500(folder),
            Need::BrevityVaried => brevity_varied(folder),
        }
    }
}

/// A decoding setting of a checkpoint's rows.
fn decoding<'f>(folder: &'f Folder, checkpoint: &str, key: &str) -> Option<&'f Value> {
    let entries = folder.manifest.as_ref()?.as_object()?.iter();
    let mut of = entries.filter(|(name, _)| name.split_once('-').is_some_and(|(_, of)| of == checkpoint));
    of.find_map(|(_, entry)| entry.pointer("/setup/decode")?.get(key))
}

fn free_exit(folder: &Folder, checkpoint: &str) -> Result<String, String> {
    let bound = |key| decoding(folder, checkpoint, key).and_then(Value::as_u64);
    let bounds = bound("k_min").zip(bound("k_cap"));
    if let Some((k_min, k_cap)) = bounds.filter(|(k_min, k_cap)| k_min >= k_cap) {
        return Err(format!(
            "needs a model that decides when it leaves a block: {checkpoint} is decoded with K_min = {k_min} and K_cap = {k_cap}, so every \
             block has one length"
        ));
    }
    let found = "the model decides when it leaves a block";
    let Some((k_min, k_cap)) = bounds else { return Ok(found.into()) };
    let rows = folder.rows::<ExitRow>(checkpoint).iter().filter(|row| row.group == ExitGroup::All);
    let steps: Vec<(u64, usize)> = rows.map(|row| (row.step.shown() as u64, row.blocks)).collect();
    let longest = steps.iter().map(|(step, _)| *step).max().unwrap_or(0);
    let one_length = steps.iter().all(|(_, blocks)| *blocks == steps[0].1);
    if one_length && longest > k_min.max(1) {
        return Err(format!(
            "needs a model that decides when it leaves a block: every block of {checkpoint} has {longest} latents, and none is left at \
             K_min = {k_min}"
        ));
    }
    let lengths = match (steps.is_empty(), one_length) {
        (true, _) => String::new(),
        (false, true) => format!(", and it leaves every block after {longest}"),
        (false, false) => format!(", and its blocks have several lengths of up to {longest} latents"),
    };
    Ok(format!("{found}: K_min = {k_min} < K_cap = {k_cap}{lengths}"))
}

/// A generated task has its own vocabulary of a few dozen words; every other template belongs to a pretrained model. A checkpoint without
/// rows has the vocabulary of the folder's others.
fn large_vocabulary(folder: &Folder, checkpoint: &str) -> Result<String, String> {
    let entries = folder.manifest.as_ref().and_then(Value::as_object).into_iter().flatten();
    let mut others = entries.filter_map(|(_, entry)| entry.pointer("/setup/decode/template")?.as_str());
    match decoding(folder, checkpoint, "template").and_then(Value::as_str).or_else(|| others.next()) {
        Some("words") => {
            Err("needs a vocabulary in which a rank can be a thousand: this one has the words of its task alone".into())
        }
        Some(_) => Ok("the vocabulary is that of a pretrained model".into()),
        None => Ok(String::new()),
    }
}

fn math500(folder: &Folder) -> Result<String, String> {
    let dataset = folder.dataset();
    let plain: String = dataset.chars().filter(char::is_ascii_alphanumeric).collect();
    if plain.to_lowercase().contains("math500") {
        return Ok(format!("the rows are of {dataset}"));
    }
    Err(format!("needs rows of MATH-500, and these are of {dataset}"))
}

/// If `T_lo` is above every length, the term is 1 for each right answer with a block, so its mean is `(r_use + switch rate) / 2` at each step.
fn brevity_varied(folder: &Folder) -> Result<String, String> {
    let steps = folder.flat(METRICS, "brevity");
    let mut paid = steps.iter().filter_map(|step| {
        let all_paid = (number(step, "reward_use")? + number(step, "switch_rate")?) / 2.0;
        Some(number(step, "reward_brevity")? < all_paid - 1e-9)
    });
    match (steps.is_empty(), paid.any(|less| less)) {
        (true, _) => Ok(String::new()),
        (false, true) => Ok("the brevity reward paid short answers more than long ones".into()),
        (false, false) => Err(
            "needs a brevity reward that varies with length: here it paid every right answer with a block in full, at every step \
             (T_lo is above their lengths)"
                .into(),
        ),
    }
}
