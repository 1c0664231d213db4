//! `probe bench`: measures the cost of a model on a machine, in inference and training. Tokens are random: no tokenizer or problems needed.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use burn::tensor::Tensor;
use clap::Args;

use super::device::MachineArgs;
use super::{ModelArgs, print};
use switchyard::corpus::Row;
use switchyard::latent::{
    Blocks, Decode, DecodeSettings, HiddenState, Reasoning, Request, SwitchIds, Switching, decode,
};
use switchyard::machine::memory::seconds_per_weight;
use switchyard::machine::{self, Compute, Machine};
use switchyard::method::CrossEntropy;
use switchyard::model::lora::LoraSettings;
use switchyard::model::{Decoder, Hooks, ModelConfig, Span};
use switchyard::ops::{self, Cpu};
use switchyard::parity::sft_settings;
use switchyard::recipe::{Evaluation, Grpo, MOST_ROWS, Optimizer};
use switchyard::train::grpo;
use switchyard::train::rollouts::{Behaviour, Rollout, RolloutBatch, rollout_settings};
use switchyard::train::sft::{self, Sft};
use switchyard::train::trainer::Trainer;

/// Measure tokens per second, peak memory and model FLOP utilisation of a model.
///
/// Prints median, minimum and maximum over the rounds and the share of the machine's limit: the time that the work's products and the reads of
/// the weights would take at the rates of one large product and of plain reads (measured first), over the time that it took. With --launches, on a
/// GPU, it prints the number of kernel launches instead.
#[derive(Args, Debug)]
pub struct Bench {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt that is prefilled
    #[arg(long, value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Tokens that are decoded, after a prompt of 32
    #[arg(long, value_name = "N", default_value_t = 64)]
    new: usize,
    /// Rows that are decoded together
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,8")]
    rows: Vec<usize>,
    /// Also measure a training step on this many rows of --prompt tokens: forward, backward, clip, AdamW
    #[arg(long, value_name = "ROWS")]
    train: Option<usize>,
    /// Also measure a Switch-GRPO step on one question with this many rollouts of --new tokens and their latents: rollouts, replay with
    /// backward, clip, AdamW
    #[arg(long, value_name = "ROLLOUTS")]
    grpo: Option<usize>,
    /// In training: LoRA factors of this rank on every projection, all else frozen; with --dtype stored over weights in their file's type,
    /// where the last three rows of the token tables are trained too
    #[arg(long, value_name = "RANK")]
    lora: Option<usize>,
    /// Measure --train and --grpo alone, without prefill and decoding before them
    #[arg(long)]
    training_only: bool,
    /// Rounds of each figure
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Count the kernel launches of each figure on a GPU instead of timing it (counting takes time). For decoding: those of one step,
    /// which makes a token per row
    #[arg(long)]
    launches: bool,
    /// Peak of the machine, in 10^12 operations per second, instead of the measured rate of a large product
    #[arg(long, value_name = "TFLOPS")]
    peak_tflops: Option<f64>,
    /// Vector instructions of the CPU's loops: avx512, avx2, neon or scalar, if the processor has them; by default the widest. The
    /// environment variable SWITCHYARD_CPU selects them for every program
    #[arg(long, value_name = "NAME")]
    cpu: Option<String>,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Tokens before the decoded ones.
const BEFORE: usize = 32;

/// Kernel launches of `work`, after a warm-up: compilation and tuning are not counted.
fn launches(mut work: impl FnMut() -> Result<()>) -> Result<u64> {
    work()?;
    let before = machine::launched();
    work()?;
    Ok(machine::launched() - before)
}

/// Tokens per second of each round.
struct MeasuredRates(Vec<f64>);

impl MeasuredRates {
    /// Runs `work`, which makes this many tokens, once as a warm-up and then in measured rounds.
    fn new(tokens: usize, rounds: usize, mut work: impl FnMut() -> Result<()>) -> Result<Self> {
        work()?;
        let mut rates = vec![];
        for _ in 0..rounds {
            let start = Instant::now();
            work()?;
            rates.push(tokens as f64 / start.elapsed().as_secs_f64());
        }
        rates.sort_by(f64::total_cmp);
        Ok(Self(rates))
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    fn line(&self, what: &str, share: f64) -> String {
        let (median, n) = (self.median(), self.0.len());
        let (least, most) = (self.0[0], self.0[n - 1]);
        let share = format!("{:.1} % of the limit", 100.0 * share);
        format!("{what:<24} {median:>10.1} tokens/s  ({least:.1} to {most:.1}, n = {n})  {share}\n")
    }
}

/// What one token costs.
#[derive(Clone, Copy)]
struct TokenCost {
    /// Operations of the model's products.
    flops: f64,
    /// Bytes of weights that are read.
    bytes: f64,
}

/// What the machine does at most.
#[derive(Clone, Copy)]
struct Limit {
    /// Operations per second of one large product.
    products: f64,
    /// Bytes per second of reading as many bytes as the weights have, by all threads: small models are read from a cache.
    reads: f64,
}

impl Limit {
    /// Measures for about a second. `weights`: bytes of the model.
    fn measure(machine: &Machine, weights: f64, peak_tflops: Option<f64>) -> Result<Self> {
        const WIDTH: usize = 1024;
        let device = &machine.device;
        let products = match peak_tflops {
            Some(peak) => peak * 1e12,
            None => 2.0 * WIDTH as f64 / seconds_per_weight(WIDTH, WIDTH, machine.dtype.dtype(), device)?,
        };
        let count = (weights as usize / 4).clamp(1 << 10, 1 << 28);
        let reads = (1 << 25) / count + 3;
        let source = Tensor::<1>::ones([count], device);
        let on_cpu = ops::is_cpu(device);
        // A sum reads all of it by all threads; on a GPU a copy, which writes as much, says more.
        let touched = if on_cpu { 1 } else { 2 };
        let rates = MeasuredRates::new(touched * 4 * count * reads, 3, || {
            (0..reads).for_each(|_| {
                let source = source.clone();
                drop(if on_cpu { ops::sum_of_squares(source) } else { source.add_scalar(1.0) });
            });
            device.sync().context("timing reads")
        })?;
        Ok(Self { products, reads: rates.median() })
    }

