//! Probes for "the next token is `<swi>`", under both protocols, with their baselines.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use ndarray::{Array2, Axis};

use super::positions::{Positions, Set, choose};
use super::{Config, by_layer, row};
use crate::machine::Compute;
use crate::model::Decoder;
use crate::schema::{Features, Negatives, ProbeRow, Protocol};
use crate::stats::Estimate;
use crate::stats::probe::{GroupedProtocol, ProbeData};
use crate::study::{DoesNotApply, Study};

/// Columns of the token-identity baseline: one for each of the most frequent types.
const TOKEN_COLUMNS: usize = 256;

struct SwitchProbes<'a> {
    study: &'a Study,
    config: &'a Config,
    at: Positions,
}

pub fn probe(study: &Study, config: &Config, layers: &[usize]) -> Result<Vec<ProbeRow>> {
    let staged = study.staged()?;
    let mut at = choose(staged, study.seed, config.max_positions, config.matched);
    let groups = study.corpus.groups();
    for set in [&mut at.paper, &mut at.grouped] {
        set.groups.iter_mut().for_each(|group| *group = groups[*group]);
    }
    ensure!(
        !at.grouped.rows.is_empty(),
        DoesNotApply::because(
            "no boundary has a look-alike: an untagged clause (without named clauses, any position) after the same token in \
             its problem; layer_probe.matched = \"corpus\" looks in the other problems too"
        )
    );
    let model = &study.model;
    let run = SwitchProbes { study, config, at };
    let mut rows = run.run_both(0, Features::Token, |set| one_hot(&set.tokens))?;
    rows.extend(run.margin()?);
    rows.extend(run.layers(model, &[0], Features::Embedding)?);
    rows.extend(run.layers(model, layers, Features::ResidPost)?);
    if config.untrained {
        let random = Compute::new(model).apply(Decoder::random(model.config(), study.seed, &study.device)?);
        rows.extend(run.layers(&random, layers, Features::Untrained)?);
    }
    Ok(rows)
}

impl SwitchProbes<'_> {
    fn layers(&self, model: &Decoder, layers: &[usize], features: Features) -> Result<Vec<ProbeRow>> {
        let at = (self.study.staged()?.sequences.as_slice(), self.at.all.as_slice());
        by_layer((self.study, model, self.config), at, layers, |layer, values| {
            self.run_both(layer, features, |set| values.select(Axis(0), &set.rows))
        })
    }

    fn margin(&self) -> Result<Vec<ProbeRow>> {
        let (staged, readings) = (self.study.staged()?, self.study.readings()?);
        let margin = |row: usize| {
            let (problem, position) = self.at.all[row];
            staged.reading(readings, problem, position).margin as f32
        };
        let column = |set: &Set| Array2::from_shape_fn((set.rows.len(), 1), |(i, _)| margin(set.rows[i]));
        self.run_both(self.study.model.config().num_hidden_layers, Features::Margin, column)
    }

    /// Both protocols on the same features, each at its own positions.
    fn run_both(&self, layer: usize, features: Features, of: impl Fn(&Set) -> Array2<f32>) -> Result<Vec<ProbeRow>> {
        let what = || format!("{features:?} at layer {layer}");
        let mut rows = vec![self.paper(layer, features, &of(&self.at.paper)).with_context(what)?];
        rows.extend(self.grouped(layer, features, &of(&self.at.grouped)).with_context(what)?);
        Ok(rows)
    }

    fn paper(&self, layer: usize, features: Features, values: &Array2<f32>) -> Result<ProbeRow> {
        let set = &self.at.paper;
        let accuracy = self.config.paper.run(&ProbeData::new(values.view(), &set.labels, &set.groups)?)?.accuracy;
        Ok(ProbeRow { accuracy: Some(accuracy), ..self.row(layer, features, Protocol::Paper, accuracy) })
    }

    fn grouped(&self, layer: usize, features: Features, values: &Array2<f32>) -> Result<Vec<ProbeRow>> {
        let set = &self.at.grouped;
        // Control labels only for features that claims use; they double the time.
        let control = self.config.grouped.control && features == Features::ResidPost;
        let protocol = GroupedProtocol { control, prevalence: Some(self.at.prevalence), ..self.config.grouped.clone() };
        let score = protocol.run(&ProbeData::new(values.view(), &set.labels, &set.groups)?)?;
        let own = ProbeRow {
            accuracy: Some(score.accuracy_at_prevalence),
            auroc: Some(score.auroc),
            selectivity: score.control.map(|c| c.selectivity),
            chosen_c: ProbeRow::listed(&score.c),
            ..self.row(layer, features, Protocol::Grouped, score.balanced_accuracy)
        };
        let control =
            score.control.map(|c| self.row(layer, Features::Shuffled, Protocol::Grouped, c.balanced_accuracy));
        Ok([own].into_iter().chain(control).collect())
    }

    /// A row with only its balanced accuracy.
    fn row(&self, layer: usize, features: Features, protocol: Protocol, balanced_accuracy: Estimate) -> ProbeRow {
        let set = if protocol == Protocol::Paper { &self.at.paper } else { &self.at.grouped };
        ProbeRow {
            protocol,
            negatives: Some(if protocol == Protocol::Paper { Negatives::Random } else { self.at.negatives }),
            features,
            rows: set.rows.len(),
            positives: set.labels.iter().filter(|&&l| l).count(),
            ..row(self.study, layer, ProbeRow::SWITCH, balanced_accuracy)
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
