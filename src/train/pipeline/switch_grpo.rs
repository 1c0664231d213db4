//! The Switch-GRPO loop: sample, step, log, watch for reward hacking, checkpoint.

use std::time::Instant;

use anyhow::{Context, Result};

use super::Run;
use super::summary::{PhaseResult, WARNING};
use crate::evaluation::Scores;
use crate::latent::{Reasoning, Trace};
use crate::method::Recipe;
use crate::method::batches::Batches;
use crate::model::Decoder;
use crate::progress::{Progress, say};
use crate::recipe::{Grpo, KlAnchor, ReplayMode, Reward, TERMS, Terms};
use crate::schema::GrpoStepRow;
use crate::schema::hacking::{self, Watch};
use crate::stats::Flips;
use crate::store::{FlatRow, RowWriter};
use crate::train::grpo::{self, LossParts};
use crate::train::rollouts::{self, Behaviour, RolloutBatch};
use crate::train::sft::{metrics_from, sum};
use crate::train::state::PhaseFolder;
use crate::train::trainer::Trainer;

pub(super) fn run(
    run: &Run,
    phase: &'static str,
    from: &str,
    settings: fn(&Recipe) -> Grpo,
) -> Result<Option<PhaseResult>> {
    let folder = PhaseFolder::open(&run.root, phase)?;
    if let Some(done) = folder.result()? {
        return Ok(Some(done));
    }
    let mut settings = settings(&run.recipe);
    settings.questions = settings.questions_of(run.options.world.size);
    let parent = PhaseFolder::open(&run.root, from)?;
    let ((model, start), reasoning) = (run.start(Some((&parent, "checkpoint")))?, parent.reasoning("checkpoint")?);
    let before: PhaseResult = parent.result()?.with_context(|| {
        format!("{}: phase `{from}` is not finished, and {phase} starts from it", parent.path.display())
    })?;
    let settings = &Grpo { reward: settings.reward.scaled(before.scores.visible_tokens), ..settings };
    if settings.reward.brevity != 0.0 {
        let Reward { t_lo, t_hi, .. } = settings.reward;
        let tokens = before.scores.visible_tokens;
        say(&format!(
            "{phase}: full brevity reward up to {t_lo} visible tokens, none from {t_hi} on ({from} needs {tokens:.1} on average)"
        ));
    }
    let reference = (settings.anchor == KlAnchor::Reference).then(|| run.recipe.optimizer.dtype.apply(model.clone()));
    let mut trainer = run.trainer(model)?;
    trainer.own_rates.clone_from(&settings.own_rates);
    let world = trainer.world;
    let from = folder.restore(&mut trainer)?;
    let batches = Batches::new(vec![0; run.corpus.rewarded_questions()], settings.questions, run.recipe.seed, phase);
    let mut metrics = run.writes().then(|| metrics_from(&folder, from)).transpose()?;
    let mut progress = Progress::new(phase, settings.steps, from);
    let mut watch = Watch::new(settings.early_stop_window, metrics.as_ref().map(watched_steps).unwrap_or_default());
    // A run that was stopped just when the watch fired ends here.
    let mut hacking = world.any(watch.fires() && run.writes());
    let begun = parent.trained("checkpoint")?;
    let trained = |metrics: &Option<RowWriter>| {
        let rows = metrics.as_ref().map(RowWriter::rows).unwrap_or_default();
        begun.and(sum(rows, "updates"), sum(rows, "positions"))
    };
    let mut done = from;
    while done < settings.steps && !hacking {
        let (step, started, skipped) = (done, Instant::now(), trainer.health.skipped);
        let (sampled, epochs, cosines) =
            run_step(run, &mut trainer, &batches, reference.as_ref(), &reasoning, settings, step)?;
        let row = GrpoStepRow {
            updates: epochs.len() - (trainer.health.skipped - skipped).min(epochs.len()),
            skipped: trainer.health.skipped,
            seconds: started.elapsed().as_secs_f64(),
            ..row(phase, step, &sampled, &epochs, cosines)
        };
        done += 1;
        progress.update(done, &progress_line(&row));
        if let Some(metrics) = &mut metrics {
            metrics.push(&row)?;
        }
        watch.extend(hacking::HackingStep::from_rates(row.accuracy, row.switch_rate, row.latent_calls));
        // The writing process has also seen the steps before a resume.
        hacking = world.any(watch.fires() && run.writes());
        let stopped = world.any((run.options.stop)());
        if settings.keep_every > 0 && done % settings.keep_every == 0 && done < settings.steps && run.writes() {
            // As a separate phase: `probe --phase grpo_step20` opens it.
            let kept = PhaseFolder::open(&run.root, &format!("{phase}_step{done}"))?;
            run.export(&kept, "checkpoint", (&trainer.decoder(), &start), &reasoning, trained(&metrics))?;
        }
        if stopped || (done % run.recipe.checkpoint.every == 0 && done < settings.steps) {
            trainer.ensure_same()?;
            if run.writes() {
                folder.save(done, &trainer)?;
            }
        }
        if stopped {
            progress.finish();
            return Ok(None);
        }
    }
    progress.finish();
    let trained = trained(&metrics);
    let mut notes = vec![];
    if hacking {
        notes.push(format!(
            "{phase} stopped early at step {done}: over {} steps switch rate and latent calls rose while accuracy fell",
            settings.early_stop_window
        ));
    }
    for (key, weight) in settings.reward.weighted() {
        let rows = metrics.as_ref().map(RowWriter::rows).unwrap_or_default();
        if let Some(warning) = describe_constant_term(phase, rows, key, weight) {
            say(&warning);
            notes.push(warning);
        }
    }
    let nothing = metrics.as_ref().and_then(|metrics| describe_no_update(phase, metrics.rows(), settings));
    if let Some(metrics) = metrics {
        metrics.finish()?;
    }
    trainer.ensure_same()?;
    let mut result = run.measure(&folder, phase, (&trainer.decoder(), &start), &reasoning, trained)?;
    match nothing {
        Some(warning) => {
            say(&warning);
            notes.push(warning);
        }
        None => notes.push(compare(&before, &result)?),
    }
    result.notes = notes;
    run.finish(&folder, &result)?;
    Ok(Some(result))
}

