//! `probe explore`: the page's laboratory, served by this program, for models that are too large for a page.
//!
//! One loaded model answers on 127.0.0.1, one request at a time; a request whose sender has disconnected is cancelled. The address contains a
//! token that changes with every start; requests without it, with another host's name or from other pages are refused. Ctrl-C ends it.

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::device::MachineArgs;
use super::generate::DecodeArgs;
use super::http::{Head, HttpRequest, requests};
use super::lens::{named, token};
use super::session::Room;
use super::tensors::FromEnd;
use super::{ModelArgs, tensors};
use crate::report::explorer;
use switchyard::latent::{Sequence, Trace};
use switchyard::model::Hooks;
use switchyard::model::hooks::parse_specs;
use switchyard::progress::{say, set_abandoned, show, stop_asked};
use switchyard::store::{hex, remove_listed};

/// Serve the page's laboratory for one loaded model: your own prompts, changes and a second prompt's thoughts.
#[derive(Args, Debug)]
pub struct Explore {
    #[command(flatten)]
    model: ModelArgs,
    /// Port on 127.0.0.1; 0 for a free one
    #[arg(long, default_value_t = 0, value_name = "N")]
    port: u16,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum ExploreRequest {
    About {},
    /// Continue a prompt, and read every layer at every place.
    See(See),
    /// The attention of each head from one place of a previous row.
    Heads {
        trace: Trace,
        #[serde(default)]
        hooks: Vec<String>,
        at: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct See {
    prompt: String,
    /// Whether to apply the model's chat template.
    #[serde(default)]
    chat: bool,
    /// A prompt whose latent steps are used as donors.
    other: Option<String>,
    #[serde(default)]
    hooks: Vec<String>,
    #[serde(default)]
    settings: DecodeArgs,
}

/// Number of tokens shown per place.
const TOP: usize = 6;

/// How often Ctrl-C is looked for.
const PATIENCE: Duration = Duration::from_millis(200);

/// How often the sender of a request is looked for.
const WATCH: Duration = Duration::from_millis(50);

/// Maximum number of changes per request.
const MOST_HOOKS: usize = 64;

/// Maximum number of stored files of latent steps.
const MOST_FILES: usize = 64;

impl Explore {
    /// # Errors
    /// A model that cannot be opened, a port in use. Errors of a request are its answer.
    pub fn run(&self) -> Result<()> {
        self.machine.compute(|machine| {
            let opened = self.model.open()?;
            let name = self.model.named()?;
            let listener = TcpListener::bind(("127.0.0.1", self.port))
                .with_context(|| format!("--port {}: omit it, or use another", self.port))?;
            let loaded = opened.load_as(machine.dtype, &machine.device)?.computing_in(machine.dtype);
            let files = tempfile::tempdir().context("cannot make a folder for latent steps")?;
            let explorer = ExploreState { room: Room { name, loaded }, files, made: AtomicUsize::new(0) };
            let door = Door::open(&listener)?;
            say(&format!("{}: loaded; open this address in a browser, Ctrl-C ends it", explorer.room.name));
            show(&door.address());
            let requests = requests(listener, move |head| door.refuses(head).map(|why| (403, format!("{why}\n"))));
            while !stop_asked() {
                match requests.recv_timeout(PATIENCE) {
                    Ok(request) => explorer.serve(request),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => bail!("the port takes no more requests"),
                }
            }
            Ok(())
        })
    }
}

/// Access control.
struct Door {
    port: u16,
    /// 128 random bits.
    token: String,
}

impl Door {
    fn open(listener: &TcpListener) -> Result<Self> {
        let port = listener.local_addr().context("an address without port")?.port();
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
        Ok(Self { port, token: hex(&random) })
    }

    fn address(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// Why a request must be refused. A page elsewhere that a browser has open can send requests here, under a name that it resolves to this
    /// machine: its `Host` and `Origin` reveal it.
    fn refuses(&self, head: &Head) -> Option<&'static str> {
        let hosts = [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)];
        let is_ours = |host: &str| hosts.iter().any(|ours| ours == host);
        if !head.header("Host").is_some_and(is_ours) {
            return Some("this host is not served here");
        }
        if head.header("Origin").is_some_and(|origin| !origin.strip_prefix("http://").is_some_and(is_ours)) {
            return Some("requests of other pages are not answered");
        }
        let query = head.target.split_once('?').map_or("", |(_, query)| query);
        let given = query.split('&').find_map(|part| part.strip_prefix("token="));
        (given != Some(&self.token)).then_some("open the address that `probe explore` printed: it has a token")
    }
}

/// The loaded model of a page.
struct ExploreState {
    room: Room,
    /// Thoughts that were put in.
    files: TempDir,
    made: AtomicUsize,
}

impl ExploreState {
    /// Answers a request while its sender waits; Ctrl-C ends the wait too.
    fn serve(&self, request: HttpRequest) {
        let path = request.head.target.split('?').next().unwrap_or_default();
        let (status, kind, body) = match (request.head.method.as_str(), path) {
            ("GET", "/") => (200, "text/html; charset=utf-8", explorer::html(&self.room.name)),
            ("POST", "/ask") => {
                let answer = thread::scope(|threads| {
                    // Dropped with the answer: the watcher ends then.
                    let (_answered, done) = channel();
                    threads.spawn(|| watch(&request, done));
                    self.answer(&request.body).to_string()
                });
                set_abandoned(false);
                (200, "application/json", answer)
            }
            _ => (404, "text/plain", "not found\n".to_owned()),
        };
        request.answer(status, kind, &body);
    }

    fn answer(&self, text: &str) -> Value {
        let asked = serde_json::from_str(text).context("no request");
        let work = || asked.and_then(|ask| self.ask(ask));
        // If an operation panics, the request gets an error, and the next one is answered.
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| bail!("the computation panicked"));
        match done {
            Ok(answer) => json!({ "ok": answer }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        }
    }

    fn ask(&self, ask: ExploreRequest) -> Result<Value> {
        match ask {
            ExploreRequest::About {} => Ok(json!({ "model": self.room.about(), "chat": self.chat().is_ok() })),
            ExploreRequest::See(see) => self.see(see),
            ExploreRequest::Heads { trace, hooks, at } => self.heads(&trace, &hooks, at),
        }
    }

    fn chat(&self) -> Result<switchyard::text::Chat> {
        let vocabulary = self.room.loaded.vocabulary.as_ref().context("the model has no tokenizer")?;
        vocabulary.chat(None)?.context("the model has no chat template")
    }

    fn ids(&self, prompt: &str, chat: bool) -> Result<Vec<u32>> {
        ensure!(!prompt.trim().is_empty(), "the prompt is empty: write something");
        let vocabulary =
            self.room.loaded.vocabulary.as_ref().context("the model has no tokenizer: use `probe session`")?;
        if chat { self.chat()?.encode(vocabulary, prompt) } else { vocabulary.encode_row(prompt) }
    }

    fn see(&self, see: See) -> Result<Value> {
        check_hooks(&see.hooks)?;
        let settings = self.room.settings(&see.settings)?;
        let mut hooks = see.hooks;
        if let Some(other) = &see.other {
            let thoughts = parse_specs(INJECTED)?;
            let there = self.room.continued(vec![self.ids(other, see.chat)?], &[], &settings, &thoughts);
            let there = there.context("the other prompt")?;
            let file = self.file();
            let rows: Vec<Sequence> =
                there.traces.iter().map(|trace| self.room.loaded.row(trace)).collect::<Result<_>>()?;
            let about = (self.room.name.as_str(), self.room.loaded.layers());
            tensors::write(&file, about, &rows, &there.recorded, &FromEnd::new())?;
            hooks.push(format!("{INJECTED}=swap:{}", file.display()));
        }
        let done = self.room.continued(vec![self.ids(&see.prompt, see.chat)?], &hooks, &settings, &[])?;
        let trace = done.traces.into_iter().next().context("the decoder returned nothing")?;
        let (row, seed) = (self.room.loaded.row(&trace)?, settings.sampling.seed);
        let readings =
            self.under(&row, &trace, (&hooks, seed), |attached| self.room.loaded.lens(&row, TOP, attached))?;
        let layers: Vec<_> = readings.iter().map(|layer| named(&self.room.loaded, layer)).collect();
        let words: Vec<String> = row.ids.iter().map(|id| token(&self.room.loaded, *id)).collect();
        let steps: Vec<String> = row.steps.iter().map(ToString::to_string).collect();
        Ok(json!({
            "words": words, "steps": steps, "says": layers, "trace": trace, "text": self.room.loaded.said(&trace)?, "hooks": hooks,
            "fired": done.fired,
        }))
    }

    /// The patterns of every head from one place: `[layer][head][place]`.
    fn heads(&self, trace: &Trace, hooks: &[String], at: usize) -> Result<Value> {
        check_hooks(hooks)?;
        let row = self.room.loaded.row(trace)?;
        ensure!(at < row.ids.len(), "place {at} of {}", row.ids.len());
        let name = format!("{PATTERN}@pos[{at}]");
        let kept = self.under(&row, trace, (hooks, 0), |attached| {
            self.room.loaded.record(std::slice::from_ref(&row), &parse_specs(&name)?, false, attached)
        })?;
        let heads = self.room.loaded.model.config().num_attention_heads;
        let of = |pattern: Vec<f32>| -> Vec<Vec<f32>> {
            pattern.chunks(pattern.len() / heads).map(|weights| weights[..weights.len().min(at + 1)].to_vec()).collect()
        };
        let layers: Vec<Vec<Vec<f32>>> = kept.iter().map(|layer| Ok(of(layer.at(0, at)?))).collect::<Result<_>>()?;
        Ok(json!({ "pattern": layers }))
    }

    /// Runs a known sequence under the changes of its own run.
    fn under<T>(
        &self,
        row: &Sequence,
        trace: &Trace,
        (hooks, seed): (&[String], u64),
        work: impl FnOnce(Hooks<'_>) -> Result<T>,
    ) -> Result<T> {
        let known = trace.prompt.len().min(row.ids.len());
        let again = |_: &T| "it only fires where a token is drawn".to_owned();
        Ok(self.room.changes(hooks)?.run((&[known], seed), again, work)?.0)
    }

    fn file(&self) -> PathBuf {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let name = |number: usize| format!("thoughts-{number}.safetensors");
        if let Some(old) = number.checked_sub(MOST_FILES) {
            let _ = remove_listed(self.files.path(), &[&name(old)]);
        }
        self.files.path().join(name(number))
    }
}

/// Until the request is answered: cancels its computation if the sender disconnects, or on Ctrl-C.
fn watch(request: &HttpRequest, answered: Receiver<()>) {
    while answered.recv_timeout(WATCH) == Err(RecvTimeoutError::Timeout) {
        if request.is_abandoned() || stop_asked() {
            set_abandoned(true);
        }
    }
}

/// # Errors
/// More changes than allowed: parsing them would delay other requests.
fn check_hooks(hooks: &[String]) -> Result<()> {
    ensure!(hooks.len() <= MOST_HOOKS, "hooks: {} changes, a request has at most {MOST_HOOKS}", hooks.len());
    Ok(())
}

const INJECTED: &str = "latent.hook_injected";
const PATTERN: &str = "blocks.*.attn.hook_pattern";
