//! Problems with a limit on the visible tokens of their answer: which decoders obey it, and what the rows record.

use burn::tensor::Device;
use switchyard::corpus::Corpus;
use switchyard::evaluation::evaluate;
use switchyard::experiments::adaptive;
use switchyard::latent::{End, Reasoning, Switching, Trace};
use switchyard::method::Recipe;
use switchyard::model::Decoder;
use switchyard::model::config::{Family, ModelConfig};
use switchyard::recipe::Compute;
use switchyard::schema::{AccuracyRow, AdaptiveRow, Identity, Optimum, OutcomeRow, SwitchProblemRow, by_budget};
use switchyard::store::read;
use switchyard::tasks::{Split, TaskProblem};
use switchyard::text::said_budget;
use switchyard::train::rollouts::{Behaviour, rollout_settings, sample};

use crate::common::known::micro;
use crate::common::programs::{done, program};
use crate::common::tiny_config;

/// `smoke` on chains of one and two steps with these budgets; responses are limited to 48 tokens.
const TASK: &str =
    "task={ family = 'adaptive', budgets = [6, 9, 48], chains = { modulus = 5, levels = { min = 1, max = 2 } } }";

fn recipe() -> Recipe {
    Recipe::resolve("smoke", &[TASK.to_owned()]).expect("a recipe")
}

fn budget(problem: &TaskProblem) -> usize {
    said_budget(&problem.question).expect("a budget")
}

#[test]
fn budgets_beyond_the_response_limit_give_a_warning() {
    let told = |most: usize| {
        let set = [TASK.to_owned(), format!("evaluation.max_new_tokens={most}")];
        let recipe = Recipe::resolve("smoke", &set).expect("a recipe");
        Corpus::build(&recipe, None).expect("problems").told.join("\n").contains("state a budget above")
    };
    assert_eq!([47, 48].map(told), [true, false]);
}

#[test]
fn rollouts_and_evaluation_end_where_the_question_says() {
    let recipe = recipe();
    let corpus = Corpus::build(&recipe, None).expect("problems");
    let config = ModelConfig { vocab_size: corpus.vocabulary.size(), ..tiny_config(Family::Qwen3, true) };
    let model = Decoder::random(&config, 3, &Device::flex()).expect("a model");
    let (reasoning, grpo) = (Reasoning::default(), &recipe.grpo);
    let obeys = |trace: &Trace, budget: usize| {
        // A random model ends its text only by chance.
        let (said, full) = (trace.visible_tokens(), trace.end == End::Budget);
        assert!(said <= budget && (said == budget || !full), "{said} tokens of {budget}: {:?}", trace.end);
        full
    };

    let settings = rollout_settings(grpo, &recipe.evaluation, &corpus.stops, 1);
    let behaviour =
        Behaviour { reasoning: &reasoning, switch: corpus.switch, settings: &settings, compute: Compute::F32 };
    let task = recipe.task.as_ref().expect("a task");
    let questions: Vec<(usize, &[u32], &str)> =
        (0..12).map(|i| (i, corpus.train[i].prompt.as_slice(), corpus.train_answers[i].as_str())).collect();
    let sampled = sample(&model, &corpus, &questions, grpo, behaviour, 2).expect("rollouts");
    let train = task.rows(Split::Train, recipe.seed, 0..12).expect("problems");
    let full = sampled.all.iter().filter(|(trace, _, _)| obeys(trace, budget(&train[trace.problem]))).count();
    assert!(full >= 12, "only {full} of {} rollouts were cut: the test is vacuous", sampled.all.len());

    let test = task.rows(Split::Test, recipe.seed, 0..recipe.evaluation.problems as u64).expect("problems");
    let (_, traces) =
        evaluate(&model, &corpus, &recipe.evaluation, &reasoning, Switching::Free, 2).expect("an evaluation");
    let full = traces.iter().filter(|trace| obeys(trace, budget(&test[trace.problem]))).count();
    assert!(full >= 12, "only {full} of {} responses were cut", traces.len());
}

