//! No request or file crashes a program: beyond a bound the answer is an error that names the bound, with exit code 2, under a limit
//! of 4 GB of address space.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::common::explorer::Explorer;
use super::common::programs::{PROGRAMS, copy, text, text_of};

/// In KiB.
const ADDRESS_SPACE: usize = 4_000_000;
const LONGEST: Duration = Duration::from_secs(60);

/// A program under the limit.
fn bounded(program: &str, args: &[&str]) -> Command {
    let found = PROGRAMS.iter().find(|(name, _)| *name == program).expect("a program").1;
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -v {ADDRESS_SPACE}; exec \"$0\" \"$@\"")).arg(found).args(args);
    command.env("RAYON_NUM_THREADS", "1").stdin(Stdio::null());
    command
}

#[track_caller]
fn refused(command: &mut Command, parts: &[&str]) {
    let begun = Instant::now();
    let output: Output = command.output().expect("it runs");
    let told = text_of(&output);
    let end = &told[told.len().saturating_sub(2000)..];
    assert_eq!(output.status.code(), Some(2), "{parts:?}: {end}");
    assert!(parts.iter().all(|part| told.contains(part)), "{parts:?}: {end}");
    assert!(begun.elapsed() < LONGEST, "{parts:?}: {:?}", begun.elapsed());
}

fn checkout(path: &str) -> PathBuf {
    Path::new(switchyard::store::CHECKOUT).join(path)
}

fn micro() -> String {
    checkout("fixtures/micro/sft/checkpoint").display().to_string()
}

/// Ten times as many ids as the model has positions.
fn long() -> Vec<u32> {
    (0..20_480).map(|id| 5 + id % 7).collect()
}

fn listed(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The micro model with other settings or files.
fn model(folder: &Path, settings: &[(&str, Value)]) -> PathBuf {
    let path = folder.join("model");
    copy(&checkout("fixtures/micro/sft/checkpoint"), &path);
    let file = path.join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&file).expect("read")).expect("JSON");
    for (key, value) in settings {
        config[*key] = value.clone();
    }
    fs::write(file, config.to_string()).expect("written");
    path
}

#[test]
fn prompts_beyond_the_context_are_errors() {
    let home = tempfile::tempdir().expect("a folder");
    let at = |name: &str| home.path().join(name).display().to_string();
    let (micro, ids) = (micro(), listed(&long()));
    let bound = ["20480 tokens", "2048 positions"];
    let model = ["--model", &micro, "--threads", "1", "--ids", &ids];
    for verb in
        [&["generate"][..], &["lens"], &["patterns"], &["activations", "--logits", "--out", &at("a.safetensors")]]
    {
        refused(&mut bounded("probe", &[verb, &model].concat()), &bound);
    }
    let words: String = (0..20_480).map(|word| ["a ", "= ", "5 ", "; "][word % 4]).collect();
    fs::write(at("d.jsonl"), json!({ "question": words, "answer": "5" }).to_string()).expect("written");
    let problems = ["--like", "micro", "--data", &at("d.jsonl"), "--out", &at("out"), "--threads", "1"];
    refused(&mut bounded("probe", &[&[&*micro][..], &problems].concat()), &["jsonl-d-0", "2048 positions"]);
    refused(&mut bounded("intervene", &[&[&*micro][..], &problems].concat()), &["jsonl-d-0", "2048 positions"]);
    let pair = json!({ "clean": words, "corrupted": words.replace('5', "6"), "answer": "5", "wrong": "6" });
    fs::write(at("pairs.jsonl"), pair.to_string()).expect("written");
    let pairs = ["pairs", &at("pairs.jsonl"), &micro, "--out", &at("out"), "--threads", "1"];
    refused(&mut bounded("intervene", &pairs), &["2048 positions"]);
    // A prompt within the model's positions, but beyond the memory limit.
    let wide = self::model(home.path(), &[("max_position_embeddings", json!(1 << 20))]);
    let many = listed(&(0..60_000).map(|id| 5 + id % 5).collect::<Vec<_>>());
    let wide = ["--model", text(&wide), "--threads", "1", "--ids", &many];
    for verb in [&["generate"][..], &["lens"], &["activations", "--logits", "--out", &at("a.safetensors")]] {
        refused(&mut bounded("probe", &[verb, &wide].concat()), &["60000 positions", "bytes are needed"]);
    }
}

