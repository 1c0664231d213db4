use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use serde_json::{Value, json};
use switchyard::loading::Checkpoint;
use switchyard::model::Decoder;
use switchyard::model::checkpoint::peft::{
    Adapter, AdapterConfig, AdapterWeights, Apply, Difference, Factors, Targets, difference, save_adapter,
};
use switchyard::model::checkpoint::{Dtype, EMBED, HEAD, HostTensor, ModelFiles, SaveOptions, save_hf_folder};
use switchyard::model::config::ModelConfig;
use switchyard::model::heads::{self, HeadSizes};

use super::support::*;
use crate::common::programs::{done, program, refused};
use crate::common::save_tensors;

const Q0: &str = "model.layers.0.self_attn.q_proj.weight";
const UP1: &str = "model.layers.1.mlp.up_proj.weight";

/// The file of an adapter.
const TENSORS: &str = "adapter_model.safetensors";

fn tensor(shape: &[usize], salt: usize) -> HostTensor {
    let data = values(shape.iter().product(), salt).iter().map(|v| v / 64.0).collect();
    HostTensor::new(shape.to_vec(), data).expect("fits")
}

fn settings(names: &[&str]) -> AdapterConfig {
    AdapterConfig {
        r: 3,
        alpha: 6.0,
        targets: Targets::Names(names.iter().map(|n| n.to_string()).collect()),
        base_model: Some("base".into()),
        ..AdapterConfig::default()
    }
}

fn factors(config: &ModelConfig, names: &[&str]) -> BTreeMap<String, Factors> {
    let shapes: BTreeMap<_, _> = switchyard::model::checkpoint::expected_parameters(config).into_iter().collect();
    let wanted = shapes.iter().filter(|(name, _)| names.iter().any(|n| name.ends_with(&format!("{n}.weight"))));
    wanted
        .enumerate()
        .map(|(i, (name, s))| (name.clone(), Factors { a: tensor(&[3, s[1]], i), b: tensor(&[s[0], 3], i + 50) }))
        .collect()
}

fn base(dir: &Path, value: &Value) -> ModelFiles {
    save(dir, &config(value), &SaveOptions::default());
    ModelFiles::open_folder(dir).expect("opens")
}

/// An adapter with LoRA factors only.
fn of_factors(config: AdapterConfig, factors: BTreeMap<String, Factors>) -> AdapterWeights {
    AdapterWeights { config, factors, replaced: BTreeMap::new(), token_rows: None, head_rows: None }
}

/// Writes a model and opens it.
fn written(
    dir: &Path,
    config: &ModelConfig,
    tensors: impl IntoIterator<Item = anyhow::Result<(String, HostTensor)>>,
) -> ModelFiles {
    save_hf_folder(dir, config, tensors, &SaveOptions::default()).expect("saves");
    ModelFiles::open_folder(dir).expect("opens")
}

/// Every tensor of the second model is in the first, within 1e-5.
#[track_caller]
fn same_weights(found: &ModelFiles, wanted: &ModelFiles) {
    for (name, want) in wanted.tensors().map(|read| read.expect("reads")) {
        let found = found.tensor(&name).expect("reads");
        let off = found.data.iter().zip(&want.data).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(found.shape == want.shape && off < 1e-5, "`{name}` is off by {off:e}");
    }
}

