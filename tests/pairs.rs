//! `intervene pairs`: patches between a user's prompts. A cell equals a separate forward with that hook, on a model without latents
//! and on one with a known circuit; errors name file and line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::tensor::Device;
use serde_json::json;
use switchyard::experiments::pair_patching::{self, Config, Places};
use switchyard::latent::Sequence;
use switchyard::model::checkpoint::{ModelFiles, SaveOptions, save_hf_folder};
use switchyard::model::config::{Family, ModelConfig};
use switchyard::model::{Decoder, HookSpec, Hooks};
use switchyard::schema::{Component, Form, HeadPatchRow, PatchMode, PatchedNodeRow};
use switchyard::store::{Measurements, read};
use switchyard::study::Study;
use switchyard::study::circuits::given;
use switchyard::text::Vocabulary;
use tempfile::TempDir;

use crate::common::circuit_models::{COUNTS, DECOY, READER, WRITER, study};
use crate::common::known::Purpose;
use crate::common::programs::{done, program, refused, text};
use crate::common::tiny_config;

fn intervene(args: &[&str]) -> Command {
    let mut command = program("intervene");
    command.args(args);
    command
}

/// A folder with a tiny word-level model without a `<latent>` token.
fn plain_model() -> TempDir {
    let vocabulary = Vocabulary::from_words((0..20).map(|i| format!("w{i}"))).expect("words");
    let base = tiny_config(Family::Llama, true);
    let config = ModelConfig { vocab_size: vocabulary.size(), eos_token_ids: vec![2], ..base };
    let model = Decoder::random(&config, 2, &Device::flex()).expect("a model");
    let dir = tempfile::tempdir().expect("a folder");
    let weights = model.export().expect("weights").into_iter().map(Ok);
    save_hf_folder(dir.path(), &config, weights, &SaveOptions::default()).expect("saves");
    vocabulary.save(dir.path()).expect("saves");
    dir
}

fn written(folder: &Path, lines: &[String]) -> PathBuf {
    let file = folder.join("own.jsonl");
    std::fs::write(&file, lines.join("\n")).expect("a file");
    file
}

/// Values at a hook of a row run alone, by position.
fn held(model: &Decoder, ids: &[u32], point: &str) -> BTreeMap<usize, Vec<f32>> {
    let mut found = BTreeMap::new();
    let mut hooks = Hooks::none();
    let spec: HookSpec = point.parse().expect("a hook");
    let layers = model.config().num_hidden_layers;
    let keep = |site: &switchyard::model::Site, values: &mut [f32]| {
        found.insert(site.places[0].position, values.to_vec());
        Ok(())
    };
    hooks.edit(&spec, layers, keep).expect("attached");
    model.logits(&[ids.to_vec()], &mut hooks).expect("a forward");
    drop(hooks);
    found
}

/// The last position's logit of `says[0]` minus that of `says[1]`, in one uncached forward under hooks.
fn lead(model: &Decoder, ids: &[u32], says: [u32; 2], hooks: &mut Hooks) -> f64 {
    let logits = crate::common::values(&model.logits(&[ids.to_vec()], hooks).expect("a forward"));
    let last = &logits[logits.len() - model.config().vocab_size..];
    f64::from(last[says[0] as usize]) - f64::from(last[says[1] as usize])
}

/// TransformerLens' name of a node, and the node's slice of the value.
fn named(row: &PatchedNodeRow, config: &ModelConfig) -> (String, std::ops::Range<usize>) {
    let (layer, width) = (row.layer, config.hidden_size);
    match row.component {
        Component::Head => {
            let head = row.head.expect("a head") * config.head_dim;
            (format!("blocks.{layer}.attn.hook_z"), head..head + config.head_dim)
        }
        Component::Mlp => (format!("blocks.{layer}.hook_mlp_out"), 0..width),
        Component::Resid if layer == 0 => ("blocks.0.hook_resid_pre".into(), 0..width),
        _ => (format!("blocks.{}.hook_resid_post", layer - 1), 0..width),
    }
}

