//! Edges and circuits: runs with patched edges, gradients against patches of single edges, and the circuit of a hand-built model.

use std::collections::{BTreeMap, BTreeSet};

use ndarray::Array2;

use crate::common::circuit_models::{DECOY, one_step_circuit, pair_file};
use crate::common::known::{Purpose, micro, of};
use switchyard::calibration::known::Built;
use switchyard::experiments::edge_attribution::{self, Config};
use switchyard::latent::Switching;
use switchyard::model::Decoder;
use switchyard::model::checkpoint::{HostTensor, expected_parameters};
use switchyard::model::config::{Family, ModelConfig};
use switchyard::schema::{Circuit, EdgeRow, Form};
use switchyard::study::Study;
use switchyard::study::circuits::alive::{Edge, alive};
use switchyard::study::circuits::edges::EdgeWeights;
use switchyard::study::circuits::gradient::TargetRow;
use switchyard::study::circuits::pairs::{Pair, as_text, decoded, task_prompts};
use switchyard::study::circuits::patch::{Node, Patch, leads as patched};
use switchyard::study::circuits::pulls::pulls;
use switchyard::study::circuits::rewire::{RewiredRun, leads, outputs};

fn some_pairs(study: &Study) -> Vec<Pair> {
    let mut pairs = decoded(study, &task_prompts(study, 40).expect("pairs"), Switching::Free, 3).expect("usable pairs");
    pairs.extend(as_text(study, 40, 2).expect("pairs of text"));
    assert!(pairs.len() == 5);
    pairs
}

/// A pair with every position as a separate place.
struct Wired<'p> {
    pair: &'p Pair,
    places: Vec<usize>,
    clean: Vec<Array2<f32>>,
    corrupt: Vec<Array2<f32>>,
}

impl<'p> Wired<'p> {
    fn of(study: &Study, weights: &EdgeWeights, pair: &'p Pair) -> Self {
        let rows = [pair.clean.clone(), pair.corrupt.clone()];
        let mut both = outputs(study, weights, &rows).expect("outputs");
        let (corrupt, clean) = (both.pop().expect("a run"), both.pop().expect("a run"));
        Self { pair, places: (0..pair.clean.ids.len()).collect(), clean, corrupt }
    }

    fn shares(&self, weights: &EdgeWeights, all: f32) -> Vec<Array2<f32>> {
        let graph = weights.graph;
        vec![Array2::from_elem((graph.receivers().len(), graph.senders().len()), all); self.places.len()]
    }

    /// The clean run with shares of the corrupt one on its edges.
    fn circuit<'r>(&'r self, shares: &'r [Array2<f32>]) -> RewiredRun<'r> {
        let Pair { clean, says, .. } = self.pair;
        RewiredRun { row: clean, other: &self.corrupt, places: &self.places, shares, says: *says }
    }

    /// The corrupt run with shares of the clean one.
    fn edge_patch<'r>(&'r self, shares: &'r [Array2<f32>]) -> RewiredRun<'r> {
        let Pair { corrupt, says, .. } = self.pair;
        RewiredRun { row: corrupt, other: &self.clean, places: &self.places, shares, says: *says }
    }
}

/// All edges with a run's own values give that run; all edges from the other run give the other run.
#[test]
fn all_edges_give_the_run_and_none_the_other() {
    let study = micro("sft", 4);
    let weights = EdgeWeights::new(&study.model).expect("weights");
    for pair in &some_pairs(&study) {
        let found = ends(&study, &weights, pair);
        assert!(found[0] > 0.0 && found[1] < 0.0);
    }
}

/// Leads with none and with all edges from the other run, which equal those of the two runs.
fn ends(study: &Study, weights: &EdgeWeights, pair: &Pair) -> Vec<f64> {
    let wired = Wired::of(study, weights, pair);
    let (own, other) = (wired.shares(weights, 0.0), wired.shares(weights, 1.0));
    let found = leads(study, weights, &[wired.circuit(&own), wired.circuit(&other)]).expect("leads");
    let as_it_is = [Patch { node: Node::Mlp(0), values: vec![] }];
    for (found, row) in found.iter().zip([&pair.clean, &pair.corrupt]) {
        let true_lead = patched(study, row, &as_it_is, pair.says).expect("a lead")[0];
        assert!((found - true_lead).abs() < 1e-3, "{found}, the run itself {true_lead}");
    }
    found
}

