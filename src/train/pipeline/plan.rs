//! Plans a run before it begins. Declares every phase, so that data which a method cannot use is refused; counts memory, refuses a training
//! batch that does not fit, and lowers the evaluation batch size if its cache does not fit; prints the number of forwards and a lower bound
//! of their time.
//!
//! 1. Weights: frozen ones in their compute type, trained ones in f32 with two moments and a gradient.
//! 2. Training: the autodiff graph of the sequences that are trained on at the same time, each as long as the longest. Rollouts are
//!    replayed in waves, which free most of it, and ones that are too long are left out: for them this is an upper bound, and a warning.
//! 3. Evaluation: KV cache of a batch, twice while the cache grows, and its logits.
//! 4. Time: one matrix product per weight, measured here; attention and the rest are not counted.

use anyhow::{Context as _, Result, ensure};

use super::Run;
use crate::evaluation::{LongestRows, rows_that_fit};
use crate::machine::memory::{MEMORY, free_memory, gigabytes, seconds_per_weight};
use crate::method::{Context, Phase, Work};
use crate::model::checkpoint::{EMBED, HEAD, expected_parameters};
use crate::model::config::ModelConfig;
use crate::progress::say;
use crate::recipe::Compute;
use crate::text::tagging::TaggedLine;
use crate::train::sft::position_bytes;
use crate::train::state::PhaseFolder;

/// Below these (seconds, bytes) no plan is printed.
const WORTH_SAYING: (f64, u64) = (600.0, 8_000_000_000);

/// Memory of a run's weights.
struct WeightCounts {
    weights: u64,
    /// Number of trained values.
    trained: u64,
    /// Number of trained values in embedding table and head.
    tables: u64,
}

impl WeightCounts {
    fn count(run: &Run, config: &ModelConfig) -> Self {
        let count = |shape: &[usize]| shape.iter().product::<usize>() as u64;
        let parameters = expected_parameters(config);
        let all: u64 = parameters.iter().map(|(_, shape)| count(shape)).sum();
        let tables: u64 =
            parameters.iter().filter(|(n, _)| [EMBED, HEAD].contains(&n.as_str())).map(|(_, s)| count(s)).sum();
        let bytes = match run.base_dtype() {
            Compute::Bf16 => 2,
            _ => 4,
        };
        let Some(lora) = run.recipe.lora.as_ref().filter(|_| run.recipe.pretrained.is_some()) else {
            return Self { weights: 4 * all, trained: all, tables };
        };
        let ends = |name: &str| lora.targets.iter().any(|target| name.ends_with(&format!("{target}.weight")));
        let factors = parameters.iter().filter(|(name, shape)| shape.len() == 2 && ends(name));
        let factors: u64 = factors.map(|(_, shape)| (lora.rank * (shape[0] + shape[1])) as u64).sum();
        let tables = match (lora.train_embeddings, lora.only_new_rows) {
            (false, _) => 0,
            (true, true) => 3 * 2 * config.hidden_size as u64,
            (true, false) => tables,
        };
        Self { weights: bytes * all, trained: factors + tables, tables }
    }

    /// Bytes of masters, two moments and a gradient, f32 each.
    fn training(&self) -> u64 {
        16 * self.trained
    }
}

/// Forwards of one phase.
#[derive(Default)]
struct PhasePlan {
    phase: &'static str,
    steps: usize,
    /// Training positions.
    positions: f64,
    /// Number of sequences whose graph is in memory at the same time, and the length of the longest; for rollouts, an upper bound.
    together: [usize; 2],
    rollouts: bool,
    /// Decoding steps for it, one after the other, at most.
    decoded: usize,
}

