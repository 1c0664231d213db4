//! Every parser of a file that a user may name: for `tests/malformed.rs`, and for the targets of `fuzz/`.

use std::path::Path;
use std::sync::LazyLock;

use burn::tensor::Device;
use sha2::{Digest, Sha256};
use switchyard::corpus::Row;
use switchyard::grade::{extract, grade};
use switchyard::latent::{Gradient, Reasoning, Source};
use switchyard::loading::Checkpoint;
use switchyard::method::Recipe;
use switchyard::method::{CrossEntropy, LrSchedule};
use switchyard::model::Decoder;
use switchyard::model::checkpoint::ModelFiles;
use switchyard::model::checkpoint::peft::Apply;
use switchyard::recipe::Optimizer;
use switchyard::store::read_flat;
use switchyard::text::read_problems;
use switchyard::train::sft::{self, Sft};
use switchyard::train::state::PhaseFolder;
use switchyard::train::trainer::Trainer;
use switchyard_programs::report::folder::Folder;

/// A file that a user may name, and its parser.
pub struct Target {
    /// Files of the repository: one is mutated, the others of its folder are not.
    pub folder: &'static str,
    pub file: &'static str,
    /// Whether it is mutated as text.
    pub text: bool,
    /// Parses the mutated file in its folder. Returns whether it was accepted.
    pub read: fn(&Path, &Path) -> bool,
}

pub const TARGETS: [Target; 23] = [
    Target { folder: "fixtures/tiny/llama_gqa", file: "model.safetensors", text: false, read: folder },
    Target { folder: "fixtures/tiny/llama_gqa", file: "config.json", text: true, read: folder },
    Target { folder: "fixtures/micro/sft/checkpoint", file: "tokenizer.json", text: true, read: vocabulary },
    Target { folder: "fixtures/micro/sft/checkpoint", file: "tokenizer_config.json", text: true, read: vocabulary },
    Target { folder: "fixtures/micro/sft/checkpoint", file: "reasoning.json", text: true, read: reasoning },
    Target { folder: "fixtures/gguf", file: "tiny-q4_0.gguf", text: false, read: gguf },
    Target { folder: "fixtures/gguf", file: "tiny-q8_0.gguf", text: false, read: gguf },
    Target { folder: "fixtures/gguf", file: "tiny-q4_k_m.gguf", text: false, read: gguf },
    Target { folder: "fixtures/gguf", file: "tiny-q5_k_m.gguf", text: false, read: gguf },
    Target { folder: "fixtures/tiny/qwen3_tied_peft", file: "adapter_model.safetensors", text: false, read: adapter },
    Target { folder: "fixtures/tiny/qwen3_tied_peft", file: "adapter_config.json", text: true, read: adapter },
    Target { folder: "fixtures/problems", file: "gsm8k.jsonl", text: true, read: problems },
    Target { folder: "fixtures/problems", file: "math.jsonl", text: true, read: problems },
    Target { folder: "fixtures/problems", file: "prosqa.json", text: true, read: problems },
    Target { folder: "src/presets", file: "micro.toml", text: true, read: recipe },
    Target { folder: "src/presets", file: "smoke.toml", text: true, read: recipe },
    Target { folder: "fixtures/rows", file: "known_value-sft.parquet", text: false, read: rows },
    Target { folder: "fixtures/rows", file: "observations-sft.parquet", text: false, read: rows },
    Target { folder: "fixtures/rows", file: "manifest.json", text: true, read: results },
    Target { folder: "fixtures/grader", file: "pairs.jsonl", text: true, read: answers },
    Target { folder: STATE, file: "sft/state.json", text: true, read: state },
    Target { folder: STATE, file: "sft/state-0000001/model.bpk", text: false, read: state },
    Target { folder: STATE, file: "sft/state-0000001/optimizer.bpk", text: false, read: state },
];

/// Not a folder of the repository: [`place`] writes a training state after one step.
const STATE: &str = "a training state";

fn opened(model: &Path, adapter: Option<&Path>) -> bool {
    let opened = Checkpoint::open(&model.display().to_string(), adapter, Apply::Merged);
    opened.is_ok_and(|opened| opened.load(&Device::flex()).is_ok())
}

fn folder(folder: &Path, _: &Path) -> bool {
    opened(folder, None)
}