/// The same weights in another family: as Qwen2 with biases of queries, keys and values, as Gemma with larger embeddings, other
/// norms and another activation, both without QK-norm.
fn as_family(family: Family, model: &Decoder) -> Decoder {
    let config = ModelConfig { family, qk_norm: false, ..model.config().clone() };
    let shapes: BTreeMap<String, Vec<usize>> = expected_parameters(&config).into_iter().collect();
    let held: BTreeMap<String, HostTensor> = model.export().expect("weights").into_iter().collect();
    let bias = |shape: &Vec<usize>| (0..shape[0]).map(|i| (i * 37 % 11) as f32 / 4.0 - 1.0).collect();
    Decoder::from_weights(&config, &model.device(), |name| match held.get(name) {
        Some(tensor) => Ok(tensor.clone()),
        None => HostTensor::new(shapes[name].clone(), bias(&shapes[name])),
    })
    .expect("a model")
}

/// Biases of queries, keys and values belong to no sender and are always added. Norm gains and the embedding's scale depend on the
/// family.
#[test]
fn edges_are_rewired_in_every_family() {
    let mut study = micro("sft", 4);
    let pairs = some_pairs(&study);
    let model = study.model.clone();
    for family in [Family::Qwen2, Family::Gemma] {
        study.model = as_family(family, &model);
        let weights = EdgeWeights::new(&study.model).expect("weights");
        pairs.iter().for_each(|pair| drop(ends(&study, &weights, pair)));
    }
}

/// Gradient at an edge's receiver × difference of the sender = slope of the lead under a real patch of the edge, for every kind of
/// edge: into queries, keys, values, MLPs, latent inputs and the logits.
#[test]
fn scores_are_slopes_of_real_edge_patches() {
    const STEP: f32 = 0.02;
    let study = micro("sft", 4);
    let weights = EdgeWeights::new(&study.model).expect("weights");
    let graph = weights.graph;
    let (mut compared, mut kinds) = (0, BTreeSet::new());
    for pair in &some_pairs(&study)[1..4] {
        let wired = Wired::of(&study, &weights, pair);
        let aimed = TargetRow { row: &pair.corrupt, says: pair.says, toward: None };
        let pulls = pulls(&study.model, &study.reasoning.source, &weights, &[aimed]).expect("gradients").remove(0);
        let mut scores: Vec<(Edge, f64)> = vec![];
        for (position, pull) in pulls.iter().enumerate() {
            let product = pull.dot(&(&wired.clean[position] - &wired.corrupt[position]).t());
            for (receiver, reads) in graph.receivers().into_iter().map(|r| graph.reads(r)).enumerate() {
                scores.extend((0..reads).map(|s| ((position, receiver, s), f64::from(product[[receiver, s]]))));
            }
        }
        // The largest edges of every kind of receiver.
        scores.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
        let kind = |edge: &Edge| {
            let label = graph.receivers()[edge.1].label();
            label.rsplit('.').next().unwrap_or_default().split(' ').next().unwrap_or_default().to_owned()
        };
        let mut seen: Vec<String> = vec![];
        let few = scores.iter().filter(|(edge, _)| {
            seen.push(kind(edge));
            seen.iter().filter(|k| **k == kind(edge)).count() <= 5
        });
        let few: Vec<(Edge, f64)> = few.copied().collect();
        let shares: Vec<Vec<Array2<f32>>> = few
            .iter()
            .flat_map(|&((position, receiver, sender), _)| {
                [STEP, -STEP].map(|step| {
                    let mut shares = wired.shares(&weights, 0.0);
                    shares[position][[receiver, sender]] = step;
                    shares
                })
            })
            .collect();
        let runs: Vec<RewiredRun> = shares.iter().map(|shares| wired.edge_patch(shares)).collect();
        let found = leads(&study, &weights, &runs).expect("leads");
        for ((edge, score), two) in few.iter().zip(found.chunks_exact(2)) {
            let slope = (two[0] - two[1]) / f64::from(2.0 * STEP);
            let (from, to) = (graph.senders()[edge.2].label(), graph.receivers()[edge.1].label());
            let off = (slope - score).abs();
            assert!(off < 0.005 + 0.03 * score.abs(), "{from} → {to} at {}: slope {slope}, score {score}", edge.0);
            kinds.insert(kind(edge));
            compared += 1;
        }
    }
    assert!(compared > 60, "{compared}");
    let expected = ["MLP", "k", "latent", "logits", "q", "v"].map(str::to_owned);
    assert_eq!(kinds, BTreeSet::from(expected), "{compared} edges");
}

