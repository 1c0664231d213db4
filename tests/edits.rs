//! `--record`, `--hook` and `--list-hooks`: recordings and interventions during generation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::common::known::micro;
use crate::common::programs::{offline, probe_refuses, run_probe, text, text_of};
use crate::common::{load_tensors, save_tensors};
use burn::tensor::Device;
use safetensors::SafeTensors;
use serde_json::Value;
use switchyard::interventions::{At, Later, Steps, Zero};
use switchyard::model::checkpoint::{HostTensor, ModelFiles};
use switchyard::model::{Activation, Decoder, HookSpec, Hooks};
use switchyard::study::sweep::Continuation;

const MICRO: &str = "fixtures/micro/sft/checkpoint";
/// A model without latent steps.
const TEXT: &str = "fixtures/tiny/qwen3_tied";
const PROMPT: &str = "<bos> a = 5 ; h = a + 4 ; c = h - a ; ? c :";

/// Continues the prompt on the fixture.
fn generate(more: &[&str]) -> Value {
    let json = run_probe(&[&["generate", MICRO, "--prompt", PROMPT, "--json"], more].concat());
    serde_json::from_str(&json).expect("JSON")
}

/// Every hook point of known rows.
const ALL: &str =
    "hook_embed,blocks.*.*,blocks.*.ln1.*,blocks.*.ln2.*,blocks.*.attn.*,blocks.*.mlp.*,ln_final.*,latent.*";

#[test]
fn a_recording_equals_the_known_row() {
    let dir = tempfile::tempdir().expect("a folder");
    let [while_generating, known] = ["generated", "known"].map(|name| dir.path().join(name));
    let trace = generate(&["--record", ALL, "--out", text(&while_generating)])["trace"].clone();
    let recorded = load_tensors(&while_generating);
    let bytes = std::fs::read(&while_generating).expect("the recording");
    let header = SafeTensors::read_metadata(&bytes).expect("a header").1.metadata().clone().expect("metadata");
    let meta = |key: &str| serde_json::from_str::<Value>(&header[key]).expect("JSON");
    let ids = meta("ids")[0].as_array().expect("ids").iter().map(Value::to_string).collect::<Vec<_>>();
    let responses = trace["positions"].as_array().expect("positions");
    assert_eq!(ids.len(), trace["prompt"].as_array().map_or(0, Vec::len) + responses.len());
    // The last token is never fed.
    let fed = ids.len() - 1;
    run_probe(&["activations", MICRO, "--ids", &ids[..fed].join(","), "--hooks", ALL, "--out", text(&known)]);
    let of_known = load_tensors(&known);
    assert!(recorded.keys().eq(of_known.keys()) && recorded.len() > 40, "{:?}", recorded.keys());
    for (name, (shape, values)) in &of_known {
        assert_eq!(&recorded[name].0, shape, "{name}");
        // Masked scores are so large that they would dominate every difference.
        let seen = |values: &[f32]| values.iter().map(|x| if *x < -1e20 { 0.0 } else { *x }).collect::<Vec<_>>();
        let off = crate::common::relative(&seen(&recorded[name].1), &seen(values));
        assert!(off < 1e-5, "{name}: off by {off:e}");
    }
    // Steps count from 1, and every position has a label.
    let steps = meta("steps");
    let steps: Vec<&str> = steps[0].as_array().expect("steps").iter().filter_map(Value::as_str).collect();
    let latents: Vec<usize> = (0..steps.len()).filter(|&i| steps[i].starts_with("latent")).collect();
    assert_eq!((steps[0], steps[latents[0]], steps[latents[1]]), ("prompt", "latent[1,1]", "latent[1,2]"));
    assert_eq!(meta("positions")["latent.hook_source"], serde_json::json!(latents));
}

#[test]
fn a_selection_can_be_recorded() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("part");
    let hooks = "blocks.-1.hook_resid_post@latent[*,2],boundary.hook_logits,blocks.0.attn.hook_pattern@pos[3]";
    let trace = generate(&["--record", hooks, "--out", text(&file)])["trace"].clone();
    let recorded = load_tensors(&file);
    let positions = trace["positions"].as_array().expect("positions");
    let blocks = positions.iter().filter(|p| p["kind"] == "swi").count();
    let prompt = trace["prompt"].as_array().map_or(0, Vec::len);
    assert_eq!(recorded["blocks.3.hook_resid_post@latent[*,2]"].0[..2], [1, blocks]);
    assert_eq!(recorded["blocks.0.attn.hook_pattern@pos[3]"].0[2..], [1, prompt + positions.len() - 1]);
    // A token is sampled after the prompt and after every fed position.
    assert_eq!(recorded["boundary.hook_logits"].0[1], positions.len());
}

