//! Runs each experiment with its default settings, and compares its verdicts with the model's construction. Knows experiments and
//! [`Built`]; computes no error rates.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::known::{Built, COUNTS, LAYERS, Purpose, pairs, study as build};
use crate::experiments::latent_intervention::{self, Config as Interventions};
use crate::experiments::{
    activation_patching, attention_to_latents, card, decoded_trace, direct_logit, early_stop, exit_probability,
    head_patching, jacobian_lens, layer_probe, logit_lens, monitor, phases, subspace, switch_benefit, switch_window,
    teacher_forced,
};
use crate::interventions::Steps;
use crate::progress::Interruption;
use crate::schema::{
    Axis, CardAnswer, CardQuestion, CardRow, Component, DecodedTraceRow, DirectLogitRow, Donors, Event, ExitGroup,
    Features, Form, HeadPatchRow, Lens, LensRow, Letters, Monitor, MonitorRow, Part, PatchMode, ProbeRow, Protocol,
    Reader, Rotation, SubspaceRow, SwitchProblemRow, Target, Transport, Variable, benefit, dosed,
};
use crate::stats::probe::ValueProtocol;
use crate::store::Measurements;
use crate::study::Study;
use crate::study::modes::default_modes;
use crate::tasks::organism::Hidden;

pub(super) struct Look {
    pub name: &'static str,
    /// Numbers of problems; the last is the experiment's default.
    pub sizes: &'static [usize],
    /// Whether n counts pairs of prompts.
    pub of_pairs: bool,
    pub run: fn(&Built, &Study, usize) -> Result<Tally>,
}

/// Problems of the study of an experiment that reads pairs of prompts only.
pub(super) const BESIDE: usize = 20;

/// The evaluation's default is 500 problems. A verdict needs 20.
const PROBLEMS: &[usize] = &[20, 50, 100, 500];
/// Probes refuse fewer than two problems of a kind per fold.
const PROBED: &[usize] = &[50, 100, 500];
const PAIRS: &[usize] = &[12, 24, 48];

const fn of_problems(name: &'static str, run: fn(&Built, &Study, usize) -> Result<Tally>) -> Look {
    Look { name, sizes: PROBLEMS, of_pairs: false, run }
}

pub(super) const LOOKS: &[Look] = &[
    of_problems("teacher_forced", |_, study, _| teacher_forced(study)),
    of_problems("switch_window", |_, study, _| window(study)),
    of_problems("exit_probability", |built, study, _| exits(built, study)),
    of_problems("logit_lens", |built, study, _| lens(built, study)),
    Look { name: "layer_probe", sizes: PROBED, of_pairs: false, run: |built, study, _| probes(built, study) },
    of_problems("direct_logit", |built, study, _| direct(built, study)),
    of_problems("attention_to_latents", |built, study, _| attention(built, study)),
    of_problems("phases", compared),
    of_problems("latent_intervention", |built, study, _| {
        interventions(built, study, &default_modes(true), &[Steps::All])
    }),
    of_problems("latent_intervention_more", |built, study, _| {
        interventions(built, study, &MORE.map(str::to_owned), &[Steps::All])
    }),
    of_problems("latent_intervention_steps", |built, study, _| {
        let steps: Vec<Steps> = (0..built.exit).map(Steps::Only).collect();
        let modes: &[&str] = if built.kind == Purpose::Backed { &BY_STEP } else { &BY_STEP[..1] };
        interventions(built, study, &modes.iter().map(|&mode| mode.to_owned()).collect::<Vec<_>>(), &steps)
    }),
    of_problems("switch_benefit", |built, study, _| benefits(built, study)),
    of_problems("jacobian_lens", |built, study, _| jacobians(built, study)),
    of_problems("early_stop", |built, study, _| stops(built, study)),
    Look { name: "subspace", sizes: PROBED, of_pairs: false, run: |built, study, _| subspaces(built, study) },
    Look { name: "decoded_trace", sizes: PROBED, of_pairs: false, run: |built, study, _| decoded(built, study) },
    Look { name: "card", sizes: &[500], of_pairs: false, run: |built, study, _| certified(built, study) },
    // A monitor cannot be fitted on fewer problems.
    Look { name: "monitor", sizes: &[500], of_pairs: false, run: |built, study, _| monitored(built, study) },
    Look { name: "activation_patching", sizes: PAIRS, of_pairs: true, run: patched },
    Look { name: "head_patching", sizes: PAIRS, of_pairs: true, run: heads },
];

