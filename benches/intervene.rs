//! A sweep of 7 modes × 4 steps × 5 draws, forked from shared prefixes, against each of the 140 decoded from its prompts.
//!
//! `cargo bench --bench intervene [-- PROBLEMS]`. Both decode the same problems with the same hooks on one thread; the
//! baseline takes batches of the recipe's evaluation, which is how one mode alone would run.

use std::path::Path;
use std::time::Instant;

use switchyard::experiments::lab::Lab;
use switchyard::experiments::sweep::{Continuation, Sweep, What};
use switchyard::interventions::{ALL, Arm, Arms, Draw, Intervention, Later, Material, Steps};
use switchyard::latent::{Channel, Decode, HiddenState, decode};
use switchyard::model::Hooks;

const MODES: [(&str, f64); 7] = [
    ("random_norm", 0.0),
    ("gaussian", 0.0),
    ("resample", 0.0),
    ("rotate", 30.0),
    ("rotate", 60.0),
    ("rotate", 90.0),
    ("rotate", 120.0),
];

fn main() -> anyhow::Result<()> {
    let problems = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(100);
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/micro");
    let mut lab = Lab::open(&run, "latent", Some(problems), 0)?;
    lab.threads = 1;
    let settings = Sweep::settings(&lab);

    let started = Instant::now();
    let sweep = Sweep::new(&lab, &settings)?;
    let model = &lab.subject.model;
    let material = Material { bank: &sweep.bank, siblings: &[], swaps: &[], model, exit: &[] };
    let mut made: Vec<(Box<dyn Intervention + '_>, Steps)> = vec![];
    for (name, dose) in MODES {
        let about = ALL.iter().find(|a| a.name == name).ok_or_else(|| anyhow::anyhow!("no mode {name}"))?;
        for step in 0..4 {
            for number in 0..5 {
                let draw = Draw { number, seed: number as u64, dose };
                made.push(((about.make)(&material, draw), Steps::Only(step)));
            }
        }
    }
    let continuations: Vec<Continuation> = made
        .iter()
        .map(|(with, steps)| Continuation {
            what: What::Replace { with: with.as_ref(), steps: *steps },
            same_shape: false,
        })
        .collect();
    let done = sweep.run(&continuations, Later::Recompute, Channel::Both)?;
    let shared = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let (mut right, layers) = (0, model.layers.len());
    for (with, steps) in &made {
        let arm = |problem| Arm { problem, what: Some(with.as_ref()), steps: *steps, counter: 0 };
        let arms = Arms::new((0..sweep.requests.len()).map(arm).collect(), Later::Recompute, &sweep.bank, 1);
        let mut hooks = Hooks::none();
        arms.attach(&mut hooks, layers)?;
        let switch = Some(lab.subject.corpus.switch);
        let how = Decode { model, source: &HiddenState, switch, settings: &settings, cancel: None };
        for batch in sweep.requests.chunks(lab.subject.recipe.evaluation.batch) {
            let traces = decode(how, batch, 1, &mut hooks)?;
            right += switchyard::evaluation::score(&traces, &lab.subject.corpus)?
                .outcomes
                .iter()
                .filter(|o| o.correct)
                .count();
        }
    }
    let apart = started.elapsed().as_secs_f64();

    let switched = sweep.normal.iter().filter(|o| o.switched).count();
    let also: usize = done.iter().map(|d| d.outcomes.iter().filter(|o| o.correct).count()).sum();
    println!("{} runs of {problems} problems, {switched} of which switch; one thread", made.len());
    println!("forked {shared:.2} s, each from its prompts {apart:.2} s: {:.1} times as fast", apart / shared);
    println!("right answers {also} and {right}");
    Ok(())
}
