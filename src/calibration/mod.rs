//! Error rates of verdicts, measured on models with known truth.
//!
//! 1. A *kind of truth* ([`truths`]) draws the parts of a hand-built model ([`known`]) at random: layers, heads, steps, letters.
//! 2. A *look* ([`looks`]) runs one experiment with default settings and pairs each verdict with the model's construction. Verdicts are
//!    the records' own methods ([`crate::schema`]), as in summaries and claims.
//! 3. Rates of true and false alarms follow per verdict, kind and n.
//!
//! Not calibrated: `accuracy`, `outcomes`, `traces`, `entropy`, `positions`, which give no verdict.
//!
//! Misleads: the models are small and clean, so that power here is an upper bound for a real model, whose effects are partial and
//! noisy. The kinds `share`, `noisy` and `blind` have partial effects and noise.

pub mod known;
mod looks;
mod truths;

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use burn::tensor::Device;
use rand::Rng;

use crate::parallel;
use crate::progress::go_on;
use crate::random::keyed;
use crate::schema::{CalibrationDrawRow, CalibrationRow, Identity};
use known::{Built, study, training};
use looks::{LOOKS, Look};
use truths::{TRUTHS, Truth};

#[derive(Clone, Debug)]
pub struct Settings {
    /// Models of each kind of truth at the default n, and the same number at each smaller n.
    pub draws: usize,
    pub seed: u64,
    /// Experiments or kinds of truth; empty: all.
    pub only: Vec<String>,
    /// Values of n; empty: all.
    pub n: Vec<usize>,
}

/// One model and its experiments at one n.
#[derive(Clone, Copy)]
pub struct Job {
    /// Index among the kinds of truth.
    kind: usize,
    pub draw: usize,
    pub n: usize,
    default_n: bool,
    of_pairs: bool,
}

impl Job {
    /// Description for progress lines.
    pub fn label(&self) -> String {
        format!("{} {}, n = {}", TRUTHS[self.kind].name, self.draw, self.n)
    }
}

/// One line per kind of truth, then one per experiment.
pub fn list() -> String {
    let truths = TRUTHS.iter().map(|t| format!("{:<12} truth       {}\n", t.name, t.about));
    let looks = LOOKS.iter().map(|l| {
        let unit = if l.of_pairs { "pairs" } else { "problems" };
        format!("{:<26} experiment  at n = {:?} {unit}\n", l.name, l.sizes)
    });
    truths.chain(looks).collect()
}

/// Names of the kinds of truth.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    TRUTHS.iter().map(|truth| truth.name)
}

/// One model of a kind, with the same parts at every n; `None` for an unknown kind.
pub fn draw_model(kind: &str, seed: u64, draw: usize) -> Option<Built> {
    TRUTHS.iter().position(|truth| truth.name == kind).map(|kind| draw_kind(kind, seed, draw))
}

fn draw_kind(kind: usize, seed: u64, draw: usize) -> Built {
    (TRUTHS[kind].draw)(&mut keyed([seed, kind as u64, draw as u64, 0]))
}

impl Settings {
    fn wants(&self, truth: &Truth, look: &Look) -> bool {
        let named = |name: &str| self.only.iter().any(|only| only == name);
        let truths = TRUTHS.iter().any(|t| named(t.name));
        let looks = LOOKS.iter().any(|l| named(l.name));
        truth.looks.contains(&look.name) && (!truths || named(truth.name)) && (!looks || named(look.name))
    }

    /// The jobs, grouped by kind and n.
    pub fn jobs(&self) -> Result<Vec<Job>> {
        for name in &self.only {
            if !TRUTHS.iter().any(|t| t.name == name) && !LOOKS.iter().any(|l| l.name == name) {
                bail!("--only: no kind of truth and no calibrated experiment `{name}`; --list names them");
            }
        }
        let mut jobs = vec![];
        for (kind, truth) in TRUTHS.iter().enumerate() {
            for of_pairs in [false, true] {
                let looks = || LOOKS.iter().filter(|l| l.of_pairs == of_pairs && self.wants(truth, l));
                let sizes: BTreeSet<usize> = looks().flat_map(|l| l.sizes).copied().collect();
                let most = sizes.last().copied();
                for n in sizes.into_iter().filter(|n| self.n.is_empty() || self.n.contains(n)) {
                    let default_n = Some(n) == most;
                    jobs.extend((0..self.draws).map(|draw| Job { kind, draw, n, default_n, of_pairs }));
                }
            }
        }
        if jobs.is_empty() {
            bail!(
                "nothing to do: none of these experiments is calibrated on these kinds at these n; --list shows the combinations"
            );
        }
        Ok(jobs)
    }

    /// Runs jobs, each on its own thread.
    pub fn run(&self, jobs: &[Job], device: &Device, threads: usize) -> Result<Vec<CalibrationDrawRow>> {
        Ok(parallel::each(jobs, threads, |job| self.run_job(job, device))?.concat())
    }

    fn run_job(&self, job: &Job, device: &Device) -> Result<Vec<CalibrationDrawRow>> {
        let Job { kind, draw, n, .. } = *job;
        let (truth, built) = (&TRUTHS[kind], draw_kind(kind, self.seed, draw));
        // The problems depend on draw and n.
        let mut problems = keyed([self.seed, kind as u64, draw as u64, n as u64]);
        let seed = problems.random_range(0..1 << 32);
        let mut rows = vec![];
        let problems = if job.of_pairs { looks::BESIDE } else { n };
        let mut study = study(&built, problems, seed, device)?;
        if let Some(trained) = training(&built, problems, seed)? {
            study = study.trained_on(trained);
        }
        for look in LOOKS.iter().filter(|l| l.of_pairs == job.of_pairs && l.sizes.contains(&n)) {
            if !self.wants(truth, look) {
                continue;
            }
            go_on()?;
            let said = (look.run)(&built, &study, n)
                .map_err(|error| error.context(format!("{} on {} {draw} at n = {n}", look.name, truth.name)))?;
            rows.extend(said.into_rows().map(|(test, truth_is, verdict)| CalibrationDrawRow {
                identity: Identity {
                    checkpoint: CalibrationRow::CHECKPOINT.into(),
                    dataset: CalibrationRow::CHECKPOINT.into(),
                    n,
                    seed: self.seed,
                },
                kind: truth.name.to_owned(),
                draw,
                blind: looks::blind(&test).to_owned(),
                test,
                default_n: job.default_n,
                truth: truth_is,
                verdict,
                right: truth_is == verdict,
            }));
        }
        Ok(rows)
    }
}
