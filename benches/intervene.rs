//! A sweep of 7 modes × 4 steps × 5 draws, forked from shared prefixes, against decoding all 140 runs from their prompts.
//!
//! `cargo bench --bench intervene [-- PROBLEMS [ROWS]]`. All seven modes are random, so that no draw is skipped. Baselines:
//! one mode, step and draw at a time, in the recipe's evaluation batches; and one problem at a time (on some of the runs,
//! scaled up). All decode the same problems with the same hooks and threads.

use std::path::Path;
use std::time::Instant;

use switchyard::interventions::{
    At, Change, ChangeLog, Draw, Heads, Intervention, InterventionSpec, Later, Material, ModelChange, PreparedChange,
    Steps,
};
use switchyard::latent::{Blocks, Decode, HiddenState, decode};
use switchyard::model::{Hooks, Select};
use switchyard::study::Study;
use switchyard::study::sweep::{Continuation, Sweep};
use switchyard_allocator as _;

const MODES: [&str; 7] = ["random_norm", "gaussian", "resample", "rotate:30", "rotate:60", "rotate:90", "rotate:120"];
const STEPS: usize = 4;
const DRAWS: usize = 5;

/// One mode, step and draw: for a fork, and for a decode from prompts.
struct Made<'a> {
    with: Box<dyn Intervention + 'a>,
    steps: Steps,
    change: PreparedChange<'a>,
}

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
    let material = Material { bank: &sweep.bank, model: Some(model), ..Material::NONE };
    let points = "latent.hook_injected".parse::<Change>()?.points(model.config())?;
    let mut changes = vec![];
    for mode in MODES {
        let spec: InterventionSpec = mode.parse()?;
        for steps in (0..STEPS).map(Steps::Only) {
            let place = (Heads::default(), Select::Latent { block: None, steps });
            let change = ModelChange::new(model.config(), (mode.to_owned(), points.clone()), place, spec.clone())?;
            changes.push((change, steps));
        }
    }
    let mut made: Vec<Made> = vec![];
    for (change, steps) in &changes {
        let InterventionSpec::Named { about, dose } = change.intervention else { continue };
        for number in 0..DRAWS {
            let draw = Draw { number, seed: number as u64, dose: dose.unwrap_or_default() };
            let change = change.prepare(&material, |_| draw);
            made.push(Made { with: (about.make)(&material, draw), steps: *steps, change });
        }
    }
    let continuation = |made| Continuation { inputs: inputs(made), ..Continuation::default() };
    let all: Vec<Continuation> = made.iter().map(continuation).collect();
    let done = sweep.run(&all, Later::Recompute, At::Both)?;
    let shared = started.elapsed().as_secs_f64();
    let right: usize = done.iter().flatten().filter(|o| o.correct).count();

    let runs = all.len();
    let (each, also) = from_prompts(&study, &sweep, &made, study.recipe.evaluation.batch)?;
    let some: Vec<Made> = made.into_iter().step_by(20).collect();
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

fn inputs<'m>(made: &'m Made) -> Option<(&'m dyn Intervention, Steps)> {
    Some((made.with.as_ref(), made.steps))
}

/// Seconds and number of right answers.
fn from_prompts(study: &Study, sweep: &Sweep, made: &[Made], batch: usize) -> anyhow::Result<(f64, usize)> {
    let (started, mut right) = (Instant::now(), 0);
    let settings = study.settings();
    let model = &study.model;
    for Made { change, .. } in made {
        let log = ChangeLog::from_requests(&sweep.requests);
        let mut hooks = Hooks::none();
        hooks.change(change, &log);
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