    /// Share of the limit that so many tokens per second are.
    fn share(self, rate: f64, work: TokenCost) -> f64 {
        rate * (work.flops / self.products).max(work.bytes / self.reads)
    }

    fn line(self) -> String {
        let (products, reads) = (self.products / 1e9, self.reads / 1e9);
        format!("{:<24} {products:>10.1} GFLOP/s in products, {reads:.1} GB/s of reads\n", "limit")
    }
}

impl Bench {
    pub fn run(&self) -> Result<()> {
        ensure!(self.rounds > 0 && self.prompt > 0 && self.new > 0, "--rounds, --prompt and --new must be at least 1");
        ensure!(!self.rows.contains(&0) && self.train != Some(0), "--rows and --train must be at least 1");
        let counts = [self.rounds, self.prompt, self.new].into_iter().chain(self.rows.iter().copied());
        ensure!(
            counts.chain(self.train).chain(self.grpo).chain(self.lora).all(|count| count <= MOST_ROWS),
            "--rounds, --prompt, --new, --rows, --train, --grpo and --lora must be at most {MOST_ROWS}"
        );
        ensure!(
            self.grpo.is_none_or(|rollouts| rollouts > 1),
            "--grpo must be at least 2: one rollout has no advantage"
        );
        ensure!(self.lora != Some(0), "--lora must be at least 1");
        ensure!(self.lora.is_none() || self.train.or(self.grpo).is_some(), "--lora needs --train or --grpo");
        ensure!(
            !self.training_only || self.train.or(self.grpo).is_some(),
            "--training-only leaves nothing to measure: name --train or --grpo"
        );
        let peak = self.peak_tflops.unwrap_or(1.0);
        ensure!(peak.is_finite() && peak > 0.0, "--peak-tflops must be above 0, found {peak}");
        ensure!(
            !self.launches || self.new > 1,
            "--launches counts the steps after the first: --new must be at least 2"
        );
        if let Some(name) = &self.cpu {
            Cpu::named(name).context("--cpu")?.choose()?;
        }
        if self.launches {
            machine::count_launches()?;
        }
        self.machine.compute_decoding(|machine| self.run_on(machine))
    }