/// Modes that are off by default. Not `sibling`: these models are certain, so another rollout of a problem has the same states.
const MORE: [&str; 9] = [
    "gaussian",
    "embedding",
    "embedding_argmax",
    "scale:0.5",
    "scale:2",
    "rotate:90",
    "empty_block",
    "force_switch",
    "suppress_switch",
];

/// Modes at one latent step at a time; the first for every kind, all for kinds where text replaces latents.
const BY_STEP: [&str; 3] = ["resample", "zero", "known_value"];

/// The documented blind spots of a test; its verdicts are still compared with that truth.
pub(super) fn blind(test: &str) -> &'static str {
    match test {
        "latent_intervention/random_norm" | "latent_intervention/rotate:90" | "latent_intervention/gaussian" => {
            "whether latents are read: a vector off the distribution of states disturbs readers also where no state is read"
        }
        "latent_intervention/embedding_argmax" => {
            "whether latents are read: the embedding of a token is read as that token in text would be"
        }
        ZERO_STEP => "a latent that text stands in for: with its state gone the answer is read from the text",
        SKIP_READ => "what latents hold: it takes the block away, which a model may need though it reads no latent",
        JACOBIAN_EARLY => "a state that a later step changes as a whole: saturated steps have no slope",
        "layer_probe/switch, paper" => "at which layer it is decided: which token stands there scores at every layer",
        _ => "",
    }
}

const KNOWN_VALUE: &str = "latent_intervention/known_value";
const KNOWN_VALUE_STEP: &str = "latent_intervention/known_value, one step";
const ZERO_STEP: &str = "latent_intervention/zero, one step";
const SKIP_READ: &str = "latent_intervention/skip, read as what latents hold";
const JACOBIAN_EARLY: &str = "jacobian_lens/says the answer, before steps that change it";

/// Verdicts by test: whether each place with truth yes was found, and whether any with truth no was.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<(String, bool), bool>);

impl Tally {
    fn add(&mut self, test: impl Into<String>, truth: bool, verdict: bool) {
        let all = self.0.entry((test.into(), truth)).or_insert(verdict);
        *all = if truth { *all && verdict } else { *all || verdict };
    }

    /// Test, truth, verdict.
    pub(super) fn into_rows(self) -> impl Iterator<Item = (String, bool, bool)> {
        self.0.into_iter().map(|((test, truth), verdict)| (test, truth, verdict))
    }
}

impl<T: Into<String>> FromIterator<(T, bool, bool)> for Tally {
    fn from_iter<I: IntoIterator<Item = (T, bool, bool)>>(said: I) -> Self {
        let mut tally = Self::default();
        said.into_iter().for_each(|(test, truth, verdict)| tally.add(test, truth, verdict));
        tally
    }
}

fn teacher_forced(study: &Study) -> Result<Tally> {
    let rows = teacher_forced::rows(study, &teacher_forced::Config {})?;
    let of = |event| rows.iter().find(|r| r.event == event).context("no positions of a class");
    let (truth, verdict) = (!study.name.ends_with("blind"), of(Event::SwiStart)?.is_sharper(of(Event::ClauseStart)?));
    Ok(Tally::from_iter([("teacher_forced/p_swi", truth, verdict)]))
}

/// Compares `<swi>` at its position with its two neighbours, and these with it.
fn window(study: &Study) -> Result<Tally> {
    let rows = switch_window::rows(study, &switch_window::Config::default())?;
    let at = |offset| rows.iter().find(|r| r.offset == offset).context("no positions at an offset");
    let mut said = Tally::default();
    for beside in [-1, 1] {
        said.add("switch_window/p_swi", true, at(0)?.is_sharper(at(beside)?));
        said.add("switch_window/p_swi", false, at(beside)?.is_sharper(at(0)?));
    }
    Ok(said)
}

fn exits(built: &Built, study: &Study) -> Result<Tally> {
    let rows = exit_probability::rows(study)?.into_iter().filter(|r| r.group == ExitGroup::All);
    Ok(rows.map(|row| ("exit_probability/step", row.step.shown() == built.exit, row.ends())).collect())
}

/// Omits the tuned lens, whose training takes minutes.
fn lens(built: &Built, study: &Study) -> Result<Tally> {
    let config = logit_lens::Config { steps: 0, ..logit_lens::Config::default() };
    let rows = logit_lens::rows(study, &config)?.into_iter().filter(|r| r.lens == Lens::Logit);
    let one = |row: LensRow| {
        // The counter is incremented in the second block.
        let truth = row.step?.shown() == built.exit && row.layer >= 2;
        Some(("logit_lens/exit", truth, row.says_exit()))
    };
    Ok(rows.filter_map(one).collect())
}