#[test]
fn an_adapter_reads_back_merges_and_resizes() {
    let root = tempfile::tempdir().expect("temp");
    let base = base(&root.path().join("base"), &qwen3_json());
    let dir = root.path().join("adapter");
    let names = ["q_proj", "up_proj"];
    let lora = factors(&base.config, &names);
    let embed = tensor(&[37, 32], 9);
    let replaced = BTreeMap::from([(EMBED.to_string(), embed.clone())]);
    let files = vec![("chat_template.jinja".to_string(), b"hello".to_vec())];
    let all =
        AdapterWeights { config: settings(&names), factors: lora.clone(), replaced, token_rows: None, head_rows: None };
    save_adapter(&dir, &all, Dtype::F32, &files, false).expect("saves");

    let read = Arc::new(Adapter::open(&dir).expect("opens"));
    assert_eq!(read.config, settings(&names));
    assert_eq!(read.scaling(Q0), 2.0);
    assert_eq!(read.factor_names().count(), 4);
    assert_eq!(read.factors(Q0).expect("reads").as_ref(), lora.get(Q0));
    assert_eq!(read.factors(EMBED).expect("reads"), None);

    let q = base.tensor(Q0).expect("reads");
    let merged = base.with_adapter(read.clone(), Apply::Merged).expect("fits");
    assert_eq!(merged.config.vocab_size, 37);
    assert_eq!(merged.tensor(EMBED).expect("reads"), embed);
    assert_eq!(merged.templates().expect("reads").expect("some").choose(None).expect("a default"), "hello");
    let found = merged.tensor(Q0).expect("reads");
    let f = &lora[Q0];
    for (o, i) in [(0, 0), (63, 31), (17, 5)] {
        let dot: f64 = (0..3).map(|k| f64::from(f.b.data[o * 3 + k]) * f64::from(f.a.data[k * 32 + i])).sum();
        assert_eq!(found.data[o * 32 + i], (f64::from(q.data[o * 32 + i]) + 2.0 * dot) as f32);
    }
    let apart = ModelFiles::open_folder(root.path().join("base"))
        .expect("opens")
        .with_adapter(read, Apply::ReplacedOnly)
        .expect("fits");
    assert_eq!(apart.tensor(Q0).expect("reads"), q);
    assert_eq!(apart.tensor(EMBED).expect("reads"), embed);
}

/// As in the paper's release: both embeddings cut (151936 to 151672 rows), keys of each PEFT version.
#[test]
fn keys_of_every_peft_version_are_understood() {
    let root = tempfile::tempdir().expect("temp");
    let base = base(&root.path().join("base"), &llama_json());
    let q = base.tensor(Q0).expect("reads");
    let dir = root.path().join("adapter");
    fs::create_dir(&dir).expect("creates");
    let (a, b, embed, head) = (tensor(&[3, 32], 1), tensor(&[32, 3], 2), tensor(&[39, 32], 3), tensor(&[39, 32], 4));
    for [ka, kb, ke, kh] in [
        ["lora_A.weight", "lora_B.weight", "model.embed_tokens.weight", "lm_head.weight"],
        [
            "lora_A.default.weight",
            "lora_B.default.weight",
            "model.embed_tokens.modules_to_save.weight",
            "lm_head.base_layer.weight",
        ],
        [
            "lora_A.weight",
            "lora_B.weight",
            "model.embed_tokens.modules_to_save.default.weight",
            "lm_head.modules_to_save.weight",
        ],
    ] {
        let q_proj = "base_model.model.model.layers.0.self_attn.q_proj";
        let tensors = [(format!("{q_proj}.{ka}"), &a), (format!("{q_proj}.{kb}"), &b)];
        let tables = [(format!("base_model.model.{ke}"), &embed), (format!("base_model.model.{kh}"), &head)];
        save_tensors(&dir.join(TENSORS), [tensors, tables].concat());
        let json = json!({ "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 6, "bias": "none", "use_rslora": true,
            "target_modules": r"model\.layers\.0\.self_attn\.q_proj", "modules_to_save": ["embed_tokens", "lm_head"], "lora_dropout": 0.05 });
        fs::write(dir.join("adapter_config.json"), json.to_string()).expect("writes");
        let adapter = Arc::new(Adapter::open(&dir).expect("opens"));
        assert_eq!(adapter.scaling(Q0), 6.0 / 3f64.sqrt());
        let open = || ModelFiles::open_folder(root.path().join("base")).expect("opens");
        let both = open().with_adapter(adapter, Apply::Merged).expect("fits");
        assert_eq!(both.config.vocab_size, 39);
        assert_eq!(both.tensor(EMBED).expect("reads"), embed);
        assert_eq!(both.tensor(HEAD).expect("reads"), head);
        assert_ne!(both.tensor(Q0).expect("reads"), q);
        // A merged model can be saved and opened.
        let out = root.path().join(format!("merged-{ka}-{kh}"));
        let again = written(&out, &both.config, both.tensors());
        assert_eq!(again.tensor(Q0).expect("reads"), both.tensor(Q0).expect("reads"));
    }
}

