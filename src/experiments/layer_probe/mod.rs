//! Layer probes (tab:probe, fig:layer-probe): at which depth can one read that `<swi>` comes next, and the value of a latent step?
//!
//! Linear probes on `resid_post` of the chosen layers, at positions of the staged solutions. Two protocols: the paper's (random
//! non-boundary negatives, one split by row) and ours (negatives of the same token in the same problem, before an untagged clause; split
//! by group, control labels). Under the paper's, a probe can be near perfect by reading the token's identity: on hand-built models it
//! finds a decision at layers without it (how often: its false alarms in `reports/calibration`). The baselines show how much of a score
//! needs no training: token identity, the embedding, the same network with random weights (it mixes in earlier positions, and scores well
//! above chance on our negatives too: compare each score with it), and the model's own margin of `<swi>` at its last layer, which a probe
//! there should not beat by much.

mod frontier;
mod positions;
mod summary;
mod switch;
mod values;

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use ndarray::Array2;
use serde::{Deserialize, Serialize};

use super::{About, Journal, check_of};
use crate::latent::Sequence;
use crate::model::{Decoder, HookPoint, PointKind};
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::Count;
use crate::schema::{Features, ProbeRow, Protocol, RowFile as _};
use crate::stats::Estimate;
use crate::stats::probe::{GroupedProtocol, PaperProtocol, TooFew, ValueProtocol, paper_layers};
use crate::study::circuits::patch::Node;
use crate::study::staging::capture::capture;
use crate::study::{DoesNotApply, Study};

pub const ABOUT: About = About::asking("at which layer the switch, and values in latents, can be read (tab:probe)")
    .of_grpo_start()
    .of_switching();

settings! {
    pub struct Config {
        /// `"auto"`: all up to twelve, else the paper's; `"all"`, `"paper"`, or a list of numbers from 1 (the output of `blocks.0`).
        pub layers: Layers = Layers::Named(LayerSet::Auto),
        /// Source of the grouped protocol's negatives.
        pub matched: NegativeScope = NegativeScope::Problem,
        /// Rows of both protocols together; above it, the last problems are left out.
        pub max_positions: usize = 10_000,
        /// Memory of features; more layers run in several passes.
        pub memory_mb: usize = 256 => Count(1, MOST_ROWS),
        /// Whether to run the network with random weights too.
        pub untrained: bool = true,
        /// Whether to probe for intermediate values, if the problems have them: `s_j` and `s_j-1` at each layer, `s1`, `s2`, … at the
        /// last one alone.
        pub values: bool = true,
        /// The paper's protocol.
        pub paper: PaperProtocol = PaperProtocol::default(); PaperProtocol::SETTINGS,
        /// Our protocol.
        pub grouped: GroupedProtocol = GroupedProtocol::default(); GroupedProtocol::SETTINGS,
        /// Probes for values.
        pub value: ValueProtocol = ValueProtocol::default(); ValueProtocol::SETTINGS,
    }
}

impl Config {
    /// With the seeds of its protocols moved by the study's.
    fn seeded(&self, seed: u64) -> Self {
        let mut seeded = self.clone();
        let seeds = [&mut seeded.paper.seed, &mut seeded.grouped.seed, &mut seeded.value.seed];
        seeds.into_iter().for_each(|own| *own = own.wrapping_add(seed));
        seeded
    }
}

/// Positions among which a boundary finds its negative of the same token type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NegativeScope {
    /// The same problem: knowledge of the token or of the problem then predicts nothing.
    Problem,
    /// Any problem: more samples. The kind of problem (its uncertainty, its number of steps) then predicts something too, and if boundaries
    /// follow many rare types, token identity scores below chance: a type that is all positive in the training problems must be all
    /// negative in the others.
    Corpus,
}