/// Checks, counts and prints; returns the evaluation batch size.
///
/// # Errors
/// Data that a phase cannot be declared on; weights, or one row of the evaluation, that do not fit into free memory.
pub(super) fn plan(run: &Run, phases: &[Phase], config: &ModelConfig) -> Result<usize> {
    let works = declare_all(run, phases)?;
    let held = WeightCounts::count(run, config);
    let evaluation = &run.recipe.evaluation;
    let prompt = run.corpus.test_prompts.iter().map(Vec::len).max().unwrap_or(0);
    let rows = LongestRows {
        positions: prompt + evaluation.max_new_tokens + evaluation.k_cap,
        bytes: if run.recipe.optimizer.dtype == Compute::Bf16 { 2 } else { 4 },
        workers: run.options.threads.min(run.corpus.test.len().max(1)),
    };
    let wanted = evaluation.batch.min(run.corpus.test.len().div_ceil(rows.workers)).max(1);
    let free = free_memory(&run.device)?;
    let beside = held.weights + held.training();
    let fits = match free {
        Some(free) => {
            ensure!(
                beside <= free,
                "weights ({}) and the training state of {} trained values ({}) do not fit into {} of free memory: train fewer values (set \
                lora.only_new_rows=true), use fewer bits (set optimizer.dtype=bf16, or stored), or allow more memory with {MEMORY}",
                gigabytes(held.weights),
                held.trained,
                gigabytes(held.training()),
                gigabytes(free)
            );
            let fits = rows_that_fit(config, &rows, free - beside);
            ensure!(
                fits > 0,
                "evaluation: one problem of {} positions per worker needs {}, with {} free next to the weights: lower \
                evaluation.max_new_tokens or --threads, or allow more memory with {MEMORY}",
                rows.positions,
                gigabytes(rows.workers as u64 * rows.row(config)),
                gigabytes(free - beside)
            );
            fits
        }
        None => wanted,
    };
    let batch = training_batch(run, &works, config, free.map(|free| free - beside))?;
    // Batches are dealt to processes: all must use the same size.
    let together = -run.options.world.max(-(wanted.min(fits) as f64));
    let together = together as usize;
    if together < wanted {
        say(&format!(
            "evaluation: batch size {together} instead of evaluation.batch = {}: keys, values and logits need up to {} per problem",
            evaluation.batch,
            gigabytes(rows.row(config))
        ));
    }
    let seconds = seconds(run, config, &works, together)?;
    let decoding = (together * rows.workers) as u64 * rows.row(config);
    let memory = beside + decoding.max(batch);
    if seconds > WORTH_SAYING.0 || memory > WORTH_SAYING.1 || run.options.dry {
        print(&works, &held, [memory, batch, decoding], free, seconds);
    }
    Ok(together)
}

/// Rows of a batch that this process trains on at the same time.
fn rows_at_once(run: &Run, batch: usize) -> usize {
    let (threads, parts) = (run.options.threads, run.recipe.optimizer.accumulate);
    let own = batch.div_ceil(run.options.world.size);
    (threads * own.div_ceil(threads * parts)).min(own)
}

/// Bytes of the autodiff graph of a batch, in the phase that needs most.
///
/// # Errors
/// A batch that does not fit next to the weights.
fn training_batch(run: &Run, works: &[PhasePlan], config: &ModelConfig, left: Option<u64>) -> Result<u64> {
    let bytes = if run.recipe.optimizer.dtype == Compute::Bf16 { 2 } else { 4 };
    let of = |[rows, longest]: [usize; 2]| (rows * longest) as u64 * position_bytes(config, bytes);
    for PhasePlan { phase, together, rollouts, .. } in works {
        let needed = of(*together);
        if *rollouts {
            let whole = run.recipe.grpo.checkpoint_every == 0;
            if let Some(left) = left.filter(|left| whole && needed > *left) {
                say(&format!(
                    "phase {phase}: the graph of {} rollouts of up to {} positions can need {}, and {} are free next to the weights: the \
                     longest may be left out; lower grpo.questions, grpo.group, grpo.max_positions or evaluation.max_new_tokens, or set grpo.checkpoint_every",
                    together[0],
                    together[1],
                    gigabytes(needed),
                    gigabytes(left)
                ));
            }
            continue;
        }
        ensure!(
            left.is_none_or(|left| needed <= left),
            "phase {phase}: {} rows of up to {} positions are trained on at the same time and need up to {} for their gradient, next to the \
             weights {} are free: set its batch lower, optimizer.accumulate higher, data.max_tokens or --threads lower, or name more with {MEMORY}",
            together[0],
            together[1],
            gigabytes(needed),
            gigabytes(left.unwrap_or_default())
        );
    }
    let supervised = works.iter().filter(|work| !work.rollouts);
    Ok(supervised.map(|work| of(work.together)).max().unwrap_or(0))
}