/// Why a phase without a single update has no valid result; nothing is compared then.
fn describe_no_update(phase: &str, rows: &[FlatRow], settings: &Grpo) -> Option<String> {
    if sum(rows, "updates") > 0 {
        return None;
    }
    let of = |column: &str| sum(rows, column);
    let rollouts = of("groups") * settings.group;
    let (dropped, long, wild) = (of("dropped_rollouts"), of("too_long"), of("not_finite"));
    let mut why = vec![format!("{} of {} groups had equal rewards", of("skipped_groups"), of("groups"))];
    if dropped > 0 {
        why.push(format!(
            "{dropped} of {rollouts} rollouts were dropped ({long} longer than grpo.max_positions = {}, {wild} with logits that are \
             not finite, {} out of memory)",
            settings.max_positions,
            dropped - long - wild
        ));
    }
    Some(format!(
        "{WARNING}: {phase} learnt nothing: no update in {} steps ({}). Its weights are those of its start, and nothing is \
        compared",
        rows.len(),
        why.join("; ")
    ))
}

/// The note that a reward term had the same mean in all steps. It gave a gradient only if rollouts of a group differed in it, which the means
/// do not show.
fn describe_constant_term(phase: &str, rows: &[FlatRow], key: &str, weight: f64) -> Option<String> {
    let means: Vec<f64> = rows.iter().filter_map(|row| row.get(&format!("reward_{key}"))?.as_f64()).collect();
    let (first, rest) = means.split_first()?;
    (!rest.is_empty() && rest.iter().all(|mean| mean == first)).then(|| {
        format!(
            "{phase}: the reward term `{key}` (weight {weight}) had the mean {} in all {} steps: unless rollouts of a group differed in it, \
             nothing was learnt from it",
            first + 0.0, // not -0
            means.len()
        )
    })
}

/// The progress line of a step.
fn progress_line(row: &GrpoStepRow) -> String {
    let of = |value: Option<f64>| value.map_or_else(|| "—".to_owned(), |value| format!("{value:.3}"));
    let [reward, accuracy, switch, latents] = [row.reward, row.accuracy, row.switch_rate, row.latent_calls].map(of);
    format!("reward {reward} acc {accuracy} switch {switch} latents {latents}")
}

