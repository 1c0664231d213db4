//! A sweep of 7 modes × 4 steps × 5 draws, forked from shared prefixes, against each of the 140 decoded from its prompts.
//!
//! `cargo bench --bench intervene [-- PROBLEMS [ROWS]]`. All seven modes are random, so that no draw is spared. Baselines:
//! one mode, step and draw at a time, its problems in batches of the recipe's evaluation; and one problem at a time too (on
//! some of the runs, scaled up). Everything decodes the same rows with the same hooks and threads.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use switchyard::interventions::{At, Draw, Intervention, Later, Material, Replacement, Replacements, Steps, all};
use switchyard::latent::{Blocks, Decode, HiddenState, decode};
use switchyard::model::Hooks;
use switchyard::study::Study;
use switchyard::study::sweep::{Continuation, Sweep, What};
use switchyard_allocator as _;

const MODES: [(&str, f64); 7] = [
    ("random_norm", 0.0),
    ("gaussian", 0.0),
    ("resample", 0.0),
    ("rotate", 30.0),
    ("rotate", 60.0),
    ("rotate", 90.0),
    ("rotate", 120.0),
];

type Made<'a> = Vec<(Box<dyn Intervention + 'a>, Steps)>;

fn main() -> anyhow::Result<()> {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let problems = numbers.first().copied().unwrap_or(100);
    let run = Path::new(".").join("fixtures/micro");
    let mut study = Study::open(&run, "sft", Some(problems), 0)?;
    study.threads = 1;

    let started = Instant::now();
    let mut sweep = study.sweep()?;
    sweep.rows_at_once = numbers.get(1).copied().unwrap_or(sweep.rows_at_once);
    let model = &study.model;
    let material = Material { bank: &sweep.bank, siblings: &[], swaps: &[], model, exit: &[] };
    let mut made: Made = vec![];
    for (name, dose) in MODES {
        let about = all().find(|a| a.name == name).with_context(|| format!("no mode {name}"))?;
        for step in 0..4 {
            for number in 0..5 {
                let draw = Draw { number, seed: number as u64, dose };
                made.push(((about.make)(&material, draw), Steps::Only(step)));
            }
        }
    }
    let what = |at: usize| What::Replace { with: made[at].0.as_ref(), steps: made[at].1 };
    let all: Vec<_> = (0..made.len()).map(|at| Continuation { what: what(at), same_shape: false }).collect();
    let done = sweep.run(&all, Later::Recompute, At::Both)?;
    let shared = started.elapsed().as_secs_f64();
    let right: usize = done.iter().flatten().filter(|o| o.correct).count();

    let runs = all.len();
    let (each, also) = from_prompts(&study, &sweep, &made, study.recipe.evaluation.batch)?;
    let some: Made = made.into_iter().step_by(20).collect();
    let share = runs as f64 / some.len() as f64;
    let (alone, _) = from_prompts(&study, &sweep, &some, 1)?;

    let switched = sweep.normal.iter().filter(|o| o.switched).count();
    println!("{runs} runs of {problems} problems, {switched} of which switch");
    println!("forked, {} rows at once: {shared:.2} s", sweep.rows_at_once);
    println!("each run from its prompts, batched: {each:.2} s, {:.1} times as long", each / shared);
    let alone = alone * share;
    println!("each problem of each run from its prompt: {alone:.0} s, {:.1} times as long", alone / shared);
    println!("right answers {right} and {also}");
    Ok(())
}

/// Seconds, and right answers.
fn from_prompts(study: &Study, sweep: &Sweep, made: &Made, batch: usize) -> anyhow::Result<(f64, usize)> {
    let (started, mut right) = (Instant::now(), 0);
    let settings = study.settings();
    let model = &study.model;
    for (with, steps) in made {
        let arm = |problem| Replacement { problem, what: Some(with.as_ref()), steps: *steps };
        let arms = Replacements::new((0..sweep.requests.len()).map(arm).collect(), Later::Recompute, &sweep.bank);
        let mut hooks = Hooks::none();
        arms.attach(&mut hooks, model.layers.len(), true)?;
        let switch = Some(study.corpus.switch);
        let how = Decode {
            model,
            source: &HiddenState,
            controller: &Blocks::LEARNT,
            switch,
            settings: &settings,
            cancel: None,
            ahead: None,
        };
        for batch in sweep.requests.chunks(batch) {
            let traces = decode(how, batch, 1, &mut hooks)?;
            let scores = switchyard::evaluation::score(&traces, &study.corpus)?;
            right += scores.outcomes.iter().filter(|o| o.correct).count();
        }
    }
    Ok((started.elapsed().as_secs_f64(), right))
}
