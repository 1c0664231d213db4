//! `probe generate`: continues prompts and shows how.

use std::io::{IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use super::device::MachineArgs;
use super::hooks::{HookArgs, Reach, list};
use super::lens::{named, token_cell};
use super::render::render;
use super::request::{Prompt, PromptsArgs, Subject};
use super::tensors::FromEnd;
use super::unknown_words::warn_of_unknown;
use super::{ModelArgs, print, print_styled, tensors};
use switchyard::interventions::{ChangeReport, Changes};
use switchyard::latent::{Decode, DecodeSettings, End, Request, Sampling, Sequence, Trace, decode};
use switchyard::loading::{Checkpoint, Loaded};
use switchyard::machine::{Compute, Machine};
use switchyard::model::hooks::{Recording, parse_specs};
use switchyard::model::{Decoder, HookSpec, Hooks, Step};
use switchyard::ops;
use switchyard::progress::{go_on, say, stop_flag};
use switchyard::text::{Chat, Vocabulary};

/// Continue a prompt, or many in one batch; latent blocks are shown as chips.
#[derive(Args, Debug)]
pub struct Generate {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: PromptsArgs,
    /// Apply the model's chat template to the prompts
    #[arg(long, conflicts_with = "ids")]
    chat: bool,
    /// Which of the model's chat templates, if it has several; by default the one called default
    #[arg(long, requires = "chat", value_name = "NAME")]
    chat_template: Option<String>,
    /// Arguments of the chat template: '{"enable_thinking": false}'
    #[arg(long, requires = "chat", value_name = "JSON")]
    chat_template_kwargs: Option<String>,
    #[command(flatten)]
    request: GenerateRequest,
    /// Show the most probable next token at each latent step (logit lens of the last layer); --lens=K also lists the K most
    /// probable ones with their probabilities
    #[arg(long, value_name = "K", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    lens: Option<NonZeroUsize>,
    /// Print one JSON object a prompt: tokens (new ids, without latents), text, shown (with latent blocks), trace
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    edit: HookArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Continue prompts, alone or as a batch.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GenerateRequest {
    #[arg(skip)]
    pub prompts: Vec<Prompt>,
    /// Changes.
    #[arg(skip)]
    #[serde(default)]
    pub hooks: Vec<String>,
    #[command(flatten)]
    #[serde(default)]
    pub settings: DecodeArgs,
    /// Record activations while generating, latent steps included: 'blocks.*.hook_resid_post,latent.hook_injected'. After
    /// `@`: prompt, text[t], pos[p], latent[block,step]; blocks and latent steps count from 1
    #[arg(long, value_name = "PATTERN[,PATTERN]", requires = "out")]
    pub record: Option<String>,
    /// File of the recording. The last token is drawn but not fed: it has no activations
    #[arg(long, value_name = "FILE.safetensors", requires = "record")]
    pub out: Option<PathBuf>,
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
    /// The settings of a decode by this model.
    fn settings(&self, model: &Subject) -> Result<DecodeSettings> {
        let trained = &model.reasoning;
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
            stop: if self.ignore_eos { vec![] } else { model.stop.to_vec() },
            ..DecodeSettings::default()
        };
        settings.check()?;
        Ok(settings)
    }
}

impl Generate {
    pub fn run(&self) -> Result<()> {
        self.machine.compute_decoding(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let opened = self.model.open()?;
        if self.edit.list_hooks {
            return list(&opened);
        }
        let prompts = self.prompts(&opened)?;
        let request = GenerateRequest { prompts, hooks: self.edit.hook.clone(), ..self.request.clone() };
        let checked = request.check(&Subject::from(&opened))?;
        // Before the other weights are read: both at once might not fit.
        let exact = match machine.dtype {
            Compute::StoredQ8 => {
                let exact = self.model.open()?.load_as(Compute::Stored, &machine.device)?;
                Some(last_log_probabilities(&exact.model, &checked.prompts)?)
            }
            _ => None,
        };
        let loaded = opened.load_on(machine)?;
        if let Some(exact) = exact {
            say(&describe_rounding(&exact, &last_log_probabilities(&loaded.model, &checked.prompts)?));
        }
        let Generation { traces, fired } = checked.run(&loaded, &self.model.named()?, Some(stop_flag()))?;
        ensure!(!traces.is_empty(), "the decoder returned nothing");
        for trace in &traces {
            let thinks =
                self.lens.map(|top| read_latents(trace, &loaded, (&checked, &fired), top.get())).transpose()?;
            self.show(trace, &loaded, &fired, thinks.as_deref())?;
        }
        for ChangeReport { hook, fired, mean_change, .. } in fired.iter().filter(|_| !self.json) {
            say(&format!("hook \"{hook}\": fired {fired} times, mean norm of the change {mean_change:.4}"));
        }
        if let Some(out) = &request.out {
            say(&format!("{}: written", out.display()));
        }
        if traces.iter().any(|trace| trace.end == End::Cancelled) { Ok(go_on()?) } else { Ok(()) }
    }

    /// The prompts, in the chat template if requested.
    fn prompts(&self, opened: &Checkpoint) -> Result<Vec<Prompt>> {
        let (mut prompts, places) = self.text.read()?;
        if self.chat {
            let vocabulary = opened.text()?;
            let chat = self.chat(opened, vocabulary)?;
            say(&format!("prompted by {}", chat.describe()));
            warn_of_unknown(vocabulary, "prompts", prompts.iter().filter_map(Prompt::text))?;
            for (index, prompt) in prompts.iter_mut().enumerate() {
                // `--ids` excludes `--chat`: these are of a file.
                let Prompt::Text(text) = prompt else {
                    bail!("{}: `ids` with --chat: a template needs text, give `prompt`", places[index]);
                };
                *prompt = Prompt::Ids(chat.encode(vocabulary, text).with_context(|| places[index].clone())?);
            }
        }
        let ids = Subject::from(opened).encode_at(&prompts, &places)?;
        Ok(ids.into_iter().map(Prompt::Ids).collect())
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

    /// Whether more than the most probable token of a latent step is shown.
    fn lists(&self) -> bool {
        self.lens.is_some_and(|top| top.get() > 1)
    }

    fn show(
        &self,
        trace: &Trace,
        loaded: &Loaded,
        fired: &[ChangeReport],
        thinks: Option<&[LatentReading]>,
    ) -> Result<()> {
        let vocabulary = loaded.vocabulary.as_ref();
        if self.json {
            let mut all = answer(trace, loaded)?;
            if !fired.is_empty() {
                all["hooks"] = serde_json::to_value(fired)?;
            }
            if let Some(readings) = thinks {
                all["lens"] = json!(readings.iter().map(LatentReading::first).collect::<Vec<_>>());
                if self.lists() {
                    all["lens_top"] = json!(readings.iter().map(|reading| &reading.tokens).collect::<Vec<_>>());
                }
            }
            return print(&format!("{all}\n"));
        }
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let first = thinks.map(|readings| readings.iter().map(LatentReading::first).collect::<Vec<_>>());
        print_styled(&format!("{}\n", render(trace, vocabulary, first.as_deref(), colour)?))?;
        for LatentReading { step, tokens } in thinks.filter(|_| self.lists()).unwrap_or_default() {
            let tokens = tokens.iter().map(|(token, p)| format!("  {} {p:.3}", token_cell(token)));
            print(&format!("{step}{}\n", tokens.collect::<String>()))?;
        }
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
        Ok(())
    }
}

/// The tokens, text and trace of a row.
pub(super) fn answer(trace: &Trace, loaded: &Loaded) -> Result<Value> {
    let text = loaded.vocabulary.as_ref().map(|_| loaded.said(trace)).transpose()?;
    let shown = render(trace, loaded.vocabulary.as_ref(), None, false)?;
    Ok(json!({ "tokens": trace.visible(), "text": text, "shown": shown, "trace": trace }))
}

/// Runs a trace again, as a known sequence, under the changes of its decode.
pub(super) fn replay<T>(
    (row, trace): (&Sequence, &Trace),
    changes: &Changes,
    seed: u64,
    work: impl FnOnce(Hooks<'_>) -> Result<T>,
) -> Result<T> {
    let known = trace.prompt.len().min(row.ids.len());
    let again = |_: &T| "it only fires where a token is drawn".to_owned();
    Ok(changes.run((&[(trace.problem, known)], seed), again, work)?.0)
}

/// The most probable next tokens at a latent step, most probable first.
struct LatentReading {
    step: Step,
    tokens: Vec<(String, f64)>,
}

impl LatentReading {
    fn first(&self) -> &str {
        self.tokens.first().map_or("", |(token, _)| token)
    }
}

/// The `top` most probable next tokens at each latent step, in the same run: with its changes.
fn read_latents(
    trace: &Trace,
    loaded: &Loaded,
    (checked, fired): (&CheckedGeneration, &[ChangeReport]),
    top: usize,
) -> Result<Vec<LatentReading>> {
    let (row, seed) = (loaded.row(trace)?, checked.settings.sampling.seed);
    let changes = checked.changes.fired_in(trace.problem, fired);
    let layers = replay((&row, trace), &changes, seed, |hooks| loaded.lens(&row, top, hooks))?;
    let readings = named(loaded, layers.last().context("a model without layers")?);
    let readings = row.steps.iter().zip(readings).map(|(&step, tokens)| LatentReading { step, tokens });
    Ok(readings.filter(|reading| matches!(reading.step, Step::Latent { .. })).collect())
}

/// Counts of a row.
fn describe_counts(trace: &Trace) -> String {
    let (tokens, latents, blocks) = (trace.visible_tokens(), trace.latent_calls(), trace.blocks().len());
    let s = if blocks == 1 { "" } else { "s" };
    format!("{tokens} tokens, {latents} latent steps in {blocks} block{s}")
}

/// Positions at which `stored-q8` is compared with `stored`: each needs the logits of all tokens twice.
const COMPARED: usize = 64;

/// log p of every next token at the last positions of the first prompts, [`COMPARED`] in all.
fn last_log_probabilities(model: &Decoder, prompts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
    let mut all = vec![];
    for prompt in prompts {
        let left = COMPARED - all.len();
        if left == 0 {
            break;
        }
        go_on()?;
        let logits = ops::wide::log_softmax(model.last_logits(prompt, left)?);
        let width = logits.dims()[1];
        let values = logits.try_into_vec_as::<f32>().map_err(|e| anyhow!("reading logits: {e:?}"))?;
        all.extend(values.chunks(width).map(<[f32]>::to_vec));
    }
    Ok(all)
}

/// KL(exact ‖ rounded) in nats, and how often the most probable token is the same.
fn describe_rounding(exact: &[Vec<f32>], rounded: &[Vec<f32>]) -> String {
    let kl = |(p, q): (&Vec<f32>, &Vec<f32>)| {
        p.iter().zip(q).map(|(&p, &q)| f64::from(p).exp() * f64::from(p - q)).sum::<f64>().max(0.0)
    };
    let first = |x: &[f32]| x.iter().enumerate().fold(0, |best, (i, y)| if *y > x[best] { i } else { best });
    let kls: Vec<f64> = exact.iter().zip(rounded).map(kl).collect();
    let same = exact.iter().zip(rounded).filter(|(p, q)| first(p) == first(q)).count();
    format!(
        "stored-q8 on these prompts: mean KL from stored {:.2e} nats, largest {:.2e}; the most probable next token is the same at {same} of {} \
         positions (the last ones of the first prompts, {COMPARED} in all at most)",
        kls.iter().sum::<f64>() / kls.len().max(1) as f64,
        kls.iter().copied().fold(0.0, f64::max),
        kls.len()
    )
}

/// A request that fits its model.
pub(super) struct CheckedGeneration {
    prompts: Vec<Vec<u32>>,
    pub settings: DecodeSettings,
    pub changes: Changes,
    specs: Vec<HookSpec>,
    out: Option<PathBuf>,
}

pub(super) struct Generation {
    pub traces: Vec<Trace>,
    /// Effect of each change.
    pub fired: Vec<ChangeReport>,
}

impl GenerateRequest {
    pub fn check(&self, model: &Subject) -> Result<CheckedGeneration> {
        ensure!(!self.prompts.is_empty(), "no prompts");
        ensure!(self.record.is_some() == self.out.is_some(), "`record` and `out` go together");
        let settings = self.settings.settings(model)?;
        let prompts = model.encode(&self.prompts)?;
        for (index, prompt) in prompts.iter().enumerate() {
            let checked = self.check_prompt(prompt, model);
            if prompts.len() > 1 { checked.with_context(|| format!("prompts[{index}]"))? } else { checked? }
        }
        let changes = Changes::read(&self.hooks, model.config)?;
        let specs = self.record.as_deref().map(parse_specs).transpose()?.unwrap_or_default();
        let (blocks, switches) = (&model.reasoning.blocks, model.switch.is_some());
        let check = |prompt, specs: &[HookSpec]| {
            let reach = Reach::new(blocks, switches, &settings, prompt);
            reach.check(specs, &changes, model.config.num_hidden_layers)
        };
        check(prompts.iter().map(Vec::len).max().unwrap_or_default(), &specs)?;
        // A change that reaches the longest row may miss another.
        for (index, prompt) in prompts.iter().enumerate().filter(|_| prompts.len() > 1) {
            check(prompt.len(), &[]).with_context(|| format!("prompts[{index}]"))?;
        }
        self.out.as_deref().map_or(Ok(()), tensors::check_out)?;
        Ok(CheckedGeneration { prompts, settings, changes, specs, out: self.out.clone() })
    }

    fn check_prompt(&self, prompt: &[u32], model: &Subject) -> Result<()> {
        if let Some(ids) = model.switch {
            ensure!(!prompt.contains(&ids.latent), "the prompt has <latent>: latent steps are computed, not given");
        }
        let (n, new, most) = (prompt.len(), self.settings.max_new_tokens, model.config.max_position_embeddings);
        ensure!(
            !model.config.family.learned_positions || n.saturating_add(new) <= most,
            "the prompt's {n} tokens and max_new_tokens {new} exceed the {most} positions of the model: use fewer"
        );
        ensure!(
            n < most,
            "the prompt has {n} tokens, and the model has {most} positions (max_position_embeddings): no position is left for a response"
        );
        Ok(())
    }
}

impl CheckedGeneration {
    /// Continues the prompts in a batch under the changes, and writes the recording of the model of this name. `cancel` ends it with the
    /// results so far.
    pub fn run(&self, loaded: &Loaded, name: &str, cancel: Option<&AtomicBool>) -> Result<Generation> {
        let Self { prompts, settings, changes, specs, out } = self;
        let recording = Recording::for_model(specs, loaded.model.config())?;
        let ends: Vec<(usize, usize)> = prompts.iter().map(Vec::len).enumerate().collect();
        let requests = Request::all(prompts.iter().cloned());
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
                let changed = match changes.is_empty() {
                    true => "",
                    false => ", or a --hook replaces values by ones that are too large or NaN",
                };
                bail!("the logits after {n} new tokens are not finite: the weights contain or produce NaN{changed}")
            })
        })?;
        if let Some(out) = out {
            let recorded = recording.tensors(traces.len()).with_context(|| ran(&traces))?;
            tensors::check_finite(&recorded)?;
            let rows: Vec<Sequence> = traces.iter().map(|trace| loaded.row(trace)).collect::<Result<_>>()?;
            tensors::write(out, (name, loaded.layers()), &rows, &recorded, &FromEnd::new())?;
        }
        Ok(Generation { traces, fired })
    }
}
