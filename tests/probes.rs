//! The observational experiments: known phenomena of the micro checkpoints, nulls, insufficient data, intervals of all numbers, and a
//! model that was never trained on `<swi>`.

use std::path::Path;

use crate::common::known::micro;
use crate::common::{real_data, smollm2};
use switchyard::experiments::layer_probe::{self, Layers, NegativeScope};
use switchyard::experiments::{exit_probability, phases, switch_window, teacher_forced};
use switchyard::machine::Machine;
use switchyard::method::Recipe;
use switchyard::schema::{Event, Features, Negatives, ProbeRow, Protocol};
use switchyard::stats::probe::{GroupedProtocol, ValueProtocol};
use switchyard::store::read_flat;
use switchyard::study::{ProblemChoice, Study};

/// A cheap protocol: one C.
fn quick() -> layer_probe::Config {
    layer_probe::Config {
        grouped: GroupedProtocol { c_grid: vec![0.1], draws: 200, ..GroupedProtocol::default() },
        value: ValueProtocol { c_grid: vec![0.1], draws: 200, ..ValueProtocol::default() },
        ..layer_probe::Config::default()
    }
}

fn probes(study: &Study, config: &layer_probe::Config) -> Vec<ProbeRow> {
    layer_probe::probe(study, config).expect("probes").0
}

fn error<T>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.err().expect("an error"))
}

#[test]
fn swi_is_a_spike_between_look_alikes() {
    let study = micro("sft", 200);
    let forced = teacher_forced::rows(&study, &teacher_forced::Config {}).expect("rows");
    let p = |event| forced.iter().find(|r| r.event == event).expect("a class").p_swi;
    // The contrast grows as controls get less similar: untagged clause starts, the same token, random positions, neighbours.
    assert!(p(Event::SwiStart).low > p(Event::ClauseStart).high, "{forced:?}");
    assert!(p(Event::ClauseStart).low > p(Event::SameToken).high);
    assert!(p(Event::SameToken).low > p(Event::Random).high);
    assert!(p(Event::SwiStart).low > 50.0 * p(Event::Other).high, "{forced:?}");
    assert!(p(Event::NearBoundary).high < 1e-3);
    let starts = |event| forced.iter().find(|r| r.event == event).expect("a class").positions;
    assert_eq!(starts(Event::Random), starts(Event::SwiStart));

    let window = switch_window::rows(&study, &switch_window::Config::default()).expect("rows");
    assert_eq!(window.iter().map(|r| r.offset).collect::<Vec<_>>(), (-8..=8).collect::<Vec<_>>());
    let at = |offset| window.iter().find(|r| r.offset == offset).expect("an offset");
    assert_eq!(at(0).p_swi, p(Event::SwiStart), "offset 0 is the boundary");
    assert!(window.iter().all(|r| r.offset == 0 || r.p_swi.high < 0.2 * at(0).p_swi.low), "{window:?}");
    assert!(at(1).in_block == at(1).positions && at(-1).in_block == 0);
    let narrow = switch_window::Config { radius: 0 };
    assert!(error(switch_window::rows(&study, &narrow)).contains("radius"));
}

#[test]
fn blocks_exit_at_the_trained_step() {
    let rows = exit_probability::rows(&micro("sft", 200)).expect("rows");
    assert_eq!(rows.len(), 15, "all, correct, wrong; five steps");
    for row in &rows {
        let last = row.step.shown() == 5;
        assert!(if last { row.p_exit.low > 0.99 } else { row.p_exit.high < 0.01 }, "{row:?}");
        // Shares of 0 or 1: the interval still has a width.
        assert!(row.exits.value == f64::from(u8::from(last)) && row.exits.low < row.exits.high, "{row:?}");
    }
}