    /// A line for `work`, which makes this many tokens.
    fn measured(
        &self,
        what: &str,
        tokens: usize,
        each: TokenCost,
        limit: Limit,
        work: impl FnMut() -> Result<()>,
    ) -> Result<String> {
        if self.launches {
            return Ok(format!("{what:<24} {:>10} launches\n", launches(work)?));
        }
        let rates = MeasuredRates::new(tokens, self.rounds, work)?;
        Ok(rates.line(what, limit.share(rates.median(), each)))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let files = self.model.open()?.files;
        let weights = if machine.dtype.is_stored() {
            files.places().iter().map(|place| file_bytes(place)).sum::<Result<u64>>()? as f64
        } else {
            (files.config.token_weights() * if machine.dtype == Compute::Bf16 { 2 } else { 4 }) as f64
        };
        let limit = Limit::measure(machine, weights, self.peak_tflops)?;
        if !self.training_only {
            self.examined(machine, weights, limit)?;
        }
        if let Some(rows) = self.train {
            print(&self.training(machine, rows, limit)?)?;
        }
        if let Some(rollouts) = self.grpo {
            print(&self.policy_step(machine, rollouts, limit)?)?;
        }
        print(&limit.line())?;
        if ops::is_cpu(&machine.device) {
            print(&format!("{:<24} {:>10}\n", "vector instructions", Cpu::chosen()?.name()))?;
        }
        if let Some(peak) = peak_resident() {
            print(&format!("{:<24} {:>10.2} GB\n", "peak resident memory", peak as f64 / 1e9))?;
        }
        Ok(())
    }

    /// Measures prefill and decoding, with a model that is freed before training.
    fn examined(&self, machine: &Machine, weights: f64, limit: Limit) -> Result<()> {
        let start = Instant::now();
        let opened = self.model.open()?;
        let model = opened.load_on(machine)?.model;
        let (config, device) = (model.config(), machine::name(&machine.device));
        print(&format!(
            "{}: {:.0} M parameters, {device}, {}, {} threads; loaded in {:.1} s\n",
            self.model.named()?,
            config.token_weights() as f64 / 1e6,
            Compute::new(&model).name(),
            machine.threads,
            start.elapsed().as_secs_f64()
        ))?;
        print(&self.prefill(&model, weights, limit)?)?;
        for &rows in &self.rows {
            print(&self.decoding(&model, rows, false, weights, limit)?)?;
            print(&self.decoding(&model, rows, true, weights, limit)?)?;
        }
        Ok(())
    }

    /// The prompt's forward, with the logits of its last position.
    fn prefill(&self, model: &Decoder, weights: f64, limit: Limit) -> Result<String> {
        let ids = tokens(model.config(), 1, self.prompt);
        let flops = 2.0 * model.config().block_weights() as f64 + attention(model.config(), self.prompt / 2);
        let each = TokenCost { flops, bytes: weights / self.prompt as f64 };
        self.measured(&format!("prefill {}", self.prompt), self.prompt, each, limit, || {
            let span = Span::prompts(&[self.prompt], false);
            let hidden = model.hidden(model.embed(&ids)?, &span, &mut model.cache(1), &mut Hooks::none())?;
            let logits = model.unembed(hidden.narrow(1, self.prompt - 1, 1));
            // A device may be asynchronous: reading a value synchronises.
            logits.sum().into_scalar::<f32>();
            Ok(())
        })
    }

