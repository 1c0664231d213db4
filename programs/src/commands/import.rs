//! `probe import`: converts published latent reasoners, in their authors' file formats, into one of our folders.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use super::print;
use switchyard::latent::{Blocks, Reasoning, Source, reasoning};
use switchyard::model::checkpoint::peft::{Adapter, Apply};
use switchyard::model::checkpoint::wrapped::{InnerModel, Wrapper, unwrap};
use switchyard::model::checkpoint::{EMBED, HEAD, HostTensor, ModelFiles, ModelRef, SaveOptions, save_hf_folder};
use switchyard::model::heads;
use switchyard::progress::say;
use switchyard::text::vocabulary::{LATENT, SWI, SWI_END};

/// Convert a published latent reasoner into a folder that every program opens.
///
/// Reads the files of the authors' code: CODI's state dict (LoRA factors are merged, `prj` becomes heads.safetensors), Coconut's
/// checkpoint_N, SIM-CoT's over either, and iCoT's state_dict.bin. Settings and tokenizer come from the base: GPT-2 or the Llama that it was
/// trained from. Latent-SFT and Latent-GRPO save whole Hugging Face folders, or an adapter over --base. Nothing in a PyTorch file is executed.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  probe import CODI-gpt2 --as codi --base openai-community/gpt2 --out codi-gpt2\n  \
                        probe import coconut/checkpoint_33 --as coconut --base openai-community/gpt2 --out coconut-gpt2\n  \
                        probe import latent-sft/hf --as latent_sft --out latent-sft-llama"
)]
pub struct Import {
    /// A folder or file of weights, or a hub id whose files are in the cache
    #[arg(value_name = "FOLDER|FILE")]
    from: PathBuf,
    /// The project whose code saved it
    #[arg(long = "as", value_enum)]
    kind: ReasonerKind,
    /// The model that it was trained from: a folder with config.json and tokenizer.json, or a hub id; not needed for a whole folder of
    /// latent_sft
    #[arg(long, value_name = "MODEL")]
    base: Option<String>,
    /// Latent steps of its block: by default 6 as in CODI's and Coconut's published runs; of latent_sft at most, by default 128
    #[arg(long, value_name = "N")]
    latents: Option<usize>,
    /// Alpha of the LoRA factors, which is not in the file: 32 in CODI's scripts
    #[arg(long, value_name = "A", default_value_t = 32.0)]
    lora_alpha: f64,
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReasonerKind {
    Codi,
    Coconut,
    Simcot,
    Icot,
    /// Latent-SFT or Latent-GRPO
    #[value(name = "latent_sft", alias = "latent_grpo")]
    LatentSft,
}

impl Import {
    pub fn run(&self) -> Result<()> {
        ensure!(self.latents != Some(0), "--latents must be at least 1, found 0");
        ensure!(self.lora_alpha.is_finite(), "--lora-alpha must be a number, found {}", self.lora_alpha);
        ensure!(!self.out.exists(), "{}: already exists; name a new folder with --out", self.out.display());
        if self.kind == ReasonerKind::LatentSft {
            return self.superpositions();
        }
        let base = ModelRef::parse(self.base()?).context("--base")?.locate()?;
        ensure!(base.is_dir(), "{}: --base must be a folder with config.json and tokenizer.json", base.display());
        let unwrapped = unwrap(&self.from, &base, self.lora_alpha)?;
        self.check_kind(&unwrapped)?;
        if unwrapped.wrapper == Wrapper::Icot {
            return self.save_plain(&unwrapped);
        }
        let tokens = Tokens::find(&unwrapped, self.base()?)?;
        let files = self.files(&unwrapped, &tokens)?;
        let more = self.save(&unwrapped.checkpoint, tokens.rows, files)?;
        self.report(&unwrapped, &tokens, more)
    }

    fn base(&self) -> Result<&str> {
        self.base.as_deref().context("--base is missing: name the model that it was trained from")
    }

    fn steps(&self) -> usize {
        self.latents.unwrap_or(if self.kind == ReasonerKind::LatentSft { 128 } else { 6 })
    }

