//! Problem files, vocabulary and templates: tiny fixtures, and the real files if they exist.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::common::real_data;
use serde_json::json;
use switchyard::tasks::{Affine, Chains, Fact, Graph, Multiply, Split, Task};
use switchyard::text::formats::RecordFormat;
use switchyard::text::sources::{Fields, Generations};
use switchyard::text::{Problem, Prompts, Source, Template, Vocabulary, read_problems};

fn fixture(name: &str) -> PathBuf {
    Path::new("fixtures/problems").join(name)
}

/// Reading fails, and the message contains all of these texts.
#[track_caller]
fn refused(file: impl Into<PathBuf>, parts: &[&str]) -> String {
    let error = format!("{:#}", read_problems(file).unwrap_err());
    assert!(parts.iter().all(|part| error.contains(part)), "{parts:?} are not all in: {error}");
    error
}

fn written(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn every_format_is_detected_and_read() {
    let gsm = read_problems(fixture("gsm8k.jsonl")).unwrap();
    assert_eq!((gsm[0].answer.as_str(), gsm[1].answer.as_str()), ("11", "1,500"));
    assert_eq!(gsm[1].solution, "It prints 250*6 = 1500 pages.\n#### 1,500");
    assert_eq!(gsm[0].id, "gsm8k-gsm8k-0");
    let said = |problem: &Problem, step: usize| {
        let words: Vec<&str> = problem.solution.split_whitespace().collect();
        words[problem.steps[step].words.clone()].join(" ")
    };
    let known: Vec<Option<i64>> = gsm[0].steps.iter().map(|step| step.value.number()).collect();
    assert_eq!(
        (known, said(&gsm[0], 0), said(&gsm[0], 1)),
        (vec![Some(6), Some(11)], "12/2 = 6.".into(), "6+5 = 11".into())
    );
    let kept = Source { keep_calculator: true, ..Source::new(fixture("gsm8k.jsonl")) }.read().unwrap();
    assert!(kept[1].solution.contains("<<250*6=1500>>1500"));

    let equations = read_problems(fixture("gsm_equations.jsonl")).unwrap();
    assert_eq!(equations[0].solution, "<<12/2=6>>\n<<6+5=11>>\n#### 11");
    assert_eq!(equations[0].steps[1].value, Fact::Number(11));
    assert_eq!(equations[0].steps[1].words, 1..2);
    assert_eq!(equations[1].steps[0].value, Fact::Text("4.5".into()));
    assert_eq!(equations[2].solution, "#### 12");

    let math = read_problems(fixture("math.jsonl")).unwrap();
    assert_eq!(math[1].id, "fixture/intermediate_algebra/2.json");
    assert_eq!((math[1].subject.as_deref(), math[1].level), (Some("Intermediate Algebra"), Some(3)));

    let prosqa = read_problems(fixture("prosqa.json")).unwrap();
    assert_eq!(prosqa[0].answer, "Tom is a blick.");
    let set = |names: &[&str]| Fact::Set(names.iter().map(|name| name.to_string()).collect());
    let frontiers: Vec<&Fact> = prosqa[0].steps.iter().map(|step| &step.value).collect();
    assert_eq!(frontiers, [&set(&["wug"]), &set(&["dax", "fep"]), &set(&["blick"])]);
    let words: Vec<&str> = prosqa[0].solution.split_whitespace().collect();
    assert_eq!(words[prosqa[0].steps[2].words.clone()].join(" "), "Every dax is a blick.");

    let openr1 = read_problems(fixture("openr1.jsonl")).unwrap();
    assert_eq!((openr1[0].id.as_str(), openr1[1].id.as_str()), ("0000-1111", "openr1-openr1-1"));
    assert_eq!((openr1[1].answer.as_str(), openr1[1].subject.as_deref()), ("4", None));

    let name = |name: &str| name.to_string();
    let fields = Fields {
        id: name("nr"),
        question: name("ask"),
        solution: name("why"),
        answer: name("gold"),
        level: name("hard"),
        ..Fields::default()
    };
    let mut custom = Source { format: Some(RecordFormat::Jsonl), fields, ..Source::new(fixture("custom.jsonl")) };
    let rows = custom.read().unwrap();
    assert_eq!((rows[0].id.as_str(), rows[0].level, rows[1].level), ("7", Some(2), None));
    assert_eq!(rows[1].solution, "It is Lima.");
    custom.limit = Some(1);
    assert_eq!(custom.read().unwrap().len(), 1);
}

#[test]
fn gzip_is_read_whatever_its_name() {
    let folder = tempfile::tempdir().unwrap();
    for (fixture_name, copy) in [("openr1.jsonl", "a.jsonl.gz"), ("prosqa.json", "b.json")] {
        let file = folder.path().join(copy);
        let open = std::fs::File::create(&file).unwrap();
        let mut gz = flate2::write::GzEncoder::new(open, flate2::Compression::default());
        gz.write_all(&std::fs::read(fixture(fixture_name)).unwrap()).unwrap();
        gz.finish().unwrap();
        let plain = read_problems(fixture(fixture_name)).unwrap();
        let packed = read_problems(&file).unwrap();
        assert_eq!(plain.len(), packed.len());
        assert!(plain.iter().zip(&packed).all(|(a, b)| a.question == b.question && a.answer == b.answer));
    }
}

/// A file's problems as (question, answer), read under these fields.
fn golds(file: &Path, fields: Option<Fields>) -> Vec<String> {
    let format = fields.is_some().then_some(RecordFormat::Jsonl);
    let source = Source { format, fields: fields.unwrap_or_default(), ..Source::new(file) };
    source.read().unwrap().into_iter().map(|problem| problem.answer).collect()
}

fn fields(question: &str, answer: &str) -> Fields {
    Fields { question: question.into(), answer: answer.into(), ..Fields::default() }
}

#[test]
fn parquet_and_csv_read_like_jsonl() {
    let hub = fixture("hub");
    let test = hub.join("data/test-00000-of-00001.parquet");
    let read = read_problems(&test).unwrap();
    assert_eq!((read[0].answer.as_str(), read[1].answer.as_str()), ("13", "15"));
    assert_eq!(read[0].solution, "It holds 6+7 = 13 beads.\n#### 13");
    // A folder: its held-out part; several folders are ambiguous.
    assert_eq!(golds(&hub, None), ["13", "15"]);
    // Numbers as they are, and keys inside others.
    assert_eq!(golds(&test, Some(fields("question", "reward.gold"))), ["13", "15"]);
    assert_eq!(golds(&test, Some(fields("question", "share"))), ["0.000006", "0.000007"]);
    assert_eq!(golds(&test, Some(fields("question", "big"))), ["18446744073709551610", "18446744073709551609"]);
    let of = |answer: &str| {
        let source =
            Source { format: Some(RecordFormat::Jsonl), fields: fields("question", answer), ..Source::new(&test) };
        format!("{:#}", source.read().unwrap_err())
    };
    assert!(of("reward").contains("name a key inside it with --field (reward.gold, reward.style)"), "{}", of("reward"));
    assert!(of("made").contains("made (Date32)") && of("made").contains("key \"made\" is missing"), "{}", of("made"));

    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(&test).unwrap();
    for end in (8..whole.len()).step_by(97) {
        let cut = folder.path().join("cut.parquet");
        std::fs::write(&cut, &whole[..end]).unwrap();
        refused(&cut, &["cut.parquet: not a Parquet file that can be read"]);
    }
    let table = "question,answer\n\"How many, in all?\",\"1,500\"\n\"Two\nlines \"\"quoted\"\"\",1e-6\nWhat?,007\n";
    for (name, text) in [
        ("a.csv", table.to_owned()),
        ("b.csv", format!("\u{feff}{table}")),
        ("c.tsv", "question\tanswer\nHow, so?\t1,500\nAnd?\t1e-6\nWhat?\t007\n".into()),
        ("d.csv", "question;answer\nHow, so?;1,500\nAnd?;1e-6\nWhat?;007\n".into()),
    ] {
        assert_eq!(golds(&written(folder.path(), name, &text), None), ["1,500", "1e-6", "007"], "{name}");
    }
    let questions = read_problems(folder.path().join("a.csv")).unwrap();
    assert_eq!(questions[1].question, "Two\nlines \"quoted\"");
}

/// Readers differ on which of two values they use, so two are an error.
#[test]
fn duplicate_keys_and_columns_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, key) in [
        ("a.jsonl", "{\"question\": \"q\", \"answer\": \"4\", \"answer\": \"5\"}", "a.jsonl:1: key \"answer\""),
        ("b.json", "[{\"question\": \"q\", \"answer\": 4, \"x\": [{\"y\": 1, \"y\": 1.50}]}]", "b.json"),
        ("c.csv", "question,answer,answer\nq,4,5\n", "column \"answer\""),
    ] {
        refused(written(folder.path(), name, text), &[name, key, " occurs twice in "]);
    }
    written(folder.path(), "d.csv", "question,answer,answer_duplicated_x,n_duplicated_0\nq,4,5,6\n");
    assert_eq!(golds(&folder.path().join("d.csv"), None), ["4"]);
    // Columns without a name, and names that another program gave to duplicates.
    for text in ["question,answer,,\nq,4,,\n", "question,answer,n,n_duplicated_0\nq,4,5,6\n"] {
        assert_eq!(golds(&written(folder.path(), "h.csv", text), None), ["4"]);
    }
    // The index that pandas writes is not a context.
    let indexed = read_problems(written(folder.path(), "i.csv", ",question,answer\n0,q,4\n")).unwrap();
    assert_eq!(indexed[0].question, "q");
    assert_eq!(golds(&written(folder.path(), "e.csv", "question,answer\rq,4\rr,5\r"), None), ["4", "5"]);
    let of = |name: &str, text: &str| written(folder.path(), name, text);
    refused(of("f.csv", "question,answer\nq,4,5\n"), &["f.csv", "more cells than the first line"]);
    refused(of("g.csv", "question,answer\n\"q,4\n"), &["g.csv", "a quote is not closed"]);
}

