//! Which value does a latent step represent? Only for problems with known intermediate values (generated tasks).
//!
//! Every tagged clause is a step of its problem, represented by its block. At each latent step of the block, the stream is probed for the
//! clause's result (`s_j`) and for the result before it (`s_j-1`, an operand), over all blocks and layers; and, at the last layer,
//! separately for the results of step 1, step 2, … The text after the block, which states the result, has not been read yet. If a step
//! reaches a set of nodes instead, [`frontier`] probes for its members. If one block after the prompt replaces the whole chain (Coconut,
//! pause tokens, CoLaR), each of its latents is probed for the result of every step; if the model chooses its length, in the blocks that
//! it decodes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use anyhow::Result;
use ndarray::{Array2, Axis};

use super::frontier::{self, Names};
use super::{Config, by_layer, row};
use crate::latent::{Controller, Sequence};
use crate::nth::Nth;
use crate::schema::{Features, ProbeRow};
use crate::study::Study;
use crate::tasks::Fact;
use crate::text::Problem;

pub(super) struct LatentState {
    pub problem: usize,
    /// The first problem of its group: unit of a split.
    pub group: usize,
    pub position: usize,
    pub step: Nth,
    /// The problem's step (from 0) that its block represents; `None`: all steps.
    pub clause: Option<usize>,
    /// Results of the problem's steps, if they are known numbers.
    pub values: Rc<[Option<usize>]>,
}

impl LatentState {
    /// The result of one of the problem's steps.
    fn value_of_step(&self, step: usize) -> Option<usize> {
        self.values.get(step).copied().flatten()
    }
}

/// All probes, layer by layer; no rows for data without known values.
pub fn probe(study: &Study, config: &Config, layers: &[usize]) -> Result<Vec<ProbeRow>> {
    let (sequences, latents) = latents(study)?;
    let places: Vec<(usize, usize)> = latents.iter().map(|l| (l.problem, l.position)).collect();
    if places.is_empty() {
        return Ok(vec![]);
    }
    let names = Names::collect(study)?;
    by_layer((study, &study.model, config), (&sequences, &places), layers, |layer, features| {
        let probe = ValueProbe { study, config, latents: &latents, features, layer };
        let mut rows = probe.targets()?;
        if let Some(names) = &names {
            rows.extend(frontier::probe((study, config, names), &latents, features, layer)?);
        }
        Ok(rows)
    })
}

/// The sequences, and their latent positions in blocks whose values are known numbers or sets, sorted by position.
fn latents(study: &Study) -> Result<(Vec<Sequence>, Vec<LatentState>)> {
    let (blocks, corpus) = (&study.reasoning.blocks, &study.corpus);
    let sequences: Vec<Sequence> = match blocks.after_prompt() {
        Some(steps) => after_prompt(study, steps)?,
        None if blocks.follow_prompt() => {
            study.decoded()?.1.iter().map(|trace| trace.sequence(&corpus.switch)).collect::<Result<_>>()?
        }
        None => return at_spans(study),
    };
    let (mut out, groups) = (vec![], corpus.groups());
    for (problem, sequence) in sequences.iter().enumerate() {
        let values = values(&corpus.test[problem]);
        for (position, _, step) in sequence.latent_steps().filter(|_| values.iter().any(Option::is_some)) {
            let (group, step) = (groups[problem], Nth::new(step));
            out.push(LatentState { problem, group, position, step, clause: None, values: values.clone() });
        }
    }
    Ok((sequences, out))
}

/// Whether a step's value can be probed.
fn is_known(problem: &Problem, step: usize) -> bool {
    problem.steps.get(step).is_some_and(|step| matches!(step.value, Fact::Number(_) | Fact::Set(_)))
}

fn values(problem: &Problem) -> Rc<[Option<usize>]> {
    problem.steps.iter().map(|s| s.value.number().and_then(|n| usize::try_from(n).ok())).collect()
}

/// One block of this many steps after every prompt.
fn after_prompt(study: &Study, steps: usize) -> Result<Vec<Sequence>> {
    let switch = study.corpus.switch;
    let swi = study.reasoning.blocks.marked().then_some(switch.swi);
    let row = |(problem, prompt): (usize, &Vec<u32>)| {
        let block = swi.into_iter().chain(std::iter::repeat_n(switch.latent, steps));
        let ids = prompt.iter().copied().chain(block).collect();
        Sequence::new(problem, ids, prompt.len(), Some(switch.latent))
    };
    study.corpus.test_prompts.iter().enumerate().map(row).collect()
}