    /// Latent-SFT and Latent-GRPO (`DJC-GO-SOLO/Latent-SFT`, `eval_latent_model_hf_batch.py`): the prompt, `<think>`, superpositions of the
    /// `TOP` most probable tokens until `</think>` is the most probable one, then text.
    fn superpositions(&self) -> Result<()> {
        const TOP: usize = 10;
        let from = self.from.display().to_string();
        let checkpoint = match &self.base {
            Some(base) => ModelFiles::open(base)?.with_adapter(Arc::new(Adapter::open(&self.from)?), Apply::Merged)?,
            None => ModelFiles::open(&from)?,
        };
        let mut files = checkpoint.text_files(None)?;
        drop_template(&mut files)?;
        let templates = checkpoint.templates()?;
        let jinja = templates.as_ref().map(|known| known.choose(None)).transpose()?;
        // Without a template the message alone and a line break.
        let jinja = jinja.unwrap_or("{{ messages[-1]['content'] }}{{ '\\n' }}");
        for (name, bytes) in files.iter_mut().filter(|(name, _)| name.ends_with(".json")) {
            let mut json: Value = serde_json::from_slice(bytes).with_context(|| name.clone())?;
            rename(&mut json);
            *bytes = format!("{json:#}\n").into_bytes();
        }
        let at = files.iter().position(|(name, _)| name == "tokenizer.json");
        let at = at.with_context(|| format!("{from}: no tokenizer.json, which names the tokens"))?;
        let mut tokenizer =
            Tokenizer::from_bytes(&files[at].1).map_err(|error| anyhow!("{from}: tokenizer.json: {error}"))?;
        let tag = |name: &str, theirs: &str| {
            tokenizer.token_to_id(name).with_context(|| {
                format!("{from}: {theirs} is not one token of its vocabulary, and a block begins and ends with one")
            })
        };
        let (swi, swi_end) = (tag(SWI, THINK)?, tag(SWI_END, THINK_END)?);
        add(&mut tokenizer, LATENT)?;
        let rows = tokenizer.get_vocab_size(true);
        files[at].1 = serde_json::to_vec_pretty(&tokenizer)?;
        // What follows the tag is left out too: some templates open the thought themselves, and the block does.
        let asked = "{% set messages = [{'role': 'user', 'content': 'Please reason step by step, and put your final answer within \\\\boxed{}.\\n' + \
                     messages[-1]['content']}] %}";
        let template = format!("{asked}{{% set prompt %}}{jinja}{{% endset %}}{{{{ prompt.split('{THINK}')[0] }}}}");
        files.push((TEMPLATE.into(), template.into_bytes()));
        let source = Source::VocabularyMixture { top_k: TOP, top_p: 1.0, temperature: 1.0 };
        let blocks = Blocks::Thinking { limit: self.steps() };
        let reasoning = Reasoning { source, blocks, ..Reasoning::text("latent_sft") };
        files.push((reasoning::FILE.into(), serde_json::to_vec_pretty(&reasoning)?));
        self.save(&checkpoint, rows, files)?;
        checkpoint.notes.iter().for_each(|note| say(note));
        print(&format!(
            "{}\nup to {} latents between {SWI} (token {swi}, theirs {THINK}) and {SWI_END} (token {swi_end}, theirs {THINK_END}), fed with the \
             superposition of the {TOP} most probable tokens (`top_k` of {})\n",
            self.out.display(),
            self.steps(),
            reasoning::FILE
        ))
    }

    /// Writes the weights with tables of at least so many rows, and the files next to them; gives the rows that are new.
    fn save(&self, checkpoint: &ModelFiles, rows: usize, files: Vec<(String, Vec<u8>)>) -> Result<usize> {
        let mut config = checkpoint.config.clone();
        let more = rows.saturating_sub(config.vocab_size);
        config.vocab_size += more;
        let extended = checkpoint.tensors().map(|read| {
            let (name, mut tensor) = read?;
            if name == EMBED || name == HEAD {
                tensor.data.resize(tensor.data.len() + more * tensor.width(), 0.0);
                tensor = HostTensor::new(vec![tensor.shape[0] + more, tensor.shape[1]], tensor.data)?;
            }
            Ok((name, tensor))
        });
        save_hf_folder(&self.out, &config, extended, &SaveOptions { files, ..SaveOptions::default() })?;
        Ok(more)
    }

    /// A model without latent blocks: its own weights with the base's text side.
    fn save_plain(&self, unwrapped: &InnerModel) -> Result<()> {
        let InnerModel { checkpoint, .. } = unwrapped;
        let options = SaveOptions { files: checkpoint.text_files(None)?, ..SaveOptions::default() };
        save_hf_folder(&self.out, &checkpoint.config, checkpoint.tensors(), &options)?;
        checkpoint.notes.iter().for_each(|note| say(note));
        print(&format!("{}\na {} model without latents\n", self.out.display(), checkpoint.config.family.name()))
    }

