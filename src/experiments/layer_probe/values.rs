//! Which value does a latent step hold? Only where problems have known intermediate values (generated tasks).
//!
//! Every tagged clause is a step of its problem, and its block stands for it. At each latent step of the block the stream
//! is probed for the clause's own result (`s_j`) and for the result before it (`s_j-1`, an operand), over all blocks and
//! layers; and, at the last layer, for the results of step 1, step 2, … apart. The text after the block, which would say
//! the result, has not been read yet.

use anyhow::Result;
use ndarray::{Array2, Axis};

use super::{Config, point};
use crate::model::{HookPoint, Step};
use crate::schema::{Features, ProbeRow, Protocol};
use crate::study::Study;
use crate::study::staging::capture::capture;

/// One latent position.
struct Latent {
    problem: usize,
    position: usize,
    /// From 1.
    step: usize,
    /// The step of the problem that its block stands for, from 0.
    clause: usize,
    own: usize,
    before: Option<usize>,
}

/// All probes, layer by layer. Data without known values has no rows and is no error.
///
/// # Errors
/// As [`super::run`].
pub fn probe(
    study: &Study,
    config: &Config,
    layers: &[usize],
    push: &mut dyn FnMut(ProbeRow) -> Result<()>,
) -> Result<()> {
    let latents = latents(study)?;
    let places: Vec<(usize, usize)> = latents.iter().map(|l| (l.problem, l.position)).collect();
    if places.is_empty() {
        return Ok(());
    }
    let model = &study.subject.model;
    let depth = model.config().num_hidden_layers;
    let bytes = 4 * places.len() * model.config().hidden_size;
    let fit = (config.memory_mb * (1 << 20) / bytes).max(1);
    for layers in layers.chunks(fit) {
        let points: Vec<HookPoint> = layers.iter().map(|&l| point(l)).collect();
        let source = &study.subject.reasoning.source;
        let captured = capture(model, source, &study.staged()?.sequences, &points, &places, study.threads)?;
        for (&layer, features) in layers.iter().zip(&captured) {
            let probe = Probe { study, config, latents: &latents, features, layer, depth };
            probe.targets(push)?;
        }
    }
    Ok(())
}

/// Latent positions of blocks whose values are known numbers, in the order of their positions.
fn latents(study: &Study) -> Result<Vec<Latent>> {
    let (staged, tagged) = (study.staged()?, study.tagged()?);
    let mut out = vec![];
    for (problem, (sample, spans)) in tagged.iter().enumerate() {
        let steps = &study.subject.corpus.test[problem].steps;
        let values: Vec<Option<usize>> =
            steps.iter().map(|s| s.value.number().and_then(|n| usize::try_from(n).ok())).collect();
        // A clause that was not found among the tokens would shift the others.
        if sample.clauses.len() != steps.len() {
            continue;
        }
        let sequence = &staged.sequences[problem];
        for (position, at) in sequence.steps.iter().enumerate() {
            let Step::Latent { block, step } = *at else { continue };
            let Some(span) = spans.get(block) else { continue };
            let Some(clause) = sample.clauses.iter().position(|c| c.start < span.end && span.start < c.end) else {
                continue;
            };
            let Some(own) = values[clause] else { continue };
            let before = clause.checked_sub(1).and_then(|c| values[c]);
            out.push(Latent { problem, position, step: step + 1, clause, own, before });
        }
    }
    Ok(out)
}

struct Probe<'a> {
    study: &'a Study,
    config: &'a Config,
    latents: &'a [Latent],
    features: &'a Array2<f32>,
    layer: usize,
    depth: usize,
}

impl Probe<'_> {
    fn targets(&self, push: &mut dyn FnMut(ProbeRow) -> Result<()>) -> Result<()> {
        let steps = self.latents.iter().map(|l| l.step).max().unwrap_or(0);
        let clauses = self.latents.iter().map(|l| l.clause + 1).max().unwrap_or(0);
        for step in 1..=steps {
            let own = |l: &Latent| (l.step == step).then_some(l.own);
            self.target(&format!("value:s_j@{step}"), own, push)?;
            let before = |l: &Latent| if l.step == step { l.before } else { None };
            self.target(&format!("value:s_j-1@{step}"), before, push)?;
            for clause in (0..clauses).filter(|_| self.layer == self.depth) {
                let of_clause = |l: &Latent| own(l).filter(|_| l.clause == clause);
                self.target(&format!("value:s{}@{step}", clause + 1), of_clause, push)?;
            }
        }
        Ok(())
    }

    /// One probe for `value`, where it is known; nothing where too few problems have it.
    fn target(
        &self,
        target: &str,
        value: impl Fn(&Latent) -> Option<usize>,
        push: &mut dyn FnMut(ProbeRow) -> Result<()>,
    ) -> Result<()> {
        let known = self.latents.iter().enumerate().filter_map(|(row, l)| value(l).map(|v| (row, l.problem, v)));
        let (mut rows, mut problems, mut values) = (vec![], vec![], vec![]);
        for (row, problem, value) in known {
            rows.push(row);
            problems.push(problem);
            values.push(value);
        }
        let mut distinct = problems.clone();
        distinct.dedup();
        let protocol = &self.config.value;
        // Inside a training side of the outer folds, the inner folds need two problems each too.
        let few = distinct.len() < 4 * protocol.folds.max(protocol.inner_folds);
        if few || values.iter().all(|v| v == &values[0]) {
            return Ok(());
        }
        let score = protocol.run(self.features.select(Axis(0), &rows).view(), &values, &problems)?;
        let row = ProbeRow {
            identity: self.study.identity(self.study.subject.corpus.test.len()),
            target: target.to_owned(),
            protocol: Protocol::Grouped,
            negatives: None,
            layer: self.layer,
            from_last: self.depth + 1 - self.layer,
            features: Features::ResidPost,
            rows: score.rows,
            positives: (score.majority * score.rows as f64).round() as usize,
            accuracy: Some(score.accuracy),
            balanced_accuracy: score.balanced_accuracy,
            auroc: None,
            selectivity: Some(score.selectivity),
            chance: score.majority,
        };
        push(row.clone())?;
        push(ProbeRow {
            features: Features::Shuffled,
            accuracy: Some(score.control),
            balanced_accuracy: score.control_balanced,
            selectivity: None,
            ..row
        })
    }
}