#[test]
fn numbers_keep_their_digits() {
    let folder = tempfile::tempdir().unwrap();
    let numbers = [
        ("12345678901234567890123", "12345678901234567890123"),
        ("1e-06", "0.000001"),
        ("2.5e-7", "0.00000025"),
        ("1e16", "10000000000000000"),
        ("6.02E+23", "602000000000000000000000"),
        ("18446744073709551616", "18446744073709551616"),
        ("0.1000", "0.1000"),
        ("-0", "-0"),
        ("-1.50", "-1.50"),
        ("true", "true"),
        ("\"1e5\"", "1e5"),
    ];
    let line = |(at, (number, _)): (usize, &(&str, &str))| {
        format!("{{\"question\": \"q{at}\", \"id\": 1e2{at}, \"answer\": {number}}}\n")
    };
    let text: String = numbers.iter().enumerate().map(line).collect();
    let file = written(folder.path(), "numbers.jsonl", &text);
    assert_eq!(golds(&file, None), numbers.map(|(_, gold)| gold));
    let list = written(folder.path(), "numbers.json", &format!("[{}]", text.trim().replace('\n', ",\n")));
    assert_eq!(golds(&list, None), numbers.map(|(_, gold)| gold));
}

#[test]
fn a_folder_is_a_data_set() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |part: &str| refused(folder.path(), &[part]);
    refused("a folder without files of problems");
    written(folder.path(), "dataset_info.json", "{}");
    let row = |n: usize| format!("{{\"question\": \"q{n}\", \"answer\": \"{n}\"}}\n");
    written(folder.path(), "all.jsonl", &row(1));
    assert_eq!(golds(folder.path(), None), ["1"]);
    written(folder.path(), "more.jsonl", &row(2));
    refused("no file here is called test");
    written(folder.path(), "gsm_valid.jsonl", &row(3));
    assert_eq!(golds(folder.path(), None), ["3"]);
    written(folder.path(), "gsm_test.jsonl", &row(4));
    assert_eq!(golds(folder.path(), None), ["4"]);
    std::fs::create_dir(folder.path().join("other")).unwrap();
    written(&folder.path().join("other"), "test.jsonl", &row(5));
    refused("name the folder or the file to read");
    std::fs::remove_file(folder.path().join("other/test.jsonl")).unwrap();
    written(folder.path(), "gsm_test.csv", "question,answer\nq,6\n");
    refused("two formats of one part");
    for name in ["gsm_test.csv", "gsm_test.jsonl"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    written(folder.path(), "test-00001-of-00002.jsonl", &row(8));
    refused("one of 2 files, and number 00000 is missing");
    written(folder.path(), "test-00000-of-00002.jsonl", &row(7));
    assert_eq!(golds(folder.path(), None), ["7", "8"]);
    let upper = tempfile::tempdir().unwrap();
    written(upper.path(), "train.JSONL", &row(9));
    written(upper.path(), "test-00001-of-00002.JSONL", &row(10));
    self::refused(upper.path(), &["one of 2 files, and number 00000 is missing"]);
    self::refused(folder.path().join("none"), &["none: no such file or folder"]);
}

