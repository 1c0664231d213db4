//! Experiments on hand-built models: they report the known mechanism, and nothing else.

use burn::module::Module;

use crate::common::known::{DECIDED_AT, Purpose, study};
use switchyard::corpus::Corpus;
use switchyard::evaluation::requests;
use switchyard::experiments::latent_intervention::{self, Config};
use switchyard::experiments::layer_probe;
use switchyard::experiments::teacher_forced;
use switchyard::interventions::Steps;
use switchyard::latent::trace::PositionRole;
use switchyard::latent::{DecodeSettings, Request, Trace};
use switchyard::recipe::{Compute, Grpo, ReplayMode};
use switchyard::schema::{Event, ExitGroup, Features, InterventionRow, Lens, ProbeRow, Protocol};
use switchyard::stats::probe::GroupedProtocol;
use switchyard::study::Study;
use switchyard::study::modes::MODES;
use switchyard::train::grpo::gradients;
use switchyard::train::rollouts::{Behaviour, Rollout, RolloutBatch, rollout_settings, sample};

#[test]
fn teacher_forcing_finds_the_switch_where_it_is() {
    let rows = teacher_forced::rows(&study(Purpose::Working, 80, 2), &teacher_forced::Config {}).expect("rows");
    let of = |event| rows.iter().find(|r| r.event == event).expect("a class");
    assert!(of(Event::SwiStart).p_swi.low > 0.999 && of(Event::SwiStart).rank.high == 1.0);
    assert!(of(Event::Other).p_swi.high < 1e-3);
}

fn intervene(which: Purpose, modes: &[&str], steps: &[Steps], seed: u64) -> Vec<InterventionRow> {
    let modes = modes.iter().map(|m| (*m).to_owned()).collect();
    let config = Config { modes, steps: steps.to_vec(), draws: 1, ..Config::default() };
    latent_intervention::rows(&study(which, 60, seed), &config).expect("rows").rows
}

#[test]
fn interventions_find_that_the_latents_carry_the_answer() {
    let rows = intervene(Purpose::Working, &MODES, &[Steps::All], 3);
    assert_eq!(rows.len(), MODES.len());
    for row in rows {
        let diagnostic = row.diagnostic_accuracy.expect("problems that switched and were right");
        match row.mode.as_str() {
            "normal" | "self_patch" => {
                assert_eq!((diagnostic.value, row.lost, row.gained), (1.0, 0, 0), "{}", row.mode)
            }
            // No state to read: `#` falls back to the digit, which is never the answer.
            "zero" | "skip" => assert_eq!((diagnostic.value, row.p_holm < 1e-6), (0.0, true), "{}", row.mode),
            // Another state is right by chance, one time in seven.
            _ => assert!(diagnostic.high < 0.4 && row.p_holm < 1e-4, "{}: {diagnostic}", row.mode),
        }
    }
    // The state is passed from step to step: each step alone determines the answer.
    let single = intervene(Purpose::Working, &["resample"], &[0, 1, 2].map(Steps::Only), 4);
    assert_eq!(single.len(), 1 + 3);
    for row in &single[1..] {
        assert!(row.diagnostic_accuracy.is_some_and(|e| e.high < 0.45), "step {}", row.steps);
    }
}

#[test]
fn interventions_find_nothing_where_latents_are_inert() {
    let on_distribution = ["normal", "zero", "skip", "self_patch", "mean", "resample"];
    let rows = intervene(Purpose::Inert, &on_distribution, &[Steps::All], 5);
    assert_eq!(rows.len(), on_distribution.len());
    for row in rows {
        assert_eq!((row.lost, row.gained, row.answer_changed.value), (0, 0, 0.0), "{}", row.mode);
        assert_eq!(row.p_holm, 1.0);
        assert!(row.mode == "normal" || row.mode == "skip" || row.firings > 0);
    }
    // The paper's random vector is not an inert control: it also writes to the coordinates that mark a digit as readable, and so
    // changes the answers of a model that never reads its latents.
    let random = intervene(Purpose::Inert, &["random_norm"], &[Steps::All], 5).remove(1);
    assert!(random.diagnostic_accuracy.is_some_and(|e| e.high < 0.9), "{random:?}");
}

