//! LoRA factors trained over weights in their stored format, against the same over widened weights; and the adapter that a phase of
//! either writes over its base's files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::Device;
use switchyard::corpus::Row;
use switchyard::latent::{Reasoning, SwitchIds};
use switchyard::loading::{Checkpoint, NewRows};
use switchyard::model::checkpoint::peft::{Adapter, Apply};
use switchyard::model::checkpoint::{HostTensor, ModelFiles, write_random};
use switchyard::model::config::{Family, ModelConfig};
use switchyard::model::gradients::gradients_by_name;
use switchyard::model::lora::LoraSettings;
use switchyard::model::{Decoder, Hooks, Matrix};
use switchyard::recipe::{Compute, Optimizer};
use switchyard::text::Vocabulary;
use switchyard::train::sft;
use switchyard::train::state::{CheckpointExport, Over, PhaseFolder, TrainingHistory};
use switchyard::train::trainer::Trainer;

use crate::common::{one_step, relative, tiny_config, values};

/// Twenty words, and more embedding rows than words, as in Qwen3.
const WORDS: usize = 20;
const ROWS: usize = 32;

fn config(tied: bool) -> ModelConfig {
    ModelConfig {
        vocab_size: ROWS,
        hidden_size: 32,
        intermediate_size: 64,
        head_dim: 16,
        ..tiny_config(Family::Qwen3, tied)
    }
}

fn words() -> Vocabulary {
    Vocabulary::from_words((0..WORDS).map(|i| format!("w{i}"))).expect("words")
}

/// A base in bf16 (a folder) or Q8_0 (a `.gguf`), with its tokenizer.
fn base(root: &Path, tied: bool, gguf: bool) -> PathBuf {
    let folder = root.join(format!("base-{tied}-{gguf}"));
    let path = if gguf { folder.join("model.gguf") } else { folder.clone() };
    write_random(&config(tied), &path, 5).expect("writes");
    words().save(&folder).expect("saves");
    path
}

/// The base with switch tokens, before factors.
fn opened(path: &Path, dtype: Compute, device: &Device) -> (Decoder, Vocabulary) {
    let opened = Checkpoint::open(path.to_str().expect("a path"), None, Apply::Merged).expect("opens");
    let loaded = opened.load_to_train(dtype, device).expect("loads").add_switch_tokens(&NewRows::default());
    let loaded = loaded.expect("tokens");
    (loaded.model, loaded.vocabulary.expect("words"))
}

fn ids(vocabulary: &Vocabulary) -> SwitchIds {
    vocabulary.switch().expect("switch tokens")
}

fn rows(ids: SwitchIds) -> Vec<Row> {
    let row = |r: u32| {
        let words = |n: u32| (0..n).map(move |i| (i * 7 + r * 3) % WORDS as u32);
        let block = [ids.swi, ids.latent, ids.latent, ids.swi_end];
        let ids: Vec<u32> = words(4).chain(block).chain(words(5 + r)).collect();
        Row { ids, prompt: 3, teacher: None, slots: vec![], noise: None }
    };
    (0..4).map(row).collect()
}

/// Copied rows are close together and have their source's norm; random rows have the requested norm and are uncorrelated.
#[test]
fn rows_of_new_tokens_are_copied_or_drawn() {
    let temp = tempfile::tempdir().expect("a folder");
    let (path, device) = (base(temp.path(), false, false), Device::flex());
    let new_rows = |std: Option<f64>| -> Vec<Vec<f32>> {
        let opened = Checkpoint::open(path.to_str().expect("a path"), None, Apply::Merged).expect("opens");
        let loaded = opened.load_to_train(Compute::F32, &device).expect("loads");
        let loaded = loaded.add_switch_tokens(&NewRows { std, ..NewRows::default() }).expect("tokens");
        let Matrix::Dense(table) = &loaded.model.embed_tokens else { panic!("a dense table") };
        let table = values(&table.val());
        table.chunks(32).rev().take(3).map(<[f32]>::to_vec).collect()
    };
    let norm = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let apart = |rows: &[Vec<f32>]| norm(&rows[0].iter().zip(&rows[1]).map(|(a, b)| a - b).collect::<Vec<_>>());
    let (copied, drawn) = (new_rows(None), new_rows(Some(3.0)));
    assert!(apart(&copied) < 0.1 * norm(&copied[0]), "{copied:?}");
    assert!(apart(&drawn) > norm(&drawn[0]), "{drawn:?}");
    for row in &drawn {
        let std = norm(row) / 32f64.sqrt();
        assert!((2.0..4.0).contains(&std), "{std}");
    }
}

