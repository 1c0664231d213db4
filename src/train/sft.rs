//! The supervised loop of base, phase 1, phase 2 and the controls: batch → loss → step → record → checkpoint.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use burn::optim::GradientsParams;

use super::shards;
use super::state::PhaseFolder;
use super::trainer::Trainer;
use crate::corpus::Row as TrainingRow;
use crate::method::{LrSchedule, Objective};
use crate::model::ModelConfig;
use crate::ops::scalars;
use crate::parallel;
use crate::progress::Progress;
use crate::schema::{METRICS, StepRow};
use crate::store::{FlatRow, RowWriter, read_flat};

/// Settings of a supervised phase.
pub struct Sft<'a> {
    pub name: &'a str,
    pub steps: usize,
    pub schedule: LrSchedule,
    pub latent_token: u32,
    pub objective: &'a dyn Objective,
    /// Steps before which the optimiser state is reset.
    pub resets: &'a [usize],
    /// Steps before which the learning rate schedule restarts.
    pub restarts: &'a [usize],
    pub accumulate: usize,
    pub threads: usize,
    pub checkpoint_every: usize,
}

/// Mean loss and token accuracy of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    pub loss: f64,
    pub accuracy: f64,
    pub norm: f64,
    /// Positions in the loss.
    pub tokens: usize,
    /// Positions fed.
    pub positions: usize,
}

/// One optimiser step on the mean cross-entropy of `rows`, the batch of all processes.
pub fn step(trainer: &mut Trainer, sft: &Sft, rows: &[TrainingRow], lr: f64) -> Result<StepStats> {
    let (grads, stats) = gradients(trainer, sft, rows)?;
    let norm = trainer.apply(grads, stats.loss, lr)?;
    Ok(StepStats { norm, ..stats })
}

/// Bytes that the autodiff graph of one position needs until its backward pass, with activations of so many bytes a value: per layer the
/// residual stream and its norms, queries, keys and values before and after RoPE, and the products of the MLP. The head works in parts.
/// The factors are measured (`tests/memory.rs`).
pub fn position_bytes(config: &ModelConfig, bytes: usize) -> u64 {
    let heads = config.num_attention_heads * config.head_dim;
    let kept = config.num_key_value_heads * config.head_dim;
    let normed = if config.qk_norm { 4 * (heads + kept) } else { 0 };
    let layer = 4 * config.hidden_size + 4 * heads + 6 * kept + normed + 5 * config.intermediate_size / 2;
    (config.num_hidden_layers * layer * bytes) as u64
}

/// Gradients of the mean cross-entropy of `rows`, summed over processes that each compute their share. The statistics are those of
/// [`step`] without the norm.
///
/// # Errors
/// As [`Objective::sums`]; processes with different rows.
pub fn gradients(trainer: &Trainer, sft: &Sft, rows: &[TrainingRow]) -> Result<(GradientsParams, StepStats)> {
    // Counted over the whole batch, which every process knows, so that each can divide before its backward pass.
    let total = sft.objective.tokens(rows, sft.latent_token);
    let shards = sft.threads * sft.accumulate;
    let world = trainer.world;
    let own = world.own(rows);
    let parts = parallel::cut(&own, shards);
    let (mut all, mut loss, mut correct) = (vec![], 0.0, 0.0);
    for wave in parts.chunks(sft.threads.max(1)) {
        let (model, compute) = (&trainer.model, trainer.compute);
        let done = parallel::run(wave, |part| {
            let model = &shards::own_leaves(model, compute);
            let sums = sft.objective.sums(model, part, sft.latent_token)?;
            let grads = sums.loss.clone().div_scalar(total.max(1) as f64).backward();
            // The loss is read only now, while a GPU has the backward pass to compute.
            let values = scalars([sums.loss, sums.correct]);
            Ok((GradientsParams::from_grads(grads, model), values))
        })?;
        for (grads, values) in done {
            all.push(grads);
            loss += values[0];
            correct += values[1];
        }
    }
    let own_tokens = sft.objective.tokens(&own, sft.latent_token);
    let [loss, correct, tokens] = world.sums([loss, correct, own_tokens as f64]);
    ensure!(
        tokens == total as f64,
        "the processes count {tokens} target tokens, but the batch of process {} has {total}: they see different files (data, \
        annotation) or are different programs",
        world.rank
    );
    let own = shards::sum_gradients(&trainer.model, all);
    let grads = shards::sum_over(world, &trainer.model, own, trainer.token_rows.as_deref())?;
    let total = total.max(1);
    let (loss, accuracy) = (loss / total as f64, correct / total as f64);
    let positions = rows.iter().map(TrainingRow::positions).sum();
    Ok((grads, StepStats { loss, accuracy, norm: 0.0, tokens: total, positions }))
}