#[test]
fn unsupported_settings_are_refused_by_name() {
    for (key, found) in [
        ("peft_type", json!("IA3")),
        ("task_type", json!("SEQ_CLS")),
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("bias", json!("all")),
        ("rank_pattern", json!({ "q_proj": 0 })),
        ("alpha_pattern", json!({ "q_proj": "much" })),
        ("exclude_modules", json!("layers.(0")),
        ("layers_pattern", json!([1])),
        ("init_lora_weights", json!("pissa")),
        ("trainable_token_indices", json!({ "norm": [1] })),
        ("trainable_token_indices", json!([1, 1])),
        ("layer_replication", json!([[0, 1]])),
        ("r", json!(0)),
        ("lora_alpha", json!("much")),
        ("use_rslora", json!("true")),
        ("ensure_weight_tying", json!(1)),
        ("revision", json!(2)),
        ("target_modules", json!(3)),
        ("layers_to_transform", json!(["a"])),
    ] {
        let mut value = settings(&["q_proj"]).to_json();
        value[key] = found;
        fails(AdapterConfig::from_json(&value, "x/adapter_config.json"), &["x/adapter_config.json", key]);
    }
    let kept = settings(&["q_proj"]);
    assert_eq!(AdapterConfig::from_json(&kept.to_json(), "c").expect("reads"), kept);
}

/// As in transformers 5.24, a folder with both uses its model as the base, whatever the adapter names.
#[test]
fn an_adapter_applies_to_the_model_next_to_it() {
    let root = tempfile::tempdir().expect("temp");
    let (below, both) = (root.path().join("base"), root.path().join("both"));
    let base = base(&below, &llama_json());
    let names = ["q_proj"];
    let adapter = of_factors(settings(&names), factors(&base.config, &names));
    let apart = root.path().join("apart");
    save_adapter(&apart, &adapter, Dtype::F32, &[], false).expect("saves");
    save(&both, &config(&llama_json()), &SaveOptions::default());
    assert!(ModelFiles::open_folder(&both).expect("opens").notes.is_empty());
    fs::copy(apart.join("adapter_config.json"), both.join("adapter_config.json")).expect("copies");
    let (q, wanted) = (base.tensor(Q0).expect("reads"), Arc::new(Adapter::open(&apart).expect("opens")));
    assert_eq!(ModelFiles::open_folder(&both).expect("opens").tensor(Q0).expect("reads"), q, "settings alone");
    fs::copy(apart.join("adapter_model.safetensors"), both.join("adapter_model.safetensors")).expect("copies");
    let opened = ModelFiles::open_folder(&both).expect("opens");
    let wanted = base.with_adapter(wanted, Apply::Merged).expect("fits").tensor(Q0).expect("reads");
    assert_ne!(wanted, q);
    assert_eq!(opened.tensor(Q0).expect("reads"), wanted);
    assert_names(&opened.notes.join("\n"), &["a whole model and an adapter", "move adapter_config.json away"]);
    // A matrix as stored would lack the factors of the first of two adapters.
    let second = Arc::new(Adapter::open(&apart).expect("opens"));
    let over = opened.with_adapter(second, Apply::Merged).expect("fits");
    assert!(over.stored(Q0, true).expect("reads").is_none() && over.stored(UP1, true).expect("reads").is_some());
    // Several adapters of one model are in folders named after them.
    let several = root.path().join("several");
    save_adapter(&several.join("default"), &adapter, Dtype::F32, &[], false).expect("saves");
    fails(Adapter::open(&several), &["several", "name one of", "default"]);
}

