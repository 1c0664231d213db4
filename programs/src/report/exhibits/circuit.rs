//! The found circuits: edges that carry the value, by place and layer. Knows the rows of `edge_attribution` and `circuits`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Drawing, Exhibit};
use crate::report::figures::{Figure, Link, Network, NetworkNode};
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::Paper;
use switchyard::schema::{Circuit, CircuitRow, EdgeRow, Form, RowFile, place_name, place_number, place_order};

pub(super) const EXHIBITS: &[Exhibit] =
    &[Exhibit { covers: true, draw, ..Exhibit::new("fig:circuit", &[EdgeRow::NAME]) }];

/// Maximum number of edges drawn of one circuit.
const DRAWN: usize = 40;

const NOTE: &str = "Layers go up, places left to right (blocks counted back from the answer; `source`: where the two prompts differ; \
    `prompt`, `text` and `earlier`, latents of earlier blocks: all other positions). Within a place an edge leads \
    from a writer of the stream to a reader; its width is its score, integrated gradient × (clean − corrupt). `H`: a \
    head with its query; `k`, `v`: keys and values (numbered by key head), which later places read; `M`: an MLP; dotted: a latent’s output as the next step’s input. The whole circuit is next to the figure as JSON \
    for Neuronpedia’s graph viewer.";

/// Every circuit of a folder as a graph: its file name, and Neuronpedia's JSON.
pub(in crate::report) fn graphs(folder: &Folder) -> Vec<(String, Value)> {
    let mut out = vec![];
    for checkpoint in folder.checkpoints_with::<EdgeRow>() {
        let rows = folder.rows::<EdgeRow>(checkpoint);
        for (form, kept) in circuits(rows) {
            let whole = network(checkpoint, form, layers_of(rows), &kept);
            let slug = format!("fig-circuit-{checkpoint}-{}", form.name());
            out.push((slug.clone(), graph(&slug, &folder.name, &whole)));
        }
    }
    out
}

/// The graph for Neuronpedia's viewer. Its tokens are places, because a circuit is averaged over many pairs of prompts.
fn graph(slug: &str, model: &str, whole: &Network) -> Value {
    let top = whole.rows.len().saturating_sub(1);
    let id =
        |index: usize| format!("{}_{}_{}", whole.nodes[index].row, whole.nodes[index].name, whole.nodes[index].column);
    let node = |index: usize| {
        let NetworkNode { column, row, name } = &whole.nodes[index];
        let (layer, kind) = match *row {
            0 => ("E".to_owned(), "embedding"),
            row if row == top => ((top / 2 + 1).to_string(), if name == "out" { "logit" } else { "latent" }),
            row if row % 2 == 1 => ((row / 2).to_string(), "attention head"),
            row => ((row / 2 - 1).to_string(), "mlp"),
        };
        json!({
            "node_id": id(index), "jsNodeId": id(index), "feature": null, "layer": layer, "ctx_idx": column, "feature_type": kind,
            "clerp": format!("{}: {name}", whole.rows[*row]),
        })
    };
    let link = |from: usize, to: usize, weight: f64| json!({ "source": id(from), "target": id(to), "weight": weight });
    let links = whole.links.iter().map(|edge| link(edge.from, edge.to, edge.weight));
    // The input of a latent passes on to the next step's input.
    let entering = |at: usize| whole.links.iter().filter(|edge| edge.to == at).map(|edge| edge.weight).sum();
    let flows = whole.flows.iter().map(|&(from, to)| link(from, to, entering(from)));
    json!({
        "metadata": {
            "slug": slug, "scan": model, "prompt_tokens": whole.columns, "prompt": whole.columns.join(" "), "schema_version": 1,
            "info": {
                "generator": { "name": "switchyard", "version": env!("CARGO_PKG_VERSION") },
                "description": "Weights are integrated gradient times (clean - corrupt), as a share of the whole difference, mean over pairs \
                    of prompts. The link from a latent to the next step's input carries the sum of the latent's inputs.",
            },
        },
        "qParams": { "pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": "" },
        "nodes": (0..whole.nodes.len()).map(node).collect::<Vec<_>>(),
        "links": links.chain(flows).collect::<Vec<_>>(),
    })
}

/// The edges of each form's circuit, by rank; forms without one are skipped.
fn circuits(rows: &[EdgeRow]) -> Vec<(Form, Vec<&EdgeRow>)> {
    let of = |form| {
        let mut kept: Vec<&EdgeRow> = rows.iter().filter(|e| e.form == form && e.in_circuit).collect();
        kept.sort_by_key(|e| e.rank);
        (form, kept)
    };
    Form::ALL.into_iter().map(of).filter(|(_, kept)| !kept.is_empty()).collect()
}

fn layers_of(rows: &[EdgeRow]) -> usize {
    let layers = rows.iter().flat_map(|e| [Port::new(&e.sender), Port::new(&e.receiver)]).map(|port| port.layer);
    layers.flatten().max().map_or(0, |layer| layer + 1)
}

/// One figure per checkpoint, with a panel for each form that has a circuit.
fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let mut out = vec![];
    for checkpoint in folder.checkpoints_with::<EdgeRow>() {
        let rows = folder.rows::<EdgeRow>(checkpoint);
        let layers = layers_of(rows);
        let (mut panels, mut notes) = (vec![], vec![]);
        for (form, kept) in circuits(rows) {
            let drawn = &kept[..DRAWN.min(kept.len())];
            panels.push(Figure::Network(network(checkpoint, form, layers, drawn)));
            notes.push(caption(form, drawn, &kept, folder.rows::<CircuitRow>(checkpoint)));
        }
        let (columns, note) = (panels.len().max(1), format!("{} {NOTE}", notes.join(" ")));
        out.extend(exhibit.drawing_of(checkpoint, "The found circuit (ours)", columns, panels, &note));
    }
    out
}