fn export<'a>(vocabulary: &'a Vocabulary, reasoning: &'a Reasoning, over: Option<Over<'a>>) -> CheckpointExport<'a> {
    CheckpointExport { vocabulary, over, reasoning, trained: TrainingHistory::default(), model_card: None }
}

/// Trained parts of the token tables.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tables {
    Whole,
    NewRows,
    Frozen,
}

/// A trainer as a run makes it.
fn trainer(model: Decoder, switch: SwitchIds, tables: Tables, dtype: Compute) -> Trainer {
    let tokens = [switch.swi, switch.swi_end, switch.latent];
    let apart = tables == Tables::NewRows && model.is_kept();
    let model = if apart { model.learning_tokens(&tokens).expect("the last rows") } else { model };
    let settings =
        LoraSettings { rank: 4, alpha: 8.0, train_embeddings: tables != Tables::Frozen, ..Default::default() };
    let model = model.fork(&Device::flex().autodiff()).train().with_lora(&settings).expect("factors");
    let mut trainer = Trainer::new(model, &Optimizer { dtype, weight_decay: 0.0, ..Optimizer::default() });
    if tables == Tables::NewRows {
        trainer.token_rows = Some(tokens.to_vec());
    }
    trainer
}

fn logits(model: &Decoder, switch: SwitchIds) -> Vec<f32> {
    let ids: Vec<u32> = rows(switch)[0].ids.iter().map(|id| if *id == switch.latent { 1 } else { *id }).collect();
    values(&model.logits(&[ids], &mut Hooks::none()).expect("a forward"))
}

fn gradients(trainer: &Trainer, switch: SwitchIds) -> BTreeMap<String, HostTensor> {
    let (grads, _) = sft::gradients(trainer, &one_step(switch.latent, 2), &rows(switch)).expect("gradients");
    gradients_by_name(&trainer.model, &grads).expect("on the host").into_iter().collect()
}

/// Separately trained rows are the last rows of the table.
#[track_caller]
fn same_gradients(ours: &BTreeMap<String, HostTensor>, theirs: &BTreeMap<String, HostTensor>, what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (name, theirs) in theirs {
        let own = ours.get(name).or_else(|| ours.get(&format!("{name}.learnt")));
        let own = &own.unwrap_or_else(|| panic!("{what}: no gradient of {name}")).data;
        let off = relative(own, &theirs.data[theirs.data.len() - own.len()..]);
        assert!(off < 1e-4, "{what}: {name} is off by {off:e}");
    }
}

#[test]
fn factors_over_stored_weights_have_the_gradients_of_those_over_floats() {
    let root = tempfile::tempdir().expect("a folder");
    for (tied, gguf) in BASES {
        let path = base(root.path(), tied, gguf);
        for tables in ALL {
            let begin = |dtype| {
                let (model, vocabulary) = opened(&path, dtype, &Device::flex());
                assert_eq!(model.is_kept(), dtype == Compute::Stored);
                let switch = ids(&vocabulary);
                (trainer(model, switch, tables, dtype), switch)
            };
            let ((mut kept, switch), (mut wide, _)) = (begin(Compute::Stored), begin(Compute::F32));
            let theirs = gradients(&wide, switch);
            let factors = theirs.keys().filter(|name| name.contains("lora")).count();
            assert_eq!(factors, 2 * 7 * 2, "A and B of seven projections in two layers");
            same_gradients(&gradients(&kept, switch), &theirs, &format!("{}, {tables:?}", path.display()));
            for step in 0..3 {
                let of = |trainer: &mut Trainer| {
                    sft::step(trainer, &one_step(switch.latent, 2), &rows(switch), 3e-3).expect("a step").loss
                };
                let (ours, theirs) = (of(&mut kept), of(&mut wide));
                assert!((ours - theirs).abs() < 1e-4, "{tables:?}, step {step}: {ours} against {theirs}");
            }
            let off = relative(&logits(&kept.policy(), switch), &logits(&wide.policy(), switch));
            assert!(off < 1e-2, "{tables:?}: the policies differ by {off:e}");
            let off = relative(&logits(&kept.policy(), switch), &logits(&kept.decoder(), switch));
            assert!(off < 1e-5, "{tables:?}: folding changes {off:e}");
        }
    }
}