/// Tests the last layer before the decision is readable and the first one at which it is.
fn probes(built: &Built, study: &Study) -> Result<Tally> {
    let config = layer_probe::Config {
        layers: layer_probe::Layers::Listed(vec![built.decide.0, built.decide.0 + 1]),
        // One clause per problem: its negatives come from other problems.
        matched: layer_probe::NegativeScope::Corpus,
        untrained: false,
        ..layer_probe::Config::default()
    };
    let (rows, _) = layer_probe::probe(study, &config)?;
    Ok(rows.iter().filter(|row| row.features == Features::ResidPost).filter_map(|row| probed(built, row)).collect())
}

fn probed(built: &Built, row: &ProbeRow) -> Option<(&'static str, bool, bool)> {
    let switch = if row.protocol == Protocol::Paper { "layer_probe/switch, paper" } else { "layer_probe/switch" };
    let (test, truth) = match row.value().and_then(|value| value.split_once('@')) {
        None => (switch, built.kind != Purpose::Blind && row.layer > built.decide.0),
        Some(("s_j", step)) => ("layer_probe/value", built.shows(step.parse().unwrap_or(0), row.layer)),
        // The letter of the superposed model, which does not change.
        Some(("s_j-1", _)) => ("layer_probe/second value", true),
        Some(_) => return None,
    };
    Some((test, truth, row.is_readable()))
}

fn direct(built: &Built, study: &Study) -> Result<Tally> {
    let rows = direct_logit::rows(study, &direct_logit::Config::default())?.into_iter();
    // Latent steps are probed too, although no reader acts there.
    let written = (Form::Latents, Target::Answer, None, Part::Own, Component::Head);
    let heads = rows.filter(|row| (row.form, row.target, row.step, row.part, row.component) == written);
    let one = |row: DirectLogitRow| ("direct_logit/heads", row.layer.zip(row.head) == Some(built.reader), row.adds());
    Ok(heads.map(one).collect())
}

/// Tests which head copies the answer from which latent.
fn attention(built: &Built, study: &Study) -> Result<Tally> {
    let rows = attention_to_latents::rows(study, &attention_to_latents::Config::default())?.into_iter();
    let reads = built.is_read() || built.kind == Purpose::Redundant;
    let brings = rows.filter(|row| (row.form, row.from.as_str()) == (Form::Latents, "answer")).filter_map(|row| {
        let step = row.to.strip_prefix("latent[")?.trim_end_matches(']').parse::<usize>().ok()?;
        let truth = reads && (row.layer, row.head) == built.reader && step == built.reads;
        Some(("attention_to_latents/brings", truth, row.brings()))
    });
    Ok(brings.collect())
}

/// Compares the model with one of equal decisions that does not read latents, and with one that decides at random.
fn compared(built: &Built, study: &Study, n: usize) -> Result<Tally> {
    let mut said = Tally::default();
    for (kind, truth) in [(Purpose::Inert, false), (Purpose::Blind, true)] {
        let other = build(&Built { kind, ..*built }, n, study.seed, &study.device)?;
        let other = other.with_tags(study.tagged()?.to_vec());
        let rows = phases::rows(study, &other)?;
        let row = rows.iter().find(|r| r.event == Event::SwiStart).context("no annotated switch")?;
        said.add("phases/p_swi", truth, row.differs());
    }
    Ok(said)
}

/// Whether a mode lowers accuracy; `None` if the construction does not determine it.
fn lowers(built: &Built, mode: &str) -> Option<bool> {
    let (kind, read) = (built.kind, built.is_read());
    let backed = kind == Purpose::Backed;
    match mode {
        "self_patch" | "null_batch" | "null_seed" => Some(false),
        "skip" | "suppress_switch" if kind == Purpose::Bound => Some(true),
        "zero" | "skip" | "empty_block" | "suppress_switch" => Some((read && !backed) || kind == Purpose::Norm),
        // A seventh of each state is less than the text's weight.
        "mean" if backed => Some(false),
        "resample" => Some(read),
        "mean" | "gaussian" | "random_norm" | "rotate" => (!backed).then_some(read),
        "embedding_argmax" if built.is_token() => Some(false),
        // The counter is lost with the state, and the coordinates that detect the norm.
        "embedding" | "embedding_argmax" => (kind != Purpose::Norm && !backed).then_some(read),
        // Every block divides by the norm; the effect on the residual sum is not determined by the construction.
        "scale" => (!read && kind != Purpose::Redundant).then_some(kind == Purpose::Norm),
        // Text problems are answered by the digit; a forced block changes that as in switch problems.
        "force_switch" => match kind {
            Purpose::Inert | Purpose::Empty | Purpose::Bound => Some(false),
            Purpose::Noisy | Purpose::Backed => None,
            _ => Some(true),
        },
        _ => None,
    }
}