/// Edges that are on no path from a difference to the read-out change nothing.
#[test]
fn a_circuit_computes_the_same_without_its_dead_edges() {
    let study = micro("sft", 4);
    let weights = EdgeWeights::new(&study.model).expect("weights");
    let graph = weights.graph;
    let (mut dropped, mut moved) = (0, 0);
    for (number, pair) in some_pairs(&study).iter().enumerate() {
        let wired = Wired::of(&study, &weights, pair);
        // All but one of 29 edges, different ones for each pair: with fewer edges almost no signal passes.
        let mut circuit: BTreeSet<Edge> = BTreeSet::new();
        for position in 0..wired.places.len() {
            for (receiver, reads) in graph.receivers().into_iter().map(|r| graph.reads(r)).enumerate() {
                let kept = |s: &usize| !(position * 7 + receiver * 5 + s * 3 + number).is_multiple_of(29);
                circuit.extend((0..reads).filter(kept).map(|sender| (position, receiver, sender)));
            }
        }
        let living = alive(graph, &[(pair, &wired.places)], &circuit);
        assert!(living.is_subset(&circuit));
        let shares = |circuit: &BTreeSet<Edge>| {
            let mut shares = wired.shares(&weights, 1.0);
            circuit.iter().for_each(|&(position, receiver, sender)| shares[position][[receiver, sender]] = 0.0);
            shares
        };
        let (all, some, none) = (shares(&circuit), shares(&living), wired.shares(&weights, 1.0));
        let runs = [wired.circuit(&all), wired.circuit(&some), wired.circuit(&none)];
        let found = leads(&study, &weights, &runs).expect("leads");
        assert!((found[0] - found[1]).abs() < 1e-4, "{} with dead edges, {} without", found[0], found[1]);
        dropped += circuit.len() - living.len();
        moved += usize::from((found[0] - found[2]).abs() > 0.01);
    }
    assert!(dropped > 100 && moved > 2, "{dropped} dropped, {moved} moved");
}

#[test]
fn the_circuit_contains_reader_and_writer_and_not_the_decoy() {
    let (edges, circuits) = one_step_circuit();
    let found: Vec<&EdgeRow> = edges.iter().filter(|e| e.in_circuit).collect();
    let said: Vec<String> = found.iter().map(|e| format!("{} → {} at {}", e.sender, e.receiver, e.place)).collect();
    let has = |from: &str, to: &str, place: &str| {
        found.iter().any(|e| (e.sender.as_str(), e.place.as_str()) == (from, place) && e.receiver.starts_with(to))
    };
    assert!(has("input", "L0H0.v", "source"), "the writer takes the digit: {said:?}");
    assert!(has("L0H0", "", "swi"), "and writes it at <swi>: {said:?}");
    assert!(found.iter().any(|e| e.receiver == "latent" && e.place == "swi"), "the latent takes it: {said:?}");
    assert!(found.iter().any(|e| e.receiver == "L2H0.v" && e.place == "latent[1]"), "the reader takes it: {said:?}");
    assert!(has("L2H0", "logits", "readout"), "and brings it to the answer: {said:?}");
    let decoy = |e: &EdgeRow| e.sender == "L3H0" || e.receiver.starts_with("L3H0.");
    assert!(!found.iter().any(|e| decoy(e)), "{said:?}");
    assert!(edges.iter().filter(|e| decoy(e)).all(|e| e.score.value.abs() < 0.02));

    let row = |circuit: Circuit| circuits.iter().find(|c| c.circuit == circuit).expect("a row");
    let effect = |circuit| row(circuit).effect;
    assert!((effect(Circuit::All).value - 1.0).abs() < 1e-3, "{}", effect(Circuit::All));
    // The requested share on held-out pairs; six of them, so the interval is wide.
    let alone = effect(Circuit::Found);
    assert!(alone.value > 0.8 && alone.low > 0.3, "{alone}");
    assert!(effect(Circuit::Rest).value.abs() < 0.3, "{}", effect(Circuit::Rest));
    let random = row(Circuit::Random);
    assert!(random.extreme.expect("the largest") < 0.3, "{random:?}");
    let needed = |from: &str, to: &str| {
        found.iter().find(|e| (e.sender.as_str(), e.receiver.as_str()) == (from, to)).and_then(|e| e.needed)
    };
    assert!(needed("L2H0", "logits").is_none_or(|lost| lost.low > 0.5), "{:?}", needed("L2H0", "logits"));
    assert!(row(Circuit::LessOne).needed.expect("a share").value > 0.3, "{:?}", row(Circuit::LessOne));
    println!("{} edges of {}: {}", found.len(), random.of, said.join(", "));
}