#[test]
fn a_null_change_changes_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("own");
    let hooks = ["blocks.1.hook_resid_post", "blocks.*.attn.hook_z", "blocks.0.mlp.hook_post", "latent.hook_injected"];
    let normal = generate(&["--record", &hooks.join(","), "--out", text(&file)]);
    for hook in hooks {
        for change in ["scale:1".to_owned(), format!("swap:{}", text(&file))] {
            for select in ["", "@latent", "@pos[25]"] {
                let edit = format!("{hook}{select}={change}");
                let changed = generate(&["--hook", &edit]);
                assert_eq!(changed["trace"], normal["trace"], "{edit}");
                assert!(changed["hooks"][0]["fired"].as_u64() > Some(0), "{edit}");
                assert_eq!(changed["hooks"][0]["mean_change"], 0.0, "{edit}");
            }
        }
    }
    assert!(normal.get("hooks").is_none());
}

#[test]
fn noise_differs_by_point_and_position_and_is_reproducible() {
    let dir = tempfile::tempdir().expect("a folder");
    let recorded = |name: &str| {
        let file = dir.path().join(name);
        let (all, again) =
            ("blocks.*.hook_resid_post@prompt=random_norm", "blocks.0.hook_resid_post@text[0]=random_norm");
        let recording = ["--record", "blocks.*.hook_resid_post", "--out", text(&file)];
        generate(&[&["--hook", all, "--hook", again], &recording[..]].concat());
        load_tensors(&file)
    };
    let (one, same) = (recorded("one"), recorded("same"));
    let prompt = generate(&[])["trace"]["prompt"].as_array().map_or(0, Vec::len);
    let mut noise: Vec<Vec<f32>> = vec![];
    for layer in 0..4 {
        let (shape, values) = &one[&format!("blocks.{layer}.hook_resid_post")];
        assert_eq!(values, &same[&format!("blocks.{layer}.hook_resid_post")].1);
        let width = *shape.last().expect("a width");
        // The first layer's first token of the response has the text index of the prompt's first position.
        let drawn = if layer == 0 { prompt + 1 } else { prompt };
        noise.extend(values.chunks(width).take(drawn).map(<[f32]>::to_vec));
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    for (i, a) in noise.iter().enumerate() {
        for (j, b) in noise[..i].iter().enumerate() {
            let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
            assert!(cosine.abs() < 0.7, "draws {j} and {i}: {cosine}");
        }
    }
}

#[test]
fn zero_at_the_latents_equals_intervene() {
    let study = micro("sft", 12);
    let settings = study.settings();
    let sweep = study.sweep().expect("a sweep");
    let zero = Continuation { inputs: Some((&Zero, Steps::All)), ..Continuation::default() };
    let outcomes = sweep.run(&[zero], Later::Recompute, At::Both).expect("zero").remove(0);
    let corpus = &study.corpus;
    let (mut changed, mut compared) = (0, 0);
    for (outcome, prompt) in outcomes.iter().zip(&corpus.test_prompts).filter(|(outcome, _)| outcome.switched) {
        let ids: Vec<String> = prompt.iter().map(u32::to_string).collect();
        let (k_min, k_cap, most) = (settings.k_min, settings.k_cap, settings.max_new_tokens);
        let [k_min, k_cap, most] = [k_min, k_cap, most].map(|n| n.to_string());
        let base = ["generate", MICRO, "--json", "--k-min", &k_min, "--k-cap", &k_cap, "--max-new-tokens", &most];
        let of = |more: &[&str]| -> Value {
            let out = run_probe(&[&base[..], &["--ids", &ids.join(",")], more].concat());
            serde_json::from_str(&out).expect("JSON")
        };
        let zeroed = of(&["--hook", "latent.hook_injected=zero"]);
        let answer = |value: &Value| corpus.answer("", value["text"].as_str().expect("text"));
        assert_eq!(answer(&zeroed), outcome.answer, "problem {compared}");
        changed += usize::from(answer(&of(&[])) != outcome.answer);
        compared += 1;
    }
    assert!(compared >= 6 && changed >= 3, "{changed} of {compared} answers changed");
}

#[test]
fn an_added_vector_is_in_the_recording() {
    let dir = tempfile::tempdir().expect("a folder");
    let [by, normal, added] = ["by", "normal", "added"].map(|name| dir.path().join(name));
    let hook = "blocks.1.hook_resid_mid";
    let base = ["activations", MICRO, "--prompt", PROMPT, "--hooks", hook, "--out"];
    run_probe(&[&base[..], &[text(&normal)]].concat());
    let before = load_tensors(&normal);
    let (shape, old) = &before[hook];
    let d = shape[2];
    let values: Vec<f32> = (0..d).map(|i| i as f32 / 10.0 - 1.0).collect();
    let direction = HostTensor::new(vec![d], values.clone()).expect("fits");
    save_tensors(&by, [("direction".to_owned(), &direction)]);
    let edit = format!("{hook}@pos[4]=add:{}", text(&by));
    run_probe(&[&base[..], &[text(&added), "--hook", &edit]].concat());
    let after = load_tensors(&added);
    for (position, (new, old)) in after[hook].1.chunks(d).zip(old.chunks(d)).enumerate() {
        let expected = |i: usize| if position == 4 { old[i] + values[i] } else { old[i] };
        assert!(new.iter().enumerate().all(|(i, x)| *x == expected(i)), "position {position}");
    }
    // A recording of a position that counts from the end.
    let (last, swapped) = (dir.path().join("last"), dir.path().join("swapped"));
    let from_end = format!("{hook}@pos[-1]");
    run_probe(&["activations", MICRO, "--prompt", PROMPT, "--hooks", &from_end, "--out", text(&last)]);
    let edit = format!("{hook}@pos[4]=swap:{}", text(&last));
    run_probe(&[&base[..], &[text(&swapped), "--hook", &edit]].concat());
    assert_eq!(load_tensors(&swapped)[hook].1[4 * d..5 * d], load_tensors(&last)[&from_end].1);
    // The vector at a hook point of another size, and a file with many rows.
    let rows = dir.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"ids\": [1, 2]}\n{\"ids\": [1, 3]}\n").expect("writes");
    let many = dir.path().join("many");
    run_probe(&["activations", MICRO, "--prompts", text(&rows), "--hooks", hook, "--out", text(&many)]);
    let refuse = |edit: &str, parts: &[&str]| {
        probe_refuses(&[&base[..], &[text(&added), "--hook", edit]].concat(), parts);
    };
    refuse(&format!("blocks.1.attn.hook_z=swap:{}", text(&by)), &["`direction`", &format!("[{d}]"), "expected"]);
    refuse(&format!("{hook}=swap:{}", text(&many)), &["2 sequences"]);
    refuse(&format!("blocks.0.hook_resid_mid=swap:{}", text(&normal)), &["did you mean `blocks.1.hook_resid_mid`?"]);
    refuse(&format!("{hook}=swap:/no/such/file"), &["/no/such/file"]);
    refuse(&format!("{hook}=swap:{}", text(&rows)), &["rows.jsonl", "not a safetensors file"]);
}