#[test]
fn several_sets_of_one_part_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let row = |n: usize| format!("{{\"question\": \"q{n}\", \"answer\": \"{n}\"}}\n");
    for (name, n) in
        [("train", 1), ("validation", 2), ("validation_long-00000-of-00002", 3), ("validation_long-00001-of-00002", 4)]
    {
        written(folder.path(), &format!("{name}.jsonl"), &row(n));
    }
    refused(folder.path(), &["2 sets of this part (validation, validation_long)"]);
    assert_eq!(golds(&folder.path().join("validation_long"), None), ["3", "4"]);
    assert_eq!(golds(&folder.path().join("validation"), None), ["2"]);
    // Consecutively numbered parts are one set, years are not.
    let numbered = tempfile::tempdir().unwrap();
    for n in 0..3 {
        written(numbered.path(), &format!("test-{n}.jsonl"), &row(n));
    }
    assert_eq!(golds(numbered.path(), None), ["0", "1", "2"]);
    let years = tempfile::tempdir().unwrap();
    for n in [2024, 2025] {
        written(years.path(), &format!("test_{n}.jsonl"), &row(n));
    }
    refused(years.path(), &["(test_2024, test_2025)"]);
    // A folder of `save_to_disk`.
    let saved = tempfile::tempdir().unwrap();
    std::fs::create_dir(saved.path().join("test")).unwrap();
    let stream = saved.path().join("test/data-00000-of-00001.arrow");
    std::fs::write(&stream, b"\xff\xff\xff\xff\x10\0\0\0").unwrap();
    for place in [saved.path(), &stream] {
        refused(place, &["Arrow", "to_parquet"]);
    }
}

