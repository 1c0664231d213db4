//! LoRA factors trained over weights that stay as their files store them, against the same over the widened weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::Device;
use switchyard::corpus::Row;
use switchyard::latent::{Gradient, Reasoning, Source, SwitchIds};
use switchyard::loading::{Checkpoint, NewRows};
use switchyard::method::{CrossEntropy, LrSchedule};
use switchyard::model::checkpoint::peft::{Adapter, Apply};
use switchyard::model::checkpoint::{HostTensor, ModelFiles, write_random};
use switchyard::model::config::{Family, ModelConfig};
use switchyard::model::gradients::gradients_by_name;
use switchyard::model::lora::LoraSettings;
use switchyard::model::{Decoder, Hooks};
use switchyard::recipe::{Compute, Optimizer};
use switchyard::text::Vocabulary;
use switchyard::train::sft::{self, Sft};
use switchyard::train::state::{CheckpointExport, PhaseFolder, TrainingHistory};
use switchyard::train::trainer::Trainer;

use crate::common::{relative, tiny_config, values};

/// Twenty words, and the model's rows: more than the vocabulary has, as of Qwen3.
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

/// With the switch tokens, ready for factors.
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
        Row { ids, prompt: 3, teacher: None, slots: vec![] }
    };
    (0..4).map(row).collect()
}

const OBJECTIVE: CrossEntropy = CrossEntropy { source: Source::HiddenState, gradient: Gradient::Through };

fn sft(latent_token: u32) -> Sft<'static> {
    Sft {
        name: "test",
        steps: 3,
        schedule: LrSchedule { peak: 3e-3, warmup: 0, cosine_from: 3, steps: 3 },
        latent_token,
        objective: &OBJECTIVE,
        resets: &[],
        accumulate: 1,
        threads: 2,
        checkpoint_every: 1,
    }
}

/// What is trained of the tables of tokens.
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
    let mut trainer = Trainer::new(model, &Optimizer { dtype, ..Optimizer::default() });
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
    let (grads, _) = sft::gradients(trainer, &sft(switch.latent), &rows(switch)).expect("gradients");
    gradients_by_name(&trainer.model, &grads).expect("on the host").into_iter().collect()
}