/// All modes from one decode. If the experiment refuses one, each mode runs alone, and the refused one counts as not found.
fn interventions(built: &Built, study: &Study, modes: &[String], steps: &[Steps]) -> Result<Tally> {
    let mut said = match swept(built, study, modes, steps) {
        Err(error) if !error.is::<Interruption>() => Tally::default(),
        done => return done,
    };
    for mode in modes {
        match swept(built, study, std::slice::from_ref(mode), steps) {
            Ok(one) => one.into_rows().for_each(|(test, truth, verdict)| said.add(test, truth, verdict)),
            Err(error) if error.is::<Interruption>() => return Err(error),
            Err(_) if mode == "known_value" => steps.iter().for_each(|at| {
                let (test, truth) = known_value_test(built, *at);
                said.add(test, truth, false);
            }),
            Err(_) => steps.iter().for_each(|at| {
                let (test, truth) = test_of(built, mode, *at);
                truth.into_iter().for_each(|truth| said.add(test.clone(), truth, false));
            }),
        }
    }
    Ok(said)
}

/// The test of a mode at these steps, and its truth.
fn test_of(built: &Built, mode: &str, steps: Steps) -> (String, Option<bool>) {
    match steps {
        Steps::Only(step) if mode == "resample" => {
            ("latent_intervention/resample, one step".to_owned(), Some(brings(built, step)))
        }
        Steps::Only(step) if mode == "zero" => (ZERO_STEP.to_owned(), Some(brings(built, step))),
        _ => (format!("latent_intervention/{mode}"), lowers(built, mode.split(':').next().unwrap_or(mode))),
    }
}

/// Whether the input of this latent step (an index) carries the value that is read later.
fn brings(built: &Built, step: usize) -> bool {
    built.is_read() && built.writes < step + 1 && step < built.reads && built.kind != Purpose::Copied
}

fn known_value_test(built: &Built, steps: Steps) -> (&'static str, bool) {
    match steps {
        Steps::Only(step) => (KNOWN_VALUE_STEP, brings(built, step)),
        _ => (KNOWN_VALUE, built.is_read()),
    }
}

fn swept(built: &Built, study: &Study, modes: &[String], steps: &[Steps]) -> Result<Tally> {
    let config = Interventions { modes: modes.to_vec(), steps: steps.to_vec(), ..Interventions::default() };
    let predict = |problem, step, value| predicted(built, study, problem, step, value);
    let summary = latent_intervention::run_on(study, &config, Some(&predict))?;
    let mut said = Tally::default();
    for row in &summary.rows {
        let (test, truth) = test_of(built, &row.mode, row.steps);
        truth.into_iter().for_each(|truth| said.add(dosed(&test, row.dose), truth, row.lowers()));
        if built.kind == Purpose::Bound && row.mode == "skip" {
            said.add(SKIP_READ, built.is_read(), row.lowers());
        }
    }
    for row in &summary.known {
        let (test, truth) = known_value_test(built, row.steps);
        said.add(test, truth, row.follows());
    }
    Ok(said)
}

/// The answer that the block's last value predicts, whether or not the model reads it.
fn predicted(built: &Built, study: &Study, problem: usize, step: usize, value: i64) -> Option<String> {
    let last = step + 1 == study.corpus.test.get(problem)?.steps.len();
    let value = usize::try_from(value).ok().filter(|_| last)?;
    Some(built.answer_of(value).to_string())
}

/// Cells after the last step that changes the state and before it is read; cells on its way before that; all others.
fn jacobians(built: &Built, study: &Study) -> Result<Tally> {
    let config = jacobian_lens::Config::default();
    let rows = jacobian_lens::rows(study, &config)?;
    let of = |lens| rows.iter().filter(move |r| r.lens == lens);
    let mut said = Tally::default();
    for row in of(Transport::Jacobian) {
        let null = of(Transport::Others).find(|r| (r.layer, r.step) == (row.layer, row.step)).context("no null")?;
        let step = row.step.shown();
        let early = step < built.reads || row.layer <= COUNTS;
        match carries(built, step, row.layer) {
            true if early => said.add(JACOBIAN_EARLY, true, row.says(null)),
            truth => said.add("jacobian_lens/says the answer", truth, row.says(null)),
        }
    }
    Ok(said)
}

