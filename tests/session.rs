//! `probe session`: a bad line gets an error, and does not affect the next one.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Answers to the lines.
fn answers(lines: &[&[u8]]) -> Vec<Value> {
    let mut session = Command::new(env!("CARGO_BIN_EXE_probe"))
        .args(["session", "fixtures/micro", "--phase", "sft", "--threads", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    session.stdin.take().expect("a pipe").write_all(&[&lines.join(&b'\n'), &b"\n"[..]].concat()).expect("written");
    let output = session.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("a text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_bad_line_gets_its_error() {
    let two = |hook: &str| {
        let prompts = r#"["<bos> a = 5 ; ? a :", "<bos> a = 5 ; h = a + 4 ; ? h :"]"#;
        let settings = r#"{"max_new_tokens": 3}"#;
        format!(r#"{{"do": "generate", "prompts": {prompts}, "hooks": ["{hook}"], "settings": {settings}}}"#)
    };
    let (short, both) = (two("blocks.1.hook_resid_post@pos[-10]=zero"), two("blocks.1.hook_resid_post@pos[-1]=zero"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("problems.jsonl");
    std::fs::write(&file, "{\"question\": \"<bos> a = 5 ; ? a :\", \"answer\": \"5\"}\n").expect("written");
    let many = format!(r#"{{"do": "intervene", "file": "{}", "draws": 99999999999}}"#, file.display());
    let called = two("blocks.1.hook_resid_post@pos[-1]=call:0");
    let lines: [(&[u8], &str); 7] = [
        (br#"{"do": "about", "x": 1}"#, "unknown field `x`"),
        (many.as_bytes(), "settings.latent_intervention.draws must be at most"),
        (br#"{"do": "generate", "prompts": [[1, -2]]}"#, "a prompt must be a text or a list of token ids"),
        (br#"{"do": "compare", "before": [0.5, 1], "after": [1]}"#, "differ in length: 2 before, 1 after"),
        (b"\xff\xfe", "not a request"),
        (b"{\"do\": \"lens\", \"prompt\": \"\xff\"}", "not a request"),
        (
            short.as_bytes(),
            "prompts[0]: change `blocks.1.hook_resid_post@pos[-10]=zero`: pos[-10] is before the first of 8",
        ),
    ];
    let asked: Vec<&[u8]> =
        lines.iter().map(|(line, _)| *line).chain([both.as_bytes(), b"{\"do\": \"about\"}"]).collect();
    let failing: [&[u8]; 2] = [called.as_bytes(), b"{\"error\": \"no such function\"}"];
    let held_out: [&[u8]; 1] = [br#"{"do": "problems", "problems": 3}"#];
    let asked = [asked, failing.to_vec(), held_out.to_vec()].concat();
    let answers = answers(&asked);
    assert_eq!(answers.len(), asked.len());
    for ((line, says), answer) in lines.iter().zip(&answers) {
        let line = String::from_utf8_lossy(line);
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(says)), "{line}: {answer}");
    }
    let hook = &answers[lines.len()]["ok"]["hooks"][0];
    assert_eq!((&hook["fired"], hook["rows"].to_string().as_str()), (&2.into(), "[1,1]"), "{hook}");
    assert!(answers[lines.len() + 1]["ok"]["layers"].is_number());
    // A client function: the call, and a client error that ends the request.
    let (call, end) = (&answers[lines.len() + 2]["call"], &answers[lines.len() + 3]["error"]);
    assert_eq!(
        [&call["position"], &call["shape"], &call["step"]],
        [&json!(7), &json!([64]), &json!("prompt")],
        "{call}"
    );
    assert!(end.as_str().is_some_and(|error| error.contains("no such function")), "{end}");
    // The run's problems, from its recipe.
    let held_out = &answers[lines.len() + 4]["ok"]["rows"];
    assert!(held_out.as_array().is_some_and(|rows| rows.len() == 3 && rows[0]["steps"][0].is_object()), "{held_out}");
}
