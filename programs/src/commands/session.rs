//! `probe session`: one loaded model, many requests, for notebooks (`python/src/switchyard/live.py`).
//!
//! A request is one line of JSON on standard input, its answer one line on standard output: `{"ok": …}` or `{"error": "…"}`,
//! in the order of the requests. A change `call:N` prints `{"call": …}` for each position, which the next line answers: `{"values": […]}` or
//! `{"error": "…"}`. The session ends with its input, or with Ctrl-C.

mod verbs;

use std::io::{BufRead, Read};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use super::activations::CacheRequest;
use super::device::MachineArgs;
use super::generate::{self, GenerateRequest, Generation};
use super::lens::LensRequest;
use super::pairs::PairsRequest;
use super::request::Subject;
use super::{ModelArgs, print};
use switchyard::interventions::{FunctionCall, set_client};
use switchyard::loading::Loaded;
use switchyard::machine::Machine;
use switchyard::model::HookPoint;
use switchyard::progress::say;

/// Load a model once and answer requests, one line of JSON each. `python/` uses it: `switchyard.load(MODEL)`.
#[derive(Args, Debug)]
pub struct Session {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// One line of the input.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum SessionRequest {
    /// Describe the model.
    About {},
    Generate(GenerateRequest),
    Cache(CacheRequest),
    Lens(LensRequest),
    Pairs(PairsRequest),
    Intervene(verbs::InterveneVerb),
    /// The prompts of problems, and whether texts answer them.
    Problems(verbs::ProblemsVerb),
    Probe(verbs::ProbeVerb),
    /// Intervals of a metric of unchanged and changed runs.
    Compare(verbs::CompareVerb),
}

/// Parses one line of the input; an error names the wrong key.
fn read_request(line: &[u8]) -> Result<SessionRequest> {
    let ask: Value = serde_json::from_slice(line).context("not a request: expected one JSON object per line")?;
    SessionRequest::deserialize(&ask).map_err(|error| {
        let why = error.to_string();
        let plain = [
            ("invalid type: ", "found "),
            ("invalid value: ", "found "),
            ("usize", "a whole number from 0"),
            ("u64", "a whole number from 0"),
            ("i64", "a whole number"),
            ("f64", "a number"),
        ];
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
            let room = Room { name: self.model.named()?, loaded: self.model.open()?.load_on(machine)? };
            say(&format!("{}: loaded; one request per line", room.name));
            set_client(call_client);
            while let Some(line) = read_line()? {
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

/// The client's answer to a call.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum CallAnswer {
    Values(Vec<f32>),
    Error(String),
}

/// Calls a function of the client and waits for its answer.
fn call_client(call: &FunctionCall) -> Result<Vec<f32>> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    print(&format!("{}\n", json!({ "call": call })))?;
    let line = read_line()?.context("the input ended in a call")?;
    match serde_json::from_slice(&line).context("not an answer to a call")? {
        CallAnswer::Values(values) => Ok(values),
        CallAnswer::Error(why) => bail!("{why}"),
    }
}

/// Bytes of a request, at most.
const LONGEST_LINE: usize = 64 << 20;

/// The next line of standard input, whose lock a call must find free.
fn read_line() -> Result<Option<Vec<u8>>> {
    next_line(&mut std::io::stdin().lock()).context("standard input")
}

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

/// The JSON object that answers a request.
pub(super) fn as_answer(done: Result<Value>) -> Value {
    match done {
        Ok(answer) => json!({ "ok": answer }),
        Err(error) => json!({ "error": format!("{error:#}") }),
    }
}

/// A session's loaded model.
pub(super) struct Room {
    pub name: String,
    pub loaded: Loaded,
}

impl Room {
    fn answer(&self, line: &[u8], machine: &Machine) -> Value {
        as_answer(read_request(line).and_then(|ask| self.ask(ask, machine)))
    }

    fn ask(&self, ask: SessionRequest, machine: &Machine) -> Result<Value> {
        let model = Subject::from(&self.loaded);
        match ask {
            SessionRequest::About {} => Ok(self.about()),
            SessionRequest::Generate(request) => {
                let Generation { traces, fired } = request.check(&model)?.run(&self.loaded, &self.name, None)?;
                let rows = traces.iter().map(|trace| generate::answer(trace, &self.loaded));
                Ok(json!({ "rows": rows.collect::<Result<Vec<_>>>()?, "hooks": fired }))
            }
            SessionRequest::Cache(request) => {
                Ok(json!({ "hooks": request.check(&model)?.run(&self.loaded, &self.name)? }))
            }
            SessionRequest::Lens(request) => request.run(&self.loaded),
            SessionRequest::Problems(asked) => self.problems(&asked, machine),
            SessionRequest::Pairs(asked) => self.pairs(&asked, machine),
            SessionRequest::Intervene(asked) => self.intervene(&asked, machine),
            SessionRequest::Probe(asked) => self.probe(&asked),
            SessionRequest::Compare(asked) => asked.run(),
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
}