#[test]
fn every_cell_is_a_separate_forward_on_a_model_without_latents() {
    let (folder, temp) = (plain_model(), tempfile::tempdir().expect("a folder"));
    let model = Decoder::load(&ModelFiles::open(text(folder.path())).expect("opens"), &Device::flex()).expect("loads");
    let vocabulary = Vocabulary::load(folder.path()).expect("a vocabulary");
    let (mut lines, mut rows) = (vec![], vec![]);
    for i in 0..4 {
        let prompts = [i, i + 7].map(|w| format!("w{} w{w} w3 w{}", (5 * i) % 20, 19 - i));
        let [clean, corrupt] = prompts.clone().map(|prompt| vocabulary.encode_row(&prompt).expect("ids"));
        // The clean run prefers the first token; for the last pair, the second.
        let gap = |w: u32| {
            lead(&model, &clean, [w, 5], &mut Hooks::none()) - lead(&model, &corrupt, [w, 5], &mut Hooks::none())
        };
        let words: Vec<u32> = (0..20).map(|w| vocabulary.id(&format!("w{w}")).expect("a word")).collect();
        let by_gap = |a: &&u32, b: &&u32| gap(**a).total_cmp(&gap(**b));
        let mut says = [words.iter().max_by(by_gap), words.iter().min_by(by_gap)].map(|w| *w.expect("a word"));
        if i == 3 {
            says.reverse();
        }
        let [answer, wrong] = says.map(|id| vocabulary.token(id).expect("a token"));
        lines.push(json!({"clean": prompts[0], "corrupt": prompts[1], "answer": answer, "wrong": wrong}).to_string());
        rows.push((clean, corrupt, says));
    }
    let (file, out) = (written(temp.path(), &lines), temp.path().join("out"));
    let args = ["pairs", text(&file), text(folder.path()), "--modes", "denoise,noise,mean", "--out", text(&out)];
    let (_, said) = done(&mut intervene(&args));
    assert!(said.contains("1 of 4 pairs left out") && said.contains("own.jsonl:4"), "{said}");
    let files: Vec<PathBuf> = std::fs::read_dir(&out).expect("rows").flatten().map(|entry| entry.path()).collect();
    let named_so = |name: &str| files.iter().find(|file| text(file).contains(name) && text(file).ends_with(".parquet"));
    let cells: Vec<PatchedNodeRow> = read(named_so("patched_pairs").expect("patches")).expect("rows");
    let map: Vec<HeadPatchRow> = read(named_so("pair_patching").expect("a map")).expect("rows");
    let config = model.config();
    let nodes = 2 * (4 + 1) + 3;
    assert_eq!((cells.len(), map.len()), (3 * 3 * nodes * 4, 3 * nodes * 4), "pairs × modes × nodes × positions");
    let (mut compared, mut moving) = (0, 0);
    for cell in cells.iter().filter(|cell| cell.mode != PatchMode::Mean) {
        let (clean, corrupt, says) = &rows[cell.pair];
        let [from, into] = if cell.mode == PatchMode::Denoise { [clean, corrupt] } else { [corrupt, clean] };
        let (point, part) = named(cell, config);
        let position: usize =
            cell.place.trim_start_matches("position[").trim_end_matches(']').parse().expect("a position");
        let new = &held(&model, from, &point)[&position][part.clone()];
        let mut hooks = Hooks::none();
        let spec: HookSpec = format!("{point}@pos[{position}]").parse().expect("a hook");
        let put = |_: &switchyard::model::Site, values: &mut [f32]| {
            values[part.clone()].copy_from_slice(new);
            Ok(())
        };
        hooks.edit(&spec, 2, put).expect("attached");
        let patched = lead(&model, into, *says, &mut hooks);
        let normal = |ids: &[u32]| lead(&model, ids, *says, &mut Hooks::none());
        let moved = (patched - normal(into)) * if cell.mode == PatchMode::Denoise { 1.0 } else { -1.0 };
        let whole = normal(clean) - normal(corrupt);
        assert!((moved - cell.moved).abs() < 1e-4, "{cell:?}: {moved} in a separate forward");
        assert!((whole - cell.whole).abs() < 1e-4 && whole > 0.0, "{cell:?}: {whole}");
        compared += 1;
        moving += usize::from(moved.abs() > 0.01 * whole);
    }
    assert!(compared == 2 * 3 * nodes * 4 && moving * 5 > compared, "{moving} of {compared} patches do anything");
    for row in &map {
        let same = |c: &&PatchedNodeRow| {
            (c.mode, c.component, c.layer, c.head, &c.place)
                == (row.mode, row.component, row.layer, row.head, &row.place)
        };
        let (moved, whole) = cells.iter().filter(same).fold((0.0, 0.0), |(m, w), c| (m + c.moved, w + c.whole));
        assert!((row.effect.value - moved / whole).abs() < 1e-9 && row.form == Form::Text);
        assert!(row.identity.n == 3 && row.effect.n == 3 && row.effect.covers(row.effect.value));
    }
    // If only one position differs, its whole stream has the full effect; and rerunning the command changes nothing.
    let last = map.iter().find(|r| r.component == Component::Resid && r.layer == 2 && r.place == "position[3]");
    assert!((last.expect("the end").effect.value - 1.0).abs() < 1e-4);
    assert!(done(&mut intervene(&[&args[..], &["--resume"]].concat())).0.contains("done before"));
}