#[test]
fn a_session_answers_after_requests_beyond_its_bounds() {
    let micro = micro();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let ids = long();
    let hooks: Vec<String> = (0..2560).map(|_| "blocks.0.hook_resid_post@pos[0]=zero".into()).collect();
    let names = vec!["blocks.0.hook_resid_post"; 10_240].join(",");
    let asked = [
        (json!({ "do": "generate", "prompts": [ids] }), "2048 positions"),
        (json!({ "do": "generate", "prompts": [ids[..2048]] }), "2048 positions"),
        (json!({ "do": "lens", "prompt": ids }), "2048 positions"),
        (
            json!({ "do": "cache", "prompts": [ids], "names": "blocks.*.hook_resid_post", "out": file.path() }),
            "2048 positions",
        ),
        (
            json!({ "do": "probe", "prompts": [[5], ids], "labels": ["a", "b"], "names": "blocks.0.hook_resid_post", "position": 0 }),
            "2048 positions",
        ),
        (json!({ "do": "generate", "prompts": [[5, 6]], "hooks": hooks }), "more than 256"),
        (json!({ "do": "cache", "prompts": [[5]], "names": names, "out": file.path() }), "more than 1024 hooks"),
    ];
    let mut session = bounded("probe", &["session", &micro, "--threads", "1"]);
    let mut session =
        session.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a process");
    let (mut input, mut answers) =
        (session.stdin.take().expect("a pipe"), BufReader::new(session.stdout.take().expect("a pipe")));
    let mut answer = || {
        let mut line = String::new();
        answers.read_line(&mut line).expect("an answer");
        serde_json::from_str::<Value>(&line).unwrap_or_else(|_| panic!("no answer: {line}"))
    };
    for (request, bound) in asked {
        writeln!(input, "{request}").expect("written");
        let told = answer();
        assert!(told["error"].as_str().is_some_and(|error| error.contains(bound)), "{bound}: {told}");
    }
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..640 {
        input.write_all(&piece).expect("written");
    }
    writeln!(input).expect("written");
    let told = answer();
    assert!(told["error"].as_str().is_some_and(|error| error.contains("at most 67108864 bytes")), "{told}");
    // Up to the end of the context.
    let endless = json!({ "ignore_eos": true, "max_new_tokens": 1_000_000_000, "k_min": 1 });
    writeln!(input, "{}", json!({ "do": "generate", "prompts": [ids[..2000]], "settings": endless })).expect("written");
    let told = answer();
    let trace = &told["ok"]["rows"][0]["trace"];
    let positions = trace["prompt"].as_array().map_or(0, Vec::len) + trace["positions"].as_array().map_or(0, Vec::len);
    assert!(trace["end"] == "budget" && positions == 2048, "{positions} positions, end {}", trace["end"]);
    drop(input);
    assert!(session.wait().expect("it ends").success());
}

/// A request with these headers before `Content-Length`.
fn send(explorer: &Explorer, body: &str, headers: &str) -> TcpStream {
    let mut stream = explorer.connect();
    let (token, port) = (&explorer.token, explorer.port);
    let head = format!("POST /ask?token={token} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}");
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("a request");
    stream
}