/// PEFT does not find a headless model's modules in a causal model, and ignores all factors.
#[test]
fn an_adapter_of_a_base_class_is_an_error() {
    let root = tempfile::tempdir().expect("temp");
    let base = base(&root.path().join("base"), &llama_json());
    let names = ["q_proj"];
    let dir = root.path().join("adapter");
    let all = of_factors(settings(&names), factors(&base.config, &names));
    save_adapter(&dir, &all, Dtype::F32, &[], false).expect("saves");
    let path = dir.join("adapter_model.safetensors");
    let bytes = fs::read(&path).expect("reads");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a file");
    let renamed = file.iter().map(|(name, view)| (name.replace("model.model.layers", "model.layers"), view));
    safetensors::serialize_to_file(renamed.collect::<Vec<_>>(), None, &path).expect("writes");
    fails(Adapter::open(&dir), &["base_model.model.layers.0.self_attn.q_proj", "AutoModel"]);
}

#[test]
fn mismatches_with_the_base_are_named() {
    let root = tempfile::tempdir().expect("temp");
    let config = config(&qwen3_json());
    let dir = root.path().join("adapter");
    let names = ["q_proj", "up_proj"];
    let lora = factors(&config, &names);
    let write = |s: &AdapterConfig, f: &BTreeMap<String, Factors>, r: &[(&str, HostTensor)]| {
        let replaced = r.iter().map(|(n, t)| (n.to_string(), t.clone())).collect();
        let all = AdapterWeights { replaced, ..of_factors(s.clone(), f.clone()) };
        save_adapter(&dir, &all, Dtype::F32, &[], true).expect("saves");
        Adapter::open(&dir).expect("opens").fit(&config)
    };
    assert!(write(&settings(&names), &lora, &[]).is_ok());
    let mut short = lora.clone();
    short.remove(UP1);
    fails(write(&settings(&names), &short, &[]), &["adapter_model.safetensors", UP1, "target_modules"]);
    let first_layer = AdapterConfig { layers: Some(vec![0]), ..settings(&names) };
    fails(write(&first_layer, &factors(&config, &["q_proj"]), &[]), &["layers.0.mlp.up_proj", "missing"]);
    let mut wide = lora.clone();
    if let Some(f) = wide.get_mut(Q0) {
        f.a = tensor(&[3, 40], 1);
    }
    fails(write(&settings(&names), &wide, &[]), &[Q0, "[64, 40]", "[64, 32]"]);
    fails(write(&settings(&names), &lora, &[(EMBED, tensor(&[40, 31], 1))]), &["embed_tokens", "32", "[40, 31]"]);
    let both = [(EMBED, tensor(&[40, 32], 1)), (HEAD, tensor(&[40, 32], 2))];
    fails(write(&settings(&names), &lora, &both), &["lm_head", "embed_tokens", "tied"]);
    fails(write(&settings(&names), &lora, &[("model.layers.7.x.weight", tensor(&[4], 1))]), &["layers.7.x"]);
    let same = tensor(&[41, 32], 1);
    assert_eq!(write(&settings(&names), &lora, &[(EMBED, same.clone()), (HEAD, same)]).expect("fits").vocab_size, 41);
    let mut head = lora.clone();
    head.insert(HEAD.into(), Factors { a: tensor(&[3, 32], 1), b: tensor(&[40, 3], 1) });
    // Not a target: ignored, as in PEFT. A target: the head becomes a separate matrix.
    assert!(write(&settings(&names), &head, &[]).expect("fits").tie_word_embeddings);
    let targets = ["q_proj", "up_proj", "lm_head"];
    assert!(!write(&settings(&targets), &head, &[]).expect("fits").tie_word_embeddings);

    fs::write(dir.join("config.json"), json!({ "vocab_size": "40" }).to_string()).expect("writes");
    fails(Adapter::open(&dir), &["config.json: `vocab_size`", "a whole number"]);
    fs::remove_file(dir.join("adapter_model.safetensors")).expect("removes");
    fails(Adapter::open(&dir), &["adapter_model.safetensors"]);
    fails(Adapter::open(root.path()), &["adapter_config.json"]);
}

