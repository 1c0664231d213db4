//! The pairs of `micro` in a file, for `fixtures/subspace/pyvene_das.py`.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::latent::Sequence;
use crate::machine::Machine;
use crate::study::ProblemChoice;
use crate::study::staging::capture::capture;

/// Writes sequences, states and pairs of `micro` for `fixtures/subspace/pyvene_das.py`, and our columns' effect on each pair. No latent
/// follows the place, so that a plain forward pass computes the exchange.
#[test]
#[ignore = "writes the pairs that pyvene is given: SWITCHYARD_PAIRS names the file"]
fn writes_the_pairs_for_pyvene() {
    let out = std::env::var("SWITCHYARD_PAIRS").expect("SWITCHYARD_PAIRS names a file");
    let asked = ProblemChoice { problems: Some(500), ..ProblemChoice::default() };
    let study = Study::open_run(Path::new("fixtures/micro"), "sft", &asked, &Machine::default()).expect("micro");
    let place = ExchangePlace { layer: 1, step: 4 };
    let config = Config {
        layers: vec![place.layer],
        steps: vec![Nth::new(place.step)],
        ranks: vec![1, 2, 4, 8],
        pairs: 256,
        judged: 200,
        updates: 400,
        ..Config::default()
    };
    let mut targets = targets(&study).expect("targets");
    targets.retain(|t| (0..t.row.ids.len()).rfind(|&at| t.row.is_latent(at)) == t.at(place.step));
    let states = states(&study, &targets, &[Node::Resid(place.layer).point()]).expect("states");
    let masked = study.mask_in_text(study.reasoning.blocks.model_opens());
    let search = Search { study: &study, config: &config, targets: &targets, states, masked };
    let ready = search.ready().expect("rows");
    let arithmetic = of_study(&study).expect("arithmetic");
    let exchanges = Exchanges { study: &study, targets: &targets, arithmetic: &*arithmetic, variable: Variable::Value };
    let pairs = exchanges.pairs([config.pairs, config.judged], config.unseen).expect("pairs");

    let rows: Vec<Sequence> = targets.iter().enumerate().map(|(i, t)| Sequence { row: i, ..t.row.clone() }).collect();
    let of_row = |(i, row): (usize, &Sequence)| row.latent_steps().map(|(at, ..)| (i, at)).collect::<Vec<_>>();
    let latents: Vec<(usize, usize)> = rows.iter().enumerate().flat_map(of_row).collect();
    let inputs = capture(&study.model, &study.reasoning.source, &rows, &[Node::Resid(0).point()], &latents, 1)
        .expect("inputs of the first block");
    let fed = |row: usize| -> Value {
        let own = latents.iter().zip(inputs[0].rows()).filter(|((of, _), _)| *of == row);
        own.map(|((_, at), x)| (at.to_string(), json!(x.to_vec()))).collect::<serde_json::Map<_, _>>().into()
    };
    let written: Vec<Value> = (targets.iter().enumerate())
        .map(|(i, t)| json!({ "ids": t.row.ids, "fed": fed(i), "at": t.at(place.step), "gold": t.gold }))
        .collect();
    let given = |pairs: &[ExchangePair]| -> Vec<Value> {
        let (pairs, given) = search.with_donor_states(pairs, &ready[0], Node::Resid(place.layer).point());
        let one = |(pair, (_, state)): (&&ExchangePair, &GivenState)| json!({ "row": pair.target, "says": pair.says, "state": state });
        pairs.iter().zip(&given).map(one).collect()
    };
    let ours: Vec<Value> = config
        .ranks
        .iter()
        .map(|&rank| {
            let job =
                SubspaceJob { variable: Variable::Value, pairs: &pairs, place, rotation: Rotation::Trained, rank };
            let did = search.measure(&job, &ready[0]).expect("columns");
            let hits = |events: &[JudgedExchange]| events.iter().map(|e| u8::from(e.hit)).collect::<Vec<_>>();
            json!({ "rank": rank, "train": [did.fits, did.of], "seen": hits(&did.seen), "unseen": hits(&did.unseen) })
        })
        .collect();
    let all = json!({
        "layer": place.layer, "masked": search.masked, "rows": written, "ours": ours,
        "train": given(&pairs.train), "seen": given(&pairs.seen), "unseen": given(&pairs.unseen),
    });
    std::fs::write(out, all.to_string()).expect("a file");
}
