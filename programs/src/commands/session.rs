//! `probe session`: one loaded model, many requests, for notebooks (`python/src/switchyard/live.py`).
//!
//! A request is one line of JSON on standard input, its answer one line on standard output: `{"ok": …}` or `{"error": "…"}`,
//! in the order of the requests. The session ends with its input, or with Ctrl-C.

mod verbs;

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use super::device::MachineArgs;
use super::generate::{DecodeArgs, Generation, continue_prompts};
use super::hooks::Reach;
use super::lens::{LensChoice, named, token};
use super::tensors::FromEnd;
use super::unknown_words::warn_of_unknown;
use super::{ModelArgs, print, reach, tensors};
use switchyard::interventions::Changes;
use switchyard::latent::{DecodeSettings, Sequence};
use switchyard::loading::{Loaded, RecordedLogits};
use switchyard::machine::Machine;
use switchyard::model::hooks::parse_specs;
use switchyard::model::{HookPoint, HookSpec};
use switchyard::progress::say;

/// Load a model once and answer requests, one line of JSON each. `python/` uses it: `switchyard.load(MODEL)`.
#[derive(Args, Debug)]
pub struct Session {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// A text, or its ids.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a prompt must be a text or a list of token ids, whole numbers from 0")]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// One line of the input.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum SessionRequest {
    /// Describe the model.
    About {},
    /// Continue prompts, in turn or as a batch.
    Generate {
        prompts: Vec<Prompt>,
        #[serde(default)]
        hooks: Vec<String>,
        #[serde(default)]
        settings: DecodeArgs,
        /// Hooks to record, and the file for them.
        record: Option<String>,
        out: Option<PathBuf>,
    },
    /// The activations of known texts, into a file.
    Cache {
        prompts: Vec<Prompt>,
        names: String,
        #[serde(default)]
        hooks: Vec<String>,
        #[serde(default)]
        logits: RecordedLogits,
        out: PathBuf,
    },
    /// A text through a lens.
    Lens {
        prompt: Prompt,
        #[serde(default)]
        lens: LensChoice,
        #[serde(default = "five")]
        top: usize,
        #[serde(default)]
        hooks: Vec<String>,
    },
    /// Patches between pairs of prompts.
    Pairs(verbs::Pairs),
    /// Replaced latent inputs on problems.
    Intervene(verbs::InterveneVerb),
    /// The prompts of problems, and whether texts answer them.
    Problems(verbs::ProblemsVerb),
    /// A linear probe for labels.
    Probe(verbs::ProbeVerb),
}

fn five() -> usize {
    5
}

/// Parses one line of the input.
///
/// # Errors
/// A malformed request, with the wrong key.
fn read_request(line: &[u8]) -> Result<SessionRequest> {
    let ask: Value = serde_json::from_slice(line).context("not a request: expected one JSON object per line")?;
    SessionRequest::deserialize(&ask).map_err(|error| {
        let why = error.to_string();
        let plain =
            [("invalid type: ", "found "), ("usize", "a whole number"), ("u64", "a whole number"), ("f64", "a number")];
        let said = plain.iter().fold(why.clone(), |said, (theirs, ours)| said.replace(theirs, ours));
        match wrong_key(&ask, &why) {
            Some(key) => anyhow::anyhow!("{key}: {said}"),
            None => anyhow::anyhow!("not a request: {said}"),
        }
    })
}

/// The key without which a request fails differently, or not at all.
fn wrong_key(ask: &Value, why: &str) -> Option<String> {
    let fails_alike = |ask: &Value| SessionRequest::deserialize(ask).is_err_and(|error| error.to_string() == why);
    let keys: Vec<&String> = ask.as_object()?.keys().filter(|key| *key != "do").collect();
    for key in keys {
        for inner in ask[key].as_object().into_iter().flat_map(|inner| inner.keys()) {
            let mut rest = ask.clone();
            rest[key].as_object_mut()?.shift_remove(inner);
            if !fails_alike(&rest) {
                return Some(inner.clone());
            }
        }
        let mut rest = ask.clone();
        rest.as_object_mut()?.shift_remove(key);
        if !fails_alike(&rest) {
            return Some(key.clone());
        }
    }
    None
}

impl Session {
    pub fn run(&self) -> Result<()> {
        self.machine.compute(|machine| {
            let room = Room::open(&self.model, machine)?;
            say(&format!("{}: loaded; one request per line", room.name));
            let mut input = std::io::stdin().lock();
            while let Some(line) = next_line(&mut input).context("standard input")? {
                let answer = match line.len() {
                    _ if line.trim_ascii().is_empty() => continue,
                    0..=LONGEST_LINE => room.answer(&line, machine),
                    _ => json!({ "error": format!("a request has at most {LONGEST_LINE} bytes: split it") }),
                };
                print(&format!("{answer}\n"))?;
            }
            Ok(())
        })
    }
}

