//! Probes for "the next token is `<swi>`", under both protocols, with their baselines.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use ndarray::{Array2, Axis};

use super::positions::{Positions, Set, choose};
use super::{Config, point};
use crate::machine::Compute;
use crate::model::{Decoder, HookPoint};
use crate::schema::{Features, Negatives, ProbeRow, Protocol};
use crate::stats::Estimate;
use crate::stats::probe::{GroupedProtocol, ProbeData};
use crate::study::staging::capture::capture;
use crate::study::{DoesNotApply, Study};

/// Columns of the token-identity baseline: the most frequent types, one each.
const TOKEN_COLUMNS: usize = 256;

struct Run<'a> {
    study: &'a Study,
    config: &'a Config,
    at: Positions,
    depth: usize,
    problems: usize,
}

type Push<'a> = &'a mut dyn FnMut(ProbeRow) -> Result<()>;

/// All probes, layer by layer.
pub fn probe(study: &Study, config: &Config, layers: &[usize], push: Push) -> Result<()> {
    let staged = study.staged()?;
    let at = choose(staged, study.seed, config.max_positions, config.matched);
    ensure!(
        !at.grouped.rows.is_empty(),
        DoesNotApply::because(
            "no boundary has a look-alike: an untagged clause (without named clauses, any position) after the same token in \
             its problem; layer_probe.matched = \"corpus\" looks in the other problems too"
        )
    );
    let model = &study.model;
    let run = Run { study, config, at, depth: model.config().num_hidden_layers, problems: staged.sequences.len() };
    run.tokens(push)?;
    run.margin(push)?;
    run.layers(model, &[0], Features::Embedding, push)?;
    run.layers(model, layers, Features::ResidPost, push)?;
    if config.untrained {
        let random = Compute::of(model).apply(Decoder::random(model.config(), study.seed, &study.device)?);
        run.layers(&random, layers, Features::Untrained, push)?;
    }
    Ok(())
}

impl Run<'_> {
    /// As many layers at a time as fit the memory.
    fn layers(&self, model: &Decoder, layers: &[usize], features: Features, push: Push) -> Result<()> {
        let bytes = 4 * self.at.all.len() * model.config().hidden_size;
        let fit = (self.config.memory_mb * (1 << 20) / bytes.max(1)).max(1);
        for layers in layers.chunks(fit) {
            let points: Vec<HookPoint> = layers.iter().map(|&l| point(l)).collect();
            let (source, sequences) = (&self.study.reasoning.source, &self.study.staged()?.sequences);
            let values = capture(model, source, sequences, &points, &self.at.all, self.study.threads)?;
            for (&layer, values) in layers.iter().zip(values) {
                self.both(layer, features, |set| values.select(Axis(0), &set.rows), push)?;
            }
        }
        Ok(())
    }

    fn margin(&self, push: Push) -> Result<()> {
        let (staged, readings) = (self.study.staged()?, self.study.readings()?);
        let margin = |row: usize| {
            let (problem, position) = self.at.all[row];
            staged.reading(readings, problem, position).margin as f32
        };
        let column = |set: &Set| Array2::from_shape_fn((set.rows.len(), 1), |(i, _)| margin(set.rows[i]));
        self.both(self.depth, Features::Margin, column, push)
    }

    fn tokens(&self, push: Push) -> Result<()> {
        self.both(0, Features::Token, |set| one_hot(&set.tokens), push)
    }

    /// Both protocols on the same features, each at its own positions.
    fn both(&self, layer: usize, features: Features, of: impl Fn(&Set) -> Array2<f32>, push: Push) -> Result<()> {
        let what = || format!("{features:?} at layer {layer}");
        self.paper(layer, features, &of(&self.at.paper), push).with_context(what)?;
        self.grouped(layer, features, &of(&self.at.grouped), push).with_context(what)
    }

    fn paper(&self, layer: usize, features: Features, values: &Array2<f32>, push: Push) -> Result<()> {
        let set = &self.at.paper;
        let score = self.config.paper.run(&ProbeData::new(values.view(), &set.labels, &set.problems)?)?;
        let row = self.row(layer, features, Protocol::Paper, score.accuracy);
        push(ProbeRow { accuracy: Some(score.accuracy), ..row })
    }

    fn grouped(&self, layer: usize, features: Features, values: &Array2<f32>, push: Push) -> Result<()> {
        let set = &self.at.grouped;
        // Control labels where a claim rests on them; they double the time.
        let control = self.config.grouped.control && features == Features::ResidPost;
        let protocol = GroupedProtocol { control, prevalence: Some(self.at.prevalence), ..self.config.grouped.clone() };
        let score = protocol.run(&ProbeData::new(values.view(), &set.labels, &set.problems)?)?;
        push(ProbeRow {
            accuracy: Some(score.accuracy_at_prevalence),
            auroc: Some(score.auroc),
            selectivity: score.control.map(|c| c.selectivity),
            chosen_c: ProbeRow::listed(&score.c),
            ..self.row(layer, features, Protocol::Grouped, score.balanced_accuracy)
        })?;
        let Some(control) = score.control else { return Ok(()) };
        push(self.row(layer, Features::Shuffled, Protocol::Grouped, control.balanced_accuracy))
    }

    /// A row with nothing but its balanced accuracy.
    fn row(&self, layer: usize, features: Features, protocol: Protocol, balanced_accuracy: Estimate) -> ProbeRow {
        let set = if protocol == Protocol::Paper { &self.at.paper } else { &self.at.grouped };
        ProbeRow {
            identity: self.study.identity(self.problems),
            target: "switch".to_owned(),
            protocol,
            negatives: Some(if protocol == Protocol::Paper { Negatives::Random } else { self.at.negatives }),
            layer,
            from_last: self.depth + 1 - layer,
            features,
            rows: set.rows.len(),
            positives: set.labels.iter().filter(|&&l| l).count(),
            accuracy: None,
            balanced_accuracy,
            auroc: None,
            selectivity: None,
            chance: 0.5,
            chosen_c: None,
            bits: None,
        }
    }
}

/// One column for each of the most frequent types; the rest share the zero row.
fn one_hot(tokens: &[u32]) -> Array2<f32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    tokens.iter().for_each(|t| *counts.entry(*t).or_default() += 1);
    let mut types: Vec<(u32, usize)> = counts.into_iter().collect();
    types.sort_by_key(|&(t, count)| (std::cmp::Reverse(count), t));
    types.truncate(TOKEN_COLUMNS);
    let column: BTreeMap<u32, usize> = types.iter().enumerate().map(|(i, &(t, _))| (t, i)).collect();
    let mut out = Array2::zeros((tokens.len(), types.len()));
    for (row, token) in tokens.iter().enumerate() {
        if let Some(&column) = column.get(token) {
            out[[row, column]] = 1.0;
        }
    }
    out
}
