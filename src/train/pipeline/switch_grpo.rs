//! The Switch-GRPO loop: sample, step, log, watch for reward hacking, checkpoint.

use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::json;

use super::Run;
use super::summary::PhaseResult;
use crate::evaluation::Scores;
use crate::latent::Reasoning;
use crate::method::batches::Batches;
use crate::model::Decoder;
use crate::progress::{Progress, stop_flag};
use crate::recipe::{Anchor, Grpo, Recipe, ReplayMode};
use crate::schema::GrpoStepRow;
use crate::stats::Flips;
use crate::store::{FlatRow, RowWriter};
use crate::train::grpo::{self, LossParts};
use crate::train::hacking::{self, Watch};
use crate::train::rollouts::{self, Behaviour, Sampled};
use crate::train::sft::{metrics_from, sum};
use crate::train::state::{PhaseFolder, Trained};
use crate::train::trainer::Trainer;

pub(super) fn run(
    run: &Run,
    phase: &'static str,
    from: &str,
    settings: fn(&Recipe) -> Grpo,
) -> Result<Option<PhaseResult>> {
    let folder = PhaseFolder::open(run.path(), phase)?;
    if let Some(done) = folder.result()? {
        return Ok(Some(done));
    }
    let settings = &settings(&run.recipe);
    let plain = run.device.clone().inner();
    let start = PhaseFolder::open(run.path(), from)?;
    let (model, reasoning) =
        (start.import_to_train("checkpoint", run.base_dtype(), &plain)?, start.reasoning("checkpoint")?);
    let before: PhaseResult = start.result()?.with_context(|| {
        format!("{}: phase `{from}` is not finished, and {phase} starts from it", start.path.display())
    })?;
    let reference = (settings.anchor == Anchor::Reference).then(|| run.recipe.optimizer.dtype.apply(model.clone()));
    let mut trainer = run.trainer(model)?;
    let world = trainer.world;
    let from = folder.restore(&mut trainer)?.map_or(0, |(step, _)| step);
    let batches = Batches::new(vec![0; run.corpus.train.len()], settings.questions, run.recipe.seed, phase);
    let mut metrics = run.writes().then(|| metrics_from(&folder, from)).transpose()?;
    let mut progress = Progress::new(phase, settings.steps, from);
    let mut watch = Watch::new(settings.early_stop_window, metrics.as_ref().map(watched).unwrap_or_default());
    let mut notes = vec![];
    let begun = start.trained("checkpoint")?;
    let trained = |metrics: &Option<RowWriter>| {
        let rows = metrics.as_ref().map(RowWriter::rows).unwrap_or_default();
        begun.and(sum(rows, "updates"), sum(rows, "positions"))
    };
    for step in from..settings.steps {
        let started = Instant::now();
        let (sampled, epochs, cosines) =
            one_step(run, &mut trainer, &batches, reference.as_ref(), &reasoning, settings, step)?;
        let row = row(phase, step, &sampled, &epochs, cosines, trainer.skipped, started.elapsed().as_secs_f64());
        progress.update(
            step + 1,
            &format!(
                "reward {:.3} acc {:.3} switch {:.2} latents {:.1}",
                row.reward, row.accuracy, row.switch_rate, row.latent_calls
            ),
        );
        if let Some(metrics) = &mut metrics {
            metrics.push(&row)?;
        }
        let hacking = watch.push(hacking::Step {
            reward: row.reward,
            switch_rate: row.switch_rate,
            latent_calls: row.latent_calls,
        });
        // Who writes has seen the steps before a stop too.
        let hacking = world.any(hacking && run.writes());
        let stopped = world.any(stop_flag().load(Ordering::SeqCst));
        let done = step + 1;
        if settings.keep_every > 0 && done % settings.keep_every == 0 && done < settings.steps && run.writes() {
            keep(run, &format!("{phase}_step{done}"), &trainer, &reasoning, trained(&metrics))?;
        }
        if stopped || (done % run.recipe.checkpoint.every == 0 && done < settings.steps) {
            trainer.ensure_same()?;
            if run.writes() {
                folder.save(done, &trainer, json!({}))?;
            }
        }
        if stopped {
            progress.finish();
            return Ok(None);
        }
        if hacking {
            notes.push(format!(
                "{phase} stopped early at step {done}: over {} steps switch rate and latent calls rose while reward fell",
                settings.early_stop_window
            ));
            break;
        }
    }
    progress.finish();
    let trained = trained(&metrics);
    if let Some(metrics) = metrics {
        metrics.finish()?;
    }
    trainer.ensure_same()?;
    let mut result = run.measure(&folder, phase, &trainer.frozen(), &reasoning, trained)?;
    notes.push(compare(&before, &result)?);
    result.notes = notes;
    run.finish(&folder, &result)?;
    Ok(Some(result))
}

/// A checkpoint on the way, as a phase of its own: `probe --phase grpo_step20` opens it.
fn keep(run: &Run, name: &str, trainer: &Trainer, reasoning: &Reasoning, trained: Trained) -> Result<()> {
    let folder = PhaseFolder::open(run.path(), name)?;
    run.export(&folder, "checkpoint", &trainer.frozen(), reasoning, trained)
}

/// What the watch saw of the steps that are not run again.
fn watched(metrics: &RowWriter) -> Vec<hacking::Step> {
    let number = |row: &FlatRow, key: &str| row.get(key).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let step = |row: &FlatRow| hacking::Step {
        reward: number(row, "reward"),
        switch_rate: number(row, "switch_rate"),
        latent_calls: number(row, "latent_calls"),
    };
    metrics.rows().iter().map(step).collect()
}