/// Without a gate, the up projection's output is our `hook_pre`.
#[test]
fn another_name_of_a_point_is_recorded_at_the_last_position() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("last");
    let hook = "blocks.0.mlp.in.hook_out@pos[-1]";
    run_probe(&["activations", "fixtures/tiny/gpt2_tied", "--ids", "1,2,3", "--hooks", hook, "--out", text(&out)]);
    assert_eq!(load_tensors(&out).into_keys().collect::<Vec<_>>(), ["blocks.0.mlp.hook_pre@pos[-1]"]);
}

#[test]
fn a_latent_of_another_run_can_be_swapped_in() {
    let dir = tempfile::tempdir().expect("a folder");
    let (donor, after) = (dir.path().join("donor"), dir.path().join("after"));
    let other = "<bos> a = 3 ; h = a * 2 ; c = h - a ; ? c :";
    let point = "latent.hook_injected";
    let step = format!("{point}@latent[1,2]");
    run_probe(&["generate", MICRO, "--prompt", other, "--record", &step, "--out", text(&donor)]);
    let given = &load_tensors(&donor)[&step].1;
    // A recording of one position fits any position: the donor's second latent replaces this row's first.
    let edit = format!("{point}@latent[1,1]=swap:{}", text(&donor));
    generate(&["--hook", &edit, "--record", &format!("{point}@latent[1,1]"), "--out", text(&after)]);
    assert_eq!(&load_tensors(&after)[&format!("{point}@latent[1,1]")].1, given);
}