/// Rows that are learnt apart are the last of the whole table's.
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
fn factors_over_kept_weights_have_the_gradients_of_those_over_floats() {
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
                    sft::step(trainer, &sft(switch.latent), &rows(switch), 3e-3).expect("a step").loss
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

#[test]
fn a_phase_writes_an_adapter_that_the_next_one_trains_on() {
    let root = tempfile::tempdir().expect("a folder");
    for (tied, gguf) in BASES {
        let path = base(root.path(), tied, gguf);
        for tables in ALL {
            let what = format!("{}, {tables:?}", path.display());
            let (mut model, vocabulary) = opened(&path, Compute::Stored, &Device::flex());
            let (switch, run) = (ids(&vocabulary), root.path().join(format!("run-{tied}-{gguf}-{tables:?}")));
            let (mut before, mut wide) = (logits(&model, switch), None);
            for (number, phase) in ["one", "two"].into_iter().enumerate() {
                let mut trainer = trainer(model, switch, tables, Compute::Stored);
                if let Some(wide) = wide.take() {
                    // The factors of the phase before: beside the weights here, merged there.
                    same_gradients(&gradients(&trainer, switch), &gradients(&wide, switch), &what);
                }
                assert!(
                    relative(&logits(&trainer.decoder(), switch), &before) < 1e-5,
                    "{what}: {phase} begins elsewhere"
                );
                for _ in 0..2 {
                    sft::step(&mut trainer, &sft(switch.latent), &rows(switch), 3e-3).expect("a step");
                }
                let learnt = logits(&trainer.policy(), switch);
                assert!(relative(&learnt, &before) > 1e-3, "{what}: {phase} learnt nothing");
                let folder = PhaseFolder::open(&run, phase).expect("a phase");
                let to = CheckpointExport {
                    vocabulary: &vocabulary,
                    base: path.to_str(),
                    tokens: &[switch.swi, switch.swi_end, switch.latent],
                    reasoning: &Reasoning::default(),
                    trained: TrainingHistory::default(),
                };
                let out = folder.export("checkpoint", &trainer.decoder(), &to).expect("writes");
                assert!(!out.join("model.safetensors").exists());
                let adapter = Adapter::open(&out).expect("opens");
                assert_eq!(adapter.config.r, 4 * (number + 1), "{what}: ranks of the phases add up");
                let whole = ModelFiles::open_folder(&out).expect("opens").names().len();
                assert_eq!(whole, ModelFiles::open(path.to_str().expect("a path")).expect("opens").names().len());
                assert_eq!(adapter.factor_names().count(), 2 * 7, "{what}");
                for dtype in [Compute::Stored, Compute::F32] {
                    let read = folder.import("checkpoint", dtype, &Device::flex()).expect("reads");
                    assert_eq!(read.config().vocab_size, vocabulary.size(), "{what}: padded rows are cut");
                    let off = relative(&logits(&read, switch), &learnt);
                    assert!(off < 1e-5, "{what}, {phase} read as {dtype:?}: off by {off:e}");
                }
                // As a user opens it: by itself, and over the base.
                let (own, over) = (out.to_str().expect("a path"), path.to_str().expect("a path"));
                for (model, adapter) in [(own, None), (over, Some(out.as_path()))] {
                    let opened = Checkpoint::open(model, adapter, Apply::Merged).expect("opens");
                    assert_eq!(opened.switch(), Some(switch));
                    let read = opened.load_as(Compute::Stored, &Device::flex()).expect("loads").model;
                    assert!(relative(&logits(&read, switch), &learnt) < 1e-5, "{what}, {phase}");
                }
                let read = |dtype| folder.import_to_train("checkpoint", dtype, &Device::flex()).expect("reads");
                (before, model) = (learnt, read(Compute::Stored));
                wide = Some(self::trainer(read(Compute::F32), switch, tables, Compute::F32));
            }
        }
    }
}

#[test]
fn a_restored_run_goes_on_with_the_same_bits() {
    let root = tempfile::tempdir().expect("a folder");
    let path = base(root.path(), false, true);
    for tables in ALL {
        let (model, vocabulary) = opened(&path, Compute::Stored, &Device::flex());
        let switch = ids(&vocabulary);
        let step = |trainer: &mut Trainer| {
            sft::step(trainer, &sft(switch.latent), &rows(switch), 3e-3).expect("a step");
        };
        let folder = PhaseFolder::open(&root.path().join(format!("{tables:?}")), "sft").expect("a phase");
        let mut whole = trainer(model.clone(), switch, tables, Compute::Stored);
        step(&mut whole);
        folder.save(1, &whole).expect("saves");
        let mut restored = trainer(model, switch, tables, Compute::Stored);
        assert_eq!(folder.restore(&mut restored).expect("reads"), 1);
        assert_eq!(restored.model.parameters(), whole.model.parameters());
        step(&mut whole);
        step(&mut restored);
        assert_eq!(logits(&restored.decoder(), switch), logits(&whole.decoder(), switch), "{tables:?}");
    }
}

#[test]
fn an_adapter_without_its_base_is_refused_by_name() {
    let root = tempfile::tempdir().expect("a folder");
    let path = base(root.path(), true, true);
    let (model, vocabulary) = opened(&path, Compute::Stored, &Device::flex());
    let switch = ids(&vocabulary);
    let frozen = trainer(model.clone(), switch, Tables::NewRows, Compute::Stored).decoder();
    let folder = PhaseFolder::open(root.path(), "sft").expect("a phase");
    let reasoning = Reasoning::default();
    let to = |base| CheckpointExport {
        vocabulary: &vocabulary,
        base,
        tokens: &[],
        reasoning: &reasoning,
        trained: TrainingHistory::default(),
    };
    let said = folder.export("checkpoint", &frozen, &to(None)).expect_err("refused").to_string();
    assert!(said.contains("pretrained model"), "{said}");
    let out = folder.export("checkpoint", &frozen, &to(path.to_str())).expect("writes");
    std::fs::rename(&path, root.path().join("moved.gguf")).expect("moves");
    let said = format!("{:#}", ModelFiles::open_folder(&out).err().expect("refused"));
    for part in ["adapter_config.json", "base_model_name_or_path", "model.gguf", "lies elsewhere"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
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
    for (base, part) in [(serde_json::Value::Null, "--adapter"), (itself.into(), "an adapter itself")] {
        let said = over(base);
        assert!(said.contains(part) && said.contains("adapter_config.json"), "{said}");
    }

    let said = model.learning_tokens(&[3, 4, 5]).expect_err("refused").to_string();
    assert!(said.contains("only_new_rows") && said.contains("[3, 4, 5]"), "{said}");
}