const BLOCK: &str = "= <swi> <latent> <latent> <latent> </swi> #";

/// `a b s v :` and its block, against the same with another digit.
fn of_known(n: usize, block: &str) -> Vec<String> {
    let letters = ["a", "b", "c", "d", "e"];
    let line = |i: usize| {
        let (x, y, v, w) = (letters[i % 5], letters[(i * 3 + 1) % 5], i % 7, (i + 1 + i % 5) % 7);
        let prompt = |digit: usize| format!("<bos> {x} {y} s {digit} : {block}");
        let says = [v, w].map(|digit| ((digit + 4) % 7).to_string());
        json!({"clean": prompt(v), "corrupt": prompt(w), "answer": says[0], "wrong": says[1]}).to_string()
    };
    (0..n).map(line).collect()
}

fn asked(folder: &Path, lines: &[String]) -> Config {
    Config { file: Some(written(folder, lines)), ..Config::default() }
}

/// A block that no decoder can emit.
#[test]
fn a_repeated_mark_is_one_place() {
    let temp = tempfile::tempdir().expect("a folder");
    let study = study(Purpose::Working, 4, 5);
    let lines = of_known(8, "= <swi> <latent> <latent> <latent> </swi> </swi> #");
    let (components, modes) = (vec![Component::Mlp], vec![PatchMode::Denoise]);
    let config = Config { places: Places::Name, components, modes, ..asked(temp.path(), &lines) };
    let rows = pair_patching::rows(&study, &config).expect("rows");
    for place in ["source", "latent[1]", "latent[3]", "swi_end"] {
        let cells = rows.iter().filter(|r| r.place == place && r.layer == 0).count();
        assert_eq!(cells, 1, "{place}");
    }
}

/// The recurrence runs latent steps in the prompt; the tool names writer, counter and reader, and not the decoy.
#[test]
fn a_known_circuit_with_latents_is_named() {
    use Component::{Head, Mlp};
    let temp = tempfile::tempdir().expect("a folder");
    let study = study(Purpose::Working, 4, 5);
    let config = asked(temp.path(), &of_known(21, BLOCK));
    let rows = pair_patching::rows(&study, &config).expect("rows");
    assert!(rows.iter().all(|r| r.form == Form::Latents && r.identity.n == 21));
    for mode in [PatchMode::Denoise, PatchMode::Noise] {
        let strong = |component, layer, head, place: &str| {
            let is = |r: &&HeadPatchRow| {
                (r.mode, r.component, r.layer, r.head, r.place.as_str()) == (mode, component, layer, head, place)
            };
            let row = rows.iter().find(is).expect("a cell");
            assert!(row.effect.low > 0.7 && row.matters(), "{mode:?} L{layer} {head:?} at {place}: {}", row.effect);
        };
        strong(Head, WRITER.0, Some(WRITER.1), "position[7]");
        strong(Mlp, COUNTS, None, "position[10]");
        strong(Head, READER.0, Some(READER.1), "position[12]");
        for row in rows.iter().filter(|r| r.mode == mode && r.component == Head && r.matters()) {
            let node = (row.layer, row.head.expect("a head"));
            assert!(node != DECOY && [WRITER, READER].contains(&node), "{node:?} at {}: {}", row.place, row.effect);
        }
    }
    // One cell of the journal against a separate forward: the reader at `#`, clean value into the corrupt row.
    let only = Config { components: vec![Head], layers: vec![READER.0], modes: vec![PatchMode::Denoise], ..config };
    let missing = Config { layers: vec![99], ..only.clone() };
    assert!(
        format!("{:#}", pair_patching::unfit(&study, &missing).expect_err("no such layer"))
            .contains("99 is not a layer")
    );
    let mut cells = Measurements::in_memory();
    pair_patching::measure(&study, &only, &mut cells).expect("patches");
    let given = given::read(&study, only.file.as_ref().expect("a file")).expect("pairs");
    for (number, given) in given.iter().take(3).enumerate() {
        let is = |r: &&PatchedNodeRow| {
            (r.pair, r.layer, r.head, r.place.as_str()) == (number, READER.0, Some(READER.1), "position[12]")
        };
        let cell = cells.rows().iter().find(is).expect("a cell");
        assert!(cells.rows().iter().all(|row| row.layer == READER.0));
        let moved = by_itself(&study, &given.pair.clean, &given.pair.corrupt, given.pair.says);
        assert!((cell.moved - moved).abs() < 1e-3, "{} in the journal, {moved} in a separate forward", cell.moved);
    }
    // A layer's stream is its output; the embedding counts with the first.
    let streams = |layer: usize| {
        let config = Config { components: vec![Component::Resid], layers: vec![layer], ..only.clone() };
        let rows = pair_patching::rows(&study, &config).expect("rows");
        rows.iter().map(|row| row.layer).collect::<BTreeSet<_>>()
    };
    let last = study.model.config().num_hidden_layers - 1;
    assert_eq!((streams(0), streams(last)), (BTreeSet::from([0, 1]), BTreeSet::from([last + 1])));
    let by_name = Config { places: Places::Name, ..only };
    let rows = pair_patching::rows(&study, &by_name).expect("rows");
    let reader = |r: &HeadPatchRow| (r.layer, r.head, r.place.as_str()) == (READER.0, Some(READER.1), "readout");
    assert!(rows.iter().any(|r| reader(r) && r.matters()) && rows.iter().any(|r| r.place == "latent[3]"));
}