#[test]
fn learned_positions_limit_a_generation() {
    for new in ["47", "18446744073709551615"] {
        let args = ["generate", "fixtures/tiny/gpt2_tied", "--ids", "1,2", "--max-new-tokens", new];
        probe_refuses(&args, &["exceed the 48 positions"]);
    }
}

#[test]
fn a_chat_template_needs_text() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("prompts.jsonl");
    std::fs::write(&file, "{\"prompt\": \"Hi\"}\n{\"ids\": [1, 2, 4]}\n").expect("writes");
    let output = offline("probe", &["generate", "fixtures/released/base", "--chat", "--prompts", text(&file)]).output();
    let output = output.expect("it runs");
    let said = text_of(&output);
    assert!(output.status.code() == Some(2) && said.contains("prompts.jsonl:2: `ids` with --chat"), "{said}");
}

/// With the row's own random draws, and although the second change fires in other rows only.
#[test]
fn the_lens_of_a_batch_reads_the_run_of_each_row() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("prompts.jsonl");
    let lines = [PROMPT, "<bos> a = 5 ; ? a :", "<bos> c"].map(|prompt| format!("{{\"prompt\": \"{prompt}\"}}\n"));
    std::fs::write(&file, lines.concat()).expect("writes");
    for change in ["latent[*,*]=random_norm", "text[6]=scale:1.01"] {
        let hook = format!("blocks.1.hook_resid_post@{change}");
        let out = run_probe(&["generate", MICRO, "--prompts", text(&file), "--hook", &hook, "--lens=30", "--json"]);
        assert_eq!(out.lines().count(), 3, "{change}");
        for line in out.lines() {
            let row: Value = serde_json::from_str(line).expect("JSON");
            let positions = row["trace"]["positions"].as_array().expect("positions");
            let latents: Vec<&Value> = positions.iter().filter(|position| position["kind"] == "latent").collect();
            let readings = row["lens_top"].as_array().expect("readings");
            assert!(!latents.is_empty() && latents.len() == readings.len(), "{row}");
            for (latent, reading) in latents.iter().zip(readings) {
                let tokens = reading.as_array().expect("tokens");
                let read = tokens.iter().find(|token| token[0] == "</swi>").expect("a token");
                let [ran, read] = [&latent["p_exit"], &read[1]].map(|p| p.as_f64().expect("a probability"));
                assert!((ran - read).abs() < 1e-3, "{change}: p(</swi>) is {ran} in the run and {read} in the lens");
            }
        }
    }
}

#[test]
fn a_hook_of_known_rows_equals_that_of_a_forward() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out");
    let ids = [3_u32, 5, 8, 6, 9, 4];
    let written: Vec<String> = ids.iter().map(u32::to_string).collect();
    let edit = "blocks.1.attn.hook_z@pos[2]=scale:-0.5";
    let args = ["activations", MICRO, "--ids", &written.join(","), "--logits", "--hook", edit, "--out", text(&out)];
    run_probe(&args);
    let model = Decoder::load(&ModelFiles::open(MICRO).expect("opens"), &Device::flex()).expect("loads");
    let spec: HookSpec = "blocks.1.attn.hook_z@pos[2]".parse().expect("a hook");
    let mut hooks = Hooks::none();
    let half = |_: &switchyard::model::Site, value: Activation| match value {
        Activation::Rank4(x) => Ok(Activation::Rank4(x.mul_scalar(-0.5))),
        Activation::Rank3(_) => anyhow::bail!("z has rank 4"),
    };
    hooks.replace(&spec, 4, half).expect("attached");
    let logits = crate::common::values(&model.logits(&[ids.to_vec()], &mut hooks).expect("a forward"));
    let off = crate::common::relative(&load_tensors(&out)["logits"].1, &logits);
    assert!(off < 1e-6, "off by {off:e}");
    let normal = crate::common::values(&model.logits(&[ids.to_vec()], &mut Hooks::none()).expect("a forward"));
    assert!(crate::common::relative(&logits, &normal) > 1e-3, "the hook did nothing");
}