/// Appended rows and changed rows of a tied model's table.
#[test]
fn token_rows_are_read_and_gaps_are_errors() {
    let root = tempfile::tempdir().expect("temp");
    let base_dir = root.path().join("base");
    let base = base(&base_dir, &qwen3_json());
    let old = base.config.vocab_size;
    let names = ["q_proj"];
    let lora = factors(&base.config, &names);
    let rows = tensor(&[3, 32], 5);
    let open = |ids: &[usize], name: &str| {
        let dir = root.path().join(name);
        let config = AdapterConfig { token_rows: ids.to_vec(), ..settings(&names) };
        let all = AdapterWeights { token_rows: Some(rows.clone()), ..of_factors(config, lora.clone()) };
        save_adapter(&dir, &all, Dtype::F32, &[], false).expect("saves");
        let adapter = Arc::new(Adapter::open(&dir).expect("opens"));
        assert_eq!(adapter.config, all.config);
        ModelFiles::open_folder(&base_dir).expect("opens").with_adapter(adapter, Apply::Merged)
    };
    let both = open(&[old, 2, old + 1], "rows").expect("fits");
    assert_eq!(both.config.vocab_size, old + 2);
    let (before, after) = (base.tensor(EMBED).expect("reads"), both.tensor(EMBED).expect("reads"));
    for (token, row) in after.data.chunks_exact(32).enumerate() {
        let want = match token {
            _ if token == old => &rows.data[..32],
            2 => &rows.data[32..64],
            _ if token == old + 1 => &rows.data[64..],
            _ => &before.data[token * 32..][..32],
        };
        assert_eq!(row, want, "row {token}");
    }
    fails(open(&[old, 2, old + 3], "gap"), &["trainable_token_indices", "missing"]);
}

/// Tokens added by `resize_token_embeddings` and trained as `trainable_token_indices`: PEFT saves the table that was resized below them.
#[test]
fn token_rows_over_a_resized_table_are_read() {
    let root = tempfile::tempdir().expect("temp");
    let base_dir = root.path().join("base");
    let base = base(&base_dir, &llama_json());
    let (dir, old) = (root.path().join("adapter"), base.config.vocab_size);
    fs::create_dir(&dir).expect("creates");
    let (table, head, rows) = (tensor(&[old + 2, 32], 1), tensor(&[old + 2, 32], 2), tensor(&[2, 32], 3));
    let named = |(key, tensor): (&str, _)| (format!("base_model.model.{key}"), tensor);
    let tensors = [
        ("model.layers.0.self_attn.q_proj.lora_A.weight", &tensor(&[3, 32], 4)),
        ("model.layers.0.self_attn.q_proj.lora_B.weight", &tensor(&[32, 3], 5)),
        ("model.embed_tokens.token_adapter.base_layer.weight", &table),
        ("model.embed_tokens.token_adapter.trainable_tokens_delta", &rows),
        ("lm_head.weight", &head),
    ];
    save_tensors(&dir.join(TENSORS), tensors.map(named));
    let json = json!({ "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 6,
        "target_modules": r"model\.layers\.0\.self_attn\.q_proj", "trainable_token_indices": [5, old + 1] });
    fs::write(dir.join("adapter_config.json"), json.to_string()).expect("writes");
    let adapter = Arc::new(Adapter::open(&dir).expect("opens"));
    let both = ModelFiles::open_folder(&base_dir).expect("opens").with_adapter(adapter, Apply::Merged).expect("fits");
    assert_eq!(both.config.vocab_size, old + 2);
    let mut wanted = table;
    wanted.data[5 * 32..6 * 32].copy_from_slice(&rows.data[..32]);
    wanted.data[(old + 1) * 32..].copy_from_slice(&rows.data[32..]);
    assert_eq!(both.tensor(EMBED).expect("reads"), wanted);
    assert_eq!(both.tensor(HEAD).expect("reads"), head);
}

