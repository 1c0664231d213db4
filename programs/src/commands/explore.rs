//! `probe explore`: the page's laboratory, served by this program, for models that are too large for a page.
//!
//! One loaded model answers on 127.0.0.1, one request at a time; a request whose sender has disconnected is cancelled. The address contains a
//! token that changes with every start; requests without it, with another host's name or from other pages are refused. Ctrl-C ends it.

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::ModelArgs;
use super::device::MachineArgs;
use super::generate::{DecodeArgs, GenerateRequest, replay};
use super::http::{Head, HttpRequest, requests};
use super::lens::{named, patterns, tokens};
use super::request::{Prompt, Subject};
use super::session::{Room, as_answer};
use super::unknown_words::unknown_words;
use crate::report::explorer;
use switchyard::guard::read_text;
use switchyard::interventions::Changes;
use switchyard::latent::Trace;
use switchyard::method::Recipe;
use switchyard::progress::{say, set_abandoned, show, stop_asked};
use switchyard::store::{hex, remove_listed};
use switchyard::tasks::Split;

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
    pub fn run(&self) -> Result<()> {
        self.machine.compute(|machine| {
            let opened = self.model.open()?;
            let name = self.model.named()?;
            let listener = TcpListener::bind(("127.0.0.1", self.port))
                .with_context(|| format!("--port {}: omit it, or use another", self.port))?;
            let loaded = opened.load_on(machine)?;
            let files = tempfile::tempdir().context("cannot make a folder for latent steps")?;
            let examples = examples(&name);
            let explorer = ExploreState { room: Room { name, loaded }, examples, files, made: AtomicUsize::new(0) };
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
    /// Prompts to start from.
    examples: Vec<String>,
    /// Latent steps of other prompts.
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
        as_answer(catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| bail!("the computation panicked")))
    }

    fn ask(&self, ask: ExploreRequest) -> Result<Value> {
        match ask {
            ExploreRequest::About {} => Ok(json!({
                "model": self.room.about(), "chat": self.chat().is_ok(), "examples": self.examples,
            })),
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
        let loaded = &self.room.loaded;
        let request = |prompt: &str, hooks: &[String]| {
            let (prompts, settings) = (vec![Prompt::Ids(self.ids(prompt, see.chat)?)], see.settings.clone());
            anyhow::Ok(GenerateRequest { prompts, hooks: hooks.to_vec(), settings, ..GenerateRequest::default() })
        };
        let mut hooks = see.hooks.clone();
        let mut donor = None;
        if let Some(other) = &see.other {
            let file = self.file();
            let there =
                GenerateRequest { record: Some(INJECTED.into()), out: Some(file.clone()), ..request(other, &[])? };
            let run = |there: GenerateRequest| there.check(&Subject::from(loaded))?.run(loaded, &self.room.name, None);
            run(there).context("the other prompt")?;
            hooks.push(format!("{INJECTED}=swap:{}", file.display()));
            donor = Some(file.display().to_string());
        }
        let checked = request(&see.prompt, &hooks)?.check(&Subject::from(loaded))?;
        let done = checked.run(loaded, &self.room.name, None)?;
        let trace = done.traces.into_iter().next().context("the decoder returned nothing")?;
        let (row, seed) = (loaded.row(&trace)?, checked.settings.sampling.seed);
        let readings = replay((&row, &trace), &checked.changes, seed, |attached| loaded.lens(&row, TOP, attached))?;
        let layers: Vec<_> = readings.iter().map(|layer| named(loaded, layer)).collect();
        let words = tokens(loaded, &row);
        let steps: Vec<String> = row.steps.iter().map(ToString::to_string).collect();
        let mut fired = done.fired;
        // The page names the other prompt, not the file of its latent steps.
        if let Some(file) = &donor {
            fired.iter_mut().for_each(|report| report.hook = report.hook.replace(file, "the other prompt"));
        }
        let vocabulary = loaded.vocabulary.as_ref();
        let prompts = std::iter::once(see.prompt.as_str()).chain(see.other.as_deref());
        let warning = vocabulary.map(|known| unknown_words(known, "prompts", prompts)).transpose()?.flatten();
        Ok(json!({
            "words": words, "steps": steps, "says": layers, "trace": trace, "text": loaded.said(&trace)?, "hooks": hooks,
            "fired": fired, "warning": warning,
        }))
    }

    /// The patterns of every head from one place: `[layer][head][place]`.
    fn heads(&self, trace: &Trace, hooks: &[String], at: usize) -> Result<Value> {
        check_hooks(hooks)?;
        let row = self.room.loaded.row(trace)?;
        ensure!(at < row.ids.len(), "place {at} of {}", row.ids.len());
        let changes = Changes::read(hooks, self.room.loaded.model.config())?;
        let mut layers =
            replay((&row, trace), &changes, 0, |attached| patterns(&self.room.loaded, &row, at, attached))?;
        layers.iter_mut().flatten().for_each(|weights| weights.truncate(at + 1));
        Ok(json!({ "pattern": layers }))
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

/// Held-out problems of the task in the run's recipe; for other models plain text.
fn examples(model: &str) -> Vec<String> {
    let of_task = || {
        let run = Path::new(model).ancestors().find(|above| above.join("recipe.toml").is_file())?;
        let recipe: Recipe = toml::from_str(&read_text(run.join("recipe.toml")).ok()?).ok()?;
        let problems = recipe.task.as_ref()?.rows(Split::Test, recipe.seed, 0..3).ok()?;
        Some(problems.iter().map(|problem| recipe.data.template.prompt(&problem.question)).collect())
    };
    of_task().unwrap_or_else(|| ["The capital of France is", "Two plus three is"].map(str::to_owned).to_vec())
}

/// Until the request is answered: cancels its computation if the sender disconnects, or on Ctrl-C.
fn watch(request: &HttpRequest, answered: Receiver<()>) {
    while answered.recv_timeout(WATCH) == Err(RecvTimeoutError::Timeout) {
        if request.is_abandoned() || stop_asked() {
            set_abandoned(true);
        }
    }
}

/// Refuses too many changes: parsing them would delay other requests.
fn check_hooks(hooks: &[String]) -> Result<()> {
    ensure!(hooks.len() <= MOST_HOOKS, "hooks: {} changes, a request has at most {MOST_HOOKS}", hooks.len());
    Ok(())
}

const INJECTED: &str = "latent.hook_injected";
