//! Checks of a user's data before any work: the choice of grader, repeated questions, training problems in the held-out set,
//! gold answers that no response can match. Uses small files and the committed checkpoints.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::programs::{text, text_of};
use serde_json::{Value, json};
use switchyard::corpus::Corpus;
use switchyard::method::Recipe;
use switchyard::store::read;
use switchyard::tasks::{Chains, Graph, Split, Task};
use switchyard::text::{Fields, Problem, Template, Vocabulary};
use tempfile::TempDir;

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).env("OMP_NUM_THREADS", "1").output().expect("the program starts")
}

fn probe(args: &[&str]) -> Output {
    run(env!("CARGO_BIN_EXE_probe"), args)
}

fn written(folder: &TempDir, name: &str, lines: &[Value]) -> PathBuf {
    let file = folder.path().join(name);
    std::fs::write(&file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("written");
    file
}

/// Problems of a task as JSONL.
fn rows(task: &Task, seed: u64, n: u64) -> Vec<Value> {
    let problems = task.rows(Split::Test, seed, 0..n).expect("problems").into_iter().map(Problem::from);
    problems.map(|problem| serde_json::to_value(problem).expect("JSON")).collect()
}

fn with(row: &Value, key: &str, value: Value) -> Value {
    let mut row = row.clone();
    row[key] = value;
    row
}

/// Task and seed of a committed run.
fn task_of(run: &str) -> (Task, u64) {
    let text = std::fs::read_to_string(format!("{run}/recipe.toml")).expect("a recipe");
    let recipe: toml::Table = text.parse().expect("TOML");
    (recipe["task"].clone().try_into().expect("a task"), recipe["seed"].as_integer().expect("a seed") as u64)
}

/// Outcomes of `probe --only outcomes` as flat rows.
fn outcomes(run: &str, more: &[&str], out: &Path) -> (Vec<Value>, String) {
    let args = ["--phase", "sft", "--threads", "1", "--only", "outcomes", "--out", text(out)];
    let output = probe(&[&[run], &args[..], more].concat());
    let told = text_of(&output);
    assert!(output.status.success(), "{told}");
    let rows: Vec<Value> = read(&out.join("outcomes-sft.parquet")).expect("rows");
    (rows, told)
}

#[test]
fn words_from_a_file_are_graded_as_the_task_grades_them() {
    let temp = TempDir::new().expect("a folder");
    let graph = "fixtures/micro-graph";
    let (task, seed) = task_of(graph);
    assert!(matches!(task, Task::Graph(Graph { .. })));
    let file = written(&temp, "graph.jsonl", &rows(&task, seed, 24));
    let (own, _) = outcomes(graph, &["--problems", "24"], &temp.path().join("own"));
    let (read, told) = outcomes(graph, &["--problems", "24", "--data", text(&file)], &temp.path().join("file"));
    assert!(told.contains("grader: choice (from the gold answers; --grader names one for all)"), "{told}");
    let right = |rows: &[Value]| rows.iter().map(|row| row["correct"].as_bool().expect("graded")).collect::<Vec<_>>();
    assert_eq!(right(&own), right(&read));
    assert!(right(&own).iter().filter(|right| **right).count() >= 20);
    assert!(read.iter().all(|row| row["grader"] == "choice" && row["rule"] == "letter"));
    assert!(own.iter().all(|row| row["grader"] == "exact" && row["rule"] == "text"));
    let manifest = std::fs::read_to_string(temp.path().join("file/manifest.json")).expect("a manifest");
    assert!(manifest.contains("\"grader\": \"choice\""), "{manifest}");
    let (exact, told) =
        outcomes(graph, &["--problems", "24", "--data", text(&file), "--grader", "exact"], &temp.path().join("exact"));
    assert!(told.contains("grader: exact (named)"), "{told}");
    assert_eq!(right(&own), right(&exact));
    let output =
        probe(&[graph, "--grader", "exact", "--phase", "sft", "--only", "outcomes", "--out", text(temp.path())]);
    assert!(text_of(&output).contains("--grader says how answers of a file are graded"), "{}", text_of(&output));
}

#[test]
fn repeated_questions_count_once() {
    let temp = TempDir::new().expect("a folder");
    let (task, seed) = task_of("fixtures/micro");
    assert!(matches!(task, Task::Chains(Chains { .. })));
    let once = rows(&task, seed + 1, 20);
    let mut four = vec![];
    for (copy, row) in (0..4).flat_map(|copy| once.iter().map(move |row| (copy, row))) {
        let question = row["question"].as_str().expect("a question");
        let asked = if copy == 1 { format!(" {} ", question.replace(' ', "  ")) } else { question.to_owned() };
        let id = format!("{}-{copy}", row["id"].as_str().expect("an id"));
        let row = with(&with(row, "question", asked.into()), "id", id.into());
        four.push(if copy == 3 && four.len() == 60 { with(&row, "answer", "99".into()) } else { row });
    }
    let (single, copies) = (written(&temp, "once.jsonl", &once), written(&temp, "four.jsonl", &four));
    let of = |file: &Path, name: &str| {
        let (rows, told) =
            outcomes("fixtures/micro", &["--problems", "80", "--data", text(file)], &temp.path().join(name));
        let kept = |row: &Value| (row["correct"].clone(), row["gold"].clone(), row["n"].clone());
        (rows.iter().map(kept).collect::<Vec<_>>(), told)
    };
    let ((rows_once, quiet), (rows_four, told)) = (of(&single, "once"), of(&copies, "four"));
    assert_eq!(rows_once, rows_four);
    assert_eq!(rows_four[0].2, json!(20));
    assert!(told.contains("60 of 80 held-out problems repeat the same question"), "{told}");
    assert!(told.contains("four.jsonl:21") && told.contains("1 of them with another answer"), "{told}");
    assert!(!quiet.contains("repeat the same question"), "{quiet}");
}

#[test]
fn training_problems_in_the_held_out_set_are_reported() {
    let temp = TempDir::new().expect("a folder");
    let (task, seed) = task_of("fixtures/micro");
    let train = task.rows(Split::Train, seed, 0..3).expect("problems").into_iter().map(Problem::from);
    let mut lines: Vec<Value> = train.map(|problem| serde_json::to_value(problem).expect("JSON")).collect();
    lines.extend(rows(&task, seed + 1, 5));
    let file = written(&temp, "mixed.jsonl", &lines);
    let (_, told) = outcomes("fixtures/micro", &["--data", text(&file)], &temp.path().join("out"));
    assert!(told.contains("3 of 8 held-out problems are training problems too"), "{told}");
}

/// Summary of a run's problems from a file or folder.
fn corpus(data: &Path, rows: usize, test_rows: usize) -> Corpus {
    let mut recipe = Recipe::like("smollm2-gsm8k").expect("a preset");
    (recipe.data.path, recipe.data.test_path) = (Some(data.to_path_buf()), None);
    (recipe.data.rows, recipe.data.test_rows, recipe.data.template) = (rows, test_rows, Template::Words);
    recipe.evaluation.problems = 10;
    let vocabulary = Vocabulary::from_words(["beads", "box", "a"]).expect("words");
    Corpus::build(&recipe, Some(vocabulary)).expect("problems")
}

#[test]
fn marks_with_a_wrong_value_are_named() {
    let temp = TempDir::new().expect("a folder");
    let row = |n: usize, mark: &str| json!({"question": format!("q {n} a box"), "answer": format!("a box <<{mark}>>{} beads\n#### 8", mark.rsplit('=').next().expect("a value"))});
    let lines: Vec<Value> = ["3+5=8", "5+4=8", "10/3=3.33", "10/3=3", "1.5*3=4.6", "2*4=8"]
        .iter()
        .enumerate()
        .map(|(n, mark)| row(n, mark))
        .collect();
    let told = corpus(&written(&temp, "marks.jsonl", &lines), 100, 1).told.join("\n");
    assert!(told.contains("warning: 2 marks <<a*b=c>> state another value"), "{told}");
    assert!(told.contains("marks.jsonl:2: 5+4 is 9, not 8"), "{told}");
}

#[test]
fn dropped_problems_are_counted_among_all_of_the_file() {
    let temp = TempDir::new().expect("a folder");
    let row = |(n, words, end): (usize, usize, &str)| json!({"question": format!("q {n}"), "solution": "a ".repeat(words) + end, "answer": "a"});
    // Too long, without a final answer, and the last one held out.
    let lines: Vec<Value> =
        [(0, 300, "#### a"), (1, 3, ""), (2, 3, ""), (3, 3, "#### a"), (4, 3, "#### a")].map(row).to_vec();
    let of = corpus(&written(&temp, "long.jsonl", &lines), 100, 1);
    assert_eq!((of.train.len(), of.dropped), (1, 1));
    let told = of.told.join("\n");
    assert!(told.contains("1 of 4 training problems are longer than data.max_tokens = 240"), "{told}");
    assert!(told.contains("2 of 3 training solutions state no final answer"), "{told}");
}

#[test]
fn a_data_set_folder_is_split_by_its_parts() {
    let of = corpus(Path::new("fixtures/problems/hub"), 100, 3);
    assert_eq!((of.train.len(), of.test.len(), of.dropped), (5, 2, 0));
    let ids = |from: &str| of.train.iter().filter(|sample| sample.id.contains(from)).count();
    assert_eq!((ids("train-00000"), ids("train-00001")), (3, 2));
    assert_eq!((of.test[1].answer.as_str(), of.told.len()), ("15", 1));
    assert!(of.told[0].starts_with("known values: 2 in 2 of 2 held-out solutions"), "{:?}", of.told);
    assert_eq!(of.answer("15", "So \\boxed{15}.").as_deref(), Some("15"));

    let temp = TempDir::new().expect("a folder");
    let row =
        |n: usize| json!({"id": n.to_string(), "question": format!("q {n}"), "solution": "a", "answer": n.to_string()});
    let mut lines: Vec<Value> = (0..10).map(row).collect();
    lines.extend([0, 1, 2, 9].map(row));
    // The last four are held out. All are also in the first ten, and one training problem occurs there twice.
    lines.insert(4, row(3));
    let of = corpus(&written(&temp, "leak.jsonl", &lines), 100, 4);
    assert_eq!((of.train.len(), of.test.len()), (11, 4));
    assert!(of.told[0].contains("1 of 11 training problems repeat"), "{:?}", of.told);
    assert!(of.told[1].contains("4 of 4 held-out problems are training problems too"), "{:?}", of.told);
}

/// A split does not separate records of one `group`, or questions that differ only in case and white space.
#[test]
fn groups_are_questions_or_the_files_groups() {
    let temp = TempDir::new().expect("a folder");
    let lines: Vec<Value> =
        [("a box", Some("x")), ("box a", Some("x")), ("beads", None), ("a", None), ("box", Some("y"))]
            .into_iter()
            .map(|(question, group)| match group {
                Some(group) => json!({"question": question, "answer": "a", "group": group}),
                None => json!({"question": question, "answer": "a"}),
            })
            .collect();
    let file = written(&temp, "grouped.jsonl", &lines);
    let mut recipe = Recipe::like("smollm2-gsm8k").expect("a preset");
    (recipe.data.path, recipe.data.test_path) = (Some(file.clone()), Some(file));
    (recipe.data.rows, recipe.data.template) = (0, Template::Words);
    recipe.evaluation.problems = 10;
    let vocabulary = || Vocabulary::from_words(["beads", "box", "a"]).expect("words");
    let groups = |recipe: &Recipe| Corpus::build(recipe, Some(vocabulary())).expect("problems").groups();
    assert_eq!(groups(&recipe), [0, 0, 2, 3, 4]);
    recipe.data.fields = Some(Fields { group: "none".into(), ..Fields::default() });
    assert_eq!(groups(&recipe), [0, 1, 2, 3, 4]);
}

/// Either all questions state a budget, or none.
#[test]
fn a_missing_budget_is_an_error_by_line() {
    let temp = TempDir::new().expect("a folder");
    let of = |questions: &[&str], rewarded: &[&str]| {
        let row = |(n, question): (usize, &&str)| json!({"id": n.to_string(), "question": question, "solution": "a # 1", "answer": "1"});
        let lines = |questions: &[&str]| questions.iter().enumerate().map(row).collect::<Vec<Value>>();
        let mut recipe = Recipe::like("smollm2-gsm8k").expect("a preset");
        recipe.data.path = Some(written(&temp, "budgets.jsonl", &lines(questions)));
        if !rewarded.is_empty() {
            recipe.data.grpo_path = Some(written(&temp, "rewarded.jsonl", &lines(rewarded)));
        }
        (recipe.data.rows, recipe.data.test_rows, recipe.data.budgets) = (100, 1, true);
        recipe.data.template = Template::Words;
        let words = Vocabulary::from_words(["budget", "12", "7", "0", ";", "a", "b", "#", "1"]).expect("words");
        Corpus::build(&recipe, Some(words))
    };
    let corpus = of(&["budget 12 ; a", "budget 7 ; b", "budget 7 ; a b"], &[]).expect("problems");
    let limits = [&corpus.train[0].prompt, &corpus.train[1].prompt, &corpus.test_prompts[0]]
        .map(|prompt| corpus.request(3, prompt).expect("a request").limit);
    assert_eq!(limits, [Some(12), Some(7), Some(7)]);
    for wrong in ["a b", "budget ; a", "budget 0 ; a", "budget a ; b", "budget 12 a", "a budget 12 ; b"] {
        for at in 0..3 {
            let mut questions = ["budget 12 ; a", "budget 7 ; b", "budget 7 ; a b"];
            questions[at] = wrong;
            let said = format!("{:#}", of(&questions, &[]).map(drop).expect_err(wrong));
            let line = format!("budgets.jsonl:{}", at + 1);
            assert!(said.contains(&line) && said.contains("`budget N ;`") && said.contains(wrong), "{said}");
        }
    }
    let rewarded = of(&["budget 12 ; a", "budget 7 ; b"], &["budget 7 ; a", "a b"]);
    let said = format!("{:#}", rewarded.map(drop).expect_err("no budget"));
    assert!(said.contains("rewarded.jsonl:2") && said.contains("`budget N ;`"), "{said}");
    let prompt = corpus.vocabulary.encode("a b").expect("ids");
    let said = format!("{:#}", corpus.request(3, &prompt).expect_err("no budget"));
    assert!(said.contains("problem 3") && said.contains("budget N ;"), "{said}");
}

#[test]
fn unreachable_golds_are_an_error_before_any_work() {
    let temp = TempDir::new().expect("a folder");
    let (task, seed) = task_of("fixtures/micro");
    let all = rows(&task, seed + 1, 6);
    let answered = |gold: &str| all.iter().map(|row| with(row, "answer", gold.into())).collect::<Vec<_>>();
    let out = temp.path().join("out");
    let of = |lines: &[Value], more: &[&str]| {
        let file = written(&temp, "own.jsonl", lines);
        let args = ["fixtures/micro", "--phase", "sft", "--threads", "1", "--only", "outcomes", "--out", text(&out)];
        let output = probe(&[&args[..], &["--data", text(&file)], more].concat());
        (output.status.code(), text_of(&output))
    };
    for (gold, more, says) in [
        ("?", &[][..], "6 of 6 gold answers cannot be read"),
        ("5", &["--grader", "choice"], "6 of 6 gold answers cannot be read (choice), the first is \"5\""),
        ("5", &["--grader", "maths"], "no grader `maths`"),
    ] {
        let (code, told) = of(&answered(gold), more);
        assert!(code == Some(2) && told.contains(says), "{gold} {more:?}: {told}");
        assert!(!out.exists(), "{gold}");
    }
    let mut one = all.clone();
    one[2] = with(&all[2], "answer", "?".into());
    let (code, told) = of(&one, &[]);
    assert!(
        code == Some(0) && told.contains("warning: held-out problems: 1 of 6 gold answers cannot be read"),
        "{told}"
    );
    let (code, told) = of(&answered("it is so"), &["--replace"]);
    assert!(code == Some(0) && told.contains("6 of 6 gold answers have a word without a token"), "{told}");
    let file = written(&temp, "own.jsonl", &answered("it is so"));
    let own = ["data.template=words", "data.test_rows=2"].map(|set| ["--set", set]).concat();
    let base = ["--preset", "smollm2-gsm8k", "--model", "fixtures/micro/base/annotator", "--threads", "1"];
    let base = [&base[..], &own].concat();
    let folder = temp.path().join("run");
    let train = [&base[..], &["--data", text(&file), "--out", text(&folder)]].concat();
    let output = run(env!("CARGO_BIN_EXE_train"), &train);
    let told = text_of(&output);
    assert!(output.status.code() == Some(2) && told.contains("4 of 4 gold answers have a word"), "{told}");
    let twice: Vec<Value> = all.iter().map(|row| with(row, "id", "x".into())).collect();
    let (code, told) = of(&twice, &[]);
    assert!(code == Some(2) && told.contains("own.jsonl:2: key \"id\": `x` is also at"), "{told}");
}

#[test]
fn a_pair_counts_once_and_a_byte_order_mark_is_ignored() {
    let temp = TempDir::new().expect("a folder");
    let pair = |a: u32| {
        let prompt = |a: u32| format!("<bos> a = {a} ; h = a + 1 ; ? h : h = {a} + 1 =");
        json!({"clean": prompt(a), "corrupt": prompt(a + 1), "answer": (a + 1).to_string(), "wrong": (a + 2).to_string()})
    };
    let lines = [pair(1), pair(2), pair(1), pair(2), pair(3), pair(1)];
    let file = temp.path().join("pairs.jsonl");
    std::fs::write(&file, format!("\u{feff}{}", lines.iter().map(|line| format!("{line}\n")).collect::<String>()))
        .expect("written");
    let out = temp.path().join("out");
    let args = ["pairs", text(&file), "fixtures/micro", "--phase", "sft", "--threads", "1", "--components", "resid"];
    let output =
        run(env!("CARGO_BIN_EXE_intervene"), &[&args[..], &["--modes", "denoise", "--out", text(&out)]].concat());
    let told = text_of(&output);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("3 pairs repeat an earlier pair (the first is") && told.contains("pairs.jsonl:3"), "{told}");
    assert!(told.contains("n=3") && !told.contains("n=6") && !told.contains("grader:"), "{told}");
}