/// Two merged LoRA phases with known singular values are recovered as one adapter.
#[test]
fn merged_phases_are_recovered_as_one_adapter() {
    let root = tempfile::tempdir().expect("temp");
    let base_dir = root.path().join("base");
    let base = base(&base_dir, &qwen3_json());
    let old = base.config.vocab_size;
    // With unit vectors the product of the factors has the singular values 4, 2 and 1.
    let unit = |n: usize, at: usize| (0..n).map(move |i| f32::from(u8::from(i == at)));
    let known = |shape: &[usize]| Factors {
        a: HostTensor::new(vec![3, shape[1]], (0..3).flat_map(|k| unit(shape[1], k + 2)).collect()).expect("fits"),
        b: HostTensor::new(
            vec![shape[0], 3],
            (0..shape[0])
                .flat_map(|o| {
                    [4.0, 2.0, 1.0].into_iter().enumerate().map(move |(k, s)| if o == k + 1 { s } else { 0.0 })
                })
                .collect(),
        )
        .expect("fits"),
    };
    let mut config = base.config.clone();
    config.vocab_size = old + 2;
    let tensors = base.tensors().map(|read| {
        let (name, mut weight) = read.expect("reads");
        if name == EMBED {
            weight.data.extend(tensor(&[2, 32], 8).data);
            weight.shape[0] += 2;
            weight.data[3 * 32] += 1.0;
        } else if name == Q0 || name == UP1 {
            let f = known(&weight.shape);
            for o in 0..weight.shape[0] {
                for i in 0..weight.shape[1] {
                    let change: f32 = (0..3).map(|k| f.b.data[o * 3 + k] * f.a.data[k * weight.shape[1] + i]).sum();
                    weight.data[o * weight.shape[1] + i] += change;
                }
            }
        }
        Ok((name, weight))
    });
    let trained = written(&root.path().join("trained"), &config, tensors);
    let make = |r: usize| difference(&base, &trained, r).expect("an adapter");

    let Difference { adapter: all, lost } = make(3);
    let AdapterWeights { config, replaced, .. } = &all;
    assert!(lost < 1e-9, "rank 3 leaves out {lost:e}");
    assert!(replaced.is_empty());
    assert_eq!(config.token_rows, [3, old, old + 1]);
    assert_eq!(config.targets, Targets::Names(vec!["q_proj".into(), "up_proj".into()]));
    let dir = root.path().join("adapter");
    save_adapter(&dir, &all, Dtype::F32, &[], false).expect("saves");
    let adapter = Arc::new(Adapter::open(&dir).expect("opens"));
    let again = ModelFiles::open_folder(&base_dir).expect("opens").with_adapter(adapter, Apply::Merged).expect("fits");
    same_weights(&again, &trained);
    // Eckart–Young: rank 2 drops the smallest singular value, rank 1 the two smallest.
    for (r, want) in [(1, 5.0 / 21.0), (2, 1.0 / 21.0)] {
        let lost = make(r).lost;
        assert!((lost - want).abs() < 1e-6, "rank {r} leaves out {lost}, expected {want}");
    }
    fails(difference(&base, &base, 2), &["same matrices"]);
}