const BASES: [(bool, bool); 4] = [(true, true), (false, true), (true, false), (false, false)];
const ALL: [Tables; 3] = [Tables::Whole, Tables::NewRows, Tables::Frozen];

/// Numbers of floats and of tensors in an adapter of these ranks over [`base`].
fn held(config: &ModelConfig, rank: usize, tables: Tables) -> (usize, usize) {
    let (d, q, kv, ffn) = (config.hidden_size, 4 * config.head_dim, 2 * config.head_dim, config.intermediate_size);
    let projections = [(d, q), (d, kv), (d, kv), (q, d), (d, ffn), (d, ffn), (ffn, d)];
    let factors: usize = projections.iter().map(|(d_in, d_out)| rank * (d_in + d_out)).sum();
    let rows = if tables == Tables::Whole { WORDS + 3 } else { 3 };
    let tables = if config.tie_word_embeddings { 1 } else { 2 };
    (config.num_hidden_layers * factors + tables * rows * d, config.num_hidden_layers * 14 + tables)
}

#[test]
fn a_phase_writes_an_adapter_that_the_next_one_trains_on() {
    for ((tied, gguf), in_memory) in
        BASES.into_iter().flat_map(|of| [Compute::Stored, Compute::F32].map(|as_| (of, as_)))
    {
        let root = tempfile::tempdir().expect("a folder");
        let path = base(root.path(), tied, gguf);
        let files = ModelFiles::open(path.to_str().expect("a path")).expect("opens");
        for tables in ALL {
            let what = format!("{}, {in_memory:?}, {tables:?}", path.display());
            let (mut model, vocabulary) = opened(&path, in_memory, &Device::flex());
            let name = format!("run-{tied}-{gguf}-{in_memory:?}-{tables:?}");
            let (switch, run) = (ids(&vocabulary), root.path().join(name));
            let (mut before, mut wide, mut held_before) = (logits(&model, switch), None, None);
            for (number, phase) in ["one", "two"].into_iter().enumerate() {
                let mut trainer = trainer(model, switch, tables, in_memory);
                if let Some(wide) = wide.take().filter(|_| in_memory == Compute::Stored) {
                    // The previous phase's factors: separate here, merged there.
                    same_gradients(&gradients(&trainer, switch), &gradients(&wide, switch), &what);
                }
                assert!(
                    relative(&logits(&trainer.decoder(), switch), &before) < 1e-5,
                    "{what}: {phase} begins elsewhere"
                );
                for _ in 0..2 {
                    sft::step(&mut trainer, &one_step(switch.latent, 2), &rows(switch), 3e-3).expect("a step");
                }
                let learnt = logits(&trainer.policy(), switch);
                assert!(relative(&learnt, &before) > 1e-3, "{what}: {phase} changed no weight");
                let folder = PhaseFolder::open(&run, phase).expect("a phase");
                let over = Over {
                    base: &files,
                    name: path.to_str().expect("a path"),
                    before: held_before.as_ref(),
                    tokens: &[switch.swi, switch.swi_end, switch.latent],
                    tables: tables == Tables::Whole,
                };
                let reasoning = Reasoning::default();
                let [to, whole] = [Some(over), None].map(|over| export(&vocabulary, &reasoning, over));
                let out = folder.export("checkpoint", &trainer.decoder(), &to).expect("writes");
                assert!(!out.join("model.safetensors").exists());
                let adapter = Adapter::open(&out).expect("opens");
                let rank = 4 * (number + 1);
                assert_eq!(adapter.config.r, rank, "{what}: ranks of the phases add up");
                assert_eq!(files.names().len(), ModelFiles::open_folder(&out).expect("opens").names().len());
                assert_eq!(adapter.factor_names().count(), 2 * 7, "{what}");
                // Its tensors, and a header entry for each.
                let (floats, tensors) = held(&files.config, rank, tables);
                let bytes = std::fs::metadata(out.join("adapter_model.safetensors")).expect("there").len() as usize;
                assert!(
                    (4 * floats..4 * floats + 256 * tensors).contains(&bytes),
                    "{what}: {bytes} for {floats} floats"
                );
                for dtype in [Compute::Stored, Compute::F32] {
                    let read = folder.import("checkpoint", dtype, &Device::flex()).expect("reads");
                    assert_eq!(read.config().vocab_size, vocabulary.size(), "{what}: padded rows are cut");
                    let off = relative(&logits(&read, switch), &learnt);
                    assert!(off < 1e-5, "{what}, {phase} read as {dtype:?}: off by {off:e}");
                }
                if in_memory == Compute::F32 {
                    // Factors are merged in f64 and rounded once, not per phase in f32.
                    folder.export("whole", &trainer.decoder(), &whole).expect("writes");
                    let read = |name| folder.import(name, Compute::F32, &Device::flex()).expect("reads");
                    let off = relative(&logits(&read("checkpoint"), switch), &logits(&read("whole"), switch));
                    assert!(off < 3e-6, "{what}, {phase}: the whole checkpoint is off by {off:e}");
                }
                // Opened alone, and over the base.
                let (own, over) = (out.to_str().expect("a path"), path.to_str().expect("a path"));
                for (model, adapter) in [(own, None), (over, Some(out.as_path()))] {
                    let opened = Checkpoint::open(model, adapter, Apply::Merged).expect("opens");
                    assert_eq!(opened.switch(), Some(switch));
                    let read = opened.load_as(Compute::Stored, &Device::flex()).expect("loads").model;
                    assert!(relative(&logits(&read, switch), &learnt) < 1e-5, "{what}, {phase}");
                }
                let read = |dtype| folder.import_to_train("checkpoint", dtype, &Device::flex()).expect("reads");
                (before, model) = (learnt, read(in_memory));
                wide = Some(self::trainer(read(Compute::F32), switch, tables, Compute::F32));
                held_before = folder.adapter("checkpoint").expect("opens");
            }
        }
    }
}