/// Declares every phase that is not finished.
fn declare_all(run: &Run, phases: &[Phase]) -> Result<Vec<PhasePlan>> {
    let recipe = &run.recipe;
    let only = |name: &str| run.options.only.is_empty() || run.options.only.iter().any(|other| other == name);
    let untagged = |sample: &crate::text::Sample| TaggedLine {
        id: sample.id.clone(),
        spans: sample.spans.clone().unwrap_or_default(),
        latents: 0,
        tagged_solution: String::new(),
    };
    let tagged: Vec<TaggedLine> = run.corpus.train.iter().map(untagged).collect();
    let length = run.corpus.train.iter().map(|sample| sample.length()).sum::<usize>() as f64
        / run.corpus.train.len().max(1) as f64;
    let evaluations = |blocks: bool| 1 + usize::from(blocks && recipe.evaluation.text_only);
    let batches = run.corpus.test.len().div_ceil(recipe.evaluation.batch.max(1));
    let one = batches * recipe.evaluation.max_new_tokens;
    let mut works = vec![];
    for phase in phases.iter().filter(|phase| only(phase.name)) {
        let folder = PhaseFolder { path: run.root.join(phase.name) };
        if folder.result::<super::PhaseResult>().is_ok_and(|done| done.is_some()) {
            continue;
        }
        let mut work = PhasePlan { phase: phase.name, ..PhasePlan::default() };
        match phase.work {
            Work::Supervised(declare) => {
                let context = Context { recipe, corpus: &run.corpus, tagged: &tagged };
                let what = declare(context).with_context(|| format!("phase {}", phase.name))?;
                let stages =
                    what.exports.iter().filter(|export| export.stage.is_some() && recipe.evaluation.stages).count();
                let mean = what.lengths.iter().sum::<usize>() as f64 / what.lengths.len().max(1) as f64;
                work.steps = what.schedule.steps;
                work.together = [rows_at_once(run, what.batch), what.lengths.iter().copied().max().unwrap_or(0)];
                work.positions = (what.schedule.steps * what.batch) as f64 * mean;
                work.decoded = (evaluations(what.reasoning.has_blocks()) + stages) * one;
            }
            Work::Annotate => work.positions = run.corpus.train.len() as f64 * length / 3.0,
            // Every stage decodes the validation problems, of the same number as the held-out ones.
            Work::TakeBest => work.decoded = (1 + recipe.latent.stages.len()) * one,
            Work::Take(_) | Work::Decode { .. } => work.decoded = evaluations(true) * one,
            Work::Grpo(settings) => {
                let grpo = settings(recipe);
                work.steps = grpo.steps;
                let longest = (recipe.evaluation.max_new_tokens + length as usize).min(grpo.max_positions);
                let questions = grpo.questions_of(run.options.world.size);
                let rollouts = questions * grpo.group;
                work.rollouts = true;
                work.together = [rollouts.div_ceil(run.options.world.size), longest];
                work.positions = (grpo.steps * rollouts * grpo.inner_epochs * longest) as f64;
                work.decoded = evaluations(true) * one + grpo.steps * questions * recipe.evaluation.max_new_tokens;
            }
        }
        works.push(work);
    }
    Ok(works)
}

/// Lower bound of the time in seconds: forward and backward are three products per position, a decoding step one per batch row.
fn seconds(run: &Run, config: &ModelConfig, works: &[PhasePlan], rows: usize) -> Result<f64> {
    const POSITIONS: usize = 256;
    let width = config.hidden_size.min(4096);
    let dtype = run.recipe.optimizer.dtype.dtype();
    let [learnt, decoded] = [POSITIONS, rows].map(|n| seconds_per_weight(n, width, dtype, &run.options.device));
    let weights = config.token_weights() as f64;
    let (learnt, decoded) = (3.0 * learnt? * weights / POSITIONS as f64, decoded? * weights);
    Ok(works.iter().map(|work| work.positions * learnt + work.decoded as f64 * decoded).sum())
}

fn print(
    works: &[PhasePlan],
    held: &WeightCounts,
    [memory, batch, decoding]: [u64; 3],
    free: Option<u64>,
    seconds: f64,
) {
    for PhasePlan { phase, steps, positions, decoded, together, rollouts } in works {
        let replayed = if *rollouts { format!(", {} rollouts at a time", together[0]) } else { String::new() };
        say(&format!(
            "plan: {phase}: {steps} steps{replayed}, {:.1} M positions, up to {decoded} decoding steps",
            positions / 1e6
        ));
    }
    say(&format!(
        "plan: memory up to {} ({} free): weights {}, trained values with moments and gradients {} (gradients of embedding and head {}), the \
         graph of a supervised batch up to {}, or keys, values and logits of the evaluation {}; a checkpoint {}, a saved state {}",
        gigabytes(memory),
        free.map_or("an unknown amount".into(), gigabytes),
        gigabytes(held.weights),
        gigabytes(held.training()),
        gigabytes(4 * held.tables),
        gigabytes(batch),
        gigabytes(decoding),
        gigabytes(4 * held.trained),
        gigabytes(12 * held.trained)
    ));
    let time = if seconds < 7200.0 {
        format!("{:.0} minutes", seconds / 60.0)
    } else {
        format!("{:.1} hours", seconds / 3600.0)
    };
    say(&format!(
        "plan: at least {time} at this machine's speed of matrix products, if no answer ends before its limit"
    ));
}