/// Bytes of a request, at most.
const LONGEST_LINE: usize = 64 << 20;

/// The next line without its end; of a line that is too long only enough to detect it; `None` at the end of the input.
fn next_line(input: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = vec![];
    let read = input.by_ref().take(LONGEST_LINE as u64 + 2).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > LONGEST_LINE {
        input.skip_until(b'\n')?;
    }
    Ok((read > 0).then_some(line))
}

/// A session's loaded model.
pub(super) struct Room {
    pub name: String,
    pub loaded: Loaded,
}

impl Room {
    pub(super) fn open(model: &ModelArgs, machine: &Machine) -> Result<Self> {
        let (opened, name) = (model.open()?, model.named()?);
        Ok(Self { name, loaded: opened.load_as(machine.dtype, &machine.device)?.computing_in(machine.dtype) })
    }

    fn answer(&self, line: &[u8], machine: &Machine) -> Value {
        let asked = read_request(line).and_then(|ask| {
            self.warn(&ask)?;
            self.ask(ask, machine)
        });
        match asked {
            Ok(answer) => json!({ "ok": answer }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        }
    }

    fn ask(&self, ask: SessionRequest, machine: &Machine) -> Result<Value> {
        match ask {
            SessionRequest::About {} => Ok(self.about()),
            SessionRequest::Generate { prompts, hooks, settings, record, out } => {
                self.generate(&prompts, &hooks, &settings, record.as_deref(), out.as_deref())
            }
            SessionRequest::Cache { prompts, names, hooks, logits, out } => {
                self.cache(&prompts, &names, &hooks, logits, &out)
            }
            SessionRequest::Lens { prompt, lens, top, hooks } => self.lens(&prompt, &lens, top, &hooks),
            SessionRequest::Problems(asked) => self.problems(&asked, machine),
            SessionRequest::Pairs(asked) => self.pairs(&asked, machine),
            SessionRequest::Intervene(asked) => self.intervene(&asked, machine),
            SessionRequest::Probe(asked) => self.probe(&asked),
        }
    }

    pub(super) fn about(&self) -> Value {
        let config = self.loaded.model.config();
        let hooks: Vec<String> = HookPoint::all(config.num_hidden_layers)
            .iter()
            .filter(|point| point.is_in(config))
            .map(ToString::to_string)
            .collect();
        json!({
            "model": self.name, "layers": config.num_hidden_layers, "width": config.hidden_size,
            "heads": config.num_attention_heads, "vocabulary": config.vocab_size,
            "switches": self.loaded.switch.is_some(), "hooks": hooks,
        })
    }

    /// Warns of words of the prompts that the model does not know.
    fn warn(&self, ask: &SessionRequest) -> Result<()> {
        let Some(vocabulary) = &self.loaded.vocabulary else { return Ok(()) };
        let prompts = match ask {
            SessionRequest::Generate { prompts, .. } | SessionRequest::Cache { prompts, .. } => prompts.as_slice(),
            SessionRequest::Lens { prompt, .. } => std::slice::from_ref(prompt),
            SessionRequest::Probe(asked) => asked.prompts(),
            SessionRequest::About {}
            | SessionRequest::Pairs(_)
            | SessionRequest::Intervene(_)
            | SessionRequest::Problems(_) => &[],
        };
        let texts = prompts.iter().filter_map(|prompt| match prompt {
            Prompt::Text(text) => Some(text.as_str()),
            Prompt::Ids(_) => None,
        });
        warn_of_unknown(vocabulary, "prompts", texts)
    }

    fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        let ids = match prompt {
            Prompt::Ids(ids) => ids.clone(),
            Prompt::Text(text) => {
                let vocabulary = self.loaded.vocabulary.as_ref();
                let vocabulary = vocabulary.context("the model has no tokenizer: give token ids")?;
                vocabulary.encode_row(text)?
            }
        };
        let rows = self.loaded.model.config().vocab_size;
        ensure!(!ids.is_empty(), "a prompt is empty: give at least one token");
        if let Some(id) = ids.iter().find(|id| **id as usize >= rows) {
            bail!("token id {id} is outside the embedding of {rows} rows");
        }
        self.loaded.model.config().ensure_context(ids.len(), || "a prompt".into())?;
        Ok(ids)
    }

    fn row(&self, prompt: &Prompt) -> Result<Sequence> {
        let ids = self.ids(prompt)?;
        let length = ids.len();
        Sequence::new(0, ids, length, self.loaded.switch.map(|ids| ids.latent))
    }

    pub(super) fn changes(&self, hooks: &[String]) -> Result<Changes> {
        Changes::read(hooks, self.loaded.model.config())
    }

    pub(super) fn settings(&self, asked: &DecodeArgs) -> Result<DecodeSettings> {
        asked.settings(&self.loaded.reasoning, &self.loaded.stop)
    }