fn by_itself(study: &Study, clean: &Sequence, corrupt: &Sequence, says: [u32; 2]) -> f64 {
    let model = &study.model;
    let (width, layers) = (model.config().head_dim, model.config().num_hidden_layers);
    let own = READER.1 * width..(READER.1 + 1) * width;
    let spec: HookSpec =
        format!("blocks.{}.attn.hook_z@pos[{}]", READER.0, clean.ids.len() - 1).parse().expect("a hook");
    let lead = |row: &Sequence, hooks: &mut Hooks| {
        let all = study.unroll(std::slice::from_ref(row), hooks).expect("a forward");
        let hidden = all.hidden_at(&[(0, row.ids.len() - 1)]).expect("the end");
        let logits = crate::common::values(&model.unembed(hidden.unsqueeze_dim(0)));
        f64::from(logits[says[0] as usize]) - f64::from(logits[says[1] as usize])
    };
    let mut new = vec![];
    let mut hooks = Hooks::none();
    hooks
        .edit(&spec, layers, |_, values| {
            new = values[own.clone()].to_vec();
            Ok(())
        })
        .expect("attached");
    lead(clean, &mut hooks);
    drop(hooks);
    let mut hooks = Hooks::none();
    hooks
        .edit(&spec, layers, |_, values| {
            values[own.clone()].copy_from_slice(&new);
            Ok(())
        })
        .expect("attached");
    lead(corrupt, &mut hooks) - lead(corrupt, &mut Hooks::none())
}

#[test]
fn invalid_pairs_are_errors_by_file_and_line() {
    let temp = tempfile::tempdir().expect("a folder");
    let study = study(Purpose::Working, 4, 5);
    let good = of_known(3, BLOCK);
    let pair = |clean: &str, corrupt: &str, answer: &str, wrong: &str| {
        json!({"clean": clean, "corrupt": corrupt, "answer": answer, "wrong": wrong}).to_string()
    };
    let (a, b) = ("<bos> a b s 1 : =", "<bos> a b s 2 : =");
    for (line, says) in [
        (pair(a, "<bos> a b s 2 2 : =", "5", "6"), "7 tokens, the corrupt one 8"),
        (pair(a, b, "5 6", "6"), "answer: \"5 6\" is 2 tokens"),
        (pair(a, b, "5", ""), "wrong: \"\" is 0 tokens"),
        (pair(a, b, "5", "Mary"), "wrong: the model has no token for \"Mary\""),
        (pair(a, b, "5", "5"), "the same token"),
        (pair(a, a, "5", "6"), "the two prompts are the same"),
        (pair(a, "<bos> a b s Mary : =", "5", "6"), "corrupt: words without a token in this model: Mary"),
        (pair("<latent> a", "<latent> b", "5", "6"), "begins with a latent position"),
        (pair("<bos> a <latent> b", "<bos> a b <latent>", "5", "6"), "latent steps at different positions"),
        (pair("  ", b, "5", "6"), "clean: the prompt is empty"),
        (json!({"clean": a, "corrupt": b, "answer": "5"}).to_string(), "missing field `wrong`"),
        ("{".into(), "expected {\"clean\""),
    ] {
        let file = written(temp.path(), &[&good[..2], &[String::new(), line.clone()]].concat());
        let said = format!("{:#}", given::read(&study, &file).expect_err(&line));
        assert!(said.contains("own.jsonl:4") && said.contains(says), "{line}: {said}");
    }
    assert_eq!(given::read(&study, &written(temp.path(), &good)).expect("pairs").len(), 3);
    // Pairs of different lengths: an error for places by number, allowed for places by name.
    let longer = of_known(4, "= = <swi> <latent> <latent> <latent> </swi> #").pop().expect("a line");
    let config = asked(temp.path(), &[&good[..], &[longer]].concat());
    let said = format!("{:#}", pair_patching::rows(&study, &config).expect_err("refused"));
    assert!(said.contains("own.jsonl:4") && said.contains("own.jsonl:1") && said.contains("--places name"), "{said}");
    pair_patching::rows(&study, &Config { places: Places::Name, ..config }).expect("named places");
    let alone = asked(temp.path(), &good[..1]);
    let said = format!("{:#}", pair_patching::rows(&study, &alone).expect_err("refused"));
    assert!(said.contains("an interval needs two"), "{said}");
}