/// Blocks in the place of tagged clauses.
fn at_spans(study: &Study) -> Result<(Vec<Sequence>, Vec<LatentState>)> {
    let (staged, tagged) = (study.staged()?, study.tagged()?);
    let (mut out, groups) = (vec![], study.corpus.groups());
    for (problem, (sample, spans)) in tagged.iter().enumerate() {
        let values = values(&study.corpus.test[problem]);
        // A clause that was not found among the tokens would shift the others.
        if sample.clauses.len() != values.len() {
            continue;
        }
        for (position, block, step) in staged.sequences[problem].latent_steps() {
            let of_span =
                |span: &Range<usize>| sample.clauses.iter().position(|c| c.start < span.end && span.start < c.end);
            let clause =
                spans.get(block).and_then(of_span).filter(|&clause| is_known(&study.corpus.test[problem], clause));
            if clause.is_some() {
                let (group, step) = (groups[problem], Nth::new(step));
                out.push(LatentState { problem, group, position, step, clause, values: values.clone() });
            }
        }
    }
    Ok((staged.sequences.clone(), out))
}

struct ValueProbe<'a> {
    study: &'a Study,
    config: &'a Config,
    latents: &'a [LatentState],
    features: &'a Array2<f32>,
    layer: usize,
}

impl ValueProbe<'_> {
    fn targets(&self) -> Result<Vec<ProbeRow>> {
        let mut rows = vec![];
        let steps: BTreeSet<Nth> = self.latents.iter().map(|l| l.step).collect();
        let clauses = self.latents.iter().map(|l| l.clause.map_or(l.values.len(), |c| c + 1)).max().unwrap_or(0);
        for step in steps {
            // The result of the latent's step, and the previous one.
            rows.extend(self.target("s_j", step, |l| l.value_of_step(l.clause?))?);
            rows.extend(self.target("s_j-1", step, |l| l.value_of_step(l.clause?.checked_sub(1)?))?);
            for clause in (0..clauses).filter(|_| self.layer == self.study.model.layers.len()) {
                let stands = |l: &LatentState| l.clause.is_none_or(|own| own == clause);
                let value = |l: &LatentState| l.value_of_step(clause).filter(|_| stands(l));
                rows.extend(self.target(&format!("s{}", clause + 1), step, value)?);
            }
        }
        Ok(rows)
    }

    /// One probe for `value` at a latent step, if known; no row if too few problems have it.
    fn target(&self, name: &str, step: Nth, value: impl Fn(&LatentState) -> Option<usize>) -> Result<Vec<ProbeRow>> {
        let here = self.latents.iter().enumerate().filter(|(_, l)| l.step == step);
        let known = here.filter_map(|(row, l)| Some(((row, l.group), value(l)?)));
        let ((rows, groups), values): ((Vec<usize>, Vec<usize>), Vec<usize>) = known.unzip();
        let distinct: BTreeSet<usize> = groups.iter().copied().collect();
        let protocol = &self.config.value;
        // Inside a training side of the outer folds, the inner folds need two problems each too.
        let few = distinct.len() < 4 * protocol.folds.max(protocol.inner_folds);
        if few || values.iter().all(|v| v == &values[0]) {
            return Ok(vec![]);
        }
        let score = protocol.run(self.features.select(Axis(0), &rows).view(), &values, &groups)?;
        let of = |balanced_accuracy, accuracy, bits| ProbeRow {
            rows: score.rows,
            positives: (score.majority * score.rows as f64).round() as usize,
            accuracy: Some(accuracy),
            chance: score.majority,
            bits: Some(bits),
            ..row(self.study, self.layer, &format!("value:{name}@{step}"), balanced_accuracy)
        };
        let own = ProbeRow {
            selectivity: Some(score.selectivity),
            chosen_c: ProbeRow::listed(&score.c),
            ..of(score.balanced_accuracy, score.accuracy, score.bits)
        };
        let control = of(score.control_balanced, score.control, score.control_bits);
        Ok(vec![own, ProbeRow { features: Features::Shuffled, ..control }])
    }
}