    /// Checks that the file is of the named kind.
    fn check_kind(&self, unwrapped: &InnerModel) -> Result<()> {
        let from = self.from.display();
        let found = unwrapped.wrapper;
        let wanted = match self.kind {
            ReasonerKind::Codi => Some(Wrapper::Codi),
            ReasonerKind::Coconut => Some(Wrapper::Coconut),
            ReasonerKind::Icot => Some(Wrapper::Icot),
            ReasonerKind::Simcot | ReasonerKind::LatentSft => None,
        };
        ensure!(
            wanted.is_none_or(|wanted| wanted == found),
            "{from}: its parameters have the names of {found:?}, but --as is {:?}",
            self.kind
        );
        let more = &unwrapped.left_out;
        ensure!(
            self.kind == ReasonerKind::Simcot || more.is_empty(),
            "{from}: has modules {more:?} that {found:?} does not have; if they are SIM-CoT's auxiliary decoder, use --as simcot"
        );
        Ok(())
    }

    fn reasoning(&self, unwrapped: &InnerModel) -> Reasoning {
        let source = if unwrapped.projection.is_empty() { Source::HiddenState } else { Source::Projection };
        let method = match unwrapped.wrapper {
            Wrapper::Coconut => "coconut",
            Wrapper::Codi => "codi",
            Wrapper::Icot => "icot",
        };
        Reasoning {
            source,
            blocks: Blocks::AfterPrompt { steps: self.steps() },
            trained_dwell: vec![self.steps()],
            ..Reasoning::text(method)
        }
    }

    /// Files next to the weights.
    fn files(&self, unwrapped: &InnerModel, tokens: &Tokens) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = unwrapped.checkpoint.text_files(Some(&tokens.tokenizer))?;
        // The authors' prompts are the question alone, without the base's chat template.
        drop_template(&mut files)?;
        files.push((TEMPLATE.into(), self.template(unwrapped, tokens).into_bytes()));
        files.push((reasoning::FILE.into(), serde_json::to_vec_pretty(&self.reasoning(unwrapped))?));
        if !unwrapped.projection.is_empty() {
            files.push((heads::FILE.into(), heads::packed(&unwrapped.projection)?));
        }
        Ok(files)
    }

    /// The prompt of one question, after the base's first token if it adds one: in Coconut the unchanged question and a line break, in CODI
    /// stripped and with single spaces for double ones (`question.strip().replace('  ', ' ')`).
    fn template(&self, unwrapped: &InnerModel, tokens: &Tokens) -> String {
        let begin = tokens.begin.as_ref().map_or_else(String::new, |token| format!("{{{{ '{token}' }}}}"));
        let question = match unwrapped.wrapper {
            Wrapper::Codi => "{{ message['content'] | trim | replace('  ', ' ') }}",
            Wrapper::Coconut | Wrapper::Icot => "{{ message['content'] }}{{ '\\n' }}",
        };
        format!("{begin}{{% for message in messages %}}{question}{{% endfor %}}")
    }

    fn report(&self, unwrapped: &InnerModel, tokens: &Tokens, more: usize) -> Result<()> {
        unwrapped.checkpoint.notes.iter().for_each(|note| say(note));
        if !unwrapped.left_out.is_empty() {
            say(&format!("not read, because it is for training only: {}", unwrapped.left_out.join(", ")));
        }
        if let Some(rank) = unwrapped.rank {
            say(&format!(
                "merged LoRA factors of rank {rank} with alpha {}, which is not in the file",
                self.lora_alpha
            ));
        }
        if more > 0 {
            say(&format!("{LATENT} has a new row of zeros: the authors' code has no token for it"));
        }
        let Tokens { swi, swi_end, .. } = tokens;
        print(&format!(
            "{}\n{} latents between {SWI} (token {swi}) and {SWI_END} (token {swi_end}), fed with {}\n",
            self.out.display(),
            self.steps(),
            if unwrapped.projection.is_empty() { "the hidden state" } else { "the projected hidden state" }
        ))
    }
}

const TEMPLATE: &str = "chat_template.jinja";
const THINK: &str = "<think>";
const THINK_END: &str = "</think>";

