//! How often the intervals of monitors that do not intervene contain the true rate, on a model's own problems.
//!
//! 1. The study's problems are the pool; every one is run once.
//! 2. A resampling draws `sample` of them, without replacement, and does on them what the experiment does: split, fit, threshold, and an
//!    interval each for recall and false alarms.
//! 3. The true rates of that fitted monitor at that threshold are those on the rest of the pool, with the same letters; on seen letters only
//!    of programs that were neither fitted nor calibrated on: the population that the interval estimates.
//!
//! Answers under interventions are left out: they cost a decode of the pool per latent step.
//!
//! Misleads: the rest of the pool is finite, so that the truth is itself an estimate; this makes coverage look smaller.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use rand::seq::SliceRandom;

use super::access::{self, AccessMonitor};
use super::fit::{Labels, Parts};
use super::{Config, MonitorBench};
use crate::random::keyed;
use crate::schema::{Access, Letters};
use crate::study::Study;

/// Intervals that contain the true rate, of `resamplings`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    pub recall: usize,
    pub false_alarms: usize,
    pub resamplings: usize,
    /// Mean of the true share of decoys that are flagged.
    pub flagged: f64,
}

/// Coverage by access, letters and requested rate of false alarms (in units of 10⁻⁶, so that it is a key).
pub type Coverages = BTreeMap<(Access, Letters, u64), Coverage>;

/// Runs the study's problems, and fits monitors of these levels of access on `resamplings` samples of them.
pub fn measure(
    study: &Study,
    config: &Config,
    levels: &[Access],
    (sample, resamplings): (usize, usize),
) -> Result<Coverages> {
    let bench = MonitorBench::new(study, config, super::hidden_values(study)?)?;
    let MonitorBench { labels, normal, parts, .. } = &bench;
    let pool = labels.trigger.len();
    let (x, there) = bench.latents(normal)?;
    let mut features = access::read(study, normal, &x, &there)?;
    features.retain(|features| levels.contains(&features.access));
    let unseen: BTreeSet<&str> = parts.held_out.iter().map(|&problem| labels.letter[problem].as_str()).collect();
    let unseen = Vec::from_iter(unseen);

    ensure!(sample < pool, "a sample of {sample} problems needs a larger pool than {pool}");
    let draws = Vec::from_iter(0..resamplings as u64);
    let found = study.each("resamplings", &draws, |&draw| {
        let mut rng = keyed([study.seed, draw, 0, 0x636f]);
        let mut order = Vec::from_iter(0..pool);
        order.shuffle(&mut rng);
        let (drawn, rest) = order.split_at_mut(sample);
        drawn.sort_unstable();
        let parts = split(labels, drawn, &unseen, draw)?;
        let fitted: BTreeSet<usize> = parts.fit.iter().chain(&parts.calibrate).map(|&i| labels.groups[i]).collect();
        let mut covered = vec![];
        for features in &features {
            let monitor = AccessMonitor::fit(features, labels, &parts, draw)?;
            let scores = monitor.scores(features);
            for &rate in &config.false_alarms {
                let Some((threshold, _)) = monitor.threshold(rate) else { continue };
                for (letters, judged) in [(Letters::Seen, &parts.seen), (Letters::HeldOut, &parts.held_out)] {
                    let is_unseen = letters == Letters::HeldOut;
                    let truth = rest.iter().copied();
                    let truth = truth.filter(|&i| unseen.contains(&labels.letter[i].as_str()) == is_unseen);
                    let truth = truth.filter(|&i| is_unseen || !fitted.contains(&labels.groups[i]));
                    let truth = Vec::from_iter(truth);
                    let holds = |trigger: bool| -> Result<(bool, f64)> {
                        let of = |problems: &[usize]| -> Vec<usize> {
                            problems.iter().copied().filter(|&i| labels.trigger[i] == trigger).collect()
                        };
                        let (judged, truth) = (of(judged), of(&truth));
                        let flagged = truth.iter().filter(|&&i| scores[i] > threshold).count();
                        let share = flagged as f64 / truth.len() as f64;
                        let interval = labels.share(&judged, draw, |i| scores[i] > threshold)?;
                        Ok((interval.covers(share), share))
                    };
                    let ((recall, _), (alarms, share)) = (holds(true)?, holds(false)?);
                    covered.push(((features.access, letters, (rate * 1e6) as u64), (recall, alarms, share)));
                }
            }
        }
        Ok(covered)
    })?;
    let mut all = Coverages::new();
    for (key, (recall, alarms, share)) in found.into_iter().flatten() {
        let coverage = all.entry(key).or_default();
        coverage.recall += usize::from(recall);
        coverage.false_alarms += usize::from(alarms);
        coverage.resamplings += 1;
        coverage.flagged += share;
    }
    all.values_mut().for_each(|coverage| coverage.flagged /= coverage.resamplings as f64);
    Ok(all)
}

/// The parts of a sample, as indices of the pool.
fn split(labels: &Labels, drawn: &[usize], unseen: &[&str], seed: u64) -> Result<Parts> {
    let sample = Labels {
        trigger: drawn.iter().map(|&i| labels.trigger[i]).collect(),
        letter: drawn.iter().map(|&i| labels.letter[i].clone()).collect(),
        groups: drawn.iter().map(|&i| labels.groups[i]).collect(),
    };
    let Parts { fit, calibrate, seen, held_out } = Parts::new(&sample, unseen, seed)?;
    let of = |part: Vec<usize>| part.into_iter().map(|i| drawn[i]).collect();
    Ok(Parts { fit: of(fit), calibrate: of(calibrate), seen: of(seen), held_out: of(held_out) })
}