fn answer(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(LONGEST)).expect("a timeout");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn explore_survives_any_request() {
    let explorer = Explorer::start(bounded("probe", &["explore", &micro(), "--threads", "1"]));
    let about = || answer(send(&explorer, &json!({ "do": "about" }).to_string(), ""));
    let long: String = (0..200_000).map(|word| ["a ", "= ", "5 ", "; "][word % 4]).collect();
    let see = |prompt: &str, more: Value| {
        let mut request = json!({ "do": "see", "prompt": prompt });
        more.as_object().expect("keys").iter().for_each(|(key, value)| request[key] = value.clone());
        request.to_string()
    };
    let hooks = vec!["blocks.0.hook_resid_post=zero"; 20_000];
    let trace = json!({ "problem": 0, "rollout": 0, "prompt": vec![5; 20_480], "positions": [], "end": "budget" });
    for (request, bound) in [
        (see(&long, json!({})), "2048 positions"),
        (see("a", json!({ "other": long })), "2048 positions"),
        (see("a", json!({ "hooks": hooks })), "at most 64"),
        (json!({ "do": "heads", "trace": trace, "at": 0 }).to_string(), "2048 positions"),
    ] {
        let told = answer(send(&explorer, &request, ""));
        assert!(told.contains(bound), "{bound}: {}", &told[..told.len().min(600)]);
    }
    // Two values of an access header.
    for twice in [format!("Host: 127.0.0.1:{}\r\n", explorer.port), "Origin: http://a\r\nOrigin: http://b\r\n".into()] {
        assert!(answer(send(&explorer, "{}", &twice)).contains("duplicate header"), "{twice}");
    }
    // Idle connections do not block others.
    let idle: Vec<TcpStream> = (0..100).map(|_| explorer.connect()).collect();
    let begun = Instant::now();
    assert!(about().contains("\"layers\"") && begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    drop(idle);
    // Requests whose clients disconnected: they are cancelled, or the next one would wait for them.
    let settings = json!({ "ignore_eos": true, "max_new_tokens": 1_000_000_000, "k_min": 1 });
    for _ in 0..10 {
        drop(send(&explorer, &see("a = 5 ; ? a :", json!({ "settings": settings })), ""));
    }
    let begun = Instant::now();
    assert!(about().contains("\"layers\"") && begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
}

#[test]
fn files_beyond_their_bounds_are_errors() {
    let home = tempfile::tempdir().expect("a folder");
    let at = |name: &str| home.path().join(name).display().to_string();
    let micro = micro();
    let generate = |model: &str| ["generate", "--model", model, "--threads", "1", "--ids", "5,6"].map(str::to_owned);
    let strs = |args: &[String]| args.iter().map(String::as_str).map(str::to_owned).collect::<Vec<_>>();
    let probe = |args: Vec<String>, parts: &[&str]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refused(&mut bounded("probe", &args), parts);
    };

    // A cell and a line of 160 MB, and a JSON list beyond the maximum length.
    let long = vec![b'x'; 160 << 20];
    fs::write(at("cell.csv"), [b"gold,pred\n\"", &long[..]].concat()).expect("written");
    fs::write(at("line.jsonl"), [b"{\"gold\": \"", &long[..]].concat()).expect("written");
    fs::write(at("list.json"), b"[").expect("written");
    fs::File::options()
        .append(true)
        .open(at("list.json"))
        .and_then(|file| file.set_len(5 << 30))
        .expect("a sparse file");
    for (file, bound) in [("cell.csv", "16777216 bytes"), ("line.jsonl", "16777216 bytes"), ("list.json", "list.json")]
    {
        refused(&mut bounded("report", &["grade", "--pairs", &at(file), "--out", &at("o.jsonl")]), &[file, bound]);
    }
    // Settings of 2.5 GB.
    fs::File::create(at("recipe.toml")).and_then(|file| file.set_len(10 * (256 << 20))).expect("a sparse file");
    refused(
        &mut bounded("train", &["--preset", &at("recipe.toml"), "--out", &at("run")]),
        &["longer than 268435456 bytes"],
    );
    // Devices and pipes instead of files that are read whole.
    assert!(Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo").success());
    let hook = |file: &str| format!("blocks.0.hook_resid_post@pos[0]=swap:{file}");
    for file in ["/dev/zero", &at("pipe")] {
        let mut args = strs(&generate(&micro));
        args.extend(["--hook".to_owned(), hook(file)]);
        probe(args, &[file, "not a regular file"]);
        probe(strs(&generate(&format!("{file}.gguf"))), &[file]);
        refused(
            &mut bounded("report", &[text(&checkout("reports/micro")), "--page", file]),
            &[file, "a device or a pipe, not a file"],
        );
    }
    fs::rename(at("pipe"), at("pipe.gguf")).expect("renamed");
    probe(strs(&generate(&at("pipe.gguf"))), &["pipe.gguf", "no such folder or file"]);

    // Tensors that share one storage of 0.6 MB, 10 times as many as allowed.
    fs::create_dir(at("shared")).expect("made");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(Path::new(&micro).join(file), Path::new(&at("shared")).join(file)).expect("copied");
    }
    fs::write(at("shared/pytorch_model.bin"), sharing(150_000, 40)).expect("written");
    probe(strs(&generate(&at("shared"))), &["pytorch_model.bin", "more than 4 times"]);

    // Regular expressions of an adapter, each matched against every module.
    fs::create_dir(at("adapter")).expect("made");
    let patterns: serde_json::Map<String, Value> =
        (0..1000).map(|n| (format!("(.*[a-z]+)*layers.{n}.(self_attn|mlp).*"), json!(4))).collect();
    let settings =
        json!({ "peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "rank_pattern": patterns });
    fs::write(at("adapter/adapter_config.json"), settings.to_string()).expect("written");
    let mut args = strs(&generate(&micro));
    args.extend(["--adapter".to_owned(), at("adapter")]);
    probe(args, &["adapter_config.json", "more than 64 regular expressions"]);

    // A piece of 200,000 letters.
    let pieces = self::model(home.path(), &[]);
    fs::remove_file(pieces.join("tokenizer.json")).expect("removed");
    fs::write(pieces.join("tokenizer.model"), piece(&"a".repeat(200_000))).expect("written");
    let mut args = strs(&generate(text(&pieces)));
    args.truncate(5);
    args.extend(["--prompt".to_owned(), "a".to_owned()]);
    probe(args, &["tokenizer.model", "at most 1024"]);
}

/// Commands that read files other than models and problems, and settings beyond the available data.
#[test]
fn files_and_settings_of_every_program_have_bounds() {
    let home = tempfile::tempdir().expect("a folder");
    let at = |name: &str| home.path().join(name).display().to_string();
    let sparse = |name: &str, gigabytes: u64| {
        fs::File::create(at(name)).and_then(|file| file.set_len(gigabytes << 30)).expect("a sparse file");
        at(name)
    };
    let (settings, weights) = (sparse("settings.toml", 3), sparse("weights.safetensors", 6));
    fs::write(at("one.jsonl"), json!({ "question": "a = 5 ; ? a :", "answer": "5" }).to_string()).expect("written");
    let (micro, run) = (micro(), checkout("fixtures/micro").display().to_string());
    let (one, out) = (at("one.jsonl"), at("out"));
    let gpt2 = checkout("fixtures/reasoners/gpt2").display().to_string();
    let too_long = "longer than 268435456 bytes";
    for (program, args, bound) in [
        ("probe", &[&run, "--recipe", &settings, "--out", &out][..], too_long),
        ("probe", &[&micro, "--like", &settings, "--data", &one, "--out", &out], too_long),
        ("probe", &["import", &weights, "--as", "coconut", "--base", &gpt2, "--out", &out], "weights.safetensors"),
        ("probe", &[&run, "--problems", "100000000", "--out", &out], "--problems must be from 1 to 10000000"),
        ("intervene", &[&run, "--batch", "100000000", "--out", &out], "--batch must be from 1 to 10000000"),
        ("report", &["merge", &settings, "--out", &out], "not a folder"),
    ] {
        refused(&mut bounded(program, args), &[bound]);
    }
    let batch = ["--preset", "smoke", "--threads", "1", "--only", "base", "--out", &out, "--set", "base.batch=200000"];
    let many = ["--set", "data.rows=200000", "--dry-run"];
    refused(&mut bounded("train", &[&batch[..], &many].concat()), &["phase base: 200000 rows", "are free"]);
}

#[test]
fn weights_that_are_not_finite_are_named_at_opening() {
    let home = tempfile::tempdir().expect("a folder");
    let model = self::model(home.path(), &[]);
    let file = model.join("model.safetensors");
    let mut bytes = fs::read(&file).expect("read");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("JSON");
    let name = "model.layers.1.post_attention_layernorm.weight";
    let at = 8 + header + entries[name]["data_offsets"][0].as_u64().expect("an offset") as usize;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&file, bytes).expect("written");
    let model = ["--model", text(&model), "--threads", "1"];
    for verb in [&["generate", "--ids", "5"][..], &["lens", "--ids", "5"], &["patterns", "--ids", "5"], &["session"]] {
        refused(&mut bounded("probe", &[verb, &model].concat()), &[name, "not finite"]);
    }
}

/// A SentencePiece model of one piece.
fn piece(token: &str) -> Vec<u8> {
    let varint = |mut n: usize| {
        let mut out = vec![];
        while n >= 128 {
            out.push(n as u8 & 127 | 128);
            n >>= 7;
        }
        out.push(n as u8);
        out
    };
    let inner = [&[10][..], &varint(token.len()), token.as_bytes()].concat();
    [&[10][..], &varint(inner.len()), &inner].concat()
}

/// A state dict of `torch.save`'s older form: `n` tensors of one storage of `values` floats.
fn sharing(values: i32, n: usize) -> Vec<u8> {
    let text = |text: &str| [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let number = |number: i32| [&b"J"[..], &number.to_le_bytes()].concat();
    let magic = [&[0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19][..], b"."].concat();
    let tensor = [
        &b"ctorch._utils\n_rebuild_tensor_v2\n(("[..],
        &text("storage"),
        b"ctorch\nFloatStorage\n",
        &text("0"),
        &text("cpu"),
        &number(values),
        b"NtQ",
        &number(0),
        b"(",
        &number(values),
        b"t(",
        &number(1),
        b"t\x89ccollections\nOrderedDict\n)RtRq\x00",
    ]
    .concat();
    let mut state = [&b"\x80\x02}("[..], &text("w0"), &tensor].concat();
    for number in 1..n {
        state.extend([&text(&format!("w{number}"))[..], b"h\x00"].concat());
    }
    state.extend(b"u.");
    let keys = [&b"\x80\x02]"[..], &text("0"), b"a."].concat();
    let mut storage = (values as u64).to_le_bytes().to_vec();
    storage.resize(8 + 4 * values as usize, 0);
    [magic, b"\x80\x02M\xe9\x03.".to_vec(), b"\x80\x02}.".to_vec(), state, keys, storage].concat()
}
