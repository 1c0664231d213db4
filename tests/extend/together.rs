//! The stranger's five files at work in one run: the method is trained on the task, the experiment and the intervention are
//! run on what was trained. `tests/extend.rs` compiles this inside a copy of the crate.

use crate::experiments::{ALL, Journal, Run, Settings, latent_intervention};
use crate::machine::Machine;
use crate::recipe::{Facts, Recipe, settings};
use crate::store::read_flat;
use crate::study::Study;
use crate::train::pipeline::{Options, RunEnd, run};
use crate::world::World;

#[test]
fn a_stranger_trains_measures_and_intervenes() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let out = temporary.path().join("run");
    let mut recipe = Recipe::resolve("smoke", &["task={ family = \"parity-bits\" }".into()]).expect("a recipe");
    recipe.methods = vec!["dots".into()];
    recipe.check().expect("the method and the task are known");
    recipe.grpo.reward.thrift = 0.5;
    let listed = settings(&recipe).expect("settings");
    assert!(listed.iter().any(|[key, _, value]| key == "grpo.reward.thrift" && value == "0.5"));
    let refused = Recipe::resolve("smoke", &["grpo.reward.thrift=inf".into()]).expect_err("no number");
    assert!(format!("{refused:#}").contains("grpo.reward.thrift must be a finite number"), "{refused:#}");
    let Machine { device, threads, .. } = Machine::default();
    let options = Options {
        dry: false,
        out: out.clone(),
        resume: false,
        only: vec![],
        from: vec![],
        threads,
        command: "test".into(),
        device,
        world: World::ALONE,
        stop: crate::progress::stop_asked,
    };
    let RunEnd::Finished(results) = run(recipe, options).expect("trains") else { panic!("nobody stopped it") };
    assert!(results.iter().any(|phase| phase.phase == "dots"));

    let study = Study::open(&out, "dots", Some(20), 0).expect("a checkpoint of the method");
    let trace = &study.decoded().expect("responses").1[0];
    let [costly, free] = [&study.recipe.grpo.reward, &Recipe::resolve("smoke", &[]).expect("a recipe").grpo.reward]
        .map(|reward| reward.of(Facts::new(trace, true)).total);
    assert!((free - costly - 0.5 * 2.0).abs() < 1e-12, "two latent steps at half a point each");
    let experiment = ALL.iter().find(|e| e.name == "block_length").expect("the experiment is listed");
    let Run::One(measure) = experiment.run else { panic!("it was listed as of one checkpoint") };
    for (recipe, steps) in [("", 2.0), ("[block_length]\nmost = 1", 1.0)] {
        let settings: Settings = toml::from_str(recipe).expect("its own settings");
        let setup = (experiment.settings)(&settings);
        let mut journal = Journal::new(temporary.path().into(), "dots".into(), experiment.files(&settings), setup);
        let said = measure(&study, &settings, &mut journal).expect("measures");
        let rows = read_flat(&temporary.path().join("block_length-dots.parquet")).expect("rows");
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["latent_steps.value"], steps, "the method's block has two steps");
        assert!(said.starts_with(&steps.to_string()), "{said}");
    }

    let config = latent_intervention::Config { modes: vec!["negate".into()], ..Default::default() };
    let summary = latent_intervention::rows(&study, &config).expect("intervenes");
    let negate = summary.rows.iter().find(|row| row.mode == "negate").expect("the mode is listed");
    assert!(negate.mean_change > 0.0, "turned vectors are elsewhere");
}
