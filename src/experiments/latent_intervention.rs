//! The paper's causal experiment (tab:intervention): decode with the latent inputs replaced, compare with *normal* on
//! the same problems.

use std::cell::RefCell;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::subject::Subject;
use crate::evaluation::{Scores, decode_settings, requests, score};
use crate::interventions::{self, Bank, Firings};
use crate::latent::{Decode, HiddenState, Switching, Trace, decode};
use crate::model::{HookSpec, Hooks, Select};
use crate::stats::{Estimate, Flips, changed, holm, wilson};

/// Modes beyond [`interventions::NAMES`].
pub const NORMAL: &str = "normal";
pub const SKIP: &str = "skip";

/// The default modes: the paper's four, and the controls it lacks.
pub const MODES: [&str; 7] = [NORMAL, "zero", "random_norm", SKIP, "self_patch", "mean", "resample"];

/// Settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub modes: Vec<String>,
    /// Latent steps to act on (from 0); all where empty.
    pub steps: Vec<usize>,
    pub seed: u64,
}

/// One mode on one choice of steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub checkpoint: String,
    pub dataset: String,
    pub n: usize,
    pub seed: u64,
    pub mode: String,
    /// `all`, or the step.
    pub steps: String,
    pub accuracy: Estimate,
    /// Share of problems whose extracted answer differs from normal's.
    pub answer_changed: Estimate,
    /// On the problems where normal switched and was right.
    pub diagnostic_accuracy: Option<Estimate>,
    pub lost: usize,
    pub gained: usize,
    /// Exact McNemar against normal, all problems.
    pub p_value: f64,
    /// The same, Holm-adjusted over the modes of this run.
    pub p_holm: f64,
    pub firings: usize,
    /// Mean ‖new − old‖ of a firing.
    pub mean_change: f64,
}

struct Outcome {
    scores: Scores,
    traces: Vec<Trace>,
    answers: Vec<Option<String>>,
    firings: Firings,
}

/// Runs every mode; rows in the order of the settings.
///
/// # Errors
/// An unknown mode or step before any work; a mode that never fired or moved nothing; a self-patch that changed
/// something; no problem on which the model switched.
pub fn run(subject: &Subject, config: &Config, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    for mode in &config.modes {
        let known = mode == NORMAL || mode == SKIP || interventions::NAMES.contains(&mode.as_str());
        ensure!(known, "unknown mode `{mode}`: expected some of {MODES:?}");
    }
    let cap = subject.recipe.evaluation.k_cap;
    for step in &config.steps {
        ensure!(*step < cap, "step {step} does not exist: a block has at most {cap} latent steps (from 0)");
    }
    progress(NORMAL);
    let mut bank = Bank::default();
    let normal = normal(subject, &mut bank)?;
    ensure!(!bank.is_empty(), "{}: no problem switched, there is no latent to intervene on", subject.name);

    let choices: Vec<Option<usize>> =
        if config.steps.is_empty() { vec![None] } else { config.steps.iter().copied().map(Some).collect() };
    let mut rows = vec![row(subject, config, NORMAL, "all", &normal, &normal)?];
    for mode in config.modes.iter().filter(|m| *m != NORMAL) {
        let choices = if mode == SKIP { &[None][..] } else { &choices };
        for &step in choices {
            let named = step.map_or_else(|| "all".to_owned(), |s| s.to_string());
            progress(&format!("{mode} ({named})"));
            let outcome = if mode == SKIP {
                decode_with(subject, &mut Hooks::none(), Switching::Suppressed, Firings::default())?
            } else {
                intervene(subject, mode, step, &bank, config.seed)?
            };
            check(mode, &named, &normal, &outcome)?;
            rows.push(row(subject, config, mode, &named, &normal, &outcome)?);
        }
    }
    let p: Vec<f64> = rows.iter().skip(1).map(|r| r.p_value).collect();
    for (row, adjusted) in rows.iter_mut().skip(1).zip(holm(&p)?) {
        row.p_holm = adjusted;
    }
    Ok(rows)
}

fn latents(step: Option<usize>) -> HookSpec {
    HookSpec { pattern: "latent.hook_injected".into(), select: Select::Latent { block: None, step } }
}

fn normal(subject: &Subject, bank: &mut Bank) -> Result<Outcome> {
    let cell = RefCell::new(bank);
    let mut hooks = Hooks::none();
    let layers = subject.model.layers.len();
    hooks.observe(&latents(None), layers, |site, value| cell.borrow_mut().record(site, value))?;
    decode_with(subject, &mut hooks, Switching::Free, Firings::default())
}

