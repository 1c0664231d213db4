//! Settings that only runs at the paper's scale use: problem order, questions only for rewards, held-out files with other keys, both
//! evaluators, several data sets in one folder, and the memory check before any work.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use switchyard::corpus::Corpus;
use switchyard::method::Recipe;
use switchyard::schema::{AccuracyRow, OutcomeRow, RowFile};
use switchyard::store::read;
use switchyard::text::{Fields, Template, Vocabulary};

use super::common::programs::{done, program, refused, text};

fn written(folder: &Path, name: &str, rows: impl IntoIterator<Item = Value>) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, rows.into_iter().map(|row| format!("{row}\n")).collect::<String>()).expect("written");
    file
}

/// `n` solved sums.
fn sums(n: usize) -> impl Iterator<Item = Value> {
    (0..n).map(|i| {
        let (a, b, sum) = (i % 7, i / 7, (i % 7 + i / 7) % 7);
        let question = format!("a = {a} ; h = a + {b} ; ? h :");
        json!({ "id": i.to_string(), "question": question, "answer": sum.to_string(), "solution": format!("h = {sum} ; # {sum}") })
    })
}

fn recipe(data: &Path, test: &Path) -> Recipe {
    let mut recipe = Recipe::like("smollm2-gsm8k").expect("a preset");
    (recipe.data.path, recipe.data.test_path) = (Some(data.into()), Some(test.into()));
    (recipe.data.rows, recipe.data.template) = (10, Template::Words);
    recipe.evaluation.problems = 5;
    recipe
}

fn build(recipe: &Recipe) -> Corpus {
    let words = Vocabulary::from_words("a h = + ; ? : # 0 1 2 3 4 5 6".split(' ')).expect("words");
    Corpus::build(recipe, Some(words)).expect("problems")
}

