//! What the requests of users share: prompts, changes, and the model that they are checked against.
//!
//! A verb's file has its request type, which checks itself, before weights are read where that is possible, and runs. The command line, the
//! session and `explore` parse requests and print answers.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use serde::Deserialize;

use super::reach;
use super::unknown_words::{warn_of_missing_start, warn_of_unknown};
use switchyard::interventions::{ChangeReport, Changes};
use switchyard::latent::{Reasoning, Sequence, SwitchIds};
use switchyard::loading::{Checkpoint, Loaded};
use switchyard::model::{Hooks, ModelConfig, Select};
use switchyard::text::{Vocabulary, lines};

/// A text, or its ids.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a prompt must be a text or a list of token ids, whole numbers from 0")]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl Prompt {
    pub fn text(&self) -> Option<&str> {
        if let Prompt::Text(text) = self { Some(text) } else { None }
    }
}

/// A prompt on the command line.
#[derive(Args, Debug)]
pub(super) struct PromptArgs {
    /// The text, as it is
    #[arg(long, conflicts_with = "ids", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Token ids in its place: 1,2,3
    #[arg(long, allow_hyphen_values = true)]
    pub ids: Option<String>,
}

impl PromptArgs {
    /// The prompt, if there is one.
    pub fn read(&self) -> Result<Option<Prompt>> {
        ensure!(self.prompt.as_deref() != Some(""), "the prompt is empty: give at least one token");
        let ids = self.ids.as_deref().map(parse_ids).transpose()?;
        Ok(self.prompt.clone().map(Prompt::Text).or(ids.map(Prompt::Ids)))
    }
}

/// One prompt on the command line, or a file of them.
#[derive(Args, Debug)]
pub(super) struct PromptsArgs {
    #[command(flatten)]
    pub one: PromptArgs,
    /// Many prompts, one a line: {"prompt": "text"} or {"ids": [1, 2, 3]}
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["prompt", "ids"])]
    pub prompts: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptLine {
    prompt: Option<String>,
    ids: Option<Vec<u32>>,
}

impl PromptsArgs {
    /// The prompts, and of a file's the places of their lines.
    pub fn read(&self) -> Result<(Vec<Prompt>, Vec<String>)> {
        let Some(file) = &self.prompts else {
            let prompt = self.one.read()?.context("no prompt: give --prompt, --ids or --prompts")?;
            return Ok((vec![prompt], vec![]));
        };
        let (mut prompts, mut places) = (vec![], vec![]);
        for (place, line) in lines(file)? {
            prompts.push(match serde_json::from_str(&line).with_context(|| place.clone())? {
                PromptLine { prompt: Some(prompt), ids: None } => Prompt::Text(prompt),
                PromptLine { prompt: None, ids: Some(ids) } => Prompt::Ids(ids),
                _ => bail!("{place}: expected either `prompt` or `ids`"),
            });
            places.push(place);
        }
        ensure!(!prompts.is_empty(), "{}: no prompts, expected one JSON object per line", file.display());
        Ok((prompts, places))
    }
}

/// `1,2,3` as ids.
fn parse_ids(text: &str) -> Result<Vec<u32>> {
    if text.trim().is_empty() {
        bail!("--ids is empty: write token ids, for example --ids 1,2,3");
    }
    let one = |part: &str| part.trim().parse().with_context(|| format!("--ids: `{part}` is not a token id"));
    text.split(',').map(one).collect()
}

/// A model that requests are checked against: opened or loaded.
pub(super) struct Subject<'a> {
    pub config: &'a ModelConfig,
    vocabulary: Result<&'a Vocabulary>,
    pub switch: Option<SwitchIds>,
    pub reasoning: Reasoning,
    /// Ids that end a generation.
    pub stop: &'a [u32],
}

impl<'a> From<&'a Checkpoint> for Subject<'a> {
    fn from(opened: &'a Checkpoint) -> Self {
        let reasoning = opened.reasoning.clone().unwrap_or_default();
        let (config, switch, stop) = (opened.config(), opened.switch(), &opened.stop);
        Self { config, vocabulary: opened.text(), switch, reasoning, stop }
    }
}