/// Models with inert latents in which an edge at a latent step is reported as necessary. The reader's edge, which carries the digit
/// from the prompt, must be found in all.
fn alarms(seeds: std::ops::Range<u64>) -> usize {
    let mut alarms = 0;
    for seed in seeds {
        let (file, _folder) = pair_file(seed);
        let study = of(&Built { decoy: Some(DECOY), ..Built::new(Purpose::Inert) }, 10, seed);
        let forms = vec![Form::Latents];
        let config = Config { pairs_file: Some(file), forms, pairs: 12, random: 1, ..Config::default() };
        let (edges, _) = edge_attribution::rows(&study, &config).expect("rows");
        let found = || edges.iter().filter(|e| e.in_circuit);
        let reads = ("input", "L2H0.v", "source");
        assert!(found().any(|e| (&*e.sender, &*e.receiver, &*e.place) == reads), "seed {seed}: read from the prompt");
        let needed = |e: &EdgeRow| e.needed.is_some_and(|lost| lost.low > 0.0);
        alarms += usize::from(found().any(|e| e.place.starts_with("latent") && needed(e)));
    }
    alarms
}

#[test]
fn the_circuit_of_inert_latents_avoids_them() {
    assert_eq!(alarms(0..6), 0);
}

#[test]
#[ignore = "200 models, a minute"]
fn circuits_of_inert_latents_raise_few_alarms() {
    let found = alarms(100..300);
    println!("{found} alarms in 200 seeds");
    assert!(found * 20 <= 200, "{found} alarms in 200");
}

#[test]
fn empty_settings_are_errors() {
    let study = micro("sft", 4);
    for (config, says) in [
        (Config { share: 1.0, ..Config::default() }, "share"),
        (Config { random: 0, ..Config::default() }, "random"),
        (Config { forms: vec![], ..Config::default() }, "forms"),
    ] {
        let error = edge_attribution::rows(&study, &config).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn halves_of_one_pair_are_refused_before_the_search() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("pairs.jsonl");
    let program = |start: usize| format!("c = {start} ; b = c + 6 ; h = b + 5 ; d = h * 4 ; ? d :");
    let other = |start: usize| format!("e = {start} ; d = e + 6 ; h = d + 3 ; g = h * 2 ; ? g :");
    let line = |clean: String, corrupt: String| format!("{{\"clean\": \"{clean}\", \"corrupt\": \"{corrupt}\"}}\n");
    let three: String = [5, 2, 3].map(|start| line(program(4), program(start))).concat();
    let study = micro("sft", 4);
    for (pairs, says) in [
        (three.clone() + &line(other(2), other(5)), "share a program"),
        (three, "fewer than four of 3 pairs are usable"),
    ] {
        std::fs::write(&file, pairs).expect("a pair file");
        let config = Config { pairs_file: Some(file.clone()), forms: vec![Form::Latents], ..Config::default() };
        let error = edge_attribution::rows(&study, &config).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
}
