//! The five third-party files in one run: the method is trained on the task, the experiment and the intervention run on the
//! checkpoint, and the report shows the method. `tests/extend.rs` compiles this inside a copy of both packages.

use switchyard::experiments::{ALL, Journal, Run, Settings, latent_intervention};
use switchyard::machine::Machine;
use switchyard::method::{Recipe, settings};
use switchyard::recipe::Facts;
use switchyard::store::read_flat;
use switchyard::study::Study;
use switchyard::train::pipeline::{Options, RunEnd, run};
use switchyard::world::World;

use crate::report::folder::Folder;
use crate::report::render::report;

#[test]
fn an_extension_trains_measures_and_intervenes() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let out = temporary.path().join("run");
    let mut recipe = Recipe::resolve("smoke", &["task={ family = \"parity-bits\" }".into()]).expect("a recipe");
    recipe.methods = ["text_cot", "no_cot", "dots"].map(str::to_owned).to_vec();
    let lacks = recipe.check().expect_err("no steps").to_string();
    assert!(lacks.contains("dots.steps must be at least 1 where `methods` has dots"), "{lacks}");
    recipe.dots.steps = 12;
    recipe.no_cot.steps = 6;
    recipe.check().expect("the method and the task are known");
    let written = toml::to_string(&recipe).expect("TOML");
    assert!(written.contains("[dots]\nsteps = 12\nlatents = 2"), "{written}");
    assert_eq!(toml::from_str::<Recipe>(&written).expect("a recipe"), recipe);
    assert!(!toml::to_string(&Recipe::resolve("smoke", &[]).expect("a recipe")).expect("TOML").contains("dots"));
    recipe.grpo.reward.thrift = 0.5;
    let listed = settings(&recipe).expect("settings");
    assert!(listed.iter().any(|[key, _, value]| key == "grpo.reward.thrift" && value == "0.5"));
    let refused = Recipe::resolve("smoke", &["grpo.reward.thrift=inf".into()]).expect_err("no number");
    assert!(format!("{refused:#}").contains("grpo.reward.thrift must be a finite number"), "{refused:#}");
    let refused = Recipe::resolve("smoke", &["dots.latents=0".into()]).expect_err("no latents").to_string();
    assert!(refused.contains("dots.latents must be a whole number from 1"), "{refused}");
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
        stop: switchyard::progress::stop_asked,
    };
    let RunEnd::Finished(results) = run(recipe, options).expect("trains") else { panic!("the run was not stopped") };
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
        let text = measure(&study, &settings, &mut journal).expect("measures");
        let rows = read_flat(&temporary.path().join("block_length-dots.parquet")).expect("rows");
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["latent_steps.value"], steps, "the method's block has two steps");
        assert!(text.starts_with(&steps.to_string()), "{text}");
    }

    let config = latent_intervention::Config { modes: vec!["negate".into()], ..Default::default() };
    let summary = latent_intervention::rows(&study, &config).expect("intervenes");
    let negate = summary.rows.iter().find(|row| row.mode == "negate").expect("the mode is listed");
    assert!(negate.mean_change > 0.0, "turned vectors are elsewhere");

    // The report's package does not name the method.
    let page = temporary.path().join("index.html");
    report(&[Folder::open(&out).expect("a run")], &page).expect("a page");
    let [table, figure] = ["tables/tab-main.md", "figures/fig-pareto.svg"]
        .map(|file| std::fs::read_to_string(out.join(file)).unwrap_or_else(|why| panic!("{file}: {why}")));
    assert!(table.contains("a fixed number of latents (dots)"), "no row in tab:main: {table}");
    assert!(figure.lines().any(|line| line == "dots"), "no mark in fig:pareto: {figure}");
}