/// Probed layers: `"auto"`, `"all"`, `"paper"`, or a list of numbers from 1 (after the first block).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Layers {
    Named(LayerSet),
    Listed(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerSet {
    /// All layers up to twelve; the paper's in a deeper model.
    Auto,
    All,
    /// Layers at the same relative depths as the paper's offsets, without duplicates.
    Paper,
}

impl Layers {
    /// Numbers of layers, ascending: layer l is the output of `blocks.{l-1}`.
    pub fn resolve(&self, depth: usize) -> Result<Vec<usize>> {
        let layers: BTreeSet<usize> = match self {
            Layers::Named(LayerSet::Auto) if depth > 12 => return Layers::Named(LayerSet::Paper).resolve(depth),
            Layers::Named(LayerSet::Auto | LayerSet::All) => (1..=depth).collect(),
            Layers::Named(LayerSet::Paper) => paper_layers(depth).into_iter().map(|(_, layer)| layer).collect(),
            Layers::Listed(layers) => layers.iter().copied().collect(),
        };
        ensure!(!layers.is_empty(), "layer_probe.layers names no layer");
        if let Some(wrong) = layers.iter().find(|l| !(1..=depth).contains(*l)) {
            bail!("layer_probe.layers: layer {wrong} does not exist, the model has 1..={depth}");
        }
        Ok(layers.into_iter().collect())
    }
}

pub fn run(study: &Study, config: &Config, journal: &mut Journal) -> Result<String> {
    let (rows, without) = probe(study, config)?;
    journal.save(ProbeRow::NAME, &rows)?;
    let without = without.map_or_else(String::new, |why| format!("No probe of the switch: {why}\n\n"));
    Ok(without + &summary::tables(&rows, config))
}

/// The rows; if only values can be probed, also the reason why the switch cannot.
pub fn probe(study: &Study, config: &Config) -> Result<(Vec<ProbeRow>, Option<String>)> {
    check_of("layer_probe", config, Config::RANGES)?;
    let layers = config.layers.resolve(study.model.config().num_hidden_layers)?;
    let seeded = config.seeded(study.seed);
    let (mut rows, mut without) = (vec![], None);
    // Blocks after every prompt are not chosen: there is no switch to probe for.
    if !study.reasoning.blocks.follow_prompt() {
        match switch::probe(study, &seeded, &layers).context("probing for the switch") {
            // There are too few positions of some class.
            Err(why) if config.values && (why.is::<DoesNotApply>() || why.is::<TooFew>()) => without = Some(why),
            probed => rows = probed?,
        }
    }
    if config.values {
        let values = values::probe(study, &seeded, &layers).context("probing for values")?;
        match without {
            Some(why) if values.is_empty() => return Err(why),
            _ => rows.extend(values),
        }
    }
    Ok((rows, without.map(|why| format!("{why:#}"))))
}

/// Probes for values at the last layer alone.
pub(super) fn values_at_last_layer(study: &Study) -> Result<Vec<ProbeRow>> {
    let last = study.model.config().num_hidden_layers;
    values::probe(study, &Config::default().seeded(study.seed), &[last]).context("probing for values")
}

/// A row of a probe of the stream after a layer, with its accuracy compared with chance.
fn row(study: &Study, layer: usize, target: &str, balanced_accuracy: Estimate) -> ProbeRow {
    ProbeRow {
        identity: study.identity(study.corpus.test.len()),
        target: target.to_owned(),
        protocol: Protocol::Grouped,
        negatives: None,
        layer,
        from_last: study.model.config().num_hidden_layers + 1 - layer,
        features: Features::ResidPost,
        rows: 0,
        positives: 0,
        accuracy: None,
        balanced_accuracy,
        auroc: None,
        selectivity: None,
        chance: 0.5,
        chosen_c: None,
        bits: None,
    }
}

/// Calls `of_layer` with the stream at `places` of the sequences, layer by layer: memory limits how many are captured at once.
fn by_layer(
    (study, model, config): (&Study, &Decoder, &Config),
    (sequences, places): (&[Sequence], &[(usize, usize)]),
    layers: &[usize],
    mut of_layer: impl FnMut(usize, &Array2<f32>) -> Result<Vec<ProbeRow>>,
) -> Result<Vec<ProbeRow>> {
    let bytes = 4 * places.len() * model.config().hidden_size;
    let fit = (config.memory_mb * (1 << 20) / bytes.max(1)).max(1);
    let mut rows = vec![];
    for layers in layers.chunks(fit) {
        let embedding = HookPoint::new(PointKind::Embed);
        let point = |&layer: &usize| if layer == 0 { embedding } else { Node::Resid(layer).point() };
        let points: Vec<HookPoint> = layers.iter().map(point).collect();
        let captured = capture(model, &study.reasoning.source, sequences, &points, places, study.threads)?;
        for (&layer, states) in layers.iter().zip(&captured) {
            rows.extend(of_layer(layer, states)?);
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_layers_are_those_of_the_same_depth() {
        assert_eq!(Layers::Named(LayerSet::Paper).resolve(6).expect("layers"), [2, 3, 4, 5, 6]);
        let auto = Layers::Named(LayerSet::Auto);
        assert_eq!(auto.resolve(36).expect("layers"), [13, 17, 21, 25, 29, 33, 36]);
        assert_eq!(auto.resolve(4).expect("layers"), [1, 2, 3, 4]);
        assert!(Layers::Listed(vec![0]).resolve(4).is_err());
        assert!(Layers::Listed(vec![5]).resolve(4).is_err());
    }

    #[test]
    fn layers_are_a_name_or_a_list() {
        let of = |text: &str| toml::from_str::<Config>(text).map(|c| c.layers);
        assert_eq!(of("layers = \"all\"").expect("a name"), Layers::Named(LayerSet::All));
        assert_eq!(of("layers = [1, 4]").expect("a list"), Layers::Listed(vec![1, 4]));
        assert!(of("layers = \"most\"").is_err() && of("layer = 1").is_err());
    }
}