fn gguf(_: &Path, file: &Path) -> bool {
    opened(file, None)
}

fn adapter(folder: &Path, _: &Path) -> bool {
    opened(Path::new("fixtures/tiny/qwen3_tied"), Some(folder))
}

fn vocabulary(folder: &Path, _: &Path) -> bool {
    Checkpoint::open(&folder.display().to_string(), None, Apply::Merged).is_ok_and(|opened| {
        let ids = opened.text().and_then(|vocabulary| vocabulary.encode("a = 5 ; # 2 <swi>"));
        ids.is_ok_and(|ids| opened.text().is_ok_and(|vocabulary| vocabulary.decode(&ids).is_ok()))
    })
}

fn reasoning(folder: &Path, _: &Path) -> bool {
    Reasoning::read(folder).is_ok()
}

fn problems(_: &Path, file: &Path) -> bool {
    read_problems(file).is_ok()
}

fn recipe(_: &Path, file: &Path) -> bool {
    Recipe::resolve(&file.display().to_string(), &[]).is_ok()
}

fn rows(_: &Path, file: &Path) -> bool {
    read_flat(file).is_ok()
}

/// Every row of a folder, and its manifest.
fn results(folder: &Path, _: &Path) -> bool {
    Folder::open(folder).is_ok_and(|folder| folder.unreadable.is_empty())
}

fn answers(_: &Path, file: &Path) -> bool {
    let text = String::from_utf8_lossy(&std::fs::read(file).expect("just written")).into_owned();
    let (gold, said) = text.split_once("\"pred\"").unwrap_or((&text, &text));
    grade(gold, said);
    extract(said);
    true
}

/// A trainer of the smallest model.
fn trainer() -> Trainer {
    static MODEL: LazyLock<Decoder> = LazyLock::new(|| {
        let checkpoint = ModelFiles::open_folder("fixtures/tiny/llama_gqa").expect("the tiny model");
        Decoder::load(&checkpoint, &Device::flex().autodiff()).expect("its weights")
    });
    Trainer::new(MODEL.clone(), &Optimizer::default())
}

/// The same after one step.
fn trained() -> Trainer {
    let mut trainer = trainer();
    let settings = Sft {
        name: "sft",
        steps: 1,
        schedule: LrSchedule { peak: 1e-3, warmup: 0, cosine_from: 1, steps: 1 },
        latent_token: 3,
        objective: &CrossEntropy { source: Source::HiddenState, gradient: Gradient::Through },
        resets: &[],
        restarts: &[],
        accumulate: 1,
        threads: 1,
        checkpoint_every: 1,
    };
    let row = Row { ids: vec![5, 6, 7, 8], prompt: 1, teacher: None, slots: vec![], noise: None };
    sft::step(&mut trainer, &settings, &[row], 1e-3).expect("a step");
    trainer
}

/// Resumes from a state. Recomputes its checksums first: they do not stop an attacker who can write them.
fn state(folder: &Path, _: &Path) -> bool {
    let file = folder.join("sft/state.json");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    if let Ok(mut state) = serde_json::from_str::<serde_json::Value>(&text)
        && let Some(sums) = state.get_mut("sums")
    {
        let sum = |name| std::fs::read(folder.join("sft/state-0000001").join(name)).map(|bytes| Sha256::digest(&bytes));
        let sum = |name| sum(name).expect("a file").iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        *sums = serde_json::json!([sum("model.bpk"), sum("optimizer.bpk")]);
        std::fs::write(&file, state.to_string()).expect("a file");
    }
    let mut trainer = trainer();
    let phase = PhaseFolder::open(folder, "sft").expect("a phase");
    phase.restore(&mut trainer).is_ok_and(|step| step == 1)
}

/// Copies the files next to a target's file into `folder`, where the target itself is mutated.
pub fn place(target: &Target, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    if target.folder == STATE {
        return PhaseFolder::open(folder, "sft").expect("a phase").save(1, &trained()).expect("saves");
    }
    for entry in std::fs::read_dir(target.folder).expect("seeds").map(|entry| entry.expect("a seed")) {
        let small = entry.metadata().is_ok_and(|data| data.is_file() && data.len() < 2_000_000);
        if small && !target.folder.ends_with("gguf") {
            std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("a copy");
        }
    }
}