#[test]
fn options_are_in_the_prompt_and_the_gold_answer_is_a_letter() {
    let folder = tempfile::tempdir().unwrap();
    let first = |text: &str, fields: Option<Fields>| {
        let file = written(folder.path(), if text.starts_with('{') { "a.jsonl" } else { "a.csv" }, text);
        let format = fields.is_some().then_some(RecordFormat::Jsonl);
        Source { format, fields: fields.unwrap_or_default(), ..Source::new(file) }.read().unwrap().remove(0)
    };
    // MMLU, MMLU-Pro, ARC, a table, a trace of R1.
    for text in [
        r#"{"question": "Which?", "choices": ["tin", "lead"], "answer": 1, "subject": "metals"}"#,
        r#"{"question": "Which?", "options": ["tin", "lead"], "answer": "B", "answer_index": 1}"#,
        r#"{"question": "Which?", "choices": {"text": ["tin", "lead"], "label": ["A", "B"]}, "answer": "B"}"#,
        "question,A,B,answer\nWhich?,tin,lead,B\n",
        r#"{"problem": "Which?", "solution": "Lead is.", "answer": "lead", "options": ["tin", "lead"]}"#,
    ] {
        let problem = first(text, None);
        assert_eq!((problem.question.as_str(), problem.answer.as_str()), ("Which?\nA. tin\nB. lead", "B"), "{text}");
    }
    // Shuffled options: GPQA, SciQ.
    let gpqa = r#"{"Question": "Which?", "Correct Answer": "lead", "Incorrect Answer 1": "tin", "Incorrect Answer 2": "zinc"}"#;
    let sciq = r#"{"question": "Which?", "distractor1": "tin", "distractor2": "zinc", "correct_answer": "lead"}"#;
    for problem in [first(gpqa, None), first(sciq, Some(fields("question", "correct_answer")))] {
        let right = format!("{}. lead", problem.answer);
        assert!([&right, "tin", "zinc"].iter().all(|part| problem.question.contains(part)), "{problem:?}");
    }
    // Columns of other benchmarks: numbers of options count from where the benchmark counts.
    let truthful = Fields { choices: "mc1.choices".into(), ..Fields::default() };
    for (text, named, answer) in [
        (
            r#"{"sentence": "Which?", "option1": "tin", "option2": "lead", "answer": "2"}"#,
            fields("sentence", "answer"),
            "B",
        ),
        (r#"{"goal": "Which?", "sol1": "tin", "sol2": "lead", "label": 1}"#, fields("goal", "label"), "B"),
        (r#"{"ctx": "Which?", "endings": ["tin", "lead"], "label": "1"}"#, fields("ctx", "label"), "B"),
        (
            r#"{"startphrase": "Which?", "ending0": "tin", "ending1": "lead", "label": 1}"#,
            fields("startphrase", "label"),
            "B",
        ),
        (r#"{"question": "Which?", "opa": "tin", "opb": "lead", "cop": 1}"#, fields("question", "cop"), "B"),
        ("question,choices,answer\nWhich?,\"[\"\"tin\"\", \"\"lead\"\"]\",1\n", fields("question", "answer"), "B"),
        (r#"{"question": "Which?", "mc1": {"choices": ["tin", "lead"]}, "answer": 0}"#, truthful, "A"),
        (r#"{"question": "Which?", "choices": "", "answer": "4"}"#, fields("question", "answer"), "4"),
    ] {
        let (problem, none) = (first(text, Some(named)), answer == "4");
        let question = if none { "Which?" } else { "Which?\nA. tin\nB. lead" };
        assert_eq!((problem.question.as_str(), problem.answer.as_str()), (question, answer), "{text}");
    }
    let odd = written(folder.path(), "odd.jsonl", r#"{"question": "q", "choices": "tin, lead", "answer": "tin"}"#);
    refused(&odd, &["odd.jsonl:1: key \"choices\"", "--field choices=none"]);
    assert_eq!(golds(&odd, Some(Fields { choices: "none".into(), ..Fields::default() })), ["tin"]);
}

/// A named passage precedes the question, and a key that a user names must be in some record.
#[test]
fn parts_of_a_question_are_named_or_detected() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(
        folder.path(),
        "a.jsonl",
        r#"{"passage": "Tom has 3.\n", "question": "How many?", "answer": "3", "kind": "x"}"#,
    );
    let read = |fields: Fields| Source { format: Some(RecordFormat::Jsonl), fields, ..Source::new(&file) }.read();
    let named = Fields { context: "passage".into(), subject: "kind".into(), ..Fields::default() };
    let problem = read(named).unwrap().remove(0);
    assert_eq!((problem.question.as_str(), problem.subject.as_deref()), ("Tom has 3.\n\nHow many?", Some("x")));
    for wrong in
        [Fields { subject: "art".into(), ..Fields::default() }, Fields { choices: "opts".into(), ..Fields::default() }]
    {
        let error = format!("{:#}", read(wrong.clone()).unwrap_err());
        let key = if wrong.subject == "art" { "subject=art" } else { "choices=opts" };
        assert!(error.contains("no record has the key") && error.contains(key), "{error}");
    }
    let without = Fields { subject: "none".into(), level: "none".into(), id: "nowhere".into(), ..Fields::default() };
    assert_eq!(read(without).unwrap()[0].question, "How many?");
    let look = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_probe"));
        command.args(["fixtures/micro", "--phase", "sft", "--only", "accuracy", "--threads", "1", "--data"]).arg(&file);
        let output = command.args(more).arg("--out").arg(folder.path().join(more.len().to_string())).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(look(&[]).contains("a.jsonl: the prompts do not have `passage` of the records"), "{}", look(&[]));
    assert!(!look(&["--field", "context=none"]).contains("do not have `passage`"));
}

#[test]
fn folders_name_parts_and_categories_are_text() {
    let row = |n: usize| format!("{{\"question\": \"q{n}\", \"answer\": \"{n}\"}}\n");
    let home = tempfile::tempdir().unwrap();
    for (name, n) in [("train/0", 1), ("test/0", 2), ("test/1", 3)] {
        std::fs::create_dir_all(home.path().join(name).parent().unwrap()).unwrap();
        written(home.path(), &format!("{name}.jsonl"), &row(n));
    }
    assert_eq!(golds(home.path(), None), ["2", "3"]);
    written(home.path(), "test/hard.jsonl", &row(4));
    refused(home.path(), &["sets of this part", "hard"]);
    let text = format!("{{\"license\": \"{}\", \"data\": [{}]}}", "free ".repeat(20), row(5).trim());
    assert_eq!(golds(&written(home.path(), "one.json", &text), None), ["5"]);
    // A column of categories (pandas, polars), as pyarrow writes it (`fixtures/make_problem_tables.py`).
    let read = read_problems(fixture("categories.parquet")).unwrap();
    let seen: Vec<_> = read.iter().map(|p| (p.question.as_str(), p.subject.as_deref())).collect();
    assert_eq!(seen, [("How many is 2 and 3?", Some("sums")), ("How many is 4 less 3?", Some("sums"))]);
}

/// hendrycks/math: a file per problem, in a folder per subject, without a key for the answer.
#[test]
fn math_is_read_as_it_was_published() {
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, solution: &str| {
        let path = home.path().join(format!("MATH/{name}.json"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let record = json!({ "problem": name, "level": "Level 5", "type": "Algebra", "solution": solution });
        std::fs::write(path, serde_json::to_string_pretty(&record).unwrap()).unwrap();
    };
    write("train/algebra/1", r"So $x = \boxed{\frac{1}{2}}$.");
    write("test/algebra/10", r"First \boxed{3}, then $\boxed{4}$");
    write("test/algebra/9", r"It is $\boxed 5$, as said.");
    write("test/geometry/2", r"\fbox{6}");
    let root = home.path().join("MATH");
    assert_eq!(golds(&root, None), ["5", "4", "6"]);
    assert_eq!(golds(&root.join("test/algebra"), None), ["5", "4"]);
    let read = read_problems(&root).unwrap();
    assert_eq!((read[0].subject.as_deref(), read[0].level), (Some("Algebra"), Some(5)));
    assert_eq!(golds(&root.join("train/algebra/1.json"), None), [r"\frac{1}{2}"]);
    // Without a closed box, or one that MATH's evaluation reads.
    for cut in
        r"No box here.|It is $\boxed{|It is $\boxed{é|It is $\boxed{5|$\boxed\frac{1}{2}$|$\boxed5$, as {x}".split('|')
    {
        write("test/geometry/3", cut);
        refused(&root, &["3.json", r"no \boxed{…}"]);
    }
}

#[test]
fn files_without_problems_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let wide: Vec<u8> = "{\"question\": \"q\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let long = "x".repeat(2_000_000);
    for (bytes, expected) in [
        (b"PK\x03\x04rest".to_vec(), "a zip archive: unpack it"),
        ([b"\xff\xfe".to_vec(), wide.clone()].concat(), "UTF-16 text: write it as UTF-8"),
        (wide, "has zero bytes, so it is not UTF-8 text"),
        (b"{\"question\": \"caf\xe9\", \"answer\": \"1\"}\n".to_vec(), "a.jsonl:1: not UTF-8 text"),
        (b"PAR1 and no more".to_vec(), "not a Parquet file that can be read"),
        (b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "a Git LFS pointer"),
        (b"<!DOCTYPE html>".to_vec(), "a web page"),
        (br#"{"question":"What is 3 \ud83d?","answer":"3"}"#.to_vec(), "half of a character, an unpaired surrogate"),
        (br#"{"question":"q","answer":"3","level":"hard"}"#.to_vec(), "--field level=none"),
        (format!("{{\"question\":\"q\",\"answer\":\"3\",\"level\":\"{long}\"}}").into_bytes(), "expected a level"),
        (br#"{"question":"q","answer":{"gold": "3", "unit": "m"}}"#.to_vec(), "--field (answer.gold, answer.unit)"),
        (
            b"{\"id\":\"a\",\"question\":\"q\",\"answer\":\"1\"}\n{\"id\":\"a\",\"question\":\"r\",\"answer\":\"2\"}\n"
                .to_vec(),
            "a.jsonl:2: key \"id\": `a` is also at",
        ),
    ] {
        let file = folder.path().join("a.jsonl");
        std::fs::write(&file, &bytes).unwrap();
        let error = refused(&file, &[expected, "a.jsonl"]);
        assert!(error.len() < 600, "{error}");
    }
    // A copy is not another problem.
    let row = r#"{"id":"a","question":"q","answer":"1"}"#;
    let copies = read_problems(written(folder.path(), "copies.jsonl", &format!("{row}\n{row}\n{row}\n"))).unwrap();
    assert_eq!(copies.iter().map(|problem| problem.id.as_str()).collect::<Vec<_>>(), ["a", "a#2", "a#3"]);
    let other = r#"{"id":"a#2","question":"r","answer":"2"}"#;
    let mixed = read_problems(written(folder.path(), "mixed.jsonl", &format!("{row}\n{row}\n{other}\n"))).unwrap();
    assert_eq!(mixed.iter().map(|problem| problem.id.as_str()).collect::<Vec<_>>(), ["a", "a#3", "a#2"]);
    // Words as levels, read without them; one object over several lines; a list inside an object.
    let file = written(folder.path(), "b.jsonl", r#"{"question":"q","answer":"3","level":"hard"}"#);
    assert_eq!(golds(&file, Some(Fields { level: "none".into(), ..Fields::default() })), ["3"]);
    for text in [
        "{\n \"data\": [{\"question\": \"q\", \"answer\": 3}]\n}",
        "{\"data\": [{\"question\": \"q\", \"answer\": 3}]}\n\n",
        "{\"version\": \"1.1\", \"rows\": [{\"question\": \"q\", \"answer\": 3}]}",
    ] {
        assert_eq!(golds(&written(folder.path(), "c.json", text), None), ["3"], "{text}");
    }
    let steps = r#"{"question": "q", "answer": "3", "steps": [{"expression": "1+2", "value": 3, "span": "3"}], "solution": "3"}"#;
    assert_eq!(golds(&written(folder.path(), "steps.jsonl", steps), None), ["3"], "a problem itself");
    // Prompts as messages, as in chat data and verl.
    let chat = r#"{"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "reward": {"gold": "3"}}"#;
    let file = written(folder.path(), "chat.jsonl", &format!("{chat}\n{}\n", chat.replace("\"q\"", "\"r\"")));
    for question in ["prompt.1.content", "prompt.-1.content"] {
        let fields = Fields { question: question.into(), answer: "reward.gold".into(), ..Fields::default() };
        let source = Source { format: Some(RecordFormat::Jsonl), fields, ..Source::new(&file) };
        let read: Vec<String> = source.read().unwrap().into_iter().map(|problem| problem.question).collect();
        assert_eq!(read, ["q", "r"], "{question}");
    }
    let fields = Fields { question: "prompt".into(), answer: "reward.gold".into(), ..Fields::default() };
    let source = Source { format: Some(RecordFormat::Jsonl), fields, ..Source::new(&file) };
    let error = format!("{:#}", source.read().unwrap_err());
    assert!(error.contains("a list of 2 items") && error.contains("--field (prompt.0.content"), "{error}");
}

#[test]
fn a_gsm8k_solution_has_its_gold_after_the_mark() {
    let folder = tempfile::tempdir().unwrap();
    let text = "{\"question\":\"q\",\"answer\":\"Seven. The answer is 7.\"}\n{\"question\":\"r\",\"answer\":\"Say 6 = <<6=6>>6 first.\\n#### 2\"}\n";
    let file = written(folder.path(), "g.jsonl", text);
    for fields in [None, Some(Fields::default())] {
        assert_eq!(golds(&file, fields), ["Seven. The answer is 7.", "2"]);
    }
    assert_eq!(read_problems(&file).unwrap()[1].solution, "Say 6 = 6 first.\n#### 2");
}

#[test]
fn custom_steps_are_in_the_solution() {
    let folder = tempfile::tempdir().unwrap();
    let steps =
        r#""steps": [{"expression": "3+4", "value": 7}, {"expression": "s1*2", "value": 14, "span": "doubles to 14"}]"#;
    let apart = format!(r#"{{"question": "q", "solution": "3 + 4 = 7 doubles to 14", "answer": "14", {steps}}}"#);
    let inside = format!(r#"{{"question": "r", "answer": "3+4=7 doubles to 14.\n#### 14", {steps}}}"#);
    let read = read_problems(written(folder.path(), "own.jsonl", &format!("{apart}\n{inside}\n"))).unwrap();
    for problem in read {
        let values: Vec<Option<i64>> = problem.steps.iter().map(|step| step.value.number()).collect();
        assert_eq!((values, problem.steps[1].expression.as_deref()), (vec![Some(7), Some(14)], Some("s1*2")));
        let words: Vec<&str> = problem.solution.split_whitespace().collect();
        assert_eq!(words[problem.steps[1].value_words.clone()].concat().trim_matches('.'), "14", "{problem:?}");
    }
    let wrong = apart.replace("\"value\": 14", "\"value\": 15");
    let unknown = apart.replace("\"span\"", "\"where\"");
    for (text, parts) in [
        (format!("{apart}\n{wrong}"), ["own.jsonl:2: key \"steps\": step 2", "`s1*2` is 14, but its value is 15"]),
        (unknown, ["own.jsonl:1: key \"steps\": expected steps such as", "where"]),
    ] {
        refused(written(folder.path(), "own.jsonl", &text), &parts);
    }
}

#[test]
fn errors_name_file_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    // `GOOD` is a record that can be read.
    for (name, text, expected) in [
        ("a.jsonl", "GOOD\n{\"question\": \"q\"", ":2: not valid JSON"),
        ("a.jsonl", "GOOD\n{\"question\": \"q\"}", ":2: key \"answer\" is missing; found [\"question\"]"),
        (
            "a.jsonl",
            "GOOD\n\n{\"question\": [], \"answer\": \"#### 1\"}",
            ":3: key \"question\": expected a text, found a list",
        ),
        ("a.jsonl", "GOOD\n{\"question\": \"q\", \"answer\": \"1\"}", ":2: key \"answer\": expected `#### gold`"),
        (
            "a.jsonl",
            "{\"question\": \"q\", \"answer\": \"1\"}\n{\"question\": \"r\", \"answer\": \"\"}",
            ":2: the answer is empty",
        ),
        ("a.jsonl", "\n\n", ": has no problem"),
        ("a.jsonl", "3\n", ":1: expected a JSON object, found a number"),
        ("a.jsonl", "{\"q\": 1}", "no known format has the keys [\"q\"]"),
        ("a.json", "[GOOD,\n {\"question\": \"\", \"answer\": \"#### 1\"}]", ": record 2: the question is empty"),
        ("a.json", "[GOOD,\n", ": not a valid JSON list"),
        (
            "a.jsonl",
            r#"{"problem":"p","solution":"s","answer":"1","unique_id":"u","level":"hard"}"#,
            ":1: key \"level\"",
        ),
        (
            "a.json",
            r#"[{"question":"q","answer":"a","steps":["s"],"edges":[[0,9]],"idx_to_symbol":["x"],"root":0}]"#,
            ": record 1: key \"edges\": node 9",
        ),
    ] {
        let text = text.replace("GOOD", r#"{"question": "q", "answer": "a\n#### 1"}"#);
        let place = if expected.starts_with(':') { format!("{name}{expected}") } else { expected.to_owned() };
        refused(written(folder.path(), name, &text), &[&place]);
    }
    refused(folder.path().join("missing.jsonl"), &["missing.jsonl: no such file or folder"]);
}

#[test]
fn the_real_files_have_their_row_counts() {
    let Some(data) = real_data("row counts of the real benchmarks") else {
        return;
    };
    for (file, rows) in [
        ("gsm8k/train.jsonl", 7473),
        ("gsm8k/test.jsonl", 1319),
        ("gsm8k_equations/gsm_eq_train.jsonl", 6973),
        ("gsm8k_equations/gsm_eq_valid.jsonl", 500),
        ("gsm8k_equations/gsm_eq_test.jsonl", 1319),
        ("math500/test.jsonl", 500),
        ("prosqa/prosqa_valid.json", 300),
        ("prosqa/prosqa_test.json", 500),
    ] {
        let problems = read_problems(data.join(file)).unwrap();
        assert_eq!(problems.len(), rows, "{file}");
        let (mut steps, mut known) = (0, 0);
        let ids: std::collections::HashSet<&str> = problems.iter().map(|problem| problem.id.as_str()).collect();
        assert_eq!(ids.len(), rows, "{file}: ids are not distinct");
        for problem in &problems {
            let range = problem.answer_range().unwrap_or_else(|| panic!("{}: no final answer", problem.id));
            assert!(
                problem.solution[range].contains(problem.answer.trim()) || file.starts_with("math500"),
                "{problem:?}"
            );
            assert!(!problem.solution.contains("<<") || file.contains("equations"));
            if file.starts_with("gsm8k/") {
                steps += problem.steps.len();
                known += problem.steps.iter().filter(|step| step.expression.as_deref() != Some("")).count();
            }
            // The last known value of ProsQA's chain is the one its answer names.
            if let Some(Fact::Set(last)) = problem.steps.last().map(|step| &step.value) {
                assert!(last.iter().any(|name| problem.answer.contains(name.as_str())), "{problem:?}");
            }
        }
        println!("{file}: {known} of {steps} marks are before their value");
        assert!(known * 100 >= steps * 97, "{file}: {known} of {steps} marks are before their value");
        if file.starts_with("math500") {
            assert!(problems.iter().all(|p| p.subject.is_some() && (1..=5).contains(&p.level.unwrap())));
        }
    }
}

#[test]
fn the_answer_is_found_in_the_solution() {
    let with = |solution: &str| Problem { solution: solution.into(), answer: "a".into(), ..Problem::default() };
    for (solution, expected) in [
        ("a = 1 ; # 1", Some("# 1")),
        ("text\n#### 1,500\n", Some("#### 1,500")),
        ("so $\\boxed{\\{-2, \\frac{4}{2}\\}}$, done", Some("\\boxed{\\{-2, \\frac{4}{2}\\}}")),
        ("first \\boxed{1}, then \\boxed{2}", Some("\\boxed{2}")),
        ("never closed \\boxed{1", Some("\\boxed{1")),
        ("item #3 of C# code", None),
        ("### Step 1\nso \\boxed{1}\n\n### Check\n1 is right", Some("\\boxed{1}")),
        ("### Step 1\nso it is\n### 5\n", Some("### 5")),
    ] {
        let problem = with(solution);
        assert_eq!(problem.answer_range().map(|range| &problem.solution[range]), expected);
    }
    assert_eq!(with("é = 5 ;").word_bytes(1..3), Some(3..6));
    assert_eq!(with("a b").word_bytes(1..3), None);
    assert_eq!(with("a b").word_bytes(0..0), None);
}

fn all_tasks() -> Vec<Task> {
    vec![
        Task::Chains(Chains::default()),
        Task::Affine(Affine::default()),
        Task::Graph(Graph::default()),
        Task::Multiply(Multiply::default()),
    ]
}

#[test]
fn generated_problems_round_trip_through_vocabulary_and_file() {
    let mut words = Vocabulary::from_words(all_tasks().iter().flat_map(Task::words)).unwrap();
    let switch = words.add_switch_tokens().unwrap();
    let folder = tempfile::tempdir().unwrap();
    words.save(folder.path()).unwrap();
    let read = Vocabulary::load(folder.path()).unwrap();
    assert_eq!(read.switch().unwrap(), switch);
    let mut again = read.clone();
    assert_eq!(again.add_switch_tokens().unwrap(), switch);
    assert_eq!(
        (read.size(), read.bos(), read.eos(), read.pad(), read.unk()),
        (words.size(), Some(1), Some(2), Some(0), Some(3))
    );

    let mut lines = String::new();
    let mut problems = Vec::new();
    for task in all_tasks() {
        for row in task.rows(Split::Test, 2, 0..25).unwrap() {
            let problem = Problem::from(row);
            for text in [&problem.question, &problem.solution] {
                let ids = read.encode(text).unwrap();
                assert_eq!(ids.len(), text.split(' ').count());
                assert!(!ids.contains(&3), "unknown word in {text}");
                assert_eq!(&read.decode(&ids).unwrap(), text);
            }
            lines.push_str(&(serde_json::to_string(&problem).unwrap() + "\n"));
            problems.push(problem);
        }
    }
    // Written as JSONL and read back, a problem is the same, its known values included.
    let file = written(folder.path(), "rows.jsonl", &lines);
    assert_eq!(read_problems(file).unwrap(), problems);
}

#[test]
fn switch_tokens_come_after_the_vocabulary_and_survive_any_text() {
    let mut vocabulary = Vocabulary::from_words(["a", "b", "=", "a"]).unwrap();
    assert_eq!(vocabulary.size(), 7);
    assert!(vocabulary.switch().unwrap_err().to_string().contains("<swi>"));
    let switch = vocabulary.add_switch_tokens().unwrap();
    assert_eq!((switch.swi, switch.swi_end, switch.latent), (7, 8, 9));
    assert_eq!(vocabulary.encode("<bos> a = <swi>b = a</swi> <latent> zzz").unwrap(), [1, 4, 6, 7, 5, 6, 4, 8, 9, 3]);
    assert_eq!(vocabulary.decode(&[4, 7, 9, 8, 5]).unwrap(), "a <swi> <latent> </swi> b");
    assert_eq!(vocabulary.decode_visible(&[1, 4, 7, 9, 8, 5, 2]).unwrap(), "a b");
    vocabulary.check_fits(10).unwrap();
    let error = vocabulary.check_fits(9).unwrap_err().to_string();
    assert!(error.contains("10 embedding rows, the model has 9"), "{error}");
    assert!(Vocabulary::from_words(["two words"]).unwrap_err().to_string().contains("two words"));
}

#[test]
fn invalid_tokenizer_files_are_errors_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let load = || format!("{:#}", Vocabulary::load(folder.path()).unwrap_err());
    assert!(load().contains("tokenizer.json: cannot read"), "{}", load());
    written(folder.path(), "tokenizer.json", "{}");
    assert!(load().contains("not a tokenizer.json"), "{}", load());

    Vocabulary::from_words(["a", "<swi>"]).unwrap_err();
    Vocabulary::from_words(["a"]).unwrap().save(folder.path()).unwrap();
    for (name, text, expected) in [
        ("tokenizer_config.json", r#"{"eos_token": 3}"#, "eos_token: expected a token, found a number"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: expected a JSON object, found a list"),
        ("generation_config.json", r#"{"eos_token_id": "x"}"#, "eos_token_id: expected an id, found a string"),
    ] {
        let file = written(folder.path(), name, text);
        assert!(load().contains(expected), "{} does not say {expected}", load());
        std::fs::remove_file(file).unwrap();
    }
    // Ids from generation_config.json: all stop generation; training appends the tokenizer's.
    written(folder.path(), "tokenizer_config.json", r#"{"eos_token": {"content": "<eos>"}, "bos_token": "<bos>"}"#);
    written(
        folder.path(),
        "generation_config.json",
        r#"{"eos_token_id": [0, 2, 900], "bos_token_id": 0, "pad_token_id": -1}"#,
    );
    let vocabulary = Vocabulary::load(folder.path().join("tokenizer.json")).unwrap();
    assert_eq!((vocabulary.eos(), vocabulary.stops(), vocabulary.pad()), (Some(2), &[2, 0, 900][..], None));
    assert_eq!(vocabulary.bos(), Some(1));
}

#[test]
fn templates_are_spelled_as_the_models_expect() {
    let spelled = |template: Template| template.prompt(" 1+1? ");
    assert_eq!(spelled(Template::Words), "<bos> 1+1?");
    assert_eq!(spelled(Template::Plain), "1+1?\n");
    assert_eq!(
        spelled(Template::Boxed),
        "1+1?\nPlease reason step by step, and put your final answer within \\boxed{}.\n"
    );
    assert_eq!(spelled(Template::Qwen3), "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(
        spelled(Template::Qwen3NoThinking),
        "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
    assert!(spelled(Template::Qwen3NoThinkingBoxed).contains("\\boxed{}.<|im_end|>"));
    assert_eq!(
        spelled(Template::SmolLm2),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    );
    let names = Template::ALL.map(|template| serde_json::to_value(template).unwrap().as_str().unwrap().to_string());
    assert_eq!(
        names.join(" "),
        "plain words boxed qwen3 qwen3-no-thinking qwen3-boxed qwen3-no-thinking-boxed smollm2 smollm2-boxed chat chat-boxed \
         chat-no-thinking chat-no-thinking-boxed"
    );
    let words = Vocabulary::from_words(["a", "#"]).unwrap();
    let of = Prompts::from;
    assert_eq!(of(Template::Words).encode_prompt(&words, "a").unwrap(), [1, 4]);
    assert_eq!(of(Template::Words).end_id(&words).unwrap(), 2);
    let error = of(Template::Qwen3).end_id(&words).unwrap_err().to_string();
    assert!(error.contains("<|im_end|>"), "{error}");
}

#[test]
fn the_real_qwen3_tokenizer_accepts_the_switch_tokens() {
    let Some(data) = real_data("Qwen3's tokenizer") else {
        return;
    };
    let mut qwen = Vocabulary::load(data.join("qwen3_tokenizer")).unwrap();
    assert_eq!(qwen.size(), 151_669);
    let switch = qwen.add_switch_tokens().unwrap();
    assert_eq!((switch.swi, switch.swi_end, switch.latent), (151_669, 151_670, 151_671));
    assert_eq!((qwen.size(), qwen.eos(), qwen.pad()), (151_672, Some(151_645), Some(151_643)));
    qwen.check_fits(151_672).unwrap();
    qwen.check_fits(151_669).unwrap_err();
    assert!(qwen.leading_bos().is_empty());
    let ids = Prompts::from(Template::Qwen3NoThinking).encode_prompt(&qwen, "1+1?").unwrap();
    assert_eq!(ids[..2], [151_644, 872]);
    assert_eq!(qwen.decode(&ids).unwrap(), Template::Qwen3NoThinking.prompt("1+1?"));

    let folder = tempfile::tempdir().unwrap();
    qwen.save(folder.path()).unwrap();
    let read = Vocabulary::load(folder.path()).unwrap();
    assert_eq!(read.switch().unwrap(), switch);
    for problem in read_problems(data.join("math500/test.jsonl")).unwrap().iter().take(50) {
        let ids = qwen.encode(&problem.solution).unwrap();
        assert_eq!(ids, read.encode(&problem.solution).unwrap());
        assert_eq!(qwen.decode(&ids).unwrap(), problem.solution);
    }
}

#[test]
fn the_tutorials_records_are_read() {
    let page = std::fs::read_to_string("docs/tutorial/own-data.md").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let blocks: Vec<&str> =
        page.split("```json\n").skip(1).map(|rest| rest.split_once("```").expect("an end").0.trim()).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let problems = read_problems(written(folder.path(), "own.jsonl", block)).unwrap();
        let values: Vec<Option<i64>> = problems[0].steps.iter().map(|step| step.value.number()).collect();
        assert_eq!(values, [Some(7), Some(35)], "{block}");
        assert!(problems[0].steps.iter().all(|step| step.expression.is_some()));
    }
}

#[test]
fn published_tables_of_the_paper_are_read() {
    let verl = read_problems(fixture("verl.parquet")).expect("verl");
    let first = &verl[0];
    assert_eq!((first.id.as_str(), first.question.as_str(), first.answer.as_str()), ("11", "What is 1 + 1?", "2"));
    assert!(first.solution.is_empty() && verl.len() == 3);

    let of = |generations| {
        let read = Source { generations, ..Source::new(fixture("openr1_generations.parquet")) }.read().expect("OpenR1");
        read.into_iter().map(|p| (p.id, p.solution)).collect::<Vec<_>>()
    };
    let ids = |read: &[(String, String)]| read.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>();
    let plain = of(Generations::Solution);
    assert_eq!(
        (ids(&plain), plain[0].1.as_str()),
        (vec!["u-1".into(), "u-2".into(), "u-3".into()], "It is $\\boxed{2}$.")
    );
    let first = of(Generations::First);
    assert_eq!(ids(&first), ["u-1", "u-2"]);
    assert!(first.iter().all(|(_, solution)| solution.contains("try 1")), "the first that is right: {first:?}");
    let all = of(Generations::All);
    assert_eq!(ids(&all), ["u-1", "u-1#2", "u-2"]);
    assert!(all[1].1.contains("try 2") && all[1].1.starts_with("<think>"));
}

#[test]
fn tags_in_solutions_are_spans_and_must_alternate() {
    let folder = tempfile::tempdir().unwrap();
    let record = |solution: &str| {
        serde_json::json!({ "problem": format!("{solution}?"), "solution": solution, "answer": "3" }).to_string()
    };
    let tagged = record("So <swi>a b</swi> and <swi>c</swi><swi></swi> give \\boxed{3}.");
    let file = written(folder.path(), "sft.jsonl", &[tagged.clone(), record("Plain \\boxed{3}.")].join("\n"));
    let read = read_problems(&file).unwrap();
    assert_eq!(read[0].solution, "So a b and c give \\boxed{3}.");
    let spans = |i: usize| -> Vec<String> {
        read[i].spans.clone().expect("spans").into_iter().map(|s| read[i].solution[s].to_owned()).collect()
    };
    assert_eq!((spans(0), spans(1)), (vec!["a b".to_owned(), "c".to_owned()], vec![]));
    // Between tags are only the tokens of that text; the tagged text equals the file's, except for an empty pair.
    let mut vocabulary =
        Vocabulary::from_words(["So", "a", "b", "and", "c", "give", "Plain"].map(String::from)).unwrap();
    vocabulary.add_switch_tokens().unwrap();
    let sample = switchyard::text::Sample::new(&read[0], &vocabulary, &Template::Plain.into()).unwrap();
    let own = sample.spans.clone().expect("spans");
    assert_eq!(sample.tagged_solution(&own), "So <swi>a b</swi> and <swi>c</swi> give \\boxed{3}.");
    assert_eq!(own[0].clone().map(|at| sample.token(at).to_owned()).collect::<Vec<_>>(), ["a", "b"]);

    for (solution, what) in [
        ("So <swi>a", "<swi> number 1 is not closed"),
        ("So <swi>a <swi>b</swi>", "<swi> number 2 inside another block"),
        ("a</swi> b", "</swi> after 0 blocks closes none"),
    ] {
        let file = written(folder.path(), "bad.jsonl", &[tagged.clone(), record(solution)].join("\n"));
        refused(&file, &[what, "bad.jsonl:2", "solution"]);
    }
}