fn intervene(subject: &Subject, mode: &str, step: Option<usize>, bank: &Bank, seed: u64) -> Result<Outcome> {
    let what = interventions::by_name(mode, bank, seed).with_context(|| format!("unknown mode `{mode}`"))?;
    let firings = RefCell::new(Firings::default());
    let mut hooks = Hooks::none();
    interventions::attach(&mut hooks, &latents(step), subject.model.layers.len(), what.as_ref(), &firings)?;
    let outcome = decode_with(subject, &mut hooks, Switching::Free, Firings::default())?;
    hooks.finish()?;
    drop(hooks);
    Ok(Outcome { firings: firings.into_inner(), ..outcome })
}

fn decode_with(subject: &Subject, hooks: &mut Hooks, switching: Switching, firings: Firings) -> Result<Outcome> {
    let Subject { model, corpus, recipe, .. } = subject;
    let settings = decode_settings(&recipe.evaluation, corpus.end, switching);
    let requests = requests(corpus);
    let how = Decode { model, source: &HiddenState, switch: Some(corpus.switch), settings: &settings, cancel: None };
    let mut traces = vec![];
    for batch in requests.chunks(recipe.evaluation.batch) {
        traces.extend(decode(how, batch, 1, hooks)?);
    }
    let answers: Result<Vec<_>> =
        traces.iter().map(|t| Ok(corpus.answer(&corpus.vocabulary.decode_visible(&t.text())?))).collect();
    Ok(Outcome { scores: score(&traces, corpus)?, traces, answers: answers?, firings })
}

fn check(mode: &str, steps: &str, normal: &Outcome, outcome: &Outcome) -> Result<()> {
    match mode {
        SKIP => ensure!(outcome.traces.iter().all(|t| !t.switched()), "skip: a block was opened all the same"),
        "self_patch" => {
            ensure!(outcome.firings.count > 0, "self_patch ({steps}) never fired");
            ensure!(outcome.traces == normal.traces, "self_patch ({steps}) changed a token or a log-probability");
        }
        _ => {
            ensure!(outcome.firings.count > 0, "{mode} ({steps}) never fired: 0 latent positions were replaced");
            ensure!(
                outcome.firings.moved > 0.0,
                "{mode} ({steps}) fired {} times and moved nothing",
                outcome.firings.count
            );
        }
    }
    Ok(())
}

fn row(subject: &Subject, config: &Config, mode: &str, steps: &str, normal: &Outcome, with: &Outcome) -> Result<Row> {
    let correct = |o: &Outcome| -> Vec<bool> { o.scores.outcomes.iter().map(|o| o.correct).collect() };
    let flips = Flips::count(&correct(normal), &correct(with))?;
    let diagnostic: Vec<bool> = normal
        .scores
        .outcomes
        .iter()
        .zip(&with.scores.outcomes)
        .filter(|(before, _)| before.switched && before.correct)
        .map(|(_, after)| after.correct)
        .collect();
    let right = diagnostic.iter().filter(|c| **c).count();
    let p_value = if mode == NORMAL { 1.0 } else { flips.p_value() };
    Ok(Row {
        checkpoint: subject.name.clone(),
        dataset: subject.dataset(),
        n: with.scores.outcomes.len(),
        seed: config.seed,
        mode: mode.to_owned(),
        steps: steps.to_owned(),
        accuracy: with.scores.accuracy,
        answer_changed: changed(&normal.answers, &with.answers)?,
        diagnostic_accuracy: if diagnostic.is_empty() { None } else { Some(wilson(right, diagnostic.len(), 0.95)?) },
        lost: flips.lost,
        gained: flips.gained,
        p_value,
        p_holm: p_value,
        firings: with.firings.count,
        mean_change: with.firings.mean_norm(),
    })
}

/// Markdown, one row a mode.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| mode | steps | accuracy [95 %] | answer changed | diagnostic accuracy | lost / gained | p (Holm) | firings | mean ‖Δ‖ |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for r in rows {
        let diagnostic = r.diagnostic_accuracy.map_or_else(|| "—".into(), |e| format!("{e:.3}"));
        out += &format!(
            "| {} | {} | {:.3} | {:.3} | {diagnostic} | {} / {} | {:.1e} | {} | {:.2} |\n",
            r.mode, r.steps, r.accuracy, r.answer_changed, r.lost, r.gained, r.p_holm, r.firings, r.mean_change
        );
    }
    out
}
