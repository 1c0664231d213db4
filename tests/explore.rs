//! `probe explore` over its socket, as a browser uses it: its answers and its access checks.

use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::common::explorer::Explorer;
use crate::common::programs::program;

const PROMPT: &str = "<bos> a = 5 ; h = a + 4 ; c = h - a ; ? c :";

fn start() -> Explorer {
    let mut command = program("probe");
    command.args("explore fixtures/micro --phase sft --threads 1".split(' '));
    Explorer::start(command)
}

impl Explorer {
    /// Status and body of one request.
    fn request(&self, head: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let length = body.len();
        write!(stream, "{head} HTTP/1.1\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
            .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        (status, body.to_owned())
    }

    fn host(&self) -> String {
        format!("Host: 127.0.0.1:{}\r\n", self.port)
    }

    fn ask(&self, what: &Value) -> Value {
        let head = format!("POST /ask?token={}", self.token);
        let (status, body) = self.request(&head, &self.host(), &what.to_string());
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }
}

/// Output of `probe generate` for the same prompt.
fn generated(hook: Option<&str>) -> Value {
    let mut command = program("probe");
    command
        .args("generate fixtures/micro --phase sft --json --threads 1 --max-new-tokens 40 --prompt".split(' '))
        .arg(PROMPT);
    if let Some(hook) = hook {
        command.args(["--hook", hook]);
    }
    serde_json::from_slice(&command.output().expect("it runs").stdout).expect("JSON")
}

#[test]
fn it_answers_like_generate_and_requires_the_token() {
    let explorer = start();
    let page = format!("GET /?token={}", explorer.token);
    let (status, html) = explorer.request(&page, &explorer.host(), "");
    assert!(status == 200 && html.contains("connect-src 'self'") && html.contains("class Explorer"), "{status}");
    for (head, headers) in [
        ("GET /".to_owned(), explorer.host()),
        ("GET /?token=0".to_owned(), explorer.host()),
        (page.clone(), "Host: example.org\r\n".to_owned()),
        (page.clone(), format!("{}Origin: https://example.org\r\n", explorer.host())),
    ] {
        assert_eq!(explorer.request(&head, &headers, "").0, 403, "{head} {headers}");
    }
    assert_eq!(explorer.request(&page.replace('?', "x?"), &explorer.host(), "").0, 404);

    // A stalled connection blocks no other, and `Content-Length` is not trusted.
    let host = explorer.host();
    let mut stalled = explorer.connect();
    write!(stalled, "POST /ask?token={} HTTP/1.1\r\n{host}Content-Length: 1000\r\n\r\n{{", explorer.token)
        .expect("a part");
    for (wrong, status) in [
        (format!("{host}Content-Length: 99999999999999\r\nX: "), 413),
        (format!("{host}Content-Length: -1\r\nX: "), 400),
        (format!("{host}Transfer-Encoding: chunked\r\nX: "), 411),
        ("Host: example.org\r\nContent-Length: 99999999999999\r\nX: ".to_owned(), 403),
        (format!("{host}X: {}\r\n", "a".repeat(20_000)), 431),
    ] {
        assert_eq!(explorer.request(&page, &wrong, "").0, status, "{}", &wrong[..60]);
    }

    let about = explorer.ask(&json!({ "do": "about" }));
    assert!(about["ok"]["examples"][0].as_str().expect("an example").starts_with("<bos> "), "{about}");

    let settings = json!({ "max_new_tokens": 40 });
    let unknown = explorer.ask(&json!({ "do": "see", "prompt": "<bos> a=5 ; ? a :", "settings": settings }));
    assert!(unknown["ok"]["warning"].as_str().expect("a warning").contains("`a=5`"), "{unknown}");
    let seen = explorer.ask(&json!({ "do": "see", "prompt": PROMPT, "settings": settings }));
    let seen = &seen["ok"];
    assert_eq!(seen["text"], generated(None)["text"], "{seen}");
    // The last layer's lens before a token predicts that token: decoding was greedy.
    let prompt = seen["trace"]["prompt"].as_array().expect("ids").len();
    let last = seen["says"].as_array().and_then(|layers| layers.last()).expect("layers");
    assert_eq!(last[prompt - 1][0][0], seen["words"][prompt], "{seen}");

    let hook = "latent.hook_injected=zero";
    let changed = explorer.ask(&json!({ "do": "see", "prompt": PROMPT, "hooks": [hook], "settings": settings }));
    assert_eq!(changed["ok"]["text"], generated(Some(hook))["text"], "{changed}");

    let at = prompt + 2;
    let heads = explorer.ask(&json!({ "do": "heads", "trace": seen["trace"], "at": at }));
    let weights: Vec<f64> = serde_json::from_value(heads["ok"]["pattern"][1][0].clone()).expect("weights");
    assert!(weights.len() == at + 1 && (weights.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{weights:?}");
}

#[test]
fn latents_of_another_prompt_are_swapped_in_or_an_error() {
    let explorer = start();
    let settings = json!({ "max_new_tokens": 40, "k_min": 5, "k_cap": 5 });
    let own = explorer.ask(&json!({ "do": "see", "prompt": PROMPT, "settings": settings }));
    let swap =
        |other: &str| explorer.ask(&json!({ "do": "see", "prompt": PROMPT, "other": other, "settings": settings }));
    // Its own thoughts change nothing.
    let same = swap(PROMPT);
    assert_eq!(same["ok"]["text"], own["ok"]["text"], "{same}");
    assert!(same["ok"]["fired"][0]["fired"].as_u64() > Some(0), "{same}");
    let other = swap("<bos> a = 1 ; h = a + 9 ; c = h - a ; ? c :");
    assert!(other["ok"]["fired"][0]["mean_change"].as_f64() > Some(0.1), "{other}");
    assert_eq!(other["ok"]["fired"][0]["hook"], "latent.hook_injected=swap:the other prompt", "{other}");
    assert!(same["ok"]["warning"].is_null(), "{same}");
    assert!(other["ok"]["warning"].as_str().expect("a warning").contains("`9`"), "{other}");

    let error = |what: Value| explorer.ask(&what)["error"].as_str().expect("an error").to_owned();
    assert!(error(json!({ "do": "see", "prompt": " " })).contains("the prompt is empty"));
    assert!(error(json!({ "do": "see", "prompt": PROMPT, "hooks": ["blocks.9.hook_out=zero"] })).contains("blocks.9"));
    assert!(error(json!({ "do": "see", "prompt": PROMPT, "chat": true })).contains("no chat template"));
    assert!(error(json!({ "do": "dance" })).contains("dance"));
    let heads = json!({ "do": "heads", "trace": own["ok"]["trace"], "at": 4000 });
    assert!(error(heads).contains("place 4000"));
}