/// Runs a phase from its saved step. `rows_of(step)` makes a step's batch; `after(step, …)` is called after each step. Returns
/// `false` if `stop`, called after each step, returns true; the state is saved then.
///
/// # Errors
/// As [`step`], and a disk that cannot be written.
pub fn run(
    sft: &Sft,
    trainer: &mut Trainer,
    folder: &PhaseFolder,
    stop: fn() -> bool,
    mut rows_of: impl FnMut(usize) -> Result<Vec<TrainingRow>>,
    mut after: impl FnMut(usize, &StepStats, &Trainer) -> Result<()>,
) -> Result<bool> {
    if sft.steps == 0 {
        return Ok(true);
    }
    let from = folder.restore(trainer)?;
    let world = trainer.world;
    let mut metrics = world.writes().then(|| metrics_from(folder, from)).transpose()?;
    let mut progress = Progress::new(sft.name, sft.steps, from);
    for at in from..sft.steps {
        let started = Instant::now();
        let rows = rows_of(at)?;
        if rows.is_empty() {
            bail!("{}: step {at} has no rows", sft.name);
        }
        if sft.resets.contains(&at) {
            trainer.forget();
        }
        let lr = sft.schedule.restarted(sft.restarts, at);
        let stats = step(trainer, sft, &rows, lr)?;
        let speed = stats.positions as f64 / started.elapsed().as_secs_f64();
        let latents = rows.iter().flat_map(|r| &r.ids).filter(|&&id| id == sft.latent_token).count();
        let row = StepRow {
            phase: sft.name.into(),
            step: at,
            loss: stats.loss,
            token_accuracy: stats.accuracy,
            grad_norm: stats.norm,
            learning_rate: lr,
            tokens: stats.tokens,
            positions: stats.positions,
            latents,
            tokens_per_s: speed,
            skipped: trainer.health.skipped,
        };
        if let Some(metrics) = &mut metrics {
            metrics.push(&row)?;
        }
        let done = at + 1;
        progress.update(done, &format!("loss {:.4} acc {:.3} {speed:.0} tok/s", stats.loss, stats.accuracy));
        after(done, &stats, trainer)?;
        let stopped = world.any(stop());
        if stopped || (done % sft.checkpoint_every == 0 && done < sft.steps) {
            trainer.ensure_same()?;
            if world.writes() {
                folder.save(done, trainer)?;
            }
        }
        if stopped {
            progress.finish();
            return Ok(false);
        }
    }
    progress.finish();
    if let Some(metrics) = metrics {
        metrics.finish()?;
    }
    trainer.ensure_same()?;
    Ok(true)
}

/// The metrics writer of a phase, without records of steps that will run again.
///
/// # Errors
/// A file that cannot be written; records that do not match the steps before `step`.
pub(crate) fn metrics_from(folder: &PhaseFolder, step: usize) -> Result<RowWriter> {
    let keep = metrics_before(folder, step)?;
    ensure!(
        keep.len() == step,
        "{}: the saved state is after {step} steps, but {METRICS} has records of {}; a file was lost or belongs to another run: \
        remove the folder to train this phase again",
        folder.path.display(),
        keep.len()
    );
    RowWriter::replacing(&folder.path, METRICS, keep)
}

/// The sum of a column of counts.
pub fn sum(rows: &[FlatRow], column: &str) -> usize {
    rows.iter().filter_map(|row| row.get(column)?.as_u64()).sum::<u64>() as usize
}

/// Records of the steps before `step`, from an unfinished run or, if it died while evaluating, from the finished file.
pub(crate) fn metrics_before(folder: &PhaseFolder, step: usize) -> Result<Vec<FlatRow>> {
    let held = RowWriter::resume(&folder.path, METRICS)?;
    let parquet = folder.path.join(format!("{METRICS}.parquet"));
    let rows = if held.rows().is_empty() && parquet.exists() { read_flat(&parquet)? } else { held.rows().to_vec() };
    let before = |row: &FlatRow| row.get("step").and_then(serde_json::Value::as_u64).is_some_and(|s| s < step as u64);
    Ok(rows.into_iter().filter(before).collect())
}