#[test]
fn the_list_of_hooks_matches_the_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let file: PathBuf = dir.path().join("all");
    let list = run_probe(&["generate", MICRO, "--list-hooks"]);
    assert_eq!(run_probe(&["activations", MICRO, "--list-hooks"]), list);
    assert!(list.lines().all(|line| line.chars().count() <= 100), "{list}");
    let shapes: BTreeMap<String, String> = (list.lines().skip(1))
        .map(|line| {
            let (name, rest) = line.split_once(' ').expect("a name and a shape");
            (name.to_owned(), rest.trim().split_inclusive(']').next().expect("a shape").to_owned())
        })
        .collect();
    let hooks = format!("{ALL},blocks.*.attn.hook_result,boundary.hook_logits");
    generate(&["--record", &hooks, "--out", text(&file)]);
    let recorded = load_tensors(&file);
    let mut seen = BTreeMap::new();
    for (name, (shape, _)) in &recorded {
        let parts: Vec<&str> = name.split('.').collect();
        let pattern =
            if parts[0] == "blocks" { ["blocks", "*"].iter().chain(&parts[2..]).copied().collect() } else { parts };
        let pattern = pattern.join(".");
        let attention = name.ends_with("hook_pattern") || name.ends_with("hook_attn_scores");
        let axes: Vec<String> = shape.iter().map(usize::to_string).collect();
        let expected = match attention {
            true => format!("[B, {}, L, T]", axes[1]),
            false => format!("[B, L, {}]", axes[2..].join(", ")),
        };
        assert_eq!(shapes.get(&pattern), Some(&expected), "{name}");
        seen.insert(pattern, ());
    }
    assert!(seen.keys().eq(shapes.keys()), "{:?}", shapes.keys());
    assert!(!run_probe(&["generate", TEXT, "--list-hooks"]).contains("latent."), "it has no latent steps");
}

#[test]
fn impossible_hooks_are_errors_before_any_work() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out");
    let refuse = |model: &str, more: &[&str], parts: &[&str]| {
        probe_refuses(&[&["generate", model, "--ids", "5,6", "--max-new-tokens", "9"], more].concat(), parts);
        assert!(!out.exists(), "a file was written for {more:?}");
    };
    let edit = |edit: &str, parts: &[&str]| refuse(MICRO, &["--hook", edit], parts);
    edit("blocks.0.hook_resid_pots=zero", &["did you mean `blocks.0.hook_resid_post`?"]);
    edit("blocks.9.hook_resid_post=zero", &["layer 9", "4 layers"]);
    edit("blocks.0.hook_resid_post", &["HOOK=CHANGE"]);
    edit("blocks.0.hook_resid_post=zeroo", &["did you mean `zero`?"]);
    edit("blocks.0.hook_resid_post=scale", &["scale:NUMBER"]);
    edit("blocks.0.hook_resid_post=resample", &["needs values of other problems", "intervene --hook"]);
    edit("blocks.0.attn.hook_z[head=9]=zero", &["has 4 heads, 0 to 3"]);
    edit("blocks.0.hook_resid_post@pos[-3]=zero", &["pos[-3]", "before the first of 2"]);
    edit("blocks.0.hook_resid_post=scale:two", &["`two`"]);
    edit("blocks.0.hook_resid_post=scale:inf", &["finite"]);
    edit("blocks.0.attn.hook_pattern=swap:x", &["hook_pattern", "only zero and scale"]);
    edit("blocks.0.hook_resid_post@latent[0,1]=zero", &["from 1"]);
    edit("blocks.0.hook_resid_post@latent[1,6]=zero", &["5 latent steps at most"]);
    edit("blocks.0.hook_resid_post@text[8]=zero", &["9 new tokens"]);
    edit("latent.hook_injected@prompt=zero", &["latent steps only"]);
    refuse(TEXT, &["--hook", "blocks.0.hook_resid_post@latent=zero"], &["has no latent steps"]);
    refuse(TEXT, &["--hook", "hook_embed@pos[10]=zero"], &["2 prompt and 8 new"]);
    let record = |hooks: &str, parts: &[&str]| refuse(MICRO, &["--record", hooks, "--out", text(&out)], parts);
    record("blocks.*.hook_resid_pots", &["did you mean"]);
    record("blocks.0.hook_resid_post@latent[1,6]", &["5 latent steps at most"]);
    let args = ["generate", MICRO, "--ids", "5", "--record", "hook_embed", "--out", "/no/folder/x"];
    probe_refuses(&args, &["/no/folder"]);
    // This prompt opens no such block: an error after the run, and no file.
    let never = ["--prompt", PROMPT, "--hook", "blocks.0.hook_resid_post@latent[9,1]=zero"];
    probe_refuses(&[&["generate", MICRO][..], &never].concat(), &["never fired", "latent steps in"]);
    let never = ["--prompt", PROMPT, "--record", "hook_embed@latent[9,1]", "--out", text(&out)];
    probe_refuses(&[&["generate", MICRO][..], &never].concat(), &["never fired", "latent steps in"]);
    assert!(!out.exists());
}