    fn generate(
        &self,
        prompts: &[Prompt],
        hooks: &[String],
        settings: &DecodeArgs,
        record: Option<&str>,
        out: Option<&Path>,
    ) -> Result<Value> {
        ensure!(!prompts.is_empty(), "no prompts");
        ensure!(record.is_some() == out.is_some(), "`record` and `out` go together");
        let specs = record.map(parse_specs).transpose()?.unwrap_or_default();
        let prompts: Vec<Vec<u32>> = prompts.iter().map(|prompt| self.ids(prompt)).collect::<Result<_>>()?;
        out.map_or(Ok(()), tensors::check_out)?;
        let done = self.continued(prompts, hooks, &self.settings(settings)?, &specs)?;
        if let Some(out) = out {
            let rows: Vec<Sequence> = done.traces.iter().map(|trace| self.loaded.row(trace)).collect::<Result<_>>()?;
            tensors::write(out, (&self.name, self.loaded.layers()), &rows, &done.recorded, &FromEnd::new())?;
        }
        let said = |trace| self.loaded.vocabulary.as_ref().map(|_| self.loaded.said(trace)).transpose();
        let rows: Vec<Value> = done
            .traces
            .iter()
            .map(|trace| Ok(json!({ "tokens": trace.visible(), "text": said(trace)?, "trace": trace })))
            .collect::<Result<_>>()?;
        Ok(json!({ "rows": rows, "hooks": done.fired }))
    }

    /// Continues prompts in a batch under changes, and records `specs`.
    ///
    /// # Errors
    /// A place that no row can reach or reached; logits or values that are not finite.
    pub(super) fn continued(
        &self,
        prompts: Vec<Vec<u32>>,
        hooks: &[String],
        settings: &DecodeSettings,
        specs: &[HookSpec],
    ) -> Result<Generation> {
        let changes = self.changes(hooks)?;
        let Loaded { reasoning, switch, .. } = &self.loaded;
        let check = |prompt, specs: &[HookSpec]| {
            Reach::new(&reasoning.blocks, switch.is_some(), settings, prompt).check(
                specs,
                &changes,
                self.loaded.layers(),
            )
        };
        check(prompts.iter().map(Vec::len).max().unwrap_or_default(), specs)?;
        // A change that reaches the longest row may miss another.
        for (index, prompt) in prompts.iter().enumerate() {
            check(prompt.len(), &[]).with_context(|| format!("prompts[{index}]"))?;
        }
        continue_prompts(&self.loaded, prompts, settings, &changes, specs, None)
    }

    fn cache(
        &self,
        prompts: &[Prompt],
        names: &str,
        hooks: &[String],
        logits: RecordedLogits,
        out: &Path,
    ) -> Result<Value> {
        ensure!(!prompts.is_empty(), "no prompts");
        let rows: Vec<Sequence> = prompts.iter().map(|prompt| self.row(prompt)).collect::<Result<_>>()?;
        let wanted = reach::HookRequest::read(names, &rows)?;
        let changes = self.changes(hooks)?;
        reach::check(&wanted.specs, &changes, self.loaded.layers(), &rows)?;
        tensors::check_out(out)?;
        let ends: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
        let (mut recorded, fired) = changes.run(
            (&ends, 0),
            |_| "no position of these rows reached it".into(),
            |hooks| self.loaded.record(&rows, &wanted.specs, logits, hooks),
        )?;
        let mut from_end = wanted.named(&mut recorded, self.loaded.layers())?;
        if logits == RecordedLogits::Last {
            from_end.insert("logits".into(), ends.iter().map(|end| end - 1).collect());
        }
        tensors::check_finite(&recorded)?;
        tensors::write(out, (&self.name, self.loaded.layers()), &rows, &recorded, &from_end)?;
        Ok(json!({ "hooks": fired }))
    }

    fn lens(&self, prompt: &Prompt, lens: &LensChoice, top: usize, hooks: &[String]) -> Result<Value> {
        lens.check()?;
        let held = lens.load()?;
        ensure!((1..=1000).contains(&top), "top: {top} is not between 1 and 1000");
        let (row, changes) = (self.row(prompt)?, self.changes(hooks)?);
        let end = row.ids.len();
        reach::check(&[], &changes, self.loaded.layers(), std::slice::from_ref(&row))?;
        let (found, fired) = changes.run(
            (&[end], 0),
            |_| "no position of this text reached it".into(),
            |hooks| lens.read(&self.loaded, &row, (top, held.as_ref()), hooks),
        )?;
        let (read, layers): (Vec<usize>, Vec<_>) = found.into_iter().unzip();
        let tokens: Vec<String> = row.ids.iter().map(|id| token(&self.loaded, *id)).collect();
        let layers: Vec<_> = layers.iter().map(|layer| named(&self.loaded, layer)).collect();
        Ok(json!({ "tokens": tokens, "layers": layers, "read": read, "hooks": fired }))
    }
}
