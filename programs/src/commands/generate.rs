//! `probe generate`: continues one prompt and shows how.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::json;

use super::device::MachineArgs;
use super::hooks::{HookArgs, Reach, list};
use super::lens::token;
use super::render::{decode as to_text, render};
use super::tensors::FromEnd;
use super::unknown_words::warn_of_unknown;
use super::{ModelArgs, print, print_styled, row_ids, tensors};
use switchyard::interventions::{ChangeReport, Changes};
use switchyard::latent::{Decode, DecodeSettings, End, Reasoning, Request, Sampling, Trace, decode};
use switchyard::loading::{Checkpoint, Loaded};
use switchyard::machine::Machine;
use switchyard::model::hooks::{RecordedTensor, Recording, parse_specs};
use switchyard::model::{HookSpec, Hooks, Step};
use switchyard::progress::{go_on, say, stop_flag};
use switchyard::text::{Chat, Vocabulary};

/// Continue a prompt; latent blocks are shown as chips.
#[derive(Args, Debug)]
pub struct Generate {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to continue
    #[arg(long, conflicts_with = "ids", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Token ids to continue: 1,2,3
    #[arg(long, allow_hyphen_values = true)]
    ids: Option<String>,
    /// Apply the model's chat template to the prompt
    #[arg(long, requires = "prompt")]
    chat: bool,
    /// Which of the model's chat templates, if it has several; by default the one called default
    #[arg(long, requires = "chat", value_name = "NAME")]
    chat_template: Option<String>,
    /// Arguments of the chat template: '{"enable_thinking": false}'
    #[arg(long, requires = "chat", value_name = "JSON")]
    chat_template_kwargs: Option<String>,
    #[command(flatten)]
    decoding: DecodeArgs,
    /// Show the most probable next token at each latent step (logit lens of the last layer)
    #[arg(long, conflicts_with = "json")]
    lens: bool,
    /// Print one JSON object: tokens (new ids, without latents), text, trace
    #[arg(long)]
    json: bool,
    /// Record activations while generating, latent steps included: 'blocks.*.hook_resid_post,latent.hook_injected'. After
    /// `@`: prompt, text[t], pos[p], latent[block,step]; blocks and latent steps count from 1
    #[arg(long, value_name = "PATTERN[,PATTERN]", requires = "out")]
    record: Option<String>,
    /// File of the recording. The last token is drawn but not fed: it has no activations
    #[arg(long, value_name = "FILE.safetensors", requires = "record")]
    out: Option<PathBuf>,
    #[command(flatten)]
    edit: HookArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

switchyard::settings! {
    /// How to decode.
    #[derive(Args)]
    pub(super) struct DecodeArgs {
        /// Visible tokens at most
        #[arg(long, default_value_t = 256, value_name = "N")]
        max_new_tokens: usize = 256,
        /// 0 is greedy
        #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
        temperature: f64 = 0.0,
        #[arg(long, default_value_t = 0)]
        seed: u64 = 0,
        /// Sample from the K most probable tokens; 0 for all
        #[arg(long, default_value_t = 0, value_name = "K")]
        top_k: usize = 0,
        /// Sample from the most probable tokens with total probability P; 1 for all
        #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true)]
        top_p: f64 = 1.0,
        /// Latent steps before a block may end; by default those of the checkpoint's training, else 4
        #[arg(long, value_name = "N")]
        k_min: Option<usize> = None,
        /// Latent steps after which a block must end; by default those of the checkpoint's training, else 16
        #[arg(long, value_name = "N")]
        k_cap: Option<usize> = None,
        /// Go on after an end-of-text token
        #[arg(long)]
        ignore_eos: bool = false,
    }
}

impl DecodeArgs {
    /// Of a model that reasons so and ends its texts with these tokens.
    pub(super) fn settings(&self, trained: &Reasoning, stop: &[u32]) -> Result<DecodeSettings> {
        let &Self { temperature, top_k, top_p, seed, max_new_tokens, .. } = self;
        // A bound named alone adjusts the other one.
        let k_min = self.k_min.unwrap_or_else(|| trained.k_min.min(self.k_cap.unwrap_or(trained.k_cap)));
        let k_cap = self.k_cap.unwrap_or_else(|| trained.k_cap.max(k_min));
        for (moved, given, now, before) in [
            ("k_min", self.k_min, k_min, trained.k_min.min(trained.k_cap)),
            ("k_cap", self.k_cap, k_cap, trained.k_cap),
        ] {
            if given.is_none() && now != before {
                say(&format!("{moved} is {now} here and {before} by default: k_min must not exceed k_cap"));
            }
        }
        let settings = DecodeSettings {
            sampling: Sampling { temperature, top_k, top_p, seed },
            k_min,
            k_cap,
            max_new_tokens,
            stop: if self.ignore_eos { vec![] } else { stop.to_vec() },
            ..DecodeSettings::default()
        };
        settings.check()?;
        Ok(settings)
    }
}

impl Generate {
    /// # Errors
    /// Anything wrong with the request before any weight is read; later, logits that are not finite.
    pub fn run(&self) -> Result<()> {
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let opened = self.model.open()?;
        if self.edit.list_hooks {
            return list(&opened);
        }
        let reasoning = opened.reasoning.clone().unwrap_or_default();
        let settings = self.decoding.settings(&reasoning, &opened.stop)?;
        let prompt = self.checked_prompt(&opened)?;
        let changes = self.edit.changes(&opened)?;
        let specs = self.record.as_deref().map(parse_specs).transpose()?.unwrap_or_default();
        let reach = Reach::new(&reasoning.blocks, opened.switch().is_some(), &settings, prompt.len());
        reach.check(&specs, &changes, opened.config().num_hidden_layers)?;
        self.out.as_deref().map_or(Ok(()), tensors::check_out)?;
        let loaded = opened.load_as(machine.dtype, &machine.device)?.computing_in(machine.dtype);
        let Generation { traces, recorded, fired } =
            continue_prompts(&loaded, vec![prompt], &settings, &changes, &specs, Some(stop_flag()))?;
        let trace = traces.first().context("the decoder returned nothing")?;
        if let Some(out) = &self.out {
            let (name, rows) = (self.model.named()?, [loaded.row(trace)?]);
            tensors::write(out, (&name, loaded.layers()), &rows, &recorded, &FromEnd::new())?;
        }
        let thinks =
            if self.lens { Some(read_latents(trace, &loaded, &changes, settings.sampling.seed)?) } else { None };
        self.show(trace, &loaded, &fired, thinks.as_deref())?;
        if trace.end == End::Cancelled { Ok(go_on()?) } else { Ok(()) }
    }