#[test]
fn a_switch_is_as_separable_at_the_first_layer_as_at_the_last() {
    // Half the boundaries have no look-alike in their problem: fewer problems leave too few rows.
    let rows = probes(&micro("sft", 500), &layer_probe::Config { values: false, ..quick() });
    let of = |protocol, features, layer| {
        let found = rows.iter().find(|r| (r.protocol, r.features, r.layer) == (protocol, features, layer));
        found.unwrap_or_else(|| panic!("{protocol:?} {features:?} {layer}"))
    };
    let score = |protocol, features, layer| of(protocol, features, layer).balanced_accuracy;
    // Token identity alone passes the paper's protocol and has no information among look-alikes.
    for features in [Features::Token, Features::Embedding] {
        assert!(score(Protocol::Paper, features, 0).low > 0.8);
        assert_eq!(score(Protocol::Grouped, features, 0).value, 0.5);
    }
    // A network with random weights mixes in earlier tokens, which alone identify some of them.
    let untrained = score(Protocol::Grouped, Features::Untrained, 1);
    assert!(untrained.low > 0.5 && untrained.high < 0.85, "{untrained}");
    let (first, last) =
        (score(Protocol::Grouped, Features::ResidPost, 1), score(Protocol::Grouped, Features::ResidPost, 4));
    for (layer, score) in [(1, first), (4, last)] {
        let shuffled = of(Protocol::Grouped, Features::Shuffled, layer).balanced_accuracy;
        // Negatives come from the same problem, so labels permuted within it carry nothing.
        assert!(shuffled.covers(0.5) && score.low > shuffled.value, "layer {layer}: {score} against {shuffled}");
    }
    // Only the last layer exceeds a network with random weights; the first is within its interval.
    assert!(last.value > untrained.high, "{last} against {untrained}");
    assert!(first.high > last.value, "{first} at the first layer, {last} at the last: a rise with depth");
    // The last layer has at least the information of the model's decision.
    let margin = score(Protocol::Grouped, Features::Margin, 4);
    assert!(margin.low > 0.5 && margin.value < last.high, "{margin} against {last}");
    for row in &rows {
        assert_eq!(row.layer + row.from_last, 5);
        // Each half of the rows is one class.
        let negatives = if row.protocol == Protocol::Paper { Negatives::Random } else { Negatives::ClauseStart };
        assert_eq!((row.negatives, row.rows), (Some(negatives), 2 * row.positives));
    }
}

#[test]
fn latent_steps_carry_operand_and_result() {
    let study = micro("sft", 200);
    let layers = Layers::Listed(vec![4]);
    let rows = probes(&study, &layer_probe::Config { untrained: false, layers: layers.clone(), ..quick() });
    let accuracy = |target: &str| {
        let found = rows.iter().find(|r| r.target == target && r.features == Features::ResidPost);
        found.and_then(|r| r.accuracy).unwrap_or_else(|| panic!("{target}"))
    };
    // First the operand, last the result: five latents replace `5 + 5 = 3`.
    assert!(accuracy("value:s_j-1@1").low > 0.7 && accuracy("value:s_j@5").low > 0.7);
    assert!(accuracy("value:s_j@1").high < 0.4);
    assert!(rows.iter().any(|r| r.target == "value:s1@5"));

    // The whole corpus has more rows, and token identity still has no information.
    let corpus = layer_probe::Config { matched: NegativeScope::Corpus, layers, ..quick() };
    let wide = probes(&study, &layer_probe::Config { untrained: false, values: false, ..corpus });
    let of = |rows: &[ProbeRow], features| {
        let found = rows.iter().find(|r| r.protocol == Protocol::Grouped && r.features == features);
        found.map(|r| (r.rows, r.balanced_accuracy.value)).expect("a probe")
    };
    assert_eq!(of(&wide, Features::Token).1, 0.5);
    assert!(of(&wide, Features::Token).0 > of(&rows, Features::Token).0);
}

#[test]
fn shuffled_values_are_at_chance() {
    let (mut inside, mut all) = (0, 0);
    for seed in 0..3 {
        let mut study = micro("sft", 200);
        study.seed = seed;
        let rows =
            probes(&study, &layer_probe::Config { layers: Layers::Listed(vec![2, 4]), untrained: false, ..quick() });
        for row in rows.iter().filter(|r| r.features == Features::Shuffled && r.target.starts_with("value:s_j")) {
            inside += usize::from(row.balanced_accuracy.covers(1.0 / 7.0));
            all += 1;
        }
    }
    // 60 nulls at the 5 % level, correlated within a seed.
    assert!(all == 60 && inside >= 54, "{inside} of {all} intervals hold chance");
}

#[test]
fn a_phase_does_not_differ_from_itself_and_differs_from_the_next() {
    let (latent, grpo) = (micro("sft", 120), micro("grpo", 120));
    let same = phases::rows(&latent, &micro("sft", 120)).expect("rows");
    for row in &same {
        let all = [row.d_p_swi, row.d_entropy, row.d_margin, row.d_rank];
        assert!(all.iter().all(|d| (d.value, d.low, d.high) == (0.0, 0.0, 0.0)), "{row:?}");
    }
    let rows = phases::rows(&latent, &grpo).expect("rows");
    let start = rows.iter().find(|r| r.event == Event::SwiStart).expect("boundaries");
    assert!(start.d_p_swi.high < 0.0 && start.d_entropy.low > 0.0, "reinforcement softened the boundary: {start:?}");
    assert_eq!((start.identity.checkpoint.as_str(), start.against.as_str()), ("micro/grpo", "micro/sft"));
    let said = error(phases::rows(&latent, &micro("grpo", 60)));
    assert!(said.contains("have different sequences"), "{said}");
}