    /// Text tokens, or latent steps of one block for each row.
    fn decoding(&self, model: &Decoder, rows: usize, latent: bool, weights: f64, limit: Limit) -> Result<String> {
        let requests = Request::all(tokens(model.config(), rows, BEFORE));
        let switch = latent.then(|| last_tokens(model.config())).transpose()?;
        let run = |new: usize| {
            let text = DecodeSettings { max_new_tokens: new, ..DecodeSettings::default() };
            // `<swi>` and `</swi>` are the visible tokens.
            let block = DecodeSettings { k_min: new, k_cap: new, max_new_tokens: 2, ..DecodeSettings::default() };
            let settings = if latent { DecodeSettings { switching: Switching::Forced, ..block } } else { text };
            let (source, controller) = (&HiddenState, &Blocks::LEARNT);
            let how = Decode { model, source, controller, switch, settings: &settings, cancel: None, ahead: None };
            decode(how, &requests, 1, &mut Hooks::none()).map(drop)
        };
        let what = format!("decode {rows} x {} {}", self.new, if latent { "latents" } else { "tokens" });
        if self.launches {
            let (all, first) = (launches(|| run(self.new))?, launches(|| run(1))?);
            let each = all.saturating_sub(first) as f64 / (self.new - 1) as f64;
            return Ok(format!("{what:<24} {each:>10.1} launches per step\n"));
        }
        let heads = if latent { model.config().block_weights() } else { model.config().token_weights() };
        let flops = 2.0 * heads as f64 + attention(model.config(), BEFORE + self.new / 2);
        let read = weights * heads as f64 / model.config().token_weights() as f64;
        let each = TokenCost { flops, bytes: read / rows as f64 };
        self.measured(&what, rows * self.new, each, limit, || run(self.new))
    }

    /// A trainer, and its compute type. Trained weights and optimiser state are f32.
    fn trainer(&self, machine: &Machine) -> Result<(Trainer, Compute)> {
        let dtype = match (machine.dtype, self.lora) {
            (Compute::Bf16, _) => Compute::Bf16,
            (Compute::Stored, Some(_)) => Compute::Stored,
            (Compute::Tf32, _) => Compute::Tf32,
            _ => Compute::F32,
        };
        let read = if self.lora.is_some() { dtype } else { Compute::F32 };
        let mut model = self.model.open()?.load_to_train(read, &machine.device.clone().autodiff())?.model;
        if let Some(rank) = self.lora {
            let new_rows = dtype == Compute::Stored;
            if new_rows {
                let rows = model.config().vocab_size as u32;
                model = model.learning_tokens(&[3, 2, 1].map(|back| rows.saturating_sub(back)))?;
            }
            model = model.with_lora(&LoraSettings { rank, train_embeddings: new_rows, ..LoraSettings::default() })?;
        }
        Ok((Trainer::new(model, &Optimizer { dtype, ..Optimizer::default() }), dtype))
    }

    /// Steps as in `train`, with a share of the rows per worker.
    fn training(&self, machine: &Machine, rows: usize, limit: Limit) -> Result<String> {
        let (mut trainer, dtype) = self.trainer(machine)?;
        let config = trainer.model.config().clone();
        let row = |ids| Row { ids, prompt: 1, teacher: None, slots: vec![], noise: None };
        let batch: Vec<Row> = tokens(&config, rows, self.prompt).into_iter().map(row).collect();
        let (objective, threads) = (&CrossEntropy::text(), machine.threads.min(rows));
        let step = Sft { objective, threads, ..sft_settings(config.vocab_size as u32, 1) };
        // Backward costs twice the forward; frozen matrices need no weight gradient.
        let times = if self.lora.is_some() { 2.0 } else { 3.0 };
        let flops = times * (2.0 * config.token_weights() as f64 + attention(&config, self.prompt / 2));
        let what = format!("train {rows} x {}, {}", self.prompt, dtype.name());
        let each = TokenCost { flops, bytes: 0.0 };
        self.measured(&what, rows * self.prompt, each, limit, || sft::step(&mut trainer, &step, &batch, 1e-4).map(drop))
    }