impl<'a> From<&'a Loaded> for Subject<'a> {
    fn from(loaded: &'a Loaded) -> Self {
        let Loaded { model, vocabulary, switch, stop, reasoning } = loaded;
        let vocabulary = vocabulary.as_ref().context("the model has no tokenizer: give token ids");
        Self { config: model.config(), vocabulary, switch: *switch, reasoning: reasoning.clone(), stop }
    }
}

impl Subject<'_> {
    fn text(&self) -> Result<&Vocabulary> {
        self.vocabulary.as_ref().copied().map_err(|why| anyhow!("{why:#}"))
    }

    /// Token ids of prompts. Warns about unknown words and a missing `<bos>`.
    pub fn encode(&self, prompts: &[Prompt]) -> Result<Vec<Vec<u32>>> {
        self.encode_at(prompts, &[])
    }

    /// The same; an error names the prompt's place, or its index if there are several prompts without places.
    pub fn encode_at(&self, prompts: &[Prompt], places: &[String]) -> Result<Vec<Vec<u32>>> {
        let texts = prompts.iter().filter_map(Prompt::text);
        if texts.clone().next().is_some() {
            warn_of_unknown(self.text()?, "prompts", texts.clone())?;
            warn_of_missing_start(self.text()?, texts);
        }
        let rows = self.config.vocab_size;
        let encode = |prompt: &Prompt| {
            let ids = match prompt {
                Prompt::Text(text) => self.text()?.encode_row(text)?,
                Prompt::Ids(ids) => ids.clone(),
            };
            ensure!(!ids.is_empty(), "the prompt is empty: give at least one token");
            if let Some(id) = ids.iter().find(|id| **id as usize >= rows) {
                bail!("token id {id} is outside the embedding of {rows} rows");
            }
            self.config.ensure_context(ids.len(), || "the prompt".into())?;
            Ok(ids)
        };
        let placed = |(index, prompt): (usize, &Prompt)| match places.get(index) {
            Some(place) => encode(prompt).with_context(|| place.clone()),
            None if prompts.len() > 1 => encode(prompt).with_context(|| format!("prompts[{index}]")),
            None => encode(prompt),
        };
        prompts.iter().enumerate().map(placed).collect()
    }
}

/// Known sequences, run under changes.
pub(super) struct KnownRows {
    pub rows: Vec<Sequence>,
    changes: Changes,
}

impl KnownRows {
    pub fn check(model: &Subject, prompts: &[Prompt], hooks: &[String]) -> Result<Self> {
        ensure!(!prompts.is_empty(), "no prompts");
        let latent = model.switch.map(|ids| ids.latent);
        let row = |(row, ids): (usize, Vec<u32>)| {
            let length = ids.len();
            Sequence::new(row, ids, length, latent)
        };
        let rows: Vec<Sequence> = model.encode(prompts)?.into_iter().enumerate().map(row).collect::<Result<_>>()?;
        let changes = Changes::read(hooks, model.config)?;
        let longest = rows.iter().map(|row| row.ids.len()).max().unwrap_or_default();
        let layers = model.config.num_hidden_layers;
        reach::check(&changes.specs(longest)?, layers, &rows)?;
        // A position that the longest row has may be missing in another.
        for (index, row) in rows.iter().enumerate().filter(|_| rows.len() > 1) {
            let place = || format!("prompts[{index}]");
            let mut specs = changes.specs(row.ids.len()).with_context(place)?;
            specs.retain(|spec| matches!(spec.select, Select::Position(_)));
            reach::check(&specs, layers, std::slice::from_ref(row)).with_context(place)?;
        }
        Ok(Self { rows, changes })
    }

    /// Runs `work` under the changes; also returns their effects.
    pub fn run<T>(&self, work: impl FnOnce(Hooks<'_>) -> Result<T>) -> Result<(T, Vec<ChangeReport>)> {
        let ends: Vec<(usize, usize)> = self.rows.iter().map(|row| row.ids.len()).enumerate().collect();
        self.changes.run((&ends, 0), |_| "no position of these rows reached it".into(), work)
    }
}