/// Caption: the drawn share of the circuit, and the circuit's faithfulness.
fn caption(form: Form, drawn: &[&EdgeRow], kept: &[&EdgeRow], circuits: &[CircuitRow]) -> String {
    let sum = |edges: &[&EdgeRow]| edges.iter().map(|e| e.score.value.abs()).sum::<f64>();
    let share = 100.0 * sum(drawn) / sum(kept);
    let row = |circuit| circuits.iter().find(|c| c.form == form && c.circuit == circuit);
    let effect = |circuit| row(circuit).and_then(|c| sound(c.effect));
    let alone = effect(Circuit::Found).map_or_else(String::new, |e| {
        let random = effect(Circuit::Random).map_or_else(String::new, |e| format!("; random circuits of its size {e:.2}"));
        format!("; run alone, the circuit brings {e:.2} of the difference between clean and corrupt runs (faithfulness{random})")
    });
    let of = row(Circuit::Found).map_or_else(String::new, |c| format!(" (of {} there are)", c.of));
    format!(
        "{}: drawn are the {} strongest of the circuit’s {} edges{of}, {share:.0} % of their summed |score|{alone}.",
        capital(form.name()),
        drawn.len(),
        kept.len()
    )
}

fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// One end of an edge, as its record names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    /// Row of the drawing: input, heads and MLP of each layer, output.
    level: usize,
    /// Text of the node.
    name: String,
    layer: Option<usize>,
}

/// The last row: the readout, for any number of layers.
const OUT: usize = usize::MAX;

impl Port {
    fn new(label: &str) -> Self {
        let node = |level: usize, name: String, layer| Self { level, name, layer };
        if let Some(layer) = label.strip_prefix("MLP ").and_then(|layer| layer.parse::<usize>().ok()) {
            return node(2 * layer + 2, "M".into(), Some(layer));
        }
        if let Some((layer, head)) = label.strip_prefix('L').and_then(|rest| rest.split_once('H'))
            && let Ok(layer) = layer.parse::<usize>()
        {
            // A query belongs to its head; keys and values, which heads share, are separate nodes.
            let (head, part) = head.split_once('.').unwrap_or((head, "q"));
            let name = if part == "q" { format!("H{head}") } else { format!("{part}{head}") };
            return node(2 * layer + 1, name, Some(layer));
        }
        match label {
            "input" => node(0, "in".into(), None),
            "logits" => node(OUT, "out".into(), None),
            other => node(OUT, other.chars().take(3).collect(), None),
        }
    }
}

type Place<'a> = (&'a str, Option<usize>);

fn network(checkpoint: &str, form: Form, layers: usize, drawn: &[&EdgeRow]) -> Network {
    let mut columns: Vec<Place> = drawn.iter().map(|e| (e.place.as_str(), e.back)).collect();
    columns.sort_by_key(|(place, back)| place_order(place, *back));
    columns.dedup();
    let of_layers = (0..layers).flat_map(|layer| [format!("blocks.{layer} heads"), format!("blocks.{layer} MLP")]);
    let rows: Vec<String> = std::iter::once("input".into()).chain(of_layers).chain(["output".into()]).collect();
    let column = |e: &EdgeRow| columns.iter().position(|c| *c == (e.place.as_str(), e.back)).unwrap_or(0);
    let ports = |e: &EdgeRow| [(column(e), Port::new(&e.sender)), (column(e), Port::new(&e.receiver))];
    let there: BTreeSet<(usize, Port)> = drawn.iter().flat_map(|e| ports(e)).collect();
    let index: BTreeMap<&(usize, Port), usize> = there.iter().enumerate().map(|(i, port)| (port, i)).collect();
    let nodes = there.iter().map(|(column, port)| NetworkNode {
        column: *column,
        row: port.level.min(rows.len() - 1),
        name: port.name.clone(),
    });
    let link = |e: &&EdgeRow| {
        let [from, to] = ports(e).map(|port| index[&port]);
        let says = format!("{} → {} at {}, {:.3}", e.sender, e.receiver, place_name(&e.place, e.back), e.score.value);
        Link { from, to, weight: e.score.value, says }
    };
    let flow = |(at, place): (usize, &Place)| {
        let next = columns.iter().position(|other| follows(*place, *other))?;
        Some((*index.get(&(at, Port::new("latent")))?, *index.get(&(next, Port::new("input")))?))
    };
    Network {
        title: format!("{}: {}", capital(form.name()), called(checkpoint)),
        nodes: nodes.collect(),
        links: drawn.iter().map(link).collect(),
        flows: columns.iter().enumerate().filter_map(flow).collect(),
        columns: columns.iter().map(|(place, back)| place_name(place, *back)).collect(),
        rows,
        positive: format!("for the answer (widest line: |score| {:.2})", widest(drawn)),
        negative: "against it".into(),
        flow: "next input".into(),
    }
}

/// The largest |score| of some edges.
fn widest(edges: &[&EdgeRow]) -> f64 {
    edges.iter().map(|e| e.score.value.abs()).fold(0.0, f64::max)
}

/// Whether the second place is the latent step that reads the first one's output.
fn follows(first: Place<'_>, second: Place<'_>) -> bool {
    let step = |place: &str| match place {
        "swi" => Some(0),
        latent if latent.starts_with("latent[") => place_number(latent),
        _ => None,
    };
    let next = step(first.0).zip(step(second.0)).is_some_and(|(first, second)| second == first + 1);
    next && first.1 == second.1
}