#[test]
fn a_wrong_line_ends_the_command_before_any_work() {
    let (folder, temp) = (plain_model(), tempfile::tempdir().expect("a folder"));
    let line = json!({"clean": "w1 w2", "corrupt": "w1 w2 w3", "answer": "w4", "wrong": "w5"}).to_string();
    let (file, out) = (written(temp.path(), &[line]), temp.path().join("out"));
    for (args, says) in [
        (&["pairs", text(&file), text(folder.path())][..], "own.jsonl:1"),
        (&["pairs", "/no/such/pairs.jsonl", text(folder.path())], "/no/such/pairs.jsonl: no such file"),
        (&["--only", "pair_patching", "--problems", "2", "--phase", "sft"], "intervene pairs PAIRS.jsonl"),
    ] {
        refused(&mut intervene(&[args, &["--out", text(&out)]].concat()), &[says]);
        assert!(!out.exists(), "{args:?}");
    }
}

/// A model without switching: only text is measured, and rows of problems and of pairs share a folder.
#[test]
fn a_model_without_latents_has_text_rows_and_drawn_pairs() {
    let (folder, temp) = (plain_model(), tempfile::tempdir().expect("a folder"));
    let (out, data) = (temp.path().join("out"), temp.path().join("problems.jsonl"));
    let problem =
        |i: usize| json!({"question": format!("w{i} w{}", (3 * i) % 20), "answer": (i % 9).to_string()}).to_string();
    std::fs::write(&data, (0..20).map(problem).collect::<Vec<_>>().join("\n")).expect("problems");
    let run = |name: &str, args: &[&str]| done(program(name).args(args));
    let (said, told) = run("probe", &[text(folder.path()), "--data", text(&data), "--out", text(&out)]);
    assert!(told.contains("no teacher_forced: the model never learnt to switch"), "{told}");
    let (_, findings) = said.split_once("## Findings\n\n").expect("findings");
    let found: Vec<&str> = findings.lines().take_while(|line| !line.is_empty()).collect();
    assert!(found.len() == 1 && found[0].contains("of the problems are answered right"), "{said}");
    assert!(
        !said.lines().any(|line| ["forced", "text_only", "k_min"].iter().any(|group| line.starts_with(group))),
        "{said}"
    );

    let pair = |i: usize, says: [usize; 2]| {
        let prompt = |w: usize| format!("w{i} w{w} w3");
        json!({"clean": prompt(4), "corrupt": prompt(9), "answer": format!("w{}", says[0]), "wrong": format!("w{}", says[1])}).to_string()
    };
    // A random model may prefer either answer: one of each two lines is usable.
    let lines: Vec<String> = (0..4).flat_map(|i| [pair(i, [5, 6]), pair(i, [6, 5])]).collect();
    let file = written(temp.path(), &lines);
    run("intervene", &["pairs", text(&file), text(folder.path()), "--out", text(&out)]);
    let page = temp.path().join("page.html");
    run("report", &[text(&out), "--page", text(&page)]);
    let drawn: Vec<String> = std::fs::read_dir(out.join("figures"))
        .expect("figures")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("fig-pair-patching") && name.ends_with(".svg"))
        .collect();
    assert_eq!(drawn.len(), 1);
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("layer by position (ours)"));
    assert_eq!(html.matches("class=\"card\"").count(), 1, "no card about switching");
    // Other pairs under the same name are an error.
    let other = written(temp.path(), &lines[..4]);
    let args = ["pairs", text(&other), text(folder.path()), "--out", text(&out)];
    refused(&mut intervene(&args), &["--replace"]);
}