#[test]
fn a_shuffle_depends_on_the_seed_and_keeps_the_held_out_set() {
    let home = tempfile::tempdir().expect("a folder");
    let (train, test) =
        (written(home.path(), "train.jsonl", sums(40)), written(home.path(), "test.jsonl", sums(47).skip(42)));
    let of = |shuffle: bool, seed: u64| {
        let mut recipe = recipe(&train, &test);
        (recipe.data.shuffle, recipe.seed) = (shuffle, seed);
        let corpus = build(&recipe);
        assert_eq!((corpus.train.len(), corpus.test.len()), (10, 5));
        assert_eq!(
            corpus.test.iter().map(|problem| &problem.id[..]).collect::<Vec<_>>(),
            ["42", "43", "44", "45", "46"]
        );
        corpus.train.iter().map(|sample| sample.id.parse::<usize>().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(of(false, 3), (0..10).collect::<Vec<_>>());
    let (one, again, other) = (of(true, 3), of(true, 3), of(true, 4));
    assert_eq!(one, again);
    assert!(one != other && one.iter().any(|id| *id >= 10), "{one:?} {other:?}");
    let mut distinct = one.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 10, "{one:?}");
}

#[test]
fn questions_for_rewards_come_from_a_separate_file() {
    let home = tempfile::tempdir().expect("a folder");
    let (train, test) =
        (written(home.path(), "train.jsonl", sums(40)), written(home.path(), "test.jsonl", sums(45).skip(40)));
    let mut recipe = recipe(&train, &test);
    assert!(build(&recipe).rewarded.is_empty());
    // Without solutions, as in verl's files.
    let bare = sums(12).map(|row| json!({ "question": row["question"], "answer": row["answer"] }));
    recipe.data.grpo_path = Some(written(home.path(), "grpo.jsonl", bare));
    let corpus = build(&recipe);
    assert_eq!((corpus.train.len(), corpus.rewarded.len()), (10, 12));
    let (prompt, answer) = &corpus.rewarded[8];
    assert_eq!((answer.as_str(), prompt), ("2", &corpus.train[8].prompt));
    recipe.data.grpo_path = Some("fixtures/problems/verl.parquet".into());
    assert_eq!(build(&recipe).rewarded.iter().map(|(_, answer)| answer.as_str()).collect::<Vec<_>>(), ["2", "4", "6"]);
    // The seed also fixes the order.
    recipe.data.grpo_path = Some(train.clone());
    let order = |shuffle: bool| {
        let mut recipe = recipe.clone();
        recipe.data.shuffle = shuffle;
        build(&recipe).rewarded
    };
    let (mut plain, mut drawn) = (order(false), order(true));
    assert_ne!(plain, drawn);
    plain.sort();
    drawn.sort();
    assert_eq!(plain, drawn);
}

#[test]
fn a_held_out_file_may_have_other_keys() {
    let home = tempfile::tempdir().expect("a folder");
    let train = written(home.path(), "train.jsonl", sums(40));
    let other = |row: Value| json!({ "frage": row["question"], "antwort": row["answer"] });
    let test = written(home.path(), "test.jsonl", sums(45).skip(40).map(other));
    let mut named = recipe(&train, &test);
    named.data.test_fields = Some(Fields { question: "frage".into(), answer: "antwort".into(), ..Fields::default() });
    let corpus = build(&named);
    assert_eq!((corpus.train.len(), corpus.test.len(), corpus.test[0].answer.as_str()), (10, 5, "3"));
    let test_path = format!("data.test_path={}", test.display());
    let out = home.path().join("run");
    let plan = |field: &[&str]| {
        let mut command = program("train");
        command.args("--preset smollm2-gsm8k --model fixtures/micro/sft/checkpoint --dry-run --threads 1".split(' '));
        command.args(["--set", "data.template=words", "--set", "evaluation.max_new_tokens=40", "--set", &test_path]);
        command.arg("--data").arg(&train).args(field).arg("--out").arg(&out);
        command
    };
    let (_, said) = done(&mut plan(&["--test-field", "question=frage,answer=antwort"]));
    assert!(said.contains("graph of a supervised batch") && said.contains("dry run"), "{said}");
    refused(&mut plan(&[]), &["test.jsonl", "frage"]);
}

#[test]
fn both_evaluators_grade_the_same_problems_and_other_data_have_columns() {
    let home = tempfile::tempdir().expect("a folder");
    let out = home.path().join("rows");
    let look = |more: &[&str]| {
        let mut command = program("probe");
        command.args(["fixtures/micro", "--phase", "sft", "--only", "accuracy,outcomes", "--threads", "1"]);
        done(command.args(more).arg("--out").arg(&out));
    };
    for evaluator in ["recurrence", "generate"] {
        look(&["--problems", "20", "--evaluator", evaluator]);
    }
    let outcomes =
        |name: &str| read::<OutcomeRow>(&out.join(format!("{}-{name}.parquet", OutcomeRow::NAME))).expect("rows");
    let latents = |name: &str| outcomes(name).iter().map(|row| row.latent_calls).sum::<usize>();
    assert!(latents("sft") > 0 && latents("sft-generate") == 0);
    let before = outcomes("sft");
    let own = written(home.path(), "own.jsonl", sums(12));
    look(&["--data", text(&own), "--beside"]);
    assert_eq!((outcomes("sft").len(), outcomes("sft-on-own").len()), (before.len(), 12));
    assert_eq!(outcomes("sft"), before);
    let accuracy = read::<AccuracyRow>(&out.join("accuracy-sft-on-own.parquet")).expect("rows");
    assert!(!accuracy.is_empty() && accuracy.iter().all(|row| row.identity.dataset == "own"));
    done(program("report").arg(&out).args(["--page"]).arg(home.path().join("page.html")));
    let table = std::fs::read_to_string(out.join("tables/tab-versus.md")).expect("a table");
    assert!(table.contains("| sft | sft-generate | all |") && table.contains("exact McNemar"), "{table}");
    assert!(!table.contains("sft-on-own |"), "problems of another file are not the same: {table}");
}

#[test]
fn a_training_batch_that_does_not_fit_is_refused_before_any_work() {
    let home = tempfile::tempdir().expect("a folder");
    let out = home.path().join("run");
    let plan = |gigabytes: &str, settings: &[&str]| {
        let mut command = program("train");
        command.args(["--preset", "smoke", "--threads", "1", "--only", "base", "--out", text(&out)]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting])).env("SWITCHYARD_MEMORY_GB", gigabytes);
        command
    };
    let many = ["base.batch=4000", "data.rows=4000"];
    refused(&mut plan("0.1", &many), &["phase base: 4000 rows", "are free", "SWITCHYARD_MEMORY_GB"]);
    refused(&mut plan("16GB", &[]), &["SWITCHYARD_MEMORY_GB=16GB", "a number above 0"]);
    assert!(!out.join("base").exists());
    let (_, said) = done(plan("0.1", &[&many[..], &["optimizer.accumulate=100"]].concat()).arg("--dry-run"));
    assert!(said.contains("graph of a supervised batch up to"), "{said}");
    done(plan("0.1", &[]).arg("--dry-run"));
    // Rollouts that are too long are dropped with a warning.
    let (_, said) = done(plan("0.1", &["grpo.questions=3000"]).args(["--only", "grpo", "--dry-run"]));
    assert!(said.contains("phase grpo: the graph of 12000 rollouts") && said.contains("are free"), "{said}");
}