/// Trainable tables that did not change: writes the rows of new tokens, and no copy of the others.
#[test]
fn a_phase_without_learning_writes_the_rows_of_new_tokens() {
    let root = tempfile::tempdir().expect("a folder");
    for (tied, gguf) in BASES {
        let path = base(root.path(), tied, gguf);
        let files = ModelFiles::open(path.to_str().expect("a path")).expect("opens");
        let (model, vocabulary) = opened(&path, Compute::F32, &Device::flex());
        let switch = ids(&vocabulary);
        let frozen = trainer(model, switch, Tables::Whole, Compute::F32).decoder();
        let folder = PhaseFolder::open(root.path(), &format!("base-{tied}-{gguf}-out")).expect("a phase");
        let tokens = [switch.swi, switch.swi_end, switch.latent];
        let name = path.to_str().expect("a path");
        let over = Over { base: &files, name, before: None, tokens: &tokens, tables: true };
        let reasoning = Reasoning::default();
        let to = export(&vocabulary, &reasoning, Some(over));
        let out = folder.export("checkpoint", &frozen, &to).expect("writes");
        let adapter = Adapter::open(&out).expect("opens");
        let rows: Vec<usize> = tokens.iter().map(|token| *token as usize).collect();
        assert_eq!((adapter.config.r, &adapter.config.token_rows), (1, &rows));
        let read = folder.import("checkpoint", Compute::F32, &Device::flex()).expect("reads");
        assert_eq!(logits(&read, switch), logits(&frozen, switch));
    }
}

/// The state of a phase contains only trained parameters; the rest is from the base.
#[test]
fn a_restored_run_continues_with_the_same_bits() {
    let root = tempfile::tempdir().expect("a folder");
    let path = base(root.path(), false, true);
    for (tables, dtype) in ALL.into_iter().flat_map(|tables| [Compute::Stored, Compute::F32].map(|as_| (tables, as_))) {
        let (model, vocabulary) = opened(&path, dtype, &Device::flex());
        let switch = ids(&vocabulary);
        let step = |trainer: &mut Trainer| {
            sft::step(trainer, &one_step(switch.latent, 2), &rows(switch), 3e-3).expect("a step");
        };
        let folder = PhaseFolder::open(&root.path().join(format!("{tables:?}-{dtype:?}")), "sft").expect("a phase");
        let mut whole = trainer(model.clone(), switch, tables, dtype);
        step(&mut whole);
        folder.save(1, &whole).expect("saves");
        let state = folder.path.join("state-0000001/model.bpk");
        let trained = whole.model.parameters().iter().filter(|parameter| parameter.trained).count();
        assert_eq!(ModuleRecord::load(&state).expect("reads").len(), trained, "{tables:?}, {dtype:?}");
        let mut restored = trainer(model.clone(), switch, tables, dtype);
        assert_eq!(folder.restore(&mut restored).expect("reads"), 1);
        assert_eq!(restored.model.parameters(), whole.model.parameters());
        step(&mut whole);
        step(&mut restored);
        assert_eq!(logits(&restored.decoder(), switch), logits(&whole.decoder(), switch), "{tables:?}, {dtype:?}");
        // A state of another training with fewer weights is an error.
        if tables == Tables::Frozen {
            let mut more = trainer(model, switch, Tables::Whole, dtype);
            let said = format!("{:#}", folder.restore(&mut more).expect_err("refused"));
            assert!(said.contains("state-0000001") && said.contains("are trained"), "{said}");
        }
    }
}