type Cosines = (Option<f64>, Option<f64>);
/// Loss and gradient norm of one inner epoch.
type Epoch = (LossParts, f64);

fn one_step(
    run: &Run,
    trainer: &mut Trainer,
    batches: &Batches,
    reference: Option<&Decoder>,
    reasoning: &Reasoning,
    settings: &Grpo,
    step: usize,
) -> Result<(Sampled, Vec<Epoch>, Cosines)> {
    let seed = run.recipe.seed.wrapping_add(step as u64 + 1);
    let decoding = rollouts::rollout_settings(settings, &run.recipe.evaluation, run.corpus.end, seed);
    let questions: Vec<(usize, &[u32], &str)> = batches
        .indices(step)
        .into_iter()
        .map(|i| (i, run.corpus.train[i].prompt.as_slice(), run.corpus.train_answers[i].as_str()))
        .collect();
    let behaviour = Behaviour { reasoning, switch: run.corpus.switch, settings: &decoding, compute: trainer.compute };
    let model = trainer.policy();
    let threads = run.options.threads;
    let sampled =
        rollouts::sample_among(trainer.world, &model, &run.corpus, (&questions, settings), behaviour, threads)?;
    let mut cosines = (None, None);
    if run.writes()
        && settings.cosine_every > 0
        && step.is_multiple_of(settings.cosine_every)
        && !sampled.rollouts.is_empty()
    {
        let mode = |replay| Grpo { replay, ..settings.clone() };
        let segmented = mode(ReplayMode::Segmented);
        let against = |replay| {
            let other = mode(replay);
            let probe = &sampled.rollouts[..sampled.rollouts.len().min(settings.group)];
            grpo::cosine(&trainer.model, behaviour, probe, [&segmented, &other])
        };
        cosines = (Some(against(ReplayMode::TextGraph)?), Some(against(ReplayMode::FullBptt)?));
    }
    let epochs = grpo::step(trainer, behaviour, &sampled, reference, settings, threads)?;
    Ok((sampled, epochs, cosines))
}

fn row(
    phase: &'static str,
    step: usize,
    sampled: &Sampled,
    epochs: &[Epoch],
    (cosine_text_graph, cosine_full_bptt): Cosines,
    skipped: usize,
    seconds: f64,
) -> GrpoStepRow {
    let n = sampled.all.len().max(1) as f64;
    let mean = |f: &dyn Fn(&(crate::latent::Trace, crate::train::reward::Terms, bool)) -> f64| {
        sampled.all.iter().map(f).sum::<f64>() / n
    };
    let yes = |b: bool| f64::from(u8::from(b));
    let entropies: Vec<f64> = sampled
        .all
        .iter()
        .flat_map(|(t, _, _)| &t.positions)
        .filter(|p| p.is_sampled())
        .filter_map(|p| p.entropy)
        .collect();
    let (first, last) = (epochs.first(), epochs.last());
    let of = |f: &dyn Fn(&LossParts) -> f64| last.map_or(0.0, |(parts, _)| f(parts));
    GrpoStepRow {
        phase: phase.into(),
        step,
        reward: mean(&|(_, r, _)| r.total),
        reward_correct: mean(&|(_, r, _)| r.correct),
        reward_format: mean(&|(_, r, _)| r.format),
        reward_use: mean(&|(_, r, _)| r.usage),
        reward_brevity: mean(&|(_, r, _)| r.brevity),
        accuracy: mean(&|(_, _, c)| yes(*c)),
        switch_rate: mean(&|(t, _, _)| yes(t.switched())),
        latent_calls: mean(&|(t, _, _)| t.latent_calls() as f64),
        visible_tokens: mean(&|(t, _, _)| t.visible_tokens() as f64),
        truncated: mean(&|(t, _, _)| yes(t.truncated())),
        entropy: entropies.iter().sum::<f64>() / entropies.len().max(1) as f64,
        groups: sampled.groups,
        skipped_groups: sampled.skipped_groups,
        dropped_rollouts: sampled.dropped,
        tokens: last.map_or(0, |(parts, _)| parts.tokens),
        updates: epochs.len(),
        positions: epochs.len() * sampled.rollouts.iter().map(|r| r.trace.length()).sum::<usize>(),
        loss: of(&|p| p.loss),
        ratio: of(&|p| p.ratio),
        clip_share: of(&|p| p.clip_share),
        kl: of(&|p| p.kl),
        grad_norm: last.map_or(0.0, |(_, norm)| *norm),
        drift: first.map_or(0.0, |(parts, _)| parts.max_drift),
        cosine_text_graph,
        cosine_full_bptt,
        skipped,
        seconds,
    }
}

/// The checkpoint before and after RL on the same problems: gained, lost, exact McNemar.
fn compare(before: &PhaseResult, after: &PhaseResult) -> Result<String> {
    let correct = |s: &Scores| s.outcomes.iter().map(|o| o.correct).collect::<Vec<_>>();
    let (was, is) = (&before.scores, &after.scores);
    let flips = Flips::count(&correct(was), &correct(is))?;
    Ok(format!(
        "{} against {}, its start: accuracy {} → {}, latent accuracy {} → {}, switch rate {} → {}; gained {}, lost {}, exact McNemar p = {:.2e}",
        after.phase,
        before.phase,
        was.accuracy,
        is.accuracy,
        was.latent_accuracy.map_or("—".into(), |e| e.to_string()),
        is.latent_accuracy.map_or("—".into(), |e| e.to_string()),
        was.switch_rate,
        is.switch_rate,
        flips.gained,
        flips.lost,
        flips.p_value()
    ))
}