/// Removes the chat template from the files of a text side.
fn drop_template(files: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    files.retain(|(name, _)| name != TEMPLATE);
    for (name, bytes) in files.iter_mut().filter(|(name, _)| name == "tokenizer_config.json") {
        let mut config: Map<String, Value> = serde_json::from_slice(bytes).with_context(|| name.clone())?;
        config.shift_remove("chat_template");
        *bytes = format!("{:#}\n", Value::Object(config)).into_bytes();
    }
    Ok(())
}

/// Puts our names of the tags in the place of theirs, wherever a file has one as a key or as a whole text.
fn rename(json: &mut Value) {
    let ours = |text: &str| match text {
        THINK => SWI.to_owned(),
        THINK_END => SWI_END.to_owned(),
        other => other.to_owned(),
    };
    match json {
        Value::String(text) => *text = ours(text),
        Value::Array(items) => items.iter_mut().for_each(rename),
        Value::Object(map) => {
            let tag = map.get("content").and_then(Value::as_str).is_some_and(|text| [THINK, THINK_END].contains(&text));
            *map = std::mem::take(map).into_iter().map(|(key, value)| (ours(&key), value)).collect();
            map.values_mut().for_each(rename);
            if tag && map.contains_key("special") {
                map.insert("special".into(), Value::Bool(true));
            }
        }
        _ => {}
    }
}

/// The tokenizer with the authors' tokens, by our names.
struct Tokens {
    tokenizer: Tokenizer,
    swi: u32,
    swi_end: u32,
    /// Rows that embedding and head need.
    rows: usize,
    /// Tokens that the base puts before every text.
    begin: Option<String>,
}

impl Tokens {
    /// Coconut adds its three markers in the order start, end, latent; CODI padding, start, end, and feeds no token at latents. If the base has a
    /// padding token CODI adds two; a fourth is a padding token before Coconut's or a latent one after CODI's.
    fn find(unwrapped: &InnerModel, base: &str) -> Result<Self> {
        let tokenizer = unwrapped.checkpoint.tokenizer()?;
        let mut tokenizer =
            tokenizer.with_context(|| format!("--base {base}: no tokenizer.json, which names the tokens"))?;
        let begin = tokenizer.encode("", true).ok().and_then(|encoded| encoded.get_tokens().first().cloned());
        let first = unwrapped.checkpoint.config.vocab_size - unwrapped.added;
        // The base may have a padding token of the same name.
        let padding = if tokenizer.token_to_id("[PAD]").is_some() { "<|pad-added|>" } else { "[PAD]" };
        let (pads, markers) = match unwrapped.wrapper {
            Wrapper::Icot => (false, 0),
            Wrapper::Coconut => (unwrapped.added > 3, 3),
            Wrapper::Codi => (unwrapped.added > 2, 2),
        };
        ensure!(
            unwrapped.added >= markers,
            "--base {base}: two added tokens, but Coconut has three: not the base that it was trained from"
        );
        let names: Vec<&str> = pads.then_some(padding).into_iter().chain([SWI, SWI_END, LATENT]).collect();
        // Padded rows of the base's tables that its tokenizer has no tokens for.
        while tokenizer.get_vocab_size(true) < first {
            let name = format!("<|unused-{}|>", tokenizer.get_vocab_size(true));
            add(&mut tokenizer, &name)?;
        }
        let mut ids = vec![];
        for (nth, name) in names.iter().enumerate() {
            let id = add(&mut tokenizer, name)?;
            ensure!(
                id as usize == first + nth,
                "--base {base}: {name} became token {id}, but it is {} in the authors' code: not the same tokenizer",
                first + nth
            );
            ids.push(id);
        }
        let place = |name: &str| names.iter().position(|n| *n == name).map(|at| ids[at]).unwrap_or_default();
        Ok(Self { swi: place(SWI), swi_end: place(SWI_END), rows: first + names.len(), tokenizer, begin })
    }
}

/// Adds a new special token; returns its id.
fn add(tokenizer: &mut Tokenizer, name: &str) -> Result<u32> {
    if tokenizer.token_to_id(name).is_some() {
        bail!("the base's tokenizer has {name} already: it is not the model that this one was trained from");
    }
    let token = AddedToken::from(name, true).normalized(false);
    tokenizer.add_special_tokens([token]).map_err(|error| anyhow::anyhow!("cannot add {name}: {error}"))?;
    tokenizer.token_to_id(name).with_context(|| format!("{name} was added but is missing"))
}