    fn checked_prompt(&self, opened: &Checkpoint) -> Result<Vec<u32>> {
        let prompt = self.prompt_ids(opened)?;
        opened.check_ids(&prompt)?;
        if let Some(ids) = opened.switch() {
            ensure!(!prompt.contains(&ids.latent), "the prompt has <latent>: latent steps are computed, not given");
        }
        let (n, most) = (prompt.len(), opened.config().max_position_embeddings);
        ensure!(
            !opened.config().family.learned_positions || n + self.decoding.max_new_tokens <= most,
            "the prompt's {n} tokens and --max-new-tokens {} exceed the {most} positions of the model: use fewer",
            self.decoding.max_new_tokens
        );
        ensure!(
            n < most,
            "the prompt has {n} tokens, and the model has {most} positions (max_position_embeddings): no position is left for a response"
        );
        Ok(prompt)
    }

    fn prompt_ids(&self, opened: &Checkpoint) -> Result<Vec<u32>> {
        let (Some(prompt), true) = (&self.prompt, self.chat) else {
            let ids = row_ids(opened, self.prompt.as_deref(), self.ids.as_deref())?;
            return ids.context("nothing to continue: give --prompt or --ids");
        };
        ensure!(!prompt.is_empty(), "the prompt is empty: give at least one token");
        let vocabulary = opened.text()?;
        warn_of_unknown(vocabulary, "prompts", std::iter::once(prompt.as_str()))?;
        let chat = self.chat(opened, vocabulary)?;
        say(&format!("prompted by {}", chat.describe()));
        chat.encode(vocabulary, prompt)
    }

    /// The requested chat template.
    fn chat(&self, opened: &Checkpoint, vocabulary: &Vocabulary) -> Result<Chat> {
        let origin = opened.files.path.display();
        let chat = vocabulary.chat(self.chat_template.as_deref())?;
        let chat =
            chat.with_context(|| format!("{origin}: --chat: the model has no chat template; leave --chat out"))?;
        let Some(text) = &self.chat_template_kwargs else { return Ok(chat) };
        let arguments = serde_json::from_str(text)
            .with_context(|| format!("--chat-template-kwargs: expected a JSON object, found {text}"))?;
        chat.with(arguments).context("--chat-template-kwargs")
    }