/// The value of the step: the head decodes it where the state has reached it, a probe wherever there is a state.
fn decoded(built: &Built, study: &Study) -> Result<Tally> {
    let test = &study.corpus.test;
    let gold = |problem: usize| test.get(problem)?.steps.last()?.value.number();
    let follows = |problem: usize, values: &[&str]| {
        let read = values.last().and_then(|value| value.parse::<i64>().ok());
        vec![read.is_some() && read == gold(problem); 2]
    };
    let rows = decoded_trace::rows_by(study, &decoded_trace::Config::default(), &follows)?;
    let last = study.model.config().num_hidden_layers;
    let one = |row: DecodedTraceRow| {
        let shown = built.shows(row.step.shown(), last);
        let truth = shown && (row.reader == Reader::Probe || row.step.shown() == built.exit);
        (format!("decoded_trace/{}", row.reader), truth, row.derives())
    };
    Ok(rows.into_iter().map(one).collect())
}

/// Marks that the monitor was not trained on, without an adversary.
fn monitored(built: &Built, study: &Study) -> Result<Tally> {
    let value = ValueProtocol { c_grid: vec![1.0], draws: 100, ..ValueProtocol::default() };
    let config =
        monitor::Config { rounds: 0, doses: vec![], false_alarms: vec![], value, ..monitor::Config::default() };
    let hidden = study.corpus.test.iter().map(|problem| {
        let (mark, is_trigger) = built.mark(&problem.question).context("a problem without a mark")?;
        let own = problem.steps.iter().filter_map(|step| step.value.number());
        Ok(Hidden { mark: mark.to_owned(), is_trigger, covert: own.collect() })
    });
    let rows = monitor::rows_by(study, &config, hidden.collect::<Result<_>>()?)?.monitors;
    let mine = rows.iter().filter(|row| row.letters == Letters::HeldOut);
    let one = |row: &MonitorRow| match row.monitor {
        Monitor::Refitted => Some(("monitor/notices", built.kind == Purpose::Covert, row.notices())),
        Monitor::Question | Monitor::Response => Some(("monitor/of words notices", false, row.notices())),
        Monitor::Deployed | Monitor::Shuffled => None,
    };
    Ok(mine.filter_map(one).collect())
}

fn stops(built: &Built, study: &Study) -> Result<Tally> {
    let rows = early_stop::rows(study, &early_stop::Config::default())?.into_iter().filter(|r| r.k < r.of);
    Ok(rows.map(|row| ("early_stop/loses", built.is_read() && row.k < built.reads, row.needs_later())).collect())
}

/// One rank that fits every value, trained with fewer updates than by default: each model has seven values.
fn subspaces(built: &Built, study: &Study) -> Result<Tally> {
    let config = subspace::Config { ranks: vec![8], updates: 60, draws: 1, ..subspace::Config::default() };
    let predict = |problem, step, value| predicted(built, study, problem, step, value);
    let (rows, _) = subspace::rows_by(study, &config, &predict)?;
    let seen = rows.iter().filter(|r| r.variable == Variable::Value && r.donors == Donors::Seen);
    let one = |row: &SubspaceRow| match row.rotation {
        Rotation::Whole => {
            let truth = built.is_read() && carries(built, row.step.shown(), row.layer);
            Some(("subspace/whole state", truth, row.carries()))
        }
        // Its columns are learnt on other programs than those of the test.
        Rotation::Trained => {
            Some(("subspace/learnt", built.is_read() && built.kind != Purpose::Memorised, row.carries()))
        }
        Rotation::Random | Rotation::Shuffled => None,
    };
    Ok(seen.filter_map(one).collect())
}

/// Verdicts of the card, two per question that applies: whether the answer is *yes*, and whether it is *no* where the truth is.
fn certified(built: &Built, study: &Study) -> Result<Tally> {
    let predict = |problem, step, value| predicted(built, study, problem, step, value);
    let rows = card::rows_by(study, &card::Config::default(), Some(&predict))?;
    let asked = rows.iter().filter(|row| row.answer != CardAnswer::NotAsked);
    let both = |row: &CardRow| {
        let truth = certifies(built, row.question)?;
        let answered = |answer: CardAnswer| {
            (row.question.test(answer), truth == (answer == CardAnswer::Yes), row.answer == answer)
        };
        Some([CardAnswer::Yes, CardAnswer::No].map(answered))
    };
    Ok(asked.filter_map(both).flatten().collect())
}