    /// One Switch-GRPO step as in `train`, with a share of the rollouts per worker. The last three tokens of the vocabulary are used as
    /// switch tokens; advantages alternate between 1 and −1. Visible tokens are counted, latents are not.
    fn policy_step(&self, machine: &Machine, rollouts: usize, limit: Limit) -> Result<String> {
        let (mut trainer, dtype) = self.trainer(machine)?;
        let config = trainer.model.config().clone();
        let switch = last_tokens(&config)?;
        let requests = Request::all(tokens(&config, 1, BEFORE));
        let (reasoning, grpo) = (Reasoning::default(), Grpo::default());
        let evaluation = Evaluation { max_new_tokens: self.new, ..Evaluation::default() };
        let settings = DecodeSettings { stop: vec![], ..rollout_settings(&grpo, &evaluation, &[switch.latent], 0) };
        let behaviour = Behaviour { reasoning: &reasoning, switch, settings: &settings, compute: dtype };
        // A rollout is one forward; each inner epoch replays it, a forward and a backward.
        let times = 1.0 + grpo.inner_epochs as f64 * if self.lora.is_some() { 2.0 } else { 3.0 };
        let flops = times * (2.0 * config.token_weights() as f64 + attention(&config, BEFORE + self.new / 2));
        let what = format!("grpo {rollouts} x {}, {}", self.new, dtype.name());
        self.measured(&what, rollouts * self.new, TokenCost { flops, bytes: 0.0 }, limit, || {
            let policy = trainer.policy();
            let traces = decode(behaviour.decode(&policy), &requests, rollouts, &mut Hooks::none())?;
            let advantage = |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 };
            let each = traces.into_iter().enumerate();
            let sampled = RolloutBatch {
                rollouts: each.map(|(i, trace)| Rollout::new(trace, advantage(i))).collect(),
                ..RolloutBatch::default()
            };
            grpo::step(&mut trainer, behaviour, &sampled, None, &grpo, machine.threads.min(rollouts)).map(drop)
        })
    }
}

/// Bytes of the files of weights at a place.
fn file_bytes(place: &Path) -> Result<u64> {
    if !place.is_dir() {
        return Ok(place.metadata()?.len());
    }
    let weights = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "safetensors" || kind == "bin");
    let paths = std::fs::read_dir(place)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.iter().filter(|path| weights(path)).map(|path| Ok(path.metadata()?.len())).sum()
}

/// Rows of random tokens.
fn tokens(config: &ModelConfig, rows: usize, length: usize) -> Vec<Vec<u32>> {
    let token = |i: usize| (i * 7919 % config.vocab_size) as u32;
    (0..rows).map(|row| (0..length).map(|at| token(row * length + at)).collect()).collect()
}

/// The last three tokens of the vocabulary as switch tokens.
fn last_tokens(config: &ModelConfig) -> Result<SwitchIds> {
    ensure!(config.vocab_size > 3, "a vocabulary of {} has no room for switch tokens", config.vocab_size);
    let last = config.vocab_size as u32 - 1;
    Ok(SwitchIds { swi: last - 2, swi_end: last - 1, latent: last })
}

/// Operations of one token's attention to this many keys.
fn attention(config: &ModelConfig, keys: usize) -> f64 {
    (4 * keys * config.num_attention_heads * config.head_dim * config.num_hidden_layers) as f64
}

/// Peak memory of this process in bytes, if the system reports it.
fn peak_resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}