/// Questions for rollouts.
fn with_golds<'a>(asked: &'a [Request], corpus: &'a Corpus) -> Vec<(usize, &'a [u32], &'a str)> {
    asked.iter().zip(&corpus.test).map(|(r, p)| (r.problem, r.prompt.as_slice(), p.answer.as_str())).collect()
}

/// Rollouts on all problems of a study under these settings.
fn rollouts(study: &Study, grpo: &Grpo, settings: &DecodeSettings) -> RolloutBatch {
    let asked = requests(&study.corpus).expect("requests");
    let questions = with_golds(&asked, &study.corpus);
    sample(&study.model, &study.corpus, &questions, grpo, behaviour(study, settings), 2).expect("rollouts")
}

fn settings(study: &Study, grpo: &Grpo) -> DecodeSettings {
    rollout_settings(grpo, &study.recipe.evaluation, &study.corpus.stops, 7)
}

fn behaviour<'a>(study: &'a Study, settings: &'a DecodeSettings) -> Behaviour<'a> {
    let (reasoning, switch) = (&study.reasoning, study.corpus.switch);
    Behaviour { reasoning, switch, settings, compute: Compute::F32 }
}

#[test]
fn a_rollout_keeps_its_dropout_mask_through_every_replay() {
    let study = study(Purpose::Working, 4, 6);
    let corpus = &study.corpus;
    let asked = requests(corpus).expect("requests");
    let questions = with_golds(&asked, corpus);
    let with = |dropout_rollouts, replay| Grpo {
        temperature: 6.0,
        k_min: 1,
        group: 8,
        dropout_rollouts,
        replay,
        ..Grpo::default()
    };
    let grpo = with(0.2, ReplayMode::Segmented);
    let settings = settings(&study, &grpo);
    let behaviour = behaviour(&study, &settings);
    let model = study.model.clone().train();
    let sampled = sample(&model, corpus, &questions, &grpo, behaviour, 2).expect("rollouts");
    assert!(sampled.rollouts.iter().any(|r| r.trace.switched()), "no rollout with a block: the test sees text only");

    // The first token follows the same prompt: there two rollouts of a group differ only in the mask.
    let group = |dropout| {
        let how = Grpo { dropout_rollouts: dropout, ..grpo.clone() };
        let all = sample(&model, corpus, &questions[..1], &how, behaviour, 1).expect("rollouts").all;
        let entropies = all.iter().map(|(t, _, _)| t.positions[0].entropy.expect("sampled").to_bits());
        entropies.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert!(group(0.0) == 1 && group(0.2) > 2, "{} and {} kinds", group(0.0), group(0.2));

    for replay in [ReplayMode::Segmented, ReplayMode::TextGraph, ReplayMode::FullBptt] {
        let drift = |dropout, threads| {
            let how = with(dropout, replay);
            gradients(&model, behaviour, &sampled.rollouts, &how, threads).expect("gradients").1.max_drift
        };
        for threads in [1, 2] {
            assert!(drift(0.2, threads) < 1e-4, "{replay:?}: the ratio of the first inner epoch is 1");
        }
        assert!(drift(0.0, 1) > 0.01, "{replay:?}: without the mask the replay is of another policy");
    }
}

#[test]
fn text_rollouts_open_no_block_and_are_replayed_by_the_same_policy() {
    let study = study(Purpose::Working, 4, 6);
    let blocks = [false, true].map(|text_rollouts| {
        let grpo = Grpo { temperature: 6.0, k_min: 1, group: 8, text_rollouts, ..Grpo::default() };
        let settings = settings(&study, &grpo);
        let (behaviour, sampled) = (behaviour(&study, &settings), rollouts(&study, &grpo, &settings));
        let drift = gradients(&study.model, behaviour, &sampled.rollouts, &grpo, 2).expect("gradients").1.max_drift;
        assert!(
            drift < 1e-4,
            "text_rollouts = {text_rollouts}: the ratio of the first inner epoch is 1, not off by {drift}"
        );
        let switched = |trace: &Trace| trace.switched();
        let all: Vec<Trace> = sampled.all.iter().map(|(trace, _, _)| trace.clone()).collect();
        let share = all.iter().filter(|trace| switched(trace)).count() as f64 / all.len() as f64;
        let rewarded = |trace: Trace| {
            let advantage = if switched(&trace) { 0.5 } else { -0.5 };
            Rollout::new(trace, advantage)
        };
        let rewarded = RolloutBatch { rollouts: all.into_iter().map(rewarded).collect(), ..sampled.clone() };
        assert_eq!(rewarded.switch_advantage(), Some(0.5 * share));
        sampled.all.iter().filter(|(trace, _, _)| trace.switched()).count()
    });
    assert!(blocks[0] > 0 && blocks[1] == 0, "{blocks:?} rollouts with a block");
}

/// The ratio of the first inner epoch is 1 at latents too, which have log-densities, and differs once the weights do.
#[test]
fn noisy_latents_are_actions_of_the_policy() {
    let study = study(Purpose::Working, 4, 6);
    let replay = ReplayMode::FullBptt;
    let grpo = Grpo { temperature: 6.0, k_min: 1, group: 8, latent_noise: 0.2, replay, ..Grpo::default() };
    let settings = settings(&study, &grpo);
    let (behaviour, sampled) = (behaviour(&study, &settings), rollouts(&study, &grpo, &settings));
    let drift = |checkpoint_every| {
        let grpo = Grpo { checkpoint_every, ..grpo.clone() };
        gradients(&study.model, behaviour, &sampled.rollouts, &grpo, 2).expect("gradients").1
    };
    let (whole, in_segments) = (drift(0), drift(1));
    assert!(whole.max_drift < 2e-3 && in_segments.max_drift < 2e-3, "{whole:?}, {in_segments:?}");
    let rounded = Behaviour { compute: Compute::Bf16, ..behaviour };
    let rounded = gradients(&study.model, rounded, &sampled.rollouts, &grpo, 2).expect("gradients").1;
    assert_eq!(rounded.tokens, whole.tokens, "in bf16 too, every rollout is replayed");
    let latents = sampled.rollouts.iter().flat_map(|r| &r.trace.positions).filter(|p| p.kind == PositionRole::Latent);
    let densities: Vec<f64> = latents.filter_map(|p| p.logprob).collect();
    assert!(densities.len() > 10 && densities.iter().all(|density| *density < 0.0), "{densities:?}");
    let drawn = sampled.rollouts.iter().flat_map(|r| &r.trace.positions).filter(|p| p.logprob.is_some());
    assert_eq!(whole.tokens, drawn.count(), "text and latents");
}

#[test]
fn a_rollout_that_is_too_long_is_dropped_and_its_group_continues() {
    let study = study(Purpose::Working, 8, 6);
    // Hot enough that responses differ in length.
    let grpo = Grpo { temperature: 6.0, k_min: 1, group: 16, max_positions: 16, ..Grpo::default() };
    let sampled = rollouts(&study, &grpo, &settings(&study, &grpo));
    assert_eq!(sampled.groups, 8);
    let dropped = sampled.dropped.too_long;
    assert!(dropped > 0 && !sampled.rollouts.is_empty(), "{dropped} dropped");
    assert_eq!(sampled.all.len() + sampled.dropped.total(), 8 * 16);
    for group in 0..8 {
        let of: Vec<f64> = sampled.rollouts.iter().filter(|r| r.trace.problem == group).map(|r| r.advantage).collect();
        assert!(of.iter().sum::<f64>().abs() < 1e-9, "advantages of group {group}: {of:?}");
    }
    let longest = sampled.rollouts.iter().map(|r| r.trace.prompt.len() + r.trace.positions.len()).max();
    assert!(longest.is_some_and(|n| n <= 16));
}

#[test]
fn the_window_is_one_position_wide_and_the_exit_one_step() {
    use switchyard::experiments::{exit_probability, switch_window};

    let study = study(Purpose::Working, 60, 8);
    let window = switch_window::rows(&study, &switch_window::Config::default()).expect("rows");
    assert!(window.iter().any(|r| r.offset < 0) && window.iter().any(|r| r.offset > 0));
    for row in window {
        let expected = if row.offset == 0 { 1.0 } else { 0.0 };
        assert!((row.p_swi.value - expected).abs() < 0.05, "offset {}: {}", row.offset, row.p_swi);
    }
    let rows = exit_probability::rows(&study).expect("rows");
    let steps: Vec<_> = rows.iter().filter(|r| r.group == ExitGroup::All).collect();
    assert_eq!(steps.len(), crate::common::known::EXIT_STEP);
    for row in steps {
        let last = row.step.shown() == crate::common::known::EXIT_STEP;
        assert_eq!(row.exits.value, f64::from(u8::from(last)), "step {}", row.step);
        assert!(if last { row.p_exit.low > 0.99 } else { row.p_exit.high < 0.02 }, "step {}: {}", row.step, row.p_exit);
    }
}

#[test]
fn two_models_that_differ_in_reading_only_do_not_differ_in_switching() {
    use switchyard::experiments::phases;

    // The same problems and decision; the inert model reads the digit, the other its latents.
    let (first, mut second) = (study(Purpose::Working, 40, 9), study(Purpose::Inert, 40, 9));
    second.corpus = study(Purpose::Working, 40, 9).corpus;
    let second = second.with_tags(first.tagged().expect("tags").to_vec());
    let mut compared = vec![];
    for row in phases::rows(&first, &second).expect("rows") {
        let differences = [row.d_p_swi, row.d_entropy, row.d_margin, row.d_rank];
        let before_the_answer = matches!(row.event, Event::SwiStart | Event::SameToken | Event::ClauseStart);
        if before_the_answer {
            assert!(differences.iter().all(|d| d.value.abs() < 1e-4), "{:?}: {differences:?}", row.event);
            compared.push(row.event);
        }
    }
    assert_eq!(compared, [Event::SwiStart, Event::ClauseStart]);
}

fn probed(which: Purpose, n: usize, seed: u64, layers: &[usize], grouped: GroupedProtocol) -> Vec<ProbeRow> {
    let config = layer_probe::Config {
        grouped,
        layers: layer_probe::Layers::Listed(layers.to_vec()),
        // One clause per problem: its look-alikes are in other problems.
        matched: layer_probe::NegativeScope::Corpus,
        untrained: false,
        ..layer_probe::Config::default()
    };
    layer_probe::probe(&study(which, n, seed), &config).expect("rows").0
}

#[test]
fn values_are_probed_without_look_alikes() {
    // One clause per problem: no boundary has a look-alike.
    let config = layer_probe::Config {
        layers: layer_probe::Layers::Listed(vec![4]),
        untrained: false,
        ..layer_probe::Config::default()
    };
    let ask = |config: &layer_probe::Config| layer_probe::probe(&study(Purpose::Working, 60, 10), config);
    let (rows, said) = ask(&config).expect("rows");
    assert!(said.is_some_and(|why| why.contains("no boundary has a look-alike")));
    assert!(!rows.is_empty() && rows.iter().all(|row| row.value().is_some()), "{rows:?}");
    // Every split reports its C.
    let chosen = |row: &ProbeRow| row.chosen_c.as_ref().map(|chosen| chosen.split(' ').count());
    assert!(rows.iter().all(|row| chosen(row) == (row.features == Features::ResidPost).then_some(5)), "{rows:?}");
    let nothing = ask(&layer_probe::Config { values: false, ..config }).expect_err("nothing to probe for");
    assert!(format!("{nothing:#}").contains("look-alike"));
}

#[test]
fn probes_find_the_layer_of_the_decision_and_the_content_of_the_latents() {
    let rows = probed(Purpose::Working, 160, 10, &[1, 2, 3, 4], GroupedProtocol::default());
    let grouped = |r: &&ProbeRow| r.protocol == Protocol::Grouped && r.features == Features::ResidPost;
    let mut layers = 0;
    for row in rows.iter().filter(grouped).filter(|r| r.target == "switch") {
        layers += 1;
        let score = row.balanced_accuracy;
        if row.layer > DECIDED_AT {
            assert!(score.value > 0.99, "layer {}: {score}", row.layer);
        } else {
            assert!(score.low <= 0.5 && score.high < 0.75, "layer {} knows of a decision not made: {score}", row.layer);
        }
    }
    assert_eq!(layers, 4);
    // The state is in the residual stream at every layer and step.
    let values: Vec<_> = rows.iter().filter(grouped).filter(|r| r.target.starts_with("value:s_j@")).collect();
    assert!(!values.is_empty());
    for row in values {
        let accuracy = row.accuracy.expect("an accuracy");
        assert!(accuracy.value > 0.95, "{} at layer {}: {accuracy}", row.target, row.layer);
    }
    // The inert model's latents contain it too. Only interventions show that nothing reads it.
    let inert = probed(Purpose::Inert, 120, 10, &[4], GroupedProtocol::default());
    let held = inert.iter().filter(grouped).find(|r| r.target == "value:s_j@3").expect("a probe").accuracy;
    assert!(held.expect("an accuracy").value > 0.95);
}

#[test]
fn empty_latents_raise_at_most_five_percent_false_alarms() {
    let (mut alarms, mut probes) = (0, 0);
    // Probes of the switch, which are not judged here, in little time.
    let quick = GroupedProtocol { c_grid: vec![1.0], draws: 100, control: false, ..GroupedProtocol::default() };
    for seed in 0..200 {
        let rows = probed(Purpose::Empty, 100, 1000 + seed, &[4], quick.clone());
        let held = |r: &&ProbeRow| r.target == "value:s_j@3" && r.features == Features::ResidPost;
        let row = rows.iter().find(held).expect("a probe");
        let accuracy = row.accuracy.expect("an accuracy");
        probes += 1;
        alarms += usize::from(accuracy.low > row.chance);
    }
    println!("{alarms} alarms in {probes} seeds");
    assert!(alarms * 20 <= probes, "{alarms} alarms in {probes}");
}

#[test]
fn lenses_find_where_and_when_the_exit_is_decided() {
    use switchyard::experiments::logit_lens;

    let config = logit_lens::Config { steps: 0, text_positions: 2, ..logit_lens::Config::default() };
    let rows = logit_lens::rows(&study(Purpose::Working, 60, 11), &config).expect("rows");
    let mut seen = 0;
    for row in rows.iter().filter(|r| r.lens == Lens::Logit) {
        let Some(step) = row.step else { continue };
        seen += 1;
        // The counter reaches 4 in the second block of the third step.
        let decided = step.shown() == crate::common::known::EXIT_STEP && row.layer >= 2;
        assert_eq!(row.p_exit.value > 0.9, decided, "step {step}, layer {}: {}", row.layer, row.p_exit);
        if row.layer == 4 {
            assert!(row.kl.value < 1e-4 && row.agreement.value == 1.0, "the last layer is the model: {}", row.kl);
        }
    }
    assert_eq!(seen, 3 * 5);
}

#[test]
fn a_swapped_part_restores_its_function() {
    use switchyard::experiments::part_swap;
    use switchyard::model::Decoder;
    use switchyard::schema::Host;

    let whole = study(Purpose::Working, 40, 11);
    let weights: std::collections::HashMap<_, _> = whole.model.export().expect("weights").into_iter().collect();
    let without = |layer: usize| {
        let mut broken = study(Purpose::Working, 40, 11);
        let of = format!("layers.{layer}.mlp.");
        broken.model = Decoder::from_weights(whole.model.config(), &whole.device, |name| {
            let mut tensor = weights[name].clone();
            if name.contains(&of) {
                tensor.data.fill(0.0);
            }
            Ok(tensor)
        })
        .expect("a decoder");
        broken
    };
    let layers = 0..whole.model.config().num_hidden_layers;
    let broken = layers.map(|layer| (layer, without(layer)));
    let accuracy = |study: &Study| study.decoded().expect("decoded").0.accuracy.value;
    let (layer, broken) = broken.into_iter().find(|(_, study)| accuracy(study) < 0.9).expect("a layer that is needed");
    let lost = 1.0 - accuracy(&broken);
    let rows = part_swap::rows(&broken, &whole).expect("rows");
    assert_eq!(rows.len(), 2 * (3 * whole.model.config().num_hidden_layers + 3));
    let carriers = [format!("blocks.{layer}.mlp"), format!("blocks.{layer}"), "all".to_owned()];
    for row in rows {
        let carries = carriers.contains(&row.part);
        let wanted = match row.host {
            _ if !carries => 0.0,
            Host::Earlier => lost,
            Host::Later => -lost,
        };
        assert!((row.accuracy_change.value - wanted).abs() < 1e-9, "{row:?}");
        assert_eq!(row.weight_change > 0.0, carries, "{row:?}");
    }
}