#[test]
fn data_without_a_boundary_is_an_error() {
    let mut study = micro("sft", 20);
    study.recipe.annotate.spans.min_length = 500;
    study.recipe.evaluation.max_new_tokens = 1;
    for said in [
        error(teacher_forced::rows(&study, &teacher_forced::Config {})),
        error(switch_window::rows(&study, &switch_window::Config::default())),
        error(layer_probe::probe(&study, &quick())),
        error(phases::rows(&study, &study)),
    ] {
        assert!(said.contains("micro/sft: no boundary in this data"), "{said}");
    }
    let said = error(exit_probability::rows(&study));
    assert!(said.contains("never switched"), "{said}");
    let few = micro("sft", 6);
    let said = error(layer_probe::probe(&few, &quick()));
    assert!(said.contains("groups"), "{said}");
    let absent = layer_probe::Config { layers: Layers::Listed(vec![9]), ..quick() };
    assert!(error(layer_probe::probe(&few, &absent)).contains("layer 9 does not exist"));
}

#[test]
fn every_committed_number_has_an_interval_and_an_n() {
    /// Not measured: the baselines of a score.
    const CONSTANTS: [&str; 1] = ["chance"];
    for name in
        ["teacher_forced-sft", "switch_window-sft", "exit_probability-sft", "layer_probe-sft", "phases-grpo_start-grpo"]
    {
        let file = Path::new("reports/micro").join(name).with_extension("parquet");
        let rows = read_flat(&file).expect("rows");
        assert!(!rows.is_empty(), "{}: no rows", file.display());
        for row in rows {
            for (column, value) in row.iter().filter(|(_, v)| v.is_f64()) {
                let place = format!("{}: {column}", file.display());
                if CONSTANTS.contains(&column.as_str()) {
                    continue;
                }
                let (number, part) = column.rsplit_once('.').unwrap_or_else(|| panic!("{place} has no interval"));
                assert!(["value", "low", "high"].contains(&part), "{place} is no part of an estimate");
                let of = |part: &str| row[&format!("{number}.{part}")].as_f64().unwrap_or_else(|| panic!("{place}"));
                assert!(of("low") <= of("value") && of("value") <= of("high") && of("n") >= 1.0, "{place}: {value}");
            }
        }
    }
}

#[test]
fn a_model_without_training_on_swi_has_rows_or_errors() {
    let (Some(gguf), Some(data)) = (smollm2(), real_data("SmolLM2")) else { return };
    let mut like = Recipe::like("smollm2-gsm8k").expect("the preset");
    like.evaluation.max_new_tokens = 24;
    let gguf = gguf.to_string_lossy();
    let asked =
        ProblemChoice { data: Some(data.join("gsm8k/test.jsonl")), problems: Some(24), ..ProblemChoice::default() };
    let study = Study::open_model(&gguf, None, &like, &asked, &Machine::default()).expect("the model");
    let forced = teacher_forced::rows(&study, &teacher_forced::Config {}).expect("rows");
    let p = |event| forced.iter().find(|r| r.event == event).expect("a class").p_swi;
    // Its `<swi>` row is a copy of the line break's, and as probable; it is nowhere salient.
    assert!(p(Event::SwiStart).low < p(Event::SameToken).high, "{forced:?}");
    assert!(p(Event::SwiStart).high < 0.3 && p(Event::Random).high < 0.1, "{forced:?}");
    assert_eq!(switch_window::rows(&study, &switch_window::Config::default()).expect("rows").len(), 17);
    let layers = Layers::Listed(vec![15, 30]);
    let rows = probes(&study, &layer_probe::Config { layers, untrained: false, ..quick() });
    // Both protocols: token, margin, embedding and two layers; control labels under ours. No known values.
    assert_eq!(rows.len(), 2 * 5 + 2);
    let token = rows.iter().find(|r| r.protocol == Protocol::Grouped && r.features == Features::Token);
    // Boundaries have many token types; matched within problems none of them predicts anything.
    assert!((token.expect("a probe").balanced_accuracy.value - 0.5).abs() < 1e-9, "{token:?}");
    match exit_probability::rows(&study) {
        Ok(rows) => assert!(rows.iter().all(|r| r.exits.value < 0.5), "the exit is untrained: {rows:?}"),
        Err(said) => assert!(said.to_string().contains("never switched"), "{said:#}"),
    }
}