/// `probe adapter` recovers PEFT's adapter from the merged model, and rejects by name changes that no adapter can store.
#[test]
fn the_program_recovers_a_merged_adapter_of_peft() {
    let root = tempfile::tempdir().expect("temp");
    let open = |adapter: &Path| {
        let base = ModelFiles::open_folder("fixtures/tiny/qwen3_tied").expect("opens");
        let adapter = Arc::new(Adapter::open(adapter).expect("opens"));
        base.with_adapter(adapter, Apply::Merged).expect("fits")
    };
    let merged = open(Path::new("fixtures/tiny/qwen3_tied_peft_tokens"));
    let trained = root.path().join("trained");
    written(&trained, &merged.config, merged.tensors());
    let run = |base: &str, out: &str| {
        let mut command = program("probe");
        command.arg("adapter").arg(&trained).args(["--base", base, "--rank", "4", "--dtype", "f32", "--out"]);
        command.arg(root.path().join(out));
        command
    };
    let (printed, text) = done(&mut run("fixtures/tiny/qwen3_tied", "found"));
    assert!((printed + &text).contains("4 token rows"), "{text}");
    same_weights(&open(&root.path().join("found")), &merged);
    // The same of the base with the adapter over it.
    let mut over = program("probe");
    over.args(["adapter", "fixtures/tiny/qwen3_tied", "--adapter", "fixtures/tiny/qwen3_tied_peft_tokens"]);
    over.args(["--base", "fixtures/tiny/qwen3_tied", "--rank", "4", "--dtype", "f32", "--out"]);
    done(over.arg(root.path().join("over")));
    same_weights(&open(&root.path().join("over")), &merged);
    refused(&mut run("fixtures/tiny/qwen3_tied", "found"), &["already exists"]);
    refused(&mut run("fixtures/tiny/llama_gqa", "other"), &["shapes differ"]);
    fs::write(trained.join("heads.safetensors"), []).expect("writes");
    refused(&mut run("fixtures/tiny/qwen3_tied", "heads"), &["heads.safetensors"]);
}

/// The heads next to an adapter are those of the model under it.
#[test]
fn an_adapter_brings_its_heads() {
    let root = tempfile::tempdir().expect("temp");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(Path::new("fixtures/tiny/qwen3_tied_peft").join(file), root.path().join(file)).expect("copies");
    }
    let (below, device) = ("fixtures/tiny/qwen3_tied", Device::flex());
    let sizes = HeadSizes { projection: Some(8), ..HeadSizes::default() };
    let model = Decoder::load(&ModelFiles::open_folder(below).expect("opens"), &device).expect("loads");
    let tensors = model.with_new_heads(sizes, 1).expect("new heads").export_heads().expect("values");
    fs::write(root.path().join(heads::FILE), heads::packed(&tensors).expect("packs")).expect("writes");
    let opened = Checkpoint::open(below, Some(root.path()), Apply::Merged).expect("opens");
    assert_eq!(opened.heads_folder(), root.path());
    assert_eq!(opened.load(&device).expect("loads").model.heads.sizes(), sizes);
}

/// A padded table that was cut in training is written whole; a trained bias is an error.
#[test]
fn a_cut_table_is_written_whole_and_a_trained_bias_is_refused() {
    let root = tempfile::tempdir().expect("temp");
    let changed = |base: &ModelFiles, name: &str, cut: usize, what: &str| {
        let mut config = base.config.clone();
        config.vocab_size -= cut;
        let rows = config.vocab_size;
        let tensors = base.tensors().map(|read| {
            let (found, mut weight) = read.expect("reads");
            if found == EMBED {
                weight.data.truncate(rows * weight.width());
                weight.shape[0] = rows;
            }
            if found.ends_with(what) {
                weight.data[0] += 1.0;
            }
            Ok((found, weight))
        });
        written(&root.path().join(name), &config, tensors)
    };
    let qwen3 = || ModelFiles::open_folder("fixtures/tiny/qwen3_tied").expect("opens");
    let cut = changed(&qwen3(), "cut", 2, "layers.0.mlp.up_proj.weight");
    let Difference { adapter, .. } = difference(&qwen3(), &cut, 1).expect("an adapter");
    assert!(adapter.token_rows.is_none() && adapter.replaced.contains_key(EMBED));
    let dir = root.path().join("adapter");
    save_adapter(&dir, &adapter, Dtype::F32, &[], false).expect("saves");
    let again = qwen3().with_adapter(Arc::new(Adapter::open(&dir).expect("opens")), Apply::Merged).expect("fits");
    assert_eq!(again.config.vocab_size, cut.config.vocab_size);
    assert_eq!(again.tensor(EMBED).expect("reads"), cut.tensor(EMBED).expect("reads"));
    let qwen2 = ModelFiles::open_folder("fixtures/tiny/qwen2_tied").expect("opens");
    let biased = changed(&qwen2, "biased", 0, "layers.0.self_attn.q_proj.bias");
    fails(difference(&qwen2, &biased, 1), &["q_proj.bias", "cannot store biases"]);
}