#[test]
fn summaries_of_a_run_match_its_responses() {
    let home = tempfile::tempdir().expect("a folder");
    let (run, rows) = (home.path().join("run"), home.path().join("rows"));
    let set = ["--preset", "smoke", "--method", "switch", "--threads", "2", "--set", TASK, "--set"];
    done(program("train").args(set).arg("evaluation.problems=120").arg("--out").arg(&run));
    let only = ["--phase", "grpo", "--threads", "2", "--only", "accuracy,outcomes,adaptive", "--out"];
    done(program("probe").arg(&run).args(only).arg(&rows));
    let file = |name: &str| rows.join(format!("{name}-grpo.parquet"));
    let outcomes: Vec<OutcomeRow> = read(&file("outcomes")).expect("rows");
    let accuracy: Vec<AccuracyRow> = read(&file("accuracy")).expect("rows");
    let adaptive: Vec<AdaptiveRow> = read(&file("adaptive")).expect("rows");

    let problems = recipe().shared.task.expect("a task").rows(Split::Test, 0, 0..120).expect("problems");
    let mut cut = 0;
    for outcome in &outcomes {
        let most = budget(&problems[outcome.problem]);
        assert!(
            outcome.visible_tokens <= most && (!outcome.truncated || outcome.visible_tokens == most),
            "{outcome:?}"
        );
        cut += usize::from(outcome.truncated && most < 48);
    }
    // No text of a step ends within six tokens.
    assert!(cut >= 20, "only {cut} of 120 were cut");

    let all = adaptive.iter().find(|row| row.budget.is_none()).expect("all problems");
    let told = accuracy.iter().find(|row| row.group == "all").expect("all problems");
    assert_eq!((all.accuracy, all.switch_rate), (told.accuracy, told.switch_rate));
    for row in adaptive.iter().filter(|row| row.budget.is_some()) {
        let in_row = |o: &&OutcomeRow| {
            Some(budget(&problems[o.problem])) == row.budget && row.level.is_none_or(|level| o.level == Some(level))
        };
        let of: Vec<&OutcomeRow> = outcomes.iter().filter(in_row).collect();
        let share = |is: fn(&OutcomeRow) -> bool| of.iter().filter(|o| is(o)).count() as f64 / of.len() as f64;
        assert_eq!(row.identity.n, of.len());
        assert!((row.accuracy.value - share(|o| o.correct)).abs() < 1e-12, "{row:?}");
        assert!((row.switch_rate.value - share(|o| o.switched)).abs() < 1e-12, "{row:?}");
    }
    assert_eq!(adaptive.iter().filter(|row| row.level.is_some()).count(), 6, "three budgets by two levels");

    done(program("report").arg(&rows));
    assert!(rows.join("tables/tab-adaptive.md").is_file() && rows.join("figures/fig-adaptive.svg").is_file());
}

#[test]
fn problems_without_a_budget_are_an_error() {
    let study = micro("sft", 10);
    let error = adaptive::rows(&study, &adaptive::Config {}).expect_err("no budgets").to_string();
    assert!(error.contains("micro/sft") && error.contains("state no budget"), "{error}");
}

#[test]
fn a_budget_is_a_number_above_zero_between_its_word_and_a_semicolon() {
    assert_eq!(said_budget("budget 12 ; a = 5 ; ? a :"), Some(12));
    assert_eq!(said_budget("<user> budget 7 ; How many?"), Some(7));
    for text in ["", "a = 5", "budget", "budget 12", "budget 0 ; a", "budget -3 ; a", "budget ten ; a", "budget ; 12"] {
        assert_eq!(said_budget(text), None, "{text}");
    }
}

fn problem(problem: usize, level: u8, [chosen, with_block, without_block]: [bool; 3]) -> SwitchProblemRow {
    let identity = Identity { checkpoint: "run/grpo".into(), dataset: "adaptive".into(), n: 0, seed: 0 };
    SwitchProblemRow {
        identity,
        problem,
        level: Some(level),
        subject: None,
        chosen,
        with_block,
        without_block,
        guess: None,
        logit_diff: None,
    }
}

#[test]
fn each_cell_compares_latents_text_and_the_models_choice() {
    // 20 problems per budget. At 14 a block is always right and text never, and the model switches on three quarters; at 46 the
    // reverse; at 30 both are right.
    let mut problems = vec![];
    let mut budgets = vec![];
    for (budget, with, without) in [(14, true, false), (46, false, true), (30, true, true)] {
        for i in 0..20 {
            problems.push(problem(problems.len(), 2, [i % 4 > 0, with, without]));
            budgets.push(budget);
        }
    }
    let rows = by_budget(&problems, &budgets).expect("rows");
    let told: Vec<_> = rows.iter().map(|r| (r.budget, r.level, r.optimum, r.optimal_rate, r.decided)).collect();
    assert_eq!(
        told,
        [
            (Some(14), Some(2), Some(Optimum::Block), Some(1.0), 20),
            (Some(30), Some(2), Some(Optimum::Undecided), None, 0),
            (Some(46), Some(2), Some(Optimum::Text), Some(0.0), 20),
            (Some(14), None, None, Some(1.0), 20),
            (Some(30), None, None, None, 0),
            (Some(46), None, None, Some(0.0), 20),
            (None, None, None, Some(0.5), 40),
        ]
    );
    let values = |of: fn(&AdaptiveRow) -> Option<f64>| [&rows[0], &rows[2], &rows[6]].map(of);
    assert_eq!(values(|r| Some(r.switch_rate.value)), [Some(0.75); 3]);
    assert_eq!(values(|r| Some(r.accuracy.value)), [Some(0.75), Some(0.25), Some(2.0 / 3.0)]);
    assert_eq!(values(|r| r.as_optimal.map(|e| e.value)), [Some(0.75), Some(0.25), Some(0.5)]);
    assert_eq!(values(|r| Some(r.best_accuracy.value)), [Some(1.0); 3]);
    assert_eq!(values(|r| Some(r.benefit.value)), [Some(1.0), Some(-1.0), Some(0.0)]);
}