#[test]
fn an_adapter_without_its_base_is_an_error_by_name() {
    let root = tempfile::tempdir().expect("a folder");
    let path = base(root.path(), true, true);
    let (model, vocabulary) = opened(&path, Compute::Stored, &Device::flex());
    let switch = ids(&vocabulary);
    let frozen = trainer(model.clone(), switch, Tables::NewRows, Compute::Stored).decoder();
    let folder = PhaseFolder::open(root.path(), "sft").expect("a phase");
    let (reasoning, files) = (Reasoning::default(), ModelFiles::open(path.to_str().expect("a path")).expect("opens"));
    let name = path.to_str().expect("a path");
    let over = Over { base: &files, name, before: None, tokens: &[], tables: false };
    let to = |over| export(&vocabulary, &reasoning, over);
    let said = folder.export("checkpoint", &frozen, &to(None)).expect_err("refused").to_string();
    assert!(said.contains("not written whole"), "{said}");
    let out = folder.export("checkpoint", &frozen, &to(Some(over))).expect("writes");
    // Another model of the same shape at the base's path.
    let (own, moved) = (out.display().to_string(), root.path().join("moved.gguf"));
    std::fs::rename(&path, &moved).expect("moves");
    write_random(&config(true), &path, 6).expect("writes");
    let said = format!("{:#}", ModelFiles::open(&own).err().expect("refused"));
    for part in ["base.json", "trained over a base of", "model.gguf differs", "base_model_name_or_path", "--adapter"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    let noted = |base: &Path| {
        let adapter = std::sync::Arc::new(Adapter::open(&out).expect("opens"));
        let base = ModelFiles::open(base.to_str().expect("a path")).expect("opens");
        base.with_adapter(adapter, Apply::Merged).expect("fits").notes.concat()
    };
    assert!(noted(&path).contains("warning") && noted(&path).contains("differs"), "{}", noted(&path));
    assert!(!noted(&moved).contains("differs"), "the base is known where it lies now");
    std::fs::remove_file(&path).expect("removed");
    let said = format!("{:#}", ModelFiles::open_folder(&out).err().expect("refused"));
    for part in ["adapter_config.json", "base_model_name_or_path", "model.gguf", "has moved", "link"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&moved, &path).expect("linked");
        ModelFiles::open(&own).expect("opens by the link");
        std::fs::remove_file(&path).expect("removed");
    }
    let settings = out.join("adapter_config.json");
    let text = std::fs::read_to_string(&settings).expect("reads");
    let over = |base: serde_json::Value| {
        let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        value["base_model_name_or_path"] = base;
        std::fs::write(&settings, value.to_string()).expect("writes");
        format!("{:#}", ModelFiles::open_folder(&out).err().expect("refused"))
    };
    let itself = out.display().to_string();
    // A relative name that is found above the folder: the folder itself.
    let found_again = itself.rsplit('/').next().expect("a name").to_owned();
    for (base, part) in [
        (serde_json::Value::Null, "--adapter"),
        (itself.clone().into(), "an adapter itself"),
        (found_again.into(), "an adapter itself"),
    ] {
        let said = over(base);
        assert!(said.contains(part) && said.contains("adapter_config.json"), "{said}");
    }

    let said = model.learning_tokens(&[3, 4, 5]).expect_err("refused").to_string();
    assert!(said.contains("only_new_rows") && said.contains("[3, 4, 5]"), "{said}");
}