/// Rank-1 changes of q and v only, of every down projection, of an embedding row and of the positions: written under PEFT's names for
/// GPT-2, and read back as trained.
#[test]
fn a_gpt2_adapter_has_pefts_names() {
    let root = tempfile::tempdir().expect("temp");
    let base = ModelFiles::open_folder("fixtures/tiny/gpt2_tied").expect("opens");
    let changed = ["q_proj.weight", "v_proj.weight", "down_proj.weight"];
    let tensors = base.tensors().map(|read| {
        let (name, mut weight) = read.expect("reads");
        let width = weight.width();
        if changed.iter().any(|end| name.ends_with(end)) {
            weight
                .data
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x += (i / width % 5) as f32 * (i % width % 3) as f32 / 8.0);
        }
        if name == EMBED || name.contains("embed_positions") {
            weight.data[0] += 1.0;
        }
        Ok((name, weight))
    });
    let tensors: Vec<_> = tensors.collect();
    let trained = written(&root.path().join("trained"), &base.config, tensors);
    let Difference { adapter, lost } = difference(&base, &trained, 1).expect("an adapter");
    assert!(lost < 1e-6, "{lost}");
    assert_eq!(adapter.config.r, 2, "q and v side by side");
    let dir = root.path().join("adapter");
    save_adapter(&dir, &adapter, Dtype::F32, &[], false).expect("saves");
    let file =
        switchyard::model::checkpoint::SafetensorsFile::open(&dir.join("adapter_model.safetensors")).expect("opens");
    let shape = |name: &str| file.shape(&format!("base_model.model.transformer.{name}")).map(<[usize]>::to_vec);
    assert_eq!(shape("h.1.attn.c_attn.lora_A.weight"), Some(vec![2, 32]));
    assert_eq!(shape("h.1.attn.c_attn.lora_B.weight"), Some(vec![96, 2]));
    assert_eq!(shape("h.0.attn.c_proj.lora_B.weight"), Some(vec![32, 2]), "PEFT's `c_proj` is that of attention too");
    assert_eq!(shape("h.0.mlp.c_proj.lora_A.weight"), Some(vec![2, 56]));
    assert_eq!(shape("wte.token_adapter.trainable_tokens_delta"), Some(vec![1, 32]));
    assert_eq!(shape("wpe.weight"), Some(vec![48, 32]));
    let settings: Value =
        serde_json::from_slice(&fs::read(dir.join("adapter_config.json")).expect("reads")).expect("JSON");
    assert_eq!(settings["target_modules"], json!(["c_attn", "c_proj"]));
    assert_eq!(
        (&settings["trainable_token_indices"], &settings["fan_in_fan_out"]),
        (&json!({ "wte": [0] }), &json!(true))
    );
    let again = base.with_adapter(Arc::new(Adapter::open(&dir).expect("opens")), Apply::Merged).expect("fits");
    same_weights(&again, &trained);
}