/// The watched quantities of the completed steps.
fn watched_steps(metrics: &RowWriter) -> Vec<hacking::HackingStep> {
    let step = |row: &FlatRow| {
        let [accuracy, switch_rate, latent_calls] =
            ["accuracy", "switch_rate", "latent_calls"].map(|key| row.get(key).and_then(serde_json::Value::as_f64));
        hacking::HackingStep::from_rates(accuracy, switch_rate, latent_calls)
    };
    metrics.rows().iter().filter_map(step).collect()
}

type Cosines = (Option<f64>, Option<f64>);
/// Loss and gradient norm of one inner epoch.
type Epoch = (LossParts, f64);

fn run_step(
    run: &Run,
    trainer: &mut Trainer,
    batches: &Batches,
    reference: Option<&Decoder>,
    reasoning: &Reasoning,
    settings: &Grpo,
    step: usize,
) -> Result<(RolloutBatch, Vec<Epoch>, Cosines)> {
    // Runs of neighbouring seeds share random numbers: step 1 of seed 0 draws with the seed of step 0 of seed 1.
    let seed = run.recipe.seed.wrapping_add(step as u64 + 1);
    let decoding = rollouts::rollout_settings(settings, &run.recipe.evaluation, &run.corpus.stops, seed);
    let questions: Vec<(usize, &[u32], &str)> = batches
        .indices(step)
        .into_iter()
        .map(|i| {
            let (prompt, answer) = run.corpus.rewarded(i);
            (i, prompt, answer)
        })
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
    if sampled.all.is_empty() && sampled.dropped.not_finite > 0 {
        trainer.skip(|| "in which no rollout had finite logits".to_owned())?;
    }
    let epochs = grpo::step(trainer, behaviour, &sampled, reference, settings, threads)?;
    Ok((sampled, epochs, cosines))
}

/// A step's record, without the fields of the trainer and the clock.
fn row(
    phase: &'static str,
    step: usize,
    sampled: &RolloutBatch,
    epochs: &[Epoch],
    (cosine_text_graph, cosine_full_bptt): Cosines,
) -> GrpoStepRow {
    let mean = |f: &dyn Fn(&(Trace, Terms, bool)) -> f64| mean_of(sampled.all.iter().map(f));
    let terms = TERMS
        .iter()
        .enumerate()
        .map(|(i, (key, _))| (format!("reward_{key}"), serde_json::Value::from(mean(&|(_, r, _)| r.each[i]))));
    let yes = |b: bool| f64::from(u8::from(b));
    let positions = || sampled.all.iter().flat_map(|(trace, ..)| &trace.positions);
    let token_shares = positions().filter_map(|p| Some(f64::from(p.mixed.as_ref()?.token_share)));
    let (first, last) = (epochs.first(), epochs.last());
    let of = |f: &dyn Fn(&LossParts) -> f64| last.map_or(0.0, |(parts, _)| f(parts));
    GrpoStepRow {
        phase: phase.into(),
        step,
        reward: mean(&|(_, r, _)| r.total),
        terms: terms.collect(),
        accuracy: mean(&|(_, _, c)| yes(*c)),
        switch_rate: mean(&|(t, _, _)| yes(t.switched())),
        switch_advantage: sampled.switch_advantage(),
        latent_calls: mean(&|(t, _, _)| t.latent_calls() as f64),
        blocks: mean(&|(t, _, _)| t.blocks().len() as f64),
        visible_tokens: mean(&|(t, _, _)| t.visible_tokens() as f64),
        truncated: mean(&|(t, _, _)| yes(t.truncated())),
        token_share: mean_of(token_shares),
        entropy: mean_of(positions().filter(|p| p.is_sampled()).filter_map(|p| p.entropy)),
        groups: sampled.groups,
        skipped_groups: sampled.skipped_groups,
        dropped_rollouts: sampled.dropped.total(),
        too_long: Some(sampled.dropped.too_long),
        not_finite: Some(sampled.dropped.not_finite),
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
        skipped: 0,
        seconds: 0.0,
    }
}

/// `None` without values.
fn mean_of(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Compares the checkpoint before and after RL on the same problems: gained, lost, exact McNemar.
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