    fn show(&self, trace: &Trace, loaded: &Loaded, fired: &[ChangeReport], thinks: Option<&[String]>) -> Result<()> {
        let vocabulary = loaded.vocabulary.as_ref();
        if self.json {
            let text = vocabulary.map(|_| to_text(&trace.text(), vocabulary)).transpose()?;
            let mut all = json!({ "tokens": trace.visible(), "text": text, "trace": trace });
            if !fired.is_empty() {
                all["hooks"] = serde_json::to_value(fired)?;
            }
            return print(&format!("{all}\n"));
        }
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        print_styled(&format!("{}\n", render(trace, vocabulary, thinks, colour)?))?;
        let ended = match trace.end {
            End::Stop => "end of text",
            End::Budget => "token budget",
            End::Cancelled => "cancelled",
            End::NonFinite => "logits not finite",
        };
        // The summary is for a person: it goes to stderr, not into a pipe.
        let legend = match (trace.latent_calls(), thinks) {
            (0, _) => "",
            (_, None) => "; in brackets p(</swi>) after each latent step",
            (_, Some(_)) => "; ⟨swi n: the most probable token at each latent step⟩[p(</swi>) after it]",
        };
        let _ = writeln!(std::io::stderr(), "{}; {ended}{legend}", describe_counts(trace));
        for hook in fired {
            let ChangeReport { hook, fired, mean_change, .. } = hook;
            say(&format!("hook \"{hook}\": fired {fired} times, mean norm of the change {mean_change:.4}"));
        }
        Ok(())
    }
}

/// The most probable next token at each latent step, in the same run: with its changes.
fn read_latents(trace: &Trace, loaded: &Loaded, changes: &Changes, seed: u64) -> Result<Vec<String>> {
    let row = loaded.row(trace)?;
    let known = trace.prompt.len().min(row.ids.len());
    let again = |_: &_| "it only fires where a token is drawn".to_owned();
    let (layers, _) = changes.run((&[known], seed), again, |hooks| loaded.lens(&row, 1, hooks))?;
    let readings = layers.last().context("a model without layers")?.iter().zip(&row.steps);
    let latents = readings.filter(|(_, step)| matches!(step, Step::Latent { .. }));
    Ok(latents.map(|(reading, _)| reading.first().map_or_else(String::new, |(id, _)| token(loaded, *id))).collect())
}

/// Counts of a row.
fn describe_counts(trace: &Trace) -> String {
    let (tokens, latents, blocks) = (trace.visible_tokens(), trace.latent_calls(), trace.blocks().len());
    let s = if blocks == 1 { "" } else { "s" };
    format!("{tokens} tokens, {latents} latent steps in {blocks} block{s}")
}

pub(super) struct Generation {
    pub traces: Vec<Trace>,
    pub recorded: Vec<RecordedTensor>,
    /// Effect of each change.
    pub fired: Vec<ChangeReport>,
}

/// Continues prompts in a batch under changes, and records `specs`. `cancel` ends it with the results so far.
///
/// # Errors
/// A place that no row reached; logits or values that are not finite.
pub(super) fn continue_prompts(
    loaded: &Loaded,
    prompts: Vec<Vec<u32>>,
    settings: &DecodeSettings,
    changes: &Changes,
    specs: &[HookSpec],
    cancel: Option<&AtomicBool>,
) -> Result<Generation> {
    let recording = Recording::for_model(specs, loaded.model.config())?;
    let ends: Vec<usize> = prompts.iter().map(Vec::len).collect();
    let requests = prompts.into_iter().enumerate();
    let requests: Vec<Request> =
        requests.map(|(problem, prompt)| Request { problem, prompt, rollout: 0, limit: None }).collect();
    let ran = |traces: &Vec<Trace>| match traces.as_slice() {
        [trace] => describe_counts(trace),
        _ => "no row reached it".to_owned(),
    };
    let (traces, fired) = changes.run((&ends, settings.sampling.seed), ran, |hooks| {
        // A separate variable: these hooks also borrow the recording.
        let mut hooks: Hooks = hooks;
        recording.attach(&mut hooks, loaded.layers())?;
        let traces = decode(Decode { cancel, ..loaded.decode(settings) }, &requests, 1, &mut hooks)?;
        let wild = traces.iter().find(|trace| trace.end == End::NonFinite).map(Trace::visible_tokens);
        wild.map_or(Ok(traces), |n| {
            let changed =
                if changes.is_empty() { "" } else { ", or a --hook replaces values by ones that are too large or NaN" };
            bail!("the logits after {n} new tokens are not finite: the weights contain or produce NaN{changed}")
        })
    })?;
    let recorded =
        if specs.is_empty() { vec![] } else { recording.tensors(traces.len()).with_context(|| ran(&traces))? };
    tensors::check_finite(&recorded)?;
    Ok(Generation { traces, recorded, fired })
}