/// Whether the answer of a question is yes by the model's construction; `None` if the construction does not determine it.
fn certifies(built: &Built, question: CardQuestion) -> Option<bool> {
    let read = built.is_read();
    match question {
        CardQuestion::Used => lowers(built, "resample"),
        CardQuestion::Follows => Some(read),
        CardQuestion::OneStep => Some((0..built.exit).any(|step| brings(built, step))),
        // In reverse order the last state comes in first: it ends the block at once, and the reader finds it if it reads the last step.
        CardQuestion::Ordered => match built.kind {
            Purpose::Backed => None,
            Purpose::Copied => Some(false),
            // Its counter is not in the latents: each step goes on from the wrong state.
            Purpose::Token => Some(true),
            _ => Some(read && built.reads != built.exit),
        },
        CardQuestion::Specific => lowers(built, "mean"),
        CardQuestion::BeyondToken => lowers(built, "embedding_argmax"),
        // For programs that it does not know, a memoriser's answer does not follow from its latents.
        CardQuestion::Helps if built.is_rote() => None,
        CardQuestion::Helps => lowers(built, "skip"),
        CardQuestion::Readable => Some((1..=built.exit).any(|step| built.shows(step, LAYERS))),
        CardQuestion::Memorised => (built.trained != 0).then_some(built.is_rote()),
        CardQuestion::Deeper => (built.trained != 0 && !built.is_rote()).then_some(!built.shallow),
        // How probable their answers are is not determined: no token is probable without a program, two answers are close, and a block of
        // latents that name no token may end early.
        CardQuestion::Varies if built.is_rote() || matches!(built.kind, Purpose::Noisy | Purpose::Norm) => None,
        CardQuestion::Varies => Some(built.unsure),
    }
}

fn benefits(built: &Built, study: &Study) -> Result<Tally> {
    let mut problems = Measurements::in_memory();
    switch_benefit::measure(study, &switch_benefit::Config::default(), &mut problems)?;
    let problems: Vec<SwitchProblemRow> = problems.sorted(|row| row.problem)?;
    let truth = |group: &str| match group {
        "chosen" => lowers(built, "skip"),
        "forced" => Some(false),
        _ => None,
    };
    let rows = benefit(&problems)?.into_iter();
    Ok(rows.filter_map(|row| Some(("switch_benefit/helps", truth(&row.group)?, row.helps()))).collect())
}

/// Whether a patch at this place on the value's path changes the answer.
fn carries(built: &Built, step: usize, layer: usize) -> bool {
    let reads = built.is_read() || built.kind == Purpose::Redundant;
    let handed_on = step < built.reads || (step == built.reads && layer <= built.reader.0);
    reads && built.holds(step, layer) && handed_on
}

fn patched(built: &Built, study: &Study, n: usize) -> Result<Tally> {
    let config = activation_patching::Config { pairs: n, ..activation_patching::Config::default() };
    let prompts = pairs(built, study, n, study.seed)?;
    let rows = activation_patching::run_pairs(study, &config, &prompts)?.into_iter().filter(|r| r.axis == Axis::Step);
    Ok(rows.map(|row| ("activation_patching/step", carries(built, row.index, row.layer), row.carries())).collect())
}

fn heads(built: &Built, study: &Study, n: usize) -> Result<Tally> {
    let modes = vec![PatchMode::Denoise, PatchMode::Noise];
    let config =
        head_patching::Config { pairs: n, forms: vec![Form::Latents], modes, ..head_patching::Config::default() };
    let prompts = pairs(built, study, n, study.seed)?;
    let writes = if built.writes == 0 { "swi".to_owned() } else { format!("latent[{}]", built.writes) };
    let reads = built.is_read() || built.kind == Purpose::Redundant;
    let copies = matches!(built.kind, Purpose::Redundant | Purpose::Backed);
    let one = |row: HeadPatchRow| {
        let node = (row.layer, row.head.unwrap_or_default());
        let truth = match row.place.as_str() {
            "readout" => node == built.reader || (copies && node == (built.reader.0, 1 - built.reader.1)),
            place => reads && place == writes && node == built.writer,
        };
        ("head_patching/heads", truth, row.matters())
    };
    let rows = head_patching::run_pairs(study, &config, &prompts)?.into_iter();
    Ok(rows.filter(|row| row.component == Component::Head).map(one).collect())
}
